"""zofc-device restates parts of zofc in NumPy: each gives the same numbers as its original."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from zofc import seeds
from zofc.data.source import decode
from zofc.data.views import TestView, TrainView, normalise
from zofc.model.heads import HEADS
from zofc.model.image_ridge import ImageRidge as TorchImageRidge
from zofc.model.ridge import CalibrationSample, RidgeHead, draw_projection
from zofc.optim.directions import Directions as TorchDirections
from zofc.optim.optimizers import GroupOptimizer
from zofc.recipe import Group
from zofc.training import calibration as torch_calibration
from zofc_device import directions as device_directions
from zofc_device.calibration import best_scale, calibrate
from zofc_device.directions import Directions, stream, torch_uniform
from zofc_device.heads import Head, rows_at_means, start_rows
from zofc_device.image_ridge import ImageRidge
from zofc_device.images import Images, image_formats, read_folder
from zofc_device.optimizers import Optimizer, Plan
from zofc_device.ridge import Ridge, RidgeSettings, Sample
from zofc_device.runtime import has_integer_activations
from zofc_device.views import Views

RNG = np.random.default_rng(0)


def test_named_streams_are_those_of_zofc() -> None:
    name = (1993, "task", 3, "epoch", 7, "order")
    assert device_directions.key(*name) == seeds.key(*name)
    assert (stream(*name).permutation(50) == seeds.stream(*name).permutation(50)).all()


@pytest.mark.parametrize("kind", ["rademacher", "gaussian", "sphere"])
@pytest.mark.parametrize("shape", [(37,), (5, 131)])
def test_directions_are_those_of_zofc(kind: str, shape: tuple[int, ...]) -> None:
    ours = Directions(kind, 7, ("task", 1, "peft")).stack(12, 3, shape)
    theirs = TorchDirections(kind, 7, ("task", 1, "peft")).stack(12, 3, shape, torch.device("cpu"))
    assert (ours == theirs.float().numpy()).all()


@pytest.mark.parametrize("count", [6, 35, 4000])
def test_uniform_numbers_are_those_of_torch(count: int) -> None:
    drawn = torch.empty(count).uniform_(-0.3, 0.3, generator=seeds.torch_stream(5, "head", 2))
    assert (torch_uniform(count, 0.3, 5, "head", 2) == drawn.numpy()).all()


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("init", ["uniform", "torch", "zeros"])
def test_new_rows_start_as_in_zofc(kind: str, init: str) -> None:
    head = HEADS[kind](48, init)
    head.grow(5, seeds.torch_stream(11, "head", 3))
    ours = start_rows(kind, init, 5, 48, 11, 3)
    assert (ours["head.rows.3"] == head.rows[0].numpy()).all()
    if kind == "linear":
        assert (ours["head.bias.3"] == head.bias[0].numpy()).all()
    means = RNG.normal(size=(5, 48)).astype(np.float32)
    at_means = head.rows_at(torch.from_numpy(means), 10.0).numpy()
    np.testing.assert_allclose(rows_at_means(kind, means, 10.0), at_means, rtol=1e-6)


# -- images and views ------------------------------------------------------------------------------------------------


def settings(**changes: object) -> dict[str, object]:
    normal = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25), "scale": (0.05, 1.0), "ratio": (3 / 4, 4 / 3)}
    return (
        {"size": 32, "resize_to": 37, "interpolation": "bicubic", "augment": "crop-flip", "flip": 0.5}
        | normal
        | changes
    )


@pytest.mark.parametrize("extent", [(50, 40), (32, 32), (41, 97), (37, 37), (300, 201), (20, 25)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("resize_to", [37, 32, 28])
def test_test_views_are_those_of_zofc_to_the_pixel(extent: tuple[int, int], interpolation: str, resize_to: int) -> None:
    image = Image.fromarray(RNG.integers(0, 256, (*extent, 3), np.uint8))
    ours = Views.of(settings(interpolation=interpolation, resize_to=resize_to))
    theirs = TestView(32, resize_to, interpolation, ours.mean, ours.std)  # type: ignore[arg-type]
    pixels, expected = ours.test(image), theirs.cut(image)
    assert (pixels.transpose(2, 0, 1) == expected.numpy()).all()
    inputs = normalise(expected[None], ours.mean, ours.std).numpy()
    np.testing.assert_allclose(ours.normalise(pixels[None]), inputs, rtol=1e-6, atol=1e-6)


def test_training_views_are_those_of_zofc_to_the_pixel() -> None:
    sizes = np.array([(50, 40), (32, 32), (41, 97), (300, 20), (31, 200), (20, 25)] * 5)
    ours = Views.of(settings())
    theirs = TrainView(32, ours.scale, ours.ratio, ours.flip)
    (boxes, flips), expected = ours.draw(sizes, stream(1, "crops")), theirs.draw(sizes, seeds.stream(1, "crops"))
    assert (boxes == expected.boxes).all()
    assert (flips == expected.flips).all()
    for extent, box, flip in zip(sizes, boxes, flips, strict=True):
        image = Image.fromarray(RNG.integers(0, 256, (*extent, 3), np.uint8))
        cut = ours.training(image, box, bool(flip))
        assert (cut.transpose(2, 0, 1) == theirs.cut(image, box, bool(flip)).numpy()).all()


def test_images_of_any_form_are_those_of_zofc(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (20, 30, 3), np.uint8)
    exif = Image.Exif()
    for orientation in range(1, 10):  # 9 is none
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(tmp_path / f"turned{orientation}.png", exif=exif)
    exif[0x0112] = 6
    Image.fromarray(pixels).quantize(16).save(tmp_path / "palette.png")
    Image.fromarray(RNG.integers(0, 2**16, (9, 7), np.uint16)).save(tmp_path / "deep.png")
    assert ".heic" in image_formats()
    for name in ("photo.jpg", "photo.heic", "photo.webp", "photo.tif"):
        Image.fromarray(pixels).save(tmp_path / name, exif=exif)
    for file in sorted(tmp_path.iterdir()):
        assert (np.asarray(Images([file]).load(0)) == np.asarray(decode(file, "x"))).all(), file
        assert Images([file.read_bytes()]).load(0).size == Images([file]).load(0).size
    assert (np.asarray(Images([pixels]).load(0)) == pixels).all()
    photo = Image.fromarray(pixels)
    photo.getexif()[0x0112] = 6
    assert Images([photo]).load(0).size == (20, 30) and photo.size == (30, 20)  # given images are left as they are


def test_a_digest_is_that_of_the_size_and_all_pixels() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 50, 3), np.uint8))
    sizes, [digest] = Images([image]).inspect()
    assert sizes.tolist() == [[600, 50]]
    assert digest == hashlib.sha256(b"(50, 600)" + image.tobytes()).hexdigest()


def test_a_folder_has_a_class_for_each_sub_folder(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/deep/1.png", "a/x.PNG", "a/.hidden.png", ".cache/y.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    listed = read_folder(tmp_path)
    assert {name: [Path(str(f)).name for f in files] for name, files in listed.items()} == {
        "a": ["x.PNG"], "b": ["2.png", "1.png"],
    }  # fmt: skip


# -- heads and optimizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_gradients_of_heads_are_those_of_autograd(kind: str) -> None:
    features = torch.from_numpy(RNG.normal(size=(9, 16))).requires_grad_()
    targets = RNG.integers(0, 7, 9)
    shapes = {"head.rows.1": (3, 16), "head.rows.2": (4, 16)}
    shapes |= {"head.sigma": ()} if kind == "cosine" else {"head.bias.1": (3,), "head.bias.2": (4,)}
    values = {name: torch.tensor(RNG.normal(size=shape) + 1).requires_grad_() for name, shape in shapes.items()}
    head = HEADS[kind](16)
    for classes in (2, 3, 4):  # the first task is not in the loss
        head.grow(classes, torch.Generator())
    moving = {name.removeprefix("head."): value for name, value in values.items()}
    loss = torch.nn.functional.cross_entropy(head.logits(moving, features, [1, 2]), torch.from_numpy(targets))
    expected = torch.autograd.grad(loss, [features, *values.values()])
    arrays = {name: value.detach().numpy() for name, value in values.items()}
    ours = Head(kind, [1, 2])
    slopes = ours.slopes(arrays, features.detach().numpy(), targets)
    assert float(slopes.loss) == pytest.approx(float(loss.detach()), rel=1e-12)
    each = ours.losses(arrays, features.detach().numpy(), targets)
    assert each.shape == (9,) and each.mean() == pytest.approx(float(loss.detach()), rel=1e-12)
    for name, value in zip(["features", *shapes], expected, strict=True):
        own = slopes.features if name == "features" else slopes.parameters[name]
        np.testing.assert_allclose(own, value.numpy(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["sgd", "sign"])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "cosine99"])
def test_optimizers_are_those_of_torch(optimizer: str, schedule: str) -> None:
    group = Group(optimizer=optimizer, schedule=schedule, lr=0.1, clip=1.0, weight_decay=0.01, epochs=5)  # type: ignore[arg-type]
    tensors = {"a": torch.randn(4, 3), "b": torch.randn(())}
    values = {name: value.numpy().copy() for name, value in tensors.items()}
    theirs, ours = GroupOptimizer(tensors, group), Optimizer(Plan.of("head", group.model_dump()))
    for epoch in range(5):
        gradient = {name: torch.randn(value.shape) for name, value in tensors.items()}
        assert theirs.move(gradient, epoch)
        assert ours.move(values, {name: g.numpy() for name, g in gradient.items()}, epoch)
    for name, value in tensors.items():
        np.testing.assert_allclose(values[name], value.numpy(), rtol=1e-5, atol=1e-6)
    before = dict(values)
    assert not ours.move(values, {"a": np.full((4, 3), np.nan)}, 0)
    assert values == before


# -- regression and calibration --------------------------------------------------------------------------------------


def make_pair(projection: int, budget: int | None, strength_from: str, keep: int) -> tuple[RidgeHead, Ridge]:
    width = 12

    def draw(size: int) -> torch.Tensor:
        return draw_projection(width, size, True, seeds.torch_stream(3, "projection"))

    shape = width, projection, budget, draw, torch.device("cpu")
    theirs = TorchImageRidge(*shape, keep) if strength_from == "images" else RidgeHead(*shape)
    theirs.strength_from = strength_from
    own = RidgeSettings(width, projection, budget, strength_from, keep, lambda size: draw(size).numpy())
    state = {f"ridge.{name}": value.numpy().copy() for name, value in theirs.state_dict().items()}
    return theirs, (ImageRidge if strength_from == "images" else Ridge)(own, state, "ridge.")


@pytest.mark.parametrize(
    ("projection", "budget", "images"),
    [(0, 64_000_000, 40), (64, 64_000_000, 12), (64, 8 * 32**2, 40), (2000, 64_000_000, 300)],
    ids=["features", "kept images", "sums of a projection", "many images"],
)
@pytest.mark.parametrize("strength_from", ["all", "task", "images"])
@pytest.mark.parametrize("keep", [10**9, 12 * 4 * 30], ids=["keep all", "keep some"])
def test_regressions_are_those_of_zofc(
    projection: int, budget: int, images: int, strength_from: str, keep: int
) -> None:
    theirs, ours = make_pair(projection, budget, strength_from, keep)
    rng = np.random.default_rng(0)  # the same data whichever tests run
    centers = rng.normal(size=(9, 12))
    for task in range(3):
        theirs.grow(3)
        ours.grow(3)
        labels = np.arange(images) % 3 + 3 * task
        features = (centers[labels] + rng.normal(size=(images, 12))).astype(np.float32)
        expected = theirs.learn(torch.from_numpy(features), torch.from_numpy(labels), np.random.default_rng(task))
        answer = ours.learn(features, labels, np.random.default_rng(task))
        assert float(ours.strength) == float(theirs.strength)
        assert (answer.images == expected.images.numpy()).all()
        np.testing.assert_allclose(answer.scores, expected.scores.numpy(), rtol=1e-7, atol=1e-9)
        for name, value in theirs.state_dict().items():
            own = ours.state()[f"ridge.{name}"]
            assert own.shape == tuple(value.shape) and own.dtype == value.numpy().dtype, name
            np.testing.assert_allclose(own, value.numpy(), rtol=1e-7, atol=1e-9)
        assert theirs.left_out is not None and ours.left_out is not None
        np.testing.assert_allclose(ours.left_out.scores, theirs.left_out.scores.numpy(), rtol=1e-6, atol=1e-8)
    asked = torch.from_numpy(rng.normal(size=(5, 12)).astype(np.float32))
    np.testing.assert_allclose(ours.scores(asked.numpy()), theirs.scores(asked).numpy(), rtol=1e-4, atol=1e-5)


def test_calibration_is_that_of_zofc() -> None:
    scores, labels = RNG.normal(size=(40, 6)), RNG.integers(0, 6, 40)
    scores[np.arange(40), labels] += 1.5
    tensors = torch.from_numpy(scores), torch.from_numpy(labels)
    assert best_scale(scores, labels) == pytest.approx(torch_calibration.best_scale(*tensors), rel=1e-9)
    counts = np.bincount(labels, minlength=6)
    before = {"scale": 3.0, "images": 70}
    old = torch_calibration.Calibration(**before)
    expected = torch_calibration.fit_calibration(*tensors, old)
    ours = calibrate(Sample(scores, labels), 0, counts, before)
    assert ours is not None
    assert ours["scale"] == pytest.approx(expected.scale, rel=1e-9) and ours["images"] == expected.images
    sample = CalibrationSample(*tensors, tensors[0].float())
    anew = torch_calibration.calibrate(sample, range(6, 6), torch.from_numpy(counts), None)
    assert anew is not None and calibrate(Sample(scores, labels), 6, counts, before) == {
        "scale": pytest.approx(anew[0].scale, rel=1e-9), "images": 40,
    }  # fmt: skip


def test_integer_activations_are_told_from_the_file() -> None:
    onnx = pytest.importorskip("onnx")

    def model(level: int) -> bytes:
        node = onnx.helper.make_node(
            "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=32, bits=8, block_size=32,
            accuracy_level=level,
        )  # fmt: skip
        graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["a"], ["x"]), node], "g", [], [])
        data: bytes = onnx.helper.make_model(graph).SerializeToString()
        return data

    assert has_integer_activations(model(4))
    assert not has_integer_activations(model(1))
    for operator in ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"):
        graph = onnx.helper.make_graph([onnx.helper.make_node(operator, ["a"], ["b"])], "g", [], [])
        assert has_integer_activations(onnx.helper.make_model(graph).SerializeToString())

"""Views: torchvision's numbers one image at a time, and the same pixels a batch at a time on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F

from zofc.data import Crops, TestView, TrainView
from zofc.data.views import Filter, draw_crops, normalise

SCALE, RATIO = (0.05, 1.0), (3 / 4, 4 / 3)


def photographs(n: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth shapes with some noise: (n, height, width, 3)."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 6 * n, 3), np.uint8))
    smooth = np.asarray(small.resize((width * n, height), Image.Resampling.BICUBIC)).reshape(height, n, width, 3)
    noisy = smooth.swapaxes(0, 1) + rng.normal(0, 12, (n, height, width, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def sizes(n: int, height: int, width: int) -> np.ndarray:
    return np.tile(np.array([height, width], np.int64), (n, 1))


# --- random crops ---


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(32, 32, (0.05, 1.0)), (64, 100, (0.08, 1.0)), (20, 90, (0.5, 1.0)), (90, 20, (0.9, 1.0))],
)
def test_crops_are_distributed_like_torchvision_s(height: int, width: int, scale: tuple[float, float]) -> None:
    n = 3000
    ours = draw_crops(sizes(n, height, width), scale, RATIO, 0.5, np.random.default_rng(0)).boxes
    torch.manual_seed(0)
    image = torch.zeros(3, height, width)
    theirs = np.array([T.RandomResizedCrop.get_params(image, list(scale), list(RATIO)) for _ in range(n)])
    for boxes in (ours, theirs):
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] >= 1).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= [height, width]).all()
    quantities = [*ours.T, ours[:, 2] * ours[:, 3]], [*theirs.T, theirs[:, 2] * theirs[:, 3]]
    for a, b in zip(*quantities, strict=True):  # two-sample Kolmogorov-Smirnov, far from its 0.1 % bound of 0.05
        grid = np.unique(np.concatenate([a, b]))
        distance = abs(np.searchsorted(np.sort(a), grid, "right") - np.searchsorted(np.sort(b), grid, "right"))
        assert distance.max() / n < 0.05


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
def test_every_crop_lies_in_its_image(height: int, width: int, seed: int) -> None:
    boxes = draw_crops(sizes(16, height, width), SCALE, RATIO, 0.5, np.random.default_rng(seed)).boxes
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= [height, width]).all()


@pytest.mark.parametrize(("height", "width", "box"), [(10, 99, [0, 43, 10, 13]), (99, 10, [43, 0, 13, 10])])
def test_where_no_crop_fits_the_centre_is_taken_as_torchvision_does(height: int, width: int, box: list[int]) -> None:
    crops = draw_crops(sizes(4, height, width), (0.95, 1.0), RATIO, 0.0, np.random.default_rng(0))
    assert crops.boxes.tolist() == [box] * 4
    theirs = T.RandomResizedCrop.get_params(torch.zeros(3, height, width), [0.95, 1.0], list(RATIO))
    assert list(theirs) == box


def test_images_of_several_sizes_are_cut_in_one_draw() -> None:
    mixed = np.array([[8, 90], [50, 50], [90, 8]] * 50)
    boxes = draw_crops(mixed, SCALE, RATIO, 0.5, np.random.default_rng(0)).boxes
    assert (boxes[:, :2] + boxes[:, 2:] <= mixed).all()


@pytest.mark.parametrize(("flip", "share"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_flips_come_as_often_as_asked(flip: float, share: float) -> None:
    crops = draw_crops(sizes(4000, 8, 8), SCALE, RATIO, flip, np.random.default_rng(0))
    assert crops.flips.mean() == pytest.approx(share, abs=0.03)


# --- one image at a time ---


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("stats", [None, ((0.5, 0.4, 0.3), (0.5, 0.6, 0.7))])
def test_the_training_view_gives_torchvision_s_numbers(
    flip: bool, stats: tuple[tuple[float, ...], tuple[float, ...]] | None
) -> None:
    image = Image.fromarray(photographs(1, 47, 61)[0])
    mean, std = stats or (None, None)
    view = TrainView(24, mean=mean, std=std)
    ours = normalise(view.cut(image, (5, 9, 31, 40), flip)[None], view.mean, view.std)[0]
    theirs = F.resized_crop(image, 5, 9, 31, 40, [24, 24], T.InterpolationMode.BILINEAR)
    theirs = F.to_tensor(F.hflip(theirs) if flip else theirs)
    assert torch.equal(ours, F.normalize(theirs, mean, std) if stats else theirs)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("shape", [(47, 61), (80, 33), (32, 32), (16, 16)])
def test_the_test_view_gives_torchvision_s_numbers(interpolation: Filter, shape: tuple[int, int]) -> None:
    image = Image.fromarray(photographs(1, *shape)[0])
    mode = T.InterpolationMode(interpolation)
    theirs = T.Compose([T.Resize(37, mode), T.CenterCrop(32), T.ToTensor()])(image)
    ours = normalise(TestView(32, 37, interpolation).cut(image)[None], None, None)[0]
    assert torch.equal(ours, theirs)


def test_statistics_may_be_tensors_that_are_made_once() -> None:
    pixels = torch.from_numpy(photographs(2, 9, 7)).permute(0, 3, 1, 2)
    mean, std = (0.5, 0.4, 0.3), (0.5, 0.6, 0.7)
    assert torch.equal(normalise(pixels, torch.tensor(mean), torch.tensor(std)), normalise(pixels, mean, std))


# --- a batch at a time ---


def compare(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Near-ties may round the other way: of random crops to 16, 64, 224 px, 3, 1, 0.1 % of the pixels."""
    assert ours.dtype == torch.float32
    difference = (ours - theirs.float()).abs()
    assert difference.max() <= 2
    assert (difference > 1).float().mean() < 0.001
    assert difference.mean() < 0.06


@pytest.mark.parametrize("size", [16, 24, 64])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 72), (100, 40)])
def test_batched_crops_agree_with_pillow(size: int, height: int, width: int) -> None:
    n = 24
    array = photographs(n, height, width)
    view = TrainView(size)
    crops = view.draw(sizes(n, height, width), np.random.default_rng(size))
    assert crops.flips.any()
    one_by_one = [view.cut(Image.fromarray(array[i]), crops.boxes[i], bool(crops.flips[i])) for i in range(n)]
    compare(view.cut_batch(torch.from_numpy(array), crops), torch.stack(one_by_one))


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 72), (71, 40)])
def test_the_batched_test_view_agrees_with_pillow(interpolation: Filter, size: int, height: int, width: int) -> None:
    array = photographs(8, height, width)
    view = TestView(size, round(size * 256 / 224), interpolation)
    one_by_one = torch.stack([view.cut(Image.fromarray(image)) for image in array])
    compare(view.cut_batch(torch.from_numpy(array)), one_by_one)


def test_whichever_side_pillow_takes_first_the_average_pixel_is_a_third_of_a_step_away_at_most() -> None:
    array = photographs(8, 120, 40)  # tall: from version 13 on, Pillow shrinks its height first
    crops = Crops(np.array([[0, 0, 120, 40]] * 8), np.zeros(8, bool))
    theirs = [TrainView(32).cut(Image.fromarray(image), (0, 0, 120, 40), False) for image in array]
    difference = (TrainView(32).cut_batch(torch.from_numpy(array), crops) - torch.stack(theirs).float()).abs()
    assert difference.max() <= 2
    assert difference.mean() < 0.3


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 9), st.data())
def test_any_box_of_any_image_agrees_with_pillow(
    height: int, width: int, size: int, seed: int, data: st.DataObject
) -> None:
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w))
    array = photographs(1, height, width, seed)
    view = TrainView(size)
    crops = Crops(np.array([[top, left, h, w]]), np.array([bool(seed % 2)]))
    ours = view.cut_batch(torch.from_numpy(array), crops)
    theirs = view.cut(Image.fromarray(array[0]), crops.boxes[0], bool(crops.flips[0]))
    assert (ours[0] - theirs.float()).abs().max() <= 2


def test_a_crop_never_looks_outside_its_box() -> None:
    array = np.zeros((1, 20, 20, 3), np.uint8)
    array[0, 5:12, 6:16] = 200
    crops = Crops(np.array([[5, 6, 7, 10]]), np.array([False]))
    assert (TrainView(32).cut_batch(torch.from_numpy(array), crops) == 200).all()


def test_an_image_that_already_fits_is_unchanged() -> None:
    array = photographs(2, 32, 32)
    images = torch.from_numpy(array)
    whole = Crops(np.array([[0, 0, 32, 32]] * 2), np.array([False, True]))
    pixels = TrainView(32).cut_batch(images, whole)
    assert torch.equal(pixels[0], images[0].permute(2, 0, 1).float())
    assert torch.equal(pixels[1], images[1].permute(2, 0, 1).flip(2).float())
    assert torch.equal(TestView(32, 32).cut_batch(images), images.permute(0, 3, 1, 2).float())


def test_autocast_around_the_views_changes_nothing() -> None:
    images = torch.from_numpy(photographs(2, 20, 20))
    plain = TestView(16, 18).cut_batch(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(TestView(16, 18).cut_batch(images), plain)

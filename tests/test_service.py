"""Facts about a learner inside a service: any number of threads, no processes, images as services have them."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import zofc
from zofc.data import ImageSet, TestView, TrainView
from zofc.data.loading import PIECE, Loader
from zofc.errors import DataError
from zofc.evidence.rows import result_rows
from zofc.learner import GivenImages
from zofc.recipe import Recipe

Make = Callable[..., Recipe]


def photos(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (rng.integers(16, 40), 24, 3)).astype(np.uint8) for _ in range(count)]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.fixture
def model(tiny_recipe: Make) -> zofc.Learner:
    learner = zofc.Learner(tiny_recipe("ridge/base", "training.workers=2"))
    learner.learn({"one": photos(4, 1), "two": photos(4, 2), "three": photos(4, 3)})
    return learner


@pytest.mark.parametrize("recipe", ["ridge/base", "ease-fo/base", "zo-ridge/base"])
def test_eight_threads_get_the_answers_that_one_gets(tiny_recipe: Make, recipe: str) -> None:
    learner = zofc.Learner(tiny_recipe(recipe, "training.workers=2"))
    learner.learn({"one": photos(4, 1), "two": photos(4, 2), "three": photos(4, 3)})
    asked = [photos(1, seed)[0] for seed in range(40)]
    expected = [learner.predict_proba(one)[0] for one in asked]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: learner.predict_proba(asked[number % 40])[0], range(8 * 200)))
    for number, answer in enumerate(answers):
        assert np.allclose(answer, expected[number % 40], rtol=0, atol=1e-6)


def test_threads_may_share_an_image_that_is_only_opened(model: zofc.Learner) -> None:
    data = png(np.tile(photos(1)[0], (8, 8, 1)))
    expected = model.predict(data)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            opened = Image.open(io.BytesIO(data))
            assert list(pool.map(model.predict, [opened] * 8)) == [expected] * 8


def test_answers_need_no_process(model: zofc.Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photos(40)
    alone = np.concatenate([model.predict_proba(image) for image in images])
    monkeypatch.setattr("os.fork", lambda: pytest.fail("a process was forked"))
    monkeypatch.setattr("zofc.data.loading.DataLoader", lambda *_, **__: pytest.fail("worker processes were started"))
    together = model.predict_proba(images)
    assert np.allclose(together, alone, atol=1e-6)
    model.evaluate({"one": photos(20, 5), "two": photos(20, 6)})


def test_in_a_program_with_threads_learning_forks_no_process(
    model: zofc.Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zofc.data.loading.DataLoader", lambda *_, **__: pytest.fail("worker processes were started"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.learn, {"four": photos(20, 8), "five": photos(20, 9)}).result()
    assert len(model.classes) == 5


def test_threads_make_the_batches_that_processes_make() -> None:
    images = ImageSet(GivenImages(photos(3 * PIECE)), np.arange(3 * PIECE))
    views = {"train_view": TrainView(16), "test_view": TestView(16, 18)}
    loaders = [Loader(images, **views, device="cpu", path="workers", threads=threads) for threads in (True, False)]  # type: ignore[arg-type]
    for make in (lambda one: one.test_batches(10), lambda one: one.train_batches(10, (0, "epoch"))):
        one, other = (list(make(loader)) for loader in loaders)
        assert len(one) == 3
        for (pixels, labels), (same_pixels, same_labels) in zip(one, other, strict=True):
            assert torch.equal(pixels, same_pixels) and torch.equal(labels, same_labels)


def test_a_broken_image_among_many_is_named(model: zofc.Learner) -> None:
    with pytest.raises(DataError, match="cannot read image 9"):
        model.predict([*photos(9), b"not an image", *photos(30)])
    assert len(model.predict(photos(2))) == 2


def test_every_form_of_an_image_gets_the_same_answer(model: zofc.Learner, tmp_path: Path) -> None:
    pixels = photos(1)[0]
    path = tmp_path / "one.png"
    path.write_bytes(data := png(pixels))
    tensor = torch.from_numpy(pixels).movedim(-1, 0)
    expected = model.predict([pixels])
    written = io.BytesIO()
    written.write(data)  # and left at its end
    with path.open("rb") as file:
        for form in (data, bytearray(data), memoryview(data), io.BytesIO(data), written, file, tensor, tensor / 255):
            assert model.predict(form) == expected
            assert len({answer[0] for answer in model.predict([form, pixels])}) == 1
    assert len({answer[0] for answer in model.predict(torch.stack([tensor, tensor]))}) == 1
    with pytest.raises(DataError, match=r"one\.png cannot be read: .*closed"):
        model.predict(file)
    with path.open(encoding="latin-1") as text, pytest.raises(DataError, match=r"opened as text.*'rb'"):
        model.predict(text)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="neither a PIL image"):
        model.predict(torch.zeros(16, 16, 3))


def test_probabilities_and_features_are_arrays(model: zofc.Learner) -> None:
    chances, features = model.predict_proba(photos(5)), model.embed(photos(5))
    assert chances.shape == (5, 3) and np.allclose(chances.sum(1), 1)
    assert features.shape == (5, model.model.backbone.width) and features.dtype == np.float32
    assert model.classes_.tolist() == list(model.classes)
    best = [model.classes_[row.argmax()] for row in chances]
    assert best == [answer[0].name for answer in model.predict(photos(5))]
    assert model.predict([]) == [] and model.predict_proba([]).shape == (0, 3) and len(model.embed([])) == 0


@pytest.mark.parametrize("recipe", ["zofc/base", "aper-fo/base", "ease-fo/base", "l2p-fo/base", "simplecil/base"])
def test_features_are_those_that_the_scores_are_computed_from(tiny_recipe: Make, recipe: str) -> None:
    learner = zofc.Learner(tiny_recipe(recipe, "training.workers=0"))
    width = learner.model.backbone.width
    assert learner.embed(photos(2)).shape == (2, width)
    learner.learn({"one": photos(4, 1), "two": photos(4, 2)})
    features = learner.embed(photos(3))
    assert len(features) == 3 and features.shape[1] % width == 0 and np.isfinite(features).all()


def test_a_learner_says_what_it_is(model: zofc.Learner) -> None:
    assert repr(model).startswith("Learner('")
    assert repr(model).endswith(f"backbone={model.model.backbone.name!r}, classes=3, tasks=1)")
    assert zofc.Learner.__init__.__doc__ and all(
        getattr(zofc.Learner, name).__doc__ for name in vars(zofc.Learner) if not name.startswith("_")
    )


def test_the_package_lists_its_names_without_importing_torch() -> None:
    code = "import sys, zofc; assert {*zofc.__all__} <= {*dir(zofc)}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- what was measured -----------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
ANSWERS = result_rows(ROOT / "results" / "predict.json")


def test_an_answer_took_at_most_twice_as_long_as_a_forward_pass_but_for_the_row_that_the_page_names() -> None:
    """The adapter is no part of that forward pass, and the embedded backbone hardly takes longer than a photograph."""
    slow = {(row["recipe"], row["backbone"]) for row in ANSWERS if row["ratio"] > 2}
    assert slow <= {("zo-ridge/base", "embedded")}
    said = "with the embedded backbone it takes more than twice as long" in (ROOT / "benchmarks/README.md").read_text()
    assert said == bool(slow)


def test_an_answer_of_the_embedded_backbone_took_at_most_twenty_milliseconds() -> None:
    times = [row["answer_ms"] for row in ANSWERS if row["backbone"] == "embedded"]
    assert times and max(times) <= 20


def test_the_default_learner_is_among_those_that_are_timed() -> None:
    timed = runpy.run_path(str(ROOT / "benchmarks" / "predict.py"))
    assert {"ridge/base", "zo-ridge/base"} == {*timed["RECIPES"]} >= {row["recipe"] for row in ANSWERS}
    assert "embedded" in timed["BACKBONES"]

"""Facts about features that are computed once: answers and training are the same, and images pass once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from test_training import save_glyph_folders
from zofc.methods.classifier import Classifier
from zofc.model.backbone import Backbone
from zofc.recipe import Recipe
from zofc.runfolder import Run, open_run
from zofc.runfolder.identity import folder_for
from zofc.training import task, trainer
from zofc.training.feature_memory import FeatureMemory
from zofc.training.incremental_model import IncrementalModel
from zofc.training.runs import extend_run, start_run, train
from zofc.training.task import TaskTraining

Make = Callable[..., Recipe]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of every pass through the plain backbone."""
    real, seen = Backbone.features, []

    def count(self: Backbone, images: Tensor) -> Tensor:
        seen.append(len(images))
        return real(self, images)

    monkeypatch.setattr(Backbone, "features", count)
    return seen


@pytest.mark.parametrize("name", ["simplecil/base", "ridge/base", "zo-ridge/base", "aper-fo/base"])
def test_answers_from_kept_features_are_those_of_images(
    name: str, tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run(tiny_recipe(name), tmp_path / "kept")
    train(run)
    monkeypatch.setattr(IncrementalModel, "embedding", None)
    again = start_run(tiny_recipe(name), tmp_path / "not")
    train(again)
    assert open_run(run.path).matrix.rows == open_run(again.path).matrix.rows


def test_a_test_image_passes_once_in_a_run_of_frozen_features(
    tiny_recipe: Make, tmp_path: Path, passed: list[int]
) -> None:
    train(start_run(tiny_recipe("ridge/base", "training.calibrate=false", "training.fixed_batches=false"), tmp_path))
    assert sum(passed) == 6 * 6 + 6 * 4  # every training and every test image of six classes


def test_a_run_says_how_much_time_kept_features_saved(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (task, trainer):
        monkeypatch.setattr(module, "LEAST_SAVED", 0.0)
    run = start_run(tiny_recipe("classifier-fo/base", "views.augment=none", "optimize.head.epochs=4"), tmp_path)
    train(run)
    texts = [str(event.get("text")) for event in run.events]
    for what in ("the task's images are", "test images were"):
        assert any(text.startswith(f"features of {what} computed once: about ") for text in texts), what


def test_features_that_may_still_move_are_not_kept(tiny_recipe: Make) -> None:
    for name, embeddings in (
        ("zofc/base", [None, None]),
        ("classifier-fo/base", ["frozen", "frozen"]),
        ("lae-fo/base", [None, None]),
        ("ease-fo/base", [None, None]),
        ("zo-ridge/base", [("frozen", "frozen")] * 2),  # the first task is the last that moves the adapter
    ):
        model = IncrementalModel(tiny_recipe(name), torch.device("cpu"))
        found = []
        for names in (["a", "b"], ["c", "d"]):
            model.extend(names)
            found.append(model.embedding)
        assert found == embeddings, name


def test_another_embedding_is_computed_anew() -> None:
    memory, calls = FeatureMemory(), []

    def compute(value: float) -> Callable[[], list[tuple[Tensor, Tensor]]]:
        def make() -> list[tuple[Tensor, Tensor]]:
            calls.append(value)
            return [(torch.full((2, 3), value), torch.zeros(2))]

        return make

    for key, value in (("a", 1.0), ("a", 2.0), ("b", 3.0), ("b", 4.0)):
        ((features, _),) = memory.batches(key, compute(value))  # type: ignore[arg-type]
        assert float(features[0, 0]) == {"a": 1.0, "b": 3.0}[key]
    assert calls == [1.0, 3.0] and memory.saved > 0


def test_features_kept_with_a_run_serve_when_it_learns_more(
    tiny_recipe: Make, tmp_path: Path, passed: list[int]
) -> None:
    plain = ("training.calibrate=false", "training.fixed_batches=false")
    run = start_run(tiny_recipe("ridge/base", *plain, "training.keep_features=true"), tmp_path / "runs")
    train(run)
    files = sorted((run.path / "features").iterdir())
    assert [file.name for file in files] == ["01.safetensors", "02.safetensors", "03.safetensors"]
    assert Run(folder_for(tiny_recipe("ridge/base", *plain), tmp_path / "runs")).path == run.path  # the same run
    save_glyph_folders(tmp_path / "new", ("new", "newer"))
    files[0].write_bytes(b"damaged")
    taught = []
    for name in ("kept", "not"):
        more = extend_run(
            run.path, f"folder:{tmp_path / 'new'}", tmp_path / name, [f"training.keep_features={name == 'kept'}"]
        )
        passed.clear()
        train(more)
        taught.append((sum(passed), open_run(more.path).matrix.rows))
    assert taught[1][0] - taught[0][0] == 2 * 2 * 4 and taught[0][1] == taught[1][1]  # two of three groups
    assert len(list((tmp_path / "kept" / "features").iterdir())) == 4 and not (tmp_path / "not" / "features").exists()


@pytest.mark.parametrize("further", [False, True], ids=["frozen features", "a further step after them"])
def test_a_classifier_without_augmentation_trains_on_features_as_on_images(
    tiny_recipe: Make, tmp_path: Path, passed: list[int], monkeypatch: pytest.MonkeyPatch, further: bool
) -> None:
    if further:  # as a method of one's own may have it
        monkeypatch.setattr(Classifier, "features", lambda _self, _moving, prepared: prepared**2 + 1)
    recipe = tiny_recipe(
        "classifier-fo/base", "views.augment=none", "optimize.head.epochs=4", "training.calibrate=false"
    )
    run = start_run(recipe, tmp_path / "features")
    train(run)
    kept = sum(passed)
    passed.clear()
    monkeypatch.setattr(TaskTraining, "on_features", False)
    plain = start_run(recipe, tmp_path / "images")
    train(plain)
    assert sum(passed) - kept == 3 * 6 * 6  # three of four epochs
    assert open_run(run.path).matrix.rows == open_run(plain.path).matrix.rows
    losses = [
        [event["loss"] for event in open_run(one.path).events if event["event"] == "epoch"] for one in (run, plain)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

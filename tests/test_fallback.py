"""Facts about a readout that falls back on the frozen features: it answers with what does better on images that the
adapter was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import zofc
from zofc.errors import Interrupted, RecipeError
from zofc.methods import method_class
from zofc.methods.fallback import FallbackReadout
from zofc.model.ridge import RidgeHead, draw_projection
from zofc.recipe import Recipe
from zofc.runfolder import open_run
from zofc.training.incremental_model import IncrementalModel
from zofc.training.runs import resume_run, start_run, train

Make = Callable[..., Recipe]
GUARDED = ("zo-ridge/base", "ridge.projection=64")  # whose own images have a fallback
CPU = torch.device("cpu")


def readout(budget: int | None = 64_000_000) -> FallbackReadout:
    def draw(size: int) -> torch.Tensor:
        return draw_projection(8, size, False, torch.Generator().manual_seed(1))

    return FallbackReadout(lambda: RidgeHead(8, 64, budget, draw, CPU), CPU)


def clouds(useful: int, images: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (images, 2, 8) of two classes, which the choice `useful` tells apart and the other does not."""
    g = torch.Generator().manual_seed(3)
    labels = torch.arange(images) % 2
    both = torch.randn(images, 2, 8, generator=g)
    both[:, useful, 0] += 6.0 * labels
    return both, labels


@pytest.mark.parametrize("budget", [None, 64_000_000], ids=["sums", "images"])
@pytest.mark.parametrize(("useful", "choice"), [(0, "adapted"), (1, "frozen")])
def test_the_features_that_tell_unseen_images_apart_answer(useful: int, choice: str, budget: int | None) -> None:
    made = readout(budget)
    made.grow(2)
    both, labels = clouds(useful)
    said = made.learn(both, labels, lambda: np.random.default_rng(0), torch.arange(len(labels)))
    assert made.choice == choice and f"the {choice} features answer" in said
    assert made.chosen is made.heads[choice]
    asked = int(made.asked)
    assert asked == (len(labels) if budget else len(labels) // 5)
    assert int(made.right[useful]) > 0.9 * asked > int(made.right[1 - useful])


def test_images_that_were_trained_on_are_not_counted_and_without_others_the_frozen_features_answer() -> None:
    made = readout()
    made.grow(2)
    both, labels = clouds(0, images=20)  # twice, and they are still kept
    said = made.learn(both, labels, lambda: np.random.default_rng(0), torch.arange(0))
    assert made.choice == "frozen" and "too few images" in said and int(made.asked) == 0
    made.learn(both, labels, lambda: np.random.default_rng(0), torch.tensor([3, 5, 8]))
    assert int(made.asked) == 3


def test_an_adapter_that_does_harm_does_not_answer(tiny_recipe: Make, tmp_path: Path) -> None:
    """The run then has the accuracies of the same regression without an adapter, to the digit."""
    good = ("backbone.name=embedded", "data.per_class=12")  # features that there is something to lose of
    harm = ("optimize.peft.lr=100", "optimize.peft.clip=null", "training.check_adapter=false")
    run = start_run(tiny_recipe(*GUARDED, *good, *harm), tmp_path)
    train(run)
    alone = start_run(tiny_recipe("ridge/base", "ridge.projection=64", "ridge.orthogonal=true", *good), tmp_path)
    train(alone)
    notices = [event for event in open_run(run.path).events if event.get("about") == "readout"]
    assert [event["task"] for event in notices] == [0, 1, 2]
    assert "the frozen features answer" in notices[-1]["text"]
    assert open_run(run.path).matrix.rows == open_run(alone.path).matrix.rows


def test_steps_do_not_see_what_is_held_back_and_every_class_keeps_an_image(tiny_recipe: Make) -> None:
    model = IncrementalModel(tiny_recipe(*GUARDED), CPU)
    model.extend(["a", "b", "c"])
    labels = np.array([0] * 9 + [1] * 10 + [2])
    held = model.method.held_back(labels)
    assert 0 < len(held) <= 4 and (np.diff(held) > 0).all()
    assert set(np.delete(labels, held)) == {0, 1, 2}
    model.extend(["d", "e"])
    assert len(model.method.held_back(np.array([3, 4] * 10))) == 0  # the adapter is fixed: all are unseen
    plain = IncrementalModel(tiny_recipe(*GUARDED, "ridge.fallback=false"), CPU)
    plain.extend(["a", "b"])
    assert len(plain.method.held_back(np.array([0, 1] * 10))) == 0


def test_of_a_few_images_that_were_all_trained_on_none_is_counted(tiny_recipe: Make, tmp_path: Path) -> None:
    """Four images in the first task are too few to hold one back: the choice waits for the next task."""
    run = start_run(tiny_recipe(*GUARDED, "data.per_class=2"), tmp_path)
    train(run)
    said = [event["text"] for event in open_run(run.path).events if event.get("about") == "readout"]
    assert "too few images" in said[0] and "of 4 images" in said[1] and "of 8 images" in said[2]


def test_a_run_with_a_fallback_continues_and_is_loaded_as_it_was(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(*GUARDED)
    straight = start_run(recipe, tmp_path / "straight")
    train(straight)
    broken = start_run(recipe, tmp_path / "broken")
    real, calls = IncrementalModel.extend, []

    def fail_in_the_third(self: IncrementalModel, names: list[str]) -> range:
        calls.append(names)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, names)

    monkeypatch.setattr(IncrementalModel, "extend", fail_in_the_third)
    with pytest.raises(Interrupted):
        train(broken)
    monkeypatch.undo()
    train(resume_run(broken.path))
    assert open_run(broken.path).matrix.rows == open_run(straight.path).matrix.rows
    one, other = (zofc.load(run.path).model.method for run in (straight, broken))
    assert one.fallback.choice == other.fallback.choice
    images = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(one.scores(images), other.scores(images))


def test_a_method_without_an_answer_of_the_frozen_features_refuses_it(tiny_recipe: Make) -> None:
    recipe = tiny_recipe("aper-zo/base", "method.readout=ridge", "ridge.fallback=true")
    with pytest.raises(RecipeError, match=r"ridge\.fallback: aper has no answer without its adapter"):
        method_class(recipe).check(recipe, [2, 2])

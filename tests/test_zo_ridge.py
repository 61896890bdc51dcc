"""Facts about ZO-Ridge: the adapter learns in the first task from forward passes, then a regression answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import zofc
from zofc.errors import RecipeError
from zofc.methods import method_class
from zofc.recipe import Recipe
from zofc.runfolder import open_run
from zofc.runfolder.checkpoint import load_task
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]


def test_the_adapter_moves_in_the_first_task_alone_and_the_regression_in_all(tiny_recipe: Make, tmp_path: Path) -> None:
    recipe = tiny_recipe("zo-ridge/base", "training.keep_tasks=true", "ridge.projection=64", "ridge.fallback=false")
    assert recipe.optimize["peft"].order == "zeroth" and recipe.optimize["peft"].estimator == "forward_gradient"
    run = start_run(recipe, tmp_path)
    metrics = train(run)
    first, second, third = (load_task(open_run(run.path).kept_tasks[number]) for number in (1, 2, 3))
    start = torch.cat([value.flatten() for name, value in first.items() if name.startswith("peft.")])
    assert float(start.abs().sum()) > 0
    for later in (second, third):
        moved = [name for name in first if name.startswith("peft.") and not torch.equal(first[name], later[name])]
        assert not moved
    assert [len(state["ridge.labels"]) for state in (first, second, third)] == sorted(
        {len(state["ridge.labels"]) for state in (first, second, third)}
    )
    assert metrics["finished"] and metrics["all_classes"] > 100 / 6
    events = [event for event in open_run(run.path).events if event["event"] == "task_trained"]
    assert events[0]["steps"] > 0 and [event["steps"] for event in events[1:]] == [0, 0]


def test_the_regression_is_of_the_adapted_features_of_all_tasks(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(
        tiny_recipe("zo-ridge/base", "ridge.projection=64", "ridge.budget=null", "ridge.fallback=false"), tmp_path
    )
    train(run)
    method = zofc.load(run.path).model.method
    images = torch.rand(5, 3, method.backbone.image_size, method.backbone.image_size)
    features = method.extract(images)
    plain = method.backbone.features(images)
    assert not torch.allclose(features, plain)
    torch.testing.assert_close(
        method.scores(images), (method.ridge.regress_from(features) @ method.ridge.weights).float()
    )


def check(recipe: Recipe) -> None:
    method_class(recipe).check(recipe, [2, 2])


def test_rows_that_no_training_reaches_are_refused(tiny_recipe: Make) -> None:
    with pytest.raises(RecipeError, match=r"optimize\.head\.tasks: rows of classes that come after task 1.*readout"):
        check(tiny_recipe("zofc/base", "optimize.head.tasks=1"))
    for change in ("method.readout=ridge", "method.prototypes=true", "head.init=means"):
        check(tiny_recipe("zofc/base", "optimize.head.tasks=1", change))

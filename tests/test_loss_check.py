"""Facts about what a user is told whose first task hardly learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from zofc.recipe import Recipe
from zofc.runfolder import open_run
from zofc.training.loss_check import check_loss
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]


def said(recipe: Recipe, losses: list[float], accuracy: float = 20.0) -> str | None:
    return check_loss(losses, accuracy, recipe.optimize, recipe)


def test_a_loss_that_falls_or_answers_that_are_right_need_no_advice(tiny_recipe: Make) -> None:
    recipe = tiny_recipe("classifier-fo/base")
    assert said(recipe, [2.0, 1.9, 1.8, 1.7]) is None
    assert said(recipe, [0.30, 0.30, 0.30], accuracy=95.0) is None
    assert said(recipe, [2.0]) is None  # nothing to compare


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_steps_that_are_too_small_get_a_number_to_type(tiny_recipe: Make, noise: float) -> None:
    recipe = tiny_recipe("classifier-fo/base", "head.init=means")
    text = said(recipe, [2.302, 2.302 + noise, 2.301, 2.300])
    assert text is not None and "hardly fell, from 2.302 to 2.300" in text
    assert text.endswith("try larger steps: optimize.head.lr=0.1")


def test_a_random_start_of_the_classifier_is_named_first(tiny_recipe: Make) -> None:
    text = said(tiny_recipe("classifier-fo/base"), [2.302, 2.301])
    assert text is not None and "try head.init=means head.scale=10, or larger steps: optimize.head.lr=0.1" in text
    linear = said(tiny_recipe("lae-fo/base"), [2.302, 2.301])
    assert linear is not None and "try head.init=means head.scale=10" in linear and "optimize.peft.lr=" in linear


def test_a_loss_that_rose_asks_for_smaller_steps(tiny_recipe: Make) -> None:
    text = said(tiny_recipe("classifier-fo/base"), [2.0, 2.2, 2.5])
    assert text is not None and "rose, from 2.000 to 2.500" in text
    assert "smaller steps: optimize.head.lr=0.001" in text


def test_a_run_says_so_once_after_its_first_task(tiny_recipe: Make, tmp_path: Path) -> None:
    stuck = ("optimize.head.lr=1e-9", "optimize.head.min_lr=0", "optimize.head.epochs=2")
    run = start_run(tiny_recipe("classifier-fo/base", *stuck), tmp_path)
    train(run)
    (notice,) = [event for event in open_run(run.path).events if event.get("about") == "loss"]
    assert notice["task"] == 0 and "head.init=means" in notice["text"] and "optimize.head.lr=1e-08" in notice["text"]

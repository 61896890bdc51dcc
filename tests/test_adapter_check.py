"""The check of a task's adapter: what it compares, when it warns, and that training does not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from zofc.recipe import Recipe, load_recipe
from zofc.report import summary_table
from zofc.runfolder import Run, open_run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.identity import recipe_digest
from zofc.training.adapter_check import compare_hits, nearest_mean_hits
from zofc.training.runs import start_run, train

SMALL = (
    "backbone.name=embedded", "data.source=glyphs", "data.classes=8", "data.increment=4", "data.per_class=20",
    "data.test_per_class=2", "training.device=cpu", "training.workers=0", "views.augment=none",
)  # fmt: skip
SHORT = ("optimize.peft.epochs=2", "optimize.head.epochs=2")
ABSURD = "optimize.peft.lr=1000"


def small(name: str = "zofc/base", *changes: str) -> Recipe:
    return load_recipe(name, [*SMALL, *SHORT, "peft.blocks=[5]", *changes])


def trained(recipe: Recipe, runs: Path) -> Run:
    run = start_run(recipe, runs, again=True)
    train(run)
    return open_run(run.path)


def test_an_image_is_not_compared_with_a_mean_that_it_is_part_of() -> None:
    features = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [9.0, 1.0]])
    labels = torch.tensor([4, 4, 7, 7, 7])  # the last one is nearest to the mean that holds it
    assert nearest_mean_hits(features, labels).tolist() == [True, True, False, False, False]
    assert nearest_mean_hits(features[:4], labels[:4]).all()


@pytest.mark.parametrize(
    ("lost", "won", "images", "chance", "harmful"),
    [
        (7, 0, 100, 1 / 128, True),
        (6, 0, 100, 1 / 64, False),  # may be chance
        (10, 1, 2000, 12 / 2048, False),  # certain, but less than a point
        (5, 5, 100, 638 / 1024, False),
        (0, 9, 100, 1.0, False),
        (0, 0, 100, 1.0, False),
    ],
)
def test_an_adapter_does_harm_where_it_costs_a_point_that_is_no_chance(
    lost: int, won: int, images: int, chance: float, harmful: bool
) -> None:
    frozen = torch.zeros(images, dtype=torch.bool)
    adapted = frozen.clone()
    frozen[:lost], adapted[lost : lost + won] = True, True
    check = compare_hits(adapted, frozen)
    assert (check.chance, check.harmful) == (pytest.approx(chance), harmful)
    assert check.frozen - check.adapted == pytest.approx(100 * (lost - won) / images)


def test_a_run_at_an_absurd_rate_says_so_while_it_runs_and_in_its_tables(
    tmp_path: Path, zofc: Callable[..., tuple[int, str]]
) -> None:
    run = trained(small("zofc/base", ABSURD), tmp_path)
    events = [event for event in run.events if event.get("about") != "loss"]
    order = [event["event"] for event in events if event["event"] in ("task_trained", "notice", "evaluated")]
    assert order == ["task_trained", "notice", "evaluated"] * 2
    assert list(run.adapter_warnings) == [0, 1]
    words = run.adapter_warnings[0].split()
    assert run.adapter_warnings[0].startswith("task 1: the adapter does harm: on 48 training images of the task, ")
    assert run.adapter_warnings[0].endswith("; try a smaller learning rate: optimize.peft.lr=100")
    with_it, without = (float(words[at - 1]) for at, word in enumerate(words) if word == "%")
    assert with_it < without - 10
    (warning,) = summary_table([run]).warnings
    assert warning == f"ZO-FC, {run.adapter_warnings[0]}. The same in 1 later task."
    assert "the adapter does harm" in " ".join(zofc("watch", str(run.path), "--once")[1].split())


@pytest.mark.parametrize("name", ["zofc/base", "adapter-fo/base", "lae-fo/base", "ease-fo/base"])
def test_a_run_at_a_fitting_rate_says_nothing(name: str, tmp_path: Path) -> None:
    assert not trained(small(name), tmp_path).adapter_warnings


def test_training_does_not_depend_on_the_check(tmp_path: Path) -> None:
    on, off = (small("zofc/base", ABSURD, f"training.check_adapter={value}") for value in ("true", "false"))
    assert recipe_digest(on) == recipe_digest(off) == recipe_digest(small("zofc/base", ABSURD))
    runs = [trained(recipe, tmp_path) for recipe in (on, off)]
    assert runs[0].matrix == runs[1].matrix and not runs[1].adapter_warnings
    states = [checkpoint.method for run in runs if (checkpoint := load_checkpoint(run))]
    assert states[0].keys() == states[1].keys() and all(v.equal(states[1][k]) for k, v in states[0].items())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("simplecil/base", ()),
        ("ridge/base", ()),
        ("classifier-fo/base", SHORT[1:]),
        ("zofc/base", (*SHORT, "optimize.peft.lr=0")),
    ],
)
def test_where_no_adapter_moved_nothing_is_checked(
    name: str, changes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zofc.training.task.check_adapter", lambda *_: pytest.fail("checked"))
    assert trained(load_recipe(name, [*SMALL, *changes]), tmp_path).finished

"""Facts that hold for every method under every placement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import method_recipe, placements
from zofc.methods import METHODS, get_method
from zofc.methods.base import Method
from zofc.methods.coda import CodaSettings
from zofc.methods.l2p import L2pSettings
from zofc.model.backbone import Backbone
from zofc.optim.placement import Placement
from zofc.recipe import Group, Recipe, load_recipe
from zofc.training.runs import start_run, train

FIRST = Group(order="first", lr=0.05, epochs=20, clip=1.0)
ZEROTH = Group(order="zeroth", lr=0.05, epochs=20, clip=1.0, queries=2)
PLACEMENTS = placements(FIRST, ZEROTH)
SHIPPED = sorted(name for name in METHODS if METHODS[name].__module__.startswith("zofc."))
TRAINED = [name for name in SHIPPED if METHODS[name].group_names]


def three_task_recipe(name: str, **peft: str) -> Recipe:
    if name in ("aper", "ease"):
        small: dict[str, Any] = {"kind": "adaptformer", "blocks": "all"}
    else:
        small = {"blocks": "first 2", "rank": 2, "length": 2}
    coda, l2p = CodaSettings(pool=9, length=4, blocks="first 2"), L2pSettings(pool=6, length=2, top=3)
    return method_recipe(name, data={"classes": 9, "increment": 3}, peft={**small, **peft}, coda=coda, l2p=l2p)


def task_batches(images: Tensor, task: int) -> tuple[Tensor, Tensor]:
    """Separable pictures: each class has a brightness of its own, each task a colour."""
    labels = torch.arange(6) % 3
    shown = images * 0.3 + labels[:, None, None, None] * 0.4
    shown[:, task % 3] += 0.5
    return shown, labels + 3 * task


def learn(method: Method, images: Tensor, plans: dict[str, Group], task: int, steps: int) -> list[float]:
    """One task with all its hooks, as the trainer goes through them; returns the losses."""
    shown, labels = task_batches(images, task)
    method.extend(range(3 * task, 3 * task + 3))
    method.begin_task(lambda: [(shown, labels)])
    groups = method.groups()
    chosen = {name: method.plan(name, plans[name]) for name in groups}
    placement = Placement(method, groups, chosen, seed=3, task=task)
    losses = []
    for step in range(steps if groups else 0):
        losses.append(placement.step(shown, labels, 0, step).loss)
        method.after_step()
    method.end_task(lambda: [(shown, labels)])
    return losses


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", TRAINED)
def test_steps_move_the_declared_groups_and_nothing_else(
    tiny: Backbone, images: Tensor, name: str, placement: str
) -> None:
    """To the bit, in each of three tasks: the ViT, old rows, old adapters, old components, merged branches stay."""
    method = get_method(name)(tiny, three_task_recipe(name))
    for task in range(3):
        shown, labels = task_batches(images, task)
        method.extend(range(3 * task, 3 * task + 3))
        method.begin_task(lambda shown=shown, labels=labels: [(shown, labels)])  # type: ignore[misc]
        groups = method.groups()
        everything = {**dict(method.named_parameters()), **{f"vit.{n}": v for n, v in tiny.vit.named_parameters()}}
        before = {n: v.clone() for n, v in everything.items()}
        moving = {n for group in groups.values() for n in group}
        if groups:
            plans = {n: PLACEMENTS[placement][n] for n in groups}
            place = Placement(method, groups, plans, seed=3, task=task)
            for step in range(3):
                place.step(shown, labels, 0, step)
        still = {n for n, value in everything.items() if torch.equal(value, before[n])}
        assert not (everything.keys() - moving) - still, f"task {task + 1}"
        assert not groups or len(moving & still) < len(moving)
        method.end_task(lambda shown=shown, labels=labels: [(shown, labels)])  # type: ignore[misc]


@pytest.mark.parametrize("name", TRAINED)
def test_the_loss_falls_on_a_separable_stream_under_first_order(tiny: Backbone, images: Tensor, name: str) -> None:
    method = get_method(name)(tiny, three_task_recipe(name))
    plans = {"peft": FIRST.model_copy(update={"lr": 0.2}), "head": FIRST.model_copy(update={"lr": 0.2})}
    losses = learn(method, images, plans, 0, 40)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("kind", ["adapter", "adaptformer", "lora", "prefix"])
@pytest.mark.parametrize("name", ["adapter", "lae"])
def test_methods_of_one_module_take_any_family_of_modules(tiny: Backbone, images: Tensor, name: str, kind: str) -> None:
    method = get_method(name)(tiny, three_task_recipe(name, kind=kind))
    for task in range(2):
        losses = learn(method, images, PLACEMENTS["hybrid"], task, 4)
        assert len(losses) == 4 and all(loss == loss for loss in losses)
    assert method.scores(images).shape == (6, 6)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_method_answers_among_all_classes_seen_and_comes_back_from_its_tensors(
    tiny: Backbone, images: Tensor, name: str
) -> None:
    method = get_method(name)(tiny, three_task_recipe(name))
    for task in range(2):
        learn(method, images, PLACEMENTS["hybrid"], task, 2)
        scores = method.scores(images)
        assert scores.shape == (6, 3 * task + 3) and bool(torch.isfinite(scores).all())
    copy = get_method(name)(tiny, three_task_recipe(name))
    for task in range(2):
        copy.extend(range(3 * task, 3 * task + 3))
    copy.load_state_dict(method.state_dict())
    assert torch.equal(copy.scores(images), method.scores(images))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_method_runs_two_tasks_of_glyphs_on_the_embedded_backbone(
    tmp_path: Path, name: str, placement: str, few: Callable[[Recipe, str], Recipe]
) -> None:
    groups = METHODS[name].group_names
    if not groups and placement != "first order":
        pytest.skip("nothing is trained, so the placement makes no difference")
    made = few(three_task_recipe(name), placement)
    folder = start_run(made, tmp_path)
    metrics = train(folder)
    assert metrics["finished"] and metrics["tasks"] == 2
    assert [len(row) for row in json.loads((folder.path / "matrix.json").read_text())["accuracy"]] == [1, 2]


@pytest.fixture
def few() -> Callable[[Recipe, str], Recipe]:
    """The recipe on four classes of glyphs, four images each, one epoch."""

    def make(made: Recipe, placement: str) -> Recipe:
        base = load_recipe(
            "demo/zofc", ["data.classes=4", "data.increment=2", "data.per_class=4", "training.device=cpu"]
        )
        data = base.data.model_copy(update={"test_per_class": 2})
        groups = METHODS[made.method.name].group_names
        plans = {n: PLACEMENTS[placement][n].model_copy(update={"epochs": 1}) for n in groups}
        sections = {name: getattr(made, name) for name in ("method", "peft", "head", "coda", "l2p")}
        return base.model_copy(update={**sections, "data": data, "optimize": plans, "name": f"few-{made.method.name}"})

    return make

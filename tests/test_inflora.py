"""Facts about InfLoRA: what moves, what old tasks keep, and that its branches are one sum of low-rank matrices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zofc
from conftest import method_recipe, placements
from zofc.errors import DataError, RecipeError
from zofc.methods import method_class
from zofc.methods.inflora import InfLora, InfLoraSettings
from zofc.model.backbone import Backbone
from zofc.optim.placement import Placement
from zofc.recipe import DataSettings, Group, Recipe
from zofc.training.runs import start_run, train

ZEROTH = Group(order="zeroth", queries=4, clip=1.0, lr=0.01, epochs=20, weight_decay=0.1)
FIRST = Group(order="first", lr=0.01, epochs=20, weight_decay=0.1)
PLACEMENTS = placements(FIRST, ZEROTH)
LABELS = torch.tensor([0, 1, 0, 1, 0, 1])


def inflora_recipe(**sections: Any) -> Recipe:
    small = {"peft": {"rank": 3}, "data": {"classes": 8, "increment": 2}, "inflora": InfLoraSettings(threshold=0.9)}
    return method_recipe("inflora", **{**small, **sections})


def task_images(task: int) -> Tensor:
    """Images of a task's own kind."""
    rng = np.random.default_rng(task)
    return torch.from_numpy(rng.random((6, 3, 16, 16)) * rng.random((1, 3, 16, 16)) * 2).float()


def batches(method: InfLora, task: int) -> list[tuple[Tensor, Tensor]]:
    x, y = task_images(task).to(next(method.backbone.vit.parameters()).dtype), LABELS + 2 * task
    return [(x[:4], y[:4]), (x[4:], y[4:])]


def begin(method: InfLora, task: int) -> str | None:
    method.extend(range(2 * task, 2 * task + 2))
    return method.begin_task(partial(batches, method, task))


def step(method: InfLora, task: int, plans: dict[str, Group], steps: int = 2) -> list[float]:
    placement = Placement(method, method.groups(), plans, seed=3, task=task)
    (a, ya), (b, yb) = batches(method, task)
    return [placement.step(torch.cat([a, b]), torch.cat([ya, yb]), 0, s).loss for s in range(steps)]


def learn(method: InfLora, task: int, plans: dict[str, Group] = PLACEMENTS["first order"], steps: int = 2) -> None:
    begin(method, task)
    step(method, task, plans, steps)
    method.end_task(partial(batches, method, task))


def learned(backbone: Backbone, tasks: int, made: Recipe | None = None) -> InfLora:
    made = made or inflora_recipe()
    method = method_class(made)(backbone, made)
    assert isinstance(method, InfLora)
    for task in range(tasks):
        learn(method, task)
    return method


def everything(method: InfLora) -> dict[str, Tensor]:
    return {**method.state_dict(), **{f"vit.{n}": v for n, v in method.backbone.vit.state_dict().items()}}


def test_a_task_at_the_papers_size_moves_184320_numbers_of_b() -> None:
    stand_in: Any = SimpleNamespace(width=768, depth=12, device=torch.device("cpu"))
    method = InfLora(stand_in, inflora_recipe(peft={"rank": 10}))
    for task in range(2):
        method.extend(range(5 * task, 5 * task + 5))
    groups = method.groups()
    assert set(groups["peft"]) == {"up_key.1", "up_value.1"}
    assert sum(value.numel() for value in groups["peft"].values()) == 184_320
    assert sum(value.numel() for value in groups["head"].values()) == 5 * 769


def test_a_new_branch_changes_no_feature_to_the_bit(tiny: Backbone) -> None:
    method = InfLora(tiny, inflora_recipe())
    begin(method, 0)
    x = task_images(5)
    assert torch.equal(method.extract(x), tiny.features(x))
    step(method, 0, PLACEMENTS["first order"])
    before = method.extract(x)
    assert not torch.allclose(before, tiny.features(x))
    method.end_task(partial(batches, method, 0))
    begin(method, 1)
    assert torch.equal(method.extract(x), before)
    assert float(method.down[1].abs().max()) > 0


def test_branches_merged_into_the_projections_give_the_same_features(tiny: Backbone) -> None:
    method = learned(tiny, 3).double()
    tiny.vit.double()
    for task, up in enumerate((*method.up_key, *method.up_value)):
        up.add_(torch.randn(up.shape, generator=torch.Generator().manual_seed(task), dtype=up.dtype))
    merged = copy.deepcopy(tiny)
    for number, block in enumerate(merged.vit.blocks):
        for third, ups in ((1, method.up_key), (2, method.up_value)):
            rows = block.attn.qkv.weight[third * 24 : (third + 1) * 24]
            rows += sum(up[number] @ down[number] for up, down in zip(ups, method.down, strict=True))
    x = task_images(5).double()
    torch.testing.assert_close(method.extract(x), merged.features(x))
    assert not torch.allclose(method.extract(x), tiny.features(x))
    torch.testing.assert_close(method.scores(x), method.head.logits({}, merged.features(x)))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_only_the_declared_groups_move_in_every_task(tiny: Backbone, placement: str) -> None:
    method = InfLora(tiny, inflora_recipe())
    for task in range(3):
        begin(method, task)
        moving = {name for group in method.groups().values() for name in group}
        assert moving == {f"{name}.{task}" for name in ("up_key", "up_value", "head.rows", "head.bias")}
        before = {name: value.clone() for name, value in everything(method).items()}
        step(method, task, PLACEMENTS[placement])
        for name, value in everything(method).items():
            assert torch.equal(value, before[name]) == (name not in moving), name
        method.end_task(partial(batches, method, task))


def test_first_order_training_lowers_the_loss(tiny: Backbone) -> None:
    method = learned(tiny, 1)
    begin(method, 1)
    fast = FIRST.model_copy(update={"lr": 0.05, "weight_decay": 0.0})
    losses = step(method, 1, {"peft": fast, "head": fast}, steps=20)
    assert losses[-1] < 0.7 * losses[0]


def test_inputs_are_collected_where_the_branches_read_them(tiny: Backbone) -> None:
    method = learned(tiny, 2).double()
    tiny.vit.double()
    seen: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}
    merged = copy.deepcopy(tiny.vit)
    for number, block in enumerate(merged.blocks):
        for third, ups in ((1, method.up_key), (2, method.up_value)):
            rows = block.attn.qkv.weight[third * 24 : (third + 1) * 24]
            rows += sum(up[number] @ down[number] for up, down in zip(ups, method.down, strict=True))
        block.norm1.register_forward_hook(lambda m, i, out, n=number: seen[n].append(out.flatten(0, 1)))
    merged(task_images(1).double())
    moments = method.second_moments(partial(batches, method, 1))
    for number, inputs in seen.items():
        h = torch.cat(inputs)
        torch.testing.assert_close(moments[number], h.mT @ h / len(h))


def test_the_update_leaves_the_inputs_of_old_tasks_unchanged_to_the_threshold(tiny: Backbone) -> None:
    """A_t reads of an old task's inputs what DualGPM did not keep: at most 1 − τ of the energy, over 3."""
    method, moments, thresholds = InfLora(tiny, inflora_recipe()), [], []
    for task in range(4):
        begin(method, task)
        for old in range(task):
            for block in range(tiny.depth):
                h = moments[old][block]
                reached = float((method.down[task][block].double() @ h).square().sum() / h.square().sum())
                assert reached <= (1 - thresholds[old]) / 3 + 1e-9
        step(method, task, PLACEMENTS["first order"])
        moments.append(method.second_moments(partial(batches, method, task)))
        method.end_task(partial(batches, method, task))
        share = [method.used[b].leave_free(moments[-1][b]).square().sum() for b in range(tiny.depth)]
        free = max(float(s / moments[-1][b].square().sum()) for b, s in enumerate(share))
        assert task == 0 or free <= 1 - method.threshold + 1e-9  # the first task stops one direction short of τ
        thresholds.append(1 - free)
    assert min(thresholds) > 0.85
    x = torch.cat([b for b, _ in batches(method, 0)])
    h = tiny.vit.blocks[0].norm1(tiny.enter(x).x)  # the inputs of block 0, which no branch changes
    low = (h @ method.down[3][0].mT).norm() / h.norm()
    free_of_rule = (h @ torch.linalg.svd(moments[3][0])[0][:, :3].float()).norm() / h.norm() / 3**0.5
    assert float(low) < 0.5 * float(free_of_rule)


def test_stacked_queries_equal_one_by_one_in_float64(tiny: Backbone) -> None:
    method = learned(tiny, 2).double()
    tiny.vit.double()
    x = task_images(1).double()
    g = torch.Generator().manual_seed(0)
    now = {name: value for group in method.groups().values() for name, value in group.items()}
    points = {n: v + 0.1 * torch.randn(4, *v.shape, generator=g, dtype=v.dtype) for n, v in now.items()}
    prepared, labels = method.prepare(x), LABELS + 2
    together = method.loss(points, method.features(points, prepared), labels)
    for query in range(4):
        one = {name: value[query] for name, value in points.items()}
        torch.testing.assert_close(together[query], method.loss(one, method.features(one, prepared), labels))
    assert together.unique().numel() == 4


def test_the_zofc_variant_moves_branches_of_later_tasks_as_the_released_code_does(tiny: Backbone) -> None:
    """In the second of twelve tasks "lora_B_k.1" also names branches 10 and 11; only a zeroth-order step moves them."""
    made = inflora_recipe(method={"variant": "zofc"}, data={"classes": 24, "increment": 2})
    method = learned(tiny, 1, made)
    assert len(method.down) == 1
    begin(method, 1)
    assert method.opened == [1, 10, 11]
    x = task_images(1)
    before = method.extract(x)
    step(method, 1, PLACEMENTS["first order"])
    assert float(method.up_key[10].abs().max()) == 0
    step(method, 1, PLACEMENTS["hybrid"])
    assert float(method.up_key[10].abs().max()) > 0 and float(method.up_value[11].abs().max()) > 0
    assert float(method.up_key[5].abs().max()) == 0
    for up in (method.up_key[1], method.up_value[1]):
        up.zero_()
    torch.testing.assert_close(method.extract(x), before)  # later branches are not read yet
    with pytest.raises(RecipeError, match=r"method\.variant.*data\.classes"):
        method_class(made).check(made.model_copy(update={"data": DataSettings(increment=2)}), [2] * 12)


def test_the_threshold_rises_with_the_tasks_that_the_recipe_plans(tiny: Backbone) -> None:
    assert DataSettings(classes=100, increment=10).planned_tasks == 10
    assert DataSettings(classes=100, increment=30).planned_tasks == 4
    assert DataSettings(classes=100, first=50, increment=10).planned_tasks == 6
    assert DataSettings(joint=True).planned_tasks == 1
    method, unplanned = InfLora(tiny, inflora_recipe()), InfLora(tiny, inflora_recipe(data={}))
    found = []
    for task in range(6):
        method.extend(range(task, task + 1))
        unplanned.extend(range(task, task + 1))
        found.append(method.threshold)
    assert found == pytest.approx([0.9, 0.925, 0.95, 0.975, 1.0, 1.0])
    assert unplanned.threshold == 0.9
    notice = begin(InfLora(tiny, inflora_recipe(data={})), 0)
    assert notice is not None and "data.classes" in notice and "0.9" in notice
    assert begin(InfLora(tiny, inflora_recipe()), 0) is None


def test_a_restored_method_gives_identical_scores_and_goes_on_identically(tiny: Backbone) -> None:
    method = learned(tiny, 2)
    begin(method, 2)
    step(method, 2, PLACEMENTS["hybrid"])
    other = InfLora(tiny, inflora_recipe())
    for classes in method.tasks:
        other.extend(classes)
    assert {k: v.shape for k, v in other.state_dict().items()} == {k: v.shape for k, v in method.state_dict().items()}
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.scores(task_images(0)), method.scores(task_images(0)))
    for each in (method, other):
        each.end_task(partial(batches, each, 2))
        learn(each, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(method.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_what_it_cannot_do_is_refused(tiny: Backbone) -> None:
    with pytest.raises(RecipeError, match=r"head\.kind.*linear"):
        InfLora.check(inflora_recipe(head={"kind": "cosine"}), [2, 2])
    with pytest.raises(RecipeError, match="single class"):
        InfLora.check(inflora_recipe(), [2, 1])
    with pytest.raises(RecipeError, match=r"peft\.rank.*24"):
        InfLora(tiny, inflora_recipe(peft={"rank": 25}))
    method = InfLora(tiny, inflora_recipe())
    method.extend(range(2))
    with pytest.raises(DataError, match="no training images"):
        method.begin_task(lambda: [])


@pytest.mark.parametrize("order", ["first", "zeroth"])
def test_a_run_on_glyphs_end_to_end(tiny_recipe: Callable[..., Recipe], tmp_path: Path, order: str) -> None:
    settings = ("method.name=inflora", "head.kind=linear", "peft.rank=3", f"optimize.peft.order={order}")
    folder = start_run(tiny_recipe("zofc/base", *settings), tmp_path)
    metrics = train(folder)
    assert metrics["finished"] and metrics["trainable_parameters"] == {"peft": 2 * 3 * 24 * 3, "head": 2 * 25}
    assert len(zofc.load(folder.path).model.method.down) == 3

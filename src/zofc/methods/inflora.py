"""InfLoRA: one low-rank branch per task on keys and values, reading only input directions that old tasks do not use.

k = W_k h + Σ_s B_s^k A_s h, the same for v, in every block. A_t is designed before task t and fixed (`model.subspace`),
B_t starts at zero and is trained with the rows of the task, which start as `nn.Linear` does. Of the recipe's `peft`
only the rank is read. The inputs h are collected in the random views of training (`inflora.view`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zofc.errors import DataError, RecipeError
from zofc.methods.base import Batches, method
from zofc.methods.classifier import Classifier
from zofc.model import vit as walking
from zofc.model.backbone import Backbone
from zofc.model.params import Moving, frozen, linear
from zofc.model.subspace import Subspaces, design, keep
from zofc.model.vit import PROJECTED, Additions, Insert, Place, State
from zofc.recipe import Recipe, Strict


class InfLoraSettings(Strict):
    """Interference-free low-rank adaptation."""

    threshold: Annotated[float, Field(gt=0, le=1)] = Field(0.95, description="energy kept of the first task's inputs")
    threshold_end: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="energy kept of the last task's inputs")
    view: Literal["training", "test"] = Field("training", description="of the images whose inputs are collected")


@method("inflora", settings=InfLoraSettings)
class InfLora(Classifier):
    """Branches of old tasks, like the rows of old classes, are tensors of their own and in no group."""

    regressed: ClassVar[bool] = False
    linear_init: ClassVar[str] = "torch"
    group_names: ClassVar[tuple[str, ...]] = ("peft", "head")

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.settings = recipe.section("inflora", InfLoraSettings)
        if recipe.peft.rank > backbone.width:
            raise RecipeError(f"peft.rank: a branch has at most the backbone's width, {backbone.width}, directions")
        self.planned = recipe.data.planned_tasks
        self.down = nn.ParameterList()  # A_t of every task, (blocks, rank, width)
        self.up_key = nn.ParameterList()  # B_t^k, (blocks, width, rank)
        self.up_value = nn.ParameterList()
        self.used = Subspaces(backbone.depth, backbone.width)

    @classmethod
    def check(cls, recipe: Recipe, task_sizes: Sequence[int], learned: int = 0) -> None:
        super().check(recipe, task_sizes, learned)
        if recipe.head.kind != "linear":
            raise RecipeError("head.kind: InfLoRA has a linear head for each task; use head.kind=linear")

    def extend(self, classes: range) -> None:
        super().extend(classes)
        rank, depth, width = self.recipe.peft.rank, self.backbone.depth, self.backbone.width
        while len(self.down) <= max(self.opened):
            self.down.append(frozen(torch.zeros(depth, rank, width, device=self.device)))
            for ups in (self.up_key, self.up_value):
                ups.append(frozen(torch.zeros(depth, width, rank, device=self.device)))

    @property
    def opened(self) -> list[int]:
        """The tasks whose branches may move: the current one."""
        return [len(self.tasks) - 1]

    def groups(self) -> dict[str, dict[str, Tensor]]:
        head = super().groups()
        if not head:
            return {}
        return {"peft": self.named(f"{name}.{t}" for t in self.opened for name in ("up_key", "up_value")), **head}

    # -- before and after a task ---------------------------------------------------------------------------------

    @property
    def threshold(self) -> float:
        """τ_t, rising from `threshold` towards `threshold_end`; where the number of tasks is unknown it stays."""
        start, end = self.settings.threshold, self.settings.threshold_end
        now = len(self.tasks) - 1
        return start if self.planned is None else start + (end - start) * min(now / self.planned, 1)

    @property
    def batches_in(self) -> Literal["test", "training"]:
        return self.settings.view

    def begin_task(self, batches: Batches) -> str | None:
        for block, moment in enumerate(self.second_moments(batches)):
            self.down[len(self.tasks) - 1][block].copy_(design(moment, self.recipe.peft.rank, self.used[block]))
        notice = super().begin_task(batches)
        if notice is None and self.planned is None and len(self.tasks) == 1:
            return f"data.classes does not say how many tasks there are: InfLoRA's threshold stays at {self.threshold}"
        return notice

    def end_task(self, batches: Batches) -> None:
        super().end_task(batches)
        for block, moment in enumerate(self.second_moments(batches)):
            self.used[block] = keep(self.used[block], moment, self.threshold)

    @torch.no_grad()
    def second_moments(self, batches: Batches) -> Tensor:
        """Mean of h hᵀ over all tokens of the task's images, per block, (blocks, width, width) in float64."""
        vit, inserts, tokens = self.backbone.vit, self.inserts({}), torch.zeros(1, dtype=torch.float64)
        total = torch.zeros(self.backbone.depth, self.backbone.width, self.backbone.width, dtype=torch.float64)
        for images, _ in self.ranks.own(batches()):
            x = walking.embed(vit, images.to(self.backbone.dtype))
            tokens += x.shape[0] * x.shape[1]
            for number, block in enumerate(vit.blocks):
                h = block.norm1(x).flatten(0, 1)
                h = h.to(torch.promote_types(h.dtype, torch.float32))
                total[number] += (h.mT @ h).cpu().double()
                x = walking.walk_block(block, x, inserts[number])
        of_all = self.ranks.sum({"second moments": total, "tokens": tokens})
        if not of_all["tokens"]:
            raise DataError("a task has no training images to learn its input directions from")
        return of_all["second moments"] / of_all["tokens"]

    # -- the loss ------------------------------------------------------------------------------------------------

    def prepare(self, images: Tensor) -> State:
        return self.backbone.enter(images, Place(0, PROJECTED))

    def features(self, moving: Moving, prepared: State) -> Tensor:
        return self.backbone.leave(prepared, self.inserts(moving))

    def inserts(self, moving: Moving) -> dict[int, Insert]:
        """The branches of all tasks so far: the current one, which may carry queries, and the old ones as one."""
        now = len(self.tasks) - 1
        ups = (moving.get(f"{name}.{now}", getattr(self, name)[now]) for name in ("up_key", "up_value"))
        branches = [list(zip(self.down[now], *(up.unbind(-3) for up in ups), strict=True))]
        if now:
            old = [torch.cat(list(self.down)[:now], dim=-2)]  # (blocks, tasks · rank, width)
            old += [torch.cat(list(ups)[:now], dim=-1) for ups in (self.up_key, self.up_value)]
            branches.append(list(zip(*old, strict=True)))
        return {b: Insert(projections=_additions([branch[b] for branch in branches])) for b in range(len(branches[0]))}


def _additions(branches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Additions:
    def additions(h: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        low = [linear(h, down) for down, _, _ in branches]
        keys = [linear(part, up) for part, (_, up, _) in zip(low, branches, strict=True)]
        values = [linear(part, up) for part, (_, _, up) in zip(low, branches, strict=True)]
        return None, sum(keys[1:], keys[0]), sum(values[1:], values[0])

    return additions

"""CODA-Prompt (Smith et al., CVPR 2023): prefixes composed, image by image, of components that grow with the tasks.

In each chosen block, with the plain ViT's feature q as the query, component k has the weight α_k = cos(q ⊙ A_k, K_k);
p = Σ_k α_k P_k, whose first half stands before the block's keys and whose second half before its values. A task trains
its own components; earlier ones take part and, being tensors of their own, stay. Components start orthonormal, rows of
the classifier as `nn.Linear` does. Loss: cross-entropy + μ Σ_blocks Σ_{T = P, K, A} mean((T Tᵀ − I)²).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from zofc import limits
from zofc.errors import RecipeError
from zofc.methods.base import method
from zofc.methods.classifier import Classifier
from zofc.model.adapter import parse_blocks
from zofc.model.backbone import Backbone
from zofc.model.components import KINDS, Components
from zofc.model.params import Moving, under
from zofc.model.vit import PROJECTED, Insert, Place
from zofc.recipe import Recipe, Strict
from zofc.recipe.bounds import EvenTokens, PoolSize, Weight


class CodaSettings(Strict):
    """CODA-Prompt: prefixes composed of components."""

    pool: PoolSize = Field(100, description="components over all tasks")
    per_task: PoolSize | None = Field(None, description="components per task, if not pool over the number of tasks")
    length: EvenTokens = Field(8, description="tokens, half keys and half values")
    blocks: str | tuple[int, ...] = Field("first 5", description="where the prefixes stand, as peft.blocks says it")
    orthogonality: Weight = Field(0.0, description="weight of the penalty on components that are not orthogonal")


def components_per_task(recipe: Recipe) -> int:
    """The pool shared out among the tasks that the recipe plans; tasks beyond them bring as many again."""
    coda, data = recipe.section("coda", CodaSettings), recipe.data
    if (coda.per_task or coda.pool) * coda.length > limits.POOL_TOKENS:
        raise RecipeError(f"coda: components times coda.length may be at most {limits.POOL_TOKENS:,} tokens")
    if coda.per_task is not None:
        return coda.per_task
    tasks = data.planned_tasks
    if tasks is None:
        raise RecipeError(
            "coda.per_task: how many tasks share coda.pool is not known; give it, or data.classes with data.by=class"
        )
    if coda.pool < tasks:
        raise RecipeError(f"coda.pool: {coda.pool} components are too few for {tasks} tasks")
    return coda.pool // tasks


@method("coda", settings=CodaSettings)
class CodaPrompt(Classifier):
    """Components and rows of the current task are trained; those of earlier tasks are not in the group."""

    regressed: ClassVar[bool] = False
    linear_init: ClassVar[str] = "torch"
    group_names: ClassVar[tuple[str, ...]] = ("peft", "head")

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        settings = self.settings = recipe.section("coda", CodaSettings)
        self.per_task = components_per_task(recipe)
        if settings.per_task is None and settings.pool > backbone.width:  # said now, not in a late task
            raise RecipeError(f"coda.pool: at most {backbone.width}, the backbone's width, can be orthogonal")
        self.numbers = parse_blocks(settings.blocks, backbone.depth, "coda.blocks")
        blocks = {str(number): Components(backbone.width, settings.length) for number in self.numbers}
        self.peft = nn.ModuleDict(blocks)

    @classmethod
    def check(cls, recipe: Recipe, task_sizes: Sequence[int], learned: int = 0) -> None:
        super().check(recipe, task_sizes, learned)
        components_per_task(recipe)

    def expect(self, tasks: int) -> None:
        if tasks * self.per_task > self.backbone.width:
            raise RecipeError(
                f"coda.per_task: {self.per_task} components in each of {tasks} tasks cannot all be orthogonal in the "
                f"backbone's width, {self.backbone.width}; use a smaller coda.pool or coda.per_task"
            )

    def extend(self, classes: range) -> None:
        task = len(self.tasks)
        self.expect(task + 1)
        super().extend(classes)
        for number in self.numbers:
            self.components(number).grow(self.per_task, self.generator("peft", number, task), self.device)

    def components(self, number: int) -> Components:
        """The components of a block."""
        components = self.peft[str(number)]
        assert isinstance(components, Components)
        return components

    def groups(self) -> dict[str, dict[str, Tensor]]:
        groups = super().groups()
        if not groups:
            return {}
        return {"peft": self.components_of(range(len(self.tasks) - 1, len(self.tasks))), **groups}

    def components_of(self, tasks: range) -> dict[str, Tensor]:
        """The components of these tasks in every block."""
        names = [f"{number}.{kind}.{task}" for number in self.numbers for kind in KINDS for task in tasks]
        return self.named(names, "peft.")

    @torch.no_grad()
    def prepare(self, images: Tensor) -> Any:
        state = self.backbone.enter(images, Place(self.numbers[0], PROJECTED))
        return self.backbone.leave(state, {}), state  # query (batch, width), and where the first prefix enters

    def features(self, moving: Moving, prepared: Any) -> Tensor:
        (query, state), peft = prepared, under(moving, "peft")
        prefixes = {n: self.components(n).prefix(under(peft, str(n)), query) for n in self.numbers}
        inserts = {number: Insert(prefix=prefix) for number, prefix in prefixes.items()}
        return self.backbone.leave(state, inserts)

    def loss(self, moving: Moving, features: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss(moving, features, labels)
        if self.settings.orthogonality:
            peft = under(moving, "peft")
            for number in self.numbers:
                penalty = self.components(number).penalty(under(peft, str(number)), features)
                loss = loss + self.settings.orthogonality * penalty
        return loss

"""EASE: a fresh adapter for each task spans a subspace of features; a class is scored in all of them.

Prototypes of a class exist in the subspaces of its own task and the earlier ones. For later subspaces they are
synthesised from the later classes: as similar as it is to them in its own subspace, so it is taken to be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zofc.methods.base import Batches, Method, method
from zofc.methods.classifier import Classifier
from zofc.model.backbone import Backbone
from zofc.model.heads import CosineHead
from zofc.model.params import Moving, frozen, under
from zofc.model.peft import make_peft
from zofc.model.peft_base import PeftModule
from zofc.model.ridge import CalibrationSample
from zofc.model.vit import State
from zofc.recipe import Recipe, Strict, Weight


class EaseSettings(Strict):
    """Expandable subspace ensemble."""

    alpha: Weight = Field(0.1, description="weight of the other tasks' subspaces, in all")


@method("ease", settings=EaseSettings)
class Ease(Classifier):
    """One adapter per task, prototypes in every subspace, the other tasks' subspaces weighted by alpha."""

    regressed: ClassVar[bool] = False
    group_names: ClassVar[tuple[str, ...]] = ("peft", "head")

    refuses_domains: ClassVar[str | None] = "a prototype belongs to the task of its class, and that would be several"

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.settings = recipe.section("ease", EaseSettings)
        self.adapters = nn.ModuleList()
        self.means = nn.ParameterList()  # task i: (classes, subspaces 0..i, width)
        self.known: Tensor | None = None  # the whole classifier, made when first asked for

    def extend(self, classes: range) -> None:
        super().extend(classes)
        task = len(self.tasks) - 1
        self.adapters.append(make_peft(self.recipe.peft, self.backbone, self.generator("peft", task)))
        self.means.append(frozen(torch.zeros(len(classes), task + 1, self.backbone.width, device=self.device)))
        if isinstance(self.head, CosineHead):
            self.head.sigma.fill_(1.0)  # the rows that train an adapter are a fresh classifier in each task
        self.known = None

    @property
    def peft(self) -> PeftModule:
        """The adapter of the current task."""
        return self.by_task[-1]

    @property
    def by_task(self) -> list[PeftModule]:
        """The adapter of each task."""
        return [module for module in self.adapters if isinstance(module, PeftModule)]

    def groups(self) -> dict[str, dict[str, Tensor]]:
        head = super().groups()
        if not head:
            return {}
        task = len(self.tasks) - 1
        return {"peft": self.named(dict(self.peft.named_parameters()), f"adapters.{task}."), **head}

    def prepare(self, images: Tensor) -> State:
        return self.backbone.enter(images, self.peft.entrance)

    def features(self, moving: Moving, prepared: State) -> Tensor:
        inserts = self.peft.inserts(under(moving, f"adapters.{len(self.tasks) - 1}"), self.noise)
        return self.backbone.leave(prepared, inserts)

    @torch.no_grad()
    def subspaces(self, images: Tensor) -> Tensor:
        """Features in the subspace of every task so far, (batch, tasks, width)."""
        prepared = self.prepare(images)
        features = [self.backbone.leave(prepared, one.inserts({})) for one in self.by_task]
        return torch.stack(features, dim=1)

    def end_task(self, batches: Batches) -> None:
        means = self.class_means(batches, self.tasks[-1], lambda images: self.subspaces(images).flatten(1))
        self.means[-1].copy_(means.view(self.means[-1].shape))
        self.known = None

    @classmethod
    def keeps_means(cls, recipe: Recipe) -> bool:
        return False  # those of later subspaces are synthesised

    def remove_classes(self, gone: Sequence[int]) -> None:
        start = 0
        for task, rows in enumerate(self.means):
            stay = [i for i in range(len(rows)) if start + i not in gone]
            start += len(rows)
            self.means[task] = frozen(rows[torch.tensor(stay, dtype=torch.int64, device=rows.device)])
        super().remove_classes(gone)
        self.known = None

    def prototypes(self) -> Tensor:
        """The classifier: a prototype of every class in every subspace, (classes, tasks, width)."""
        if self.known is None:
            count = len(self.tasks)
            rows = []
            for i, own in enumerate(self.means):
                later = [self._synthesised(i, j) for j in range(i + 1, count)]
                rows.append(torch.cat([own, *(block[:, None] for block in later)], dim=1))
            self.known = torch.cat(rows)
        return self.known

    def _synthesised(self, i: int, j: int) -> Tensor:
        """Task i's classes in the later subspace j, as mixtures of the classes of tasks j and after."""
        here = torch.cat([self.means[s][:, i] for s in range(j, len(self.tasks))])  # those classes in subspace i
        there = torch.cat([self.means[s][:, j] for s in range(j, len(self.tasks))])  # and in subspace j
        similarity = F.normalize(self.means[i][:, i], dim=-1) @ F.normalize(here, dim=-1).mT
        return similarity.softmax(-1) @ there

    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        return Method.calibration_sample(self, batches, counts)

    def embed(self, images: Tensor) -> Tensor:
        return self.backbone.features(images)  # the subspaces become more with every task

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Σ_j w_ij cos(f_j, p_cj) for a class c of task i: w_ii = 1, the others share alpha."""
        count = len(self.tasks)
        features, known = self.subspaces(images), self.prototypes()
        cosines = torch.einsum("btw,ctw->bct", F.normalize(features, dim=-1), F.normalize(known, dim=-1))
        task_of = torch.cat([torch.full((len(classes),), i) for i, classes in enumerate(self.tasks)])
        weights = torch.full((len(known), count), self.settings.alpha / max(count - 1, 1))
        weights[torch.arange(len(known)), task_of] = 1.0
        return (cosines * weights.to(cosines)).sum(-1)

"""What the released code does instead, `method.variant=zofc`: five baselines differ from their authors' methods.

Under zeroth order a step moves whatever it perturbs, whether or not the loss depends on it. Where the released code
steps more than the current task trains, these tensors walk at random. CODA-Prompt's variant is not all of its release,
so no study or grid shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from zofc.errors import RecipeError
from zofc.methods.base import Batches, Method, method
from zofc.methods.classifier import Classifier
from zofc.methods.coda import CodaPrompt
from zofc.methods.ease import Ease
from zofc.methods.inflora import InfLora
from zofc.methods.l2p import LearningToPrompt
from zofc.methods.lae import LearnAccumulateEnsemble
from zofc.model.backbone import Backbone
from zofc.recipe import Group, Recipe


def by_zeroth_order(method: Method, group: str) -> bool:
    """Whether the recipe moves a group by zeroth order."""
    plan = method.recipe.optimize.get(group)
    return plan is not None and plan.order == "zeroth"


def all_rows(method: Classifier) -> dict[str, Tensor]:
    """Rows of old classes too: the released code masks their logits but steps them."""
    return method.named(method.head.moving_names(range(len(method.blocks))), "head.")


@method("lae", variant="zofc")
class ReleasedLae(LearnAccumulateEnsemble):
    """Under zeroth order alone the module never moves: the classifier is all that is trained. Else the offline copy is
    there from the start, and so stays near "no module" for thousands of steps. The pause is made in every task; an
    adapter stands beside the MLP; rows start Kaiming-uniform."""

    linear_init: ClassVar[str] = "uniform"
    copied_in: ClassVar[int] = 0

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        peft = recipe.peft.model_copy(update={"beside": "mlp"})
        super().__init__(backbone, recipe.model_copy(update={"peft": peft}))

    @property
    def frozen(self) -> bool:
        released = all(by_zeroth_order(self, group) for group in self.group_names)
        return released if self.settings.frozen is None else self.settings.frozen

    def plan(self, name: str, group: Group) -> Group:
        return group


@method("l2p", variant="zofc")
class ReleasedL2p(LearningToPrompt):
    """Test images vote for their prompts too, so that an answer depends on its neighbours; old rows walk."""

    answers_together: bool = True

    def groups(self) -> dict[str, dict[str, Tensor]]:
        groups = super().groups()
        if groups and by_zeroth_order(self, "head"):
            groups["head"] = all_rows(self)
        return groups


@method("coda", variant="zofc")
class ReleasedCoda(CodaPrompt):
    """Old rows and components walk. This is a part of the release alone: it also steps the ViT's 86 M weights, so that
    everything else moves about twenty times less. Here the backbone is frozen."""

    def begin_task(self, batches: Batches) -> str | None:
        notice = super().begin_task(batches)
        if notice is None and by_zeroth_order(self, "peft") and len(self.tasks) == 1:
            return "method.variant: the released CODA-Prompt also steps the whole ViT, which this run does not"
        return notice

    def groups(self) -> dict[str, dict[str, Tensor]]:
        groups = super().groups()
        if groups and by_zeroth_order(self, "head"):
            groups["head"] = all_rows(self)
        if groups and by_zeroth_order(self, "peft"):
            groups["peft"] = self.components_of(range(len(self.tasks)))
        return groups


@method("ease", variant="zofc")
class ReleasedEase(Ease):
    """The prototypes of earlier tasks walk."""

    def groups(self) -> dict[str, dict[str, Tensor]]:
        groups = super().groups()
        if groups and by_zeroth_order(self, "peft"):
            groups["peft"] |= self.named((str(task) for task in range(len(self.tasks) - 1)), "means.")
        return groups


@method("inflora", variant="zofc")
class ReleasedInfLora(InfLora):
    """Branches of later tasks walk, and so start away from zero: the released code picks tensors by "lora_B_k.<task>"
    in their names, so that task 1 also opens 10..19. The heads of later tasks, whose sizes are not known yet, stay."""

    @classmethod
    def check(cls, recipe: Recipe, task_sizes: Sequence[int], learned: int = 0) -> None:
        super().check(recipe, task_sizes, learned)
        if recipe.data.planned_tasks is None:
            raise RecipeError(
                "method.variant: 'zofc' moves branches of later tasks; set data.classes, with data.by=class, to say "
                "how many"
            )

    @property
    def opened(self) -> list[int]:
        now = len(self.tasks) - 1
        return [now, *(later for later in range(now + 1, self.planned or 0) if str(later).startswith(str(now)))]

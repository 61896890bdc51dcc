"""Two grids on one slice with one budget: every method under every placement, and ZO-FC with every estimator.

All groups have the same number of epochs, so that first order, zeroth order and the hybrid (zeroth-order module,
first-order classifier) can be compared; learning rates are those of the recipes (preset `controlled`) times a factor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zofc.evidence.parts import spread
from zofc.recipe import Recipe, load_recipe
from zofc.report.grid import Grid
from zofc.studies.grid import Cell
from zofc.units import NONE

BUDGET_SETTING = "cifar100-inc10"
UNTRAINED = ("simplecil", "ridge")
METHOD_TITLES = {
    "simplecil": "SimpleCIL", "ridge": "Ridge regression", "classifier": "Classifier",
    "adapter": "Adapter + classifier", "lae": "LAE", "l2p": "L2P", "coda": "CODA-Prompt", "aper": "APER",
    "ease": "EASE", "inflora": "InfLoRA",
}  # fmt: skip
WITH_READOUT = (("adapter", "hybrid"), ("aper", "FO"))  # a ridge regression reads their features as well
WITH_VARIANT = ("lae", "l2p", "coda", "ease", "inflora")  # their released zeroth-order baseline is another method
Factors = Mapping[tuple[str, str], Sequence[float]]  # on the learning rates, by method and placement
BudgetRow = Mapping[str, Any]


@dataclass(frozen=True)
class Budget:
    """What all cells of a grid share."""

    epochs: int
    settings: Sequence[str]
    fast: bool = True  # forward gradients in bf16 in place of differences in fp32
    chunk: int = 1  # perturbed points in one pass

    def recipe(
        self, family: str, name: str, factor: float, changes: Sequence[str], head: str = "", longer: float = 1.0
    ) -> Recipe:
        """A family's recipe with this budget; `head` is the family whose classifier it has, if another."""
        own = [] if family in UNTRAINED else ["preset=controlled"]
        recipe = load_recipe(f"{family}/{BUDGET_SETTING}", [*own, *changes, *self.settings])
        plans = dict(recipe.optimize)
        if head:
            plans["head"] = load_recipe(f"{head}/{BUDGET_SETTING}", own).optimize["head"]
        for group, plan in plans.items():
            update: dict[str, Any] = {"lr": plan.lr * factor, "min_lr": plan.min_lr * factor}
            update["epochs"] = round(longer * self.epochs)
            plans[group] = plan.model_copy(update=update)
        return recipe.model_copy(update={"optimize": plans, "name": name, "title": name, "paper": None})


# -- methods ---------------------------------------------------------------------------------------------------------


def method_rows(method: str) -> Iterator[tuple[str, str, str]]:
    """(placement, variant, readout) of each of a method's rows."""
    if method in UNTRAINED:
        yield "none", "official", "rows"
        return
    for placement in ("FO", "ZO") if method == "classifier" else ("FO", "ZO", "hybrid"):
        yield placement, "official", "rows"
        if (method, placement) in WITH_READOUT:
            yield placement, "official", "ridge"
    if method in WITH_VARIANT:
        yield "ZO", "zofc", "rows"


def method_cells(seeds: Sequence[int], factors: Factors, budget: Budget) -> Iterator[Cell]:
    """Every method under every placement; only its own rows are tried with several factors."""
    for seed in seeds:
        for method in METHOD_TITLES:
            for placement, variant, readout in method_rows(method):
                tried = factors.get((method, placement), [1.0])
                if len(tried) > 1 and (variant, readout) != ("official", "rows"):
                    continue
                for factor in tried:
                    labels: dict[str, str | int | float] = {
                        "method": method, "placement": placement, "variant": variant, "readout": readout,
                        "factor": factor, "seed": seed,
                    }  # fmt: skip
                    yield Cell(labels, _method_recipe(labels, budget))


def _method_recipe(labels: Mapping[str, Any], budget: Budget) -> Recipe:
    """The hybrid's module moves as in the ZO row, its classifier as in the FO row."""
    method, placement, readout = labels["method"], labels["placement"], labels["readout"]
    family = {"none": method, "FO": f"{method}-fo"}.get(placement, f"{method}-zo")
    changes = [f"seed={labels['seed']}", f"method.variant={labels['variant']}"]
    changes += ["method.readout=ridge"] * (readout == "ridge") + ["training.precision=bf16"] * budget.fast
    name = "-".join([method, placement, labels["variant"], readout])
    recipe = budget.recipe(family, name, labels["factor"], changes, f"{method}-fo" if placement == "hybrid" else "")
    plans = {}
    for group, plan in recipe.optimize.items():
        estimator = "forward_gradient" if budget.fast and plan.order == "zeroth" else plan.estimator
        plans[group] = plan.model_copy(update={"start": 0, "chunk": budget.chunk, "estimator": estimator})
    return recipe.model_copy(update={"optimize": plans})


def best_factors(rows: Sequence[BudgetRow]) -> Factors:
    """The factor with the highest accuracy on all classes, mean over seeds, the smaller of equals, for each method and
    placement; factors at which a seed failed are out."""
    tried: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in rows:
        if (row["variant"], row["readout"]) == ("official", "rows"):
            by_factor = tried.setdefault((row["method"], row["placement"]), {})
            by_factor.setdefault(row["factor"], []).append(-math.inf if "failed" in row else row["all_classes"])
    return {
        key: sorted(by_factor, key=lambda factor: (-statistics.fmean(by_factor[factor]), factor))[:1]
        for key, by_factor in tried.items()
    }


def methods_table(rows: Sequence[BudgetRow]) -> Grid:
    """Mean ± standard deviation over seeds."""
    body = []
    for method, title in METHOD_TITLES.items():
        for kind in method_rows(method):
            mine = [row for row in rows if "failed" not in row and _kind(row) == (method, *kind)]
            if mine:
                placement, variant, readout = kind
                shown = {"none": "–", "hybrid": "ZO, FO classifier"}.get(placement, placement)
                shown += ", as released" * (variant == "zofc") + ", ridge readout" * (readout == "ridge")
                cells = [spread([row[key] for row in mine]) for key in
                         ("all_classes", "average_incremental", "last_task", "forgetting")]  # fmt: skip
                body.append((title, shown, *cells, *_cost_cells(mine)))
    headers = ("method", "placement", "all classes %", "average over time %", "last task %", "forgetting",
               "memory of a step", "time")  # fmt: skip
    return Grid(headers, tuple(body), names=len(headers))


def _kind(row: BudgetRow) -> tuple[str, ...]:
    return tuple(row[key] for key in ("method", "placement", "variant", "readout"))


def _cost_cells(rows: Sequence[BudgetRow]) -> tuple[str, str]:
    """Memory of a step and seconds of training, where anything is trained."""
    if not rows[0]["steps"]:
        return NONE, NONE
    memory = statistics.median(row["peak_memory"] for row in rows) / 2**20
    return f"{memory:.0f} MiB", f"{statistics.mean(row['seconds']['train'] for row in rows):.0f} s"


# -- estimators ------------------------------------------------------------------------------------------------------

_FORWARD = ("training.precision=bf16", "optimize.peft.estimator=forward_gradient", "optimize.peft.chunk=4")
_STACKED = ("optimize.peft.chunk=8",)
_LATE = (*_FORWARD, "peft.blocks=last 3")
_SINGLE = ("optimize.peft.estimator=one_sided", "optimize.peft.per=image", "optimize.peft.queries=1")


@dataclass(frozen=True)
class EstimatorLine:
    """One way to learn; `longer` stretches its epochs to the time of the line it is compared with."""

    title: str
    family: str
    changes: tuple[str, ...] = ()
    longer: float = 1.0


ESTIMATOR_LINES = {
    "simplecil": EstimatorLine("SimpleCIL", "simplecil"),
    "classifier": EstimatorLine("Classifier only", "classifier-fo"),
    "first": EstimatorLine("First order, adapter + classifier", "adapter-fo"),
    "spsa": EstimatorLine("ZO-FC, two-point, fp32", "zofc", _STACKED),
    "one_sided": EstimatorLine("ZO-FC, one-sided, fp32", "zofc", ("optimize.peft.estimator=one_sided", *_STACKED)),
    "forward": EstimatorLine("ZO-FC, forward gradient, bf16", "zofc", _FORWARD),
    "late": EstimatorLine("ZO-FC, forward gradient, bf16, last 3 blocks", "zofc", _LATE),
    "late_longer": EstimatorLine("… in the time of the first 5 blocks", "zofc", _LATE, 1.5),
    "per_image": EstimatorLine("ZO-FC, one-sided, fp32, a direction for each image, Q = 1", "zofc", _SINGLE),
    "per_image_longer": EstimatorLine("… in the time of two-point", "zofc", _SINGLE, 2.5),
}


def estimator_cells(seeds: Sequence[int], factor: float, budget: Budget) -> Iterator[Cell]:
    """ZO-FC with each estimator, beside its anchors."""
    for seed in seeds:
        for way, line in ESTIMATOR_LINES.items():
            changes = [f"seed={seed}", *line.changes]
            recipe = budget.recipe(line.family, f"estimator-{way}", factor, changes, longer=line.longer)
            yield Cell({"way": way, "seed": seed}, recipe.model_copy(update={"title": line.title}))


def estimators_table(rows: Sequence[BudgetRow]) -> Grid:
    """Mean ± standard deviation over seeds; the time is that of the quickest seed, which had the device to itself."""
    body = []
    for way, line in ESTIMATOR_LINES.items():
        mine = [row for row in rows if row["way"] == way and "failed" not in row]
        if mine:
            cells = [spread([row[key] for row in mine]) for key in ("all_classes", "average_incremental", "forgetting")]
            seconds = min(row["seconds"]["train"] for row in mine)
            body.append((line.title, *cells, f"{seconds:.0f} s", str(len(mine))))
    headers = ("way", "all classes %", "average over time %", "forgetting", "training", "seeds")
    return Grid(headers, tuple(body), names=len(headers))

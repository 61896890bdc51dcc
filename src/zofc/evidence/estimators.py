"""ZO-FC with every estimator on one slice, all groups with the same number of epochs.

Learning rates are those of the recipes (preset `controlled`) times a factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zofc.evidence.rows import spread
from zofc.recipe import load_recipe
from zofc.report.grid import Grid
from zofc.studies.cells import Cell

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


def estimator_cells(seeds: Sequence[int], factor: float, epochs: int, changes: Sequence[str]) -> Iterator[Cell]:
    """ZO-FC with each estimator, beside its anchors; `factor` multiplies all learning rates."""
    for seed in seeds:
        for way, line in ESTIMATOR_LINES.items():
            preset = [] if line.family == "simplecil" else ["preset=controlled"]
            words = [*preset, f"seed={seed}", *line.changes, *changes]
            recipe = load_recipe(f"{line.family}/cifar100-inc10", words)
            plans = {
                group: plan.model_copy(update={"lr": plan.lr * factor, "min_lr": plan.min_lr * factor,
                                               "epochs": round(line.longer * epochs)})
                for group, plan in recipe.optimize.items()
            }  # fmt: skip
            about = {"name": f"estimator-{way}", "title": line.title, "optimize": plans, "paper": None}
            yield Cell({"way": way, "seed": seed}, recipe.model_copy(update=about))


def estimators_table(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Mean ± standard deviation over seeds; the time is that of the quickest seed, which had the device to itself."""
    body = []
    for way, line in ESTIMATOR_LINES.items():
        mine = [row for row in rows if row["way"] == way and "failed" not in row]
        if mine:
            cells = [spread([row[key] for row in mine]) for key in ("all_classes", "average_incremental", "forgetting")]
            seconds = min(row["seconds"]["train"] for row in mine)
            body.append((line.title, *cells, f"{seconds:.0f} s", str(len(mine))))
    headers = ("Estimator", "All classes (%)", "Average over time (%)", "Forgetting", "Training", "Seeds")
    return Grid(headers, tuple(body), names=len(headers))

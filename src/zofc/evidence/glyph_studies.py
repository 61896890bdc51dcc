"""Two studies of ZO-FC on the demonstration's stream of glyphs: what the length ε of the difference smooths, and which
optimizer moves the adapter. Both in fp32 on a CPU, so that anyone can repeat them.

The optimizers are those that the ZeroFlow benchmark compares, but for its conservative variant. Each has the rate that
did best with seeds of its own, which are not among those of the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zofc.evidence.rows import spread
from zofc.recipe import load_recipe
from zofc.report.grid import Grid
from zofc.studies.cells import Cell
from zofc.studies.displays import curvature_means
from zofc.studies.grid import collect
from zofc.studies.jobs import MeasureCurvature
from zofc.studies.places import HERE, Place
from zofc.studies.scale import CURVATURE_SCORE

SEARCH_SEEDS = (1,)
EPSILONS = ("1e-4", "1e-3", "1e-2", "1e-1", "1")
EXACT = ("optimize.peft.estimator=forward_gradient", "optimize.peft.chunk=4")
CURVATURE = MeasureCurvature(replace(CURVATURE_SCORE, every=1, images=10, probes=16))
STUDIED_RATES = (0.03, 0.1, 0.3, 1.0)
SIGN_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # of steps that do not depend on the length of the gradient
FIRST_RATES = (0.3, 1.0, 2.0, 5.0)
Rows = Sequence[Mapping[str, Any]]

SMOOTHING_LINES = {
    "Two-point, ε = " + epsilon: (f"optimize.peft.epsilon={epsilon}", "optimize.peft.chunk=4") for epsilon in EPSILONS
} | {"Forward gradient (no ε)": EXACT}  # fmt: skip


@dataclass(frozen=True)
class OptimizerLine:
    """How the adapter is moved, and the rates that are tried."""

    changes: tuple[str, ...] = ()
    rates: tuple[float, ...] = STUDIED_RATES
    demo: str = "zofc"


OPTIMIZER_LINES = {
    "Two-point, SGD with momentum (ZO-FC)": OptimizerLine(("optimize.peft.chunk=4",)),
    "Forward gradient, SGD with momentum": OptimizerLine(EXACT),
    "Forward gradient, SGD": OptimizerLine((*EXACT, "optimize.peft.momentum=0.0"), (*STUDIED_RATES, 3.0)),
    "Forward gradient, sign": OptimizerLine(
        (*EXACT, "optimize.peft.optimizer=sign", "optimize.peft.momentum=0.0"), SIGN_RATES
    ),
    "Forward gradient, Adam": OptimizerLine((*EXACT, "optimize.peft.optimizer=adam"), SIGN_RATES),
    "First order, SGD with momentum": OptimizerLine((), FIRST_RATES, "first-order"),
    "First order, Adam": OptimizerLine(("optimize.peft.optimizer=adam",), SIGN_RATES, "first-order"),
}


def smoothing_cells(seeds: Sequence[int]) -> list[Cell]:
    """ZO-FC with each ε, and with exact derivatives; the curvature after each of its tasks."""
    return [
        Cell(
            {"line": title, "seed": seed},
            load_recipe("demo/zofc", [f"seed={seed}", "training.device=cpu", "training.keep_tasks=true", *changes]),
            CURVATURE,
        )
        for seed in seeds
        for title, changes in SMOOTHING_LINES.items()
    ]


def smoothing_table(rows: Rows) -> Grid:
    """Mean ± standard deviation over seeds; the curvature is that of the old tasks' loss, a mean over tasks."""
    body = []
    for title in SMOOTHING_LINES:
        mine = [row for row in rows if row["line"] == title and "failed" not in row]
        if mine:
            curves = [curvature_means(None, row) for row in mine]
            bent = [spread([curve[key] for curve in curves], 2) for key in ("trace", "largest")]
            rise = spread([curve.get("change") for curve in curves], 3)
            body.append((title, *(spread([row[key] for row in mine]) for key in ("all_classes", "forgetting")), *bent,
                         rise))  # fmt: skip
    headers = ("Estimator", "All classes (%)", "Forgetting", "Trace", "Largest eigenvalue", "Rise of the old loss")
    return Grid(headers, tuple(body))


# -- optimizers ------------------------------------------------------------------------------------------------------


def run_optimizers(seeds: Sequence[int], runs: Path, out: Path, place: Place = HERE) -> Grid:
    """Search each line's rate, then train it at the best one with the seeds of the table."""
    about = {"search_seeds": list(SEARCH_SEEDS)}
    searched = [
        _optimizer_cell(title, line, rate, seed)
        for seed in SEARCH_SEEDS
        for title, line in OPTIMIZER_LINES.items()
        for rate in line.rates
    ]
    best = best_optimizer_rates(collect(searched, runs, out, about, place))
    shown = [
        _optimizer_cell(title, OPTIMIZER_LINES[title], rate, seed) for seed in seeds for title, rate in best.items()
    ]
    return optimizers_table(collect([*searched, *shown], runs, out, about, place))


def _optimizer_cell(title: str, line: OptimizerLine, rate: float, seed: int) -> Cell:
    words = [f"seed={seed}", "training.device=cpu", *line.changes, f"optimize.peft.lr={rate}"]
    return Cell({"line": title, "rate": rate, "seed": seed}, load_recipe(f"demo/{line.demo}", words))


def best_optimizer_rates(rows: Rows) -> dict[str, float]:
    """The rate of each line with the highest accuracy on all classes, mean over the seeds of the search."""
    best = {}
    for title, line in OPTIMIZER_LINES.items():
        means = {}
        for rate in line.rates:
            mine = [row for row in rows
                    if (row["line"], row["rate"]) == (title, rate) and row["seed"] in SEARCH_SEEDS]  # fmt: skip
            if mine and not any("failed" in row for row in mine):
                means[rate] = statistics.fmean(row["all_classes"] for row in mine)
        if means:
            best[title] = max(means, key=lambda rate: means[rate])
    return best


def optimizers_table(rows: Rows) -> Grid:
    """Mean ± standard deviation over the seeds that chose no rate."""
    body = []
    for title, rate in best_optimizer_rates(rows).items():
        mine = [row for row in rows if row["line"] == title and row["rate"] == rate and "failed" not in row
                and row["seed"] not in SEARCH_SEEDS]  # fmt: skip
        cells = [spread([row[key] for row in mine]) for key in ("all_classes", "last_task", "forgetting")]
        edges = (OPTIMIZER_LINES[title].rates[0], OPTIMIZER_LINES[title].rates[-1])
        body.append((title, *cells, f"{rate:g}{' (the edge)' if rate in edges else ''}"))
    return Grid(("Adapter moved by", "All classes (%)", "Last task (%)", "Forgetting", "Learning rate"), tuple(body))

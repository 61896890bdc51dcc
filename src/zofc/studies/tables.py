"""A study's rows as a table: mean ± standard deviation over seeds, ours beside the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from zofc.analysis.run_flatness import FlatnessSettings
from zofc.metrics import METRICS, mean_and_spread
from zofc.report.grid import Grid
from zofc.studies import costs
from zofc.studies.catalogue import Study, StudyLine
from zofc.studies.costs import CostRows, LineValues
from zofc.studies.scale import Scale
from zofc.studies.settings import SETTINGS
from zofc.units import GIB, NONE

SPELLED = {  # metric, and what the paper's tables call it
    "average_incremental": "average over time % (avg)",
    "all_classes": "all classes % (last)",
    "forgetting": "forgetting, points (fgt)",
}
MEMORY = {"gigabytes": "peak memory of a step, GiB"}
SET_TITLES = {"peft": "over the adapter alone", "peft+head": "over adapter and head"}
FLATNESS = {
    f"{which} {over}": f"Φ {words}, {when}"
    for over, words in SET_TITLES.items()
    for which, when in (("last", "after the last task"), ("mean", "mean over tasks"))
}
CURVATURE = {
    "largest": "largest eigenvalue λ of the old tasks' Hessian",
    "trace": "trace of it",
    "change": "rise F of the loss by the next task",
    "first": "gᵀΔθ",
    "second": "½ΔθᵀHΔθ",
    "bound": "½λ‖Δθ‖²",
    "slack": "least ½λ‖Δθ‖² − F",
    "share": "|gᵀΔθ| of both terms, %",
}
MEASURES = {
    "memory": MEMORY,
    "runtime": {**MEMORY, "seconds": "steps of an epoch, s"},
    "operations": costs.OPERATION_HEADINGS,
    "flatness": FLATNESS,
    "curvature": CURVATURE,
    "trade-off": {**MEMORY, "all_classes": SPELLED["all_classes"]},
}
EXECUTED, FORMULA = ": executed", ": formula"  # what the titles of the rows of operations end with
NUMBER_FORMATS = {"gigabytes": ".3f", "seconds": ".3f"} | dict.fromkeys(costs.OPERATION_HEADINGS, ".4g")
SIGNIFICANT = {*FLATNESS, *CURVATURE}  # of any size, so with as many significant digits


@dataclass(frozen=True)
class Number:
    """What a row of a table has in a setting, a value for each seed that has one, and what the paper prints there."""

    line: str
    setting: str
    metric: str
    values: tuple[float, ...]
    seeds: int
    failed: int  # of them
    printed: float | None

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return mean_and_spread(self.values)[0]

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; none where operations were counted, the same each time."""
        exact = self.metric in costs.OPERATION_HEADINGS and len(set(self.values)) == 1
        return None if exact else mean_and_spread(self.values)[1]

    def __str__(self) -> str:
        """`41.00 ± 1.41 (2 of 3 seeds) [83.34]`: ours, over how many seeds if not over all, and the paper's."""
        mean, spread = self.mean, self.spread
        shown = NONE
        if mean is not None:
            form = _significant(mean) if self.metric in SIGNIFICANT else NUMBER_FORMATS.get(self.metric, ".2f")
            shown = format(mean, form) + ("" if spread is None else f" ± {spread:{form}}")
            shown += f" ({len(self.values)} of {self.seeds} seeds)" * (len(self.values) < self.seeds)
        if self.printed is None:
            return shown
        return f"{shown} [{self.printed:{'.2f' if self.metric in METRICS else 'g'}}]"


def measures(study: Study) -> dict[str, str]:
    """What a study's table shows in each setting, and what that is called."""
    return MEASURES.get(study.shows, SPELLED)


def numbers(study: Study, rows: CostRows, columns: Sequence[str]) -> Iterator[Number]:
    """Those of a study's table, row by row, setting by setting."""
    for line in study.lines:
        for way, values in _ways(study, rows).items():
            for setting in columns:
                mine = [row for row in rows if (row["line"], row["setting"]) == (line.title, setting)]
                good = [row for row in mine if "failed" not in row]
                found = [values(line, row) for row in good]
                printed = {} if way == EXECUTED else study.printed(line, setting)
                for metric in measures(study):
                    had = tuple(value[metric] for value in found if metric in value)
                    counts = len(mine), len(mine) - len(good)
                    yield Number(line.title + way, setting, metric, had, *counts, printed.get(metric))


def table(study: Study, scale: Scale, rows: CostRows, columns: Sequence[str], changes: Sequence[str] = ()) -> Grid:
    """Ours and, where it prints a number, the paper's, for each line of a study."""
    heads = [f"{setting}: {words}" for setting in columns for words in measures(study).values()]
    body = []
    for title, found in groupby(numbers(study, rows, columns), key=lambda number: number.line):
        cells = tuple(map(str, found))
        if any(cell != NONE for cell in cells):
            body.append((title, *cells))
    seeds = len({row["seed"] for row in rows})
    over = f"{seeds} seeds; mean ± standard deviation" if seeds > 1 else "1 seed"
    notes = [f"Scale {scale.name}: {scale.says}. {over}."]
    if any("[" in cell for _, *cells in body for cell in cells):
        notes.append("In brackets, what the paper prints at its own scale.")
    notes += _notes(study, scale, rows)
    notes += [f"{name}: {SETTINGS[name].says}." for name in columns if SETTINGS[name].says]
    notes += [
        f"Not on {name}: {'; '.join(lines)} ({why})." for name in columns for why, lines in study.left_out(name).items()
    ]
    if changes:
        notes.append(f"Changed in every recipe: {' '.join(changes)}.")
    return Grid(("", *heads), tuple(body), study.title, tuple(notes), tuple(_failures(rows)))


def _failures(rows: CostRows) -> list[str]:
    """Each reason, with the cells that failed for it."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if "failed" in row:
            where = f"{row['line']}, {row['setting']}, seed {row['seed']}"
            reasons.setdefault(row["failed"], []).append(where)
    return [f"{some(cells)} failed: {why}" for why, cells in reasons.items()]


def some(names: Sequence[str], most: int = 5) -> str:
    """All of them if they are few, else the first and how many others."""
    if len(names) <= most + 1:
        return "; ".join(names)
    return f"{'; '.join(names[:most])} and {len(names) - most} others"


def _ways(study: Study, rows: CostRows) -> dict[str, LineValues]:
    """How the numbers of a line are read from its rows. Each way has a row of the table, whose title ends with it."""
    if study.shows == "operations":
        counts: dict[str, LineValues] = {EXECUTED: costs.executed, FORMULA: costs.by_formula}
        return {way: costs.beside_first_order(count, study, rows) for way, count in counts.items()}
    ways: dict[str, LineValues] = {
        "memory": costs.most_memory, "runtime": costs.time_and_memory, "flatness": _flatness,
        "curvature": curvature_means, "trade-off": _trade_off,
    }  # fmt: skip
    return {"": ways.get(study.shows, _metrics)}


def _metrics(_line: StudyLine, row: Mapping[str, Any]) -> dict[str, float]:
    """Of a trained run; those that it does not have are left out."""
    return {metric: row[metric] for metric in SPELLED if row[metric] is not None}


def _trade_off(line: StudyLine, row: Mapping[str, Any]) -> dict[str, float]:
    """The point of a run in the figure; one that makes no steps needs no memory for them."""
    memory = {"gigabytes": row["peak_memory"] / GIB} if row["steps"] else {}
    return {**_metrics(line, row), **memory}


def _flatness(_line: StudyLine, row: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for over, scores in row["flatness"].items():
        if scores:
            values = [score for _, score in scores]
            found |= {f"last {over}": values[-1], f"mean {over}": statistics.fmean(values)}
    return found


def curvature_means(_line: StudyLine | None, row: Mapping[str, Any]) -> dict[str, float]:
    """Means over the states that were measured, and of forgetting over the steps from them to the next task that moved
    something; of these the least slack of the bound, and the median share."""
    states = row["curvature"].get("peft") or []
    steps = [state["forgetting"] for state in states if state["forgetting"] and state["forgetting"]["distance"]]
    found = {key: [state[key] for state in states] for key in ("largest", "trace")}
    found |= {key: [step[key] for step in steps] for key in ("change", "first", "second", "bound")}
    means = {key: statistics.fmean(values) for key, values in found.items() if values}
    if not steps:
        return means
    least = min(steps, key=lambda step: step["bound"] - step["change"])
    slack = {"slack": least["bound"] - least["change"], "slack_error": least["bound_error"]}
    return {**means, **slack, "share": statistics.median(100 * step["first_share"] for step in steps)}


def _significant(value: float, digits: int = 3) -> str:
    """A form with so many significant digits; very small and very large ones with an exponent."""
    size = math.floor(math.log10(abs(value))) if value else 0
    return f".{max(0, digits - 1 - size)}f" if -4 <= size < 6 else f".{digits - 1}e"


def _unconverged(rows: CostRows) -> str:
    states = [state for row in rows for some in row.get("curvature", {}).values() for state in some]
    short = sum(not state["converged"] for state in states)
    return f" In {short} of {len(states)} states a λ had not converged, and is too low." if short else ""


def _images(asked: FlatnessSettings) -> str:
    return f"{asked.images} {asked.split} images a class" if asked.images else f"all {asked.split} images"


def _notes(study: Study, scale: Scale, rows: CostRows) -> list[str]:
    """What must be known of these numbers."""
    if study.shows == "memory":
        return costs.memory_notes(rows)
    if study.shows == "runtime":
        return costs.runtime_notes(rows)
    if study.shows == "operations":
        return costs.operation_notes(study, rows)
    if study.shows == "trade-off":
        return [f"Of the steps of all tasks, the one that needs most. {costs.WHAT_MEMORY}"]
    if study.shows == "curvature":
        asked = scale.curvature
        return [
            f"Over the adapter, on {_images(asked)}, softmax over a task's own rows, in float64; mean over the states "
            f"after every {asked.every} tasks, of the share the median. The loss is that of the tasks before the last, "
            "and for F and its terms, which are of the step to the next task, of all so far: a mean over their images, "
            f"in nats. λ by Lanczos ({asked.products} products at most), the trace by Hutchinson ({asked.probes} "
            f"probes).{_unconverged(rows)}"
        ]
    if study.shows == "flatness":
        asked = scale.flatness
        return [
            f"Φ = (L(θ⁺) − L(θ)) / (ρ L(θ)) of the old tasks' loss, at θ⁺ = θ + ρ g/‖g‖ with g its gradient and ρ = "
            f"{asked.rho:g}: lower is flatter. On {_images(asked)}, softmax over a task's own rows, in float64. The "
            "task just learned is no old one, so it begins after the second. The paper prints curves, and no numbers."
        ]
    return []

"""What the tables of studies show: for each kind of study its columns, their values in a result row, and the notes
below the table. Costs of a step follow the paper's appendix H."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zofc.analysis.run_flatness import FlatnessSettings
from zofc.studies.catalogue import Study, StudyLine
from zofc.studies.scale import Scale
from zofc.units import GIB

StudyRow = Mapping[str, Any]
LineValues = Callable[[StudyLine, StudyRow], Mapping[str, float]]  # of one row of a line, by metric
StudyRows = Sequence[StudyRow]
StudyNotes = Callable[[Study, Scale, StudyRows], list[str]]
EXECUTED = ": executed"  # end of the title of a row that the paper has no numbers for

ACCURACY_COLUMNS = {
    "average_incremental": "average over time % (avg)",
    "all_classes": "all classes % (last)",
    "forgetting": "forgetting, points (fgt)",
}
MEMORY_COLUMNS = {"gigabytes": "peak memory of a step, GiB"}
OPERATION_COLUMNS = {
    "forwards": "forwards of the batch",
    "forward_flops": "operations forward",
    "backward_flops": "backward and update",
    "total_flops": "in all",
    "times_fo": "in units of FO",
}
SET_TITLES = {"peft": "over the adapter alone", "peft+head": "over adapter and head"}
FLATNESS_COLUMNS = {
    f"{which} {over}": f"Φ {words}, {when}"
    for over, words in SET_TITLES.items()
    for which, when in (("last", "after the last task"), ("mean", "mean over tasks"))
}
CURVATURE_COLUMNS = {
    "largest": "largest eigenvalue λ of the old tasks' Hessian",
    "trace": "its trace",
    "change": "rise F of the loss by the next task",
    "first": "gᵀΔθ",
    "second": "½ΔθᵀHΔθ",
    "bound": "½λ‖Δθ‖²",
    "slack": "smallest ½λ‖Δθ‖² − F",
    "share": "|gᵀΔθ| of both terms, %",
}


# -- values ----------------------------------------------------------------------------------------------------------


def _accuracies(_line: StudyLine, row: StudyRow) -> dict[str, float]:
    return {metric: row[metric] for metric in ACCURACY_COLUMNS if row[metric] is not None}


def _trade_off(line: StudyLine, row: StudyRow) -> dict[str, float]:
    """A method that trains nothing needs no memory for steps."""
    memory = {"gigabytes": row["peak_memory"] / GIB} if row["steps"] else {}
    return {**_accuracies(line, row), **memory}


def _flatness(_line: StudyLine, row: StudyRow) -> dict[str, float]:
    scores = {over: [score for _, score in pairs] for over, pairs in row["flatness"].items() if pairs}
    last = {f"last {over}": values[-1] for over, values in scores.items()}
    return {**last, **{f"mean {over}": statistics.fmean(values) for over, values in scores.items()}}


def curvature_means(_line: StudyLine | None, row: StudyRow) -> dict[str, float]:
    """Means over the measured states. Forgetting is averaged over the steps to the next task that changed a parameter;
    of these steps also the smallest slack of the bound and the median share."""
    states = row["curvature"].get("peft") or []
    steps = [state["forgetting"] for state in states if state["forgetting"] and state["forgetting"]["distance"]]
    values = {key: [state[key] for state in states] for key in ("largest", "trace")}
    values |= {key: [step[key] for step in steps] for key in ("change", "first", "second", "bound")}
    means = {key: statistics.fmean(numbers) for key, numbers in values.items() if numbers}
    if not steps:
        return means
    tightest = min(steps, key=lambda step: step["bound"] - step["change"])
    slack = {"slack": tightest["bound"] - tightest["change"], "slack_error": tightest["bound_error"]}
    return {**means, **slack, "share": statistics.median(100 * step["first_share"] for step in steps)}


def _phase(line: StudyLine, row: StudyRow) -> StudyRow:
    """The cost in the phase of training in which the groups of the line move and no others; empty if there is none."""
    for phase in row["cost"]["phases"]:
        if {name for groups in phase["groups"] for name in groups.split("+")} == set(line.moving):
            return {**row["cost"], **phase}
    return {}


def _peak_memory(_line: StudyLine, row: StudyRow) -> dict[str, float]:
    return {"gigabytes": max(phase["peak"] for phase in row["cost"]["phases"]) / GIB}


def time_and_memory(line: StudyLine, row: StudyRow) -> dict[str, float]:
    """Peak memory of a step, and the seconds of an epoch."""
    phase = _phase(line, row)
    return {"gigabytes": phase["peak"] / GIB, "seconds": phase["epoch_seconds"]} if phase else {}


def executed_operations(line: StudyLine, row: StudyRow) -> dict[str, float]:
    """As counted during a step; a forward is one of the plain backbone."""
    if not (phase := _phase(line, row)):
        return {}
    total, update = phase["executed"]["total"], phase["executed"]["update"]
    return _operations((total - update) / (phase["batch_size"] * phase["forward"]["backbone"]), total, update)


def _formula_operations(line: StudyLine, row: StudyRow) -> dict[str, float]:
    """By appendix H, for the same model and batch."""
    formula = _phase(line, row).get("formula")
    return _operations(*(formula[key] for key in ("forwards", "total", "backward"))) if formula else {}


def _operations(forwards: float, total: float, backward: float) -> dict[str, float]:
    flops = {"forward_flops": total - backward, "backward_flops": backward, "total_flops": total}
    return {"forwards": forwards, **flops}


# -- notes, from the rows that did not fail --------------------------------------------------------------------------

WHAT_MEMORY = (
    "Memory: all that the device's allocator holds; on a CPU, weights and the tensors of a step. The paper prints GB."
)


def _timing(rows: StudyRows, *more: str) -> list[str]:
    """How the costs were measured, and what else is to say about them."""
    costs = [(row["cost"], row["environment"]["device_name"]) for row in rows]
    notes = {
        f"On {cost['device']} ({name}) in {cost['precision']}: batches of {cost['batch_size']}, "
        f"{cost['steps_per_epoch']} steps an epoch, a step being the median of {cost['steps']} after a warm-up."
        for cost, name in costs
    }
    return [*sorted(notes), *more]


def _operation_notes(study: Study, _scale: Scale, rows: StudyRows) -> list[str]:
    """What was counted, and each reason why the formulas differ from it, with its size in every line."""
    notes = [
        "An operation, the paper's FLOP, is one multiply–add. Executed: counted during a step. Formula: appendix H "
        "with the counted F_backbone of this model and batch, beside what the paper prints."
    ]
    notes += dict.fromkeys(f"A batch has {row['cost']['batch_size']} images; the paper's has 48." for row in rows)
    notes += dict.fromkeys(f"{text[0].upper()}{text[1:]}." for row in rows for text in row["cost"]["conventions"])
    reasons: dict[str, list[str]] = {}
    for line in study.lines:
        first = [row for row in rows if row["line"] == line.title][:1]
        for part in (part for row in first for part in _phase(line, row).get("differences", ())):
            size = f"{part['multiply_adds']:+.4g}".replace("-", "−")
            reasons.setdefault(part["why"], []).append(f"{line.title}: {size}")
    if reasons:
        notes.append("The formula minus what was executed, by reason; the terms of a line add up to the difference:")
    return notes + [f"{why[0].upper()}{why[1:]} ({'; '.join(terms)})." for why, terms in reasons.items()]


def _curvature_notes(_study: Study, scale: Scale, rows: StudyRows) -> list[str]:
    asked = scale.curvature
    states = [state for row in rows for states in row["curvature"].values() for state in states]
    short = sum(not state["converged"] for state in states)
    unconverged = f" In {short} of {len(states)} states a λ had not converged, and is too low." if short else ""
    return [
        f"Over the adapter, on {_images(asked)}, softmax over a task's own rows, in float64; mean over the states "
        f"after every {asked.every} tasks, median of the share. The loss is that of the tasks before the last one; for "
        "F and its terms, which belong to the step to the next task, that of all tasks so far: a mean over their "
        f"images, in nats. λ by Lanczos (at most {asked.products} products), the trace by Hutchinson ({asked.probes} "
        f"probes).{unconverged}"
    ]


def _flatness_notes(_study: Study, scale: Scale, _rows: StudyRows) -> list[str]:
    asked = scale.flatness
    return [
        f"Φ = (L(θ⁺) − L(θ)) / (ρ L(θ)) of the old tasks' loss, at θ⁺ = θ + ρ g/‖g‖ with g its gradient and ρ = "
        f"{asked.rho:g}: lower is flatter. On {_images(asked)}, softmax over a task's own rows, in float64. The task "
        "just learned is not an old one, so Φ begins after the second. The paper prints curves and no numbers."
    ]


def _images(asked: FlatnessSettings) -> str:
    return f"{asked.images} {asked.split} images a class" if asked.images else f"all {asked.split} images"


@dataclass(frozen=True)
class Display:
    """A kind of table: titles of its columns by metric, the rows of each line by the end of their title, and notes."""

    columns: Mapping[str, str]
    values: Mapping[str, LineValues]
    notes: StudyNotes = lambda *_: []


DISPLAYS = {  # by what a study shows
    "accuracy": Display(ACCURACY_COLUMNS, {"": _accuracies}),
    "curves": Display(ACCURACY_COLUMNS, {"": _accuracies}),
    "trade-off": Display(
        MEMORY_COLUMNS | {"all_classes": ACCURACY_COLUMNS["all_classes"]},
        {"": _trade_off},
        lambda *_: [f"Memory is that of the largest step of all tasks. {WHAT_MEMORY}"],
    ),
    "memory": Display(
        MEMORY_COLUMNS,
        {"": _peak_memory},
        lambda _study, _scale, rows: _timing(rows, f"In the first task, in the epochs that need most. {WHAT_MEMORY}"),
    ),
    "runtime": Display(
        MEMORY_COLUMNS | {"seconds": "steps of an epoch, s"},
        {"": time_and_memory},
        lambda _study, _scale, rows: _timing(
            rows,
            "In the first task; for ZO-FC, the epochs in which the classifier moves too. Loading and evaluation are "
            f"not included. {WHAT_MEMORY}",
            "The paper does not name the data of these numbers; its runs were on an A6000 (appendix A).",
        ),
    ),
    "operations": Display(
        OPERATION_COLUMNS, {EXECUTED: executed_operations, ": formula": _formula_operations}, _operation_notes
    ),
    "flatness": Display(FLATNESS_COLUMNS, {"": _flatness}, _flatness_notes),
    "curvature": Display(CURVATURE_COLUMNS, {"": curvature_means}, _curvature_notes),
}

"""The numbers of a row that the claims of the paper are about, and what is known of their chance from one row.

An accuracy is a share of test images: its binomial standard error is √(p (1 − p) / n). Sums and differences of
accuracies are taken as independent, which for lines that are tested on the same images is a bound from above.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

from claims.comparisons import Measure, Row, propagated
from zofc.studies import costs, tables
from zofc.studies.catalogue import STUDIES, Line

PRECISION = 0.01  # to which a measured time or memory is taken


# -- accuracies ------------------------------------------------------------------------------------------------------


def chance(percent: float | None, images: float | None) -> float | None:
    """The binomial standard error of an accuracy, in points."""
    if percent is None or not images:
        return None
    share = min(max(percent / 100, 0.0), 1.0)
    return float(100 * (share * (1 - share) / images) ** 0.5)


def learned(row: Row) -> float | None:
    """The best accuracy on each task, mean over tasks: what is there at the end, and what was forgotten."""
    if row["forgetting"] is None or row["final_average"] is None:
        return None
    tasks = len(row["over_time"])
    return float(row["final_average"] + row["forgetting"] * (tasks - 1) / tasks)


def lost(row: Row) -> float | None:
    """How much of that is gone at the end, in percent of it."""
    best = learned(row)
    return 100 * (best - row["final_average"]) / best if best else None


def fallen(row: Row) -> float | None:
    """From the accuracy after the first task to that on all classes at the end."""
    first, last = row["over_time"][0], row["over_time"][-1]
    return None if first is None or last is None else float(first - last)


def _old(row: Row) -> float | None:
    """Test images of all tasks but the last, as if all had the same number."""
    tasks, tested = len(row["over_time"]), row.get("tested")
    return tested * (tasks - 1) / tasks if tested else None


def forgetting_error(row: Row) -> float | None:
    """Of the mean over old tasks of best less final accuracy."""
    best, images = learned(row), _old(row)
    return propagated(lambda top, end: top - end, [0, 0], [chance(best, images), chance(row["final_average"], images)])


def lost_error(row: Row) -> float | None:
    best, end, images = learned(row), row["final_average"], row.get("tested")
    if not best:
        return None
    errors = [chance(best, images), chance(end, images)]
    return propagated(lambda top, left: 100 * (top - left) / top, [best, end], errors)


def fallen_error(row: Row) -> float | None:
    first, last, tested = row["over_time"][0], row["over_time"][-1], row.get("tested")
    of_first = tested / len(row["over_time"]) if tested else None
    return propagated(lambda one, other: one - other, [0, 0], [chance(first, of_first), chance(last, tested)])


def image(row: Row, tasks: int = 0) -> float | None:
    """What one test image makes of an accuracy on all of them; of a mean over so many tasks, one of a single task. All
    tasks are taken to have the same number of them."""
    tested, learned_in = row.get("tested"), len(row["over_time"])
    return (100 / tested) * (learned_in / tasks if tasks else 1) if tested else None


def old_image(row: Row) -> float | None:
    """The same of a mean over all tasks but the last."""
    return image(row, max(len(row["over_time"]) - 1, 1))


def lost_image(row: Row) -> float | None:
    best, one = learned(row), image(row)
    return 100 * one / best if best and one else None


# -- flatness and cost -----------------------------------------------------------------------------------------------


def score(row: Row, over: str, part: slice = slice(None)) -> float | None:
    """Φ over a set of parameters, mean over tasks."""
    values = [value for _, value in row["flatness"].get(over) or []][part]
    return statistics.fmean(values) if values else None


def memory(row: Row) -> float | None:
    """Of a benchmark's step, of a step whose cost was measured, or of a trained run."""
    if "peak_bytes" in row:
        return float(row["peak_bytes"] / costs.GIB)
    if "cost" in row:
        return float(max(phase["peak"] for phase in row["cost"]["phases"]) / costs.GIB)
    return float(row["peak_memory"] / costs.GIB) if row["steps"] else None


def _line(study: str, row: Row) -> Line:
    return next(line for line in STUDIES[study].lines if line.title == row["line"])


def seconds(row: Row) -> float | None:
    return costs.time_and_memory(_line("runtime", row), row).get("seconds")


def operations(row: Row) -> float | None:
    return costs.executed(_line("flops", row), row).get("total_flops")


def _roughly(read: Callable[[Row], float | None]) -> Callable[[Row], float | None]:
    return lambda row: None if (found := read(row)) is None else PRECISION * found


def _curved(key: str) -> Callable[[Row], float | None]:
    return lambda row: tables.curvature(None, row).get(key)


def _curved_error(key: str) -> Callable[[Row], float | None]:
    """Of a mean over states, from what each is known to."""

    def error(row: Row) -> float | None:
        known = [state[f"{key}_error"] for state in row["curvature"].get("peft") or []]
        return float(math.hypot(*known) / len(known)) if known else None

    return error


# -- the measures ----------------------------------------------------------------------------------------------------

ACCURACY = Measure(
    "accuracy on all classes at the end, points", "all_classes", lambda row: row["all_classes"],
    error=lambda row: chance(row["all_classes"], row.get("tested")), step=image,
)  # fmt: skip
FORGETTING = Measure(
    "forgetting, points", "forgetting", lambda row: row["forgetting"], error=forgetting_error, step=old_image
)
LEARNED = Measure(
    "best accuracy on each task, mean over tasks, points", "learned", learned,
    error=lambda row: chance(learned(row), row.get("tested")), step=image,
)  # fmt: skip
LOST = Measure("forgotten of what was learned, percent of it", "lost", lost, error=lost_error, step=lost_image)
FALLEN = Measure(
    "accuracy after the first task less that at the end, points", "fallen", fallen,
    error=fallen_error, step=lambda row: image(row, 1),
)  # fmt: skip
MEMORY = Measure("peak memory of a step, GiB", "gigabytes", memory, "GiB", ".3f", True, _roughly(memory), True)
SECONDS = Measure("steps of an epoch, s", "seconds", seconds, "s", ".3f", error=_roughly(seconds), lasting=True)
OPERATIONS = Measure("multiply–adds of a step", "total_flops", operations, "multiply–adds", ".3g", True)
PHI = Measure("Φ over the adapter alone, mean over tasks", "phi", lambda row: score(row, "peft"), "in Φ", ".3g")
PHI_HEAD = Measure(
    "Φ over adapter and head, mean over tasks", "phi", lambda row: score(row, "peft+head"), "in Φ", ".3g"
)
PHI_LAST = Measure(
    "Φ over the adapter alone, after the last task",
    "phi",
    lambda row: score(row, "peft", slice(-1, None)),
    "in Φ",
    ".3g",
)
LARGEST, TRACE = (
    Measure(words, key, _curved(key), unit, ".3g", error=_curved_error(key))
    for key, unit, words in (("largest", "in λ", "largest eigenvalue of the old tasks' Hessian, mean over states"),
                             ("trace", "in the trace", "trace of the old tasks' Hessian, mean over states"))
)  # fmt: skip
SLACK = Measure(
    "½λ‖Δθ‖² less the rise of the old tasks' loss, least over steps", "slack", _curved("slack"), "nats", ".3g",
    error=_curved("slack_error"),
)  # fmt: skip
FIRST_SHARE = Measure("|gᵀΔθ| of both terms, median over steps, %", "share", _curved("share"), "%", ".3g")
PHI_HEAD_LAST = replace(
    PHI_LAST,
    words="Φ over adapter and head, after the last task",
    read=lambda row: score(row, "peft+head", slice(-1, None)),
)

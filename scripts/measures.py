"""The numbers of a row that the claims of the paper are about."""

from __future__ import annotations

import statistics

from verdicts import Measure, Row

from zofc.studies import costs
from zofc.studies.catalogue import STUDIES, Line


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


def score(row: Row, over: str, part: slice = slice(None)) -> float | None:
    """Φ over a set of parameters, mean over tasks."""
    values = [value for _, value in row["flatness"].get(over) or []][part]
    return statistics.fmean(values) if values else None


def early(row: Row) -> float | None:
    return score(row, "peft", slice(0, len(row["flatness"].get("peft") or []) // 2))


def late(row: Row) -> float | None:
    return score(row, "peft", slice(len(row["flatness"].get("peft") or []) // 2, None))


def memory(row: Row) -> float | None:
    """Of a measured step, or of a trained run."""
    if "cost" in row:
        return max(phase["peak"] for phase in row["cost"]["phases"]) / costs.GIB
    return float(row["peak_memory"] / costs.GIB) if row["steps"] else None


def _line(study: str, row: Row) -> Line:
    return next(line for line in STUDIES[study].lines if line.title == row["line"])


def _cost(study: str, key: str) -> Measure:
    words, form = {"seconds": ("steps of an epoch, s", ".3f"), "total_flops": ("multiply–adds of a step", ".3g")}[key]
    values = costs.time_and_memory if key == "seconds" else costs.executed
    return Measure(words, key, lambda row: values(_line(study, row), row).get(key), form, key == "total_flops")


ACCURACY = Measure("accuracy on all classes at the end, points", "all_classes", lambda row: row["all_classes"])
FORGETTING = Measure("forgetting, points", "forgetting", lambda row: row["forgetting"])
LEARNED = Measure("best accuracy on each task, mean over tasks, points", "learned", learned)
LOST = Measure("forgotten of what was learned, percent of it", "lost", lost)
FALLEN = Measure("accuracy lost between the first and the last task, points", "fallen", fallen)
MEMORY = Measure("peak memory of a step, GiB", "gigabytes", lambda row: memory(row), ".3f", exact=True)
SECONDS, OPERATIONS = _cost("runtime", "seconds"), _cost("flops", "total_flops")
PHI = Measure("Φ over the adapter alone, mean over tasks", "phi", lambda row: score(row, "peft"), ".3g")
PHI_HEAD = Measure("Φ over adapter and head, mean over tasks", "phi", lambda row: score(row, "peft+head"), ".3g")
EARLY = Measure("distance in Φ over the adapter alone, first half of the tasks less second", "phi", early, ".3g")
LATE = Measure("Φ over the adapter alone, second half of the tasks", "phi", late, ".3g")

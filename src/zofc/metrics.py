"""The accuracy matrix and the metrics derived from it, as pure functions.

A[i, j] is the accuracy in percent on the test images of group j after task i, the prediction being the best
of all classes seen by then; n_j is the number of those images. Task i brings group i, so row i has i + 1
entries. A joint run learns every group in one task and is measured on each: one row with all K entries.

An entry is None where a group was not measured: it has no test images, or (a run taken up again with new
classes) they are not at hand any more. The accuracy on all classes is None where one group was not measured;
every other mean runs over what was measured, and a metric without anything to average is None. A group that was
measured once keeps its count, so that earlier rows keep their weights; a count of zero is for a group never measured.

The paper uses two sets of definitions: those of its appendix A (`final_average`, `last_task`, `forgetting`)
and those its released trainer logs and its tables print (`average_incremental`, `all_classes`, `forgetting`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, mean, stdev
from typing import Any

Row = tuple[float | None, ...]


def mean_and_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation, over seeds; none of what cannot be had of so few."""
    return (mean(values) if values else None), (stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class AccuracyMatrix:
    """Accuracies in percent, the test images behind them, and the class names of each group (if known)."""

    rows: tuple[Row, ...]
    counts: tuple[int, ...]  # may already name groups that are still to come
    groups: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for number, count in enumerate(self.counts, 1):
            if count < 0:
                raise ValueError(f"counts: group {number} has {count} test images, expected 0 or more")
        if self.groups and len(self.groups) != len(self.counts):
            raise ValueError(f"groups: class names of {len(self.groups)} groups, but counts of {len(self.counts)}")
        width = 1
        for number, row in enumerate(self.rows, 1):
            if len(row) < width:
                raise ValueError(
                    f"accuracy: row {number} has {len(row)} entries, expected at least {width}; "
                    "a group once seen is in every later row (null where it was not measured)"
                )
            width = len(row)
            self._check(number, row)

    def _check(self, number: int, row: Row) -> None:
        if len(row) > len(self.counts):
            raise ValueError(
                f"accuracy: row {number} has {len(row)} groups, but counts are given for {len(self.counts)}"
            )
        for group, (accuracy, count) in enumerate(zip(row, self.counts, strict=False), 1):
            if accuracy is None:
                continue
            if not 0 <= accuracy <= 100:  # also refuses nan
                raise ValueError(f"accuracy: row {number}, group {group} is {accuracy}, expected 0 to 100 percent")
            if count == 0:
                raise ValueError(
                    f"accuracy: row {number}, group {group} is measured but its count is 0; "
                    "a group keeps the count it was measured with"
                )

    @property
    def joint(self) -> bool:
        """All groups learned in one task."""
        return len(self.rows) == 1 and len(self.rows[0]) > 1

    @property
    def last_row(self) -> Row:
        """Accuracies after the last task."""
        return self.rows[-1] if self.rows else ()

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """Groups that were learned but are missing from the last row, and so from every final metric."""
        return tuple(j for j, accuracy in enumerate(self.last_row) if accuracy is None)

    def old_groups(self) -> range:
        """The groups learned before the last task."""
        return range(len(self.rows[-2]) if len(self.rows) > 1 else 0)

    def history(self, group: int) -> Row:
        """A group's accuracies over time, from the task that brought it; the first is A[j, j]."""
        return tuple(row[group] for row in self.rows if len(row) > group)

    def to_json(self) -> dict[str, Any]:
        """As a run folder holds it."""
        rows, groups = [list(row) for row in self.rows], [list(names) for names in self.groups]
        return {"accuracy": rows, "counts": list(self.counts), "groups": groups}

    @classmethod
    def from_json(cls, data: object) -> AccuracyMatrix:
        """The matrix that `to_json` wrote; ValueError says which entry is wrong."""
        if not isinstance(data, Mapping):
            raise ValueError(f"expected an object with `accuracy` and `counts`, got {type(data).__name__}")
        for i, row in enumerate(rows := _list(data.get("accuracy"), "accuracy"), 1):
            for j, value in enumerate(_list(row, f"row {i}"), 1):
                _check_type(value, f"accuracy: row {i}, group {j}", int | float | None, "a number or null")
        for j, value in enumerate(counts := _list(data.get("counts"), "counts"), 1):
            _check_type(value, f"counts: group {j}", int, "a whole number")
        groups = tuple(tuple(map(str, _list(names, "groups"))) for names in _list(data.get("groups", []), "groups"))
        accuracies = tuple(tuple(None if value is None else float(value) for value in row) for row in rows)
        return cls(accuracies, tuple(counts), groups)


def _list(value: object, name: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list, got {'nothing' if value is None else repr(value)}")
    return value


def _check_type(value: object, name: str, kind: Any, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}, expected {expected}")


Compute = Callable[[AccuracyMatrix], float | None]


@dataclass(frozen=True)
class Metric:
    """One metric: what tables call it, how it is defined, where the definition comes from."""

    name: str
    label: str
    unit: str
    meaning: str
    origin: str
    compute: Compute


METRICS: dict[str, Metric] = {}


def metric(label: str, unit: str, origin: str) -> Callable[[Compute], Compute]:
    """Enter a function of the matrix under its own name; its docstring is the definition reports print."""

    def enter(compute: Compute) -> Compute:
        meaning = " ".join(inspect.cleandoc(compute.__doc__ or "").split())
        METRICS[compute.__name__] = Metric(compute.__name__, label, unit, meaning, origin, compute)
        return compute

    return enter


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _over_images(row: Row, counts: Sequence[int]) -> float | None:
    """Σ_j n_j A[j] / Σ_j n_j over the groups of one row, all of which must be measured."""
    pairs = [(accuracy, count) for accuracy, count in zip(row, counts, strict=False) if accuracy is not None]
    total = sum(count for _, count in pairs)
    measured = pairs and len(pairs) == len(row)
    return math.fsum(accuracy * count for accuracy, count in pairs) / total if measured else None


def all_classes_over_time(matrix: AccuracyMatrix) -> tuple[float | None, ...]:
    """T_i, the accuracy on all images of all classes seen after task i, for every i."""
    return tuple(_over_images(row, matrix.counts) for row in matrix.rows)


def forgetting_by_group(matrix: AccuracyMatrix, before_last: bool = False) -> tuple[float | None, ...]:
    """max_i A[i, j] − A[K, j] for each old group j; i runs up to the last task, so it is never negative, or with
    `before_last` up to the one before."""
    drops: list[float | None] = []
    for group in matrix.old_groups():
        *before, final = matrix.history(group)
        measured = [accuracy for accuracy in (*before, *[final] * (not before_last)) if accuracy is not None]
        drops.append(max(measured) - final if measured and final is not None else None)
    return tuple(drops)


@metric(
    "all classes",
    "%",
    "the last entry of the released trainer's top-1 curve; what the paper's tables print as last",
)
def all_classes(matrix: AccuracyMatrix) -> float | None:
    """Accuracy over the test images of all classes seen, after the last task: Σ_j n_j A[K, j] / Σ_j n_j. Not
    defined where a group was not measured."""
    return _over_images(matrix.last_row, matrix.counts)


@metric("final average", "%", "the paper's appendix A, there avg; Lopez-Paz & Ranzato 2017, eq. 2 (ACC)")
def final_average(matrix: AccuracyMatrix) -> float | None:
    """Mean over tasks of the accuracy after the last task: (1/K) Σ_j A[K, j]. Equals all classes where
    every task has as many test images."""
    return _mean(accuracy for accuracy in matrix.last_row if accuracy is not None)


@metric("average incremental", "%", "Rebuffi et al. 2017 (iCaRL); what the paper's tables print as avg")
def average_incremental(matrix: AccuracyMatrix) -> float | None:
    """Mean over time of the accuracy on all classes seen so far: (1/K) Σ_i T_i with
    T_i = Σ_{j≤i} n_j A[i, j] / Σ_{j≤i} n_j. Not defined for a joint run, which has no time."""
    if matrix.joint:
        return None
    return _mean(accuracy for accuracy in all_classes_over_time(matrix) if accuracy is not None)


@metric("last task", "%", "the paper's appendix A, there last")
def last_task(matrix: AccuracyMatrix) -> float | None:
    """Accuracy on the newest task right after learning it: A[K, K]. Not defined for a joint run, which has no
    newest."""
    new = matrix.last_row[len(matrix.old_groups()) :]
    return new[0] if len(new) == 1 else None


@metric("forgetting", "points", "the paper's appendix A and tables, there fgt")
def forgetting(matrix: AccuracyMatrix) -> float | None:
    """Mean over old tasks of the best accuracy so far minus the final one:
    (1/(K−1)) Σ_{j<K} (max_{i≤K} A[i, j] − A[K, j]). Never negative; not defined for a single task."""
    return _mean(drop for drop in forgetting_by_group(matrix) if drop is not None)


@metric("forgetting before last", "points", "Chaudhry et al. 2018 (Riemannian Walk); as in continuum")
def forgetting_before_last(matrix: AccuracyMatrix) -> float | None:
    """As forgetting, the best accuracy being sought before the last task only (i ≤ K−1): negative where
    the last task made old ones better than ever."""
    return _mean(drop for drop in forgetting_by_group(matrix, before_last=True) if drop is not None)


@metric("backward transfer", "points", "Lopez-Paz & Ranzato 2017, eq. 3 (BWT)")
def backward_transfer(matrix: AccuracyMatrix) -> float | None:
    """Mean over old tasks of the final accuracy minus the one right after learning: (1/(K−1)) Σ_{j<K}
    (A[K, j] − A[j, j]). Negative where tasks are forgotten; not defined for a single task."""
    changes = []
    for group in matrix.old_groups():
        first, *_, final = matrix.history(group)
        if first is not None and final is not None:
            changes.append(final - first)
    return _mean(changes)


def summary(matrix: AccuracyMatrix) -> dict[str, float | None]:
    """Every metric under its name; None where it is not defined."""
    return {name: entry.compute(matrix) for name, entry in METRICS.items()}

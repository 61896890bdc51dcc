"""Result rows as evidence: read from result files, looked up by line, setting and seed, and the numbers in them.

A row is what one line gave in one setting with one seed. Files of one folder add to each other: what one file trained
and another measured of the same row is one row.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zofc.errors import RunError
from zofc.metrics import mean_and_spread
from zofc.studies.catalogue import STUDIES
from zofc.studies.displays import curvature_means, executed_operations, time_and_memory
from zofc.studies.settings import SETTINGS
from zofc.units import GIB, NONE

ResultRow = Mapping[str, Any]
RowKey = tuple[str, str, int]  # line, setting, seed
RowTable = dict[RowKey, dict[str, Any]]
RowNumber = Callable[[ResultRow], float | None]
CLASS_COUNTS = {
    "cifar100-inc5": 100, "cifar100-inc10": 100, "caltech101-inc10": 101, "pacs-styles": 28, "pacs-pooled": 7,
    "imagenet-r-inc5": 200, "imagenet-r-inc10": 200, "domainnet-inc69": 345,
}  # fmt: skip
EARLIER = "earlier_recipe"  # key of a row that the present recipe did not make: how the recipe has changed since
EARLIER_MARK = " †"
COST_LINES = {line.title: line for name in ("runtime", "flops") for line in STUDIES[name].lines}


def result_rows(path: Path, key: str = "rows") -> list[dict[str, Any]]:
    """The rows of a result file, or those under another key."""
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: no file of results ({error}); make it with python -m zofc.evidence") from error
    return rows


def read_evidence(folder: Path, benchmark: Path | None = None) -> RowTable:
    """All rows of a folder's files that did not fail, and the steps of a benchmark as rows of one seed."""
    table: RowTable = {}
    for path in sorted(folder.glob("*.json")):
        whole = json.loads(path.read_text("utf-8"))
        if "claims" not in whole:  # the verdicts made of the others
            add_rows(table, result_rows(path))
    if benchmark is not None and benchmark.is_file():
        for row in result_rows(benchmark):
            add_rows(table, [{**row, "line": f"step {row['name']}", "setting": "ViT-B/16", "seed": 0}])
    return table


def add_rows(table: RowTable, rows: Sequence[ResultRow]) -> None:
    """Rows by their keys; where one is there already, what is new in it is added. A rate search has no settings. A row
    of an earlier recipe gives way to one of the present recipe."""
    for row in rows:
        if "failed" not in row and "setting" in row:
            key = row["line"], row["setting"], row["seed"]
            before = table.get(key, {})
            if EARLIER in row and before:
                continue
            table[key] = dict(row) if EARLIER in before else {**row, **before}


def data_setting(setting: str) -> str:
    """The setting of the catalogue: a grid may add how many images after a comma."""
    return setting.partition(",")[0]


def adds_classes(setting: str) -> bool:
    """Whether tasks bring new classes, as in all of the paper's settings."""
    known = SETTINGS.get(data_setting(setting))
    return known is None or "data.by=domain" not in known.changes


def learned_anything(line: str, setting: str, table: RowTable) -> bool:
    """Whether a line ends above twice chance, mean over seeds: else it has nothing to forget."""
    found = [row["all_classes"] for key, row in table.items() if key[:2] == (line, setting) and "all_classes" in row]
    classes = CLASS_COUNTS.get(data_setting(setting))
    return not found or classes is None or statistics.fmean(found) >= 2 * 100 / classes


# -- cells of a table -------------------------------------------------------------------------------------------------


def spread(values: Sequence[float | None], digits: int = 1) -> str:
    """Mean ± standard deviation over seeds."""
    mean, deviation = mean_and_spread([value for value in values if value is not None])
    if mean is None:
        return NONE
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def accuracy_cells(table: RowTable, line: str, setting: str) -> tuple[str, str]:
    """All classes and forgetting of a line in a setting, marked where an earlier recipe made them."""
    mine = [row for key, row in table.items() if key[:2] == (line, setting) and "all_classes" in row]
    mark = EARLIER_MARK if any(EARLIER in row for row in mine) else ""
    return spread([row["all_classes"] for row in mine]), spread([row["forgetting"] for row in mine]) + mark


# -- numbers of a row ------------------------------------------------------------------------------------------------


def _learned(row: ResultRow) -> float | None:
    """The best accuracy on each task, mean over tasks: what is left at the end plus what was forgotten."""
    if row.get("forgetting") is None or row.get("final_average") is None:
        return None
    tasks = len(row["over_time"])
    return float(row["final_average"] + row["forgetting"] * (tasks - 1) / tasks)


def _lost(row: ResultRow) -> float | None:
    """Forgotten share of what was learned, in percent."""
    best = _learned(row)
    return 100 * (best - row["final_average"]) / best if best else None


def _fall(row: ResultRow) -> float | None:
    """Accuracy after the first task less accuracy at the end."""
    over_time = row.get("over_time") or [None]
    return None if None in (over_time[0], over_time[-1]) else float(over_time[0] - over_time[-1])


def _memory(row: ResultRow) -> float | None:
    """GiB of a step that was measured by itself, in a benchmark or a study of costs."""
    if "peak_bytes" in row:
        return float(row["peak_bytes"] / GIB)
    return float(max(phase["peak"] for phase in row["cost"]["phases"]) / GIB) if "cost" in row else None


def _cost(key: str) -> RowNumber:
    def read(row: ResultRow) -> float | None:
        if "cost" not in row or row["line"] not in COST_LINES:
            return None
        line = COST_LINES[row["line"]]
        return {**executed_operations(line, row), **time_and_memory(line, row)}.get(key)

    return read


def phi_curve(row: ResultRow, group: str = "peft") -> list[float]:
    """Φ of the old tasks' loss over a set of parameters, after each task from the second on."""
    return [value for _, value in row.get("flatness", {}).get(group) or []]


def _phi(group: str, last: bool = False) -> RowNumber:
    def read(row: ResultRow) -> float | None:
        values = phi_curve(row, group)[-1 if last else 0 :]
        return statistics.fmean(values) if values else None

    return read


def _curvature(key: str) -> RowNumber:
    return lambda row: curvature_means(None, row).get(key) if "curvature" in row else None


def _distance(row: ResultRow) -> float | None:
    """‖Δθ‖ of the adapter over the task after each measured state, mean over states."""
    steps = [state["forgetting"] for state in row.get("curvature", {}).get("peft") or []]
    return statistics.fmean(step["distance"] for step in steps if step) if any(steps) else None


ROW_NUMBERS: dict[str, RowNumber] = {
    "accuracy": lambda row: row.get("all_classes"),
    "forgetting": lambda row: row.get("forgetting"),
    "learned": _learned,
    "lost": _lost,
    "fall": _fall,
    "memory": _memory,
    "trained_memory": lambda row: row["peak_memory"] / GIB if row.get("steps") else None,  # GiB of the largest step
    "seconds": _cost("seconds"),
    "operations": _cost("total_flops"),
    "phi": _phi("peft"),
    "phi_last": _phi("peft", last=True),
    "phi_head": _phi("peft+head"),
    "phi_head_last": _phi("peft+head", last=True),
    "largest_eigenvalue": _curvature("largest"),
    "trace": _curvature("trace"),
    "bound_slack": _curvature("slack"),
    "first_order_share": _curvature("share"),
    "distance": _distance,
}
MEASURED = {"memory": 0.03, "seconds": 0.03, "operations": 0.0}  # relative error of a ratio of costs, from one seed

"""The numbers the paper prints in its tables, and what its avg, last and fgt are called here.

The words have two meanings there: the released trainer, whose numbers the tables hold, averages over time;
the formulas of appendix A average over tasks. `metric_names` gives either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Literal, TypedDict

from zofc.errors import RecipeError, nearest

Definition = Literal["printed", "formal"]

NAMES: dict[Definition, dict[str, str]] = {
    "printed": {"avg": "average_incremental", "last": "all_classes", "fgt": "forgetting"},
    "formal": {"avg": "final_average", "last": "last_task", "fgt": "forgetting"},
}


class Table(TypedDict):
    """One table: its rows are keyed by our names; `labels` has what it prints."""

    title: str
    metrics: list[str]
    labels: dict[str, str]
    rows: dict[str, dict[str, dict[str, float]]]  # row, column, metric


@cache
def tables() -> dict[str, Table]:
    """All tables of the paper that print numbers."""
    text = (resources.files("zofc") / "paper.json").read_text(encoding="utf-8")
    found: dict[str, Table] = json.loads(text)["tables"]
    return found


def printed(table: str, row: str, column: str) -> dict[str, float]:
    """What the paper prints in one cell: `printed("main", "zofc", "cifar100-inc5")["fgt"]` is 5.26."""
    rows = tables()[_known("table", table, tables())]["rows"]
    columns = rows[_known(f"table '{table}': row", row, rows)]
    return dict(columns[_known(f"table '{table}', row '{row}': column", column, columns)])


def metric_names(definition: Definition = "printed") -> dict[str, str]:
    """The metrics behind avg, last and fgt: as the tables print them, or by the formulas of appendix A."""
    return dict(NAMES[definition])


def _known(what: str, name: str, names: Iterable[str]) -> str:
    if name not in names:
        raise RecipeError(f"paper: {what} '{name}' is not printed{nearest(name, names)}")
    return name

"""The flatness of a run's old tasks, as measured after training: reads what `zofc flatness` wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zofc.runfolder.files import parse_run_json
from zofc.runfolder.nested import dotted_value

QUANTITIES = {"phi": "old.score", "lambda_max": "spectrum.largest", "trace": "trace.mean"}  # their keys in an entry


@dataclass(frozen=True)
class Flatness:
    """How flat the loss of the old tasks is after a task."""

    task: int  # counted from 1
    over: str  # the group of parameters that was moved
    values: Mapping[str, float]  # phi, lambda_max, trace: what of them was measured
    rho: float | None = None  # radius of phi
    spreads: Mapping[str, float | None] = field(default_factory=dict)  # standard deviations, where they are means


def parse_flatness(text: bytes, path: Path) -> tuple[Flatness, ...]:
    """The entries of the file that can be understood; anything else is left out."""
    content, rows = parse_run_json(text, path), []
    rho, sets = number_at(content, "settings.rho"), dotted_value(content, "by_set")
    for over, entries in sets.items() if isinstance(sets, Mapping) else ():
        for entry in entries if isinstance(entries, list) else ():
            task, known = dotted_value(entry, "task"), {name: number_at(entry, key) for name, key in QUANTITIES.items()}
            values = {name: value for name, value in known.items() if value is not None}
            if isinstance(task, int) and values:
                rows.append(Flatness(task, str(over), values, rho))
    return tuple(rows)


def number_at(tree: object, key: str) -> float | None:
    """The finite number at a dotted key, None for anything else."""
    value = dotted_value(tree, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None

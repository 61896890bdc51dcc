"""The flatness of a run's old tasks, as measured after training: reads what `zofc flatness` wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zofc.runfolder.files import parse_json
from zofc.runfolder.nested import dotted_value

QUANTITY_KEYS = {  # of each quantity in an entry of the file
    "phi": ("phi", "old.score"),
    "lambda_max": ("lambda_max", "spectrum.largest"),
    "trace": ("trace", "trace.mean"),
}


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
    content = parse_json(text, path)
    rho = next(_numbers(content, "settings.rho", "rho"), None)
    entries = []
    for over, entry in _entries(content):
        values = {name: value for name, keys in QUANTITY_KEYS.items() for value in _numbers(entry, *keys)}
        task = dotted_value(entry, "task")
        if isinstance(task, int) and values:
            entries.append(Flatness(task, str(entry.get("over", over)), values, rho))
    return tuple(entries)


def _entries(content: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each entry with the parameters it is about: a list for each set of them, or one of rows that name theirs."""
    sets = dotted_value(content, "by_set")
    lists = {**(sets if isinstance(sets, Mapping) else {}), "all parameters": dotted_value(content, "rows")}
    for name, entries in lists.items():
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping):
                yield str(name), entry


def _numbers(tree: object, *keys: str) -> Iterator[float]:
    return (value for key in keys if (value := number_at(tree, key)) is not None)


def number_at(tree: object, key: str) -> float | None:
    """The finite number at a dotted key, None for anything else."""
    value = dotted_value(tree, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None

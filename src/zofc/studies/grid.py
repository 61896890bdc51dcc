"""A grid of cells, several at a time, that can be interrupted and continued at any moment.

Finished cells are not repeated, interrupted ones continue, and cells that studies share are done once, wherever they
run. A failed cell is reported; only cells that need it fail with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zofc.errors import RunError
from zofc.runfolder import write_atomic
from zofc.studies.cells import Cell, run_cell
from zofc.studies.jobs import CellRow
from zofc.studies.places import HERE, Place


def run_grid(cells: Sequence[Cell], runs: Path, place: Place = HERE) -> Iterator[tuple[Cell, CellRow]]:
    """Results in order of completion: first of cells that need no other, then of those that do, last of those that run
    alone. Finished cells are only read. A cell that needs a failed one fails too."""
    failed: dict[str, str] = {}
    with place:
        for stage in range(3):
            of_stage = [cell for cell in cells if _stage(cell) == stage]
            for cell, row in _run_stage(of_stage, runs, place, failed):
                if "failed" in row:
                    failed[cell.name(runs)] = row["failed"]
                yield cell, row


def _stage(cell: Cell) -> int:
    return 2 if cell.job.alone else int(cell.needed is not None)


def _run_stage(
    cells: Sequence[Cell], runs: Path, place: Place, failed: Mapping[str, str]
) -> Iterator[tuple[Cell, CellRow]]:
    """The rows of cells that do not need each other."""
    left = []
    for cell in cells:
        if cell.needed is not None and (why := failed.get(cell.needed.name(runs))):
            yield cell, cell.failed(why)
        elif cell.done(runs):
            yield cell, run_cell(cell, runs)
        else:
            left.append(cell)
    if left:
        yield from place.run(left, runs, alone=left[0].job.alone)


def collect(
    cells: Sequence[Cell],
    runs: Path,
    out: Path,
    about: Mapping[str, Any],
    place: Place = HERE,
    on_progress: Callable[[str], None] = print,
) -> list[CellRow]:
    """Run a grid and keep its rows in the file `out`, written again after each cell, in the order of the cells. Rows
    that are already there are reused for cells with the same run, else kept at the end; failed cells are tried again.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = _rows_before(out, about)
    known = {row["run"]: row for row in kept if "run" in row}
    names = [cell.name(runs) for cell in cells]
    found = {number: {**known[name], **cells[number].labels} for number, name in enumerate(names) if name in known}
    order = {id(cell): number for number, cell in enumerate(cells)}
    for cell, row in run_grid([cell for cell in cells if order[id(cell)] not in found], runs, place):
        found[order[id(cell)]] = row
        rows = [found[number] for number in sorted(found)]
        again = {*names, *(row["run"] for row in rows if "run" in row)}  # a measurement has a name of its own
        others = [row for row in kept if row.get("run") not in again and not _tried_again(row, rows)]
        write_atomic(out, json.dumps({**about, "rows": [*rows, *others]}, indent=1) + "\n")
        on_progress(f"[{len(found)}/{len(cells)}] {cell}: {cell.describe(row)}")
    return [found[number] for number in sorted(found)]


def _tried_again(row: CellRow, rows: Sequence[CellRow]) -> bool:
    """Whether a failed row has the labels of another one."""
    labels = {key: value for key, value in row.items() if key != "failed"}
    return "failed" in row and any(labels.items() <= other.items() for other in rows)


def _rows_before(out: Path, about: Mapping[str, Any]) -> list[CellRow]:
    if not out.is_file():
        return []
    whole = json.loads(out.read_text())
    rows: list[CellRow] = whole.pop("rows")
    if whole != json.loads(json.dumps(about)):
        raise RunError(f"{out} holds rows that were made with other settings; name another file, or move it away")
    return rows

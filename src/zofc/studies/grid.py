"""A grid of cells, several at a time, that can be interrupted and continued at any moment.

A cell is a recipe with labels and a job, which is to train it by default. The name of its result follows from recipe
and job, so finished cells are not repeated, interrupted ones continue, and cells that studies share are done once. A
failed cell is reported; only cells that need it fail with it.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zofc.data.source import remembered_sources
from zofc.errors import Interrupted, RunError, ZofcError
from zofc.methods import complete_recipe
from zofc.recipe import Recipe, change_recipe
from zofc.runfolder import write_atomic
from zofc.studies.jobs import TRAIN, CellRow, Job
from zofc.studies.pool import STOPPED, Killed, in_processes


@dataclass(frozen=True)
class Cell:
    """One recipe of a grid; its labels say where its result belongs."""

    labels: Mapping[str, str | int | float]
    recipe: Recipe
    job: Job = TRAIN

    def __post_init__(self) -> None:
        """Results are found again by the digest of a recipe in full."""
        object.__setattr__(self, "recipe", complete_recipe(self.recipe))

    def __str__(self) -> str:
        return " ".join(str(value) for value in self.labels.values())

    @property
    def needed(self) -> Cell | None:
        """The cell that must be done before this one."""
        return None if self.job.needs is None else replace(self, job=self.job.needs)

    def name(self, runs: Path) -> str:
        """Of its result, below `runs`."""
        return self.job.name(self.recipe, runs)

    def done(self, runs: Path) -> bool:
        """Whether its result is there; one that cannot be read is not, and doing the job reports why."""
        try:
            return self.job.done(self.recipe, runs)
        except ZofcError:
            return False

    def describe(self, row: CellRow) -> str:
        """A summary of its row."""
        return f"failed: {row['failed']}" if "failed" in row else self.job.describe(row)


def run_cell(cell: Cell, runs: Path) -> CellRow:
    """Do what is left of a cell; its labels with the result, or with the reason why it failed."""
    gc.collect()  # the memory of a cell is its own
    try:
        return {**cell.labels, **cell.job.do(cell.recipe, runs)}
    except Interrupted:
        raise Interrupted(STOPPED) from None  # not by resuming this run, which is one of many
    except Exception as error:  # whatever it is, the other cells go on
        name = "" if isinstance(error, ZofcError) else f"{type(error).__name__}: "
        return {**cell.labels, "failed": f"{name}{error}"}


def run_grid(cells: Sequence[Cell], runs: Path, workers: int = 1) -> Iterator[tuple[Cell, CellRow]]:
    """Results in order of completion: first of cells that need no other, then of those that do, last of those that run
    alone. A cell that needs a failed one fails too."""
    failed: dict[str, str] = {}
    for stage in range(3):
        ready = []
        for cell in cells:
            needed = cell.needed
            if stage == (2 if cell.job.alone else int(needed is not None)):
                why = None if needed is None else failed.get(needed.name(runs))
                if why is None:
                    ready.append(cell)
                else:
                    yield cell, {**cell.labels, "failed": why}
        for cell, row in _work(ready, runs, 1 if stage == 2 else workers):
            if "failed" in row:
                failed[cell.name(runs)] = row["failed"]
            yield cell, row


def _work(cells: Sequence[Cell], runs: Path, workers: int) -> Iterator[tuple[Cell, CellRow]]:
    """The rows of cells. Several workers share cores and GPUs and take the longest cells first."""
    left = []
    with remembered_sources():
        for cell in cells:
            if workers == 1 or cell.done(runs):
                yield cell, run_cell(cell, runs)
            else:
                left.append(cell)
        left.sort(key=_passes, reverse=True)  # so that no long cell is left to one worker at the end
    threads = max(1, (os.cpu_count() or 1) // workers)
    shared = [replace(cell, recipe=_with_threads(cell.recipe, threads)) for cell in left]
    for number, row in in_processes(partial(run_cell, runs=runs), shared, workers, take_device):
        yield left[number], {**left[number].labels, "failed": str(row)} if isinstance(row, Killed) else row


def _passes(cell: Cell) -> float:
    """An estimate of how long a cell takes; one that will fail takes no time."""
    try:
        return cell.job.passes(cell.recipe)
    except ZofcError:
        return 0.0


def take_device(seat: int) -> None:
    """Give each worker a GPU of its own as `cuda`, in turn, where there are several; `cuda:1` stays that one."""
    if (count := torch.cuda.device_count()) > 1:
        torch.cuda.set_device(seat % count)


def _with_threads(recipe: Recipe, threads: int) -> Recipe:
    """The number of threads is no part of a run's identity; a recipe that sets it keeps its own."""
    return recipe if recipe.training.threads else change_recipe(recipe, f"training.threads={threads}")


def collect(
    cells: Sequence[Cell],
    runs: Path,
    out: Path,
    about: Mapping[str, Any],
    workers: int = 1,
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
    for cell, row in run_grid([cell for cell in cells if order[id(cell)] not in found], runs, workers):
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

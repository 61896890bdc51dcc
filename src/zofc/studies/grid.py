"""A grid of runs: many recipes, run several at a time, that can be stopped at any moment and continued.

A cell is a recipe with labels. Its run folder is found again by its recipe, so that what is finished is not run again,
what was interrupted goes on, and a cell that two studies share is run once. A cell that fails is reported and does not
stop the others.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from zofc.data.source import remember_sources, remembered_sources
from zofc.errors import Interrupted, ZofcError
from zofc.recipe import Recipe
from zofc.training.folder import folder_for, write_whole
from zofc.training.runs import start_run, train
from zofc.training.signals import stop_signals

KEPT = (
    "all_classes", "final_average", "average_incremental", "last_task", "forgetting", "seconds", "peak_memory",
    "trainable_parameters", "steps",
)  # fmt: skip
ENVIRONMENT = ("python", "torch", "timm", "device_name")
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run of a grid; its labels say where its result belongs."""

    labels: Mapping[str, str | int | float]
    recipe: Recipe

    def __str__(self) -> str:
        return " ".join(str(value) for value in self.labels.values())


def run_cell(cell: Cell, runs: Path) -> Row:
    """Train what is left of a cell's run; its labels with its metrics, or with why it failed."""
    gc.collect()  # the memory of a cell is its own
    try:
        folder = start_run(cell.recipe, runs)
        metrics = train(folder)
    except Interrupted:
        raise
    except Exception as error:  # whatever it is, the other cells go on
        name = "" if isinstance(error, ZofcError) else f"{type(error).__name__}: "
        return {**cell.labels, "failed": f"{name}{error}"}
    made_with = folder.read_json("environment.json")
    return {
        **cell.labels,
        **{key: metrics[key] for key in KEPT},
        "environment": {key: made_with[key] for key in ENVIRONMENT},
        "backbone": made_with["backbone"]["checksum"],
        "run": folder.path.name,
    }


def run_grid(cells: Sequence[Cell], runs: Path, workers: int = 1) -> Iterator[tuple[Cell, Row]]:
    """The cells' results as they come; with several workers, in processes that share the cores."""
    if workers == 1:
        with remembered_sources():
            for cell in cells:
                yield cell, run_cell(cell, runs)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    asks, asking = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, _begin_worker, (asks,))
    with asking, stop_signals() as asked:
        try:
            given = {
                pool.submit(_run_in_worker, Cell(cell.labels, _with_threads(cell.recipe, threads)), runs): cell
                for cell in cells
            }
            left = set(given)
            while left:
                done, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    yield given[future], future.result()
                if asked.stop:
                    raise Interrupted("stopped and saved; the same command goes on from there")
        finally:
            asking.close()  # those at work save first, no other begins
            pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(asks: Connection) -> None:
    """A worker stops, as a signal would make it, when the other end of `asks` is closed or its process gone. A
    terminal's own signal reaches that process alone: a worker that got both would not wait to save."""
    os.setpgrp()
    remember_sources()
    threading.Thread(target=_stop_when_closed, args=(asks,), daemon=True).start()


def _stop_when_closed(asks: Connection) -> None:
    asks.poll(None)
    _stopping.set()
    os.kill(os.getpid(), signal.SIGTERM)


_stopping = threading.Event()


def _run_in_worker(cell: Cell, runs: Path) -> Row:
    if _stopping.is_set():  # a pool hands out one cell more than it can take back
        raise Interrupted("not begun")
    try:
        return run_cell(cell, runs)
    except Interrupted:
        parent = multiprocessing.parent_process()
        if parent is None or not parent.is_alive():  # nobody is left who would end this process
            os._exit(1)
        raise


def _with_threads(recipe: Recipe, threads: int) -> Recipe:
    """How many threads a run has is no part of what it is; a recipe that says so keeps its own number."""
    settings = recipe.training
    if settings.threads is not None:
        return recipe
    return recipe.model_copy(update={"training": settings.model_copy(update={"threads": threads})})


def collect(
    cells: Sequence[Cell],
    runs: Path,
    out: Path,
    about: Mapping[str, Any],
    workers: int = 1,
    tell: Callable[[str], None] = print,
) -> list[Row]:
    """Run a grid and keep its rows, in the order of the cells, in the file `out`, written anew after each. A row that
    is there already, of a run of the same recipe, is kept."""
    known = _rows_by_run(out)
    names = [folder_for(cell.recipe, runs).name for cell in cells]
    found = {number: {**known[name], **cells[number].labels} for number, name in enumerate(names) if name in known}
    order = {id(cell): number for number, cell in enumerate(cells)}
    for cell, row in run_grid([cell for cell in cells if order[id(cell)] not in found], runs, workers):
        found[order[id(cell)]] = row
        rows = [found[number] for number in sorted(found)]
        write_whole(out, json.dumps({**about, "rows": rows}, indent=1) + "\n")
        tell(f"[{len(found)}/{len(cells)}] {cell}: {told(row)}")
    return [found[number] for number in sorted(found)]


def _rows_by_run(out: Path) -> dict[str, Row]:
    rows = json.loads(out.read_text())["rows"] if out.is_file() else []
    return {row["run"]: row for row in rows if "failed" not in row}


def told(row: Row) -> str:
    """A row in a few words."""
    if "failed" in row:
        return f"failed: {row['failed']}"
    forgotten = "" if row["forgetting"] is None else f", forgetting {row['forgetting']:.1f}"
    return f"{row['all_classes']:.1f} % of all classes{forgotten}"

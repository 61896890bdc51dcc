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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zofc.errors import Interrupted, ZofcError
from zofc.recipe import Recipe
from zofc.training.folder import write_whole
from zofc.training.runs import start_run, train

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
        for cell in cells:
            yield cell, run_cell(cell, runs)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        given = {
            pool.submit(run_cell, Cell(cell.labels, _with_threads(cell.recipe, threads)), runs): cell for cell in cells
        }
        try:
            for done in as_completed(given):
                yield given[done], done.result()
        except BaseException:  # a terminal asks every process to stop: those at work save first, no other begins
            pool.shutdown(wait=True, cancel_futures=True)
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
    """Run a grid and keep its rows, in the order of the cells, in the file `out`, written anew after each."""
    found: dict[int, Row] = {}
    order = {id(cell): number for number, cell in enumerate(cells)}
    for cell, row in run_grid(cells, runs, workers):
        found[order[id(cell)]] = row
        rows = [found[number] for number in sorted(found)]
        write_whole(out, json.dumps({**about, "rows": rows}, indent=1) + "\n")
        tell(f"[{len(found)}/{len(cells)}] {cell}: {told(row)}")
    return [found[number] for number in sorted(found)]


def told(row: Row) -> str:
    """A row in a few words."""
    if "failed" in row:
        return f"failed: {row['failed']}"
    forgotten = "" if row["forgetting"] is None else f", forgetting {row['forgetting']:.1f}"
    return f"{row['all_classes']:.1f} % of all classes{forgotten}"

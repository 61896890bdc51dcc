"""Where the cells of a grid run: in processes of this machine, or on a cluster."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from zofc.data.source import remembered_sources
from zofc.errors import RecipeError
from zofc.recipe import Recipe, change_recipe
from zofc.studies.cells import Cell, run_cell
from zofc.studies.jobs import CellRow
from zofc.studies.pool import Killed, in_processes


class Place(AbstractContextManager["Place"], ABC):
    """Runs cells. A grid enters it once, gives it cells that do not need each other, and leaves it."""

    def __exit__(self, *error: object) -> None:
        """Give back what was taken to run cells."""
        return

    @abstractmethod
    def run(self, cells: Sequence[Cell], runs: Path, alone: bool) -> Iterator[tuple[Cell, CellRow]]:
        """The rows of unfinished cells in order of completion; their results are kept below `runs`, where those that
        they need are. With `alone`, nothing else runs beside a cell. Raises `Interrupted` when the user stops it."""


def get_place(on: str, workers: int | None, notice: Callable[[str], None] = print) -> Place:
    """The place that `--on` names, for at most so many cells at a time."""
    if on == "local":
        return LocalPool(workers or 1)
    if on == "ray" or on.startswith("ray://"):
        from zofc.studies.ray_cluster import RayCluster

        return RayCluster(None if on == "ray" else on, workers, notice)
    raise RecipeError(f"--on: unknown place '{on}'; local, ray, or the address of a cluster: ray://HOST:PORT")


class LocalPool(Place):
    """Processes of this machine, which share its cores and GPUs; a single worker is this process."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def run(self, cells: Sequence[Cell], runs: Path, alone: bool) -> Iterator[tuple[Cell, CellRow]]:
        """Several workers take the longest cells first."""
        if alone or self.workers == 1:
            with remembered_sources():
                for cell in cells:
                    yield cell, run_cell(cell, runs)
            return
        ordered = longest_first(cells)
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        shared = [replace(cell, recipe=with_threads(cell.recipe, threads)) for cell in ordered]
        for number, row in in_processes(partial(run_cell, runs=runs), shared, self.workers, take_device):
            cell = ordered[number]
            yield cell, cell.failed(str(row)) if isinstance(row, Killed) else row


HERE = LocalPool()


def longest_first(cells: Sequence[Cell]) -> list[Cell]:
    """So that no long cell is left to one worker at the end."""
    with remembered_sources():
        return sorted(cells, key=Cell.passes, reverse=True)


def take_device(seat: int) -> None:
    """Give each worker a GPU of its own as `cuda`, in turn, where there are several; `cuda:1` stays that one."""
    if (count := torch.cuda.device_count()) > 1:
        torch.cuda.set_device(seat % count)


def with_threads(recipe: Recipe, threads: int) -> Recipe:
    """The number of threads is no part of a run's identity; a recipe that sets it keeps its own."""
    return recipe if recipe.training.threads else change_recipe(recipe, f"training.threads={threads}")

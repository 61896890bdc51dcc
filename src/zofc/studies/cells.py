"""The cells of a grid: a recipe with labels and a job, which is to train it by default.

The name of a cell's result follows from recipe and job, so finished cells are found again wherever they were run.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zofc.errors import Interrupted, ZofcError
from zofc.methods import complete_recipe
from zofc.recipe import Recipe
from zofc.studies.jobs import TRAIN, CellRow, Job
from zofc.studies.pool import STOPPED


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

    def path(self, runs: Path) -> Path:
        """The file or folder of its result."""
        return self.job.path(self.recipe, runs)

    def done(self, runs: Path) -> bool:
        """Whether its result is there; one that cannot be read is not, and doing the job reports why."""
        try:
            return self.job.done(self.recipe, runs)
        except ZofcError:
            return False

    def failed(self, why: str) -> CellRow:
        """The row of a cell that has no result."""
        return {**self.labels, "failed": why}

    def describe(self, row: CellRow) -> str:
        """A summary of its row."""
        return f"failed: {row['failed']}" if "failed" in row else self.job.describe(row)

    def passes(self) -> float:
        """An estimate of how long it takes; a cell that will fail takes no time."""
        try:
            return self.job.passes(self.recipe)
        except ZofcError:
            return 0.0


def run_cell(cell: Cell, runs: Path) -> CellRow:
    """Do what is left of a cell; its labels with the result, or with the reason why it failed."""
    gc.collect()  # the memory of a cell is its own
    try:
        return {**cell.labels, **cell.job.do(cell.recipe, runs)}
    except Interrupted:
        raise Interrupted(STOPPED) from None  # not by resuming this run, which is one of many
    except Exception as error:  # whatever it is, the other cells go on
        return cell.failed(explain_failure(error))


def explain_failure(error: Exception) -> str:
    """Why a cell failed; what is no error of the user has the name of its kind."""
    return str(error) if isinstance(error, ZofcError) else f"{type(error).__name__}: {error}"

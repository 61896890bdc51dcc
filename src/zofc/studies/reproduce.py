"""Running studies: their cells, each once however many studies share it, then their tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import zofc
from zofc.analysis.task_start import OnProgress
from zofc.errors import RecipeError
from zofc.report.grid import Grid
from zofc.runfolder import ready_to_write, write_atomic
from zofc.studies import export, figures, tables
from zofc.studies.catalogue import Study
from zofc.studies.cells import Cell
from zofc.studies.displays import DISPLAYS
from zofc.studies.grid import run_grid
from zofc.studies.jobs import TRAIN, CellRow
from zofc.studies.places import Place
from zofc.studies.scale import Scale
from zofc.studies.settings import SETTINGS


@dataclass(frozen=True)
class Plan:
    """Studies, and how their cells are run."""

    studies: tuple[Study, ...]
    scale: Scale
    seeds: tuple[int, ...]
    datasets: tuple[str, ...]
    changes: tuple[str, ...]
    runs: Path

    def cells(self, study: Study) -> list[Cell]:
        """Every recipe of a study under this plan."""
        return study.cells(self.scale, self.seeds, self.datasets, self.changes)

    @cached_property
    def distinct(self) -> dict[str, Cell]:
        """Every cell of the plan and those that it needs, once each, by the name of its result."""
        cells = [cell for study in self.studies for cell in self.cells(study)]
        cells = [one for cell in cells for one in (cell.needed, cell) if one is not None]
        cells.sort(key=lambda cell: not cell.recipe.training.keep_tasks)  # a run that keeps its tasks serves both
        found: dict[str, Cell] = {}
        for cell in cells:
            found.setdefault(cell.name(self.runs), cell)
        return found

    def open(self) -> dict[str, Cell]:
        """Those that are not finished."""
        return {name: cell for name, cell in self.distinct.items() if not cell.done(self.runs)}

    def standing(self) -> str:
        """How many of its cells are finished, in words."""
        words, cells = [], self.distinct.values()
        for what, trained in (("run", True), ("measurement", False)):
            finished = [cell.done(self.runs) for cell in cells if (cell.job == TRAIN) is trained]
            if finished:
                words.append(f"{len(finished)} {what}{'s' * (len(finished) != 1)}, {sum(finished)} finished")
        return "; ".join(words) or "no runs"


def studies_on(studies: Sequence[Study], datasets: Sequence[str]) -> tuple[Study, ...]:
    """Those of the studies that have a column on one of the data sets; there must be one."""
    found = tuple(study for study in studies if study.columns(datasets))
    if not found:
        (study,) = studies
        has = ", ".join(dict.fromkeys(SETTINGS[name].dataset for name in study.settings))
        raise RecipeError(f"--dataset: {study.name} has no column on {', '.join(datasets)}; it has {has}")
    return found


# -- running and writing ---------------------------------------------------------------------------------------------


def run_plan(plan: Plan, out: Path, place: Place, on_progress: OnProgress) -> dict[str, Grid]:
    """Do what is left of a plan, then write every study's outputs below `out`; returns its tables by name."""
    for folder, option in ((plan.runs, "--runs"), (output_folder(out, plan.scale), "--output")):
        ready_to_write(folder / "any", f"; choose another folder with {option}")  # else its work would be lost
    distinct = plan.distinct
    wanted = {study.name: [(cell, cell.name(plan.runs)) for cell in plan.cells(study)] for study in plan.studies}
    rows: dict[str, CellRow] = {}
    names = {id(cell): name for name, cell in distinct.items()}
    for cell, row in run_grid(list(distinct.values()), plan.runs, place):
        rows[names[id(cell)]] = row
        on_progress(f"[{len(rows)}/{len(distinct)}] {cell}: {cell.describe(row)}")
    grids = {}
    for study in plan.studies:
        own = [{**rows[name], **cell.labels} for cell, name in wanted[study.name]]
        grids[study.name] = _write(plan, study, own, output_folder(out, plan.scale) / study.name)
    return grids


def output_folder(out: Path, scale: Scale) -> Path:
    """Where the outputs of a scale lie."""
    return out / f"{scale.name}{'-fast' * scale.fast}"


def _write(plan: Plan, study: Study, rows: Sequence[CellRow], folder: Path) -> Grid:
    """Write a study's files, replacing earlier ones unless every run failed."""
    folder.mkdir(parents=True, exist_ok=True)
    scale, columns = plan.scale, study.columns(plan.datasets)
    grid = tables.table(study, scale, rows, columns, plan.changes)
    if all("failed" in row for row in rows) and (folder / "rows.json").exists():
        return grid
    about = {"study": study.name, "scale": scale.name, "fast": scale.fast, "says": scale.says, "zofc": zofc.__version__}
    write_atomic(folder / "rows.json", json.dumps({**about, "changes": plan.changes, "rows": rows}, indent=1) + "\n")
    write_atomic(folder / "table.md", grid.markdown())
    write_atomic(folder / "table.csv", export.as_csv(study.name, scale, tables.numbers(study, rows, columns)))
    write_atomic(folder / "table.tex", export.as_latex(grid, columns, DISPLAYS[study.shows].columns))
    charts = figures.draw_study(study, scale, rows, columns)
    drawn = [path for name, chart in charts for path in figures.save_chart(chart, folder / name)]
    for old in (path for form in figures.FORMATS for path in folder.glob(f"*.{form}")):
        if old not in drawn:
            old.unlink()
    return grid

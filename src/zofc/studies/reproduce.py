"""Running studies: their cells, each once however many studies share it, then their tables and figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from zofc.errors import ZofcError
from zofc.metrics import AccuracyMatrix
from zofc.model.backbone import load_backbone
from zofc.recipe import Recipe
from zofc.report.runs import read_runs
from zofc.report.tables import Grid
from zofc.studies import figures, tables
from zofc.studies.catalogue import Study
from zofc.studies.grid import Cell, Row, run_grid, told
from zofc.studies.scale import Scale
from zofc.training.device import pick_device
from zofc.training.folder import RunFolder, folder_for, write_whole
from zofc.training.resolve import build_stream

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is to be run for some studies."""

    studies: tuple[Study, ...]
    scale: Scale
    seeds: tuple[int, ...]
    datasets: tuple[str, ...]
    changes: tuple[str, ...]
    runs: Path

    def cells(self, study: Study) -> list[Cell]:
        return study.cells(self.scale, self.seeds, self.datasets, self.changes)

    def distinct(self) -> dict[str, Cell]:
        """Every run of the plan once, by the folder it has."""
        return {folder_for(cell.recipe, self.runs).name: cell for study in self.studies for cell in self.cells(study)}

    def open(self) -> dict[str, Cell]:
        """Those that are not finished."""
        return {name: cell for name, cell in self.distinct().items() if not _finished(self.runs / name)}


def _finished(path: Path) -> bool:
    return (path / "recipe.yaml").is_file() and RunFolder.existing(path).finished


# -- before: how long it will take -----------------------------------------------------------------------------------


def estimate(cells: Sequence[Cell]) -> tuple[float, list[str]]:
    """Seconds for one worker, from the passes that the cells make and the speed of one forward pass here; and what
    could not be estimated, each with its reason."""
    seconds, unknown = 0.0, []
    speeds: dict[tuple[str, str], float] = {}
    for cell in cells:
        key = (cell.recipe.backbone.name, cell.recipe.training.precision)
        try:
            if key not in speeds:
                speeds[key] = _images_per_second(cell.recipe)
            seconds += _passes(cell.recipe) / speeds[key]
        except ZofcError as error:
            unknown.append(f"{cell}: {error}")
    return seconds, unknown


def _passes(recipe: Recipe) -> float:
    """Forward passes of one image that a run makes, a backward pass counting as one."""
    stream = build_stream(recipe, lambda text: None)
    per_epoch = 0.0
    for plan in recipe.optimize.values():
        passes = 2.0 if plan.order == "first" else 2 * plan.queries
        per_epoch = max(per_epoch, plan.epochs * (1 + passes))
    trained = sum(len(stream.train_set(task)) for task in stream.tasks)
    tested = sum(len(test) for task in stream.tasks for _, test in stream.evaluation(task))
    return trained * (per_epoch + 1) + tested


def _images_per_second(recipe: Recipe, batch: int = 16) -> float:
    device = pick_device(recipe.training.device)
    backbone = load_backbone(recipe.backbone, recipe.seed, device)
    images = torch.zeros(batch, 3, backbone.image_size, backbone.image_size, device=device)
    with torch.no_grad():
        float(backbone.features(images).sum())
        clock = time.perf_counter()
        float(backbone.features(images).sum())
    return batch / (time.perf_counter() - clock)


# -- running, and what comes of it -----------------------------------------------------------------------------------


def run(plan: Plan, out: Path, workers: int, tell: Tell) -> dict[str, Grid]:
    """Run what is left of a plan, then write every study's outputs below `out`; its tables by name."""
    distinct = plan.distinct()
    rows: dict[str, Row] = {}
    names = {id(cell): name for name, cell in distinct.items()}
    for cell, row in run_grid(list(distinct.values()), plan.runs, workers):
        rows[names[id(cell)]] = row
        tell(f"[{len(rows)}/{len(distinct)}] {cell}: {told(row)}")
    return {study.name: _write(plan, study, rows, out / study.name) for study in plan.studies}


def _write(plan: Plan, study: Study, found: dict[str, Row], folder: Path) -> Grid:
    folder.mkdir(parents=True, exist_ok=True)
    columns = study.columns(plan.datasets)
    rows = [{**found[folder_for(cell.recipe, plan.runs).name], **cell.labels} for cell in plan.cells(study)]
    about = {"study": study.name, "scale": plan.scale.name, "says": plan.scale.says, "changes": plan.changes}
    write_whole(folder / "rows.json", json.dumps({**about, "rows": rows}, indent=1) + "\n")
    grid = tables.table(study, plan.scale, rows, columns)
    write_whole(folder / "table.md", grid.markdown())
    write_whole(folder / "table.csv", tables.as_csv(grid))
    write_whole(folder / "table.tex", tables.as_latex(grid))
    for setting in columns:
        drawing = _drawing(plan, study, [row for row in rows if row["setting"] == setting], setting)
        if drawing is not None and drawing.series:
            figures.save(drawing, folder / setting)
    return grid


def _drawing(plan: Plan, study: Study, rows: Sequence[Row], setting: str) -> figures.Drawing | None:
    title = f"{study.title} ({setting}, scale {plan.scale.name})"
    if study.shows == "trade-off":
        return figures.trade_off(title, rows)
    if study.shows != "curves":
        return None
    matrices: dict[str, list[AccuracyMatrix]] = {}
    for row in rows:
        if "failed" not in row:
            (record,) = read_runs([plan.runs / row["run"]])
            if record.matrix is not None:
                matrices.setdefault(row["line"], []).append(record.matrix)
    return figures.curves(title, matrices)

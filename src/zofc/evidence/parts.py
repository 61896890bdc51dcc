"""Grids of results on one backbone: the parts of `lines.PARTS`, trained with searched rates, stopped and continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zofc.evidence.lines import LINES, GridPart, line_recipe
from zofc.evidence.rates import SearchedRates, best_rates, rates_of
from zofc.evidence.rows import RowTable, accuracy_cells, add_rows, result_rows
from zofc.report.grid import Grid
from zofc.studies.cells import Cell
from zofc.studies.grid import collect
from zofc.studies.jobs import CellRow
from zofc.studies.places import HERE, Place


def part_cells(
    part: GridPart, names: Sequence[str], seeds: Sequence[int], changes: Sequence[str], known: SearchedRates | None
) -> list[Cell]:
    """A cell for each seed, setting and line, so that whole seeds come first; without `known` the recipes' rates."""
    cells = []
    for seed in seeds:
        for setting in part.settings:
            for name in names:
                rates = {} if known is None else rates_of(name, known)
                recipe = line_recipe(LINES[name], setting, seed, rates, [*part.changes, *changes])
                cells.append(
                    Cell({"line": LINES[name].title, "setting": part.label(setting), "seed": seed}, recipe, part.work)
                )
    return cells


def run_part(
    part: GridPart,
    names: Sequence[str],
    seeds: Sequence[int],
    changes: Sequence[str],
    rates: Path | None,
    out: Path,
    runs: Path,
    place: Place = HERE,
) -> Grid:
    """Train what is left of a part and keep its rows in `out`; the table of all that the file has."""
    known = None if rates is None else best_rates(result_rows(rates))
    cells = part_cells(part, names or part.lines, seeds, changes, known)
    collect(cells, runs, out, {"title": part.title, "changes": [*part.changes, *changes]}, place)
    return part_table(result_rows(out))


def part_table(rows: Sequence[CellRow]) -> Grid:
    """All classes and forgetting of each line in each setting, mean ± standard deviation over seeds. Of rows with the
    same line, setting and seed, which differ in their rates, the first is the latest."""
    table: RowTable = {}
    add_rows(table, rows)
    settings, titles = (list(dict.fromkeys(row[key] for row in rows)) for key in ("setting", "line"))
    body = [
        (title, *(cell for setting in settings for cell in accuracy_cells(table, title, setting))) for title in titles
    ]
    headers = ("line", *(f"{name}: {what}" for name in settings for what in ("all classes %", "forgetting")))
    failures = tuple(f"{row['line']}, {row['setting']}, seed {row['seed']} failed: {row['failed']}" for row in rows
                     if "failed" in row)  # fmt: skip
    return Grid(headers, tuple(body), warnings=failures)

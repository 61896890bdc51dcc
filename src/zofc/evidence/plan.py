"""Planning a session with a GPU: the cells that a command would still train, with an estimate of their time, and the
commands of all that is missing, what is worth most first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zofc.data.source import remembered_sources
from zofc.errors import ZofcError
from zofc.evidence.lines import LINES, PARTS, GridPart
from zofc.evidence.parts import part_cells
from zofc.evidence.rates import SearchedRates, best_rates, scan_cells
from zofc.evidence.rows import EARLIER, result_rows
from zofc.report.grid import Grid
from zofc.studies.cells import Cell
from zofc.units import NONE

GRID_SEEDS = (1993, 1994, 1995)
_OTHERS = ("lae", "l2p", "coda", "inflora")
ORDER: tuple[tuple[str, tuple[str, ...]], ...] = (  # of what is missing: a part and lines of it
    ("e", tuple(f"{name}-fo" for name in _OTHERS)),
    ("d", ("zo-ridge", "zo-ridge-64")),
    ("e", (*(f"{name}-zo" for name in _OTHERS), "ease-zo")),
    ("e", tuple(f"{name}-hybrid" for name in _OTHERS)),
    ("g", PARTS["g"].lines),
    ("b", PARTS["b"].lines),
    ("c", PARTS["c"].lines),
    ("d", PARTS["d"].lines),
    ("e-released", PARTS["e-released"].lines),
)


# -- cells of a command ----------------------------------------------------------------------------------------------


def searched_cells(
    names: Sequence[str], rates: Sequence[float], seeds: Sequence[int], changes: Sequence[str], out: Path
) -> list[Cell]:
    """The cells of a search. A classifier whose own search is missing has the recipe's rate, which takes as long."""
    known = best_rates(result_rows(out)) if out.is_file() else {}
    return scan_cells([name for name in names if LINES[name].scan], rates, seeds, changes, known)


def planned_cells(
    part: GridPart, names: Sequence[str], seeds: Sequence[int], changes: Sequence[str], rates: Path | None
) -> list[Cell]:
    """The cells of a part; lines that were not searched yet have the recipe's rates, which take as long."""
    if rates is None:
        return part_cells(part, names or part.lines, seeds, changes, None)
    known = best_rates(result_rows(rates)) if rates.is_file() else {}
    lines = names or part.lines
    new = [name for name in lines if missing_searches(name, known)]
    ready = [name for name in lines if name not in new]
    return [*part_cells(part, ready, seeds, changes, known), *part_cells(part, new, seeds, changes, None)]


def plan_table(cells: Sequence[Cell], runs: Path, out: Path, speed: float, workers: int) -> Grid:
    """What is left of a grid, with an estimate of the seconds of each cell in a process of its own."""
    finished = {row.get("run") for row in result_rows(out)} if out.is_file() else set()
    body, total, unknown = [], 0.0, dict[str, None]()
    with remembered_sources():
        left = [cell for cell in cells if cell.name(runs) not in finished and not cell.done(runs)]
        for cell in left:
            try:
                seconds = _passes(cell, runs) / speed
            except ZofcError as error:
                unknown[str(error)] = None
                body.append((str(cell), NONE))
            else:
                total += seconds
                body.append((str(cell), f"{seconds:.0f}"))
    note = (
        f"{len(left)} of {len(cells)} cells are left: about {total:.0f} s in one process at {speed:g} passes of an "
        f"image a second, {total / workers:.0f} s with --workers {workers}."
    )
    return Grid(("cell", "seconds"), tuple(body), notes=(note,), warnings=tuple(unknown))


def _passes(cell: Cell, runs: Path) -> float:
    """Of a cell and of the run that it measures, if that must be trained first."""
    first = cell.needed
    before = first.job.passes(first.recipe) if first is not None and not first.done(runs) else 0.0
    return before + cell.job.passes(cell.recipe)


# -- commands --------------------------------------------------------------------------------------------------------


def missing_searches(name: str, known: SearchedRates) -> list[str]:
    """The lines that must be searched before this one can be trained."""
    line = LINES[name]
    needed = dict.fromkeys((*([line.head_of] if line.head_of else []), line.rates_of or name))
    return [other for other in needed if LINES[other].scan and LINES[other].title not in known]


def missing_lines(part: GridPart, names: Sequence[str], out: Path) -> list[str]:
    """Lines of a part that have no row of the present recipe in some setting with some seed."""
    rows = result_rows(out) if out.is_file() else []
    made = {(row["line"], row["setting"], row["seed"]) for row in rows if not {"failed", EARLIER} & {*row}}
    wanted = [(part.label(setting), seed) for setting in part.settings for seed in GRID_SEEDS]
    return [name for name in names if any((LINES[name].title, *place) not in made for place in wanted)]


def missing_commands(folder: Path, searched: SearchedRates) -> Iterator[list[str]]:
    """The words of every search and grid that would complete the results of a folder, in order; without changes."""
    known, asked = dict(searched), set[tuple[str, str]]()
    for name, lines in ORDER:
        part = PARTS[name]
        missing = [line for line in missing_lines(part, lines, folder / f"{name}.json") if (name, line) not in asked]
        search = list(dict.fromkeys(other for line in missing for other in missing_searches(line, known)))
        known |= {LINES[other].title: {} for other in search}
        asked |= {(name, line) for line in missing}
        if search:
            yield ["rates", "--lines", ",".join(search)]
        if missing:
            chosen = [] if missing == [*part.lines] else ["--lines", ",".join(missing)]
            yield ["grid", "--part", name, *chosen]

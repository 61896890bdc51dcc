"""The studies: a table for each setting, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from claims.lines import TABLES
from page.files import Result, drawn
from page.words import prose, table
from zofc.report.grid import Grid
from zofc.studies import costs, tables
from zofc.studies.settings import OURS

SAID_ELSEWHERE = (
    "Scale ",
    "In brackets",
    "Changed in every recipe",
    *(f"{name}: " for name in OURS),
)  # notes that are said once
METRICS = (
    "**avg** is the accuracy on all classes seen so far, mean over the points in time after each task; **last** the "
    "accuracy on all classes at the end; **fgt** how far old tasks fell from their best accuracy, mean over them. The "
    "paper's tables hold these, though its appendix A defines avg and last over tasks. In brackets, what the paper "
    "prints at its own scale. In tables and figures ± is a standard deviation over seeds."
)
BILLION = 1e9


def studies(results: Sequence[Result]) -> str:
    return "\n\n".join(["## The studies", prose(METRICS), *(_study(result, results) for result in results)])


def _study(result: Result, results: Sequence[Result]) -> str:
    parts = [f"### {result.study.title} (`{result.study.name}`)"]
    elsewhere = _shown_elsewhere(result, results)
    if elsewhere:
        parts.append(f"The numbers are those of {' and '.join(elsewhere)}.")
    else:
        parts += _tables(result)
    parts += [f"![{drawing.title}](figures/{name})" for name, drawing in drawn(result)]
    return "\n\n".join(parts)


def _shown_elsewhere(result: Result, results: Sequence[Result]) -> list[str]:
    """Of a study that is a figure, and has no measures of its own: the tables that have all its runs, or nothing."""
    if result.study.shows not in ("curves", "trade-off") or result.study.shows in tables.MEASURES:
        return []
    mine = {row["run"] for row in result.good}
    runs = {
        other.study.name: {row["run"] for row in other.good} & mine for other in results if other.study.name in TABLES
    }
    return [name for name, shared in runs.items() if shared] if mine == set().union(*runs.values()) else []


def _tables(result: Result) -> Iterator[str]:
    whole = tables.table(result.study, result.scale, result.rows, result.settings, result.changes)
    tabled = _differences(result)
    shown = costs.difference_notes(result.study, result.rows) if tabled else []
    notes = [note for note in whole.notes if not note.startswith(SAID_ELSEWHERE) and note not in shown]
    notes += _failures(result)
    if len(result.seeds) > 1:
        notes.insert(0, f"{len(result.seeds)} seeds; mean ± standard deviation.")
    for setting in result.settings:
        rows = [row for row in result.rows if row["setting"] == setting]
        grid = tables.table(result.study, result.scale, rows, [setting])
        if grid.rows:
            heads = (setting, *(head.removeprefix(f"{setting}: ") for head in grid.headers[1:]))
            yield Grid(heads, grid.rows).markdown().strip()
    if notes:
        below = Grid(("",), (), notes=tuple(notes)).markdown().strip().split("\n\n")[1:]
        yield "\n\n".join(map(prose, below))
    yield from tabled


def _differences(result: Result) -> list[str]:
    """Of operations: what the formulas have more than was executed, reason by line."""
    found = costs.differences(result.study, result.rows) if result.study.shows == "operations" else {}
    if not found:
        return []
    lines = [line.title for line in result.study.lines if any(line.title in sizes for sizes in found.values())]
    rows = [(why, *(_billions(sizes.get(line)) for line in lines)) for why, sizes in found.items()]
    sums = [sum(sizes.get(line, 0) for sizes in found.values()) for line in lines]
    body = [*rows, ("In all.", *map(_billions, sums))]
    return [
        "The formula less what was executed, in 10⁹ multiply–adds, by reason:",
        table(("", *lines), body),
    ]


def _billions(size: int | None) -> str:
    if size is None:
        return ""
    shown = f"{size / BILLION:+.2f}".replace("-", "−")
    return "0.00" if shown[1:] == "0.00" else shown


def _failures(result: Result) -> list[str]:
    """Cells without a number: by setting and reason, which lines."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        if "failed" in row:
            lines = found.setdefault((row["setting"], row["failed"]), [])
            lines += [row["line"]] * (row["line"] not in lines)
    return [f"No numbers on {setting} for {'; '.join(lines)}. {why}" for (setting, why), lines in found.items()]

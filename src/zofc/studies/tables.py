"""A study's rows as a table: mean ± standard deviation over seeds, ours beside the paper's."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from zofc.report.tables import NONE, Grid
from zofc.studies.catalogue import Line, Study
from zofc.studies.scale import Scale

SPELLED = {  # metric, and what the paper's tables call it
    "average_incremental": "average over time % (avg)",
    "all_classes": "all classes % (last)",
    "forgetting": "forgetting, points (fgt)",
}
GIB = 2**30


def table(study: Study, scale: Scale, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Grid:
    """Ours and, where it prints a number, the paper's, for each line of a study."""
    measures = {"gigabytes": "peak memory of a step, GiB"} if study.shows == "memory" else SPELLED
    heads = [f"{setting}: {words}" for setting in columns for words in measures.values()]
    body = []
    for line in study.lines:
        cells = []
        for setting in columns:
            mine = [row for row in rows if (row["line"], row["setting"]) == (line.title, setting)]
            cells += [_cell(study, line, setting, metric, mine) for metric in measures]
        if any(cell != NONE for cell in cells):
            body.append((line.title, *cells))
    seeds = len({row["seed"] for row in rows})
    notes = [f"Scale {scale.name}: {scale.says}. {seeds} seed{'s' * (seeds != 1)}; mean ± standard deviation."]
    if study.table is not None:
        notes.append("In brackets, what the paper prints at its own scale.")
    failed = [row for row in rows if "failed" in row]
    warnings = [f"{row['line']}, {row['setting']}, seed {row['seed']} failed: {row['failed']}" for row in failed]
    return Grid(("", *heads), tuple(body), study.title, tuple(notes), tuple(warnings))


def _cell(study: Study, line: Line, setting: str, metric: str, rows: Sequence[Mapping[str, Any]]) -> str:
    values = [_value(row, metric) for row in rows if "failed" not in row]
    found = [value for value in values if value is not None]
    shown = NONE
    if found:
        digits = 3 if metric == "gigabytes" else 2
        shown = f"{statistics.mean(found):.{digits}f}"
        if len(found) > 1:
            shown += f" ± {statistics.stdev(found):.{digits}f}"
    where = "batch48" if metric == "gigabytes" else setting
    printed = study.printed(line, where).get(metric)
    return shown if printed is None else f"{shown} [{printed:g}]"


def _value(row: Mapping[str, Any], metric: str) -> float | None:
    if metric == "gigabytes":
        return row["peak_memory"] / GIB if row["steps"] else None
    value: float | None = row[metric]
    return value


def as_csv(grid: Grid) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(grid.headers)
    writer.writerows(grid.rows)
    return text.getvalue()


LATEX = {"±": r"$\pm$", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "—": "--", "−": "$-$"}


def as_latex(grid: Grid) -> str:
    """A booktabs table with its title and notes as the caption."""
    lines = [_latex_row(grid.headers), r"\midrule", *(_latex_row(row) for row in grid.rows)]
    caption = _latex(" ".join([f"{grid.title}.", *grid.notes]))
    body = "\n".join(lines)
    return (
        "\\begin{table}\n\\centering\n\\begin{tabular}{l" + "r" * (len(grid.headers) - 1) + "}\n\\toprule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\caption{{{caption}}}\n\\end{{table}}\n"
    )


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)

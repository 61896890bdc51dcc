"""A study's rows as a table: mean ± standard deviation over seeds, ours beside the paper's."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from zofc.report.tables import NONE, Grid
from zofc.studies import costs
from zofc.studies.catalogue import Line, Study
from zofc.studies.costs import Rows, Values
from zofc.studies.scale import Scale
from zofc.studies.settings import SETTINGS

SPELLED = {  # metric, and what the paper's tables call it
    "average_incremental": "average over time % (avg)",
    "all_classes": "all classes % (last)",
    "forgetting": "forgetting, points (fgt)",
}
MEMORY = {"gigabytes": "peak memory of a step, GiB"}
SETS = {"peft": "over the adapter alone", "peft+head": "over adapter and head"}
FLATNESS = {
    f"{which} {over}": f"Φ {words}, {when}"
    for over, words in SETS.items()
    for which, when in (("last", "after the last task"), ("mean", "mean over tasks"))
}
MEASURES = {
    "memory": MEMORY,
    "runtime": {**MEMORY, "seconds": "steps of an epoch, s"},
    "operations": costs.OPERATIONS,
    "flatness": FLATNESS,
}
EXECUTED, FORMULA = ": executed", ": formula"  # what the titles of the rows of operations end with
DIGITS = {"gigabytes": ".3f", "seconds": ".3f"} | dict.fromkeys(costs.OPERATIONS, ".4g")


def table(study: Study, scale: Scale, rows: Rows, columns: Sequence[str], changes: Sequence[str] = ()) -> Grid:
    """Ours and, where it prints a number, the paper's, for each line of a study."""
    measures = MEASURES.get(study.shows, SPELLED)
    heads = [f"{setting}: {words}" for setting in columns for words in measures.values()]
    body = []
    for line in study.lines:
        for way, values in _ways(study, rows).items():
            cells = []
            for setting in columns:
                mine = [row for row in rows if (row["line"], row["setting"]) == (line.title, setting)]
                found = [values(line, row) for row in mine if "failed" not in row]
                printed = {} if way == EXECUTED else study.printed(line, setting)
                cells += [_cell(metric, found, printed.get(metric)) for metric in measures]
            if any(cell != NONE for cell in cells):
                body.append((line.title + way, *cells))
    seeds = len({row["seed"] for row in rows})
    notes = [f"Scale {scale.name}: {scale.says}. {seeds} seed{'s' * (seeds != 1)}; mean ± standard deviation."]
    if any("[" in cell for _, *cells in body for cell in cells):
        notes.append("In brackets, what the paper prints at its own scale.")
    notes += _notes(study, scale, rows)
    notes += [f"{name}: {SETTINGS[name].says}." for name in columns if SETTINGS[name].says]
    notes += [
        f"Not on {name}: {'; '.join(lines)} ({why})." for name in columns for why, lines in study.left_out(name).items()
    ]
    if changes:
        notes.append(f"Changed in every recipe: {' '.join(changes)}.")
    return Grid(("", *heads), tuple(body), study.title, tuple(notes), tuple(_failures(rows)))


def _failures(rows: Rows, most: int = 5) -> list[str]:
    """Each reason, with the cells that failed for it."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if "failed" in row:
            where = f"{row['line']}, {row['setting']}, seed {row['seed']}"
            reasons.setdefault(row["failed"], []).append(where)
    found = []
    for why, cells in reasons.items():
        others = f" and {len(cells) - most} others" if len(cells) > most + 1 else ""
        found.append(f"{'; '.join(cells[: most if others else None])}{others} failed: {why}")
    return found


def _ways(study: Study, rows: Rows) -> dict[str, Values]:
    """How the numbers of a line are read from its rows. Each way has a row of the table, whose title ends with it."""
    if study.shows == "operations":
        counts: dict[str, Values] = {EXECUTED: costs.executed, FORMULA: costs.by_formula}
        return {way: costs.beside_first_order(count, study, rows) for way, count in counts.items()}
    ways: dict[str, Values] = {
        "memory": costs.most_memory, "runtime": costs.time_and_memory, "flatness": _flatness,
    }  # fmt: skip
    return {"": ways.get(study.shows, _metrics)}


def _metrics(line: Line, row: Mapping[str, Any]) -> dict[str, float]:
    """Of a trained run; those that it does not have are left out."""
    return {metric: row[metric] for metric in SPELLED if row[metric] is not None}


def _flatness(line: Line, row: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for over, scores in row["flatness"].items():
        if scores:
            values = [score for _, score in scores]
            found |= {f"last {over}": values[-1], f"mean {over}": statistics.fmean(values)}
    return found


def _cell(metric: str, rows: Sequence[Mapping[str, float]], printed: float | None) -> str:
    found = [row[metric] for row in rows if metric in row]
    mean, exact = statistics.mean(found or [0]), metric in costs.OPERATIONS and len(set(found)) == 1
    form = f".{_places(mean)}f" if metric in FLATNESS else DIGITS.get(metric, ".2f")
    shown = format(mean, form) if found else NONE
    if len(found) > 1 and not exact:
        shown += f" ± {statistics.stdev(found):{form}}"
    return shown if printed is None else f"{shown} [{printed:g}]"


def _places(value: float, significant: int = 3) -> int:
    """Behind the point, so that a value of any size has as many significant digits."""
    return max(0, significant - 1 - math.floor(math.log10(abs(value)))) if value else significant


def _notes(study: Study, scale: Scale, rows: Rows) -> list[str]:
    """What must be known of these numbers."""
    if study.shows == "memory":
        return costs.memory_notes(rows)
    if study.shows == "runtime":
        return costs.runtime_notes(rows)
    if study.shows == "operations":
        return costs.operation_notes(study, rows)
    if study.shows == "flatness":
        asked = scale.flatness
        images = f"{asked.images} {asked.split} images a class" if asked.images else f"all {asked.split} images"
        return [
            f"Φ = (L(θ⁺) − L(θ)) / (ρ L(θ)) of the old tasks' loss, at θ⁺ = θ + ρ g/‖g‖ with g its gradient and ρ = "
            f"{asked.rho:g}: lower is flatter. On {images}, softmax over a task's own rows, in float64. The task just "
            "learned is no old one, so it begins after the second. The paper prints curves, and no numbers."
        ]
    return []


def as_csv(grid: Grid) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(grid.headers)
    writer.writerows(grid.rows)
    return text.getvalue()


LATEX = {
    "±": r"$\pm$", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "—": "--", "–": "--", "−": "$-$", "·": r"$\cdot$",
    "Φ": r"$\Phi$", "θ": r"$\theta$", "ρ": r"$\rho$", "⁺": "$^+$", "‖": r"$\|$",
}  # fmt: skip


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

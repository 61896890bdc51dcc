"""Figures of runs as files (PNG, SVG): accuracy over tasks, forgetting by task, the accuracy matrix.

The page draws the same lines in its own way (`interactive`). A run looks the same in every figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zofc.metrics import AccuracyMatrix
from zofc.report.labels import named
from zofc.runfolder import Run
from zofc.runfolder.run import Series

if TYPE_CHECKING:  # imported where it draws: tables and the page start without it
    from matplotlib.figure import Figure

# Okabe & Ito's palette, which colour-blind readers tell apart, without its black and yellow: those vanish on
# a dark or a white page. On white the other hues are darkened until they stand out 3 : 1.
DARK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
COLOURS = ("#0060A8", "#C28400", "#008A63", "#C2639A", "#3496D4", "#B84A00")
DASHES = (("-", "solid"), ("--", "dash"), (":", "dot"), ("-.", "dashdot"))  # matplotlib, plotly
MARKERS = (("o", "circle"), ("s", "square"), ("D", "diamond"), ("X", "x"), ("P", "cross"))

LEARNED = "tasks learned (number)"
SEEN = "accuracy on all classes seen (%)"
TASK = "task no."
FORGETTING = "forgetting (percentage points)"
CLASSES_OF = "classes of task no."
AFTER = "after task no."


@dataclass(frozen=True)
class Line:
    """One run in a figure: where it goes and how it looks."""

    run: int  # position among the runs, which fixes the look
    label: str
    x: tuple[int, ...]
    y: tuple[float | None, ...]
    spread: tuple[float | None, ...] = ()  # standard deviations, of means
    level: bool = False  # one value for the whole width: a joint run

    @property
    def colour(self) -> str:
        return colour(self.run)

    @property
    def dash(self) -> tuple[str, str]:
        return DASHES[self.run // len(COLOURS) % len(DASHES)]

    @property
    def marker(self) -> tuple[str, str]:
        return MARKERS[self.run % len(MARKERS)]


def colour(run: int) -> str:
    """The colour of the run at this position, the same in every figure."""
    return COLOURS[run % len(COLOURS)]


def accuracy_lines(records: Sequence[Run]) -> list[Line]:
    """Accuracy on all classes seen after each task. A joint run is one level, as wide as the longest
    other."""
    longest = max((len(record.matrix.last_row) for record in records if record.matrix), default=1)
    return [
        Line(number, label, (1, longest), record.accuracies.values * 2, record.accuracies.spreads * 2, level=True)
        if record.matrix.joint
        else _line(number, label, record.accuracies)
        for number, label, record in named(records)
        if record.matrix
    ]


def forgetting_lines(records: Sequence[Run]) -> list[Line]:
    """Forgetting of each old task's classes; runs without one (a single task, a joint run) are left out."""
    return [
        _line(number, label, record.drops)
        for number, label, record in named(records)
        if any(value is not None for value in record.drops.values)
    ]


def _line(number: int, label: str, series: Series) -> Line:
    return Line(number, label, tuple(range(1, len(series.values) + 1)), series.values, series.spreads)


# -- matplotlib ----------------------------------------------------------------------------------------------


def accuracy_over_tasks(records: Sequence[Run]) -> Figure:
    figure = _draw(accuracy_lines(records), LEARNED, SEEN)
    figure.axes[0].set_ylim(top=min(100.0, figure.axes[0].get_ylim()[1]))
    return figure


def forgetting_by_task(records: Sequence[Run]) -> Figure:
    figure = _draw(forgetting_lines(records), TASK, FORGETTING)
    figure.axes[0].set_ylim(bottom=0)
    return figure


def accuracy_heatmap(record: Run) -> Figure:
    """The accuracy matrix: a row after each task, a column for each task's classes."""
    from matplotlib.figure import Figure

    matrix = record.matrix
    if matrix is None:
        raise ValueError(f"{record.path}: no task has been evaluated yet, so there is no accuracy matrix to draw")
    values = square(matrix)
    rows, columns = len(values), len(values[0])
    size = max(4.0, 0.45 * columns + 2)
    figure = Figure(figsize=(size, max(2.4, size * rows / columns * 0.85)), layout="constrained")
    axes = figure.subplots()
    cells = [[float("nan") if value is None else value for value in row] for row in values]
    image = axes.imshow(cells, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    axes.set_xticks(range(columns), [str(number) for number in range(1, columns + 1)])
    axes.set_yticks(range(rows), after_tasks(matrix))
    axes.set(xlabel=CLASSES_OF, ylabel=AFTER)
    axes.set_title(record.title, parse_math=False, wrap=True)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value is not None:  # cividis is dark below and light above
                shade = "white" if value < 60 else "black"
                axes.text(j, i, f"{value:.0f}", ha="center", va="center", color=shade, fontsize=8)
    figure.colorbar(image, ax=axes, label="accuracy (%)")
    return figure


def save_figures(records: Sequence[Run], folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Every figure of these runs as files; figures without anything to show are left out."""
    figures = {}
    if accuracy_lines(records):
        figures["accuracy-over-tasks"] = accuracy_over_tasks(records)
    if forgetting_lines(records):
        figures["forgetting-by-task"] = forgetting_by_task(records)
    for number, record in enumerate(records, 1):
        if record.matrix:
            figures[f"matrix-{number}" if len(records) > 1 else "matrix"] = accuracy_heatmap(record)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        for form in formats:
            path = folder / f"{name}.{form}"
            part = path.with_name(f".{path.name}.part")
            figure.savefig(part, format=form, dpi=200, metadata={"Date": None} if form == "svg" else None)
            paths.append(part.replace(path))
    return paths


def _draw(lines: Sequence[Line], x: str, y: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    drawn = []
    for line in lines:
        values, spreads = ([float("nan") if one is None else one for one in some] for some in (line.y, line.spread))
        dash = "--" if line.level else line.dash[0]
        marker = "" if line.level else line.marker[0]
        drawn += axes.plot(
            line.x, values, color=line.colour, linestyle=dash, marker=marker, markersize=4, clip_on=False
        )
        if spreads:
            axes.errorbar(line.x, values, spreads, fmt="none", ecolor=line.colour, elinewidth=1, capsize=2)
    axes.set(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if lines:
        names = [line.label for line in lines]
        legend = figure.legend(drawn, names, loc="outside lower center", ncols=1 if len(lines) < 3 else 2, fontsize=8)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a dollar sign in a title is a dollar sign
    return figure


def after_tasks(matrix: AccuracyMatrix) -> list[str]:
    """What the rows of a matrix are called: after which task they were measured."""
    return ["all"] if matrix.joint else [str(number) for number in range(1, len(matrix.rows) + 1)]


def square(matrix: AccuracyMatrix) -> list[list[float | None]]:
    """The rows, filled up to the width of the last."""
    width = len(matrix.last_row)
    return [[*row, *[None] * (width - len(row))] for row in matrix.rows]

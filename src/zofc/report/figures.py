"""Figures of runs: accuracy over tasks, forgetting by task, the accuracy matrix.

Each is drawn twice from the same lines: with matplotlib for files (PNG, SVG), with plotly for the page. A run
looks the same in every figure. Plotly figures carry no background and no text colour: the page gives them its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from zofc.metrics import AccuracyMatrix, all_classes_over_time, forgetting_by_group
from zofc.report.runs import RunRecord, labels

if TYPE_CHECKING:  # imported where it draws: tables and the page start without it
    from matplotlib.figure import Figure

# Okabe & Ito's palette, which colour-blind readers tell apart, without its black and yellow: those vanish on
# a dark or a white page.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
DASHES = (("-", "solid"), ("--", "dash"), (":", "dot"), ("-.", "dashdot"))  # matplotlib, plotly
MARKERS = (("o", "circle"), ("s", "square"), ("D", "diamond"), ("X", "x"), ("P", "cross"))

LEARNED = "tasks learned"
SEEN = "accuracy on all classes seen (%)"
TASK = "task"
FORGETTING = "forgetting (percentage points)"


@dataclass(frozen=True)
class Line:
    """One run in a figure: where it goes and how it looks."""

    run: int  # position among the runs, which fixes the look
    label: str
    x: tuple[int, ...]
    y: tuple[float | None, ...]
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


def accuracy_lines(records: Sequence[RunRecord]) -> list[Line]:
    """Accuracy on all classes seen after each task. A joint run is one level, as wide as the longest
    other."""
    longest = max((len(record.matrix.last_row) for record in records if record.matrix), default=1)
    return [
        Line(number, label, (1, longest), (all_classes_over_time(matrix)[0],) * 2, level=True)
        if matrix.joint
        else Line(number, label, tuple(range(1, len(matrix.rows) + 1)), all_classes_over_time(matrix))
        for number, label, matrix in _measured(records)
    ]


def forgetting_lines(records: Sequence[RunRecord]) -> list[Line]:
    """Forgetting of each old task's classes; runs without one (a single task, a joint run) are left out."""
    drops = [(number, label, forgetting_by_group(matrix)) for number, label, matrix in _measured(records)]
    return [
        Line(number, label, tuple(range(1, len(values) + 1)), values)
        for number, label, values in drops
        if any(value is not None for value in values)
    ]


def _measured(records: Sequence[RunRecord]) -> Iterator[tuple[int, str, AccuracyMatrix]]:
    for number, (label, record) in enumerate(zip(labels(records), records, strict=True)):
        if record.matrix:
            yield number, label, record.matrix


# -- matplotlib ----------------------------------------------------------------------------------------------


def accuracy_over_tasks(records: Sequence[RunRecord]) -> Figure:
    figure = _draw(accuracy_lines(records), LEARNED, SEEN)
    figure.axes[0].set_ylim(top=min(100.0, figure.axes[0].get_ylim()[1]))
    return figure


def forgetting_by_task(records: Sequence[RunRecord]) -> Figure:
    figure = _draw(forgetting_lines(records), TASK, FORGETTING)
    figure.axes[0].set_ylim(bottom=0)
    return figure


def accuracy_heatmap(record: RunRecord) -> Figure:
    """The accuracy matrix: a row after each task, a column for each task's classes."""
    from matplotlib.figure import Figure

    matrix = record.matrix
    if matrix is None:
        raise ValueError(f"{record.folder}: no task has been evaluated yet, so there is no accuracy matrix to draw")
    values = _square(matrix)
    rows, columns = len(values), len(values[0])
    size = max(4.0, 0.45 * columns + 2)
    figure = Figure(figsize=(size, max(2.4, size * rows / columns * 0.85)), layout="constrained")
    axes = figure.subplots()
    cells = [[float("nan") if value is None else value for value in row] for row in values]
    image = axes.imshow(cells, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    axes.set_xticks(range(columns), [str(number) for number in range(1, columns + 1)])
    axes.set_yticks(range(rows), ["joint"] if matrix.joint else [str(number) for number in range(1, rows + 1)])
    axes.set(xlabel="classes of task", ylabel="" if matrix.joint else "after task")
    axes.set_title(record.title, parse_math=False, wrap=True)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value is not None:  # cividis is dark below and light above
                shade = "white" if value < 60 else "black"
                axes.text(j, i, f"{value:.0f}", ha="center", va="center", color=shade, fontsize=8)
    figure.colorbar(image, ax=axes, label="accuracy (%)")
    return figure


def save_figures(
    records: Sequence[RunRecord], folder: str | Path, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
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
        values = [float("nan") if value is None else value for value in line.y]
        dash = "--" if line.level else line.dash[0]
        marker = "" if line.level else line.marker[0]
        drawn += axes.plot(
            line.x, values, color=line.colour, linestyle=dash, marker=marker, markersize=4, clip_on=False
        )
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


def _square(matrix: AccuracyMatrix) -> list[list[float | None]]:
    """The rows, filled up to the width of the last."""
    width = len(matrix.last_row)
    return [[*row, *[None] * (width - len(row))] for row in matrix.rows]


# -- plotly --------------------------------------------------------------------------------------------------


def plotly_accuracy_over_tasks(records: Sequence[RunRecord]) -> go.Figure:
    return _plotly(accuracy_lines(records), LEARNED, SEEN, "after task %{x}: %{y:.2f} %", {})


def plotly_forgetting_by_task(records: Sequence[RunRecord]) -> go.Figure:
    axis = {"rangemode": "tozero"}
    return _plotly(forgetting_lines(records), TASK, FORGETTING, "task %{x}: %{y:.2f} points", axis)


def plotly_accuracy_heatmap(record: RunRecord) -> go.Figure:
    """The accuracy matrix; pointing at a cell names its classes."""
    matrix = record.matrix
    if matrix is None:
        raise ValueError(f"{record.folder}: no task has been evaluated yet, so there is no accuracy matrix to draw")
    values = _square(matrix)
    rows, columns = len(values), len(values[0])
    after = ["joint"] if matrix.joint else [str(number) for number in range(1, rows + 1)]
    heat = go.Heatmap(
        z=values,
        x=[str(number) for number in range(1, columns + 1)],
        y=after,
        text=[[_classes(matrix, j) for j in range(columns)] for _ in range(rows)],
        hovertemplate="after task %{y}, classes of task %{x}: %{z:.2f} %<br>%{text}<extra></extra>",
        texttemplate="%{z:.0f}" if columns <= 24 else None,
        hoverongaps=False,
        colorscale="Cividis",
        zmin=0,
        zmax=100,
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": "accuracy (%)", "side": "right"}, "thickness": 12},
    )
    layout = {
        "template": "none",
        "margin": {"l": 55, "r": 10, "t": 10, "b": 45},
        "height": max(170, min(620, 90 + 26 * rows)),
        "xaxis": {
            "title": {"text": "classes of task"},
            "type": "category",
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": "" if matrix.joint else "after task"},
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
    }
    return go.Figure(heat, layout)


def _plotly(lines: Sequence[Line], x: str, y: str, hover: str, yaxis: dict[str, Any]) -> go.Figure:
    traces = [
        go.Scatter(
            x=line.x,
            y=line.y,
            name=escape(line.label, quote=False),  # plotly reads tags in names
            mode="lines" if line.level else "lines+markers",
            line={"color": line.colour, "dash": "dash" if line.level else line.dash[1], "width": 2},
            marker={"symbol": line.marker[1], "size": 8},
            cliponaxis=False,
            hovertemplate=hover if not line.level else "all tasks at once: %{y:.2f} %",
            meta={"run": line.run},
        )
        for line in lines
    ]
    layout = {
        "template": "none",
        "margin": {"l": 55, "r": 10, "t": 10, "b": 45},
        "height": 380,
        "showlegend": False,
        "hovermode": "closest",
        "xaxis": {"title": {"text": x}, "tickformat": "d", "zeroline": False, **_whole_ticks(lines)},
        "yaxis": {"title": {"text": y}, "zeroline": False, **yaxis},
    }
    return go.Figure(traces, layout)


def _whole_ticks(lines: Sequence[Line]) -> dict[str, Any]:
    """Ticks at whole tasks only: at most ten, the first at 1."""
    last = max((line.x[-1] for line in lines), default=1)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, last) if last / step <= 10)
    return {"tick0": 0 if step > 1 else 1, "dtick": step, "range": [1 - 0.03 * last, last + 0.03 * last]}


def _classes(matrix: AccuracyMatrix, group: int, most: int = 8) -> str:
    """The class names of a group, a few of them where there are many."""
    names = matrix.groups[group] if matrix.groups else ()
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return escape(", ".join(names[:most]) + more, quote=False)

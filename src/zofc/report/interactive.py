"""The figures of the page, as plotly.js reads them.

A trace carries the position of its run (`meta`) and the words that pointing at it shows (`customdata`); the page
gives it the colours of its mode, takes it away when its run is switched off, and shows the words as plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sequential

from zofc.metrics import AccuracyMatrix
from zofc.report.figures import (
    AFTER,
    CLASSES_OF,
    FORGETTING,
    LEARNED,
    SEEN,
    TASK,
    Line,
    accuracy_lines,
    after_tasks,
    forgetting_lines,
    square,
)
from zofc.report.labels import named
from zofc.runfolder import Run
from zofc.units import MIB, format_bytes

MEMORY = "peak memory of a training step (MiB)"
OVERALL = "accuracy on all classes (%)"
SCALE = tuple(sequential.Cividis)  # of the heat maps: readable without colour vision, and in both modes
QUANTITIES = {  # of flatness: a heading, an axis
    "phi": ("Score Φ", "relative rise of the loss, Φ (per unit of ρ)"),
    "lambda_max": ("Largest eigenvalue of the Hessian", "largest eigenvalue (nats / parameter²)"),
    "trace": ("Trace of the Hessian", "trace (nats / parameter²)"),
}


@dataclass(frozen=True)
class Plot:
    """A figure with a heading, for what there may be any number of."""

    name: str
    heading: str
    figure: go.Figure


def accuracy_over_tasks(records: Sequence[Run]) -> go.Figure:
    return _over_tasks(accuracy_lines(records), LEARNED, SEEN, "after task {x}: {y} %", {})


def forgetting_by_task(records: Sequence[Run]) -> go.Figure:
    return _over_tasks(forgetting_lines(records), TASK, FORGETTING, "task {x}: {y} points", {"rangemode": "tozero"})


def accuracy_heatmap(record: Run, run: int = 0) -> go.Figure:
    """The accuracy matrix; pointing at a cell names its classes."""
    matrix = record.matrix
    if matrix is None:
        raise ValueError(f"{record.path}: no task has been evaluated yet, so there is no accuracy matrix to draw")
    values, after = square(matrix), after_tasks(matrix)
    columns = [str(number) for number in range(1, len(values[0]) + 1)]
    words = [
        ["" if value is None else _cell(matrix, row, column, value) for column, value in enumerate(cells)]
        for row, cells in zip(after, values, strict=True)
    ]
    heat = go.Heatmap(
        z=values,
        x=columns,
        y=after,
        customdata=words,
        hoverinfo="none",
        hoverongaps=False,
        colorscale=list(SCALE),
        showscale=False,  # one scale stands above all of them
        zmin=0,
        zmax=100,
        xgap=1,
        ygap=1,
        meta={"run": run},
    )
    axis = {"type": "category", "showgrid": False, "zeroline": False, "range": [-0.5, len(columns) - 0.5]}
    layout = _layout(CLASSES_OF, AFTER, axis, {**axis, "range": [len(values) - 0.5, -0.5]})
    return go.Figure(
        [heat, *_numbers(values, columns, after, run)], {**layout, "height": max(170, min(560, 80 + 24 * len(values)))}
    )


def _numbers(
    values: Sequence[Sequence[float | None]], columns: Sequence[str], after: Sequence[str], run: int
) -> Iterator[go.Scatter]:
    """The numbers in the cells: white on the dark half of the scale, black on the light one."""
    for colour, dark in (("#fff", True), ("#000", False)):
        cells = [
            (column, row, f"{value:.0f}")
            for row, line in zip(after, values, strict=True)
            for column, value in zip(columns, line, strict=True)
            if value is not None and (value < 47) == dark
        ]
        if cells:
            x, y, text = zip(*cells, strict=True)
            meta = {"run": run, "columns": len(columns)}
            font = {"color": colour}
            yield go.Scatter(x=x, y=y, text=text, mode="text", textfont=font, hoverinfo="skip", meta=meta)


def memory_and_accuracy(records: Sequence[Run]) -> go.Figure:
    """One point a run, which the page names. Runs that lack either number are left out."""
    traces = []
    for number, label, record in named(records):
        size, overall = record.peak_memory, record.scores["all_classes"]
        if size is None or overall is None:
            continue
        spread = record.spreads.get("all_classes")
        words = f"{_number(overall, spread)} % at {format_bytes(size)}"
        line = Line(
            number, label + " (unfinished)" * (not record.finished), (), (), () if spread is None else (spread,)
        )
        traces.append(_trace(line, [size / MIB], [overall], [words], mode="markers", marker_size=12))
    return go.Figure(traces, _layout(MEMORY, OVERALL, {"zeroline": False}, {"zeroline": False}))


def flatness_plots(records: Sequence[Run]) -> list[Plot]:
    """A figure for each quantity and each group of parameters that any run was measured over."""
    groups = dict.fromkeys(row.over for record in records for row in record.flatness)
    found: list[Plot] = []
    for over in groups:
        for quantity, (heading, axis) in QUANTITIES.items():
            lines = list(_flatness_lines(records, over, quantity))
            if lines:
                values = [value for line in lines for value in line.y if value is not None]
                wide = min(values) > 0 and max(values) > 100 * min(values)
                form = {"type": "log", "dtick": 1} if wide else {}
                figure = _over_tasks(lines, LEARNED, axis, "after task {x}: {y}", form, ".4g")
                found.append(Plot(f"flatness-{len(found)}", f"{heading}, over {over}", figure))
    return found


def _flatness_lines(records: Sequence[Run], over: str, quantity: str) -> Iterator[Line]:
    for number, label, record in named(records):
        rows = {row.task: row for row in record.flatness if row.over == over and quantity in row.values}
        if rows:
            tasks = sorted(rows)
            values = tuple(rows[task].values[quantity] for task in tasks)
            spreads = tuple(rows[task].spreads.get(quantity) for task in tasks)
            known = any(spread is not None for spread in spreads)
            yield Line(number, label, tuple(tasks), values, spreads if known else ())


def _over_tasks(
    lines: Sequence[Line], x: str, y: str, words: str, yaxis: dict[str, Any], digits: str = ".2f"
) -> go.Figure:
    traces = []
    for line in lines:
        text = "all tasks at once: {y} %" if line.level else words
        pointed = [
            "" if b is None else text.format(x=a, y=_number(b, spread, digits))
            for a, b, spread in zip(line.x, line.y, line.spread or [None] * len(line.y), strict=True)
        ]
        traces.append(_trace(line, line.x, line.y, pointed, mode="lines" if line.level else "lines+markers"))
    xaxis = {"tickformat": "d", "zeroline": False}
    return go.Figure(traces, _layout(x, y, xaxis, {"zeroline": False, **yaxis}))


def _trace(
    line: Line, x: Sequence[float], y: Sequence[float | None], words: Sequence[str], mode: str, marker_size: int = 8
) -> go.Scatter:
    return go.Scatter(
        x=list(x),
        y=list(y),
        error_y={"array": list(line.spread), "thickness": 1, "width": 3} if line.spread else None,
        customdata=list(words),
        mode=mode,
        line={"color": line.colour, "dash": "dash" if line.level else line.dash[1], "width": 2},
        marker={"symbol": line.marker[1], "size": marker_size, "color": line.colour},
        cliponaxis=False,
        hoverinfo="none",
        meta={"run": line.run, "label": line.label, "level": line.level},
    )


def _number(value: float, spread: float | None, digits: str = ".2f") -> str:
    return f"{value:{digits}}" + ("" if spread is None else f" ± {spread:{digits}}")


def _layout(x: str, y: str, xaxis: dict[str, Any], yaxis: dict[str, Any]) -> dict[str, Any]:
    return {
        "template": "none",
        "margin": {"l": 60, "r": 14, "t": 10, "b": 48},
        "height": 380,
        "showlegend": False,
        "hovermode": "closest",
        "xaxis": {"title": {"text": x}, **xaxis},
        "yaxis": {"title": {"text": y}, **yaxis},
    }


def _cell(matrix: AccuracyMatrix, after: str, group: int, accuracy: float, most: int = 8) -> str:
    """What a cell of the matrix says, with the class names of its group, a few of them where there are many."""
    names = matrix.groups[group] if matrix.groups else ()
    more = f" and {len(names) - most} more" if len(names) > most else ""
    classes = ": " + ", ".join(names[:most]) + more if names else ""
    learned = "all tasks at once" if matrix.joint else f"after task {after}"
    return f"{accuracy:.2f} % {learned}, on the classes of task {group + 1}{classes}"

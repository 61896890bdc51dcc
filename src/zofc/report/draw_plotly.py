"""Panels as interactive figures, drawn by plotly: for the report page, or each as a page of its own.

On the report page a trace carries the position of its run (`meta`) and the words that pointing at it shows
(`customdata`); the page's script gives it the colours of its mode, removes it when its run is switched off, and shows
the words as plain text.

Pages carry plotly.js's basic bundle (lines, points and bars: a quarter of the whole, MIT licence), which is the file
`plotly-basic.min.js` of the npm package `plotly.js-basic-dist-min`; the Python package has only the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sequential

from zofc.report.drawing import Axis, Chart, Curve, HeatMap, wrap_title

HEAT_COLOURS = tuple(sequential.Cividis)  # readable without colour vision, and in both modes of the page
CELL = 0.96  # side of a cell of a heat map, where 1 would leave no gap
LABEL_HEIGHT = 14  # pixels


def plotly_script() -> str:
    """plotly.js for traces of the types scatter, bar and pie."""
    return files("zofc.report").joinpath("plotly-basic.min.js").read_text("utf-8")


def page_figure(panel: Chart | HeatMap) -> go.Figure:
    """A panel for the report page, which adds its own legend, tooltips and colours."""
    if isinstance(panel, HeatMap):
        return _heat_map(panel)
    traces = [_trace(curve, panel.joined, hoverinfo="none", cliponaxis=False) for curve in panel.curves]
    return go.Figure(traces, _page_layout(_axis(panel.x), _axis(panel.y)))


def own_page(chart: Chart) -> str:
    """A chart as a page of its own, with legend, title and plotly's tooltips; it needs no network."""
    figure = go.Figure([_trace(curve, chart.joined, name=curve.label) for curve in chart.curves if not curve.level])
    for curve in chart.curves:
        if curve.level:
            line = {"color": curve.style.colour, "dash": curve.style.dash}
            figure.add_hline(y=curve.y[0], line=line, annotation_text=curve.label, showlegend=False)
    ticks = {"tickvals": chart.ticks} if chart.x.whole else {}
    figure.update_layout(
        title="<br>".join(wrap_title(chart.title)), template="plotly_white", xaxis={**_axis(chart.x), **ticks},
        yaxis=_axis(chart.y),
    )  # fmt: skip
    head, end, body = str(figure.to_html(include_plotlyjs=False)).partition("</head>")
    return f"{head}<script>{plotly_script()}</script>{end}{body}"


def _trace(curve: Curve, joined: bool, **options: Any) -> go.Scatter:
    style = curve.style
    error = {"array": list(curve.spread), "thickness": 1, "width": 3} if curve.spread else None
    return go.Scatter(
        x=list(curve.x),
        y=list(curve.y),
        error_y=error,
        customdata=list(curve.words) or None,
        mode="lines" if curve.level else "lines+markers" if joined else "markers",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"symbol": style.marker + "-open" * style.hollow, "size": 8 if joined else 12, "color": style.colour},
        meta={"run": curve.number, "label": curve.label, "level": curve.level},
        **options,
    )


def _heat_map(heat: HeatMap) -> go.Figure:
    """Cells as bars of height one, each on a base of its own, with numbers over them."""
    rows, margin = len(heat.rows), 58  # above and below the cells
    height = max(170, min(560, 80 + 24 * rows))
    step = next(step for step in (1, 2, 5, 10, 20, 50, rows) if step * (height - margin) / rows >= LABEL_HEIGHT)
    places = range(0, rows, step)
    ticks = {"tickvals": list(places), "ticktext": [heat.rows[row] for row in places]}
    names = {"type": "category", "categoryarray": heat.columns, "range": [-0.5, len(heat.columns) - 0.5]}
    across, up = {**_axis(heat.x), **names}, {**_axis(heat.y), **ticks, "range": [rows - 0.5, -0.5]}
    layout = _page_layout({**across, "showgrid": False}, {**up, "showgrid": False})
    return go.Figure([_cells(heat), *_cell_numbers(heat)], {**layout, "height": height, "barmode": "overlay"})


def _cells(heat: HeatMap) -> go.Bar:
    cells = [
        (column, row - CELL / 2, value, heat.words[row][number] if heat.words else "")
        for row, values in enumerate(heat.values)
        for number, (column, value) in enumerate(zip(heat.columns, values, strict=True))
        if value is not None
    ]
    columns, bases, values, words = zip(*cells, strict=True) if cells else ((), (), (), ())
    scale = {"colorscale": list(HEAT_COLOURS), "cmin": 0, "cmax": 100}
    return go.Bar(
        x=columns,
        y=[CELL] * len(cells),
        base=bases,
        width=CELL,
        customdata=words,
        hoverinfo="none",
        marker={"color": values, **scale, "line": {"width": 0}},
        meta={"run": heat.number},
    )


def _cell_numbers(heat: HeatMap) -> Iterator[go.Scatter]:
    """The numbers in the cells: white on the dark half of the scale, black on the light one."""
    for colour, dark in (("#fff", True), ("#000", False)):
        cells = [
            (column, row, f"{value:.0f}")
            for row, values in enumerate(heat.values)
            for column, value in zip(heat.columns, values, strict=True)
            if value is not None and (value < 47) == dark
        ]
        if cells:
            x, y, text = zip(*cells, strict=True)
            meta = {"run": heat.number, "columns": len(heat.columns)}
            font = {"color": colour}
            yield go.Scatter(x=x, y=y, text=text, mode="text", textfont=font, hoverinfo="skip", meta=meta)


def _axis(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"title": {"text": axis.label}, "zeroline": False}
    if axis.whole:
        found["tickformat"] = "d"
    if axis.log:
        found |= {"type": "log", "dtick": 1}
    if axis.lowest == 0:
        found["rangemode"] = "tozero"
    return found


def _page_layout(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    frame = {"template": "none", "margin": {"l": 60, "r": 14, "t": 10, "b": 48}, "height": 380}
    return {**frame, "showlegend": False, "hovermode": "closest", "xaxis": x, "yaxis": y}

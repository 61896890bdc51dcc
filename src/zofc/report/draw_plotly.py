"""Panels as interactive figures, drawn by plotly: for the report page, or each as a page of its own.

On the report page a trace carries the position of its run (`meta`) and the words that pointing at it shows
(`customdata`); the page's script gives it the colours of its mode, removes it when its run is switched off, and shows
the words as plain text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sequential

from zofc.report.drawing import Axis, Chart, Curve, HeatMap, wrap_title

HEAT_COLOURS = tuple(sequential.Cividis)  # readable without colour vision, and in both modes of the page


def page_figure(panel: Chart | HeatMap) -> go.Figure:
    """A panel for the report page, which adds its own legend, tooltips and colours."""
    if isinstance(panel, HeatMap):
        axis = {"type": "category", "showgrid": False}
        across, up = {"range": [-0.5, len(panel.columns) - 0.5]}, {"range": [len(panel.rows) - 0.5, -0.5]}
        layout = _page_layout({**_axis(panel.x), **axis, **across}, {**_axis(panel.y), **axis, **up})
        height = max(170, min(560, 80 + 24 * len(panel.rows)))
        return go.Figure([_heat(panel), *_cell_numbers(panel)], {**layout, "height": height})
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
    return str(figure.to_html(include_plotlyjs=True))


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


def _heat(heat: HeatMap) -> go.Heatmap:
    return go.Heatmap(
        z=heat.values,
        x=heat.columns,
        y=heat.rows,
        customdata=heat.words,
        hoverinfo="none",
        hoverongaps=False,
        colorscale=list(HEAT_COLOURS),
        showscale=False,  # one scale stands above all of them
        zmin=0,
        zmax=100,
        xgap=1,
        ygap=1,
        meta={"run": heat.number},
    )


def _cell_numbers(heat: HeatMap) -> Iterator[go.Scatter]:
    """The numbers in the cells: white on the dark half of the scale, black on the light one."""
    for colour, dark in (("#fff", True), ("#000", False)):
        cells = [
            (column, row, f"{value:.0f}")
            for row, values in zip(heat.rows, heat.values, strict=True)
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

"""Panels as pictures (PNG, SVG, PDF), drawn by matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from zofc.report.drawing import COLOURS, INK, Chart, Curve, Surface, wrap_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Panel = Chart | Surface
DASH_PATTERNS = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKER_SIZES = {"circle": ("o", 5), "square": ("s", 5), "diamond": ("D", 4.5), "x": ("X", 6.5), "cross": ("P", 6.5)}
LONG_LABEL = 24  # letters beyond which a legend stands below the axes rather than beside them


def picture(chart: Chart) -> Figure:
    """A chart as a figure of its own, with its legend outside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    lines = draw_panel(figure.subplots(), chart)
    if lines:
        labels = [str(line.get_label()) for line in lines]
        place, columns = ("right upper", 1)
        if max(map(len, labels)) > LONG_LABEL:
            place, columns = ("lower center", 1 if len(labels) < 3 else 2)
        legend = figure.legend(lines, labels, loc=f"outside {place}", ncols=columns, fontsize=8, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a dollar sign in a title is a dollar sign
    return figure


def pictures(panels: Sequence[Panel], title: str) -> Figure:
    """Panels side by side under one title, each chart with its legend inside."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 4.8), layout="constrained")
    figure.suptitle(title, parse_math=False)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if lines := draw_panel(axes, panel):
            axes.legend(handles=lines, frameon=False)
    return figure


def encode(figure: Figure, form: str, dpi: int = 160) -> bytes:
    """The content of a file in a format, the same each time: without the date."""
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(form)
    content = BytesIO()
    figure.savefig(content, format=form, dpi=dpi, metadata={dated: None} if dated else None)
    return content.getvalue()


def draw_panel(axes: Axes, panel: Panel) -> list[Line2D]:
    """Draw a panel into axes; returns the lines of its curves, for a legend."""
    axes.set(xlabel=panel.x.label, ylabel=panel.y.label)
    if isinstance(panel, Chart):
        return _draw_chart(axes, panel)
    _draw_surface(axes, panel)
    return []


def _draw_chart(axes: Axes, chart: Chart) -> list[Line2D]:
    lines = [_draw_curve(axes, curve, chart.joined) for curve in chart.curves]
    for name, x in (chart.places or {}).items():
        axes.axvline(x, color="0.6", linestyle=":", linewidth=1)
        axes.annotate(name, (x, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=9)
    if chart.x.whole:
        axes.set_xticks(chart.ticks)
    if chart.y.log:
        axes.set_yscale("log")
    axes.set_ylim(bottom=chart.y.lowest)
    if chart.y.highest is not None:
        axes.set_ylim(top=min(chart.y.highest, axes.get_ylim()[1]))
    if chart.title:
        axes.set_title("\n".join(wrap_title(chart.title)), fontsize=10, parse_math=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return lines


def _draw_curve(axes: Axes, curve: Curve, joined: bool) -> Line2D:
    style = curve.style
    values, spreads = ([float("nan") if one is None else one for one in some] for some in (curve.y, curve.spread))
    dash = DASH_PATTERNS[style.dash]
    if curve.level:
        return axes.axhline(values[0], color=style.colour, linestyle=dash, linewidth=1.3, label=curve.label)
    marker, size = MARKER_SIZES.get(style.marker, ("", 0))
    (line,) = axes.plot(
        curve.x, values, color=style.colour, marker=marker, markersize=size if joined else 1.3 * size,
        markeredgewidth=1, markerfacecolor="white" if style.hollow else style.colour,
        linestyle=dash if joined else "none", linewidth=1.3, label=curve.label, clip_on=False, zorder=3,
    )  # fmt: skip
    if spreads:
        axes.errorbar(curve.x, values, spreads, fmt="none", ecolor=style.colour, elinewidth=1, capsize=2)
    return line


def _draw_surface(axes: Axes, surface: Surface) -> None:
    levels = _levels([value for row in surface.values for value in row])
    filled = axes.contourf(surface.across, surface.up, surface.values, levels=levels, cmap="viridis_r")
    axes.contour(surface.across, surface.up, surface.values, levels=levels, colors="white", linewidths=0.4, alpha=0.7)
    if surface.path:
        axes.plot(*zip(*surface.path, strict=True), color=INK, marker=".", linewidth=1)
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
    for name, (x, y) in surface.marks.items():
        axes.plot(x, y, "o", color=COLOURS[5], markeredgecolor="white", markersize=8)
        axes.annotate(name, (x, y), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=9, bbox=box)
    axes.get_figure(root=True).colorbar(filled, ax=axes, label=surface.scale)  # type: ignore[union-attr]


def _levels(values: Sequence[float], count: int = 16) -> list[float]:
    """Contours that are denser near the minimum, where the differences of interest are small."""
    low, high = min(values), max(values)
    if high - low <= 1e-12 * max(abs(high), 1.0):
        high = low + 1e-6
    return [low + (high - low) * (step / (count - 1)) ** 2 for step in range(count)]

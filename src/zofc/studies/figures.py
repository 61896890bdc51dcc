"""A study's figures, as pictures (PNG, PDF) and as a page to hover over (HTML), drawn from the same series."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zofc.metrics import mean_and_spread

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

LOOKS = (  # colour, and marker of either library
    ("#0072b2", "o", "circle"), ("#d55e00", "s", "square"), ("#009e73", "^", "triangle-up"),
    ("#cc79a7", "D", "diamond"), ("#e69f00", "v", "triangle-down"), ("#56b4e9", "P", "cross"), ("#555555", "X", "x"),
    ("#8c564b", "*", "star"), ("#17becf", "<", "triangle-left"), ("#000000", "h", "hexagon"),
)  # fmt: skip
METHODS = (  # in the order of their looks, the same in every figure
    "SimpleCIL", "Learnable Cls.", "Adapter + Cls.", "LAE Adapter", "L2P", "CODA-Prompt", "APER Adapter", "EASE",
    "InfLoRA", "ZO-FC",
)  # fmt: skip
LARGER = {"*": 9.0, "P": 7.0, "X": 7.0, "D": 4.5}  # markers that would look smaller or larger than the others
LEVEL = "#777777"
FORMATS = ("png", "pdf", "html")
MOST_TICKS = 12
WIDEST = 68  # letters of a title in a line, which has the width of the axes


@dataclass(frozen=True)
class Series:
    """A method's points in a figure, the mean over seeds, and their standard deviation along y."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...]
    dashed: bool = False  # zeroth order


@dataclass(frozen=True)
class Drawing:
    """Series with the names and units of their axes."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    joined: bool = True  # by lines; else each is a point of its own
    levels: tuple[tuple[str, float], ...] = ()  # values of y without a place on x


def curves(title: str, rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Accuracy on all classes seen after each task, by method."""
    paths: dict[str, list[list[tuple[int, float | None]]]] = {}
    for row in rows:
        if "failed" not in row:
            paths.setdefault(row["line"], []).append(list(enumerate(row["over_time"], 1)))
    return Drawing(title, "tasks learned", "accuracy on all classes seen (%)", _over_tasks(paths))


def flatness(title: str, rows: Sequence[Mapping[str, Any]], over: str, rho: float) -> Drawing:
    """Φ of the old tasks' loss after each task, by method."""
    paths: dict[str, list[list[tuple[int, float]]]] = {}
    for row in rows:
        if "failed" not in row and row["flatness"].get(over):
            paths.setdefault(row["line"], []).append(row["flatness"][over])
    y = f"Φ of the old tasks' loss at ρ = {rho:g} (1 / distance)"
    return Drawing(title, "tasks learned", y, _over_tasks(paths))


def curvature(title: str, rows: Sequence[Mapping[str, Any]], over: str) -> Drawing:
    """The largest eigenvalue of the old tasks' Hessian, by method."""
    paths: dict[str, list[list[tuple[int, float]]]] = {}
    for row in rows:
        if "failed" not in row and (states := row["curvature"].get(over)):
            paths.setdefault(row["line"], []).append([(state["task"], state["largest"]) for state in states])
    y = "largest eigenvalue of the old tasks' Hessian (nats / distance²)"
    return Drawing(title, "tasks learned", y, _over_tasks(paths))


def _over_tasks(paths: Mapping[str, Sequence[Iterable[tuple[int, float | None]]]]) -> tuple[Series, ...]:
    """A series for each method, from what each of its seeds has after each task."""
    series = []
    for name, seeds in paths.items():
        found: dict[int, list[float]] = {}
        for task, value in (point for path in seeds for point in path):
            if value is not None:
                found.setdefault(task, []).append(value)
        y, spread = zip(*map(_summed_up, found.values()), strict=True) if found else ((), ())
        series.append(Series(name, tuple(found), y, spread, name.endswith(", ZO")))
    return tuple(series)


def _summed_up(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a few seeds; no spread of one."""
    mean, spread = mean_and_spread(values)
    assert mean is not None
    return mean, spread or 0.0


def trade_off(title: str, rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Peak memory of a step against the accuracy on all classes at the end: a point for each method, and a level for
    what trains nothing."""
    series, levels = [], []
    for name in dict.fromkeys(row["line"] for row in rows):
        mine = [row for row in rows if row["line"] == name and "failed" not in row]
        if not mine:
            continue
        accuracy, spread = _summed_up([row["all_classes"] for row in mine])
        if mine[0]["steps"]:
            memory, _ = _summed_up([row["peak_memory"] / 2**30 for row in mine])
            series.append(Series(name, (memory,), (accuracy,), (spread,), name.endswith(", ZO")))
        else:
            levels.append((f"{name} (no steps)", accuracy))
    x = "peak memory of a training step (GiB)"
    return Drawing(title, x, "accuracy on all classes at the end (%)", tuple(series), False, tuple(levels))


def save(drawing: Drawing, stem: Path) -> list[Path]:
    """The drawing in every format, each written to a temporary name and renamed."""
    paths = []
    for form in FORMATS:
        path = stem.with_name(f"{stem.name}.{form}")
        part = path.with_name(f".{path.name}.part")
        if form == "html":
            interactive(drawing).write_html(part, include_plotlyjs=True)
        else:
            picture(drawing).savefig(
                part, format=form, dpi=160, metadata={"CreationDate": None} if form == "pdf" else None
            )
        paths.append(part.replace(path))
    return paths


def looks(drawing: Drawing) -> list[tuple[str, str, str]]:
    """Of each series: both orders of a method share one, drawn solid and filled, or dashed and open; ZO-FC is black."""
    methods = [series.title.removesuffix(", FO").removesuffix(", ZO") for series in drawing.series]
    own = dict(zip(METHODS, LOOKS, strict=True))
    free = [look for method, look in own.items() if method not in (*methods, "ZO-FC")] or LOOKS
    others = [method for method in dict.fromkeys(methods) if method not in own]
    own |= {method: free[number % len(free)] for number, method in enumerate(others)}
    return [own[method] for method in methods]


def ticks(drawing: Drawing) -> list[float]:
    """Places on x of lines over tasks: all of a few; of many the first, the last, and some between."""
    places = sorted({x for series in drawing.series for x in series.x})
    if len(places) <= MOST_TICKS:
        return places
    step = 5 * -(-len(places) // (5 * MOST_TICKS))
    first, last = places[0], places[-1]
    return [first, *(x for x in places if not x % step and x - first > step / 2 and last - x > step / 2), last]


def evenly(title: str) -> list[str]:
    """A title in no more lines than it needs, and these about equally long."""
    lines = len(textwrap.wrap(title, WIDEST))
    return next(found for width in range(1, WIDEST + 1) if len(found := textwrap.wrap(title, width)) <= lines)


def picture(drawing: Drawing) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for series, (colour, marker, _) in zip(drawing.series, looks(drawing), strict=True):
        axes.errorbar(
            series.x, series.y, series.spread if any(series.spread) else None,
            color=colour, marker=marker, markersize=LARGER.get(marker, 5), markeredgewidth=1, capsize=2,
            markerfacecolor="white" if series.dashed else colour,
            linestyle=("--" if series.dashed else "-") if drawing.joined else "none", linewidth=1.3, label=series.title,
        )  # fmt: skip
    for title, value in drawing.levels:
        axes.axhline(value, color=LEVEL, linestyle=":", linewidth=1.3, label=title)
    if drawing.joined:
        axes.set_xticks(ticks(drawing))
    axes.set(xlabel=drawing.x, ylabel=drawing.y)
    axes.set_title("\n".join(evenly(drawing.title)), fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def interactive(drawing: Drawing) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    for series, (colour, _, symbol) in zip(drawing.series, looks(drawing), strict=True):
        error = {"type": "data", "array": series.spread, "thickness": 1} if any(series.spread) else None
        figure.add_scatter(
            x=series.x, y=series.y, name=series.title, error_y=error,
            mode="lines+markers" if drawing.joined else "markers",
            line={"color": colour, "dash": "dash" if series.dashed else "solid"},
            marker={"size": 7 if drawing.joined else 11, "symbol": symbol + "-open" * series.dashed},
        )  # fmt: skip
    for name, value in drawing.levels:
        figure.add_hline(y=value, line={"color": LEVEL, "dash": "dot"}, annotation_text=name, showlegend=False)
    title = "<br>".join(evenly(drawing.title))
    figure.update_layout(title=title, xaxis_title=drawing.x, yaxis_title=drawing.y, template="plotly_white")
    if drawing.joined:
        figure.update_xaxes(tickvals=ticks(drawing))
    return figure

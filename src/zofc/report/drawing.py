"""Figures described without the library that draws them, and the palette that all of them share.

A figure is one panel or several side by side. `draw_matplotlib` turns charts and surfaces into picture files,
`draw_plotly` turns charts and heat maps into interactive figures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Okabe & Ito's palette, which colour-blind readers tell apart, without its black and yellow, which vanish on a dark or
# a white page, and with a violet and a brown. On white the hues are darkened until they stand out 3 : 1.
DARK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#9F8AE0", "#B08463")
COLOURS = ("#0060A8", "#C28400", "#008A63", "#C2639A", "#3496D4", "#B84A00", "#6A4FB3", "#7A5230")
INK, GREY = "#000000", "#777777"
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "x", "cross")
MOST_TICKS = 12
TITLE_WIDTH = 68  # letters in a line of a title, which has the width of the axes


@dataclass(frozen=True)
class CurveStyle:
    """How a curve looks in every library."""

    colour: str
    dash: str = "solid"
    marker: str = "circle"
    hollow: bool = False

    @classmethod
    def of(cls, number: int) -> CurveStyle:
        """The style of the series at this position; a number has the same one in every figure."""
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        return cls(COLOURS[number % len(COLOURS)], dash, MARKERS[number % len(MARKERS)])


@dataclass(frozen=True)
class Curve:
    """A series of points."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    style: CurveStyle
    spread: tuple[float | None, ...] = ()  # standard deviations of y
    level: bool = False  # one value of y for the whole width
    words: tuple[str, ...] = ()  # what pointing at each point shows
    number: int = 0  # its run, on a page that switches runs on and off


@dataclass(frozen=True)
class Axis:
    """An axis of a panel."""

    label: str
    whole: bool = False  # numbers of tasks
    log: bool = False
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True)
class Chart:
    """Curves over a common x."""

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    title: str = ""
    joined: bool = True  # by lines; else each point stands for itself
    places: Mapping[str, float] | None = None  # values of x to mark, by name

    @property
    def ticks(self) -> list[float]:
        """All values of x if they are few; of many the first, the last and round ones between."""
        places = sorted({x for curve in self.curves if not curve.level for x in curve.x})
        if len(places) <= MOST_TICKS:
            return places
        step = 5 * -(-len(places) // (5 * MOST_TICKS))
        first, last = places[0], places[-1]
        return [first, *(x for x in places if not x % step and x - first > step / 2 and last - x > step / 2), last]


@dataclass(frozen=True)
class HeatMap:
    """Percentages in cells, None where there is no value."""

    x: Axis
    y: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    words: tuple[tuple[str, ...], ...] = ()  # what pointing at each cell shows
    number: int = 0  # its run


@dataclass(frozen=True)
class Surface:
    """A function of the plane, as contours."""

    x: Axis
    y: Axis
    across: Sequence[float]
    up: Sequence[float]
    values: Sequence[Sequence[float]]  # (up, across)
    scale: str  # what the colours stand for
    marks: Mapping[str, tuple[float, float]]
    path: Sequence[tuple[float, float]] = ()  # points that were passed one after another


def wrap_title(title: str) -> list[str]:
    """A title in no more lines than it needs, and these about equally long."""
    lines = len(textwrap.wrap(title, TITLE_WIDTH))
    return next(found for width in range(1, TITLE_WIDTH + 1) if len(found := textwrap.wrap(title, width)) <= lines)

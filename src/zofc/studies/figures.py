"""A study's figures: accuracy, flatness and curvature over tasks, and memory against accuracy, by method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from zofc.metrics import mean_and_spread
from zofc.report.draw_matplotlib import encode, picture
from zofc.report.drawing import GREY, INK, Axis, Chart, Curve, CurveStyle
from zofc.runfolder import write_atomic
from zofc.studies.jobs import CellRow
from zofc.units import GIB

METHOD_ORDER = (  # in the order of their styles, the same in every figure
    "SimpleCIL", "Learnable Cls.", "Adapter + Cls.", "LAE Adapter", "L2P", "CODA-Prompt", "APER Adapter", "EASE",
    "InfLoRA",
)  # fmt: skip
OURS = "ZO-FC"  # in black
FORMATS = ("png", "pdf", "html")
TASK_AXIS = Axis("tasks learned", whole=True)
TaskValues = Iterable[tuple[int, float | None]]  # after which task, and the value there


def accuracy_chart(title: str, rows: Sequence[CellRow]) -> Chart:
    """Accuracy on all classes seen after each task, by method."""
    y = Axis("accuracy on all classes seen (%)")
    return _over_tasks(title, y, rows, lambda row: enumerate(row["over_time"], 1))


def flatness_chart(title: str, rows: Sequence[CellRow], over: str, rho: float) -> Chart:
    """Φ of the old tasks' loss after each task, by method."""
    y = Axis(f"Φ of the old tasks' loss at ρ = {rho:g} (1 / distance)")
    return _over_tasks(title, y, rows, lambda row: row["flatness"].get(over) or ())


def curvature_chart(title: str, rows: Sequence[CellRow], over: str) -> Chart:
    """The largest eigenvalue of the old tasks' Hessian, by method."""
    y = Axis("largest eigenvalue of the old tasks' Hessian (nats / distance²)")
    return _over_tasks(
        title, y, rows, lambda row: [(state["task"], state["largest"]) for state in row["curvature"].get(over) or ()]
    )


def trade_off_chart(title: str, rows: Sequence[CellRow]) -> Chart:
    """Peak memory of a step against the accuracy on all classes at the end: a point for each method, and a level for
    what trains nothing."""
    points, levels = [], []
    for name, mine in _by_line(rows).items():
        value, spread = _mean([row["all_classes"] for row in mine])
        if mine[0]["steps"]:
            memory, _ = _mean([row["peak_memory"] / GIB for row in mine])
            points.append(Curve(name, (memory,), (value,), CurveStyle(INK), (spread,) if spread else ()))
        else:
            levels.append(Curve(f"{name} (no steps)", (), (value,), CurveStyle(GREY, "dot"), level=True))
    x, y = Axis("peak memory of a training step (GiB)"), Axis("accuracy on all classes at the end (%)")
    return Chart(x, y, (*levels, *_styled(points)), title, joined=False)


def save_chart(chart: Chart, stem: Path) -> list[Path]:
    """The chart in every format."""
    from zofc.report.draw_plotly import own_page

    paths = [stem.with_name(f"{stem.name}.{form}") for form in FORMATS]
    for path, form in zip(paths, FORMATS, strict=True):
        write_atomic(path, own_page(chart) if form == "html" else encode(picture(chart), form))
    return paths


def _over_tasks(title: str, y: Axis, rows: Sequence[CellRow], read: Callable[[CellRow], TaskValues]) -> Chart:
    """A curve for each method, the mean of its seeds after each task."""
    curves = []
    for name, mine in _by_line(rows).items():
        values: dict[int, list[float]] = {}
        for task, value in (point for row in mine for point in read(row)):
            if value is not None:
                values.setdefault(task, []).append(value)
        if values:
            means, spreads = zip(*map(_mean, values.values()), strict=True)
            curves.append(Curve(name, tuple(values), means, CurveStyle(INK), spreads if any(spreads) else ()))
    return Chart(TASK_AXIS, y, _styled(curves), title)


def _by_line(rows: Sequence[CellRow]) -> dict[str, list[CellRow]]:
    """The rows that did not fail, by the line of the study that they belong to."""
    lines: dict[str, list[CellRow]] = {}
    for row in rows:
        if "failed" not in row:
            lines.setdefault(row["line"], []).append(row)
    return lines


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a few seeds; no spread of one."""
    mean, spread = mean_and_spread(values)
    assert mean is not None
    return mean, spread or 0.0


def _styled(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """Both orders of a method share colour and marker, drawn solid and filled, or dashed and hollow; ours is black."""
    methods = [curve.label.removesuffix(", FO").removesuffix(", ZO") for curve in curves]
    numbers = {method: number for number, method in enumerate(METHOD_ORDER) if method in methods}
    free = (number for number in count() if number not in numbers.values())
    numbers |= {method: next(free) for method in dict.fromkeys(methods) if method not in (*METHOD_ORDER, OURS)}
    styled = []
    for curve, method in zip(curves, methods, strict=True):
        zeroth = curve.label.endswith(", ZO")
        own = CurveStyle(INK) if method == OURS else CurveStyle.of(numbers[method])
        style = replace(own, dash="dash" if zeroth else "solid", hollow=zeroth)
        styled.append(replace(curve, style=style))
    return tuple(styled)

"""A study's figures: accuracy, flatness and curvature over tasks, and memory against accuracy, by method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from zofc.metrics import mean_and_spread
from zofc.report.draw_matplotlib import encode, picture
from zofc.report.drawing import GREY, INK, Axis, Chart, Curve, CurveStyle
from zofc.runfolder import write_atomic
from zofc.studies.catalogue import Study
from zofc.studies.displays import SET_TITLES
from zofc.studies.jobs import CellRow
from zofc.studies.scale import Scale
from zofc.units import GIB

METHOD_ORDER = (  # in the order of their styles, the same in every figure
    "SimpleCIL", "Learnable Cls.", "Adapter + Cls.", "LAE Adapter", "L2P", "CODA-Prompt", "APER Adapter", "EASE",
    "InfLoRA",
)  # fmt: skip
OURS = "ZO-FC"  # in black
FORMATS = ("png", "pdf", "html")
TaskValues = Iterable[tuple[int, float | None]]  # after which task, and the value there


def draw_study(
    study: Study, scale: Scale, rows: Sequence[CellRow], settings: Sequence[str]
) -> Iterator[tuple[str, Chart]]:
    """A study's figures, each of one setting, with the names of their files."""
    for setting in settings:
        here = [row for row in rows if row["setting"] == setting]
        for name, subject, chart in _charts(study, scale, here):
            title = f"{study.title}{subject} ({setting}, scale {scale.label})"
            if any(not curve.level for curve in chart.curves):
                yield setting + name, replace(chart, title=title)


def _charts(study: Study, scale: Scale, rows: Sequence[CellRow]) -> Iterator[tuple[str, str, Chart]]:
    """Charts with the ends of their files' names and of their titles."""
    if study.shows == "trade-off":
        yield "", "", trade_off_chart(rows)
    elif study.shows == "curves" and not study.panels:
        yield "", "", accuracy_chart(rows)
    elif study.shows == "curves":
        for panel in study.panels:
            titles = {line.title for line in panel.lines}
            yield f"-{panel.name}", f", {panel.says}", accuracy_chart([row for row in rows if row["line"] in titles])
    elif study.shows == "flatness":
        for over, words in SET_TITLES.items():
            yield f"-{over.replace('+', '-')}", f", {words}", flatness_chart(rows, over, scale.flatness.rho)
    elif study.shows == "curvature":
        y = "largest eigenvalue of the old tasks' Hessian (nats / distance²)"
        yield "", "", _over_tasks(y, rows, _largest_eigenvalues)


def accuracy_chart(rows: Sequence[CellRow]) -> Chart:
    """Accuracy on all classes seen after each task, by method."""
    return _over_tasks("accuracy on all classes seen (%)", rows, lambda row: enumerate(row["over_time"], 1))


def flatness_chart(rows: Sequence[CellRow], over: str, rho: float) -> Chart:
    """Φ of the old tasks' loss after each task, by method."""
    y = f"Φ of the old tasks' loss at ρ = {rho:g} (1 / distance)"
    return _over_tasks(y, rows, lambda row: row["flatness"].get(over) or ())


def trade_off_chart(rows: Sequence[CellRow]) -> Chart:
    """Peak memory of a step against final accuracy: a point for each method, a level for what trains nothing."""
    points, levels = [], []
    for name, mine in _by_line(rows).items():
        value, spread = _mean([row["all_classes"] for row in mine])
        if mine[0]["steps"]:
            memory, _ = _mean([row["peak_memory"] / GIB for row in mine])
            points.append(Curve(name, (memory,), (value,), CurveStyle(INK), (spread,) if spread else ()))
        else:
            levels.append(Curve(f"{name} (no steps)", (), (value,), CurveStyle(GREY, "dot"), level=True))
    x, y = Axis("peak memory of a training step (GiB)"), Axis("accuracy on all classes at the end (%)")
    return Chart(x, y, (*levels, *_styled(points)), joined=False)


def save_chart(chart: Chart, stem: Path) -> list[Path]:
    """The chart in every format."""
    from zofc.report.draw_plotly import own_page

    paths = [stem.with_name(f"{stem.name}.{form}") for form in FORMATS]
    for path, form in zip(paths, FORMATS, strict=True):
        write_atomic(path, own_page(chart) if form == "html" else encode(picture(chart), form))
    return paths


def _over_tasks(y: str, rows: Sequence[CellRow], read: Callable[[CellRow], TaskValues]) -> Chart:
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
    return Chart(Axis("tasks learned", whole=True), Axis(y), _styled(curves))


def _largest_eigenvalues(row: CellRow) -> TaskValues:
    return [(state["task"], state["largest"]) for state in row["curvature"].get("peft") or ()]


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

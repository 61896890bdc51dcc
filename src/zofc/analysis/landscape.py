"""Slices of a loss: along the line between two points and beyond both, and over a plane, through three points or along
two random directions whose filters are as long as those of the point (Li et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofc.analysis.kept_run import KeptRun, parameters, task_losses
from zofc.analysis.run_flatness import FlatnessSettings
from zofc.analysis.surface import BatchedLoss, Point, difference, dot, moved, norm
from zofc.analysis.task_start import OnProgress
from zofc.errors import RunError
from zofc.optim.directions import Directions

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LossLine:
    """Losses at start + α (end − start)."""

    positions: Array  # α, (n,)
    losses: dict[str, Array]  # by what they are of, each (n,)
    distance: float  # ‖end − start‖
    start: str = "start"
    end: str = "end"


@dataclass(frozen=True)
class LossPlane:
    """Losses at origin + x u + y v."""

    x: Array  # (columns,)
    y: Array  # (rows,)
    loss: Array  # (rows, columns)
    marks: dict[str, tuple[float, float]]  # points of interest in the plane
    axes: tuple[str, str]
    what: str = "mean loss"
    path: tuple[tuple[float, float], ...] = ()  # points that were passed one after another, as the plane sees them


class PlaneAxes(NamedTuple):
    """A plane through three points: x from the first towards the second, y at right angles, towards the third."""

    origin: Point
    u: Point
    v: Point
    marks: dict[str, tuple[float, float]]

    @property
    def names(self) -> tuple[str, str]:
        """What the axes are."""
        first, second, third = self.marks
        return f"L2 distance: {first} → {second}", f"L2 distance at right angles, to {third}"

    def project(self, point: Point) -> tuple[float, float]:
        """Where a point would be in the plane."""
        away = difference(point, self.origin)
        return float(dot(away, self.u)), float(dot(away, self.v))


def line(
    losses: Mapping[str, BatchedLoss], start: Point, end: Point, positions: int = 41, beyond: float = 0.5
) -> LossLine:
    """From `beyond` before the start to as far after the end, in units of their distance."""
    along, where = difference(end, start), np.linspace(-beyond, 1 + beyond, positions)
    found = {
        name: np.array([loss.value(moved(start, along, float(alpha))) for alpha in where])
        for name, loss in losses.items()
    }
    return LossLine(where, found, norm(along))


def plane_axes(points: Mapping[str, Point]) -> PlaneAxes:
    """Orthonormal axes of the plane through three points, so that distances are as they are."""
    (first, a), (second, b), (third, c) = points.items()
    u, w = difference(b, a), difference(c, a)
    length = norm(u)
    if not length or not norm(w):
        raise RunError("two of the three points are the same: they span no plane")
    u = _scaled(u, 1 / length)
    across = float(dot(w, u))
    v = moved(w, u, -across)
    height = norm(v)
    if height <= 1e-9 * norm(w):
        raise RunError("the three points lie on one line: they span no plane")
    marks = {first: (0.0, 0.0), second: (length, 0.0), third: (across, height)}
    return PlaneAxes(a, u, _scaled(v, 1 / height), marks)


def plane_through(
    loss: BatchedLoss,
    axes: PlaneAxes,
    resolution: int = 21,
    margin: float = 0.3,
    path: tuple[tuple[float, float], ...] = (),
) -> LossPlane:
    """A loss over a plane, around its three points and a path."""
    places = [*axes.marks.values(), *path]
    x, y = (_around(np.array([place[axis] for place in places]), resolution, margin) for axis in (0, 1))
    values = _values(loss, axes.origin, axes.u, axes.v, x, y)
    return LossPlane(x, y, values, axes.marks, axes.names, path=path)


def plane_random(
    loss: BatchedLoss, center: Point, resolution: int = 21, reach: float = 1.0, seed: int = 0, name: str = "center"
) -> LossPlane:
    """Around a point, `reach` times two random directions with its filters' lengths, to either side."""
    drawn = Directions("gaussian", seed, ("landscape",))
    u, v = (filter_normalised(drawn.draw(0, query, center), center) for query in range(2))
    steps = np.linspace(-reach, reach, resolution)
    axes = (f"random direction 1 (length {norm(u):.3g})", f"random direction 2 (length {norm(v):.3g})")
    return LossPlane(steps, steps, _values(loss, center, u, v, steps, steps), {name: (0.0, 0.0)}, axes)


def filter_normalised(direction: Point, like: Point) -> dict[str, Tensor]:
    """A direction in which every filter is as long as that of `like`: a row of a matrix, or a vector as a whole."""
    found = {}
    for name, value in like.items():
        rows = (-1, value.shape[-1]) if value.dim() > 1 else (1, -1)
        along, own = direction[name].reshape(rows), value.reshape(rows)
        lengths = own.norm(dim=-1, keepdim=True) / along.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        found[name] = (along * lengths).reshape(value.shape)
    return found


def _around(values: Array, resolution: int, margin: float) -> Array:
    extent = float(np.ptp(values))
    return np.linspace(float(values.min()) - margin * extent, float(values.max()) + margin * extent, resolution)


def _scaled(along: Point, by: float) -> dict[str, Tensor]:
    return {name: value * by for name, value in along.items()}


@torch.no_grad()
def _values(loss: BatchedLoss, origin: Point, u: Point, v: Point, x: Array, y: Array) -> Array:
    rows = []
    for up in y:
        row = moved(origin, v, float(up))
        rows.append([loss.value(moved(row, u, float(right))) for right in x])
    return np.array(rows)


def of_run(
    run: KeptRun,
    settings: FlatnessSettings,
    over: str,
    through: bool = True,
    resolution: int = 21,
    on_progress: OnProgress = print,
) -> tuple[LossLine, LossPlane]:
    """From the first kept state to the last, all with the rows that the last one has: the line between them, and the
    plane through these and one in the middle, or random around the last one where there is none in the middle."""
    numbers = list(run.kept)
    if len(numbers) < 2:
        raise RunError(f"{run.folder} kept one task only: there is nothing between its optima")
    first, last = numbers[0], numbers[-1]
    tasks, method = range(1, last + 1), run.method_after(last)
    end = parameters(method, over, tasks, settings.rows)
    grown = set(end).intersection(method.groups().get("peft", {})) - set(run.tensors_after(first, end))
    if not end or grown:
        name = run.recipe.method.name
        raise RunError(f"'{name}' moves other tensors in each task: its optima have no plane in common")
    batches = {task: run.batches(task, settings.split, settings.images, settings.batch) for task in tasks}
    parts = task_losses(method, batches, last, settings.rows)

    def of(some: range) -> BatchedLoss:
        return BatchedLoss([part for task in some for part in parts[task]])

    spans = [range(1, first + 1), range(last, last + 1), *[range(1, last)] * (last - first > 1)]
    losses = {named_tasks(span): of(span) for span in spans}
    on_progress("the line between the first and the last state")
    start = {**end, **run.tensors_after(first, end)}
    found = replace(line(losses, start, end), start=f"after task {first}", end=f"after task {last}")
    on_progress("the plane")
    old = of(range(1, last))
    if through and len(numbers) > 2:
        middle = numbers[len(numbers) // 2]
        between = {**end, **run.tensors_after(middle, end)}
        points = {f"after task {n}": p for n, p in ((first, start), (last, end), (middle, between))}
        plane = plane_through(old, plane_axes(points), resolution)
    else:
        plane = plane_random(old, end, resolution, seed=run.recipe.seed, name=f"after task {last}")
    return found, replace(plane, what=f"mean loss of {named_tasks(range(1, last))}")


def named_tasks(tasks: range) -> str:
    """What tasks are called in figures."""
    return f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {tasks[0]}–{tasks[-1]}"

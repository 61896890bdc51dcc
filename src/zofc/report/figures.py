"""The figures of runs: accuracy over tasks, forgetting by task, accuracy matrix, memory and accuracy, flatness, and
the landscape of a loss. A run looks the same in every figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zofc.metrics import AccuracyMatrix
from zofc.report.drawing import Axis, Chart, Curve, CurveStyle, HeatMap, Surface
from zofc.report.labels import label_runs
from zofc.runfolder import Run
from zofc.runfolder.flatness import number_at
from zofc.runfolder.run import TaskSeries
from zofc.units import MIB, format_bytes

LEARNED = Axis("tasks learned (number)", whole=True)
SEEN = Axis("accuracy on all classes seen (%)", highest=100)
FLATNESS_AXES = {  # quantities of flatness: a heading, an axis
    "phi": ("Score Φ", "relative rise of the loss, Φ (per unit of ρ)"),
    "lambda_max": ("Largest eigenvalue of the Hessian", "largest eigenvalue (nats / parameter²)"),
    "trace": ("Trace of the Hessian", "trace (nats / parameter²)"),
}
PATH_AXES = {  # quantities along the steps of a run: their axes
    "sharpness.loss": "mean loss (nats per image)",
    "sharpness.score": FLATNESS_AXES["phi"][1],
    "spectrum.largest": FLATNESS_AXES["lambda_max"][1],
}


def accuracy_over_tasks(records: Sequence[Run]) -> Chart:
    """Accuracy on all classes seen after each task. A joint run is one level, as wide as the longest other."""
    longest = max((len(record.matrix.last_row) for record in records if record.matrix), default=1)
    curves = []
    for number, label, record in label_runs(records):
        if record.matrix and record.matrix.joint:
            series = TaskSeries(record.accuracies.values * 2, record.accuracies.spreads * 2)
            level = _curve(number, label, (1, longest), series, "all tasks at once: {y} %")
            curves.append(replace(level, level=True, style=replace(level.style, dash="dash")))
        elif record.matrix:
            curves.append(_over_tasks(number, label, record.accuracies, "after task {x}: {y} %"))
    return Chart(LEARNED, SEEN, tuple(curves))


def forgetting_by_task(records: Sequence[Run]) -> Chart:
    """Forgetting of each old task's classes; runs without one (a single task, a joint run) are left out."""
    curves = [
        _over_tasks(number, label, record.drops, "task {x}: {y} points")
        for number, label, record in label_runs(records)
        if any(value is not None for value in record.drops.values)
    ]
    return Chart(Axis("task no.", whole=True), Axis("forgetting (percentage points)", lowest=0), tuple(curves))


def memory_and_accuracy(records: Sequence[Run]) -> Chart:
    """One point a run. Runs that lack either number are left out."""
    points = []
    for number, label, record in label_runs(records):
        size, overall = record.peak_memory, record.scores["all_classes"]
        if size is not None and overall is not None:
            spread = record.spreads.get("all_classes")
            label += " (unfinished)" * (not record.finished)
            series = TaskSeries((overall,), () if spread is None else (spread,))
            points.append(_curve(number, label, (size / MIB,), series, f"{{y}} % at {format_bytes(size)}"))
    x, y = Axis("peak memory of a training step (MiB)"), Axis("accuracy on all classes (%)")
    return Chart(x, y, tuple(points), joined=False)


def flatness_over_tasks(records: Sequence[Run]) -> Iterator[Chart]:
    """A chart for each quantity and each group of parameters that any run was measured over."""
    for over in dict.fromkeys(row.over for record in records for row in record.flatness):
        for quantity, (heading, axis) in FLATNESS_AXES.items():
            curves = tuple(_flatness_curves(records, over, quantity))
            values = [value for curve in curves for value in curve.y if value is not None]
            if values:
                wide = min(values) > 0 and max(values) > 100 * min(values)
                yield Chart(LEARNED, Axis(axis, log=wide), curves, f"{heading}, over {over}")


def _flatness_curves(records: Sequence[Run], over: str, quantity: str) -> Iterator[Curve]:
    for number, label, record in label_runs(records):
        rows = {row.task: row for row in record.flatness if row.over == over and quantity in row.values}
        if rows:
            tasks = tuple(sorted(rows))
            spreads = tuple(rows[task].spreads.get(quantity) for task in tasks)
            known = any(spread is not None for spread in spreads)
            series = TaskSeries(tuple(rows[task].values[quantity] for task in tasks), spreads if known else ())
            yield _curve(number, label, tasks, series, "after task {x}: {y}", ".4g")


def accuracy_heat_map(record: Run, number: int = 0) -> HeatMap:
    """The accuracy matrix: a row after each task, a column for each task's classes; pointing at a cell names them."""
    matrix = record.matrix
    if matrix is None:
        raise ValueError(f"{record.path}: no task has been evaluated yet, so there is no accuracy matrix to draw")
    width = len(matrix.last_row)
    values = tuple((*row, *[None] * (width - len(row))) for row in matrix.rows)
    after = ("all",) if matrix.joint else tuple(str(task) for task in range(1, len(matrix.rows) + 1))
    words = tuple(
        tuple("" if value is None else _cell(matrix, row, group, value) for group, value in enumerate(cells))
        for row, cells in zip(after, values, strict=True)
    )
    columns = tuple(str(group) for group in range(1, width + 1))
    axes = Axis("classes of task no."), Axis("after task no.")
    return HeatMap(*axes, columns, after, values, words, number)


def _cell(matrix: AccuracyMatrix, after: str, group: int, accuracy: float, most: int = 8) -> str:
    """What a cell of the matrix says, with the class names of its group, a few of them where there are many."""
    names = matrix.groups[group] if matrix.groups else ()
    more = f" and {len(names) - most} more" if len(names) > most else ""
    classes = ": " + ", ".join(names[:most]) + more if names else ""
    learned = "all tasks at once" if matrix.joint else f"after task {after}"
    return f"{accuracy:.2f} % {learned}, on the classes of task {group + 1}{classes}"


def _over_tasks(number: int, label: str, series: TaskSeries, words: str) -> Curve:
    return _curve(number, label, tuple(range(1, len(series.values) + 1)), series, words)


def _curve(number: int, label: str, x: tuple[float, ...], series: TaskSeries, words: str, digits: str = ".2f") -> Curve:
    """A run's values; `words` says what pointing at one shows."""
    texts = []
    for at, value, spread in zip(x, series.values, series.spreads or [None] * len(x), strict=True):
        deviation = "" if spread is None else f" ± {spread:{digits}}"
        texts.append("" if value is None else words.format(x=at, y=f"{value:{digits}}{deviation}"))
    return Curve(label, x, series.values, CurveStyle.of(number), series.spreads, words=tuple(texts), number=number)


def loss_landscape(line: Mapping[str, Any], plane: Mapping[str, Any]) -> tuple[Chart, Surface]:
    """Losses along the line between two states of a run, and over a plane through it."""
    curves = tuple(
        Curve(f"images of {name}", tuple(line["positions"]), tuple(values), replace(CurveStyle.of(number), marker=""))
        for number, (name, values) in enumerate(line["losses"].items())
    )
    x = Axis(f"position α between the two states, in units of ‖Δθ‖ = {line['distance']:.3g}")
    ends = {line["start"]: 0.0, line["end"]: 1.0}
    return Chart(x, Axis("mean loss (nats per image)"), curves, places=ends), loss_surface(plane)


def loss_surface(plane: Mapping[str, Any]) -> Surface:
    """A loss over a plane, with a path through it if there is one."""
    across, up = map(Axis, plane["axes"])
    scale = f"{plane['what']} (nats per image)"
    return Surface(across, up, plane["x"], plane["y"], plane["loss"], scale, plane["marks"], plane["path"])


def flatness_along(points: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Loss, score Φ and largest eigenvalue over the steps of all tasks, of the task that is learned and of old ones;
    a line ends with each task, as the loss is then another."""
    starts, end = {}, 0
    for point in points:
        if point["task"] not in starts:
            starts[point["task"]], end = end, end + point["steps"]
    marks = {f"task {task}": float(start) for task, start in starts.items()}
    steps = Axis("zeroth-order steps (number)")
    kinds = {"task being learned": "new", "old tasks": "old"}
    return tuple(
        Chart(
            steps,
            Axis(label),
            tuple(
                _along(points, starts, f"{kind}.{key}", CurveStyle.of(number), name)
                for number, (name, kind) in enumerate(kinds.items())
            ),
            places=marks,
        )
        for key, label in PATH_AXES.items()
    )


def _along(
    points: Sequence[Mapping[str, Any]], starts: Mapping[int, int], key: str, style: CurveStyle, name: str
) -> Curve:
    x, y = [], list[float | None]()
    for point in points:
        if point["step"] == 0:
            x.append(float(starts[point["task"]]))
            y.append(None)
        x.append(float(starts[point["task"]] + point["step"]))
        y.append(number_at(point, key))
    return Curve(name, tuple(x), tuple(y), style)

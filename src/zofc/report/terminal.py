"""A run in the terminal: where it stands as a picture of the terminal's size, an event as one line.

A step that is estimated from the clock is marked with ≈.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zofc.report.live import RunView
from zofc.runfolder.events import Event
from zofc.units import format_bytes, format_duration

BLOCKS = "▁▂▃▄▅▆▇█"
LABEL = 9  # letters of the left column
ENDLESS = 10_000  # lines or letters, where there is no terminal to fit into
LabelledLine = tuple[str, RenderableType]


def run_picture(view: RunView, width: int, height: int, now: float, warning: str = "") -> RenderableType:
    """The present state of a run, within a terminal of this size; `warning` stands below."""
    if not view.header:
        note = f"; {view.notice}" if view.notice else ""
        return Text(f"{view.folder}: waiting for the run to begin{note}", style="dim")
    head, room = view.header, max(width - LABEL - 1, 10)
    title = Text.assemble((str(head.get("name", view.folder.name)), "bold"), f": {head.get('method', '?')}")
    title.append(f" on {head.get('device', '?')}, {head.get('classes', '?')} classes in {_count(view.tasks)}; ")
    title.append(view.status, {"finished": "green", "interrupted": "yellow", "stopped": "red"}.get(view.status, "cyan"))
    if not view.attended and not view.over:
        title.append(", but no process of this machine trains it", "yellow")
    above, rest = [*_progress(view, room, now), *_curves(view, room)], _rest(view, now)
    taken = 2 + len(above) + len(rest) + bool(warning) * (1 + len(warning) // width) + len(title) // width
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL, style="dim", no_wrap=True)
    table.add_column(width=room, overflow="fold")
    for label, value in (*above, *_accuracies(view, room, max(height - taken, 1)), *rest):
        table.add_row(label, value)
    return Group(title, table, *([Text(warning)] if warning else []))


def _count(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def print_line(console: Console, text: str | None) -> None:
    """Print a text, if there is one, on one line however long: there may be a command in it to copy."""
    if text:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _progress(view: RunView, room: int, now: float) -> list[LabelledLine]:
    if view.number < 0:
        return []
    task, classes = view.task, view.task.get("classes")
    of_what = f", {len(classes)} classes, {task.get('images', '?')} images" if isinstance(classes, list) else ""
    lines: list[LabelledLine] = [("task", f"{view.number + 1}/{view.tasks}{of_what}")]
    if view.steps and not view.over and view.status != "between tasks":
        step, pace = view.estimated_step(now), view.step_seconds
        epoch = min(step // max(view.per_epoch, 1) + 1, int(task["epochs"]))
        count = f"{'≈ ' if step != view.step else ''}{step}/{view.steps}"
        count += f", {1 / pace:.3g} steps/s" if pace and room > 40 else ""
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(ProgressBar(view.steps, step, width=max(min(room - len(count) - 2, 40), 4)), count)
        lines += [("epoch", f"{epoch}/{task['epochs']}"), ("steps", row)]
    return lines


def _curves(view: RunView, room: int) -> list[LabelledLine]:
    """Loss and training accuracy of the latest epoch, and over all of them."""
    points = [(one.loss, one.accuracy) for one in view.epochs] + [view.running] * (view.running is not None)
    if not points:
        return []
    losses, accuracies = zip(*points, strict=True)
    return [
        ("loss", f"{losses[-1]:7.4f} {sparkline(losses, room - 8)}"),
        ("accuracy", f"{accuracies[-1]:5.1f} % {sparkline(accuracies, room - 8)}"),
    ]


def _accuracies(view: RunView, room: int, most: int) -> list[LabelledLine]:
    """A row of test accuracies after each task, the latest ones if there is no room for all."""
    found: list[LabelledLine] = []
    used = 0
    for number in sorted(view.rows, reverse=True):
        text = accuracy_row(view.rows[number], room)
        used += math.ceil(len(text) / room) or 1
        if found and used > most:
            break
        found.insert(0, (f"after {number + 1}", text))
    return found


def _rest(view: RunView, now: float) -> list[LabelledLine]:
    left = view.remaining(now)
    ahead = "" if left is None else f", about {format_duration(left)} left"
    lines: list[LabelledLine] = [("time", f"{format_duration(view.elapsed(now))}{ahead}")]
    if view.peak_memory:
        lines.append(("memory", f"{format_bytes(view.peak_memory)} at most, in a step"))
    if view.notice:
        lines.append(("note", Text(view.notice)))
    if view.unread:
        lines.append(("unread", f"{view.unread} events of the log make no sense"))
    return lines


def accuracy_row(event: Event, room: int) -> str:
    """Test accuracy on each group, in percent; rounded where the terminal is narrow."""
    overall = event.get("all_classes")
    more = "" if overall is None else f" | all {overall:.1f}"
    for digits in (1, 0):
        values = " ".join("–" if value is None else f"{value:.{digits}f}" for value in event["row"])
        if len(values + more) <= room:
            break
    return values + more


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as blocks of eight heights, their means where there are more than fit; a gap where one is not finite."""
    count = min(len(values), max(width, 1))
    parts = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    means = [sum(part) / len(part) for part in parts]
    finite = [value for value in means if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in means)


def describe(event: Event, view: RunView) -> str | None:
    """An event as one line."""
    with suppress(KeyError, TypeError, ValueError):
        task = f"task {event['task'] + 1}" if "task" in event else ""
        match event["event"]:
            case "run_started":
                groups = " and ".join(event["groups"]) or "nothing"
                where = f"{event['name']}: {event['method']} on {event['device']}"
                what = f"{event['parameters']:,} parameters frozen, {groups} trained"
                return f"{where}, {event['classes']} classes in {_count(event['tasks'])}; {what}"
            case "run_resumed":
                at = event["position"]
                return f"{event['name']}: continued at task {at['task'] + 1}, epoch {at['epoch'] + 1}"
            case "task_started":
                work = f"{event['steps']} steps in {event['epochs']} epochs" if event["steps"] else "no steps"
                return f"{task}/{view.tasks}: {len(event['classes'])} classes, {event['images']} images, {work}"
            case "epoch":
                rate = event["steps"] / max(event["seconds"], 1e-9)
                values = f"loss {event['loss']:.4f}, accuracy {event['accuracy']:.1f} %, {rate:.3g} steps/s"
                return f"{task} epoch {event['epoch'] + 1}: {values}"
            case "task_trained":
                memory = f", {format_bytes(event['peak_memory'])} at most" if event["peak_memory"] else ""
                return f"{task} trained: {event['steps']} steps in {format_duration(event['seconds'])}{memory}"
            case "evaluated":
                left = view.remaining(float(event["time"]))
                more = f", about {format_duration(left)} left" if left else ""
                return f"{task} learned: {accuracy_row(event, ENDLESS)}{more}"
            case "notice":
                return f"note: {event['text']}"
    return None

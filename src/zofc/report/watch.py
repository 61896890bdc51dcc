"""A run that another process trains, followed by its `events.jsonl` (docs/run-folder.md); nothing is written.

Epochs, tasks and evaluations are in that file, single steps are not: between two epochs the step is guessed from the
clock and the epoch before, and marked with ≈.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zofc.errors import RunError
from zofc.report.runs import RECIPE, find_runs

Event = Mapping[str, Any]
EVENTS = "events.jsonl"
BLOCKS = "▁▂▃▄▅▆▇█"
LABEL = 9  # letters of the left column
ENDLESS = 10_000  # lines or letters, where there is no terminal to fit into
PATIENCE = 60.0  # seconds without an event after which we ask whether anybody is still at it
GRACE = 2.0  # seconds that a process which has let go of a run may take to end it properly


@dataclass(frozen=True)
class Epoch:
    task: int
    epoch: int
    loss: float
    accuracy: float
    seconds: float
    steps: int


@dataclass
class RunView:
    """Where a run stands, by the events so far. What a resumed run does again replaces what it did before."""

    folder: Path
    status: str = "waiting"  # training, evaluating, between tasks, finished, interrupted, stopped
    header: Event = field(default_factory=dict)  # of the last start
    task: Event = field(default_factory=dict)  # the task at work
    step: int = 0  # of the task, as far as it is known
    step_time: float = 0.0  # when it was known
    epochs: list[Epoch] = field(default_factory=list)
    rows: dict[int, Event] = field(default_factory=dict)  # evaluations by task
    trained: dict[int, Event] = field(default_factory=dict)
    sessions: list[list[float]] = field(default_factory=list)  # first and last event of each process
    notice: str = ""
    last: Event = field(default_factory=dict)
    unread: int = 0  # lines that made no sense

    def feed(self, event: Event) -> None:
        """Take up one event; what another version may write differently is counted and left out."""
        try:
            self._feed(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.unread += 1

    def _feed(self, event: Event) -> None:
        kind, now = event["event"], float(event["time"])
        match kind:
            case "run_started" | "run_resumed":
                self._rewind(event.get("position") or {"task": 0, "epoch": 0})
                self.header, self.status = event, "training"
                self.sessions.append([now, now])
            case "task_started":
                self.task, self.status = event, "training"
                self.step, self.step_time = int(event.get("step", 0)), now
            case "epoch":
                one = Epoch(event["task"], event["epoch"], float(event["loss"]), float(event["accuracy"]),
                            float(event["seconds"]), int(event["steps"]))  # fmt: skip
                self.epochs.append(one)
                self.step, self.step_time = (one.epoch + 1) * one.steps, now
            case "checkpoint" if self.status == "training" and event["task"] == self.task.get("task"):
                self.step, self.step_time = max(self.step, event["epoch"] * self.per_epoch + event["step"]), now
            case "task_trained":
                self.trained[int(event["task"])] = event
                self.status, self.step = "evaluating", self.steps
            case "evaluated":
                self.rows[int(event["task"])] = event
                self.status = "between tasks"
            case "notice":
                self.notice = str(event["text"])
            case "interrupted" | "run_finished":
                self.status = "interrupted" if kind == "interrupted" else "finished"
        self.last = event
        if self.sessions:
            self.sessions[-1][1] = max(self.sessions[-1][1], now)

    def _rewind(self, position: Event) -> None:
        """Forget what comes after a position: it is done again."""
        task, epoch = int(position["task"]), int(position["epoch"])
        self.epochs = [one for one in self.epochs if (one.task, one.epoch) < (task, epoch)]
        self.rows = {number: row for number, row in self.rows.items() if number < task}
        self.trained = {number: found for number, found in self.trained.items() if number < task}
        self.task, self.step = {}, 0

    # -- what follows from the events --------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.status in ("finished", "interrupted", "stopped")

    @property
    def tasks(self) -> int:
        return int(self.header.get("tasks", 0))

    @property
    def number(self) -> int:
        """The task at work, or the last one, counted from zero."""
        found = self.task.get("task")
        return int(found) if found is not None else max(self.rows, default=-1)

    @property
    def steps(self) -> int:
        return int(self.task.get("steps", 0))

    @property
    def per_epoch(self) -> int:
        return self.steps // max(int(self.task.get("epochs", 0)), 1)

    @property
    def step_seconds(self) -> float | None:
        """Of the latest epoch."""
        done = [one for one in self.epochs if one.steps]
        return done[-1].seconds / done[-1].steps if done else None

    @property
    def peak_memory(self) -> int | None:
        return max((int(found.get("peak_memory") or 0) for found in self.trained.values()), default=0) or None

    def guessed_step(self, now: float) -> int:
        """Steps of the task by the clock: never past the epoch, whose end would be known."""
        pace = self.step_seconds
        if self.status != "training" or not pace or not self.per_epoch:
            return self.step
        ahead = min(int(max(now - self.step_time, 0) / pace), self.per_epoch - self.step % self.per_epoch - 1)
        return min(self.step + max(ahead, 0), self.steps)

    def elapsed(self, now: float) -> float:
        """Seconds that processes have been at it; what lies between an interruption and its continuation is not."""
        ends = [end for _, end in self.sessions]
        if ends and not self.over:
            ends[-1] = max(ends[-1], now)
        return sum(end - start for (start, _), end in zip(self.sessions, ends, strict=True))

    def left(self, now: float) -> float | None:
        """Seconds to go, if what is to come is like what has been: a task like the last one trained, an evaluation as
        long as it has groups."""
        pace, done = self.step_seconds, max(self.trained, default=None)
        if self.over or (pace is None and done is None):
            return None
        task = float(self.trained[done]["seconds"]) if done is not None else (pace or 0) * self.steps
        shown = self.rows[max(self.rows)] if self.rows else None
        group = float(shown["seconds"]) / max(len(shown["row"]), 1) if shown else 0.0
        current = self.number if self.status in ("training", "evaluating") else self.number + 1
        rest = 0.0
        for number in range(current, self.tasks):
            if number > self.number:
                rest += task
            elif self.status == "training":
                rest += (pace or 0) * (self.steps - self.guessed_step(now))
            rest += group * (number + 1)
        return rest

    @property
    def closing(self) -> str:
        """What to say of a run that nobody is at."""
        again = f"continue with: zofc run --resume {shlex.quote(str(self.folder))}"
        match self.status:
            case "finished":
                average = (self.last.get("metrics") or {}).get("final_average")
                accuracy = f", final average accuracy {average:.2f} %" if isinstance(average, int | float) else ""
                return f"finished{accuracy}; zofc show {shlex.quote(str(self.folder))} has the rest"
            case "interrupted":
                return f"interrupted and saved; {again}"
        return f"the process that trained it is gone and did not finish; {again}"


class Follower:
    """One run folder, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.view = RunView(folder)
        self.offset = 0  # behind the last whole line
        self.let_go: float | None = None  # when its lock was first seen free after it had been held
        self.was_held = False

    def read(self) -> list[Event]:
        """The events since the last time; a line that is still being written waits for the next."""
        try:
            with (self.folder / EVENTS).open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:  # another file by the same name: begin anew
                    self.offset, self.view = 0, RunView(self.folder)
                file.seek(self.offset)
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.folder}: cannot read {EVENTS}: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]
        self.offset += len(whole)
        found: list[Event] = []
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                self.view.feed(event)
                found.append(event)
            elif line.strip():
                self.view.unread += 1
        return found

    def look(self, now: float) -> None:
        """Notice that the process which held the run is gone without having said so."""
        if self.view.over or not self.view.header:
            return
        held = is_held(self.folder)
        self.was_held = self.was_held or held is True
        if held is not False:
            self.let_go = None
        elif self.was_held:
            self.let_go = self.let_go if self.let_go is not None else now
            if now - self.let_go >= GRACE:
                self.view.status = "stopped"

    def doubt(self, now: float) -> str:
        """What to think of a run that has been silent for long."""
        view = self.view
        silence = now - view.sessions[-1][1] if view.sessions else 0.0
        if view.over or silence < PATIENCE or self.was_held or is_held(self.folder) is not False:
            return ""
        again = f"zofc run --resume {shlex.quote(str(self.folder))}"
        return f"silent for {duration(silence)}, and no process of this machine is at it; if none elsewhere is: {again}"


def is_held(folder: Path) -> bool | None:
    """Whether a process of this machine holds the run's lock, by the system's list: asking for the lock might get it.
    None where there is no such list."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    try:
        number = str((folder / ".lock").stat().st_ino)
    except OSError:
        return False
    return any(word.rpartition(":")[2] == number for line in lines for word in line.split() if word.count(":") == 2)


def newest(path: Path) -> Path | None:
    """The run folder at a path, or the one below it that was last written to; None while there is none."""
    if (path / RECIPE).is_file() or (path / EVENTS).is_file():
        return path
    if path.exists() and not path.is_dir():
        raise RunError(f"{path}: a file, expected a run folder")
    with suppress(RunError, OSError):
        return max(find_runs([path]), key=_written)
    return None


def _written(folder: Path) -> float:
    times = [0.0]
    for name in (RECIPE, EVENTS):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)


# -- following -------------------------------------------------------------------------------------------------------


def watch(
    path: Path,
    console: Console,
    once: bool = False,
    every: float = 0.5,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Show a run until it is over, live in a terminal and by plain lines elsewhere; whether it is finished, or with
    `once` whether there is something to show. Leaving by Ctrl-C is fine."""
    if once:
        folder = newest(path)
        if folder is None:
            raise RunError(f"{path}: no run folder there, nor below it")
        follower = Follower(folder)
        follower.read()
        _show(follower, console, clock())
        return True
    try:
        follow = _follow_live if console.is_terminal else _follow_plainly
        return follow(path, console, every, clock, sleep)
    except KeyboardInterrupt:
        return True


def _follow_live(
    path: Path, console: Console, every: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    follower: Follower | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            follower = _taken_up(path, follower)
            now = clock()
            picture: RenderableType = Text(f"waiting for a run at {path}", style="dim")
            if follower is not None:
                follower.read()
                follower.look(now)
                picture = shown(follower, console.width, console.height, now)
            live.update(picture, refresh=True)
            if follower is not None and follower.view.over:
                break
            sleep(every)
    _say(console, follower.view.closing)
    return follower.view.status == "finished"


def _follow_plainly(
    path: Path, console: Console, every: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    follower: Follower | None = None
    waited = doubted = met = False
    while True:
        follower = _taken_up(path, follower)
        events = follower.read() if follower is not None else []
        begun = follower is not None and bool(follower.view.header)
        if not begun and not waited:
            _say(console, f"waiting for a run at {path}")
            waited = True
        if follower is not None and begun and not met and not waited:  # where it stands, instead of all that was before
            _show(follower, console, clock())
            if follower.view.over:
                return follower.view.status == "finished"
        elif follower is not None:
            for text in (told(event, follower.view) for event in events):
                if text:
                    _say(console, text)
        if follower is not None and begun:
            met = True
            follower.look(clock())
            if follower.view.over:
                _say(console, follower.view.closing)
                return follower.view.status == "finished"
            if not doubted and (text := follower.doubt(clock())):
                _say(console, text)
                doubted = True
        sleep(every)


def _show(follower: Follower, console: Console, now: float) -> None:
    console.print(shown(follower, console.width, ENDLESS, now), highlight=False)
    if follower.view.over:
        _say(console, follower.view.closing)


def _say(console: Console, text: str) -> None:
    """On one line, however long: there may be a command in it to be copied."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _taken_up(path: Path, follower: Follower | None) -> Follower | None:
    """The run to follow: the newest one until it has begun, then that one until it is over."""
    if follower is not None and follower.view.header:
        if not follower.folder.is_dir():
            raise RunError(f"{follower.folder} is gone: was it removed or renamed?")
        return follower
    folder = newest(path)
    if folder is None:
        return None
    return follower if follower is not None and follower.folder == folder else Follower(folder)


# -- showing ---------------------------------------------------------------------------------------------------------


def shown(follower: Follower, width: int, height: int, now: float) -> RenderableType:
    """The present state, within a terminal of this size."""
    view, room = follower.view, max(width - LABEL - 1, 10)
    if not view.header:
        note = f"; {view.notice}" if view.notice else ""
        return Text(f"{view.folder}: waiting for the run to begin{note}", style="dim")
    head = view.header
    title = Text.assemble((str(head.get("name", view.folder.name)), "bold"), f": {head.get('method', '?')}")
    title.append(f" on {head.get('device', '?')}, {head.get('classes', '?')} classes in {view.tasks} tasks; ")
    title.append(view.status, {"finished": "green", "interrupted": "yellow", "stopped": "red"}.get(view.status, "cyan"))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL, style="dim", no_wrap=True)
    table.add_column(width=room, overflow="fold")
    for label, value in (*_progress(view, room, now), *_curves(view, room)):
        table.add_row(label, value)
    rest = _rest(view, now)
    below = [Text(text) for text in (follower.doubt(now),) if text]
    taken = 1 + table.row_count + len(rest) + sum(1 + len(text.plain) // width for text in below) + len(title) // width
    for label, value in _accuracies(view, room, max(height - taken - 1, 1)):
        table.add_row(label, value)
    for label, value in rest:
        table.add_row(label, value)
    return Group(title, table, *below)


Line = tuple[str, RenderableType]


def _progress(view: RunView, room: int, now: float) -> list[Line]:
    if view.number < 0:
        return []
    task, classes = view.task, view.task.get("classes")
    of_what = f", {len(classes)} classes, {task.get('images', '?')} images" if isinstance(classes, list) else ""
    lines: list[Line] = [("task", f"{view.number + 1}/{view.tasks}{of_what}")]
    if view.steps and not view.over and view.status != "between tasks":
        step = view.guessed_step(now)
        epoch = min(step // max(view.per_epoch, 1) + 1, int(task["epochs"]))
        count = f"{'≈ ' if step != view.step else ''}{step}/{view.steps}"
        lines.append(("epoch", f"{epoch}/{task['epochs']}"))
        bar, row = (
            ProgressBar(view.steps, step, width=max(min(room - len(count) - 1, 40), 4)),
            Table.grid(padding=(0, 1)),
        )
        row.add_row(bar, count)
        lines.append(("steps", row))
    return lines


def _curves(view: RunView, room: int) -> list[Line]:
    """Loss and training accuracy of the latest epoch, and over all of them."""
    if not view.epochs:
        return []
    last = view.epochs[-1]
    losses, accuracies = [one.loss for one in view.epochs], [one.accuracy for one in view.epochs]
    return [
        ("loss", f"{last.loss:7.4f} {sparkline(losses, room - 8)}"),
        ("accuracy", f"{last.accuracy:5.1f} % {sparkline(accuracies, room - 8)}"),
    ]


def _accuracies(view: RunView, room: int, most: int) -> list[Line]:
    """A row of test accuracies after each task, the latest ones if there is no room for all."""
    found: list[Line] = []
    used = 0
    for number in sorted(view.rows, reverse=True):
        text = accuracy_row(view.rows[number], room)
        used += math.ceil(len(text) / room) or 1
        if found and used > most:
            break
        found.insert(0, (f"after {number + 1}", text))
    return found


def _rest(view: RunView, now: float) -> list[Line]:
    left = view.left(now)
    ahead = "" if left is None else f", about {duration(left)} left"
    lines: list[Line] = [("time", f"{duration(view.elapsed(now))}{ahead}")]
    if view.peak_memory:
        lines.append(("memory", f"{view.peak_memory / 1e6:,.1f} MB at most, in a step"))
    if view.notice:
        lines.append(("note", Text(view.notice)))
    if view.unread:
        lines.append(("unread", f"{view.unread} lines of {EVENTS} make no sense"))
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


def duration(seconds: float) -> str:
    minutes, second = divmod(round(max(seconds, 0)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def told(event: Event, view: RunView) -> str | None:
    """An event as one line."""
    with suppress(KeyError, TypeError, ValueError):
        match event["event"]:
            case "run_started":
                where = f"{event['method']} on {event['device']}"
                return f"{event['name']}: {where}, {event['classes']} classes in {event['tasks']} tasks"
            case "run_resumed":
                at = event["position"]
                return f"{event['name']}: continued at task {at['task'] + 1}, epoch {at['epoch'] + 1}"
            case "task_started":
                work = f"{event['steps']} steps in {event['epochs']} epochs" if event["steps"] else "no steps"
                what = f"{len(event['classes'])} classes, {event['images']} images"
                return f"task {event['task'] + 1}/{view.tasks}: {what}, {work}"
            case "epoch":
                rate = event["steps"] / max(event["seconds"], 1e-9)
                return (
                    f"task {event['task'] + 1} epoch {event['epoch'] + 1}: loss {event['loss']:.4f}, "
                    f"accuracy {event['accuracy']:.1f} %, {rate:.3g} steps/s"
                )
            case "task_trained":
                memory = f", {event['peak_memory'] / 1e6:,.1f} MB at most" if event["peak_memory"] else ""
                return (
                    f"task {event['task'] + 1} trained: {event['steps']} steps in {duration(event['seconds'])}{memory}"
                )
            case "evaluated":
                left = view.left(float(event["time"]))
                more = f", about {duration(left)} left" if left else ""
                return f"task {event['task'] + 1} learned: {accuracy_row(event, ENDLESS)}{more}"
            case "notice":
                return f"note: {event['text']}"
    return None

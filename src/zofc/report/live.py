"""The state of a run that another process trains, from its event log; nothing is written.

The log has epochs, tasks and evaluations but no single steps: between two epochs the step is extrapolated from the
clock and the pace of the epoch before.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from zofc.errors import continue_command
from zofc.runfolder import Run
from zofc.runfolder.events import Event, EventTail
from zofc.units import format_duration

QUIET_SECONDS = 60.0  # without an event, after which we ask whether a process still trains the run
ABANDONED_AFTER = 300.0, 3  # seconds without an event, and multiples of the longest such time, for an unlocked run
UNLOCK_GRACE = 2.0  # seconds that a process may take between releasing the lock and its last event


@dataclass(frozen=True)
class Epoch:
    """One epoch as its event describes it."""

    task: int
    epoch: int
    loss: float
    accuracy: float
    seconds: float
    steps: int


@dataclass
class RunView:
    """The state of a run after the events so far. What a resumed run repeats replaces what it did before."""

    folder: Path
    status: str = "waiting"  # training, evaluating, between tasks, finished, interrupted, stopped
    header: Event = field(default_factory=dict)  # of the last start
    task: Event = field(default_factory=dict)  # the task in progress
    step: int = 0  # of the task, as far as it is known
    step_time: float = 0.0  # when it was known
    running: tuple[float, float] | None = None  # loss and accuracy of the present epoch, where every step is told
    epochs: list[Epoch] = field(default_factory=list)
    rows: dict[int, Event] = field(default_factory=dict)  # evaluations by task
    trained: dict[int, Event] = field(default_factory=dict)
    sessions: list[list[float]] = field(default_factory=list)  # first and last event of each process
    notice: str = ""
    last: Event = field(default_factory=dict)
    unread: int = 0  # lines that could not be understood
    longest: float = 0.0  # seconds between two events of one process
    attended: bool = True  # False if no process of this machine trains it; another machine's may

    def feed(self, event: Event) -> None:
        """Update the state with an event; one that cannot be understood (of another version) is counted and skipped."""
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
                self.step, self.step_time, self.running = (one.epoch + 1) * one.steps, now, None
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
            self.longest = max(self.longest, now - self.sessions[-1][1])
            self.sessions[-1][1] = max(self.sessions[-1][1], now)

    def take_step(self, step: int, now: float, loss: float, accuracy: float) -> None:
        """Take up a step, which is in no log: of a run that this process trains."""
        self.step, self.step_time, self.running = step, now, (loss, accuracy)

    def _rewind(self, position: Event) -> None:
        """Drop what comes after a position, because it is repeated."""
        task, epoch = int(position["task"]), int(position["epoch"])
        self.epochs = [one for one in self.epochs if (one.task, one.epoch) < (task, epoch)]
        self.rows = {number: row for number, row in self.rows.items() if number < task}
        self.trained = {number: event for number, event in self.trained.items() if number < task}
        self.task, self.step = {}, 0

    # -- what follows from the events --------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in ("finished", "interrupted", "stopped")

    @property
    def tasks(self) -> int:
        """Number of tasks of the run."""
        return int(self.header.get("tasks", 0))

    @property
    def number(self) -> int:
        """The task in progress, or the last one, counted from zero."""
        number = self.task.get("task")
        return int(number) if number is not None else max(self.rows, default=-1)

    @property
    def steps(self) -> int:
        """Number of steps of the current task."""
        return int(self.task.get("steps", 0))

    @property
    def per_epoch(self) -> int:
        """Number of steps of an epoch."""
        return self.steps // max(int(self.task.get("epochs", 0)), 1)

    @property
    def step_seconds(self) -> float | None:
        """Of the latest epoch, or of the steps so far."""
        done = [one for one in self.epochs if one.steps]
        if done:
            return done[-1].seconds / done[-1].steps
        made = self.step - int(self.task.get("step", 0))
        return (self.step_time - float(self.task["time"])) / made if made > 0 else None

    @property
    def peak_memory(self) -> int | None:
        """Peak memory of all tasks so far, in bytes."""
        return max((int(event.get("peak_memory") or 0) for event in self.trained.values()), default=0) or None

    def estimated_step(self, now: float) -> int:
        """The step of the task, extrapolated by the clock; never past the epoch, whose end would be an event."""
        pace = self.step_seconds
        if self.status != "training" or not self.attended or not pace or not self.per_epoch or self.running:
            return self.step
        ahead = min(int(max(now - self.step_time, 0) / pace), self.per_epoch - self.step % self.per_epoch - 1)
        return min(self.step + max(ahead, 0), self.steps)

    def elapsed(self, now: float) -> float:
        """Seconds that processes have spent on it, without the time between an interruption and its continuation."""
        ends = [end for _, end in self.sessions]
        if ends and self.attended and not self.over:
            ends[-1] = max(ends[-1], now)
        return sum(end - start for (start, _), end in zip(self.sessions, ends, strict=True))

    def remaining(self, now: float) -> float | None:
        """Seconds still needed, if evaluation grows with the groups."""
        pace = self.step_seconds
        if self.over or not self.attended or (pace is None and not self.trained):
            return None
        shown = self.rows[max(self.rows)] if self.rows else None
        group = float(shown["seconds"]) / max(len(shown["row"]), 1) if shown else 0.0
        current = self.number if self.status in ("training", "evaluating") else self.number + 1
        rest = 0.0
        for number in range(current, self.tasks):
            if number > self.number:
                rest += self._task_seconds(number)
            elif self.status == "training":
                rest += (pace or 0) * (self.steps - self.estimated_step(now))
            rest += group * (number + 1)
        return rest

    def _task_seconds(self, number: int) -> float:
        """Expected training time of a later task: that of the last one with as many epochs, else in proportion to the
        epochs, which may be none."""
        alike = [task for task in self.trained if self._epochs(task) == self._epochs(number)]
        last = max(alike or self.trained, default=self.number)
        known = self.trained.get(last)
        seconds = (self.step_seconds or 0) * self.steps if known is None else float(known["seconds"])
        return seconds if alike else seconds * self._epochs(number) / max(self._epochs(last), 1)

    def _epochs(self, number: int) -> int:
        """Epochs of a task, as the run planned them when it began; the same for all in logs that do not say."""
        planned = self.header.get("epochs")
        return int(planned[number]) if isinstance(planned, list) and number < len(planned) else 1

    @property
    def closing(self) -> str:
        """The last message about a run that is over."""
        again = continue_command(self.folder)
        match self.status:
            case "finished":
                average = (self.last.get("metrics") or {}).get("final_average")
                accuracy = f", final average accuracy {average:.2f} %" if isinstance(average, int | float) else ""
                return f"finished{accuracy}; zofc show {shlex.quote(str(self.folder))} has the rest"
            case "interrupted":
                return f"interrupted and saved; {again}"
        return f"the process that trained it is gone and did not finish; {again}"


class Follower:
    """Follows one run while it is trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.view = RunView(folder)
        self.tail = EventTail(folder)
        self.unlocked_at: float | None = None  # when its lock was first seen free after having been held
        self.was_locked = False
        self.growing = False  # events were added while we followed

    def read(self) -> list[Event]:
        """The events since the last time; a line that is still being written waits for the next."""
        beginning, lines = self.tail.read()
        if beginning and lines:
            self.view = RunView(self.folder)
        self.growing = self.growing or bool(lines and not beginning)
        events = [event for event in lines if event is not None]
        for event in events:
            self.view.feed(event)
        self.view.unread += len(lines) - len(events)
        return events

    def check_process(self, now: float) -> None:
        """Detect that the training process is gone without a last event, or that there has been no event for long."""
        if self.view.over or not self.view.header:
            return
        locked = Run(self.folder).is_locked()
        self.was_locked = self.was_locked or locked is True
        self.view.attended = locked is not False or (self.growing and self._silence(now) < QUIET_SECONDS)
        if locked is not False:
            self.unlocked_at = None
        elif self.was_locked:
            self.unlocked_at = self.unlocked_at if self.unlocked_at is not None else now
            if now - self.unlocked_at >= UNLOCK_GRACE:
                self.view.status = "stopped"
        elif self._silence(now) > max(ABANDONED_AFTER[0], ABANDONED_AFTER[1] * self.view.longest):
            self.view.status = "stopped"

    def _silence(self, now: float) -> float:
        return now - self.view.sessions[-1][1] if self.view.sessions else 0.0

    def warning(self, now: float) -> str:
        """A sentence about a run without events for long, empty if there is no reason to doubt it."""
        view = self.view
        silence = self._silence(now)
        if view.over or silence < QUIET_SECONDS or self.was_locked or Run(self.folder).is_locked() is not False:
            return ""
        doubt = f"no event for {format_duration(silence)} and no process of this machine trains it"
        return f"{doubt}; if none elsewhere does: zofc run --resume {shlex.quote(str(self.folder))}"

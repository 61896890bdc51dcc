"""The progress display: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from zofc.runfolder.events import Event

TIME = 8  # letters of the time left, with the gap before it


class StepProgress(Protocol):
    """What the display needs to know after a training step."""

    @property
    def epoch(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def accuracy(self) -> float: ...


class Display:
    """Task, epoch, step, loss, accuracy, steps per second and time left. If it cannot be shown, training goes on
    without."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.live: Progress | None = None
        self.bar: TaskID | None = None
        self.started = 0.0
        self.first_step = 0
        self.printed_at = time.monotonic()  # when the last plain line was printed
        self.epochs = 0
        self.taken = 0  # letters of the live line beside the description

    def event(self, event: Event) -> None:
        with self._harmless():
            self._show(event)

    def _show(self, event: Event) -> None:
        match event["event"]:
            case "run_started" | "run_resumed":
                verb = "running" if event["event"] == "run_started" else "continuing"
                groups = " and ".join(event["groups"])
                tasks = f"{event['tasks']} task{'s' * (event['tasks'] != 1)}"
                self._say(
                    f"[bold]{escape(event['name'])}[/]: {verb} {event['method']} on {event['device']}, "
                    f"{event['classes']} classes in {tasks}; {event['parameters']:,} parameters "
                    f"frozen, {f'{groups} trained' if groups else 'nothing trained'}"
                )
            case "task_started":
                self._start_bar(event)
            case "epoch" if not self._terminal and self._due(event):
                self._say(
                    f"task {event['task'] + 1} epoch {event['epoch'] + 1}: loss {event['loss']:.4f}, "
                    f"train accuracy {event['accuracy']:.1f} %, "
                    f"{event['steps'] / max(event['seconds'], 1e-9):.1f} steps/s"
                )
            case "evaluated":
                self._stop_bar()
                row = " ".join("   –" if value is None else f"{value:5.1f}" for value in event["row"])
                overall = "" if event["all_classes"] is None else f", all classes {event['all_classes']:.1f} %"
                self._say(f"task {event['task'] + 1} learned: accuracy per task {row}{overall}")
            case "notice":
                self._say(f"[yellow]note[/]: {escape(event['text'])}")

    def step(self, status: StepProgress) -> None:
        if self.live is None or self.bar is None:
            return
        rate = (status.step - self.first_step) / max(time.monotonic() - self.started, 1e-9)
        words = [
            f"epoch {status.epoch + 1}/{status.epochs}",
            f"step {status.step}/{status.steps}",
            f"loss {status.loss:.3f}",
            f"acc {status.accuracy:.0f} %",
            f"{rate:.1f} steps/s",
        ]
        while words and len(" ".join(words)) > self.console.width - self.taken:
            words.pop()
        with self._harmless():
            self.live.update(self.bar, completed=status.step, description=" ".join(words))

    def close(self) -> None:
        with self._harmless():
            self._stop_bar()

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """What cannot be written is let go, and nothing more is tried."""
        try:
            yield
        except (OSError, ValueError, SystemExit):  # rich exits where a pipe was closed
            self.quiet = self.console.quiet = True
            self._stop_bar()

    @property
    def _terminal(self) -> bool:
        return self.console.is_terminal

    def _due(self, event: Event) -> bool:
        """Plain lines are told every few seconds, and at the end of a task."""
        due = time.monotonic() - self.printed_at > 5 or event["epoch"] + 1 == self.epochs
        self.printed_at = time.monotonic() if due else self.printed_at
        return due

    def _start_bar(self, event: Event) -> None:
        self.started, self.first_step, self.epochs = time.monotonic(), event.get("step", 0), event["epochs"]
        if self._terminal and not self.quiet and event["steps"]:
            label = f"task {event['task'] + 1}"
            columns: list[ProgressColumn] = [TextColumn(label), TextColumn("{task.description}"), TimeRemainingColumn()]
            self.taken = len(label) + 1 + TIME
            if self.console.width >= 40:
                width = 24 if self.console.width >= 100 else 10
                columns.insert(1, BarColumn(width))
                self.taken += width + 1
            self.live = Progress(*columns, console=self.console, transient=True)
            self.bar = self.live.add_task("", total=event["steps"], completed=self.first_step)
            self.live.start()

    def _stop_bar(self) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.stop()

    def _say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

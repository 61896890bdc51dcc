"""The progress display: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from zofc.training.events import Event, StepStatus


class Display:
    """Task, epoch, step, loss, accuracy, steps per second and time left."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.live: Progress | None = None
        self.bar: TaskID | None = None
        self.started = 0.0
        self.first_step = 0
        self.told = time.monotonic()  # when the last plain line was printed
        self.epochs = 0

    def event(self, event: Event) -> None:
        match event["event"]:
            case "run_started" | "run_resumed":
                verb = "running" if event["event"] == "run_started" else "continuing"
                groups = " and ".join(event["groups"])
                self._say(
                    f"[bold]{escape(event['name'])}[/]: {verb} {event['method']} on {event['device']}, "
                    f"{event['classes']} classes in {event['tasks']} tasks; {event['parameters']:,} parameters "
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

    def step(self, status: StepStatus) -> None:
        if self.live is None or self.bar is None:
            return
        rate = (status.step - self.first_step) / max(time.monotonic() - self.started, 1e-9)
        where = f"epoch {status.epoch + 1}/{status.epochs} step {status.step}/{status.steps}"
        text = f"{where} loss {status.loss:.3f} acc {status.accuracy:.0f} % {rate:.1f} steps/s"
        self.live.update(self.bar, completed=status.step, description=text)

    def close(self) -> None:
        self._stop_bar()

    @property
    def _terminal(self) -> bool:
        return self.console.is_terminal

    def _due(self, event: Event) -> bool:
        """Plain lines are told every few seconds, and at the end of a task."""
        due = time.monotonic() - self.told > 5 or event["epoch"] + 1 == self.epochs
        self.told = time.monotonic() if due else self.told
        return due

    def _start_bar(self, event: Event) -> None:
        self.started, self.first_step, self.epochs = time.monotonic(), event.get("step", 0), event["epochs"]
        if self._terminal and not self.quiet and event["steps"]:
            label = f"task {event['task'] + 1}"
            columns = (
                TextColumn(label),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            self.live = Progress(*columns, console=self.console, transient=True)
            self.bar = self.live.add_task("", total=event["steps"], completed=self.first_step)
            self.live.start()

    def _stop_bar(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

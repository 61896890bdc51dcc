"""The progress of a run that this process trains: the picture of `zofc watch` in a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live

from zofc.report.live import RunView
from zofc.report.terminal import ENDLESS, describe, print_line, run_picture
from zofc.runfolder.events import Event

FRAME = 0.1  # seconds between two pictures
PAUSE = 5.0  # seconds between two lines about epochs, but for the last one of a task


class StepProgress(Protocol):
    """What the display needs to know after a training step."""

    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def accuracy(self) -> float: ...


class Display:
    """A listener to training. If nothing can be shown, training goes on without it."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.view = RunView(Path())
        self.live: Live | None = None
        self.shown_at = time.monotonic()  # when something was last drawn or an epoch printed

    def event(self, event: Event) -> None:
        """Show an event."""
        self.view.feed(event)
        self._attempt(self._show, event)

    def step(self, status: StepProgress) -> None:
        """Show a step."""
        self.view.take_step(status.step, time.time(), status.loss, status.accuracy)
        if self.live is not None and time.monotonic() - self.shown_at > FRAME:
            self._attempt(self._draw, self.console.height)

    def close(self) -> None:
        """Leave the last picture in the terminal, with all accuracies."""
        if self.live is not None:
            self.live.vertical_overflow = "visible"
            self._attempt(self._draw, ENDLESS)
        self._stop()

    def _show(self, event: Event) -> None:
        kind = event["event"]
        if self.console.is_terminal and kind != "notice":
            self._draw(self.console.height)
        elif kind in ("run_started", "run_resumed", "evaluated", "notice") or (kind == "epoch" and self._is_due(event)):
            print_line(self.console, describe(event, self.view))

    def _is_due(self, epoch: Event) -> bool:
        due = epoch["epoch"] + 1 == self.view.task["epochs"] or time.monotonic() - self.shown_at > PAUSE
        self.shown_at = time.monotonic() if due else self.shown_at
        return due

    def _draw(self, height: int) -> None:
        if self.live is None:
            live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
            live.start()
            self.live = live  # only if it could be started
        self.live.update(run_picture(self.view, self.console.width, height, time.time()), refresh=True)
        self.shown_at = time.monotonic()

    def _stop(self) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.stop()

    def _attempt(self, show: Callable[[Any], None], what: Any) -> None:
        """What cannot be written is let go, and nothing more is tried."""
        if self.quiet:
            return
        try:
            show(what)
        except (OSError, ValueError, SystemExit):  # rich exits where a pipe was closed
            self.quiet = self.console.quiet = True
            self._stop()

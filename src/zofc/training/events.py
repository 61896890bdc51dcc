"""Events: what happens in a run is sent once to every listener (the log file, the display, optional loggers)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from zofc.runfolder.events import Event


@dataclass(frozen=True)
class StepStatus:
    """Where training stands after a step."""

    task: int
    tasks: int
    epoch: int
    epochs: int
    step: int  # of the task
    steps: int
    loss: float
    accuracy: float  # percent, running over the epoch


class Listener(Protocol):
    """What may receive events."""

    def event(self, event: Event) -> None:
        """Receive an event."""

    def step(self, status: StepStatus) -> None:
        """Receive the status after a step."""

    def close(self) -> None:
        """Release what it holds; the run is over."""


class Events:
    """Sends each event to every listener."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self.listeners = list(listeners)

    def send(self, kind: str, /, **fields: Any) -> None:
        """Send an event with its time and fields."""
        event = {"time": round(time.time(), 3), "event": kind, **fields}
        for listener in self.listeners:
            listener.event(event)

    def step(self, status: StepStatus) -> None:
        """Send the status after a step."""
        for listener in self.listeners:
            listener.step(status)

    def close(self) -> None:
        """Close every listener, whatever happens to the others."""
        with ExitStack() as stack:
            for listener in self.listeners:
                stack.callback(listener.close)

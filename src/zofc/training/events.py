"""Events: what happened in a run, told once to whoever listens (the log file, the display, optional loggers)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zofc.training.folder import explain_os_errors

Event = dict[str, Any]


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
    def event(self, event: Event) -> None: ...
    def step(self, status: StepStatus) -> None: ...
    def close(self) -> None: ...


class EventLog:
    """Appends every event to `events.jsonl`, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explain_os_errors(path):
            _drop_half_line(path)
            self.file = path.open("a", encoding="utf-8")

    def event(self, event: Event) -> None:
        with explain_os_errors(self.path):
            self.file.write(json.dumps(event) + "\n")
            self.file.flush()

    def step(self, status: StepStatus) -> None:
        pass

    def close(self) -> None:
        with explain_os_errors(self.path):
            self.file.close()


class Events:
    """Sends each event to every listener."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self.listeners = list(listeners)

    def send(self, kind: str, /, **fields: Any) -> None:
        event = {"time": round(time.time(), 3), "event": kind, **fields}
        for listener in self.listeners:
            listener.event(event)

    def step(self, status: StepStatus) -> None:
        for listener in self.listeners:
            listener.step(status)

    def close(self) -> None:
        """Close every listener, whatever happens to the others."""
        with ExitStack() as stack:
            for listener in self.listeners:
                stack.callback(listener.close)


def _drop_half_line(path: Path) -> None:
    """What a killed process left of its last line goes, so that every line is whole."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)

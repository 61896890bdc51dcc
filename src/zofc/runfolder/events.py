"""The event log of a run: one JSON object a line, only appended to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zofc.errors import RunError
from zofc.runfolder.event_fields import is_complete, is_understood
from zofc.runfolder.files import damaged, explain_os_errors, parse_object
from zofc.runfolder.names import EVENTS_FILE

Event = dict[str, Any]


class EventLog:
    """Appends events; a listener of training."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS_FILE
        with explain_os_errors(self.path):
            _drop_half_line(self.path)
            self.file = self.path.open("a", encoding="utf-8")

    def event(self, event: Event) -> None:
        """Append an event."""
        with explain_os_errors(self.path):
            self.file.write(json.dumps(event) + "\n")
            self.file.flush()

    def step(self, status: object) -> None:
        """Single steps are not logged."""

    def close(self) -> None:
        """Close the file."""
        with explain_os_errors(self.path):
            self.file.close()


class EventTail:
    """Reads a log while it grows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS_FILE
        self.offset = 0  # behind the last whole line that was read

    def read(self) -> tuple[bool, list[Event | None]]:
        """Whether this is the beginning of the log, and an entry for each line since the last call: the event, or None
        where a line holds none. A line that is still being written waits; a log that was replaced begins anew."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                content = file.read()
        except FileNotFoundError:
            return False, []
        except OSError as error:
            raise RunError(f"{self.path.parent}: cannot read {EVENTS_FILE}: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]
        beginning = self.offset == 0
        self.offset += len(whole)
        events = [_event(line) for line in whole.splitlines() if line.strip()]
        return beginning, [event if event is not None and is_complete(event) else None for event in events]


def parse_events(content: bytes, path: Path) -> tuple[Event, ...]:
    """All events of a log; the last one may have been cut off by a kill and is then left out."""
    *lines, rest = content.split(b"\n")
    events = [parse_object(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    for number, event in enumerate(events, 1):
        if not is_understood(event):
            raise damaged(path, f"has an event that makes no sense: number {number}, {str(event)[:80]}")
    last = _event(rest)
    return tuple(events) if last is None else (*events, last)


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if is_understood(event) else None


def _drop_half_line(path: Path) -> None:
    """Remove what a killed process left of its last line, so that every line is whole."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)

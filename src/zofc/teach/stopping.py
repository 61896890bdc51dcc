"""Ctrl-C and SIGTERM: the server stops in order, with its lesson cancelled and its streams ended; a second one stops it
at once, which loses nothing either, for whatever was confirmed is on disk.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

SECONDS_TO_END = 10  # seconds that requests have to end
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppableServer(uvicorn.Server):
    """A server that leaves signals to `stopped_by_signals`: uvicorn would raise them again once it has stopped."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=SECONDS_TO_END,
            )
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    def end(self) -> None:
        """Stop once the requests that are being answered have ended."""
        self.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # tracebacks of what is cut off

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers as they are."""
        yield


@contextmanager
def stopped_by_signals(stop: Callable[[], None], said_last: Callable[[], None]) -> Iterator[None]:
    """Inside the block, the first signal calls `stop`, after which the process is expected to end; any later one, also
    while it ends, calls `said_last` and ends it at once."""
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            stop()
            return
        with suppress(Exception):  # the first may have come in the middle of a print
            said_last()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)  # threads inside torch cannot be ended otherwise

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        if seen:
            atexit.register(_ignore_signals)  # Python is about to take its handlers away: a signal would kill
        else:
            for number, handler in before.items():
                signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

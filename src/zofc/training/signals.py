"""Stopping when asked: the first stop signal is a request, which training honours after the step in progress."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether the user has asked to stop."""

    stop = False


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or termination signal into a request, let a second one act at once."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request.stop:
            raise KeyboardInterrupt
        request.stop = True
        os.write(2, b"\nstopping after this step; once more to stop at once\n")  # safe inside a handler

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

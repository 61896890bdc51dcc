"""Stopping when asked: the first stop signal is a request, which training honours after the step in progress."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from zofc.ranks import several_processes

HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal is gone; not on every platform


class StopRequest:
    """Whether the user has asked to stop."""

    stop = False


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C, termination signal or hang-up into a request, let a second one act at once. A hang-up is
    never more than a request, since shell and system may both send one; neither is any signal to one of several ranks,
    since `torchrun` sends on what the terminal has sent already. It kills ranks that have not ended after 30 s."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, _frame: FrameType | None) -> None:
        if request.stop and number != HANG_UP and not several_processes():
            raise KeyboardInterrupt
        if request.stop:
            return
        request.stop = True
        with suppress(OSError):  # nobody may be there to read it
            os.write(2, b"\nstopping after this step; once more to stop at once\n")  # safe inside a handler

    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANG_UP is not None and signal.getsignal(HANG_UP) != signal.SIG_IGN:  # nohup ignores it
        numbers.append(HANG_UP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_at_once() -> Iterator[None]:
    """Let a termination signal be what Ctrl-C is, a KeyboardInterrupt, in work that cannot be saved half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

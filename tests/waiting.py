"""Waiting for what other processes do. The deadline is for what never comes; a busy machine is only late."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

DEADLINE = 900.0  # s


def wait_until(fact: Callable[[], bool], process: subprocess.Popen[Any] | None = None, pause: float = 0.05) -> None:
    """Return as soon as the fact is one; an error if it never is, or if the process that should make it so has ended
    before."""
    deadline = time.monotonic() + DEADLINE
    while not fact():
        ended = process is not None and process.poll() is not None
        if ended and fact():  # its last deed
            return
        if ended:
            assert process is not None
            raise AssertionError(f"the process has ended with {process.returncode}: {process.communicate()}")
        assert time.monotonic() < deadline, f"not so within {DEADLINE:g} s"
        time.sleep(pause)

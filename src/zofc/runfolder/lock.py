"""The lock of a run folder: one process writes it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zofc.errors import RunError
from zofc.runfolder.files import explain_os_errors
from zofc.runfolder.names import LOCK_FILE


@contextmanager
def hold_lock(folder: Path, patience: float = 0) -> Iterator[None]:
    """Hold the sole right to write, waiting for it so many seconds; the system releases it however the process ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK_FILE, timeout=patience)
    with explain_os_errors(folder):
        try:
            lock.acquire()
        except Timeout as error:
            text = f"{folder} is being written by another process; wait for it or choose another folder"
            raise RunError(text) from error
    try:
        yield
    finally:
        lock.release()


def is_lock_held(folder: Path) -> bool | None:
    """Whether a process of this machine holds the lock, by the system's list of locks; None where there is none."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    try:
        number = str((folder / LOCK_FILE).stat().st_ino)
    except OSError:
        return False
    return any(word.rpartition(":")[2] == number for line in lines for word in line.split() if word.count(":") == 2)

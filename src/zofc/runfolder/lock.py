"""The lock of a run folder: one process writes it at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zofc.errors import RunError, continue_command
from zofc.runfolder.files import explain_os_errors, remove_leftovers
from zofc.runfolder.names import CHECKPOINT_FOLDER, LOCK_FILE, TASKS_FOLDER

if TYPE_CHECKING:
    from filelock import FileLock


class FolderLock:
    """The sole right to write a folder, held by this process. The system releases it however the process ends; forked
    processes do not share it (filelock closes their copy)."""

    def __init__(self, folder: Path, patience: float = 0) -> None:
        self.folder = folder
        self.lock, self.file = self._acquire(patience)

    def _acquire(self, patience: float) -> tuple[FileLock, os.stat_result]:
        from filelock import FileLock, Timeout  # not at the top: slow to import

        lock = FileLock(self.folder / LOCK_FILE, timeout=patience)
        with explain_os_errors(self.folder):
            try:
                lock.acquire()
            except Timeout as error:
                text = f"{self.folder} is being written by another process; wait for it or choose another folder"
                raise RunError(text) from error
            return lock, (self.folder / LOCK_FILE).stat()

    def check(self) -> None:
        """Notice that the lock file was deleted. It is made again, unless another process has made one meanwhile and
        may have written: then this one stops. A folder that is gone is noticed by who writes there."""
        path = self.folder / LOCK_FILE
        try:
            if os.path.samestat(path.stat(), self.file):
                return
        except (FileNotFoundError, NotADirectoryError):
            if not self.folder.is_dir():
                return
            self.lock.release()  # of a file without a name
            self.lock, self.file = self._acquire(0)
            return
        raise RunError(
            f"{path} was deleted while this process was writing, and another process has taken its place. This one has "
            f"stopped, so that they do not mix; when the other has ended, {continue_command(self.folder)}"
        )

    def release(self) -> None:
        """Let others write."""
        self.lock.release()


@contextmanager
def hold_lock(folder: Path, patience: float = 0) -> Iterator[FolderLock]:
    """Hold the sole right to write, waiting for it so many seconds. What killed writers left is removed."""
    lock = FolderLock(folder, patience)
    try:
        for written in (folder, folder / CHECKPOINT_FOLDER, folder / TASKS_FOLDER):
            remove_leftovers(written)
        yield lock
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

"""Listing folders of images: every use goes through here.

Links are followed, but no folder is entered twice and none that lies above, so links that lead back end. A folder that
cannot be listed is an error. Only regular files are listed as files: a pipe or a device would be waited for.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from zofc.errors import DataError
from zofc.paths import explain_os_error


@dataclass
class FolderEntries:
    """What a folder holds, hidden files apart, each in the order of names."""

    files: list[Path] = field(default_factory=list)  # links that lead nowhere among them: an error when they are read
    folders: list[Path] = field(default_factory=list)
    special: list[Path] = field(default_factory=list)  # pipes, sockets, devices
    loops: list[Path] = field(default_factory=list)  # links to folders that were entered already


def list_folder(folder: Path) -> FolderEntries:
    """The entries of one folder."""
    entries = FolderEntries()
    try:
        with os.scandir(folder) as found:
            listed = sorted(found, key=lambda entry: entry.name)
    except (OSError, ValueError) as error:
        reason = explain_os_error(error) if isinstance(error, OSError) else error
        raise DataError(f"cannot list the folder {folder}: {reason}; make it readable, or move it away") from error
    for entry in listed:
        try:
            mode = entry.stat().st_mode
        except OSError:
            mode = stat.S_IFREG
        if stat.S_ISDIR(mode):
            entries.folders.append(folder / entry.name)
        elif not entry.name.startswith("."):
            (entries.files if stat.S_ISREG(mode) else entries.special).append(folder / entry.name)
    return entries


def list_files(folder: Path) -> FolderEntries:
    """The files at any depth below a folder; `folders` stays empty."""
    listed = FolderEntries()
    entered = {_identity(path) for path in (*folder.absolute().parents, *folder.resolve().parents)}
    ahead = [folder]
    while ahead:
        inside = ahead.pop()
        identity = _identity(inside)
        if identity in entered:
            listed.loops.append(inside)
            continue
        entered.add(identity)
        entries = list_folder(inside)
        listed.files += entries.files
        listed.special += entries.special
        ahead += reversed(entries.folders)
    return listed


def _identity(folder: Path) -> tuple[int, int] | None:
    """Device and inode, the same by whichever path a folder is reached; None: it cannot be entered anyway."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

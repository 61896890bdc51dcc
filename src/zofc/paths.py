"""Paths that users give and files that are read from them: only regular files, and no larger than they may be.

A named pipe or a device can keep its reader waiting for ever, so no such file is opened.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Literal

from zofc.errors import ZofcError
from zofc.units import format_bytes, printable

PathKind = Literal["file", "folder", "special", "absent"]


def expand(path: str | Path) -> Path:
    """The path with `~` replaced by the home folder; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's raises where there is no such user)


def path_kind(path: Path) -> PathKind:
    """What is at a path, links followed. OSError if that cannot be found out, also for names that no file can have."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    except ValueError as error:  # a NUL in it
        raise OSError(None, str(error)) from error
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "special"


def why_unreadable(path: Path, limit: int | None = None) -> str:
    """Why a path is not that of a regular file of at most `limit` bytes; empty if it is."""
    try:
        kind = path_kind(path)
        size = path.stat().st_size if kind == "file" and limit is not None else 0
    except OSError as error:
        return explain_os_error(error)
    if limit is not None and size > limit:
        return f"it has {format_bytes(size)}, more than the limit of {format_bytes(limit)}"
    return {"absent": "there is no such file", "folder": "it is a directory", "file": "",
            "special": "it is a pipe, a socket or a device, not a regular file"}[kind]  # fmt: skip


def explain_os_error(error: OSError) -> str:
    """The reason of an operating-system error, without its number."""
    return error.strerror or str(error) or type(error).__name__


def find_existing(places: list[Path], key: str, error: type[ZofcError]) -> Path | None:
    """The first of these paths that is there; one that cannot be looked at is an error about `key`."""
    for place in places:
        try:
            if path_kind(place) != "absent":
                return place
        except OSError as problem:
            raise error(
                f"{key}: {printable(str(place))[:300]} cannot be used: {explain_os_error(problem)}"
            ) from problem
    return None


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text; ValueError if it is none, or nested so deep that reading it fails."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error

"""Writing files so that they appear whole, reading them back, and error messages that name the file and the remedy."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zofc.errors import RunError


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turn operating-system errors while writing below `path` into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what = "no space left to write {path}; earlier files are intact: free some space, then use {resume}"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            what = "cannot write {path}: {reason}; choose another folder with --runs"
        elif error.errno == errno.ENOENT and error.filename and Path(error.filename).parent.is_dir():
            what = f"cannot write {{path}}: nothing can be made in {Path(error.filename).parent}; choose another folder"
        elif error.errno == errno.ENOENT:
            what = "{path} is gone: was its folder removed or renamed while it was in use?"
        else:
            what = "cannot write {path}: {reason}"
        text = what.format(path=path, reason=error.strerror or error, resume="zofc run --resume")
        raise RunError(text) from error


def ready_to_write(path: Path, remedy: str = "") -> None:
    """Make the folder that a file is to be written in, or say why that is impossible."""
    if path.is_dir():
        raise RunError(f"{path} is a folder, expected the name of a file to write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}{remedy}") from error


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write to a temporary name, then rename: a reader sees the old file or the new one, never a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explain_os_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_object(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


# -- reading ---------------------------------------------------------------------------------------------------------


def damaged(path: Path, what: str) -> RunError:
    """The error for a file of a run that cannot be used."""
    return RunError(f"{path.parent}: {path.name} {what}; restore the file, or remove the folder and run again")


def read_if_present(path: Path) -> bytes | None:
    """The content of a file, None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path.parent}: cannot read {path.name}: {error.strerror}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if there is no such file."""
    content = read_if_present(path)
    return {} if content is None else parse_object(content, path)


def parse_json(content: bytes, path: Path, line: int = 1) -> Any:
    """The JSON value that starts on a line of a file."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise damaged(path, f"is not valid JSON ({where}: {error.msg})") from error
    except UnicodeDecodeError as error:
        raise damaged(path, f"is not valid UTF-8 (at or after line {line})") from error


def parse_object(content: bytes, path: Path, line: int = 1) -> dict[str, Any]:
    """The JSON object that starts on a line of a file."""
    return as_mapping(parse_json(content, path, line), path)


def as_mapping(value: object, path: Path) -> dict[str, Any]:
    """The content of a file, which must be names and values."""
    if not isinstance(value, Mapping):
        what = "nothing" if value is None else type(value).__name__
        raise damaged(path, f"should hold names and values, got {what}")
    return dict(value)

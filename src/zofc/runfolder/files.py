"""Writing files so that they appear whole, reading them back, and error messages that name the file and the remedy."""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id
from typing import IO, Any

from zofc.errors import RunError

try:
    import fcntl
except ImportError:  # not on every platform
    fcntl = None  # type: ignore[assignment]

TEMPORARY = re.compile(r"\..+\.\d+\.tmp")  # a file while it is written: its name and the number of the writing thread


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
    """Write to a temporary name, then rename: a reader sees the old file or the new one, never a part of it. Temporary
    files of the same name that killed processes left are removed."""
    temporary = path.with_name(f".{path.name}.{get_native_id()}.tmp")
    with explain_os_errors(path):
        try:
            with _open_temporary(temporary) as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    remove_leftovers(path.parent, path.name)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder that takes the place of `target` when the block ends well, and is gone otherwise."""
    folder, old = (target.with_name(f".{target.name}.{os.getpid()}.{end}") for end in ("new", "old"))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
        if target.exists():
            target.rename(old)
        try:
            folder.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _open_temporary(path: Path) -> IO[bytes]:
    """An empty file that is locked until it is closed, by which others know that it is being written."""
    while True:
        file = path.open("ab")  # opened as it is: where machines share a folder, one of another may have this name
        try:
            if fcntl is not None:
                with suppress(OSError):  # file systems without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    file.truncate(0)
                    return file
        except BaseException:
            file.close()
            raise
        file.close()  # its writer renamed it meanwhile


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files that killed processes left in a folder, of one file or of all; those that are still being
    written stay."""
    if fcntl is None:
        return
    of_name = "*" if name is None else glob.escape(name)
    with suppress(OSError):  # what cannot be removed does no harm
        for path in folder.glob(f".{of_name}.*.tmp"):
            if TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                with suppress(OSError), path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else its writer was quicker
                        path.unlink()


def json_text(value: Any, indent: int | None = None, ascii_only: bool = True) -> str:
    """A value as JSON, with null for numbers that are not finite, which JSON does not have."""
    return json.dumps(_without_nan(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    return [_without_nan(each) for each in value] if isinstance(value, list | tuple) else value


def write_object(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_atomic(path, json_text(value, indent=1) + "\n")


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


def parse_run_json(content: bytes, path: Path, line: int = 1) -> Any:
    """The JSON value that starts on a line of a file."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise damaged(path, "is nested too deeply") from error
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise damaged(path, f"is not valid JSON ({where}: {error.msg})") from error
    except UnicodeDecodeError as error:
        raise damaged(path, f"is not valid UTF-8 (at or after line {line})") from error
    except ValueError as error:
        raise damaged(path, f"has a number that is too long (at or after line {line})") from error


def parse_object(content: bytes, path: Path, line: int = 1) -> dict[str, Any]:
    """The JSON object that starts on a line of a file."""
    return as_mapping(parse_run_json(content, path, line), path)


def as_mapping(value: object, path: Path) -> dict[str, Any]:
    """The content of a file, which must be names and values."""
    if not isinstance(value, Mapping):
        what = "nothing" if value is None else type(value).__name__
        raise damaged(path, f"should hold names and values, got {what}")
    return dict(value)

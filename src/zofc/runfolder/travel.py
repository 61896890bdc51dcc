"""Results that travel between machines without a shared file system: the files of a run folder, or one file, as bytes.

They arrive as results are written: whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from zofc.errors import RunError
from zofc.runfolder.files import TEMPORARY, explain_os_errors, new_folder, read_if_present, write_atomic
from zofc.runfolder.names import LOCK_FILE
from zofc.runfolder.run import Run

Files = Mapping[str, bytes]  # by the path in their folder; a result that is one file has the name ""


def pack_result(path: Path) -> dict[str, bytes]:
    """All files of a run folder but its lock, or one file; {} if there is nothing."""
    if not path.is_dir():
        content = read_if_present(path)
        return {} if content is None else {"": content}
    files = {}
    with explain_os_errors(path):
        for file in sorted(path.rglob("*")):
            if file.is_file() and file.name != LOCK_FILE and not TEMPORARY.fullmatch(file.name):
                files[file.relative_to(path).as_posix()] = file.read_bytes()
    return files


def unpack_result(files: Files, path: Path, patience: float = 0) -> None:
    """Write a result to its place. A run folder that is there is replaced under its lock, for which other processes are
    waited for so many seconds, unless it is finished. A name that leads out of the folder is an error."""
    for name in files:
        if name:
            _check_name(name, path)
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if "" in files:
            write_atomic(path, files[""])
        elif not path.exists():
            _write_folder(files, path)
        else:
            run = Run(path)
            with run.locked(patience):
                if not (run.exists and run.finished):
                    _write_folder(files, path)


def _check_name(name: str, path: Path) -> None:
    """Only names below a folder, in the notation of every system."""
    kinds = PurePosixPath(name), PureWindowsPath(name)
    if "\0" in name or any(each.anchor or ".." in each.parts or not each.parts for each in kinds):
        raise RunError(f"{path}: what was sent has a file '{name}', which does not belong below it; nothing is written")


def _write_folder(files: Files, path: Path) -> None:
    with new_folder(path) as folder:
        for name, content in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, content)

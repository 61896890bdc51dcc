"""The run folder: one process writes it, every file appears whole, no other run overwrites it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from zofc.errors import RunError
from zofc.recipe import Recipe, dump_recipe, load_recipe

EXECUTION = (
    "device",
    "threads",
    "workers",
    "cache",
    "loggers",
    "checkpoint_minutes",
    "keep_tasks",
    "graphs",
    "compile",
    "recompute",
    "memory",
)  # of a recipe's training section
BEGINNINGS = ("recipe.yaml", "environment.json", "events.jsonl")  # what a run has before its first checkpoint


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Operating-system errors while writing below `path`, in words the user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what = (
                "no space left to write {path}; what was written before is intact: free some space, then use {resume}"
            )
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
    """Make the folder that a file is to be written in, or say why that cannot be."""
    if path.is_dir():
        raise RunError(f"{path} is a folder, expected the name of a file to write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}{remedy}") from error


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write to a temporary name, then rename: a reader sees the old file or the new one, never a half."""
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


class RunFolder:
    """A folder that belongs to one recipe."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    @contextmanager
    def made(cls, path: Path, recipe: Recipe) -> Iterator[RunFolder]:
        """A new run folder, to be filled inside the block; its recipe, which makes it one, is written last."""
        with explain_os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        with folder.locked():
            yield folder
            write_atomic(path / "recipe.yaml", dump_recipe(recipe))

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> RunFolder:
        with cls.made(path, recipe) as folder:
            return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        if not (path / "recipe.yaml").is_file():
            raise RunError(f"{path} is not a run folder (it has no recipe.yaml)")
        return cls(path)

    def discard_if_empty(self) -> None:
        """Remove the folder of a run that was refused before it began, so that nothing is left of it."""
        if (self.path / "checkpoint").exists():
            return
        for name in (*BEGINNINGS, ".lock"):
            with suppress(OSError):
                (self.path / name).unlink()
        for folder in (self.path, self.path.parent):
            with suppress(OSError):  # not empty: something else is in it
                folder.rmdir()

    def take_execution(self, recipe: Recipe) -> None:
        """How and where to run is the recipe's that was asked for now; what to run stays as it is."""
        settings = {name: getattr(recipe.training, name) for name in EXECUTION}
        training = self.recipe.training.model_copy(update=settings)
        write_atomic(self.path / "recipe.yaml", dump_recipe(self.recipe.model_copy(update={"training": training})))

    @property
    def recipe(self) -> Recipe:
        return load_recipe(str(self.path / "recipe.yaml"))

    @property
    def finished(self) -> bool:
        return bool(self.read_json("metrics.json").get("finished", False))

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder, {} if it is not there yet."""
        path = self.path / name
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} cannot be read: {error}; remove the folder, and the run can be made again"
            ) from error
        if not isinstance(found, dict):
            raise RunError(f"{path} does not hold a JSON object")
        return found

    def write_json(self, name: str, value: Any) -> None:
        write_atomic(self.path / name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    @contextmanager
    def locked(self, patience: float = 0) -> Iterator[None]:
        """The sole right to write, waited for so many seconds; the system gives it back however the process ends."""
        lock = FileLock(self.path / ".lock", timeout=patience)
        with explain_os_errors(self.path):
            try:
                lock.acquire()
            except Timeout as error:
                text = f"{self.path} is being written by another process; wait for it or choose another folder"
                raise RunError(text) from error
        try:
            yield
        finally:
            lock.release()


def _substance(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says about the result; how and where it is executed does not count."""
    return recipe.model_dump(mode="json", exclude={"training": set(EXECUTION)})


def digest(value: Any) -> str:
    """Eight letters that differ between values, which JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def recipe_digest(recipe: Recipe) -> str:
    """Eight letters that differ between recipes."""
    return digest(_substance(recipe))


def folder_for(recipe: Recipe, runs: Path, again: bool = False) -> Path:
    """Where a recipe's run lies below `runs`: the same recipe finds its run again, unless a fresh one is asked for."""
    path = runs / f"{recipe.name.replace('/', '-')}-{recipe_digest(recipe)}"
    number = 2
    candidate = path
    while again and candidate.exists():
        candidate = path.with_name(f"{path.name}-{number}")
        number += 1
    return candidate


def differences(ours: Recipe, theirs: Recipe) -> list[str]:
    """Dotted keys in which two recipes differ."""

    def flat(value: Any, key: str = "") -> dict[str, Any]:
        if isinstance(value, dict) and value:
            return {
                k: v for name, part in value.items() for k, v in flat(part, f"{key}.{name}" if key else name).items()
            }
        return {key: value}

    a, b = flat(_substance(ours)), flat(_substance(theirs))
    return [
        f"{key}: {b.get(key)} there, {a.get(key)} here"
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]

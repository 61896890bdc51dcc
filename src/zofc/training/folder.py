"""The run folder: one process writes it, every file appears whole, no other run overwrites it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from zofc.errors import RunError
from zofc.recipe import Recipe, dump_recipe, load_recipe


@contextmanager
def speaking_of(path: Path) -> Iterator[None]:
    """Operating-system errors while writing below `path`, in words the user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise RunError(
                f"no space left to write {path}; what was written before is intact: free some space, then use "
                f"zofc run --resume"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise RunError(f"cannot write {path}: {error.strerror}; choose another folder with --runs") from error
        raise


def write_whole(path: Path, data: bytes | str) -> None:
    """Write to a temporary name, then rename: a reader sees the old file or the new one, never a half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with speaking_of(path):
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
    def create(cls, path: Path, recipe: Recipe) -> RunFolder:
        with speaking_of(path):
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        write_whole(path / "recipe.yaml", dump_recipe(recipe))
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        if not (path / "recipe.yaml").is_file():
            raise RunError(f"{path} is not a run folder (it has no recipe.yaml)")
        return cls(path)

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
            raise RunError(f"{path} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise RunError(f"{path} does not hold a JSON object")
        return found

    def write_json(self, name: str, value: Any) -> None:
        write_whole(self.path / name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The sole right to write; the system gives it back however the process ends."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            with speaking_of(self.path):
                lock.acquire()
        except Timeout as error:
            raise RunError(
                f"{self.path} is being written by another process; wait for it or choose another folder"
            ) from error
        try:
            yield
        finally:
            lock.release()


def recipe_digest(recipe: Recipe) -> str:
    """Eight letters that differ between recipes; how and where a run is executed does not count."""
    what = recipe.model_dump(
        mode="json", exclude={"training": {"device", "threads", "workers", "loggers", "checkpoint_minutes"}}
    )
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]


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

    a, b = flat(ours.model_dump(mode="json")), flat(theirs.model_dump(mode="json"))
    return [
        f"{key}: {b.get(key)} there, {a.get(key)} here"
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]

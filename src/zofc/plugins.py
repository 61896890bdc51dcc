"""Plug-ins: what a recipe may name that is not part of zofc.

A registry holds what recipes name: methods, sources, PEFT modules, estimators. Others add to it in two ways: an
installed package through an entry point of the registry's group, loaded when its name is first asked for, and a file
that the user gives (`--plugin FILE.py`). Nothing else is ever loaded: a run folder remembers the plug-ins it needs, for
messages alone.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any, TypeVar

from zofc.errors import PluginError, nearest
from zofc.paths import expand

_Entry = TypeVar("_Entry")
HINT = "; one of your own is loaded with --plugin FILE.py"


class Registry(dict[str, _Entry]):
    """Entries by the name that a recipe gives under `key`."""

    def __init__(self, kind: str, key: str, group: str) -> None:
        super().__init__()
        self.kind, self.key, self.group = kind, key, group
        self.modules: dict[str, str] = {}  # where each entry was defined

    def register(self, name: str, entry: _Entry, maker: Any) -> None:
        """Add an entry, defined by the class or function `maker`. Names of zofc's own are taken."""
        module = str(maker.__module__)
        if is_ours(self.modules.get(name, "")) and not is_ours(module):
            raise PluginError(f"{self.kind} '{name}' is part of zofc; give yours another name")
        self[name], self.modules[name] = entry, module

    def add(self, name: str) -> Callable[[_Entry], _Entry]:
        """A decorator that registers what it stands on."""

        def register(entry: _Entry) -> _Entry:
            self.register(name, entry, entry)
            return entry

        return register

    def knows(self, name: str) -> bool:
        """Whether there is such an entry, once the entry point of that name is loaded, if a package has one."""
        if name not in self:
            self._load(metadata.entry_points(group=self.group, name=name))
        return name in self

    def load_all(self) -> None:
        """Load the entry points of every installed package, to list them."""
        self._load(metadata.entry_points(group=self.group))

    def suggest(self, name: str) -> str:
        """What to say of a name that is not known."""
        hint = nearest(name, self)
        return f"unknown {self.kind} '{name}'{hint}" + ("" if "did you mean" in hint else HINT)

    def plugin(self, name: str) -> dict[str, str] | None:
        """What a run records of the plug-in that an entry comes from; None for zofc's own."""
        module = self.modules.get(name, "zofc")
        if is_ours(module):
            return None
        record = {"provides": f"{self.key}={name}", "module": module}
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and Path(file).is_file():
            record |= {"file": str(Path(file).resolve()), "sha256": file_digest(Path(file))}
        for point in metadata.entry_points(group=self.group, name=name):
            if point.module == module and point.dist is not None:
                record["package"] = f"{point.dist.name} {point.dist.version}"
        return record

    def _load(self, points: Iterable[metadata.EntryPoint]) -> None:
        for point in points:
            if point.name in self:
                continue
            package = point.dist.name if point.dist is not None else point.value
            try:
                point.load()
            except Exception as error:
                raise PluginError(f"{self.kind} '{point.name}' of the package {package} {explain(error)}") from error
            if point.name not in self:
                raise PluginError(
                    f"the package {package} announces {self.kind} '{point.name}' but does not register it"
                )


def is_ours(module: str) -> bool:
    """Whether a module is part of zofc."""
    return module == "zofc" or module.startswith("zofc.")


def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers methods, sources, PEFT modules or estimators; a file given twice is run once."""
    file = expand(path)
    if not file.is_file():
        raise PluginError(f"--plugin: no file '{path}'")
    if file.suffix != ".py":
        raise PluginError(f"--plugin: '{path}' is not a Python file (.py)")
    name = f"zofc_plugin_{file.stem}_{file_digest(file)[:8]}"
    if name in sys.modules:
        return
    spec = util.spec_from_file_location(name, file.resolve())
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise PluginError(f"{path} {explain(error)}") from error


def explain(error: Exception) -> str:
    """That code cannot be loaded, and in which line."""
    if isinstance(error, PluginError):
        return f"cannot be loaded: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"cannot be loaded: {type(error).__name__}: {error}{where}"


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def missing_plugin(record: Mapping[str, str]) -> str:
    """What to say of a plug-in that a run needs and that is not loaded."""
    if "package" in record:
        return f"this run needs the package {record['package']}, which provides {record['provides']}; install it"
    name = Path(record.get("file") or record.get("module") or "unknown").name
    return f"this run needs the plug-in {name}, which provides {record['provides']}; give it with --plugin FILE.py"

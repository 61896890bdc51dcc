"""Layers of a recipe: plain values, each with the file and line it was written in.

Later layers win: mappings are merge key by key, everything else is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | dict[str, Value] | None"
Key: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing to mend, and where."""

    file: str
    line: int | None
    key: Key
    text: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join([where, *([join_key(self.key)] if self.key else []), self.text])


@dataclass(frozen=True)
class Origin:
    """Where a key was written; `key` is how that file spells it (overlays: `presets.NAME.…`)."""

    file: str
    line: int | None
    key: Key


@dataclass(frozen=True)
class Layer:
    """Values of a recipe, complete or not, with the origin of every key."""

    file: str
    values: dict[str, Value] = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def __or__(self, top: Layer) -> Layer:
        """This layer with another one over it."""
        origins = {**self.origins, **{key: origin for key, origin in top.origins.items() if key}}
        return Layer(self.file, merge(self.values, top.values), origins, self.problems + top.problems)

    def without(self, *names: str) -> Layer:
        """The layer without some of its top-level keys."""
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})

    def part(self, *prefix: str) -> Layer:
        """The mapping under `prefix` as a layer of its own; empty where there is none."""
        value: Value = self.values
        for name in prefix:
            value = value.get(name) if isinstance(value, dict) else None
        depth = len(prefix)
        origins = {key[depth:]: origin for key, origin in self.origins.items() if key[:depth] == prefix}
        origins[()] = self.origin(prefix)
        return Layer(self.file, value if isinstance(value, dict) else {}, origins)

    def origin(self, key: Key) -> Origin:
        """Where `key` came from; for what was never written, where the mapping around it came from."""
        for length in range(len(key), -1, -1):
            if origin := self.origins.get(key[:length]):
                return replace(origin, key=origin.key + key[length:])
        return Origin(self.file, None, key)

    def problem(self, key: Key, text: str) -> Problem:
        """A problem of the value of a key, at the place where it was set."""
        origin = self.origin(key)
        return Problem(origin.file, origin.line, origin.key, text)


@dataclass(frozen=True)
class Sources:
    """Where the values of a recipe were written, for messages; recipes are equal whatever their sources."""

    origins: dict[Key, Origin] = field(default_factory=dict, compare=False)


def merge(base: dict[str, Value], top: dict[str, Value]) -> dict[str, Value]:
    """Nested values of both; those of `top` win."""
    both = dict(base)
    for name, value in top.items():
        below = both.get(name)
        both[name] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both


def join_key(key: Key) -> str:
    """A key as a user writes it: `optimize.peft.lr`, `data.then[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def quote(value: Value) -> str:
    """A value as a message quotes it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return f"the keys {', '.join(value)}" if value else "an empty mapping"
    text = f"[{', '.join(map(quote, value))}]" if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

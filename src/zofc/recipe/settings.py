"""Every setting of a recipe by its dotted name, with what it may be, its default and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from zofc.recipe.schema import Recipe

WORDS = {int: "integer", float: "number", str: "text", bool: "true, false", NoneType: "null"}
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "multiple_of": "multiple of"}


@dataclass(frozen=True)
class SettingInfo:
    """One setting for users: its key, values, default and meaning."""

    key: str  # optimize.<group>.lr
    values: str  # what it may be
    default: str
    description: str

    def matches(self, pattern: str) -> bool:
        """Whether the name or the description holds the pattern, in capitals or not."""
        return pattern.casefold() in f"{self.key}\n{self.description}".casefold()


def list_settings(sections: Mapping[str, type[BaseModel]] | None = None) -> Iterator[SettingInfo]:
    """Those of a recipe, and of the sections that methods declare; `<group>` stands for any name."""
    for name, field in Recipe.model_fields.items():
        if name == "optimize":
            for section, model in sorted((sections or {}).items()):
                yield from _settings_of(model, f"{section}.")
        yield from _settings_of(Recipe, "", {name: field})


def _settings_of(
    model: type[BaseModel], prefix: str, fields: Mapping[str, FieldInfo] | None = None
) -> Iterator[SettingInfo]:
    """Those of a model and of the models in it, in their order."""
    for name, field in (fields or model.model_fields).items():
        inner, step = _inner(field.annotation)
        if inner is not None:
            yield from _settings_of(inner, f"{prefix}{name}.{step}")
            continue
        default = "none" if field.is_required() else _written(field.default)
        yield SettingInfo(prefix + name, _values(field.annotation, field.metadata), default, field.description or "")


def describe_section(key: str, sections: Mapping[str, type[BaseModel]] | None = None) -> str:
    """What the part of a recipe that a setting belongs to is about."""
    name, inside, _ = key.partition(".")
    if sections and name in sections:
        return (sections[name].__doc__ or "").strip()
    inner, _ = _inner(Recipe.model_fields[name].annotation) if inside else (Recipe, "")
    return (inner.__doc__ or "").strip() if inner else ""


def _inner(kind: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that a setting holds, if it holds one, and what stands in for the names that lead to it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind, ""
    if get_origin(kind) is dict:
        return get_args(kind)[1], "<group>."
    return next((inner for option in get_args(kind) if (inner := _inner(option))[0]), (None, ""))


def _values(kind: Any, metadata: Any = ()) -> str:
    """A type in words: its values if they are few, else what it is and its bounds."""
    if get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        return _values(
            kind, [bound for one in more for bound in (one.metadata if isinstance(one, FieldInfo) else [one])]
        )
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        entries = get_args(kind)
        count = "" if entries[-1] is ... else f"{len(entries)} "
        entry = get_args(entries[0])[0] if get_origin(entries[0]) is Annotated else entries[0]
        return f"list of {count}{WORDS[entry]}s"
    if options := get_args(kind):
        return " or ".join(_values(option) for option in options)
    signed = ((sign, getattr(one, name, None)) for one in metadata for name, sign in BOUNDS.items())
    bounds = [f"{sign} {bound:.12g}" for sign, bound in signed if bound is not None]
    return " ".join([WORDS[kind], ", ".join(bounds)]).strip()


def _written(value: Any) -> str:
    """A default as a recipe would have it, numbers shortened."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)

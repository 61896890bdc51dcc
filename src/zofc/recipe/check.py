"""Checks a layer against a pydantic model; problems name file, line, key and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zofc.errors import nearest
from zofc.recipe.layers import Key, Layer, Problem, Value, quote

Model = TypeVar("Model", bound=BaseModel)

EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "multiple_of": "a multiple of {multiple_of}",
    "too_long": "at most {max_length} entries",
    "string_too_long": "at most {max_length} letters",
}


def validate(model: type[Model], layer: Layer) -> tuple[Model | None, list[Problem]]:
    """The layer as a model, or all that is wrong with it."""
    try:
        return model.model_validate(layer.values), []
    except ValidationError as failure:
        return None, list(explain_errors(model, layer, failure.errors(include_url=False)))


def explain_errors(model: type[BaseModel], layer: Layer, errors: list[ErrorDetails]) -> Iterator[Problem]:
    """pydantic's findings, one per key: what the members of a union would accept is joined by `or`."""
    expected: dict[Key, list[str]] = {}
    for error in errors:
        loc, kind, context = error["loc"], error["type"], error.get("ctx", {})
        key = locate(loc, layer.values)
        if kind == "extra_forbidden":
            yield layer.problem(loc, f"unknown key{nearest(str(loc[-1]), keys_of(model, loc[:-1]))}")
        elif kind == "missing" and isinstance(loc[-1], str):
            parent = layer.origin(key)
            yield Problem(parent.file, parent.line, (*parent.key, loc[-1]), "missing; it has no default")
        elif kind == "missing":
            expected.setdefault(key, []).append("more entries")
        elif kind == "value_error":
            yield layer.problem(key, str(context["error"]))
        else:
            wanted = EXPECTED[kind].format(**context) if kind in EXPECTED else error["msg"]
            expected.setdefault(key, []).append(wanted)
    for key, wishes in expected.items():
        if any(other[: len(key)] == key and other != key for other in expected):
            continue  # an entry of this list is wrong, which says more than that the list is not text
        value: Any = reduce(getitem, key, layer.values)  # type: ignore[arg-type]
        text = f"expected {' or '.join(dict.fromkeys(wishes))}, got {quote(value)}"
        if wishes == ["text"] and isinstance(value, (bool, int, float)):
            text += "; in quotes it would be text"
        if wishes == ["a list"] and isinstance(value, str):
            text += f"; in brackets it would be one: [{value}]"
        yield layer.problem(key, text)


def locate(loc: Key, values: Value) -> Key:
    """The parts of pydantic's location that lead through the values; others name members of a union."""
    key: list[str | int] = []
    for part in loc:
        if isinstance(values, dict) and part in values:
            values = values[str(part)]
        elif isinstance(values, tuple) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            continue
        key.append(part)
    return tuple(key)


def keys_of(kind: Any, key: Key) -> list[str]:
    """The keys that the type `kind` knows in the mapping at `key`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not key:
            return list(kind.model_fields)
        inner = kind.model_fields.get(str(key[0]))
        return keys_of(inner.annotation, key[1:]) if inner else []
    if get_origin(kind) is dict:
        return keys_of(get_args(kind)[1], key[1:])
    return next((names for option in get_args(kind) if (names := keys_of(option, key))), [])

"""Nested mappings by dotted keys, and what their values are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LARGEST = 2**53  # of counts: what JSON readers agree on


def dotted_value(tree: Any, key: str) -> Any:
    """The value at a dotted key, None where there is none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys; lists stay whole."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items())
    return {key: value for part in parts for key, value in part.items()}


def is_number(value: object) -> bool:
    """Whether this is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def is_count(value: object) -> bool:
    """Whether this is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST

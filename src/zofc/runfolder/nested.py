"""Nested mappings by dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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

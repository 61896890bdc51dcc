"""What a class may be called: a line of text with something to see in it, since answers, tables and files show it."""

from __future__ import annotations

import unicodedata

from zofc.errors import DataError

CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of characters, separators of lines and paragraphs


def check_class_name(name: str) -> str:
    """The name itself; refused if it is empty, blank, invisible or not one line of text."""
    if not isinstance(name, str):
        raise DataError(f"{name!r} is no class name; names are strings")
    kinds = {unicodedata.category(letter) for letter in name}
    if not any(kind[0] not in "CZ" for kind in kinds):
        raise DataError(f"{name!r} is no class name: there is nothing to see in it; choose another")
    if kinds & {*CONTROLS}:
        raise DataError(f"{name!r} is no class name: it has a control character or a line break; choose another")
    return name

"""Names of classes as people see them: one line with something visible in it, told apart by what can be seen.

Unicode has letters without any shape and characters that only change the direction of writing: with them a name could
be blank, look like another one, or read backwards.
"""

from __future__ import annotations

import re
import unicodedata

from zofc.errors import DataError

JOINERS = re.compile(r"(?<=[^\s\u200c\u200d])[\u200c\u200d](?=[^\s\u200c\u200d])")  # inside of words and of emoji
SELECTORS = re.compile(r"[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # which shape of a character
SHAPELESS = re.compile(r"[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]")  # of other categories than Cf
CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of characters, separators of lines and paragraphs
NEVER = ("Cc", "Cf", "Cs", "Co", "Cn")  # control, format, surrogate, private and unassigned


def tidy_name(name: str) -> str:
    """A name in composed form (NFC), without blanks around it and with single ones inside."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def name_fault(name: str) -> str | None:
    """What keeps a tidy name from being one that people can read, if anything."""
    plain = SELECTORS.sub("", JOINERS.sub("", name))
    for letter in plain:
        if unicodedata.category(letter) in NEVER or SHAPELESS.match(letter):
            return f"the name has an invisible character, U+{ord(letter):04X}; type it anew"
    if not any(unicodedata.category(letter)[0] in "LNPS" for letter in plain):
        return "a class needs a name of visible letters; give it one"
    return None


def name_key(name: str) -> str:
    """What two names that look alike have in common."""
    seen = (letter for letter in SELECTORS.sub("", tidy_name(name)) if unicodedata.category(letter) != "Cf")
    return "".join(letter for letter in seen if not SHAPELESS.match(letter))


def check_class_name(name: str) -> str:
    """The name itself; refused if it is empty, blank, invisible or not one line of text. Folders and programs may use
    format characters, which `name_fault` refuses where a name is typed."""
    if not isinstance(name, str):
        raise DataError(f"{name!r} is no class name; names are strings")
    kinds = {unicodedata.category(letter) for letter in name}
    if not any(kind[0] not in "CZ" for kind in kinds):
        raise DataError(f"{name!r} is no class name: there is nothing to see in it; choose another")
    if kinds & {*CONTROLS}:
        raise DataError(f"{name!r} is no class name: it has a control character or a line break; choose another")
    return name

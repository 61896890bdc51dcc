"""The fields of events and their types: an event of a log in which they are otherwise is not understood."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from zofc.runfolder.nested import is_count, is_number

Check = Callable[[Any], bool]
LAST_TIME = 1e11  # seconds from 1970, some thousand years: clocks may be wrong


def is_understood(event: object) -> bool:
    """Whether this is an event: its fields have the types that they should have. Kinds and fields of other versions may
    be anything, and fields that came later may be missing."""
    if not isinstance(event, Mapping) or not isinstance(event.get("event"), str):
        return False
    if not is_number(event.get("time", 0.0)) or abs(event.get("time", 0.0)) >= LAST_TIME:
        return False
    kind = FIELDS.get(event["event"], {})
    return all(check(event[name]) for name, check in kind.items() if name in event)


def is_complete(event: Mapping[str, Any]) -> bool:
    """Whether an event has the fields without which it tells nothing."""
    return "time" in event and all(name in event for name in REQUIRED.get(event["event"], ()))


def _is_value(value: object) -> bool:
    """A number, which may be undefined."""
    return is_number(value) or (isinstance(value, float) and math.isnan(value))


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_accuracy(value: object) -> bool:
    return value is None or is_number(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_position(value: object) -> bool:
    keys = ("task", "epoch")
    return value is None or (isinstance(value, Mapping) and all(is_count(value.get(key)) for key in keys))


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


_START: dict[str, Check] = {
    "name": _is_text, "method": _is_text, "groups": _list_of(_is_text), "tasks": is_count, "epochs": _list_of(is_count),
    "classes": is_count, "device": _is_text, "parameters": is_count, "position": _is_position,
}  # fmt: skip
_PLACE: dict[str, Check] = {"task": is_count, "epoch": is_count, "step": is_count}
FIELDS: dict[str, dict[str, Check]] = {
    "run_started": _START,
    "run_resumed": _START,
    "task_started": {
        "task": is_count, "classes": _list_of(_is_text), "images": is_count, "epochs": is_count, "steps": is_count,
        "step": is_count,
    },
    "epoch": {
        "task": is_count, "epoch": is_count, "number": is_count, "loss": _is_value, "accuracy": _is_value,
        "lr": _is_mapping, "seconds": is_number, "steps": is_count,
    },
    "task_trained": {"task": is_count, "seconds": is_number, "steps": is_count, "peak_memory": is_count},
    "evaluated": {"task": is_count, "row": _list_of(_is_accuracy), "all_classes": _is_accuracy, "seconds": is_number},
    "checkpoint": _PLACE,
    "interrupted": _PLACE,
    "notice": {"text": _is_text, "task": is_count},
    "run_finished": {"metrics": _is_mapping},
}  # fmt: skip
REQUIRED = {
    "task_started": ("task", "steps", "epochs"),
    "epoch": ("task", "epoch", "loss", "accuracy", "seconds", "steps"),
    "task_trained": ("task", "seconds"),
    "evaluated": ("task", "row", "seconds"),
    "checkpoint": tuple(_PLACE),
    "notice": ("text",),
}

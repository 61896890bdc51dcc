"""What the files of a run may contain: values of another type are damage, which is named and not shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zofc.errors import RecipeError, RunError
from zofc.metrics import METRICS, AccuracyMatrix
from zofc.runfolder.files import as_mapping, damaged, parse_object
from zofc.runfolder.nested import is_count, is_number

Check = Callable[[Any], bool]


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_simple(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or is_number(value)


def _is_value(value: object) -> bool:
    return _is_simple(value) or (isinstance(value, list | tuple) and all(map(_is_value, value)))


def _is_score(value: object) -> bool:
    return value is None or is_number(value)


def _mapping_of(check: Check) -> Check:
    return lambda value: isinstance(value, Mapping) and all(map(check, value.values()))


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list | tuple) and all(map(check, value))


def _is_plan(value: object) -> bool:
    return _mapping_of(_is_value)(value) and isinstance(value, Mapping) and is_number(value.get("lr", 0.0))


def _is_data(value: object) -> bool:
    return _mapping_of(_is_value)(value) and isinstance(value, Mapping) and _list_of(_is_text)(value.get("then") or [])


def _is_paper(value: object) -> bool:
    return value is None or _mapping_of(_is_text)(value)


METRIC_VALUES: dict[str, Check] = {
    "finished": _is_flag, "saved": _is_flag, "tasks": is_count, "tasks_total": is_count, "steps": is_count,
    "trainable_parameters": _mapping_of(is_count), "seconds": _mapping_of(is_number), "peak_memory": is_number,
    "peak_memory_by_task": _list_of(is_number), **dict.fromkeys(METRICS, _is_score),
}  # fmt: skip
ENVIRONMENT_VALUES: dict[str, Check] = {
    "data": _mapping_of(_is_text), "backbone": _mapping_of(_is_value), "plugins": _list_of(_mapping_of(_is_text)),
    "threads": is_count,
}  # fmt: skip
SECTIONS = ("backbone", "method", "peft", "head", "views", "training", "ridge", "coda", "l2p", "lae", "ease", "inflora")
SETTINGS: dict[str, Check] = {
    "name": _is_text, "title": _is_text, "seed": _is_simple, "rates": _is_simple, "paper": _is_paper, "data": _is_data,
    "optimize": _mapping_of(_is_plan), **dict.fromkeys(SECTIONS, _mapping_of(_is_value)),
}  # fmt: skip


def parse_metrics(content: bytes, path: Path) -> dict[str, Any]:
    """The content of `metrics.json`."""
    return _checked(parse_object(content, path), path, METRIC_VALUES)


def parse_environment(content: bytes, path: Path) -> dict[str, Any]:
    """The content of `environment.json`."""
    return _checked(parse_object(content, path), path, ENVIRONMENT_VALUES)


def _checked(content: dict[str, Any], path: Path, checks: Mapping[str, Check]) -> dict[str, Any]:
    for key, check in checks.items():
        if key in content and not check(content[key]):
            raise damaged(path, f"has a value at '{key}' that makes no sense: {str(content[key])[:60]}")
    return content


def parse_settings(content: bytes, path: Path) -> dict[str, Any]:
    """The settings of a recipe file of whatever version: sections are where they should be."""
    from zofc.recipe.parse import read_text

    try:
        layer = read_text(content.decode("utf-8-sig"), path.name)
    except UnicodeDecodeError as error:
        raise damaged(path, "is not valid UTF-8") from error
    except RecipeError as error:
        raise RunError(f"{path.parent}: {error}") from error
    if layer.problems:
        raise RunError(f"{path.parent}: {layer.problems[0]}")
    return _checked(as_mapping(layer.values or None, path), path, SETTINGS)


def parse_matrix(content: bytes, path: Path) -> AccuracyMatrix | None:
    """The accuracy matrix, None if it has no rows."""
    value = parse_object(content, path)
    try:
        matrix = AccuracyMatrix.from_json(value) if value else None
    except ValueError as error:
        raise damaged(path, f"is not an accuracy matrix: {error}") from error
    return matrix if matrix and matrix.rows else None

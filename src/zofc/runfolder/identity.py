"""Which run belongs to which recipe: the same recipe finds its run folder again and continues only that one.

Execution settings (device, workers, …) do not count. A checkpoint is compared with the recipe file in its own folder,
not with the validated recipe, so that a run can be resumed after later versions have added settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zofc.runfolder.nested import flatten

if TYPE_CHECKING:
    from zofc.recipe import Recipe

EXECUTION = (  # settings of a recipe's training section
    "device", "threads", "workers", "cache", "loggers", "checkpoint_minutes", "keep_tasks", "keep_features", "journal",
    "graphs", "compile", "recompute", "memory", "check_adapter", "calibrate", "divide", "check_ranks",
    "rank_wait",
)  # fmt: skip


def digest(value: Any) -> str:
    """Eight letters that differ between JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Identifies the recipe of a checkpoint, by the settings as the recipe file has them."""
    return digest(_substance(settings))


def recipe_digest(recipe: Recipe) -> str:
    """Identifies a recipe in the name of its run folder, the same in every version that knows its settings."""
    return settings_digest(lasting_values(recipe))


def lasting_values(recipe: Recipe) -> dict[str, Any]:
    """All values of a recipe, but those of keys that a later version added where they are as before or belong to
    another method: recipes of an earlier version find their results."""
    from zofc.recipe import ADDED_TO_GROUPS, METHOD_SECTIONS, values_of_0_1

    values, method = recipe.model_dump(mode="json", exclude={"rates"}), recipe.method
    others = {*METHOD_SECTIONS} - {method.name, method.readout}
    for section, before in values_of_0_1(method.name, method.variant, recipe.head.kind).items():
        for key, value in before.items():
            if section in values and (section in others or values[section].get(key) == value):
                values[section].pop(key, None)
    if (ridge := values.get("ridge")) and ("ridge" in others or not ridge["projection"]):
        ridge["budget"] = None  # which limits nothing here, and is what it was by default
    for group in values["optimize"].values():
        for key, value in ADDED_TO_GROUPS.items():
            if group[key] == value:
                del group[key]
    return values


def _substance(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that determine the result, not where they came from or how they are executed."""
    kept = {key: value for key, value in settings.items() if key not in ("resolved", "rates")}
    training = kept.get("training")
    if isinstance(training, Mapping):
        kept["training"] = {key: value for key, value in training.items() if key not in EXECUTION}
    return kept


def recipe_differences(ours: Recipe, theirs: Recipe) -> list[str]:
    """Dotted keys in which two recipes differ, with both values."""
    a, b = (flatten(_substance(lasting_values(recipe))) for recipe in (ours, theirs))
    different = [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
    a, b = (flatten(recipe.model_dump(mode="json")) for recipe in (ours, theirs))
    return [f"{key}: {b.get(key)} there, {a.get(key)} here" for key in different]


def folder_for(recipe: Recipe, runs: Path, again: bool = False) -> Path:
    """Where a recipe's run lies below `runs`; with `again`, a path that is still free."""
    name, numbers = f"{recipe.name.replace('/', '-')}-{recipe_digest(recipe)}", count(2)
    path = runs / name
    while again and path.exists():
        path = runs / f"{name}-{next(numbers)}"
    return path

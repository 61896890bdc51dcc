"""`import_bundle`: what a bundle has learned, as a run folder that zofc goes on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zofc.errors import BundleError, RecipeError, RunError
from zofc.export import bundle
from zofc.recipe import Recipe, load_recipe
from zofc.runfolder.create import is_free
from zofc.runfolder.progress import Progress
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import check_recipe
from zofc.training.saved_models import save_model


def import_bundle(path: str | Path, output: str | Path) -> IncrementalModel:
    """Write the model of a bundle as a run folder; it has learned what the bundle has, and the accuracies of lessons
    that zofc has not measured are missing."""
    source, target = Path(path), Path(output)
    if not is_free(target):
        raise RunError(f"{target} is not empty; choose a new folder with --output")
    manifest, state = bundle.read_manifest(source), bundle.read_state(source)
    if bundle.has_unfinished_lesson(source, state):
        raise BundleError(
            f"{source / bundle.UNFINISHED_LESSON}: a lesson is under way; finish it on the device, or remove this file "
            "to import what was learned before it"
        )
    recipe = _read_recipe(source)
    model = IncrementalModel(recipe, torch.device("cpu"))
    _check_backbone(source, manifest, model)
    values, (tensors, _) = state.values, state
    try:
        model.restore(values["classes"], [tuple(task) for task in values["tasks"]], tensors, values["calibration"])
    except (RunError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise BundleError(
            f"{source / bundle.STATE_TENSORS}: it does not fit the recipe of the bundle: {error}"
        ) from error
    save_model(model, recipe, target, _history(source, manifest))
    return model


def _read_recipe(source: Path) -> Recipe:
    try:
        return check_recipe(load_recipe(str(source / bundle.BUNDLE_RECIPE)))
    except RecipeError as error:
        raise BundleError(f"{source / bundle.BUNDLE_RECIPE}: {error}") from error


def _check_backbone(source: Path, manifest: dict[str, Any], model: IncrementalModel) -> None:
    expected = manifest.get("backbone")
    if not isinstance(expected, dict) or expected.get("checksum") != model.backbone.checksum:
        raise BundleError(
            f"{source / bundle.MANIFEST_FILE}: the bundle was exported with other weights than those of the backbone "
            f"'{model.backbone.name}' here (checksums differ); put the same weight file in its place"
        )


def _history(source: Path, manifest: dict[str, Any]) -> Progress:
    """What was measured before the export."""
    known = manifest.get("run") or {}
    try:
        rows = known["rows"]
        return Progress(rows=[list(row) for row in rows], counts=list(known["counts"]), trained=dict(known["trained"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{source / bundle.MANIFEST_FILE}: damaged, its accuracies cannot be read") from error

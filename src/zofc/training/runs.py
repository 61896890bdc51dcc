"""Starting, continuing and extending runs: what the command line and the Python API have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zofc.errors import RunError, ZofcError
from zofc.methods import complete_recipe
from zofc.recipe import Recipe
from zofc.training.checkpoint import load_checkpoint, save_checkpoint
from zofc.training.events import Listener
from zofc.training.folder import RunFolder, differences, folder_for, recipe_digest
from zofc.training.resolve import check_recipe, continue_stream, open_data
from zofc.training.trainer import Trainer

BEGUN = {".lock", "checkpoint", "environment.json"}  # what is left of an extension that was killed as it began


def start_run(recipe: Recipe, runs: Path, again: bool = False) -> RunFolder:
    """The folder for a recipe below `runs`: the one it already has (finished or not), or a new one."""
    recipe = check_recipe(recipe)
    path = folder_for(recipe, runs, again)
    if not (path / "recipe.yaml").is_file():
        return RunFolder.create(path, recipe)
    folder = RunFolder.existing(path)
    if not folder.finished:
        folder.take_execution(recipe)
    return folder


def resume_run(path: Path, recipe: Recipe | None = None) -> RunFolder:
    """An existing run, which must have been made by `recipe` if one is given."""
    folder = RunFolder.existing(path)
    recipe = recipe and complete_recipe(recipe)
    if recipe is not None and (different := differences(recipe, folder.recipe)):
        shown = "; ".join(different[:5]) + (f"; and {len(different) - 5} more" if len(different) > 5 else "")
        raise RunError(f"{path} was made by another recipe ({shown}). Leave that out to continue it as it is.")
    if recipe is not None and not folder.finished:
        folder.take_execution(recipe)
    return folder


def train(folder: RunFolder, listeners: Sequence[Listener] = ()) -> dict[str, Any]:
    """Train what is left of a run; a finished one is left as it is."""
    if folder.finished:
        return folder.read_json("metrics.json")
    return Trainer(folder, listeners).run()


def data_changed(folder: RunFolder) -> list[str]:
    """What is known to have become of the data since a run learned from them, in words; nothing if they are the same.
    Most checksums are of all that is listed: one image a class is opened, and all only if that one differs."""
    recipe, recorded = folder.recipe, folder.read_json("environment.json").get("data", {})
    few = recipe.model_copy(update={"data": recipe.data.model_copy(update={"per_class": 1, "test_per_class": 1})})

    def same(settings: Recipe, spec: str) -> bool:
        source = open_data(settings, spec, lambda text: None)
        return bool(recorded.get(source.name, source.checksum) == source.checksum)

    found = []
    for spec in (recipe.data.source, *recipe.data.then) if recorded else ():
        try:
            if not same(few, spec) and not same(recipe, spec):
                found.append(f"the data of '{spec}' have changed since they were learned (their checksum differs)")
        except ZofcError as error:
            found.append(f"the data of '{spec}' cannot be compared with what was learned: {error}")
    return found


def extend_run(run: Path, source: str, output: Path | None = None) -> RunFolder:
    """A new run folder that starts where a finished run ended and has the classes of `source` still to learn.

    The old run is left as it is: what was learned from is never lost.
    """
    old = RunFolder.existing(run)
    found = load_checkpoint(run)
    if not old.finished or found is None:
        raise RunError(f"{run} is not finished; continue it with: zofc run --resume {run}")
    recipe = old.recipe
    if recipe.data.joint:
        raise RunError(f"{run} was trained on all classes jointly; it has no further tasks to learn")
    data = recipe.data.model_copy(update={"then": (*recipe.data.then, source)})
    extended = recipe.model_copy(update={"data": data, "name": f"{recipe.name}+", "paper": None})
    path = output or folder_for(extended, run.resolve().parent)
    if (path / "recipe.yaml").is_file():
        existing = RunFolder.existing(path)
        if differences(extended, existing.recipe):
            raise RunError(f"{path} holds another run; choose a new folder with --output")
        return existing
    if path.exists() and (not path.is_dir() or {entry.name for entry in path.iterdir()} - BEGUN):
        raise RunError(f"{path} is not empty and holds no run of this kind; choose a new folder with --output")
    progress, tensors, optimizers = found
    progress.inherited, progress.recipe = progress.done, recipe_digest(extended)
    check_recipe(extended)
    continue_stream(extended, progress, lambda text: None)  # refuses what cannot be learned, before anything is written
    with RunFolder.made(path, extended) as folder:
        save_checkpoint(path, progress, tensors, optimizers)
        environment = old.read_json("environment.json")
        kept = {key: environment[key] for key in ("data", "backbone") if key in environment}
        folder.write_json("environment.json", kept)
    return folder

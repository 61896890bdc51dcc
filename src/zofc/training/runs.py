"""Starting, continuing and extending runs: what the command line and the Python API have in common."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from zofc.errors import RecipeError, RunError, ZofcError
from zofc.methods import complete_recipe
from zofc.ranks import Ranks
from zofc.recipe import Recipe, change_recipe
from zofc.runfolder import Run, create_run, new_run, open_run
from zofc.runfolder.checkpoint import load_checkpoint, save_checkpoint
from zofc.runfolder.create import is_free
from zofc.runfolder.identity import folder_for, recipe_differences, settings_digest
from zofc.runfolder.kept_features import inherit_features
from zofc.training.events import Listener
from zofc.training.resolve import check_recipe, check_runs_folder, open_data, open_stream, require_plugins
from zofc.training.trainer import Trainer

LATER_SETTINGS = ("training.", "optimize.", "data.skip_broken")


def start_run(recipe: Recipe, runs: Path, again: bool = False) -> Run:
    """The run of a recipe below `runs`: the one that is there, finished or not, or a new one."""
    recipe = check_recipe(recipe)
    run = Run(folder_for(recipe, runs, again))
    if not run.exists:
        check_runs_folder(recipe, runs)
        run = create_run(run.path, recipe)
    run.execution = recipe
    return run


def resume_run(path: Path, recipe: Recipe | None = None) -> Run:
    """An existing run, which must have been made by `recipe` if one is given."""
    run = open_run(path)
    require_plugins(run)
    recipe = recipe and complete_recipe(recipe)
    if recipe is not None and (different := recipe_differences(recipe, run.recipe)):
        shown = "; ".join(different[:5]) + (f"; and {len(different) - 5} more" if len(different) > 5 else "")
        raise RunError(f"{path} was made by another recipe ({shown}). Leave that out to continue it as it is.")
    run.execution = recipe
    return run


def train(
    run: Run, listeners: Sequence[Listener] = (), reasons: Sequence[str] = (), ranks: Ranks | None = None
) -> dict[str, Any]:
    """Train what is left of a run and return its metrics; a finished one is left as it is, and so is one that another
    process trains. `reasons` say why the recipe is as it is, for the log of a new run. Of several
    `ranks`, the first holds the lock and writes; the others read what it has written before they begin."""
    ranks = ranks or Ranks()
    if ranks.any(ranks.first and run.finished):
        return dict(run.metrics)
    with run.locked() if ranks.first else nullcontext():
        if ranks.first:
            run.apply_execution()
        ranks.any(False)  # the others wait for the first
        return Trainer(run, listeners, reasons, ranks).run()


def data_changed(run: Run) -> list[str]:
    """A sentence for each source that is known to have changed since a run learned from it, or cannot be compared.
    Most checksums are of all that is listed: one image a class is opened, and all only if that one differs."""
    recipe = run.recipe
    few = recipe.model_copy(update={"data": recipe.data.model_copy(update={"per_class": 1, "test_per_class": 1})})

    def same(settings: Recipe, spec: str) -> bool:
        source = open_data(settings, spec, lambda _: None)
        return not run.changed_data({source.name: source.checksum})

    changes = []
    for spec in (recipe.data.source, *recipe.data.then) if run.environment.get("data") else ():
        try:
            if not same(few, spec) and not same(recipe, spec):
                changes.append(f"the data of '{spec}' have changed since they were learned (their checksum differs)")
        except ZofcError as error:
            changes.append(f"the data of '{spec}' cannot be compared with what was learned: {error}")
    return changes


def check_later_settings(overrides: Sequence[str]) -> Sequence[str]:
    """Overrides of what a trained model goes on with, refused where they would change what it has learned."""
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith(LATER_SETTINGS):
            raise RecipeError(
                f"{key}: what was learned depends on it. When a run goes on, only training.*, optimize.* and "
                "data.skip_broken can be changed"
            )
    return overrides


def extend_run(path: Path, source: str, output: Path | None = None, overrides: Sequence[str] = ()) -> Run:
    """A new run that starts where a finished one ended and has the classes of `source` still to learn.

    The old run is left as it is: what was learned from is never lost.
    """
    old = open_run(path)
    require_plugins(old)
    checkpoint = load_checkpoint(old)
    if not old.finished or checkpoint is None:
        raise RunError(f"{path} is not finished; continue it with: zofc run --resume {path}")
    recipe = change_recipe(old.recipe, check_later_settings(overrides))
    if recipe.data.joint:
        raise RunError(f"{path} was trained on all classes jointly; it has no further tasks to learn")
    data = recipe.data.model_copy(update={"then": (*recipe.data.then, source)})
    extended = recipe.model_copy(update={"data": data, "name": f"{recipe.name}+", "paper": None})
    new = Run(output or folder_for(extended, path.resolve().parent))
    if new.exists:
        if recipe_differences(extended, new.recipe):
            raise RunError(f"{new} holds another run; choose a new folder with --output")
        return new
    if not is_free(new.path):
        raise RunError(f"{new} is not empty and holds no run of this kind; choose a new folder with --output")
    progress = checkpoint.progress
    progress.inherited, progress.journal = progress.done, None  # the new run begins a journal of its own
    progress.recipe = settings_digest(extended.model_dump(mode="json"))
    check_recipe(extended)
    open_stream(extended, lambda _: None, progress)  # refuses what cannot be learned, before anything is written
    with new_run(new.path, extended) as run:
        if not is_free(run.path):
            raise RunError(f"{run} was made by another process meanwhile; give the command again to continue it")
        save_checkpoint(run, progress, checkpoint.method, checkpoint.optimizers)
        if recipe.training.keep_features:
            inherit_features(old.path, run.path)
        inherited = ("data", "backbone", "plugins")
        run.write_environment({key: value for key, value in old.environment.items() if key in inherited})
    return run

"""Changes of a finished run: each writes the changed model to a new run folder and leaves the old one as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from zofc.errors import BrokenImages, Interrupted, RunError
from zofc.learner.learner import Learner
from zofc.recipe import change_recipe
from zofc.runfolder import open_run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.create import is_free
from zofc.training.events import Listener
from zofc.training.resolve import open_data, require_plugins
from zofc.training.runs import check_later_settings
from zofc.training.signals import stop_at_once


def known_classes(path: Path, source: str, overrides: Sequence[str] = ()) -> list[str]:
    """The classes of a source that a run has learned already."""
    run = open_run(path)
    require_plugins(run)
    checkpoint = load_checkpoint(run)
    learned = checkpoint.progress.classes if checkpoint else []
    recipe = change_recipe(run.recipe, check_later_settings(overrides))
    try:
        names = open_data(recipe, source, lambda _: None).classes
    except BrokenImages as error:
        raise BrokenImages(f"{error}\nWith data.skip_broken=true they are left out.", error.images) from error
    return [name for name in names if name in learned]


@contextmanager
def changed_copy(
    path: Path, output: Path, overrides: Sequence[str] = (), listeners: Sequence[Listener] = ()
) -> Iterator[Learner]:
    """The model of a run, to be changed inside the block; then it is saved to a new folder."""
    if not is_free(output):
        raise RunError(f"{output} is not empty; choose a new folder with --output")
    with stop_at_once():
        try:
            learner = Learner.load(path, overrides=check_later_settings(overrides), listeners=listeners)
            learner.recipe = learner.recipe.model_copy(update={"name": f"{learner.recipe.name}+", "paper": None})
            try:
                yield learner
            finally:
                learner.events.close()
            learner.save(output)
        except KeyboardInterrupt:
            what = f"stopped at once: {path} is as it was, and {output} was not written; to begin anew"
            raise Interrupted(f"{what}, give the command again") from None


def folder_beside(path: Path) -> Path:
    """The next free folder with the name of a run and a number."""
    beside = path.resolve()
    return next(folder for n in count(2) if is_free(folder := beside.with_name(f"{beside.name}-{n}")))

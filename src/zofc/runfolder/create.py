"""Making run folders: a folder is a run once its recipe is there, which is written last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zofc.runfolder import names
from zofc.runfolder.files import TEMPORARY, explain_os_errors, write_atomic
from zofc.runfolder.run import Run

if TYPE_CHECKING:
    from zofc.recipe import Recipe


@contextmanager
def new_run(path: Path, recipe: Recipe) -> Iterator[Run]:
    """A new run folder, filled inside the block; its recipe, which makes it a run folder, is written last."""
    from zofc.recipe import dump_recipe

    with explain_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    run = Run(path)
    with run.locked():
        yield run
        write_atomic(run.recipe_file, dump_recipe(recipe))


def create_run(path: Path, recipe: Recipe) -> Run:
    """A run folder with nothing but its recipe, or the run that another process has created there meanwhile."""
    from zofc.recipe import dump_recipe

    with explain_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    run = Run(path)
    with run.locked():
        if not run.exists:
            write_atomic(run.recipe_file, dump_recipe(recipe))
    return run


def is_free(path: Path) -> bool:
    """Whether a run folder can be created at a path: nothing is there, or the remains of a creation that was killed."""
    remains = {
        names.LOCK_FILE, names.CHECKPOINT_FOLDER, names.ENVIRONMENT_FILE, names.JOURNAL_FILE, names.METRICS_FILE
    }  # fmt: skip
    with explain_os_errors(path):
        if not path.is_dir():
            return not path.exists()
        entries = {entry.name for entry in path.iterdir()}
    return {name for name in entries if not TEMPORARY.fullmatch(name)} <= remains

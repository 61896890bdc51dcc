"""Finding runs below folders, and the files that studies keep beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zofc.errors import RunError
from zofc.runfolder.identity import digest, folder_for
from zofc.runfolder.names import COST_SUFFIX, EVENTS_FILE, KEPT_RUNS_FOLDER, RECIPE_FILE
from zofc.runfolder.run import Run, open_run

if TYPE_CHECKING:
    from zofc.recipe import Recipe


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run folders at or below the given paths, in that order and each once. Costs of a study, which lie beside its
    runs, are passed over, so that RUNS/* may be given."""
    runs: dict[Path, Path] = {}  # resolved → as given
    asked = list(map(Path, paths))
    for path in asked:
        if path.name.endswith(COST_SUFFIX) and path.is_file():
            continue
        if not path.is_dir():
            raise RunError(f"{path}: no such folder" if not path.exists() else f"{path}: a file, expected a run folder")
        below = [Path(parent) for parent, _, files in _walk(path) if RECIPE_FILE in files]
        if not below:
            raise RunError(f"{path}: not a run folder and none below it (a run folder has a {RECIPE_FILE})")
        for folder in below:
            runs.setdefault(folder.resolve(), folder)
    if asked and not runs:
        raise RunError(f"no run folder was given, only costs of a study (*{COST_SUFFIX})")
    return list(runs.values())


def read_runs(paths: Iterable[str | Path], on_damaged: Callable[[str], None] | None = None) -> list[Run]:
    """Every run at or below the given paths, with its files read. One that cannot be read is an error, or, if it was
    not asked for by name and there are others, reported to `on_damaged` and left out."""
    runs, asked, faults = [], list(map(Path, paths)), []
    for folder in find_runs(asked):
        try:
            run = open_run(folder)
            run.check()
            runs.append(run)
        except RunError as error:
            if on_damaged is None or folder in asked:
                raise
            faults.append(error)
    if on_damaged is not None and runs:
        for fault in faults:
            on_damaged(f"left out: {fault}")
    elif faults:
        raise faults[0]
    return runs


def newest_run(path: Path) -> Path | None:
    """The run folder at a path, or the one below it that was written to last and is no saved model, if any."""
    if (path / RECIPE_FILE).is_file() or (path / EVENTS_FILE).is_file():
        return path
    if path.exists() and not path.is_dir():
        raise RunError(f"{path}: a file, expected a run folder")
    with suppress(RunError, OSError):
        return max((folder for folder in find_runs([path]) if not Run(folder).saved), key=_written, default=None)
    return None


def _written(folder: Path) -> float:
    times = [0.0]
    for name in (RECIPE_FILE, EVENTS_FILE):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)


def _walk(path: Path) -> Iterable[tuple[str, list[str], list[str]]]:
    """os.walk in name order, through links too, without hidden folders and without looking inside a run folder."""
    seen: set[Path] = set()  # a link may lead back
    for parent, folders, files in os.walk(path, followlinks=True):
        here = Path(parent).resolve()
        known = RECIPE_FILE in files or here in seen
        folders[:] = [] if known else sorted(name for name in folders if not name.startswith("."))
        seen.add(here)
        yield parent, folders, files


# -- the folder of a study -------------------------------------------------------------------------------------------


def study_run(recipe: Recipe, runs: Path) -> Path:
    """The run of a recipe in a study, or a folder for a new one if it must keep its tasks and did not."""
    path = folder_for(recipe, runs)
    run = Run(path)
    if not recipe.training.keep_tasks or not run.exists:
        return path
    learned = set(range(1, run.metrics.get("tasks", 0) + 1))
    return path if set(run.kept_tasks) >= learned else folder_for(recipe, runs / KEPT_RUNS_FOLDER)


def cost_file(recipe: Recipe, runs: Path, request: Any) -> Path:
    """Where a study has the cost of a recipe's step, measured as the request says."""
    return runs / f"{recipe.name.replace('/', '-')}-{digest(request)}{COST_SUFFIX}"

"""Models between tasks as run folders: read from a finished run, written as a run with nothing left to train."""

from __future__ import annotations

from pathlib import Path

from zofc.errors import RunError
from zofc.recipe import Recipe
from zofc.runfolder import Run, new_run, write_atomic
from zofc.runfolder.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from zofc.runfolder.create import is_free
from zofc.runfolder.identity import settings_digest
from zofc.runfolder.journal import JournalPosition, KeptJournal, load_kept_journal
from zofc.runfolder.names import JOURNAL_FILE
from zofc.runfolder.progress import Progress
from zofc.training.device import environment
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import plugins_used


def finished_checkpoint(run: Run) -> Checkpoint:
    """The checkpoint of a run that stands between two tasks."""
    checkpoint = load_checkpoint(run)
    if checkpoint is None:
        raise RunError(f"{run} has no checkpoint yet: no task has been learned")
    progress = checkpoint.progress
    if progress.done < len(progress.tasks):
        raise RunError(f"{run} was stopped inside task {progress.done + 1}; finish it: zofc run --resume {run}")
    return checkpoint


def kept_journal(run: Run, progress: Progress) -> KeptJournal | None:
    """The journal of a model, from its first lesson on; none of a run that continues another. RunError if it is not the
    one of the checkpoint."""
    if progress.journal is None:
        return None
    return load_kept_journal(run.path / JOURNAL_FILE, JournalPosition(*progress.journal))


def save_model(
    model: IncrementalModel, recipe: Recipe, path: Path, history: Progress, journal: KeptJournal | None = None
) -> None:
    """Write a model as a run folder; only a saved model is ever replaced. `history` has what was measured of its tasks;
    those that it does not have are unmeasured. `journal` has the zeroth-order steps that it learned with."""
    if not is_free(path) and not Run(path).saved:
        raise RunError(f"{path} is not empty and holds no saved model; choose another folder")
    tasks = [(task.start, task.stop) for task in model.tasks]
    done = len(tasks)
    unmeasured: list[list[float | None]] = [[None] * (i + 1) for i in range(len(history.rows), done)]
    counts = [*history.counts, *([0] * (done - len(history.counts)))]
    groups = [list(model.classes[start:stop]) for start, stop in tasks]
    progress = Progress(
        recipe=settings_digest(recipe.model_dump(mode="json")), classes=list(model.classes), tasks=tasks,
        groups=groups, done=done, inherited=done, rows=[*history.rows, *unmeasured], counts=counts,
        trained=history.trained, calibration=model.calibration_state,
        journal=None if journal is None else journal.position,
    )  # fmt: skip
    with new_run(path, recipe) as run:
        if (
            journal is not None
        ):  # before the checkpoint; that of the model before is a part of it, unless lessons were undone
            write_atomic(run.path / JOURNAL_FILE, journal.content)
        save_checkpoint(run, progress, model.state_dict(), {})
        made_with = {**environment(model.device), "backbone": model.backbone.describe()}
        if journal is None:
            (run.path / JOURNAL_FILE).unlink(missing_ok=True)
        run.write_environment({**made_with, **plugins_used(recipe)})
        run.write_metrics({"finished": True, "saved": True, "tasks": done, "tasks_total": done})

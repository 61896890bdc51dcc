"""A run folder as an object: trainer, learner, analysis, report and live view all use the same `Run`.

A file is read on first use, and again after it has changed. What a killed run lacks is empty or None; a damaged file
raises a `RunError` that names the folder and the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from zofc.errors import RunError
from zofc.metrics import METRICS, AccuracyMatrix, all_classes_over_time, forgetting_by_group, summary
from zofc.runfolder import names
from zofc.runfolder.contents import parse_environment, parse_matrix, parse_metrics, parse_settings
from zofc.runfolder.events import Event, parse_events
from zofc.runfolder.files import (
    as_mapping,
    parse_object,
    read_if_present,
    write_atomic,
    write_object,
)
from zofc.runfolder.flatness import Flatness, number_at, parse_flatness
from zofc.runfolder.identity import EXECUTION, recipe_digest, settings_digest
from zofc.runfolder.lock import FolderLock, hold_lock, is_lock_held
from zofc.runfolder.nested import dotted_value
from zofc.runfolder.progress import parse_state

if TYPE_CHECKING:
    from zofc.recipe import Recipe

Measurement = Literal["flatness", "flatness-along", "curvature"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class TaskSeries:
    """Numbers one after another, and their standard deviations where they are means."""

    values: tuple[float | None, ...]
    spreads: tuple[float | None, ...] = ()


class Run:
    """One run and its folder. `open_run` opens one that exists, `create_run` makes one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.execution: Recipe | None = None  # whose execution settings (device, threads, …) training is to use
        self._lock: FolderLock | None = None  # while this object holds it
        self._parsed: dict[Any, tuple[tuple[int, ...] | None, Any]] = {}  # by file and parser: state on disk, content

    def __str__(self) -> str:
        return str(self.path)

    def _read(self, name: str, parse: Callable[[bytes, Path], _T], missing: bytes) -> _T:
        """A file as `parse` understands it, parsed again only if it has changed."""
        path = self.path / name
        state = None
        with suppress(OSError):
            stat = path.stat()
            state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        key = name, parse
        if key not in self._parsed or self._parsed[key][0] != state:
            content = read_if_present(path)
            self._parsed[key] = state, parse(missing if content is None else content, path)
        value: _T = self._parsed[key][1]
        return value

    def _object(self, name: str) -> Mapping[str, Any]:
        return self._read(name, parse_object, b"{}")

    # -- the recipe --------------------------------------------------------------------------------------------------

    @property
    def recipe_file(self) -> Path:
        """The file that makes a folder a run folder."""
        return self.path / names.RECIPE_FILE

    @property
    def exists(self) -> bool:
        """Whether the folder is a run folder."""
        return self.recipe_file.is_file()

    @property
    def settings(self) -> Mapping[str, Any]:
        """The recipe as its file has it, of whatever version of zofc."""
        return self._read(names.RECIPE_FILE, parse_settings, b"")

    @property
    def recipe(self) -> Recipe:
        """The recipe, validated."""
        from zofc.recipe import load_recipe

        return load_recipe(str(self.recipe_file))

    def setting(self, key: str) -> Any:
        """The recipe's value at a dotted key, None where it has none."""
        return dotted_value(self.settings, key)

    @property
    def name(self) -> str:
        """The name of the recipe, or of the folder."""
        return str(self.setting("name") or self.path.resolve().name)

    @property
    def title(self) -> str:
        """What tables and plots call the run."""
        return str(self.setting("title") or self.name)

    @property
    def digest(self) -> str:
        """Identifies the recipe in checkpoints of this run."""
        return settings_digest(self.settings)

    def check_recipe_unchanged(self, digest: str) -> None:
        """Refuse a recipe other than the one a checkpoint was made with; formatting and comments may differ."""
        if digest not in (self.digest, recipe_digest(self.recipe)):
            raise RunError(f"{self}: {names.RECIPE_FILE} was changed since this run began; start a new run with it")

    def apply_execution(self) -> None:
        """Write the execution settings that were asked for; all other settings stay as the file has them."""
        from zofc.recipe.parse import write_yaml

        if self.execution is None:
            return
        self.check_lock()
        before = as_mapping(self.settings.get("training", {}), self.recipe_file)
        training = {**before, **self.execution.training.model_dump(mode="json", include=set(EXECUTION))}
        if training != before:
            write_atomic(self.recipe_file, write_yaml({**self.settings, "training": training}))

    # -- what training recorded --------------------------------------------------------------------------------------

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions, device, and checksums of data and weights."""
        return self._read(names.ENVIRONMENT_FILE, parse_environment, b"{}")

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The content of `metrics.json`."""
        return self._read(names.METRICS_FILE, parse_metrics, b"{}")

    @property
    def matrix(self) -> AccuracyMatrix | None:
        """None until the first task is evaluated."""
        return self._read(names.MATRIX_FILE, parse_matrix, b"{}")

    @property
    def events(self) -> tuple[Event, ...]:
        """The content of `events.jsonl`."""
        return self._read(names.EVENTS_FILE, parse_events, b"")

    @property
    def adapter_warnings(self) -> dict[int, str]:
        """What the run said about harm that its adapter did, by task; the latest if a task was repeated."""
        about = (event for event in self.events if event.get("event") == "notice" and event.get("about") == "adapter")
        return {int(event["task"]): str(event["text"]) for event in about if "task" in event}

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        self.check_lock()
        write_object(self.path / name, value)

    def write_environment(self, value: Mapping[str, Any]) -> None:
        """Write `environment.json`."""
        self._write(names.ENVIRONMENT_FILE, value)

    def write_metrics(self, value: Mapping[str, Any]) -> None:
        """Write `metrics.json`."""
        self._write(names.METRICS_FILE, value)

    def write_matrix(self, matrix: AccuracyMatrix) -> None:
        """Write `matrix.json`."""
        self._write(names.MATRIX_FILE, matrix.to_json())

    def write_skipped(self, images: Mapping[str, str]) -> None:
        """Write `skipped.json`, the images that were left out with the reasons, if there are any."""
        if images:
            self._write(names.SKIPPED_FILE, images)

    def check_weights(self, checksum: str | None) -> None:
        """Refuse a backbone other than the one that the run was trained with."""
        if dotted_value(self.environment, "backbone.checksum") != checksum:
            raise RunError(f"{self}: the backbone's weights changed since this run was trained (checksums differ)")

    def changed_data(self, checksums: Mapping[str, str | None]) -> list[str]:
        """A sentence for each of these sources whose recorded checksum differs."""
        recorded = self.environment.get("data", {})
        return [
            f"the data of '{name}' changed since it was learned (its checksum differs)"
            for name, checksum in checksums.items()
            if recorded.get(name, checksum) != checksum
        ]

    @property
    def saved(self) -> bool:
        """Whether this is a model saved from Python: nothing runs here, and its classes need not be the recipe's."""
        with suppress(RunError):
            return self.metrics.get("saved") is True
        return False

    @property
    def finished(self) -> bool:
        """Whether all tasks are learned."""
        return self.metrics.get("finished") is True

    @property
    def tasks_done(self) -> int:
        """Number of tasks learned."""
        return len(self.matrix.rows) if self.matrix else int(number_at(self.metrics, "tasks") or 0)

    @property
    def tasks_total(self) -> int | None:
        """How many tasks the run has or will have."""
        value = self.metrics.get("tasks_total")
        if isinstance(value, int):
            return value
        for event in self.events:
            if event.get("event") in ("run_started", "run_resumed") and isinstance(event.get("tasks"), int):
                return int(event["tasks"])
        return self.tasks_done if self.finished else None

    @property
    def status(self) -> str:
        """`finished`, or how far the run has come."""
        if self.finished:
            return "finished"
        return f"unfinished: {self.tasks_done} of {self.tasks_total or '?'} tasks"

    @property
    def peak_memory(self) -> float | None:
        """Bytes: weights plus the tensors of a training step."""
        return number_at(self.metrics, "peak_memory")

    @property
    def train_seconds(self) -> float | None:
        """Seconds of training."""
        return number_at(self.metrics, "seconds.train")

    @property
    def evaluate_seconds(self) -> float | None:
        """Seconds of evaluation."""
        return number_at(self.metrics, "seconds.evaluate")

    @property
    def trainable(self) -> dict[str, int] | None:
        """Trainable parameters per group, in the last task; None before the first is done."""
        sizes = self.metrics.get("trainable_parameters")
        return None if sizes is None else dict(sizes)

    @property
    def learned(self) -> tuple[tuple[str, ...], ...]:
        """The classes of each task, of a saved model."""
        state = f"{names.CHECKPOINT_FOLDER}/{names.STATE_FILE}"
        groups = self._read(state, parse_state, b"{}").get("groups") if self.saved else None
        lists = [group for group in groups if isinstance(group, list)] if isinstance(groups, list) else []
        return tuple(tuple(map(str, group)) for group in lists)

    # -- what follows from the matrix --------------------------------------------------------------------------------

    @property
    def scores(self) -> dict[str, float | None]:
        """Every metric, over the tasks done so far."""
        return summary(self.matrix) if self.matrix else dict.fromkeys(METRICS)

    @property
    def spreads(self) -> dict[str, float | None]:
        """The standard deviations of the scores, where they are means of several runs."""
        return {}

    @property
    def accuracies(self) -> TaskSeries:
        """On all classes seen, after each task."""
        return TaskSeries(all_classes_over_time(self.matrix) if self.matrix else ())

    @property
    def drops(self) -> TaskSeries:
        """Forgetting of each old task's classes."""
        return TaskSeries(forgetting_by_group(self.matrix) if self.matrix else ())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folders that the numbers come from."""
        return (self.path,)

    # -- what was measured after training ----------------------------------------------------------------------------

    @property
    def kept_tasks(self) -> dict[int, Path]:
        """The files with the tensors kept after each task, by its number."""
        files = (self.path / names.TASKS_FOLDER).glob("*.safetensors")
        return dict(sorted((int(file.stem), file) for file in files if file.stem.isdecimal()))

    def measurement_file(self, kind: Measurement) -> Path:
        """The file of a kind of measurement."""
        return self.path / f"{kind}.json"

    def measurement(self, kind: Measurement) -> Mapping[str, Any]:
        """What was measured of the kept tasks, {} if nothing was."""
        return self._object(self.measurement_file(kind).name)

    def write_measurement(self, kind: Measurement, value: Mapping[str, Any], patience: float = 0) -> Path:
        """Write a measurement, waiting so many seconds for other processes that write to the run."""
        path = self.measurement_file(kind)
        with self.locked(patience):
            self._write(path.name, value)
        return path

    @property
    def flatness(self) -> tuple[Flatness, ...]:
        """The content of `flatness.json`."""
        return self._read(self.measurement_file("flatness").name, parse_flatness, b"{}")

    # -- the folder --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Read every file but the tensors: raises if one of them is damaged."""
        _ = self.settings, self.environment, self.matrix, self.metrics, self.events, self.flatness, self.learned

    @contextmanager
    def locked(self, patience: float = 0) -> Iterator[None]:
        """Hold the sole right to write, waiting for it so many seconds."""
        with hold_lock(self.path, patience) as lock:
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None

    def check_lock(self) -> None:
        """Stop if another process may write here because the lock that is held was deleted."""
        if self._lock is not None:
            self._lock.check()

    def is_locked(self) -> bool | None:
        """Whether a process of this machine holds the lock; None where that is not known."""
        return is_lock_held(self.path)

    def discard_if_empty(self) -> None:
        """Remove the folder of a run that was refused before its first checkpoint."""
        if (self.path / names.CHECKPOINT_FOLDER).exists():
            return
        files = names.RECIPE_FILE, names.ENVIRONMENT_FILE, names.EVENTS_FILE, names.SKIPPED_FILE, names.LOCK_FILE
        for name in (*files, names.JOURNAL_FILE):
            with suppress(OSError):
                (self.path / name).unlink()
        for folder in (self.path, self.path.parent):
            with suppress(OSError):  # not empty: something else is in it
                folder.rmdir()


def open_run(path: str | Path) -> Run:
    """The run in a folder."""
    run = Run(path)
    if not run.exists:
        what = "has no" if run.path.is_dir() else "does not exist or is no folder, so it has no"
        raise RunError(f"{path}: not a run folder, it {what} {names.RECIPE_FILE}")
    return run


def page_in(folder: Path) -> Path:
    """The report about the runs in a folder."""
    return folder / names.PAGE_FILE

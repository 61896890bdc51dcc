"""A run folder, read back (docs/run-folder.md). Whatever a killed run may lack is allowed to be missing."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from zofc.errors import RunError
from zofc.metrics import METRICS, AccuracyMatrix, all_classes_over_time, forgetting_by_group, summary

RECIPE = "recipe.yaml"  # what makes a folder a run folder
COSTS = ".cost.json"  # how files end that `zofc reproduce` leaves beside runs
FLATNESS = {  # what flatness.json measures of the old tasks' loss, and where an entry may have it
    "phi": ("phi", "old.score"),
    "lambda_max": ("lambda_max", "spectrum.largest"),
    "trace": ("trace", "trace.mean"),
}


@dataclass(frozen=True)
class Flatness:
    """How flat the loss of the old tasks is after a task: one entry of `flatness.json`."""

    task: int  # counted from 1
    over: str  # the group of parameters that was moved
    values: Mapping[str, float]  # phi, lambda_max, trace: what of them was measured
    rho: float | None = None  # how far phi moves
    spreads: Mapping[str, float | None] = field(default_factory=dict)  # standard deviations, where they are means


@dataclass(frozen=True)
class Series:
    """Numbers one after another, and their standard deviations where they are means."""

    values: tuple[float | None, ...]
    spreads: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """One run as its folder tells it. A run that has not finished its first task has no matrix and no
    metrics."""

    folder: Path
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)
    matrix: AccuracyMatrix | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    flatness: tuple[Flatness, ...] = ()  # measured afterwards, in few runs
    learned: tuple[tuple[str, ...], ...] = ()  # the classes of each task, of a model that was saved from Python

    @classmethod
    def read(cls, folder: str | Path) -> RunRecord:
        """Read a run folder; a RunError names the folder and the file that is wrong."""
        folder = Path(folder)
        if not (folder / RECIPE).is_file():
            what = "has no" if folder.is_dir() else "does not exist or is no folder, so it has no"
            raise RunError(f"{folder}: not a run folder, it {what} {RECIPE}")
        return cls(
            folder,
            _read_recipe(folder / RECIPE),
            _read_json(folder / "environment.json"),
            _read_matrix(folder / "matrix.json"),
            _read_json(folder / "metrics.json"),
            _read_events(folder / "events.jsonl"),
            _read_flatness(folder / "flatness.json"),
            _read_learned(folder) if is_saved(folder) else (),
        )

    def setting(self, key: str) -> Any:
        """The recipe's value at a dotted key, None where it has none."""
        return at(self.recipe, key)

    @property
    def name(self) -> str:
        return str(self.setting("name") or self.folder.resolve().name)

    @property
    def title(self) -> str:
        """What tables and plots call the run."""
        return str(self.setting("title") or self.name)

    @property
    def split(self) -> str:
        """The data and what a task of it is, as recipes are named: `cifar100-inc5`, `domainnet by domain`."""
        if self.saved:
            return "given from Python"
        source, by, increment = (self.setting(f"data.{key}") for key in ("source", "by", "increment"))
        of_task = f" by {by}" if by in ("domain", "domain-class") else f"-inc{increment}" if increment else ""
        return " + ".join([f"{source}{of_task}", *(self.setting("data.then") or ())])  # with what was learned later

    @property
    def moved(self) -> dict[str, str]:
        """Which order moves which group, in words by group, the head last: `peft ZO ×4`, `head FO`."""
        groups = sorted((self.setting("optimize") or {}).items(), key=lambda item: item[0] == "head")
        return {str(group): f"{group} {_order(how)}" for group, how in groups}

    @property
    def placement(self) -> str:
        return ", ".join(self.moved.values()) or "nothing trained"

    @cached_property
    def scores(self) -> dict[str, float | None]:
        """Every metric, from the matrix: so far, while the run is not finished."""
        return summary(self.matrix) if self.matrix else dict.fromkeys(METRICS)

    @property
    def spreads(self) -> dict[str, float | None]:
        """The standard deviations of the scores, where they are means."""
        return {}

    @cached_property
    def accuracies(self) -> Series:
        """On all classes seen, after each task."""
        return Series(all_classes_over_time(self.matrix) if self.matrix else ())

    @cached_property
    def drops(self) -> Series:
        """Forgetting of each old task's classes."""
        return Series(forgetting_by_group(self.matrix) if self.matrix else ())

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.folder,)

    @property
    def saved(self) -> bool:
        """Whether this is a model that was saved from Python: its classes need not be those of the recipe's data."""
        return self.metrics.get("saved") is True

    @property
    def finished(self) -> bool:
        return self.metrics.get("finished") is True

    @property
    def tasks_done(self) -> int:
        return len(self.matrix.rows) if self.matrix else int(self._number("tasks") or 0)

    @property
    def tasks_total(self) -> int | None:
        """How many tasks the run has or will have."""
        started = (event.get("tasks") for event in self.events if event.get("event") in ("run_started", "run_resumed"))
        for value in (self.metrics.get("tasks_total"), *started):
            if isinstance(value, int):
                return value
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
        return self._number("peak_memory")

    @property
    def train_seconds(self) -> float | None:
        return self._number("seconds.train")

    @property
    def evaluate_seconds(self) -> float | None:
        return self._number("seconds.evaluate")

    @property
    def trainable(self) -> dict[str, int] | None:
        """Trainable parameters per group, in the last task; None before the first is done."""
        found = self.metrics.get("trainable_parameters")
        return {str(group): int(n) for group, n in found.items()} if isinstance(found, Mapping) else None

    def _number(self, key: str) -> float | None:
        return _number(at(self.metrics, key))


def _order(how: Mapping[str, Any]) -> str:
    if how.get("order") != "zeroth":
        return "FO"
    estimator = str(how.get("estimator", "spsa")).replace("_", " ")
    return f"ZO ×{how.get('queries', '?')}" + ("" if estimator == "spsa" else f" {estimator}")


def at(tree: Any, key: str) -> Any:
    """The value at a dotted key of nested dictionaries, None where there is none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one with dotted keys; lists stay whole."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    parts = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items())
    return {key: value for part in parts for key, value in part.items()}


def labels(records: Sequence[RunRecord]) -> list[str]:
    """One name per run, each once: its title and, where runs share one, what tells them apart: the data, how
    a group is moved, the seed, else the folder."""
    found = [record.title for record in records]
    moved = [record.moved for record in records]
    for additions in (
        [f", {record.split}" for record in records],
        *([f", {how[group]}" if group in how else "" for how in moved] for group in dict.fromkeys(chain(*moved))),
        [f", seed {record.setting('seed')}" for record in records],
    ):
        found = _told_apart(found, additions)
    found = _told_apart(found, [f" ({path})" for path in _short_paths(found, records)])
    return _told_apart(found, [f" #{number}" for number in range(1, len(records) + 1)])


def named(records: Sequence[RunRecord]) -> Iterator[tuple[int, str, RunRecord]]:
    """Every run with its position, which fixes its look, and its name."""
    for number, (label, record) in enumerate(zip(labels(records), records, strict=True)):
        yield number, label, record


def _told_apart(found: Sequence[str], additions: Sequence[str]) -> list[str]:
    """The names, each with its addition where runs share the name and not the addition."""
    among: dict[str, set[str]] = defaultdict(set)
    for label, addition in zip(found, additions, strict=True):
        among[label].add(addition)
    return [label + more if len(among[label]) > 1 else label for label, more in zip(found, additions, strict=True)]


def _short_paths(found: Sequence[str], records: Sequence[RunRecord]) -> list[str]:
    """The folder of each run, from where the folders of the runs with its name part."""
    among: dict[str, list[Path]] = defaultdict(list)
    for label, record in zip(found, records, strict=True):
        among[label].append(record.folder.resolve())
    return [
        os.path.relpath(record.folder.resolve(), os.path.commonpath(among[label]))
        for label, record in zip(found, records, strict=True)
    ]


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run folders at or below the given paths, in that order and each once. Costs of a study, which lie beside its
    runs, are passed over, so that RUNS/* may be given."""
    found: dict[Path, Path] = {}  # resolved → as given
    asked = list(map(Path, paths))
    for path in asked:
        if path.name.endswith(COSTS) and path.is_file():
            continue
        if not path.is_dir():
            raise RunError(f"{path}: no such folder" if not path.exists() else f"{path}: a file, expected a run folder")
        below = [Path(parent) for parent, _, files in _walk(path) if RECIPE in files]
        if not below:
            raise RunError(f"{path}: not a run folder and none below it (a run folder has a {RECIPE})")
        for folder in below:
            found.setdefault(folder.resolve(), folder)
    if asked and not found:
        raise RunError(f"no run folder was given, only costs of a study (*{COSTS})")
    return list(found.values())


def read_runs(paths: Iterable[str | Path], damaged: Callable[[str], None] | None = None) -> list[RunRecord]:
    """Every run at or below the given paths. One that cannot be read is an error, or, if it was not asked for by name
    and there are others, told to `damaged` and left out."""
    found, asked, faults = [], list(map(Path, paths)), []
    for folder in find_runs(asked):
        try:
            found.append(RunRecord.read(folder))
        except RunError as error:
            if damaged is None or folder in asked:
                raise
            faults.append(error)
    if damaged is not None and found:
        for fault in faults:
            damaged(f"left out: {fault}")
    elif faults:
        raise faults[0]
    return found


def _walk(path: Path) -> Iterable[tuple[str, list[str], list[str]]]:
    """os.walk in name order, through links too, without hidden folders and without looking inside a run folder."""
    seen: set[Path] = set()  # a link may lead back
    for parent, folders, files in os.walk(path, followlinks=True):
        here = Path(parent).resolve()
        known = RECIPE in files or here in seen
        folders[:] = [] if known else sorted(name for name in folders if not name.startswith("."))
        seen.add(here)
        yield parent, folders, files


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path.parent}: cannot read {path.name}: {error.strerror}") from error


def _read_recipe(path: Path) -> Mapping[str, Any]:
    try:
        recipe = yaml.safe_load(_read_bytes(path) or b"")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise RunError(f"{path.parent}: {path.name} is not valid YAML: {what}") from error
    return _mapping(recipe, path)


def _read_json(path: Path) -> Mapping[str, Any]:
    content = _read_bytes(path)
    return {} if content is None else _mapping(_parse(content, path), path)


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a model saved from Python, in which nothing was or will be run."""
    with suppress(RunError):
        return _read_json(folder / "metrics.json").get("saved") is True
    return False


def _read_learned(folder: Path) -> tuple[tuple[str, ...], ...]:
    groups = _read_json(folder / "checkpoint" / "state.json").get("groups")
    return tuple(tuple(map(str, names)) for names in groups) if isinstance(groups, list) else ()


def _read_matrix(path: Path) -> AccuracyMatrix | None:
    content = _read_json(path)
    if not content:
        return None
    try:
        matrix = AccuracyMatrix.from_json(content)
    except ValueError as error:
        raise RunError(f"{path.parent}: {path.name} is not an accuracy matrix: {error}") from error
    return matrix if matrix.rows else None


def _read_events(path: Path) -> tuple[Mapping[str, Any], ...]:
    *lines, rest = (_read_bytes(path) or b"").split(b"\n")
    events = [_mapping(_parse(line, path, number), path) for number, line in enumerate(lines, 1) if line.strip()]
    try:  # what follows the last newline may have been cut off by a kill
        last = json.loads(rest) if rest.strip() else None
    except ValueError:
        last = None
    return (*events, last) if isinstance(last, dict) else tuple(events)


def _read_flatness(path: Path) -> tuple[Flatness, ...]:
    """The entries that can be understood; anything else in the file is left out."""
    content = _parse(_read_bytes(path) or b"{}", path)
    rho = next(_numbers(content, "settings.rho", "rho"), None)
    found = []
    for over, entry in _flatness_entries(content):
        values = {name: value for name, keys in FLATNESS.items() for value in _numbers(entry, *keys)}
        task = at(entry, "task")
        if isinstance(task, int) and values:
            found.append(Flatness(task, str(entry.get("over", over)), values, rho))
    return tuple(found)


def _flatness_entries(content: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each entry with the parameters it is about: a list for each set of them, or one of rows that name theirs."""
    sets = at(content, "by_set")
    lists = {**(sets if isinstance(sets, Mapping) else {}), "all parameters": at(content, "rows")}
    for name, entries in lists.items():
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping):
                yield str(name), entry


def _numbers(tree: object, *keys: str) -> Iterator[float]:
    return (value for key in keys if (value := _number(at(tree, key))) is not None)


def _number(value: object) -> float | None:
    """A finite number as it is, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _parse(content: bytes, path: Path, line: int = 1) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise RunError(f"{path.parent}: {path.name} is not valid JSON ({where}: {error.msg})") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{path.parent}: {path.name} is not valid UTF-8 (at or after line {line})") from error


def _mapping(value: object, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        what = "nothing" if value is None else type(value).__name__
        raise RunError(f"{path.parent}: {path.name} should hold names and values, got {what}")
    return value

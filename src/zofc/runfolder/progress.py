"""Where a run stands: everything of a checkpoint but its tensors, checked when it is read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zofc.errors import RunError
from zofc.metrics import AccuracyMatrix
from zofc.runfolder.files import damaged, parse_object
from zofc.runfolder.nested import LARGEST, is_count, is_number

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1
CHECKSUM_KEY = "checksum"


@dataclass
class Progress:
    """Where a run stands; everything but the tensors."""

    recipe: str = ""  # digest of the recipe that made it
    classes: list[str] = field(default_factory=list)  # names of the classes learned or being learned
    tasks: list[tuple[int, int]] = field(default_factory=list)  # class ids [start, stop) of each task
    done: int = 0  # tasks finished and evaluated
    inherited: int = 0  # of these, tasks learned in the run that this one continues
    epoch: int = 0  # within the task being learned
    step: int = 0  # within the epoch
    meter: dict[str, float] = field(default_factory=dict)  # running sums of the epoch
    learned: bool = False  # whether the task is trained and only its evaluation is left
    row: list[float | None] = field(default_factory=list)  # of that evaluation, the groups done
    rows: list[list[float | None]] = field(default_factory=list)  # the accuracy matrix so far
    counts: list[int] = field(default_factory=list)  # test images of each group
    groups: list[list[str]] = field(default_factory=list)  # class names (or the domain) of each group
    train_seconds: float = 0.0  # of the finished tasks
    evaluate_seconds: float = 0.0
    steps: int = 0  # of the finished tasks
    task_seconds: float = 0.0  # of the task being learned
    task_steps: int = 0
    trained: dict[str, int] = field(default_factory=dict)  # parameters moved, per group
    peak_memory: list[int] = field(default_factory=list)  # per task, bytes
    calibration: dict[str, Any] | None = None  # of the probabilities, if they are calibrated
    journal: tuple[int, int] | None = None  # length of the journal in bytes and its checksum, if there is one

    @property
    def position(self) -> dict[str, int]:
        """Task, epoch and step that come next."""
        return {"task": self.done, "epoch": self.epoch, "step": self.step}


def state_checksum(state: Mapping[str, Any]) -> str:
    """A digest of the state of a checkpoint, which is written beside it."""
    rest = {key: value for key, value in state.items() if key != CHECKSUM_KEY}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16).hexdigest()


def parse_state(content: bytes, path: Path) -> dict[str, Any]:
    """The state of a checkpoint as JSON has it, if it is what was written; that of version 0.1 has no checksum."""
    state = parse_object(content, path)
    if state.get("version", VERSION) != VERSION:
        raise RunError(f"{path} was written by another version of zofc and cannot be continued with this one")
    if state.get(CHECKSUM_KEY, state_checksum(state)) != state_checksum(state):
        raise damaged(path, "was damaged or edited: its checksum differs")
    return state


def parse_progress(values: dict[str, Any]) -> Progress:
    """The progress in a checkpoint; ValueError says which of its values cannot be."""
    from pydantic import ValidationError

    unknown = values.keys() - {one.name for one in fields(Progress)}
    if unknown:
        raise ValueError(f"unknown key '{min(unknown)}'")
    try:
        progress = _adapter().validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    _check(progress)
    return progress


@cache
def _adapter() -> TypeAdapter[Progress]:
    from pydantic import TypeAdapter

    return TypeAdapter(Progress)


def _check(progress: Progress) -> None:
    numbers = {key: value for key, value in asdict(progress).items() if isinstance(value, int | float)}
    numbers |= {f"trained.{group}": size for group, size in progress.trained.items()}
    numbers |= {f"peak_memory.{number}": size for number, size in enumerate(progress.peak_memory)}
    for key, value in numbers.items():
        if not 0 <= value <= LARGEST:
            raise ValueError(f"{key}: expected a number from 0 on, got {value}")
    if not progress.inherited <= progress.done <= len(progress.tasks) <= progress.done + 1:
        raise ValueError(
            f"done: {progress.done} of {len(progress.tasks)} tasks, {progress.inherited} of them inherited"
        )
    if progress.journal is not None and not all(0 <= number <= LARGEST for number in progress.journal):
        raise ValueError(f"journal: expected a length and a checksum, got {progress.journal}")
    if len(set(progress.classes)) < len(progress.classes):
        raise ValueError("classes: a name is there twice")
    for start, stop in progress.tasks:
        if not 0 <= start <= stop <= len(progress.classes):
            raise ValueError(f"tasks: classes {start} to {stop} of {len(progress.classes)}")
    if len(progress.rows) != progress.done:
        raise ValueError(f"rows: accuracies after {len(progress.rows)} tasks, but {progress.done} are done")
    if (fitted := progress.calibration) is not None:
        scale, images = fitted.get("scale"), fitted.get("images")
        if scale is None or not is_number(scale) or scale <= 0 or not is_count(images) or len(fitted) != 2:
            raise ValueError(f"calibration: expected a scale and a number of images, got {fitted}")
    AccuracyMatrix(tuple(map(tuple, progress.rows)), tuple(progress.counts))
    if any(math.isinf(value) for value in progress.meter.values()):
        raise ValueError("meter: an infinite number")

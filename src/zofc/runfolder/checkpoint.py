"""Checkpoints: safetensors for tensors, JSON for the rest, never pickle.

The JSON file names the tensor files that belong to it and is renamed into place last: that is when a checkpoint comes
into being. A large tensor of the method has a file of its own, named after its content, so that it is written again
only when it has changed. No generator state is saved, because no generator has any (see `seeds`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from zofc.errors import RunError
from zofc.runfolder.files import explain_os_errors, write_atomic
from zofc.runfolder.names import (
    CHECKPOINT_FOLDER,
    CHECKPOINT_TENSORS,
    LARGE_TENSOR,
    STATE_FILE,
    TASK_TENSORS,
    TASKS_FOLDER,
)
from zofc.runfolder.run import Run

VERSION = 1
LARGE, LARGE_KEY = 2**20, "tensor"  # bytes from which a tensor has a file of its own, and its name there


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

    @property
    def position(self) -> dict[str, int]:
        """Task, epoch and step that come next."""
        return {"task": self.done, "epoch": self.epoch, "step": self.step}


Optimizers = dict[str, dict[str, dict[str, Any]]]  # mover -> parameter -> entry


class Checkpoint(NamedTuple):
    """Everything that a run resumes from."""

    progress: Progress
    method: dict[str, Tensor]
    optimizers: Optimizers


def save_checkpoint(run: Run, progress: Progress, method: Mapping[str, Tensor], optimizers: Optimizers) -> None:
    """Write a checkpoint beside the last one, make it current, drop the last one."""
    folder = run.path / CHECKPOINT_FOLDER
    flat: dict[str, Any] = {f"method|{key}": value for key, value in method.items()}
    for mover, parameters in optimizers.items():
        for name, entries in parameters.items():
            flat |= {f"optimizer|{mover}|{name}|{key}": value for key, value in entries.items()}
    tensors = {key: value for key, value in flat.items() if isinstance(value, Tensor)}
    scalars = {key: value for key, value in flat.items() if key not in tensors}
    large = {key: value for key, value in tensors.items() if key.startswith("method|") and value.nbytes >= LARGE}
    with explain_os_errors(folder):
        folder.mkdir(exist_ok=True)
        names = {key: _write_large(folder, value) for key, value in large.items()}
        leftovers = [path for path in folder.iterdir() if path.name not in {STATE_FILE, *names.values()}]
        numbers = [int(path.stem.split("-")[1]) for path in folder.glob("tensors-*.safetensors")]
        file = folder / CHECKPOINT_TENSORS.format(1 + max(numbers, default=0))
        _write_tensors(file, {key: value for key, value in tensors.items() if key not in large})
        state = {"version": VERSION, "tensors": file.name, "large": names, "scalars": scalars, **asdict(progress)}
        write_atomic(folder / STATE_FILE, json.dumps(state) + "\n")
        for path in leftovers:
            path.unlink(missing_ok=True)


def load_checkpoint(run: Run) -> Checkpoint | None:
    """The current checkpoint, None if there is none yet."""
    path = run.path / CHECKPOINT_FOLDER / STATE_FILE
    if not path.exists():
        return None
    try:
        state = json.loads(path.read_text())
        if not isinstance(state, dict):
            raise ValueError(f"{STATE_FILE} holds no object")
        if state.pop("version") != VERSION:
            raise RunError(f"{path} was written by another version of zofc and cannot be continued with this one")
        file, scalars, large = state.pop("tensors"), state.pop("scalars"), state.pop("large", {})
        state["tasks"] = [(a, b) for a, b in state["tasks"]]
        progress = Progress(**state)
        tensors = _read_tensors(path.with_name(Path(file).name))
        for key, name in large.items():
            tensors[key] = _read_tensors(path.with_name(Path(name).name))[LARGE_KEY]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        what = f"{STATE_FILE} has no {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(f"{path.parent} cannot be read: {what}. To start the run anew: zofc run --again") from error
    method = {key.removeprefix("method|"): value for key, value in tensors.items() if key.startswith("method|")}
    return Checkpoint(progress, method, _unflatten({**tensors, **scalars}))


def keep_task(run: Run, number: int, method: Mapping[str, Tensor]) -> None:
    """Keep the method's tensors as they are after task `number`, counted from 1."""
    folder = run.path / TASKS_FOLDER
    with explain_os_errors(folder):
        folder.mkdir(exist_ok=True)
    _write_tensors(folder / TASK_TENSORS.format(number), method)


def load_task(path: Path) -> dict[str, Tensor]:
    """The tensors in a file of `Run.kept_tasks`."""
    try:
        return _read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    write_atomic(path, save({key: value.detach().cpu().contiguous() for key, value in tensors.items()}))


def _write_large(folder: Path, tensor: Tensor) -> str:
    """The name of the file that holds a tensor, which may be there already."""
    data = save({LARGE_KEY: tensor.detach().cpu().contiguous()})
    path = folder / LARGE_TENSOR.format(hashlib.blake2b(data, digest_size=16).hexdigest())
    if not path.exists():
        write_atomic(path, data)
    return path.name


def _read_tensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as tensors:
        return {key: tensors.get_tensor(key) for key in tensors.keys()}  # noqa: SIM118 (not a dict)


def _unflatten(flat: Mapping[str, Any]) -> Optimizers:
    state: Optimizers = {}
    for where, value in flat.items():
        if where.startswith("optimizer|"):
            _, mover, name, key = where.split("|")
            state.setdefault(mover, {}).setdefault(name, {})[key] = value
    return state

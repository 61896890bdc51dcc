"""Checkpoints: safetensors for tensors, JSON for the rest, never pickle.

The JSON file names the tensor files that belong to it and is renamed into place last: that is when a checkpoint comes
into being. A large tensor of the method has a file of its own, named after its content, so that it is written again
only when it has changed. No generator state is saved, because no generator has any (see `seeds`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from zofc.errors import RunError
from zofc.runfolder.files import explain_os_errors, read_if_present, write_atomic
from zofc.runfolder.names import (
    CHECKPOINT_FOLDER,
    CHECKPOINT_TENSORS,
    LARGE_TENSOR,
    STATE_FILE,
    TASK_TENSORS,
    TASKS_FOLDER,
)
from zofc.runfolder.progress import CHECKSUM_KEY, VERSION, Progress, parse_progress, parse_state, state_checksum
from zofc.runfolder.run import Run
from zofc.runfolder.tensors import pack_tensors, read_tensors, tensors_checksum

LARGE, LARGE_KEY = 2**20, "tensor"  # bytes from which a tensor has a file of its own, and its name there
START_ANEW = "To start the run anew: zofc run --again"

Optimizers = dict[str, dict[str, dict[str, Any]]]  # mover -> parameter -> entry


class Checkpoint(NamedTuple):
    """Everything that a run resumes from."""

    progress: Progress
    method: dict[str, Tensor]
    optimizers: Optimizers


def save_checkpoint(run: Run, progress: Progress, method: Mapping[str, Tensor], optimizers: Optimizers) -> None:
    """Write a checkpoint beside the last one, make it current, drop the last one."""
    run.check_lock()
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
        stems = (path.stem.partition("-") for path in folder.iterdir())
        numbers = [int(number) for word, _, number in stems if word == "tensors" and number.isdecimal()]
        file = folder / CHECKPOINT_TENSORS.format(1 + max(numbers, default=0))
        write_atomic(file, pack_tensors({key: value for key, value in tensors.items() if key not in large}))
        state = {"version": VERSION, "tensors": file.name, "large": names, "scalars": scalars, **asdict(progress)}
        write_atomic(folder / STATE_FILE, json.dumps({**state, CHECKSUM_KEY: state_checksum(state)}) + "\n")
        for path in leftovers:
            path.unlink(missing_ok=True)


def load_checkpoint(run: Run) -> Checkpoint | None:
    """The current checkpoint, None if there is none yet."""
    path = run.path / CHECKPOINT_FOLDER / STATE_FILE
    content = read_if_present(path)
    if content is None:
        return None
    try:
        state = parse_state(content, path)
    except RunError as error:
        raise RunError(f"{path.parent} cannot be read: {error}. {START_ANEW}") from error
    try:
        return _assemble(path.parent, state)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{STATE_FILE} has no {error}" if isinstance(error, KeyError) else f"{STATE_FILE}: {error}"
        raise RunError(f"{path.parent} cannot be read: {what}. {START_ANEW}") from error


def _assemble(folder: Path, state: dict[str, Any]) -> Checkpoint:
    """The checkpoint that a state describes, with the tensors that it names."""
    del state["version"]
    state.pop(CHECKSUM_KEY, None)
    file, scalars, large = state.pop("tensors"), dict(state.pop("scalars")), dict(state.pop("large", {}))
    progress = parse_progress(state)
    tensors = _read(folder, file)
    for key, name in large.items():
        tensors[key] = _read(folder, name)[LARGE_KEY]
    for key, value in scalars.items():
        if not isinstance(value, int | float | None):
            raise ValueError(f"{key}: expected a number, got {value!r}")
    method = {key.removeprefix("method|"): value for key, value in tensors.items() if key.startswith("method|")}
    return Checkpoint(progress, method, _unflatten({**tensors, **scalars}))


def keep_task(run: Run, number: int, method: Mapping[str, Tensor]) -> None:
    """Keep the method's tensors as they are after task `number`, counted from 1."""
    run.check_lock()
    folder = run.path / TASKS_FOLDER
    with explain_os_errors(folder):
        folder.mkdir(exist_ok=True)
    write_atomic(folder / TASK_TENSORS.format(number), pack_tensors(method))


def load_task(path: Path) -> dict[str, Tensor]:
    """The tensors in a file of `Run.kept_tasks`."""
    return read_tensors(path)


def _write_large(folder: Path, tensor: Tensor) -> str:
    """The name of the file that holds a tensor, which may be there already."""
    tensors = {LARGE_KEY: tensor.detach().cpu().contiguous()}
    path = folder / LARGE_TENSOR.format(tensors_checksum(tensors))
    if not path.exists():
        write_atomic(path, pack_tensors(tensors))
    return path.name


def _read(folder: Path, name: str) -> dict[str, Tensor]:
    try:
        return read_tensors(folder / Path(name).name)
    except RunError as error:
        raise RunError(f"{folder} cannot be read: {error}. {START_ANEW}") from error


def _unflatten(flat: Mapping[str, Any]) -> Optimizers:
    state: Optimizers = {}
    for where, value in flat.items():
        kind, *place = where.split("|")
        if kind == "method" and len(place) == 1:
            continue
        if kind != "optimizer" or len(place) != 3:
            raise ValueError(f"'{where}' is no name of a tensor")
        mover, name, key = place
        state.setdefault(mover, {}).setdefault(name, {})[key] = value
    return state

"""Checkpoints: safetensors for tensors, JSON for the rest, never pickle.

`state.json` names the tensor file that belongs to it and is renamed into place last: that is when a checkpoint comes
into being. No generator state is saved, because no generator has any (see `seeds`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from zofc.errors import RunError
from zofc.training.folder import speaking_of, write_whole

VERSION = 1
FOLDER = "checkpoint"


@dataclass
class Progress:
    """Where a run stands; everything but the tensors."""

    classes: list[str] = field(default_factory=list)  # names of the classes learned or being learned
    tasks: list[tuple[int, int]] = field(default_factory=list)  # class ids [start, stop) of each task
    done: int = 0  # tasks finished and evaluated
    inherited: int = 0  # of these, tasks learned in the run that this one continues
    epoch: int = 0  # within the task being learned
    step: int = 0  # within the epoch
    meter: dict[str, float] = field(default_factory=dict)  # running sums of the epoch
    rows: list[list[float | None]] = field(default_factory=list)  # the accuracy matrix so far
    counts: list[int] = field(default_factory=list)  # test images of each group
    groups: list[tuple[int, int]] = field(default_factory=list)
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    steps: int = 0
    peak_memory: list[int] = field(default_factory=list)  # per task, bytes


def save_checkpoint(run: Path, progress: Progress, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    """Write a checkpoint beside the last one, make it current, drop the last one."""
    folder = run / FOLDER
    with speaking_of(folder):
        folder.mkdir(exist_ok=True)
        old = sorted(folder.glob("tensors-*.safetensors"))
        number = 1 + max((int(path.stem.split("-")[1]) for path in old), default=0)
        name = f"tensors-{number:06d}.safetensors"
        data = save({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
        write_whole(folder / name, data)
        state = {"version": VERSION, "tensors": name, "scalars": scalars, **asdict(progress)}
        write_whole(folder / "state.json", json.dumps(state) + "\n")
        for path in old:
            path.unlink(missing_ok=True)


def load_checkpoint(run: Path) -> tuple[Progress, dict[str, Tensor], dict[str, Any]] | None:
    """The current checkpoint, or None if there is none yet."""
    path = run / FOLDER / "state.json"
    if not path.exists():
        return None
    try:
        state = json.loads(path.read_text())
        if state.pop("version") != VERSION:
            raise RunError(f"{path} was written by another version of zofc and cannot be continued with this one")
        file, scalars = state.pop("tensors"), state.pop("scalars")
        state["tasks"] = [(a, b) for a, b in state["tasks"]]
        state["groups"] = [(a, b) for a, b in state["groups"]]
        progress = Progress(**state)
        with safe_open(path.with_name(Path(file).name), framework="pt") as tensors:
            found = {key: tensors.get_tensor(key) for key in tensors.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"{path.parent} cannot be read: {error}") from error
    return progress, found, scalars


def pack_optimizers(state: dict[str, dict[str, dict[str, Any]]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Optimiser state (mover → parameter → entry) as tensors and scalars under flat names."""
    flat = {
        f"optimizer|{mover}|{name}|{key}": value
        for mover, names in state.items()
        for name, entries in names.items()
        for key, value in entries.items()
    }
    tensors = {key: value for key, value in flat.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in flat.items() if key not in tensors}


def unpack_optimizers(tensors: dict[str, Tensor], scalars: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    state: dict[str, dict[str, dict[str, Any]]] = {}
    for flat, value in {**tensors, **scalars}.items():
        if flat.startswith("optimizer|"):
            _, mover, name, key = flat.split("|")
            state.setdefault(mover, {}).setdefault(name, {})[key] = value
    return state

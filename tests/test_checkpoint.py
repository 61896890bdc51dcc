"""Facts about checkpoints: large tensors are written when they change, and found again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zofc.errors import RunError
from zofc.recipe import Recipe
from zofc.runfolder import create_run
from zofc.runfolder.checkpoint import LARGE, load_checkpoint, save_checkpoint
from zofc.runfolder.progress import Progress
from zofc.runfolder.run import Run


@pytest.fixture
def run(tiny_recipe: Callable[..., Recipe], tmp_path: Path) -> Run:
    return create_run(tmp_path / "run", tiny_recipe("simplecil/base"))


def state(gram: float) -> dict[str, Tensor]:
    return {"head.gram": torch.full((LARGE // 8,), gram, dtype=torch.float64), "head.sigma": torch.tensor(gram)}


def large_files(run: Run) -> dict[str, int]:
    """Name and time of writing of each file that holds one tensor."""
    return {path.name: path.stat().st_mtime_ns for path in (run.path / "checkpoint").glob("tensor-*")}


def test_a_large_tensor_is_written_again_only_when_it_has_changed(run: Run) -> None:
    save_checkpoint(run, Progress(step=1), state(1.0), {})
    first = large_files(run)
    save_checkpoint(run, Progress(step=2), {**state(1.0), "head.sigma": torch.tensor(5.0)}, {})
    assert large_files(run) == first and len(first) == 1
    loaded = load_checkpoint(run)
    assert loaded is not None and loaded.progress.step == 2
    assert torch.equal(loaded.method["head.gram"], state(1.0)["head.gram"]) and float(loaded.method["head.sigma"]) == 5
    save_checkpoint(run, Progress(step=3), state(2.0), {})
    assert len(large_files(run)) == 1 and large_files(run).keys() != first.keys()  # the old one is gone
    loaded = load_checkpoint(run)
    assert loaded is not None and torch.equal(loaded.method["head.gram"], state(2.0)["head.gram"])


def test_until_the_new_checkpoint_is_current_the_old_one_is_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(run, Progress(step=1), state(1.0), {})

    def stop(path: Path, data: object) -> None:
        if path.name == "state.json":
            raise KeyboardInterrupt
        path.write_bytes(data if isinstance(data, bytes) else str(data).encode())

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("zofc.runfolder.checkpoint.write_atomic", stop)
        save_checkpoint(run, Progress(step=2), state(2.0), {})
    loaded = load_checkpoint(run)
    assert loaded is not None and loaded.progress.step == 1
    assert torch.equal(loaded.method["head.gram"], state(1.0)["head.gram"])
    save_checkpoint(run, Progress(step=2), state(2.0), {})
    assert len(large_files(run)) == 1


def test_a_missing_large_tensor_is_named(run: Run) -> None:
    save_checkpoint(run, Progress(), state(1.0), {})
    (name,) = large_files(run)
    (run.path / "checkpoint" / name).unlink()
    with pytest.raises(RunError, match=f"checkpoint cannot be read: .*{name}.*zofc run --again"):
        load_checkpoint(run)

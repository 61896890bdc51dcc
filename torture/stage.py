"""What tries start from, made once: a tiny backbone, folders of images, and small runs in several states."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torture.sandbox import Job, Limits, command, start

GEOMETRY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
CLASSES, NEW_CLASSES = ("ant", "bee", "cow", "dog"), ("eel", "fox")
PER_CLASS = 6
VERSION = 1  # of what is made; another one is made anew
KILL_AT_CHECKPOINT = 3  # where the stopped run was killed


@dataclass(frozen=True)
class Stage:
    """The folder that holds it all; nothing in it is changed by a try."""

    path: Path

    @property
    def weights(self) -> Path:
        """A ViT of 16 pixels, width 24, depth 3."""
        return self.path / "tiny.safetensors"

    @property
    def photos(self) -> Path:
        """Four classes of small images."""
        return self.path / "photos"

    @property
    def new_photos(self) -> Path:
        """Two further classes."""
        return self.path / "new"

    @property
    def trained(self) -> Path:
        """A finished run of ZO-FC on glyphs, with the tensors of every task."""
        return self.path / "trained"

    @property
    def closed(self) -> Path:
        """A finished run of ridge regression on the photos."""
        return self.path / "closed"

    @property
    def stopped(self) -> Path:
        """The run of ZO-FC, killed inside a task."""
        return self.path / "stopped"

    @property
    def runs(self) -> tuple[Path, ...]:
        """All runs."""
        return self.trained, self.closed, self.stopped

    def settings(self, *more: str) -> list[str]:
        """Overrides that make a shipped recipe tiny."""
        return [
            f"backbone.name={self.weights}", "data.source=glyphs:clean", "data.classes=4", "data.increment=2",
            "data.per_class=6", "data.test_per_class=3", "training.batch_size=6", "training.device=cpu",
            "training.workers=0", *more,
        ]  # fmt: skip

    def zofc(self, *more: str) -> list[str]:
        """The words of a tiny run of ZO-FC with a checkpoint after every step."""
        return [
            "zofc/base", *self.settings(), "peft.blocks=first 2", "optimize.peft.epochs=2", "optimize.head.epochs=1",
            "training.checkpoint_minutes=1e-9", "training.keep_tasks=true", *more,
        ]  # fmt: skip

    def ridge(self, *more: str) -> list[str]:
        """The words of a run of ridge regression on the photos."""
        photos = [f"data.source=folder:{self.photos}", "ridge.projection=64"]
        return ["ridge/base", *self.settings(), *photos, *more]


def make_stage(work: Path) -> Stage:
    """The stage below a work folder, made if it is not there."""
    stage = Stage((work / "stage" / source_digest()).resolve())
    done = stage.path / f"done-{VERSION}"
    if done.is_file():
        return stage
    shutil.rmtree(stage.path, ignore_errors=True)
    stage.path.mkdir(parents=True)
    _do(stage, lambda: save_weights(stage.weights), "weights")
    save_photos(stage.photos, CLASSES, seed=1)
    save_photos(stage.new_photos, NEW_CLASSES, seed=2)
    _do(stage, command(["run", *stage.zofc(), "-q", "--runs", "a"]), "trained")
    _do(stage, command(["run", *stage.ridge(), "-q", "--runs", "b"]), "closed")
    _do(stage, _killed(["run", *stage.zofc(), "-q", "--runs", "c"]), "stopped")
    for folder, run in zip("abc", stage.runs, strict=True):
        made = next(path.parent for path in (stage.path / folder).glob("*/recipe.yaml"))
        made.rename(run)
        shutil.rmtree(stage.path / folder)
    done.touch()
    return stage


def source_digest() -> str:
    """Names the code of zofc: what was made with other code is no measure of it."""
    import zofc

    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(Path(zofc.__path__[0]).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _do(stage: Stage, job: Job, name: str) -> None:
    """Do a part of the work in a process of its own; it must succeed."""
    output = stage.path / f"{name}.txt"
    outcome = start(job, stage.path, output, home=stage.path).finish(Limits(120))
    if outcome.status:
        raise RuntimeError(f"the harness cannot make its {name} ({outcome.status}):\n{outcome.text}")


def _killed(words: Sequence[str]) -> Job:
    """The job of `zofc WORDS` that ends without a word after a number of checkpoints."""

    def job() -> object:
        trainer: Any = import_module("zofc.training.trainer")
        save, left = trainer.save_checkpoint, [KILL_AT_CHECKPOINT]

        def save_and_end(*arguments: object) -> None:
            save(*arguments)
            left[0] -= 1
            if not left[0]:
                os._exit(0)

        trainer.save_checkpoint = save_and_end
        return command(words)()

    return job


def save_weights(path: Path) -> None:
    """A random ViT as a weight file that describes itself."""
    import torch
    from safetensors.torch import save_file
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    state = VisionTransformer(**GEOMETRY, num_classes=0).state_dict()
    values = {name: torch.randn_like(value) * 0.3 if value.dim() > 1 else value for name, value in state.items()}
    metadata = {key: str(value) for key, value in GEOMETRY.items()} | {"mean": "0.4,0.5,0.6", "std": "0.2,0.2,0.2"}
    save_file({name: value.half() for name, value in values.items()}, path, metadata)


def save_photos(folder: Path, classes: Sequence[str], seed: int) -> None:
    """Folders of small PNG and JPEG images, a colour for each class."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        colour = random.integers(0, 200, 3)
        for number in range(PER_CLASS):
            height, width = random.integers(14, 26, 2)
            pixels = colour + random.integers(0, 56, (height, width, 3))
            suffix = ("png", "jpg")[number % 2]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.{suffix}")

"""Features of test images, kept with a run: a run that goes on, or learns more, computes none of them again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from zofc.errors import RunError
from zofc.runfolder.files import explain_os_errors, write_atomic
from zofc.runfolder.names import FEATURES_FILE, FEATURES_FOLDER
from zofc.runfolder.run import Run
from zofc.runfolder.tensors import pack_tensors, read_tensors

FeatureBatch = tuple[Tensor, Tensor]  # features and labels, on the CPU


class KeptFeatures(NamedTuple):
    """Batches as they were computed, and the seconds that it took."""

    batches: list[FeatureBatch]
    seconds: float


class FeatureFile:
    """The features of one group of test images in a run folder. `about` is what they depend on besides the model's
    state: classes and images."""

    def __init__(self, run: Run, group: int, about: Sequence[str]) -> None:
        self.run = run
        self.path = run.path / FEATURES_FOLDER / FEATURES_FILE.format(group + 1)
        self.about = tuple(about)

    def read(self, embedding: object) -> KeptFeatures | None:
        """The features, None if there are none of these images by this embedding. A damaged file is none: it will be
        written anew."""
        with suppress(RunError, KeyError, ValueError, TypeError, RuntimeError):
            kept = read_tensors(self.path)
            if bytes(kept["key"].tolist()) == self._key(embedding):
                sizes = kept["sizes"].tolist()
                batches = zip(*(torch.split(kept[name], sizes) for name in ("features", "labels")), strict=True)
                return KeptFeatures(list(batches), float(kept["seconds"]))
        return None

    def write(self, embedding: object, kept: KeptFeatures) -> None:
        """Keep the features."""
        self.run.check_lock()
        features, labels = (torch.cat(parts) for parts in zip(*kept.batches, strict=True))
        sizes = torch.tensor([len(part) for _, part in kept.batches])
        tensors = {"features": features, "labels": labels, "sizes": sizes, "seconds": torch.tensor(kept.seconds),
                   "key": torch.tensor([*self._key(embedding)])}  # fmt: skip
        with explain_os_errors(self.path):
            self.path.parent.mkdir(exist_ok=True)
        write_atomic(self.path, pack_tensors(tensors))

    def _key(self, embedding: object) -> bytes:
        return blake2b(repr((embedding, self.about)).encode(), digest_size=16).digest()


def inherit_features(old: Path, new: Path) -> None:
    """Copy the kept features of a run to one that goes on from it."""
    with explain_os_errors(new):
        if (old / FEATURES_FOLDER).is_dir():
            shutil.copytree(old / FEATURES_FOLDER, new / FEATURES_FOLDER, dirs_exist_ok=True)

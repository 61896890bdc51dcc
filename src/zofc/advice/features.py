"""Features of a sample of images by frozen backbones, kept in the user's cache folder: no image passes twice."""

from __future__ import annotations

import hashlib
import io
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zofc.data.decode_cache import cache_folder
from zofc.data.selection import Indices, select_per_class
from zofc.data.source import Source
from zofc.recipe import Recipe
from zofc.runfolder import write_atomic
from zofc.seeds import stream
from zofc.training.incremental_model import IncrementalModel
from zofc.training.memory import measure_peak, resident_tensors

FEWEST = 4  # images a class, whatever the time: two to learn from and two to be asked
TIMED = 8  # images that tell how long one takes


@dataclass(frozen=True)
class FeatureSample:
    """Features (images, width) with labels, and what they cost."""

    features: Tensor
    labels: Tensor
    seconds_per_image: float
    memory: int  # the most bytes while a batch passes, weights included


def sample_features(model: IncrementalModel, source: Source, per_class: int) -> FeatureSample:
    """The features of so many images of each class, from the cache where they are known."""
    chosen = select_per_class(source.train.labels, per_class, stream(model.recipe.seed, "recommend"))
    path = _folder() / f"{_key(model.recipe, source, chosen, model.backbone.checksum)}.npz"
    with suppress(OSError, ValueError, KeyError):  # else they are computed
        kept = np.load(path, allow_pickle=False)
        features, seconds, memory = torch.from_numpy(kept["features"]), float(kept["seconds"]), int(kept["memory"])
        return FeatureSample(features, torch.from_numpy(source.train.labels[chosen]), seconds, memory)
    loader, parts, clock = model.loader(source.train), [], time.perf_counter()
    with torch.no_grad():
        for images, _ in model.plain_batches(loader, chosen):
            parts.append(model.backbone.features(images).float().cpu())
        features, seconds = torch.cat(parts), (time.perf_counter() - clock) / len(chosen)
        with measure_peak(model.device, resident_tensors(model)) as peak:
            model.backbone.features(next(iter(model.plain_batches(loader, chosen)))[0])
    memory = peak.bytes
    packed = io.BytesIO()
    np.savez(packed, features=features.numpy(), seconds=seconds, memory=memory)
    with suppress(OSError):  # a cache that cannot be written is no error
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, packed.getvalue())
    return FeatureSample(features, torch.from_numpy(source.train.labels[chosen]), seconds, memory)


def affordable(model: IncrementalModel, source: Source, seconds: float) -> int:
    """How many images of each class pass through the backbone in so many seconds, at least a few; all if that is
    less. The time of an image is measured on a few of them, so on a busy machine there are fewer."""
    labels = source.train.labels
    some: Indices = np.arange(min(TIMED, len(labels)))
    loader = model.loader(source.train)
    clock = 0.0
    for _ in range(2):  # the first time, much is made that stays
        clock = time.perf_counter()
        with torch.no_grad():
            for images, _labels in model.plain_batches(loader, some):
                model.backbone.features(images)
        clock = time.perf_counter() - clock
    most = seconds / max(clock / len(some), 1e-6)
    classes, counts = np.unique(labels, return_counts=True)
    steps = [number for number in (4, 8, 16, 32, 64, 128, 256, 512) if number * len(classes) <= most]
    return min(int(counts.max()), max([FEWEST, *steps]))  # few sizes, so that the cache is found again


def clear_cached_features() -> None:
    """Remove all features: which images they are of is not recorded."""
    for path in (*_folder().glob("*.npz"), *_folder().glob("*.json")):
        with suppress(OSError):
            path.unlink()


def cached_measurement(key: str) -> Path:
    """Where a measurement on the images is kept, beside their features."""
    return _folder() / f"{key}.json"


def _folder() -> Path:
    return cache_folder().parent / "features"


def _key(recipe: Recipe, source: Source, chosen: Indices, checksum: str | None) -> str:
    """What the features depend on."""
    parts = {
        "source": source.checksum,
        "images": hashlib.sha256(chosen.tobytes()).hexdigest(),
        "backbone": checksum or recipe.backbone.name,
        "size": recipe.backbone.image_size,
        "views": recipe.views.model_dump(mode="json"),
        "precision": recipe.training.precision,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

"""Whether the exported graph answers as torch does, on the run's own test images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zofc.data import ImageSet
from zofc.data.views import normalise
from zofc.errors import RunError, ZofcError
from zofc.recipe import Recipe
from zofc.runfolder.progress import Progress
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import open_stream

MOST_COMPARED = 1000  # images


class PredictionAgreement(NamedTuple):
    """How many of the images get the same answer, and how many of them are answered right by each."""

    images: int
    same: int
    right: int
    right_in_torch: int


def compare_predictions(
    model: IncrementalModel,
    recipe: Recipe,
    progress: Progress,
    graph: Path,
    on_progress: Callable[[str], None],
    most: int = MOST_COMPARED,
) -> PredictionAgreement | str:
    """Compare the answers of the graph `predict` and of torch to test images; or why there are none to compare."""
    import onnxruntime

    try:
        sets = list(_test_images(recipe, progress, most))
    except ZofcError as error:
        return str(error)
    if not sets:
        return "the run has no test images"
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    counts = np.zeros(4, np.int64)
    total = sum(map(len, sets))
    for images, labels in _pixels(model, sets):
        answers = torch.from_numpy(session.run(["scores"], {"images": images.permute(0, 2, 3, 1).numpy()})[0])
        expected = model.scores(normalise(images, model.test_view.mean, model.test_view.std)).cpu()
        mine, torchs = answers.argmax(-1), expected.argmax(-1)
        counts += [len(labels), *(int((a == b).sum()) for a, b in ((mine, torchs), (mine, labels), (torchs, labels)))]
        on_progress(f"comparing with torch: {counts[0]} of {total} images")
    return PredictionAgreement(*counts.tolist())


def _test_images(recipe: Recipe, progress: Progress, most: int) -> Iterator[ImageSet]:
    """Test images of the tasks learned, evenly chosen, as many as are compared."""
    if progress.inherited == progress.done:
        raise RunError("it is a saved model, which has no test images")
    stream = open_stream(recipe, lambda _: None, progress)
    sets = [images for _, images in stream.evaluation(stream.tasks[progress.done - 1]) if len(images)]
    step = -(-sum(map(len, sets)) // most)
    yield from (images.take(np.arange(0, len(images), step)) for images in sets)


def _pixels(model: IncrementalModel, sets: list[ImageSet]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the test view as uint8 (batch, 3, s, s), with labels."""
    for images in sets:
        loader = model.loader(images, threads=True)
        loader.test_view = replace(model.test_view, mean=None, std=None)
        for batch, labels in model.plain_batches(loader):
            yield (batch.cpu() * 255).round().to(torch.uint8), labels.cpu()

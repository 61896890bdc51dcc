"""Teaching over time: more images of classes already learned, and classes that are forgotten.

Readouts in closed form (ridge regression, class means) take both exactly. Where rows are trained, a class can be
removed from the answers, and further images of it are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from zofc.data import ImageSet
from zofc.data.loading import Loader
from zofc.errors import DataError
from zofc.training.calibration import MOST_CALIBRATION_IMAGES, calibrate
from zofc.training.incremental_model import IncrementalModel


def require_closed_form(model: IncrementalModel, known: Sequence[str]) -> None:
    """Refuse further images of known classes where they cannot be included exactly."""
    recipe = model.recipe
    if not type(model.method).includes_images(recipe):
        raise DataError(
            f"already learned: {', '.join(known[:5])}; {recipe.title or recipe.name} trains the rows of a class in its "
            "own task and cannot include more images of it. Recipes that can: ridge/base, zo-ridge/base, "
            "simplecil/base and every other with method.readout=ridge. Or train anew with all images, or teach these "
            "under a new name"
        )


def divide_lesson(
    names: Sequence[str], images: ImageSet, classes: Sequence[str]
) -> tuple[ImageSet, tuple[str, ...], ImageSet]:
    """Images of known classes, the names of new ones and their images, all labelled with class ids."""
    new = tuple(name for name in names if name not in classes)
    ids = {name: number for number, name in enumerate((*classes, *new))}
    labels = np.array([ids[name] for name in names], np.int64)[images.labels]
    images = images.relabel(labels)
    if len(new) == len(names):  # as usual: nothing is copied
        return images.take(np.arange(0)), new, images
    parts = np.flatnonzero(labels < len(classes)), np.flatnonzero(labels >= len(classes))
    return images.take(parts[0]), new, images.take(parts[1])


@torch.no_grad()
def include_images(model: IncrementalModel, loader: Loader) -> str | None:
    """Include further images of known classes; may return a notice for the user."""
    notice = model.method.include(lambda: model.plain_batches(loader))
    recalibrate(model, loader)
    return notice


def remove_classes(model: IncrementalModel, names: Sequence[str]) -> str | None:
    """Remove classes from the model; may return a notice about what of them is left."""
    moved = _tasks_that_moved_features(model)
    trained = [name for name in names if any(model.classes.index(name) in task for task in moved)]
    with model.all_or_nothing():
        model.remove(names)
        recalibrate(model)
    if not trained:
        return None
    return (
        f"features were trained on images of {', '.join(trained[:5])} among others, and keep what they learned from "
        "them; to remove that too, train anew without these images"
    )


def _tasks_that_moved_features(model: IncrementalModel) -> list[range]:
    if model.method.untrained:
        return []
    plans = [plan for name, plan in model.recipe.optimize.items() if name in model.method.in_features and plan.lr]
    last = max((plan.tasks or math.inf for plan in plans), default=0)
    return [task for number, task in enumerate(model.tasks) if number < last]


@torch.no_grad()
def recalibrate(model: IncrementalModel, loader: Loader | None = None) -> None:
    """Fit the calibration anew on images of all classes, where the readout knows its answers without each of them; else
    on those of a loader too."""
    if not model.recipe.training.calibrate:
        return
    everything = range(len(model.classes), len(model.classes))  # no new classes: nothing before counts
    if (sample := model.method.left_out) is not None:
        counts = sample.labels.cpu().bincount(minlength=len(model.classes))
        model.calibration = calibrate(sample, everything, counts, None)
    elif loader is not None:
        labels = loader.image_set.labels
        counts = torch.from_numpy(np.bincount(labels, minlength=len(model.classes)))
        some = np.arange(min(len(labels), MOST_CALIBRATION_IMAGES))
        sample = model.method.calibration_sample(lambda: model.plain_batches(loader, some), counts)
        model.calibration = calibrate(sample, range(0), counts + 1, model.calibration)  # there were some before

"""Which images of a data set are used: so many per class, so many held out; seeded, so always the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zofc import seeds
from zofc.data.source import SourceOptions
from zofc.errors import DataError

Indices = NDArray[np.int64]


def select_per_class(labels: NDArray[np.int64], n: int | None, rng: np.random.Generator) -> Indices:
    """Ascending indices of at most `n` images of each class, chosen at random; of all if `n` is None."""
    if n is None:
        return np.arange(len(labels))
    chosen = [rng.permutation(np.flatnonzero(labels == label))[:n] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen)) if chosen else np.arange(0)


def select_split(
    labels: NDArray[np.int64], split: str, options: SourceOptions, domains: NDArray[np.int64] | None = None
) -> Indices:
    """`select_per_class` for one split ('train' or 'test') of a source, of each class in each domain if so asked."""
    if domains is not None and options.per_domain:
        labels = domains * (labels.max(initial=0) + 1) + labels
    n = options.per_class if split == "train" else options.test_per_class
    return select_per_class(labels, n, seeds.stream(options.seed, "per class", split))


def hold_out(
    labels: NDArray[np.int64], classes: Sequence[str], fraction: float, seed: int, where: str
) -> tuple[Indices, Indices]:
    """Indices to train and to test on. Each class is split by its own name, so adding one moves no other."""
    if fraction == 0:
        return np.arange(len(labels)), np.arange(0)
    test: list[Indices] = []
    for label, name in enumerate(classes):
        members = np.flatnonzero(labels == label)
        if len(members) < 2:
            raise DataError(
                f"{where}: class '{name}' has {len(members)} image(s); where there is no test set, a class "
                "needs at least 2, one to train on and one to hold out"
            )
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        test.append(seeds.stream(seed, "hold out", name).permutation(members)[:count])
    held = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), held), held


def check_trainable(classes: Sequence[str], train: NDArray[np.int64], test: NDArray[np.int64], where: str) -> None:
    """Every class must have training images; the error names those that have none."""
    absent = np.setdiff1d(np.arange(len(classes)), train)
    if not len(absent):
        return
    only_test = np.intersect1d(absent, test)
    names = ", ".join(f"'{classes[i]}'" for i in (only_test if len(only_test) else absent)[:5])
    problem = "in the test set only" if len(only_test) else "without any image"
    raise DataError(f"{where}: {problem}: {names}. Every class needs images to train on; add some or remove the class.")

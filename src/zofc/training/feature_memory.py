"""Features of images that are asked for again and again, kept while they cannot change.

After every task all test images so far are classified. Where features are final (nothing moves them any more), an image
passes through the backbone once in a run, and only the readout is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator

from torch import Tensor

FeatureBatch = tuple[Tensor, Tensor]  # features and labels, on the CPU


class FeatureMemory:
    """The features of one set of images, in batches."""

    def __init__(self) -> None:
        self.embedding: Hashable | None = None  # what the kept features depend on
        self.kept: list[FeatureBatch] = []
        self.seconds = 0.0  # that they took
        self.saved = 0.0  # seconds in all

    def batches(self, embedding: Hashable, compute: Callable[[], Iterator[FeatureBatch]]) -> Iterator[FeatureBatch]:
        """The batches, kept from before if they depend on the same."""
        if self.embedding == embedding:
            self.saved += self.seconds
            yield from self.kept
            return
        kept, clock, seconds = [], time.perf_counter(), 0.0
        for batch in compute():
            kept.append(batch)
            seconds += time.perf_counter() - clock
            yield batch
            clock = time.perf_counter()
        self.embedding, self.kept, self.seconds = embedding, kept, seconds

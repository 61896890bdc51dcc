"""Features of images that are asked for again and again, kept while they cannot change.

After every task all test images so far are classified. Where features are final (nothing moves them any more), an image
passes through the backbone once in a run, and only the readout is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator

from zofc.ranks import Ranks
from zofc.runfolder.kept_features import FeatureBatch, FeatureFile, KeptFeatures


class FeatureMemory:
    """The features of one set of images, in batches; with a `file`, kept with the run."""

    def __init__(self, file: FeatureFile | None = None, ranks: Ranks | None = None) -> None:
        self.file, self.ranks = file, ranks or Ranks()
        self.embedding: Hashable | None = None  # what the kept features depend on
        self.kept = KeptFeatures([], 0.0)
        self.saved = 0.0  # seconds in all

    def batches(self, embedding: Hashable, compute: Callable[[], Iterator[FeatureBatch]]) -> Iterator[FeatureBatch]:
        """The batches, kept from before if they depend on the same."""
        if self.embedding != embedding and self.file is not None:
            found = self.file.read(embedding)
            if not self.ranks.any(found is None) and found is not None:  # all ranks have them, or all compute them
                self.embedding, self.kept = embedding, found
        if self.embedding == embedding:
            self.saved += self.kept.seconds
            yield from self.kept.batches
            return
        batches, clock, seconds = [], time.perf_counter(), 0.0
        for batch in compute():
            batches.append(batch)
            seconds += time.perf_counter() - clock
            yield batch
            clock = time.perf_counter()
        self.embedding, self.kept = embedding, KeptFeatures(batches, seconds)
        if self.file is not None and batches and self.ranks.first:
            self.file.write(embedding, self.kept)

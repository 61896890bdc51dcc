"""Chunking: how many images and how many perturbed points pass through the backbone at a time. The results are the same
for every chunking, up to the order in which sums are rounded; only memory and speed differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chunking:
    """Images and points per pass."""

    micro_batch: int | None = None  # images per pass; None: the whole batch
    chunk: int = 1  # points per pass

    def smaller(self, batch: int) -> Chunking | None:
        """The next chunking that needs less memory, or None if there is none."""
        if self.chunk > 1:
            return Chunking(self.micro_batch, self.chunk // 2)
        size = self.micro_batch or batch
        return Chunking(size // 2) if size > 1 else None


def micro_batches(images: Tensor, size: int | None, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """The batch in micro-batches, each with its place in the batch; one is on the device only while it is used."""
    size = size or len(images)
    for start in range(0, len(images), size):
        where = slice(start, min(start + size, len(images)))
        yield where, images[where].to(device, non_blocking=True)

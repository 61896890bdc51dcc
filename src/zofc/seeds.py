"""Named random streams: every draw is a pure function of (seed, name), so no generator state is ever saved.

`stream(1993, "shuffle", task, epoch)` gives the same numbers on every machine, in any order of use, after any
restart: a run that was killed continues with exactly the draws it would have made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def key(seed: int, *name: str | int) -> int:
    """A 128-bit key for one named stream."""
    text = "\x1f".join([str(seed), *map(str, name)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """A numpy generator for one named stream."""
    return np.random.Generator(np.random.Philox(key=key(seed, *name)))


def torch_stream(seed: int, *name: str | int) -> torch.Generator:
    """A torch generator (CPU) for one named stream."""
    return torch.Generator().manual_seed(key(seed, *name) & (2**63 - 1))


@dataclass(frozen=True)
class Noise:
    """Random numbers for random layers: a pure function of the name, the layer and the image. So a batch in pieces is
    given the same as the whole batch, and a layer that is computed again the same again."""

    name: tuple[str | int, ...]  # of the stream, its seed first
    first: int = 0  # which image of the batch is the first one here

    def uniform(self, shape: torch.Size, layer: int) -> Tensor:
        """In [0, 1), (images, ...)."""
        seed, *name = self.name
        generator = torch_stream(int(seed), *name, layer)
        return torch.rand(self.first + shape[0], *shape[1:], generator=generator)[self.first :]

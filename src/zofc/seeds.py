"""Named random streams: every draw is a pure function of (seed, name), so no generator state is ever saved.

`stream(1993, "shuffle", task, epoch)` gives the same numbers on every machine, in any order of use, after any
restart: a run that was killed continues with exactly the draws it would have made.
"""

from __future__ import annotations

import hashlib
import math
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


def _signed(word: int) -> int:
    """The number that has a word's last 64 bits."""
    return (word + 2**63) % 2**64 - 2**63


STEP, MIX_1, MIX_2 = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def noise_key(seed: int, *name: str | int) -> Tensor:
    """What noise of this name is made from."""
    return torch.tensor([key(seed, *name) & (2**63 - 1)])


@dataclass(frozen=True)
class Noise:
    """Random numbers for random layers: a pure function of the key, the layer and the image, in whole numbers. So they
    are the same on every device, a batch in pieces is given the same as the whole batch, and a layer that is computed
    again the same again."""

    key: Tensor
    first: Tensor | int = 0  # which image of the batch is the first one here

    def uniform(self, shape: torch.Size, layer: int, device: torch.device) -> Tensor:
        """In [0, 1), (images, ...)."""
        there = device if device.type == "cuda" else torch.device("cpu")  # others may not know whole numbers of 64 bits
        start = _mixed(self.key.to(there) + _signed(STEP * layer))
        each = math.prod(shape[1:])
        places = torch.as_tensor(self.first, device=there) * each + torch.arange(shape[0] * each, device=there)
        words = _mixed(start + STEP * places)
        return (_shifted(words, 40).to(torch.float32) * 2.0**-24).reshape(shape).to(device)


def _mixed(words: Tensor) -> Tensor:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of the word."""
    words = (words ^ _shifted(words, 30)) * MIX_1
    words = (words ^ _shifted(words, 27)) * MIX_2
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return torch.bitwise_and(words >> by, 2 ** (64 - by) - 1)

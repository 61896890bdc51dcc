"""Named random streams and the directions drawn from them: pure functions of (seed, name), the same as in zofc."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Name = str | int
KINDS = ("rademacher", "gaussian", "sphere")


def key(seed: int, *name: Name) -> int:
    """A 128-bit key for one named stream."""
    text = "\x1f".join([str(seed), *map(str, name)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *name: Name) -> np.random.Generator:
    """A generator for one named stream."""
    return np.random.Generator(np.random.Philox(key=key(seed, *name)))


def torch_uniform(count: int, bound: float, seed: int, *name: Name) -> NDArray[np.float32]:
    """The first numbers that torch draws by `uniform_(-bound, bound)` from the named stream: words of a Mersenne
    Twister, of which the last 24 bits count."""
    words = np.frombuffer(np.random.RandomState(key(seed, *name) % 2**32).bytes(4 * count), "<u4")
    low, high = np.float32(-bound), np.float32(bound)
    scaled = (words & 0xFFFFFF) * 2.0**-24 * np.float64(high - low) + np.float64(low)
    return scaled.astype(np.float32)


@dataclass(frozen=True)
class Directions:
    """Directions with independent entries of mean zero and variance one; on a sphere, of length √size."""

    kind: str
    seed: int
    name: tuple[Name, ...]

    def stack(self, step: int, queries: int, shape: Sequence[int]) -> NDArray[np.float32]:
        """All directions of a step, (queries, *shape); the last axis is that of a direction."""
        drawn = np.empty((queries, *shape), np.float32)
        for query in range(queries):
            drawn[query] = self.draw(step, query, shape)
        return drawn

    def needed_bytes(self, queries: int, shape: Sequence[int]) -> int:
        """What `stack` takes at most."""
        return prod(shape) * (4 * queries + (13 if self.kind == "rademacher" else 64))

    def draw(self, step: int, query: int, shape: Sequence[int]) -> NDArray[np.float32]:
        """Direction number `query` of a step, (size,), or one for each image, (batch, size)."""
        words = np.random.Philox(key=key(self.seed, *self.name, "direction", step, query))
        size = prod(shape)
        if self.kind == "rademacher":  # a bit for each entry
            bits = np.unpackbits(words.random_raw(-(-size // 64)).astype("<u8").view(np.uint8), count=size)
            return (bits.astype(np.float32) * 2 - 1).reshape(shape)
        pairs = -(-size // 2)  # Box–Muller on 53-bit uniform numbers in (0, 1]
        uniform = ((words.random_raw(2 * pairs) >> np.uint64(11)) + 1) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size].reshape(shape)
        if self.kind == "sphere":
            normal *= np.sqrt(shape[-1]) / np.linalg.norm(normal, axis=-1, keepdims=True)
        return normal.astype(np.float32)

"""Random directions that are a pure function of (seed, step, query): the same on every device and under any chunking.

They are drawn from the raw words of a counter-based generator, so that a zeroth-order step is fully described by its Q
coefficients, and nothing but those has to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofc import seeds


@dataclass(frozen=True)
class Space:
    """The space of a set of tensors, taken as one flat vector in the order of their names."""

    tensors: Mapping[str, Tensor]

    @property
    def size(self) -> int:
        """Number of entries of all tensors."""
        return sum(value.numel() for value in self.tensors.values())

    @property
    def center(self) -> Tensor:
        """Where the set stands, as one new vector."""
        return torch.cat([value.detach().reshape(-1) for value in self.tensors.values()])

    def split(self, vectors: Tensor) -> dict[str, Tensor]:
        """Vectors (..., size) as tensors (..., *shape) by name, without a copy."""
        parts = torch.split(vectors, [value.numel() for value in self.tensors.values()], dim=-1)
        return {
            name: part.reshape((*part.shape[:-1], *value.shape))
            for (name, value), part in zip(self.tensors.items(), parts, strict=True)
        }


@dataclass(frozen=True)
class Directions:
    """Directions with independent entries of mean zero and variance one; on the sphere, of length √size."""

    kind: str  # rademacher | gaussian | sphere
    seed: int
    name: tuple[str | int, ...] = ()

    def draw(self, step: int, query: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Direction number `query` of step `step`, shaped, typed and placed like the tensors it will move."""
        space = Space(like)
        flat = torch.from_numpy(self.vectors(step, query, (space.size,)))
        return {n: part.to(like[n].dtype).to(like[n].device) for n, part in space.split(flat).items()}

    def stack(self, step: int, queries: int, shape: Sequence[int], device: torch.device) -> Tensor:
        """All directions of a step, (queries, *shape), whose last axis is a direction; signs take a byte each."""
        found = np.stack([self.vectors(step, query, shape) for query in range(queries)])
        return torch.from_numpy(found.astype(np.float32) if found.dtype == np.float64 else found).to(device)

    def vectors(self, step: int, query: int, shape: Sequence[int]) -> NDArray[np.float64] | NDArray[np.int8]:
        """(..., size of a direction): one direction, or one for each image."""
        size = prod(shape)
        words = np.random.Philox(key=seeds.key(self.seed, *self.name, "direction", step, query))
        if self.kind == "rademacher":
            bits = np.unpackbits(words.random_raw(-(-size // 64)).astype("<u8").view(np.uint8), count=size)
            return (bits.astype(np.int8) * 2 - 1).reshape(shape)
        pairs = -(-size // 2)  # Box–Muller on 53-bit uniforms in (0, 1]
        uniform = ((words.random_raw(2 * pairs) >> np.uint64(11)) + 1) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size].reshape(shape)
        if self.kind == "sphere":
            normal *= np.sqrt(shape[-1]) / np.linalg.norm(normal, axis=-1, keepdims=True)
        return normal

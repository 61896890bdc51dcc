"""Random directions that are a pure function of (seed, step, query): the same on every device and under any chunking.

They are drawn from the raw words of a counter-based generator, so the Q coefficients of a zeroth-order step fully
describe it.
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
    """A set of tensors as one flat vector φ, in the order of the mapping."""

    tensors: Mapping[str, Tensor]

    @property
    def size(self) -> int:
        """Number of entries of all tensors."""
        return sum(value.numel() for value in self.tensors.values())

    @property
    def center(self) -> Tensor:
        """The present values as one new vector."""
        return torch.cat([value.detach().reshape(-1) for value in self.tensors.values()])

    def split(self, vectors: Tensor) -> dict[str, Tensor]:
        """Vectors (..., size) as tensors (..., *shape) by name; views, not copies."""
        parts = torch.split(vectors, [value.numel() for value in self.tensors.values()], dim=-1)
        return {
            name: part.reshape((*part.shape[:-1], *value.shape))
            for (name, value), part in zip(self.tensors.items(), parts, strict=True)
        }


@dataclass(frozen=True)
class Directions:
    """Directions with independent entries of mean zero and variance one; on a sphere, of length √size."""

    kind: str  # rademacher | gaussian | sphere
    seed: int
    name: tuple[str | int, ...] = ()

    def draw(self, step: int, query: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Direction number `query` of step `step`, with the shapes, dtypes and devices of the tensors `like`."""
        space = Space(like)
        flat = torch.from_numpy(self.vectors(step, query, (space.size,)))
        return {n: part.to(like[n].dtype).to(like[n].device) for n, part in space.split(flat).items()}

    def stack(self, step: int, queries: int, shape: Sequence[int], device: torch.device) -> Tensor:
        """All directions of a step, (queries, *shape), the last axis being that of a direction; signs are int8."""
        if self.kind == "rademacher" and device.type != "cpu":  # which get a bit each, not a byte
            packed = torch.from_numpy(np.stack([self._bits(step, query, prod(shape)) for query in range(queries)]))
            packed = packed.pin_memory() if device.type == "cuda" else packed  # else a copy waits for the device
            return unpack_signs(packed.to(device, non_blocking=True), prod(shape)).reshape(queries, *shape)
        values = np.stack([self.vectors(step, query, shape) for query in range(queries)])
        return torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values).to(device)

    def vectors(self, step: int, query: int, shape: Sequence[int]) -> NDArray[np.float64] | NDArray[np.int8]:
        """One direction (size,), or one for each image (batch, size)."""
        size = prod(shape)
        if self.kind == "rademacher":
            bits = np.unpackbits(self._bits(step, query, size), count=size)
            return (bits.astype(np.int8) * 2 - 1).reshape(shape)
        words = self._words(step, query)
        pairs = -(-size // 2)  # Box–Muller on 53-bit uniforms in (0, 1]
        uniform = ((words.random_raw(2 * pairs) >> np.uint64(11)) + 1) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size].reshape(shape)
        if self.kind == "sphere":
            normal *= np.sqrt(shape[-1]) / np.linalg.norm(normal, axis=-1, keepdims=True)
        return normal

    def _words(self, step: int, query: int) -> np.random.Philox:
        return np.random.Philox(key=seeds.key(self.seed, *self.name, "direction", step, query))

    def _bits(self, step: int, query: int, size: int) -> NDArray[np.uint8]:
        """At least so many random bits, eight in each entry."""
        return self._words(step, query).random_raw(-(-size // 64)).astype("<u8").view(np.uint8)


def unpack_signs(packed: Tensor, size: int) -> Tensor:
    """The first bits (..., size) of bytes as signs, the highest bit of a byte first."""
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    bits = (packed[..., None] >> shifts).bitwise_and_(1).view(torch.int8)
    return bits.flatten(-2)[..., :size].mul(2).sub_(1)

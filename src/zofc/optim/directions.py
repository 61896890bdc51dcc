"""Random directions that are a pure function of (seed, step, query): the same on every device and under any chunking.

They are drawn from the raw words of a counter-based generator, so that a zeroth-order step is fully described by its Q
coefficients, and nothing but those has to be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofc import seeds


@dataclass(frozen=True)
class Directions:
    """Directions in the space of a set of tensors, taken as one flat vector in the order of their names."""

    kind: str  # rademacher | gaussian
    seed: int
    name: tuple[str | int, ...] = ()

    def draw(self, step: int, query: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Direction number `query` of step `step`, shaped, typed and placed like the tensors it will move."""
        sizes = [value.numel() for value in like.values()]
        flat = torch.from_numpy(self._flat(step, query, sum(sizes)))
        parts = torch.split(flat, sizes)
        return {
            name: part.view(value.shape).to(value.dtype).to(value.device)
            for (name, value), part in zip(like.items(), parts, strict=True)
        }

    def _flat(self, step: int, query: int, size: int) -> NDArray[np.float64] | NDArray[np.int8]:
        words = np.random.Philox(key=seeds.key(self.seed, *self.name, "direction", step, query))
        if self.kind == "rademacher":
            bits = np.unpackbits(words.random_raw(-(-size // 64)).astype("<u8").view(np.uint8), count=size)
            return bits.astype(np.int8) * 2 - 1
        pairs = -(-size // 2)  # Box–Muller on 53-bit uniforms in (0, 1]
        uniform = ((words.random_raw(2 * pairs) >> np.uint64(11)) + 1) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]

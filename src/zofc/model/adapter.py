"""The parallel bottleneck adapter beside the MLP: MLP(h) + s·W_up GELU(W_down h + b_down) + s·b_up, with h = LN2 x.

W_up and both biases start at zero, so a fresh adapter leaves the ViT's features unchanged to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zofc.errors import RecipeError
from zofc.model.params import Moving, frozen, linear
from zofc.model.vit import Insert


class Adapter(nn.Module):
    """One bottleneck per chosen block."""

    def __init__(self, width: int, blocks: Sequence[int], rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        self.numbers = tuple(blocks)
        self.scale = scale
        self.blocks = nn.ModuleDict({str(number): _Bottleneck(width, rank, generator) for number in blocks})

    @property
    def first(self) -> int:
        """The first block that this module touches."""
        return min(self.numbers)

    def inserts(self, moving: Moving) -> dict[int, Insert]:
        """What to add where, with the parameters in `moving` in place of this module's own."""
        return {number: Insert(beside_mlp=self._bottleneck(number, moving)) for number in self.numbers}

    def _bottleneck(self, number: int, moving: Moving) -> Callable[[Tensor], Tensor]:
        prefix = f"blocks.{number}."
        own = self.blocks[str(number)].named_parameters()
        weights = {name: moving.get(prefix + name, value) for name, value in own}

        def bottleneck(h: Tensor) -> Tensor:
            inner = F.gelu(linear(h, weights["down_weight"], weights["down_bias"]))
            return self.scale * linear(inner, weights["up_weight"], weights["up_bias"])

        return bottleneck


class _Bottleneck(nn.Module):
    def __init__(self, width: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)  # Kaiming-uniform with a = √5
        self.down_weight = frozen(torch.empty(rank, width).uniform_(-bound, bound, generator=generator))
        self.down_bias = frozen(torch.zeros(rank))
        self.up_weight = frozen(torch.zeros(width, rank))
        self.up_bias = frozen(torch.zeros(width))


def parse_blocks(spec: str | Sequence[int], depth: int) -> tuple[int, ...]:
    """`all`, `first N`, `last N` or a list of block numbers, for a ViT of `depth` blocks."""
    if not isinstance(spec, str):
        numbers = tuple(spec)
        if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= n < depth for n in numbers):
            raise RecipeError(f"peft.blocks: {list(numbers)} must be different block numbers from 0 to {depth - 1}")
        return tuple(sorted(numbers))
    match spec.split():
        case ["all"]:
            return tuple(range(depth))
        case [("first" | "last") as end, count] if count.isdigit():
            if not 1 <= int(count) <= depth:
                raise RecipeError(f"peft.blocks: '{spec}', but the backbone has {depth} blocks")
            return tuple(range(int(count)) if end == "first" else range(depth - int(count), depth))
    raise RecipeError(f"peft.blocks: '{spec}' is not 'all', 'first N', 'last N' or a list of block numbers")

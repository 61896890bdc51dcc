"""Bottleneck adapters: s·(W_up act(W_down h + b_down) + b_up), joined to one place of each chosen block.

`adapter` (the paper's) reads LN2 x and joins the MLP, or LN1 x and joins the attention (LAE's authors); with GELU.
`adaptformer` (APER, EASE) reads the block's state x and joins the residual sum; with ReLU and dropout inside.
W_up and both biases start at zero, so a fresh adapter leaves the ViT's features unchanged to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zofc.errors import RecipeError
from zofc.model.params import Moving, dropout, frozen, linear, taken
from zofc.model.peft_base import PeftModule
from zofc.model.vit import Insert
from zofc.seeds import Noise

JOINS: dict[str, Callable[[Callable[[Tensor], Tensor]], Insert]] = {
    "beside_mlp": lambda added: Insert(beside_mlp=added),
    "beside_attention": lambda added: Insert(beside_attention=added),
    "across_mlp": lambda added: Insert(across_mlp=added),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


class Adapter(PeftModule):
    """One bottleneck per chosen block. `scale` None: a learned number per block, starting at one."""

    def __init__(
        self,
        width: int,
        blocks: Sequence[int],
        rank: int,
        scale: float | None,
        generator: torch.Generator,
        place: str = "beside_mlp",
        activation: str = "gelu",
        drop: float = 0.0,
    ) -> None:
        super().__init__(blocks)
        self.scale, self.place, self.drop = scale, place, drop
        self.activation = ACTIVATIONS[activation]
        self.blocks = nn.ModuleDict(
            {str(number): _Bottleneck(width, rank, scale is None, generator) for number in blocks}
        )

    def inserts(self, moving: Moving, noise: Noise | None = None) -> dict[int, Insert]:
        """One adapter per chosen block."""
        join = JOINS[self.place]
        return {number: join(self._bottleneck(number, moving, noise)) for number in self.numbers}

    def _bottleneck(self, number: int, moving: Moving, noise: Noise | None) -> Callable[[Tensor], Tensor]:
        w = taken(self.blocks[str(number)], moving, f"blocks.{number}.")

        def bottleneck(h: Tensor) -> Tensor:
            inner = dropout(self.activation(linear(h, w["down_weight"], w["down_bias"])), self.drop, noise, number)
            if self.scale is not None:  # on the narrow side, where it costs nothing
                return linear(inner * self.scale, w["up_weight"], w["up_bias"] * self.scale)
            out = linear(inner, w["up_weight"], w["up_bias"])
            return out * w["scale"][..., None, None, None].to(out.dtype)

        return bottleneck


class _Bottleneck(nn.Module):
    def __init__(self, width: int, rank: int, learned_scale: bool, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)  # Kaiming-uniform with a = √5
        self.down_weight = frozen(torch.empty(rank, width).uniform_(-bound, bound, generator=generator))
        self.down_bias = frozen(torch.zeros(rank))
        self.up_weight = frozen(torch.zeros(width, rank))
        self.up_bias = frozen(torch.zeros(width))
        if learned_scale:
            self.scale = frozen(torch.ones(()))


def parse_blocks(spec: str | Sequence[int], depth: int, key: str = "peft.blocks") -> tuple[int, ...]:
    """`all`, `first N`, `last N` or a list of block numbers, for a ViT of `depth` blocks."""
    if not isinstance(spec, str):
        numbers = tuple(spec)
        if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= n < depth for n in numbers):
            raise RecipeError(f"{key}: {list(numbers)} must be different block numbers from 0 to {depth - 1}")
        return tuple(sorted(numbers))
    match spec.split():
        case ["all"]:
            return tuple(range(depth))
        case [("first" | "last") as end, count] if count.isdigit():
            if not 1 <= int(count) <= depth:
                raise RecipeError(f"{key}: '{spec}', but the backbone has {depth} blocks")
            return tuple(range(int(count)) if end == "first" else range(depth - int(count), depth))
    raise RecipeError(f"{key}: '{spec}' is not 'all', 'first N', 'last N' or a list of block numbers")

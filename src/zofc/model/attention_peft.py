"""PEFT that enters the attention: low-rank additions to keys and values, and learned prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zofc.model.params import Moving, frozen, linear, taken
from zofc.model.peft_base import PeftModule
from zofc.model.vit import Additions, Insert, Prefix
from zofc.seeds import Noise


class KeyValueLora(PeftModule):
    """k + s·B_k A_k h and v + s·B_v A_v h in each chosen block; B starts at zero, A Kaiming-uniform."""

    def __init__(self, width: int, blocks: Sequence[int], rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__(blocks)
        self.scale = scale
        self.blocks = nn.ModuleDict({str(number): _LowRankPair(width, rank, generator) for number in blocks})

    def inserts(self, moving: Moving, noise: Noise | None = None) -> dict[int, Insert]:
        """Additions to the keys and values of each chosen block."""
        return {number: Insert(projections=self._additions(number, moving)) for number in self.numbers}

    def _additions(self, number: int, moving: Moving) -> Additions:
        w = taken(self.blocks[str(number)], moving, f"blocks.{number}.")

        def additions(h: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
            keys = self.scale * linear(linear(h, w["down_key"]), w["up_key"])
            return None, keys, self.scale * linear(linear(h, w["down_value"]), w["up_value"])

        return additions


class _LowRankPair(nn.Module):
    def __init__(self, width: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.down_key = frozen(torch.empty(rank, width).uniform_(-bound, bound, generator=generator))
        self.down_value = frozen(torch.empty(rank, width).uniform_(-bound, bound, generator=generator))
        self.up_key = frozen(torch.zeros(width, rank))
        self.up_value = frozen(torch.zeros(width, rank))


class PrefixTokens(PeftModule):
    """`length` learned keys and values before those of each chosen block, starting uniform in (0, 0.01)."""

    def __init__(
        self, width: int, blocks: Sequence[int], length: int, compensated: bool, generator: torch.Generator
    ) -> None:
        super().__init__(blocks)
        self.compensated = compensated
        self.blocks = nn.ModuleDict({str(number): _KeysValues(width, length, generator) for number in blocks})

    def inserts(self, moving: Moving, noise: Noise | None = None) -> dict[int, Insert]:
        """Further keys and values for the attention of each chosen block."""
        found = {}
        for number in self.numbers:
            w = taken(self.blocks[str(number)], moving, f"blocks.{number}.")
            keys, values = (w[name].unsqueeze(-3) for name in ("keys", "values"))  # ([queries,] 1, length, width)
            found[number] = Insert(prefix=Prefix(keys, values, self.compensated))
        return found


class _KeysValues(nn.Module):
    def __init__(self, width: int, length: int, generator: torch.Generator) -> None:
        super().__init__()
        self.keys = frozen(torch.empty(length, width).uniform_(0, 0.01, generator=generator))
        self.values = frozen(torch.empty(length, width).uniform_(0, 0.01, generator=generator))

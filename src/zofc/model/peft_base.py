"""What a PEFT module is to a method: parameters, the blocks they touch, and what they add there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import nn

from zofc.model.params import Moving
from zofc.model.vit import Insert, Place
from zofc.seeds import Noise


class PeftModule(nn.Module, ABC):
    """A small module beside some of the frozen blocks."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.numbers = tuple(numbers)

    @property
    def entrance(self) -> Place:
        """The first place it touches: everything before is computed once per step."""
        first = min(self.numbers)
        return Place(first, self.inserts({})[first].entrance)

    @abstractmethod
    def inserts(self, moving: Moving, noise: Noise | None = None) -> dict[int, Insert]:
        """What it adds where, with the parameters in `moving` in place of its own; `noise` is dropout's."""

"""PEFT families by name. A new one is a class with `first` and `inserts`, registered here by its decorator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zofc.errors import RecipeError, nearest
from zofc.model.adapter import Adapter, parse_blocks
from zofc.model.backbone import Backbone
from zofc.recipe import Peft

Maker = Callable[[Peft, Backbone, torch.Generator], Adapter]
PEFTS: dict[str, Maker] = {}


def peft(name: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        PEFTS[name] = maker
        return maker

    return register


@peft("adapter")
def _adapter(recipe: Peft, backbone: Backbone, generator: torch.Generator) -> Adapter:
    blocks = parse_blocks(recipe.blocks, backbone.depth)
    return Adapter(backbone.width, blocks, recipe.rank, recipe.scale, generator)


def make_peft(recipe: Peft, backbone: Backbone, generator: torch.Generator) -> Adapter:
    if recipe.kind not in PEFTS:
        raise RecipeError(f"peft.kind: unknown module '{recipe.kind}'{nearest(recipe.kind, PEFTS)}")
    return PEFTS[recipe.kind](recipe, backbone, generator)

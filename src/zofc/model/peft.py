"""PEFT families by name. A new one is a `PeftModule`, made by a function under `@peft`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zofc.errors import RecipeError
from zofc.model.adapter import Adapter, parse_blocks
from zofc.model.attention_peft import KeyValueLora, PrefixTokens
from zofc.model.backbone import Backbone
from zofc.model.peft_base import PeftModule
from zofc.plugins import Registry
from zofc.recipe import PeftSettings

PeftBlocks = tuple[int, ...]  # their numbers
PeftMaker = Callable[[PeftSettings, Backbone, PeftBlocks, torch.Generator], PeftModule]
PEFTS: Registry[PeftMaker] = Registry("module", "peft.kind", "zofc.pefts")


def peft(name: str) -> Callable[[PeftMaker], PeftMaker]:
    """Register a function that makes a PEFT module under this name."""
    return PEFTS.add(name)


@peft("adapter")
def _adapter(recipe: PeftSettings, backbone: Backbone, blocks: PeftBlocks, generator: torch.Generator) -> PeftModule:
    scale = None if recipe.scale == "learned" else recipe.scale
    return Adapter(backbone.width, blocks, recipe.rank, scale, generator, place=f"beside_{recipe.beside}")


@peft("adaptformer")
def _adaptformer(
    recipe: PeftSettings, backbone: Backbone, blocks: PeftBlocks, generator: torch.Generator
) -> PeftModule:
    scale = None if recipe.scale == "learned" else recipe.scale
    return Adapter(backbone.width, blocks, recipe.rank, scale, generator, "across_mlp", "relu", recipe.dropout)


@peft("lora")
def _lora(recipe: PeftSettings, backbone: Backbone, blocks: PeftBlocks, generator: torch.Generator) -> PeftModule:
    if recipe.scale == "learned":
        raise RecipeError("peft.scale: the scale of LoRA is a number, not learned")
    return KeyValueLora(backbone.width, blocks, recipe.rank, recipe.scale, generator)


@peft("prefix")
def _prefix(recipe: PeftSettings, backbone: Backbone, blocks: PeftBlocks, generator: torch.Generator) -> PeftModule:
    return PrefixTokens(backbone.width, blocks, recipe.length, recipe.compensated, generator)


def make_peft(recipe: PeftSettings, backbone: Backbone, generator: torch.Generator) -> PeftModule:
    """The module that a recipe names, on the backbone's device."""
    if not PEFTS.knows(recipe.kind):
        raise RecipeError(f"peft.kind: {PEFTS.suggest(recipe.kind)}")
    blocks = parse_blocks(recipe.blocks, backbone.depth)
    return PEFTS[recipe.kind](recipe, backbone, blocks, generator).to(backbone.device)

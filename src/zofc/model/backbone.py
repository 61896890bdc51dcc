"""The frozen backbone: any timm ViT by name, local weights, or the small one that is part of the package."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from zofc.errors import RecipeError, WeightsError, nearest
from zofc.model import vit as walking
from zofc.model.checkpoints import sha256
from zofc.model.geometry import empty_vit, set_image_size, statistics
from zofc.model.hub import cached_weights, why_unreachable
from zofc.model.vit import STARTED, Inserts, Place, State
from zofc.model.weight_files import (
    NPZ_SUFFIX,
    LocalVit,
    find_weights,
    first_line,
    load_tensors,
    load_weights,
    named_init,
)
from zofc.recipe import BackboneSettings, is_weights_path

EMBEDDED = "embedded"
START = Place(0, STARTED)


@dataclass(frozen=True)
class Backbone:
    """A frozen ViT and what its pre-training fixed."""

    vit: VisionTransformer
    name: str
    checksum: str | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    recompute: bool = False  # in a backward pass, keep one activation a block and compute the others again
    compiled: bool = False

    @property
    def width(self) -> int:
        """Length of a feature vector."""
        return int(self.vit.num_features)

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.vit.blocks)

    @property
    def image_size(self) -> int:
        """Side of an input image in pixels."""
        return int(self.vit.patch_embed.img_size[0])

    @property
    def tokens(self) -> int:
        """Number of tokens of an image, class token included."""
        return int(self.vit.patch_embed.num_patches) + int(self.vit.num_prefix_tokens)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.vit.parameters()).device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the weights."""
        return next(self.vit.parameters()).dtype  # type: ignore[no-any-return]

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.vit.parameters())

    @property
    def bytes(self) -> int:
        """Memory of the weights."""
        return sum(t.numel() * t.element_size() for t in (*self.vit.parameters(), *self.vit.buffers()))

    @property
    def read(self) -> slice | None:
        """The tokens that the features are made of: the class token alone, where the ViT pools so."""
        token = self.vit.global_pool == "token" and type(self.vit).forward_head is VisionTransformer.forward_head
        return slice(0, 1) if token else None

    def enter(self, images: Tensor, until: Place = START) -> State:
        """Images up to a place: all that no module from there on can touch."""
        tokens = walking.embed(self.vit, images.to(self.dtype))
        return walking.walk(self.vit, State(START, tokens), {}, until, self.read)

    def leave(self, state: State, inserts: Inserts) -> Tensor:
        """Features (..., width) of what stands at some place of the walk, at least in fp32."""
        end = walking.walk(self.vit, state, inserts, rows=self.read, recompute=self.recompute, compiled=self.compiled)
        features = walking.read_out(self.vit, end.x)
        return features.float() if self.dtype.itemsize < 4 else features

    def features(self, images: Tensor) -> Tensor:
        """The plain ViT's features (batch, width)."""
        return self.leave(self.enter(images), {})

    def describe(self) -> dict[str, Any]:
        """What a run folder records about the backbone."""
        keys = ("name", "checksum", "parameters", "width", "depth", "tokens", "image_size")
        return {key: getattr(self, key) for key in keys}


PRECISIONS = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
}  # fmt: skip


def load_backbone(
    recipe: BackboneSettings,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    recompute: bool = False,
    compiled: bool = False,
) -> Backbone:
    """The frozen backbone of a recipe at its image size, in evaluation mode, its weights in `dtype` on `device`."""
    name = recipe.name
    is_local = name != EMBEDDED and (
        is_weights_path(name) or (not timm.is_model(name) and find_weights(name) is not None)
    )
    if recipe.checksum and not is_local:
        raise RecipeError(f"backbone.checksum: only a local weight file has one to compare, not '{name}'")
    if not recipe.pretrained and (is_local or name == EMBEDDED):
        raise RecipeError(f"backbone.pretrained: '{name}' is a set of weights; for random ones give a timm name")
    if name == EMBEDDED:
        with embedded_weights() as path:
            backbone = _from_local(load_tensors(path, sha256(path), recipe), name)
    elif is_local:
        local = load_weights(recipe)
        backbone = _from_local(local, str(local.path))
    else:
        backbone = _from_timm(recipe, seed)
    set_image_size(backbone.vit, recipe.image_size, name)
    backbone.vit.eval().requires_grad_(False)
    backbone.vit.to(device=device, dtype=dtype)
    return replace(backbone, recompute=recompute, compiled=compiled)


def embedded_weights() -> AbstractContextManager[Path]:
    """The weight file that is part of the package."""
    return resources.as_file(resources.files("zofc.model") / "weights" / "embedded.safetensors")


def _from_local(local: LocalVit, name: str) -> Backbone:
    return Backbone(local.vit, name, local.checksum, local.mean, local.std)


def _from_timm(recipe: BackboneSettings, seed: int) -> Backbone:
    name = recipe.name
    if not timm.is_model(name):
        known = timm.list_models("vit_*") + timm.list_models("deit_*") + [EMBEDDED]
        raise RecipeError(f"backbone.name: no timm model and no file or folder '{name}'{nearest(name, known)}")
    cached = cached_weights(name) if recipe.pretrained else None
    if recipe.pretrained:  # what cannot be used is not fetched
        with suppress(RuntimeError):  # a model that cannot be made without memory is looked at below
            set_image_size(_known(empty_vit(name), name), recipe.image_size, name)
        if cached is None and (reason := why_unreachable(name)):
            raise _not_fetched(name, reason)
    overlay = {"file": str(cached), "custom_load": cached.suffix == NPZ_SUFFIX} if cached else None
    with named_init(seed):
        try:
            vit = timm.create_model(name, pretrained=recipe.pretrained, pretrained_cfg_overlay=overlay, num_classes=0)
        except (OSError, RuntimeError, ValueError) as error:
            raise _not_fetched(name, first_line(error)) from error
    checksum = None if recipe.pretrained else f"random weights, seed {seed}"
    return Backbone(_known(vit, name), name, checksum, *statistics(vit))


def _not_fetched(name: str, reason: str) -> WeightsError:
    return WeightsError(
        f"backbone.name: the weights of '{name}' could not be fetched or read ({reason}). Without a network, give a "
        "local .safetensors, .pth or .npz file or a model folder as backbone.name, with "
        f"backbone.architecture={name} if it does not describe itself (those in $ZOFC_DATA/backbones are found by "
        "themselves: leave out backbone.name), or use random weights: backbone.pretrained=false"
    )


def _known(vit: nn.Module, name: str) -> VisionTransformer:
    try:
        return walking.check_known(vit)
    except WeightsError as error:
        raise WeightsError(f"backbone.name: '{name}' cannot be used: {error}") from error

"""Vision transformers without memory for their weights: from a timm name, from metadata, from parameters' shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from zofc.errors import RecipeError, WeightsError, nearest
from zofc.limits import VIT_BLOCKS, VIT_PIXELS, VIT_TOKENS, VIT_WIDTH

Shapes = Mapping[str, tuple[int, ...]]  # of a ViT's weights, by timm's names
GEOMETRY = ("img_size", "patch_size", "embed_dim", "depth", "num_heads")
DINOV2_HEADS = {384: 6, 768: 12, 1024: 16, 1536: 24}  # by width, of all models that its authors' code makes
DINOV2_PATCH = 14
VIT_PARTS = ("patch_embed.", "cls_token", "reg_token", "dist_token", "blocks.", "norm", "fc_norm")


@dataclass(frozen=True)
class EmptyVit:
    """A ViT without weights, and what its inputs are: normalised with mean and std, `image_size` pixels a side if that
    is not the size of its positions. With `any_grid` its weights may have the positions of another size."""

    vit: VisionTransformer
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: int | None = None
    any_grid: bool = False


def is_plain_vit(name: str) -> bool:
    """Whether a timm model is made by the module of the vision transformer, or that of DeiT, its variant."""
    return str(timm.model_entrypoint(name.partition(".")[0]).__module__).endswith((".vision_transformer", ".deit"))


def empty_vit(name: str, **arguments: Any) -> nn.Module:
    """A timm model without memory for its weights and, where timm allows it, without drawing them: quick to make."""
    quick = {"device": "meta", "weight_init": "skip"} if is_plain_vit(name) else {}
    with nullcontext() if quick else torch.device("meta"):
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **{**arguments, **quick})
    return model


def statistics(vit: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation that a timm model's inputs are normalised with."""
    config: dict[str, Any] = vit.pretrained_cfg  # type: ignore[assignment]
    return tuple(config["mean"]), tuple(config["std"])


def check_architecture(name: str) -> str:
    """The setting backbone.architecture, if it is a timm name."""
    if not timm.is_model(name):
        raise RecipeError(f"backbone.architecture: no timm model '{name}'{nearest(name, timm.list_models('vit_*'))}")
    return name


def set_image_size(vit: VisionTransformer, size: int | None, name: str) -> None:
    """Make a ViT take images of `size` pixels a side; its positional embedding is resampled by timm (bicubic,
    antialiased), as timm does when it loads pretrained weights at another size."""
    if size is None:
        return
    patch = int(vit.patch_embed.feat_ratio())
    if size % patch:
        below, above = size // patch * patch, -(-size // patch) * patch
        sizes = f"{below} and {above}" if below else str(above)
        raise RecipeError(
            f"backbone.image_size: {size} is not a multiple of {patch}, the patch size of '{name}'; "
            f"the nearest sizes are {sizes}"
        )
    try:
        check_tokens(size, patch)
    except ValueError as error:
        raise RecipeError(f"backbone.image_size: {error}") from error
    vit.set_input_size(img_size=(size, size))


def take_grid(vit: VisionTransformer, shapes: Shapes) -> None:
    """Give an empty ViT the square grid of a file's positions, which need not be its architecture's own."""
    positions = shapes.get("pos_embed", ())
    tokens = positions[1] - (0 if vit.no_embed_class else vit.num_prefix_tokens) if len(positions) == 3 else 0
    side = math.isqrt(max(tokens, 0))
    if side and side**2 == tokens:
        vit.set_input_size(img_size=(side * vit.patch_embed.feat_ratio(),) * 2)


def missing_geometry(metadata: Mapping[str, str]) -> list[str]:
    """What a file's metadata lack to describe a ViT."""
    return [key for key in GEOMETRY if key not in metadata]


def vit_of_metadata(path: Path, metadata: Mapping[str, str], shapes: Shapes) -> EmptyVit | None:
    """A ViT of the geometry that a file's metadata state. Without metadata, only DINOv2's is known from its shapes."""
    if missing_geometry(metadata):
        return _vit_of_dinov2(shapes)
    try:
        geometry = {key: int(metadata[key]) for key in GEOMETRY}
        check_geometry(*geometry.values())
        mean, std = (three_numbers(key, metadata.get(key, "0.5,0.5,0.5").split(",")) for key in ("mean", "std"))
        blocks = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
        if blocks != geometry["depth"]:
            raise ValueError(f"it has {blocks} blocks, not depth={geometry['depth']}")
    except ValueError as error:
        raise WeightsError(f"backbone.name: the metadata of {path} cannot be used: {str(error)[:300]}") from error
    return EmptyVit(_vit_of_shapes(geometry, shapes), mean, std)


def check_geometry(size: int, patch: int, width: int, depth: int, heads: int) -> None:
    """Refuse numbers that no ViT can have, and those beyond the limits before a model of that size is made."""
    limits = {"img_size": (size, VIT_PIXELS), "patch_size": (patch, size), "embed_dim": (width, VIT_WIDTH),
              "depth": (depth, VIT_BLOCKS), "num_heads": (heads, width)}  # fmt: skip
    for key, (value, most) in limits.items():
        if not 1 <= value <= most:
            raise ValueError(f"{key}={value}, expected 1 to {most}, the limit")
    if width % heads:
        raise ValueError(f"num_heads={heads} does not divide embed_dim={width}")
    check_tokens(size, patch)


def check_tokens(size: int, patch: int) -> None:
    """Refuse images of so many tokens that attention between them would take more memory than there is."""
    if (tokens := (size // patch) ** 2) > VIT_TOKENS:
        raise ValueError(
            f"images of {size} px in patches of {patch} are {tokens:,} tokens; the limit is {VIT_TOKENS:,}"
        )


def three_numbers(name: str, values: Any) -> tuple[float, ...]:
    """The mean or std of the three channels; ValueError if it is none."""
    numbers = tuple(map(float, values))
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (name.endswith("std") and min(numbers) <= 0):
        raise ValueError(f"{name} is {str(values)[:100]}, expected three numbers, of std above 0")
    return numbers


def _vit_of_dinov2(shapes: Shapes) -> EmptyVit | None:
    """DINOv2 as its authors publish it: layer scale, a mask token and a patch of 14 pixels, which together only it has.
    The number of heads is in no shape; its width determines it."""
    patch = shapes.get("patch_embed.proj.weight", (0, 0, 0, 0))
    positions = shapes.get("pos_embed", (1, 0, 0))[1] - ("reg_token" not in shapes)
    side = math.isqrt(max(positions, 0))
    is_dinov2 = "mask_token" in shapes and "blocks.0.ls1.gamma" in shapes and patch[-1] == DINOV2_PATCH
    if not is_dinov2 or patch[0] not in DINOV2_HEADS or side**2 != positions:
        return None
    numbers = {int(name.split(".")[1]) for name in shapes if name.startswith("blocks.")}
    geometry = dict(
        zip(GEOMETRY, (side * DINOV2_PATCH, DINOV2_PATCH, patch[0], len(numbers), DINOV2_HEADS[patch[0]]), strict=True)
    )
    return EmptyVit(_vit_of_shapes(geometry, shapes), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)


def _vit_of_shapes(geometry: Mapping[str, int], shapes: Shapes) -> VisionTransformer:
    """A ViT of some geometry with the parts that the names and shapes of its weights show."""
    width = geometry["embed_dim"]
    class_token, registers = "cls_token" in shapes, shapes.get("reg_token", (1, 0, 0))[1]
    patches = (geometry["img_size"] // geometry["patch_size"]) ** 2
    positions = shapes.get("pos_embed", (1, 0, 0))[1]
    after_pooling = "fc_norm.weight" in shapes
    hidden = shapes.get("blocks.0.mlp.fc1.weight", (4 * width,))[0]
    swiglu = shapes.get("blocks.0.mlp.fc2.weight", (width, hidden))[1] * 2 == hidden
    with torch.device("meta"):
        return VisionTransformer(
            **geometry,
            class_token=class_token,
            reg_tokens=registers,
            no_embed_class=positions == patches and (class_token or registers > 0),
            global_pool="token" if class_token and not after_pooling else "avg",
            fc_norm=after_pooling,
            pre_norm="norm_pre.weight" in shapes,
            qk_norm="blocks.0.attn.q_norm.weight" in shapes,
            init_values=1.0 if "blocks.0.ls1.gamma" in shapes else None,  # layer scale, read from the file
            mlp_ratio=hidden_ratio(hidden, width),
            **(swiglu_arguments() if swiglu else {}),
            num_classes=0,
            weight_init="skip",
        )


def hidden_ratio(hidden: int, width: int) -> float:
    """timm's mlp_ratio for a hidden layer, half a unit up: timm rounds ratio · width down."""
    return (hidden + 0.5) / width


def swiglu_arguments() -> dict[str, Any]:
    """timm's arguments for an MLP with a gate, silu(x₁) x₂, whose halves are one matrix."""
    return {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}


def unknown_geometry(path: Path, metadata: Mapping[str, str], shapes: Shapes) -> WeightsError:
    """The error of a file that names no architecture, with the timm models that its shapes fit."""
    missing, fitting = missing_geometry(metadata), fitting_architectures(shapes)
    such = f"; its shapes are those of {', '.join(fitting[:4])}" if fitting else ""
    return WeightsError(
        f"backbone.name: {path} does not state its geometry (no {', '.join(missing)} in its metadata){such}; give the "
        "timm name of its architecture as backbone.architecture, with the tag of its pre-training, which decides how "
        "images are normalised"
    )


def fitting_architectures(shapes: Shapes) -> list[str]:
    """timm's ViTs that have parameters of exactly these shapes, positions aside, and no others of a ViT's names. Those
    with another patch size in their name are not made."""
    patch = shapes.get("patch_embed.proj.weight", (0,))
    wanted = {key: shape for key, shape in shapes.items() if key.startswith(VIT_PARTS)}
    fitting = []
    for name in timm.list_models([f"vit_*patch{patch[-1]}_*", f"deit*patch{patch[-1]}_*"]):
        if not is_plain_vit(name):
            continue
        own = {key: tuple(value.shape) for key, value in empty_vit(name).state_dict().items() if key != "pos_embed"}
        if own == wanted:
            fitting.append(name)
    return fitting

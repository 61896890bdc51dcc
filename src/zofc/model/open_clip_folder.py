"""Folders of open_clip: `open_clip_config.json` and weights, of which the image tower is read if it is a plain ViT."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from timm.layers import LayerNorm, QuickGELU
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from zofc.errors import WeightsError
from zofc.model.checkpoints import read_json
from zofc.model.geometry import EmptyVit, hidden_ratio

OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)
TOWER_DEFAULTS = {  # of vision_cfg
    "layers": 12,
    "width": 768,
    "head_width": 64,
    "mlp_ratio": 4.0,
    "patch_size": 16,
    "image_size": 224,
    "ls_init_value": None,
}
INTEGERS = ("layers", "width", "head_width", "patch_size", "image_size")
HARMLESS = {  # settings that change nothing in evaluation, and values of others that a plain ViT has
    "patch_dropout",
    "output_tokens",
    "attn_pooler_queries",
    "attn_pooler_heads",
    ("pool_type", "tok"),
    ("pos_embed_type", "learnable"),
    ("pos_embed_type", "sin_cos_2d"),
    ("block_type", "default"),
}


def vit_of_open_clip(folder: Path) -> EmptyVit:
    """The image tower that a folder's open_clip_config.json describes."""
    path = folder / OPEN_CLIP_CONFIG
    content = read_json(path)
    model, preprocessing = content.get("model_cfg") or {}, content.get("preprocess_cfg") or {}
    own = dict(model.get("vision_cfg") or {})
    if name := own.get("timm_model_name"):
        raise WeightsError(f"backbone.name: {path} has timm's {name} as image tower; use a timm name of these weights")
    tower: dict[str, Any] = {**TOWER_DEFAULTS, **own}
    other = [key for key in tower if key not in TOWER_DEFAULTS and not _is_plain(key, tower[key])]
    other += [key for key in INTEGERS if type(tower[key]) is not int]
    if other:
        raise WeightsError(
            f"backbone.name: {path} describes no plain ViT: {', '.join(f'{key}={tower[key]}' for key in other)}"
        )
    with torch.device("meta"):
        vit = VisionTransformer(
            img_size=tower["image_size"],
            patch_size=tower["patch_size"],
            embed_dim=tower["width"],
            depth=tower["layers"],
            num_heads=tower["width"] // tower["head_width"],
            mlp_ratio=hidden_ratio(int(tower["width"] * tower["mlp_ratio"]), tower["width"]),
            init_values=tower["ls_init_value"],
            pre_norm=True,
            norm_layer=partial(LayerNorm, eps=1e-5),
            act_layer=QuickGELU if model.get("quick_gelu") else nn.GELU,
            num_classes=0,
            weight_init="skip",
        )
    mean, std = preprocessing.get("mean", OPENAI_CLIP_MEAN), preprocessing.get("std", OPENAI_CLIP_STD)
    return EmptyVit(vit, tuple(map(float, mean)), tuple(map(float, std)))


def _is_plain(key: str, value: Any) -> bool:
    return not value or key in HARMLESS or (isinstance(value, str) and (key, value) in HARMLESS)

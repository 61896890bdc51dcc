"""What model families call the parameters of a vision transformer, and their conversion to timm's names.

A naming is data: the family's name of each module or parameter, with `{}` for the block's number, beside timm's.
Separate queries, keys and values are joined into timm's `qkv`. Every tensor of the vision tower must have a timm name
or be among those that features do not depend on; what is missing is found when the tensors are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zofc.errors import WeightsError

JOINED = {  # matrices of timm that others keep in parts: queries, keys and values, and the halves of a gated layer
    "attn.qkv": ("attn.q", "attn.k", "attn.v"),
    "mlp.fc1": ("mlp.gate", "mlp.up"),
}


@dataclass(frozen=True)
class Naming:
    """How a family calls a vision transformer's parameters."""

    family: str
    anchor: str  # a parameter of the tower that no other family has, by which the tower's prefix is found
    names: Mapping[str, str]  # a module or a parameter, `{}` for the block's number → timm's; empty: timm's own names
    unused: tuple[str, ...] = ()  # beginnings of names in the tower that the features do not depend on


@dataclass(frozen=True)
class Tower:
    """The tensors of a vision transformer, in fp32 by timm's names, and those that its features do not depend on."""

    tensors: dict[str, Tensor]
    unused: dict[str, Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, the unused ones included: a mask token tells how a model was trained."""
        return {name: tuple(value.shape) for name, value in {**self.unused, **self.tensors}.items()}


def _blocks(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{{}}.{theirs}": f"blocks.{{}}.{timms}" for theirs, timms in names.items()}


TIMM = Naming(
    "timm",
    "patch_embed.proj.weight",
    {},
    ("head.", "head_dist.", "fc.", "pre_logits.", "mask_token", "masked_embed", "decoder_", "dino_head.", "ibot_head."),
)
_HF_BLOCK = {
    "attention.attention.query": "attn.q",
    "attention.attention.key": "attn.k",
    "attention.attention.value": "attn.v",
    "attention.output.dense": "attn.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "norm1": "norm1",  # DINOv2
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.weights_in": "mlp.fc1",
    "mlp.weights_out": "mlp.fc2",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "attention.q_proj": "attn.q",  # state dicts of transformers 5, whose files keep the names above
    "attention.k_proj": "attn.k",
    "attention.v_proj": "attn.v",
    "attention.o_proj": "attn.proj",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.fc2",
}
HF_VIT = Naming(
    "Hugging Face ViT",
    "embeddings.patch_embeddings.projection.weight",
    {
        "embeddings.cls_token": "cls_token",
        "embeddings.distillation_token": "dist_token",
        "embeddings.register_tokens": "register_tokens",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection": "patch_embed.proj",
        "layernorm": "norm",
        **_blocks("encoder.layer", _HF_BLOCK),
        **_blocks("layers", _HF_BLOCK),
    },
    ("pooler.", "classifier.", "embeddings.mask_token"),
)
HF_CLIP = Naming(
    "Hugging Face CLIP",
    "embeddings.patch_embedding.weight",
    {
        "embeddings.class_embedding": "cls_token",
        "embeddings.position_embedding.weight": "pos_embed",
        "embeddings.patch_embedding": "patch_embed.proj",
        "pre_layrnorm": "norm_pre",
        "post_layernorm": "norm",
        **_blocks(
            "encoder.layers",
            {
                "self_attn.q_proj": "attn.q",
                "self_attn.k_proj": "attn.k",
                "self_attn.v_proj": "attn.v",
                "self_attn.out_proj": "attn.proj",
                "layer_norm1": "norm1",
                "layer_norm2": "norm2",
                "mlp.fc1": "mlp.fc1",
                "mlp.fc2": "mlp.fc2",
            },
        ),
    },
    ("embeddings.position_ids",),
)
OPEN_CLIP = Naming(
    "open_clip",
    "ln_pre.weight",
    {
        "class_embedding": "cls_token",
        "positional_embedding": "pos_embed",
        "conv1": "patch_embed.proj",
        "ln_pre": "norm_pre",
        "ln_post": "norm",
        **_blocks(
            "transformer.resblocks",
            {
                "ln_1": "norm1",
                "ln_2": "norm2",
                "ls_1": "ls1",
                "ls_2": "ls2",
                "attn.in_proj_weight": "attn.qkv.weight",
                "attn.in_proj_bias": "attn.qkv.bias",
                "attn.out_proj": "attn.proj",
                "mlp.c_fc": "mlp.fc1",
                "mlp.c_proj": "mlp.fc2",
            },
        ),
    },
    ("proj",),
)
NAMINGS = (TIMM, HF_VIT, HF_CLIP, OPEN_CLIP)

RESNETS: dict[tuple[tuple[int, ...], bool], int] = {  # blocks per stage and whether they are bottlenecks → depth
    ((2, 2, 2, 2), False): 18,
    ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50,
    ((3, 4, 23, 3), True): 101,
    ((3, 8, 36, 3), True): 152,
}
OTHER_MODELS = (  # the end of a parameter's name that tells what else a checkpoint is
    ("attn.relative_position_bias_table", "a Swin transformer or BEiT, with relative positions"),
    ("gamma", "a ConvNeXt model"),
    ("word_embeddings.weight", "a text model"),
    ("embed_tokens.weight", "a text model"),
    ("wte.weight", "a text model"),
    ("shared.weight", "a text model"),
    ("lora_A.weight", "a LoRA adapter, without the model that it belongs to"),
    ("lora_A.default.weight", "a LoRA adapter, without the model that it belongs to"),
    ("time_embedding.linear_1.weight", "a diffusion model"),
    ("running_mean", "a convolutional network"),
)


def to_timm_names(tensors: Mapping[str, Tensor], path: Path) -> Tower:
    """The vision transformer among named tensors, whatever family they come from."""
    naming, prefix = find_tower(tensors, path)
    own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    unused = {name: value for name, value in own.items() if name.startswith(naming.unused)}
    names = {name: _timm_name(name, naming) for name in own if name not in unused}
    renamed = {timms: own[name].float() for name, timms in names.items() if timms is not None}
    unknown = [name for name, timms in names.items() if timms is None]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise WeightsError(
            f"backbone.name: {path} is a {naming.family} model with parts that timm's VisionTransformer does not have: "
            f"{', '.join(unknown[:3])}{more}"
        )
    return Tower(_without_chunks(_with_shapes(_split_registers(_join_parts(renamed, path)))), unused)


def find_tower(names: Iterable[str], path: Path) -> tuple[Naming, str]:
    """The naming of a vision transformer's parameters, and what they all begin with. Of several towers, as training
    by self-distillation keeps them, the teacher's is taken."""
    keys = list(names)
    towers = [
        (naming, key.removesuffix(naming.anchor))
        for naming in NAMINGS
        for key in keys
        if key == naming.anchor or key.endswith(f".{naming.anchor}")
    ]
    towers = [tower for tower in towers if _has_blocks(keys, *tower)]
    teachers = [tower for tower in towers if "teacher" in tower[1].split(".")]
    if len(towers) > 1 and len(teachers) == 1:
        return teachers[0]
    if len(towers) > 1:
        prefixes = ", ".join(prefix or "no prefix" for _, prefix in towers)
        raise WeightsError(
            f"backbone.name: {path} holds several vision transformers ({prefixes}); save the state dict of one of them"
        )
    if not towers:
        raise WeightsError(
            f"backbone.name: {path} is {describe_content(keys)}; only vision transformers are supported, with the "
            "names of timm, DINO, DINOv2, MAE or open_clip, or of ViT, DeiT, DINOv2 and CLIP in transformers"
        )
    return towers[0]


def _has_blocks(keys: list[str], naming: Naming, prefix: str) -> bool:
    """Whether a tower is a plain stack of blocks, which one with timm's patch embedding need not be."""
    return naming is not TIMM or any(key.startswith(f"{prefix}blocks.0.") for key in keys)


def describe_content(names: Iterable[str]) -> str:
    """What a checkpoint without a vision transformer is, by the names of its parameters."""
    keys = list(names)
    depth = _resnet_depth(keys)
    if depth:
        return f"a {depth} checkpoint"
    for ending, content in OTHER_MODELS:
        if any(key == ending or key.endswith(f".{ending}") for key in keys):
            return f"the checkpoint of {content}"
    return f"no known model (its tensors are {', '.join(keys[:3])}{', …' * (len(keys) > 3)})"


def _resnet_depth(keys: list[str]) -> str:
    found = [re.search(r"(?:^|\.)layer([1-4])\.(\d+)\.conv1\.weight$", key) for key in keys]
    blocks = [(int(match[1]), int(match[2])) for match in found if match]
    if not blocks:
        return ""
    stages = tuple(len([1 for stage, _ in blocks if stage == number]) for number in range(1, 5))
    depth = RESNETS.get((stages, any(key.endswith(".conv3.weight") for key in keys)))
    return f"ResNet-{depth}" if depth else "ResNet"


def _timm_name(name: str, naming: Naming) -> str | None:
    if not naming.names:
        return _RENAMED_BY_AUTHORS.sub(lambda match: _AUTHORS_NAMES[match[0]], name)
    parts = name.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    pattern = ".".join("{}" if part.isdigit() else part for part in parts)
    if pattern in naming.names:
        return naming.names[pattern].format(number)
    module, _, leaf = pattern.rpartition(".")
    return f"{naming.names[module].format(number)}.{leaf}" if module in naming.names else None


_AUTHORS_NAMES = {".mlp.w12.": ".mlp.fc1.", ".mlp.w3.": ".mlp.fc2.", ".gamma_1": ".ls1.gamma", ".gamma_2": ".ls2.gamma"}
_RENAMED_BY_AUTHORS = re.compile("|".join(map(re.escape, _AUTHORS_NAMES)))  # DINOv2's SwiGLU, DeiT III's layer scale


def _join_parts(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Matrices and biases that timm keeps as one, put below each other."""
    joined = dict(tensors)
    for whole, parts in JOINED.items():
        for first in [key for key in tensors if key.rpartition(".")[0].endswith(f".{parts[0]}")]:
            names = [first.replace(f".{parts[0]}.", f".{part}.") for part in parts]
            if missing := [name for name in names if name not in tensors]:
                raise WeightsError(
                    f"backbone.name: {path} does not fit its architecture: {missing[0]} is missing beside {first}"
                )
            joined[first.replace(f".{parts[0]}.", f".{whole}.")] = torch.cat([joined.pop(name) for name in names])
    return joined


def _split_registers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """DINOv2's registers have no positions: in timm then neither has the class token, whose position is added to it."""
    if not {"register_tokens", "cls_token", "pos_embed"} <= {*tensors}:
        return tensors
    rest = dict(tensors)
    rest["reg_token"] = rest.pop("register_tokens")
    positions = rest["pos_embed"]
    rest["cls_token"] = rest["cls_token"] + positions[:, :1]
    rest["pos_embed"] = positions[:, 1:]
    return rest


def _with_shapes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tokens and positions as (1, tokens, width)."""
    tokens = {name for name in ("cls_token", "pos_embed") if name in tensors and tensors[name].dim() in (1, 2)}
    return tensors | {name: tensors[name].reshape(1, -1, tensors[name].shape[-1]) for name in tokens}


def _without_chunks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """DINOv2's training keeps blocks in chunks, `blocks.CHUNK.NUMBER.`, with numbers that count all blocks."""
    return {re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name): value for name, value in tensors.items()}

"""Model folders as hubs have them: `config.json` and weights, of Hugging Face transformers, of timm or of open_clip.

A family of transformers is data: the defaults of its configuration and how a timm VisionTransformer of that geometry is
made. What timm cannot express exactly is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import timm
import torch
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from timm.layers import GELUTanh, LayerNorm, QuickGELU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from zofc.errors import WeightsError
from zofc.limits import VIT_BLOCKS, VIT_PIXELS, VIT_TOKENS, VIT_WIDTH
from zofc.model.checkpoints import NamedTensors, read_checkpoint, read_json
from zofc.model.geometry import (
    EmptyVit,
    check_tokens,
    empty_vit,
    hidden_ratio,
    statistics,
    swiglu_arguments,
    three_numbers,
)
from zofc.model.open_clip_folder import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, vit_of_open_clip
from zofc.model.vit import check_known

CONFIG_FILE = "config.json"
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
FOLDER_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
HIDDEN_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "quick_gelu": QuickGELU,
    "gelu_new": GELUTanh,
    "gelu_pytorch_tanh": GELUTanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
}
TWO_TOKENS = "DeiTForImageClassificationWithTeacher"  # whose prediction is the mean of those of two tokens

ModelConfig = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """A model type of Hugging Face transformers: the defaults of its config.json, which may leave them out, how timm's
    arguments follow from it beside those of every ViT, and the mean and std of its image processor."""

    defaults: ModelConfig
    arguments: Callable[[ModelConfig], dict[str, Any]]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _hidden_layer(config: ModelConfig) -> dict[str, Any]:
    return {"mlp_ratio": hidden_ratio(config["intermediate_size"], config["hidden_size"])}


def _clip(config: ModelConfig) -> dict[str, Any]:
    return {**_hidden_layer(config), "pre_norm": True}


def _deit(config: ModelConfig) -> dict[str, Any]:
    """The distillation token is a register, unless predictions are read from it too."""
    return _hidden_layer(config) | ({} if TWO_TOKENS in (config.get("architectures") or ()) else {"reg_tokens": 1})


def _dinov2(config: ModelConfig) -> dict[str, Any]:
    width, registers = config["hidden_size"], config["num_register_tokens"]
    hidden = int(width * config["mlp_ratio"])
    arguments = {"init_values": 1.0, "reg_tokens": registers, "no_embed_class": registers > 0}
    if config["use_swiglu_ffn"]:
        gated = (int(hidden * 2 / 3) + 7) // 8 * 8
        return {**arguments, **swiglu_arguments(), "mlp_ratio": hidden_ratio(2 * gated, width)}
    return {**arguments, "mlp_ratio": hidden_ratio(hidden, width)}


_VIT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
}
_CLIP = {**_VIT, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32}
_DINOV2 = {
    **_VIT,
    "mlp_ratio": 4,
    "layer_norm_eps": 1e-6,
    "patch_size": 14,
    "use_swiglu_ffn": False,
    "num_register_tokens": 0,
}
_IMAGENET = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
_INCEPTION = (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD)
_OPENAI = (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD)
MODEL_TYPES = {
    "vit": Family(_VIT, _hidden_layer, *_INCEPTION),
    "vit_mae": Family(_VIT, _hidden_layer, *_IMAGENET),
    "vit_msn": Family({**_VIT, "layer_norm_eps": 1e-6}, _hidden_layer, *_IMAGENET),
    "deit": Family(_VIT, _deit, *_IMAGENET),
    "dinov2": Family(_DINOV2, _dinov2, *_IMAGENET),
    "dinov2_with_registers": Family({**_DINOV2, "num_register_tokens": 4}, _dinov2, *_IMAGENET),
    "clip": Family(_CLIP, _clip, *_OPENAI),
    "clip_vision_model": Family(_CLIP, _clip, *_OPENAI),
}


def read_model_folder(folder: Path) -> NamedTensors:
    """The tensors of a folder's weights, of all shards."""
    tensors: dict[str, Any] = {}
    for path in weight_files(folder):
        tensors |= read_checkpoint(path).tensors
    return NamedTensors(folder, tensors)


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights: one, or all shards that an index lists."""
    names = OPEN_CLIP_WEIGHTS if is_open_clip(folder) else FOLDER_WEIGHTS
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise WeightsError(f"backbone.name: no weights in {folder}: none of {', '.join(names)}")
    if path.suffix != ".json":
        return [path]
    try:
        listed = {str(name) for name in dict(read_json(path).get("weight_map", {})).values()}
    except (TypeError, ValueError) as error:
        raise WeightsError(f"backbone.name: the weight_map of {path} is no list of files: {error}") from error
    if foreign := sorted(name for name in listed if PurePath(name).name != name):
        raise WeightsError(f"backbone.name: {path} lists '{foreign[0]}', which is not a file of its folder")
    shards = sorted(folder / name for name in listed)
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise WeightsError(
            f"backbone.name: {folder} lacks {len(missing)} of {len(shards)} shards that {path.name} lists, "
            f"{missing[0]} first; download them"
        )
    return shards


def is_open_clip(folder: Path) -> bool:
    """Whether a folder is one of open_clip alone; some have the files of transformers or timm too."""
    return (folder / OPEN_CLIP_CONFIG).is_file() and not (folder / CONFIG_FILE).is_file()


def is_model_folder(path: Path) -> bool:
    """Whether a path is a folder that describes a model."""
    return (path / CONFIG_FILE).is_file() or is_open_clip(path)


def described_files(folder: Path) -> list[Path]:
    """Every file of a folder that a backbone is made from."""
    names = [OPEN_CLIP_CONFIG] if is_open_clip(folder) else [CONFIG_FILE, *PREPROCESSORS]
    about = [folder / name for name in names if (folder / name).is_file()]
    return about + weight_files(folder)


def vit_of_folder(folder: Path) -> EmptyVit:
    """The ViT that a folder's config.json describes."""
    if is_open_clip(folder):
        return vit_of_open_clip(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise WeightsError(
            f"backbone.name: the folder {folder} has no {CONFIG_FILE}; give a weight file, or a folder as Hugging Face "
            "transformers, timm and open_clip save it"
        )
    config = read_json(folder / CONFIG_FILE)
    make = _vit_of_timm if "architecture" in config else _vit_of_transformers
    try:
        return make(folder, config)
    except WeightsError:
        raise
    except Exception as error:  # values of other types
        raise WeightsError(f"backbone.name: {folder / CONFIG_FILE} or a file beside it is wrong: {error}") from error


def _vit_of_timm(folder: Path, config: ModelConfig) -> EmptyVit:
    name, about = str(config["architecture"]), config.get("pretrained_cfg") or config
    if not timm.is_model(name):
        raise WeightsError(
            f"backbone.name: {folder / CONFIG_FILE} has the architecture '{name}', which timm {timm.__version__} "
            "does not have; only vision transformers of timm are supported"
        )
    vit = check_known(empty_vit(name, **_model_arguments(config.get("model_args") or {})))
    mean, std = statistics(vit)
    mean, std = three_numbers("mean", about.get("mean", mean)), three_numbers("std", about.get("std", std))
    return EmptyVit(vit, mean, std, any_grid=True)


def _model_arguments(given: ModelConfig) -> ModelConfig:
    """Arguments of the model itself: others of timm, such as checkpoint_path, would have it read and unpickle files."""
    known = {*inspect.signature(VisionTransformer.__init__).parameters} - {"self"}
    if foreign := sorted({*given} - known):
        raise ValueError(f"model_args has {', '.join(foreign)[:300]}, no argument of timm's VisionTransformer")
    limits = {"depth": VIT_BLOCKS, "embed_dim": VIT_WIDTH, "img_size": VIT_PIXELS, "reg_tokens": VIT_TOKENS}
    for key, most in limits.items():
        if isinstance(value := given.get(key), (int, float)) and not 0 <= value <= most:
            raise ValueError(f"model_args has {key}={value}; the limit is {most}")
    return given


def _vit_of_transformers(folder: Path, config: ModelConfig) -> EmptyVit:
    kind = str(config.get("model_type"))
    family = MODEL_TYPES.get(kind)
    if family is None:
        raise WeightsError(
            f"backbone.name: {folder / CONFIG_FILE} is of {_describe_config(config)}; of Hugging Face transformers "
            f"these model types are supported: {', '.join(MODEL_TYPES)}"
        )
    own = config.get("vision_config") or {} if kind == "clip" else config
    values = {**family.defaults, **{key: value for key, value in own.items() if value is not None}}
    problem = _unsupported(values)
    if problem:
        raise WeightsError(f"backbone.name: {folder / CONFIG_FILE}: {problem}")
    size = _side(values["image_size"])
    check_tokens(size or 0, _side(values["patch_size"]) or 1)
    made = VisionTransformerDistilled if TWO_TOKENS in (config.get("architectures") or ()) else VisionTransformer
    arguments = {
        "img_size": size,
        "patch_size": _side(values["patch_size"]),
        "embed_dim": values["hidden_size"],
        "depth": values["num_hidden_layers"],
        "num_heads": values["num_attention_heads"],
        "qkv_bias": values["qkv_bias"],
        "norm_layer": partial(LayerNorm, eps=values["layer_norm_eps"]),
        "act_layer": HIDDEN_ACTIVATIONS[values["hidden_act"]],
        "num_classes": 0,
        "weight_init": "skip",
        **family.arguments(values),
    }
    with torch.device("meta"):
        vit = made(**arguments)
    processor = _read_processor(folder)
    shown = _side(processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size"))
    other = shown is not None and shown != size and shown % vit.patch_embed.patch_size[0] == 0
    return EmptyVit(vit, *_normalization(processor, family), shown if other else None)


def _unsupported(config: ModelConfig) -> str:
    """Why timm's VisionTransformer cannot be what a configuration describes; empty if it can."""
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        most = VIT_BLOCKS if key == "num_hidden_layers" else 8 * VIT_WIDTH
        if not isinstance(config[key], int) or not 1 <= config[key] <= most:
            return f"{key} is {config[key]!r}, not a positive integer up to {most}, the limit"
    if not isinstance(config["layer_norm_eps"], (int, float)):
        return f"layer_norm_eps is {config['layer_norm_eps']!r}, not a number"
    for key in ("image_size", "patch_size"):
        if _side(config[key]) is None:
            return f"{key} is {config[key]}, but only square images and patches are supported"
    if config["num_channels"] != 3:
        return f"num_channels is {config['num_channels']}, but only images of 3 channels are supported"
    if config["hidden_act"] not in HIDDEN_ACTIVATIONS:
        return f"the activation {config['hidden_act']} is not supported, only {', '.join(HIDDEN_ACTIVATIONS)}"
    if config["hidden_size"] % config["num_attention_heads"]:
        return f"{config['num_attention_heads']} heads do not divide the width {config['hidden_size']}"
    return ""


def _side(size: Any) -> int | None:
    """The side of a square in pixels: a number, a pair, or an image processor's height and width or shortest edge."""
    if isinstance(size, Mapping):
        size = size.get("shortest_edge") or [size.get("height"), size.get("width")]
    sides = {*size} if isinstance(size, (list, tuple)) else {size}
    side = sides.pop() if len(sides) == 1 else None
    return side if isinstance(side, int) and side > 0 else None


def _read_processor(folder: Path) -> ModelConfig:
    """The image processor's settings; none if the folder has no file of them."""
    path = next((folder / name for name in PREPROCESSORS if (folder / name).is_file()), None)
    if path is None:
        return {}
    settings = read_json(path)
    nested = settings.get("image_processor")
    return nested if isinstance(nested, Mapping) else settings


def _normalization(processor: ModelConfig, family: Family) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of an image processor, its family's if it has none."""
    if not processor.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    mean, std = processor.get("image_mean") or family.mean, processor.get("image_std") or family.std
    return three_numbers("image_mean", mean), three_numbers("image_std", std)


def _describe_config(config: ModelConfig) -> str:
    classes = ", ".join(map(str, config.get("architectures") or ())) or config.get("model_type") or "no known model"
    is_text = "vocab_size" in config and not {"vision_config", "image_size", "patch_size"} & {*config}
    return f"a text model ({classes})" if is_text else f"a model that is not supported ({classes})"

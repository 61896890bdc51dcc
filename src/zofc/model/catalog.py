"""The backbones there are: part of the package, weight files under $ZOFC_DATA/backbones, and timm's ViTs.

Models are made without memory for their weights, so the list takes a few seconds and no network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import timm
import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from timm.models import get_pretrained_cfg

from zofc.errors import WeightsError
from zofc.model.backbone import (
    CLASSIFIER_KEYS,
    EMBEDDED,
    Backbone,
    embedded_weights,
    empty_vit,
    is_plain_vit,
    vit_of_file,
)
from zofc.model.vit import check_known

PATTERNS = ("vit_*", "deit*")
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
FOLDER = "backbones"  # below $ZOFC_DATA


@dataclass(frozen=True)
class CatalogEntry:
    """A backbone's name for recipes, what it is at its own image size, and where its weights are."""

    name: str
    backbone: Backbone | None  # without weights; None: a file that does not describe itself
    weights: str  # package, file (under $ZOFC_DATA), cached (downloaded before) or hub (fetched when first used)


def backbones(text: str = "") -> Iterator[CatalogEntry]:
    """The backbones that can be used and have `text` in their name, those that are files first."""
    text = text.casefold()
    if text in EMBEDDED:
        with embedded_weights() as path:
            yield CatalogEntry(EMBEDDED, _from_header(path), "package")
    for name, path in _local_files():
        if text in name.casefold():
            yield CatalogEntry(name, _from_header(path), "file")
    for name in timm.list_pretrained(list(PATTERNS)):
        if text not in name.casefold() or not is_plain_vit(name):
            continue
        if (backbone := _from_name(name.partition(".")[0])) is not None:
            yield CatalogEntry(name, backbone, "cached" if is_downloaded(name) else "hub")


def is_downloaded(name: str) -> bool:
    """Whether the weights of a timm model are in the cache of the hub they come from."""
    config = get_pretrained_cfg(name)
    if config is None:
        return False
    files = (config.hf_hub_filename,) if config.hf_hub_filename else HUB_FILES
    if config.hf_hub_id and any(isinstance(try_to_load_from_cache(config.hf_hub_id, file), str) for file in files):
        return True
    if not config.url:
        return False
    return Path(torch.hub.get_dir(), "checkpoints", PurePosixPath(config.url).name).exists()


def _local_files() -> list[tuple[str, Path]]:
    """Weight files under $ZOFC_DATA by the name that recipes give them."""
    root = os.environ.get("ZOFC_DATA")
    files = sorted(Path(root, FOLDER).glob("*")) if root else []
    return [(f"{FOLDER}/{file.name}", file) for file in files if file.suffix in (".safetensors", ".npz")]


def _from_header(path: Path) -> Backbone | None:
    """What a weight file is, without reading its weights."""
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, framework="pt") as file:
            names = [key for key in file.keys() if key not in CLASSIFIER_KEYS]  # noqa: SIM118 (not a dict)
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in names}
            vit, mean, std = vit_of_file(path, file.metadata() or {}, shapes)
    except (SafetensorError, OSError, WeightsError):
        return None
    return Backbone(vit, str(path), None, mean, std)


@cache
def _from_name(architecture: str) -> Backbone | None:
    try:
        return Backbone(check_known(empty_vit(architecture)), architecture, None, (), ())
    except WeightsError:
        return None

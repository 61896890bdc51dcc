"""The backbones there are: part of the package, files and folders under $ZOFC_DATA/backbones, and timm's ViTs.

Models are made without memory for their weights, so the list takes a few seconds and no network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import timm
from safetensors import SafetensorError, safe_open

from zofc.errors import WeightsError
from zofc.model.backbone import EMBEDDED, Backbone, embedded_weights
from zofc.model.checkpoints import SAFETENSORS_SUFFIX
from zofc.model.folders import is_model_folder, vit_of_folder, weight_files
from zofc.model.geometry import empty_vit, is_plain_vit, set_image_size, vit_of_metadata
from zofc.model.hub import cached_weights
from zofc.model.vit import check_known
from zofc.recipe import is_weights_path

PATTERNS = ("vit_*", "deit*")
FOLDER = "backbones"  # below $ZOFC_DATA
HUB_DEFAULT = "vit_small_patch14_dinov2.lvd142m"
CHARACTERS = "glyphs"  # the source of images like those that the embedded backbone was trained on


@dataclass(frozen=True)
class CatalogEntry:
    """A backbone's name for recipes, what it is at its own image size, and where its weights are."""

    name: str
    backbone: Backbone | None  # without weights; None: weights that do not describe themselves
    weights: str  # package, file (or folder, under $ZOFC_DATA), cached (downloaded before) or hub (fetched when used)


def backbones(text: str = "") -> Iterator[CatalogEntry]:
    """The backbones that can be used and have `text` in their name, those that are files first."""
    text = text.casefold()
    if text in EMBEDDED:
        with embedded_weights() as path:
            yield CatalogEntry(EMBEDDED, _describe_weights(path), "package")
    for name, path in _local_weights():
        if text in name.casefold():
            yield CatalogEntry(name, _describe_weights(path), "file")
    for name in timm.list_pretrained(list(PATTERNS)):
        if text not in name.casefold() or not is_plain_vit(name):
            continue
        if (backbone := _from_name(name.partition(".")[0])) is not None:
            yield CatalogEntry(name, backbone, "cached" if is_downloaded(name) else "hub")


def is_downloaded(name: str) -> bool:
    """Whether the weights of a timm model are in the cache of the hub they come from."""
    return cached_weights(name) is not None


def _local_weights() -> list[tuple[str, Path]]:
    """Weight files and model folders under $ZOFC_DATA by the name that recipes give them."""
    root = os.environ.get("ZOFC_DATA")
    paths = sorted(Path(root, FOLDER).glob("*")) if root else []
    models = [path for path in paths if is_weights_path(path.name) or is_model_folder(path)]
    return [(f"{FOLDER}/{path.name}", path) for path in models]


def _describe_weights(path: Path) -> Backbone | None:
    """What a weight file or folder is, without reading its weights."""
    empty = None
    with suppress(SafetensorError, OSError, RuntimeError, WeightsError):  # those are listed without a description
        if path.is_dir():
            weight_files(path)  # an error if some are missing
            empty = vit_of_folder(path)
            set_image_size(empty.vit, empty.image_size, path.name)
        elif path.suffix == SAFETENSORS_SUFFIX:
            with safe_open(path, framework="pt") as file:
                shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 (no dict)
                empty = vit_of_metadata(path, file.metadata() or {}, shapes)
    return Backbone(empty.vit, str(path), None, empty.mean, empty.std) if empty else None


@cache
def _from_name(architecture: str) -> Backbone | None:
    try:
        return Backbone(check_known(empty_vit(architecture)), architecture, None, (), ())
    except WeightsError:
        return None

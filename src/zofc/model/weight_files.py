"""Loads a vision transformer from a local file or folder, its parameters checked to be all there and no others."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from zofc import seeds
from zofc.errors import WeightsError
from zofc.model.checkpoints import read_checkpoint, sha256, sha256_of_files
from zofc.model.folders import described_files, is_model_folder, read_model_folder, vit_of_folder
from zofc.model.geometry import (
    EmptyVit,
    check_architecture,
    empty_vit,
    set_image_size,
    statistics,
    take_grid,
    unknown_geometry,
    vit_of_metadata,
)
from zofc.model.naming import Tower, to_timm_names
from zofc.model.vit import check_known
from zofc.paths import expand, find_existing, why_unreadable
from zofc.recipe import BackboneSettings
from zofc.recipe.schema import WEIGHT_SUFFIXES
from zofc.units import format_bytes

NPZ_SUFFIX = ".npz"


@dataclass(frozen=True)
class LocalVit:
    """A ViT with its weights, how its inputs are normalised, and where it comes from."""

    vit: VisionTransformer
    mean: tuple[float, ...]
    std: tuple[float, ...]
    path: Path
    checksum: str


def find_weights(name: str) -> Path | None:
    """A file or folder as given, in the working directory, or under $ZOFC_DATA; None if there is none."""
    return find_existing(_places(name), "backbone.name", WeightsError)


def _places(name: str) -> list[Path]:
    path = expand(name)
    return list(dict.fromkeys((path, Path(os.environ.get("ZOFC_DATA") or "", path))))  # an absolute path stays itself


def _not_there(name: str) -> WeightsError:
    remedy = ""
    if re.fullmatch(r"[\w-]+/[\w.-]+", name) and not name.endswith(WEIGHT_SUFFIXES):
        remedy = f"; a model of the Hugging Face hub is given as a folder: hf download {name} --local-dir FOLDER"
    return WeightsError(f"backbone.name: no weight file or folder {' or '.join(map(str, _places(name)))}{remedy}")


def load_weights(recipe: BackboneSettings) -> LocalVit:
    """The ViT of the file or folder that `backbone.name` is, at the image size of its positions or of its folder."""
    path = find_weights(recipe.name)
    if path is None:
        raise _not_there(recipe.name)
    if not path.is_dir() and (reason := why_unreadable(path)):
        raise WeightsError(f"backbone.name: {path} cannot be read: {reason}")
    checksum = sha256_of_files(described_files(path)) if path.is_dir() else sha256(path)
    if recipe.checksum and checksum != recipe.checksum.lower():
        raise WeightsError(f"backbone.checksum: {path} has sha256 {checksum}, the recipe expects {recipe.checksum}")
    if path.suffix == NPZ_SUFFIX:
        vit = _load_npz(path, recipe.architecture)
        return LocalVit(check_known(vit), *statistics(vit), path, checksum)
    return load_tensors(path, checksum, recipe)


def load_tensors(path: Path, checksum: str, recipe: BackboneSettings) -> LocalVit:
    """The ViT of a safetensors file, a torch checkpoint or a model folder."""
    checkpoint = read_model_folder(path) if path.is_dir() else read_checkpoint(path)
    tower = to_timm_names(checkpoint.tensors, path)
    empty = _vit_of_architecture(recipe) if recipe.architecture else _describe(path, checkpoint.metadata, tower)
    if empty.any_grid:
        take_grid(empty.vit, tower.shapes)
    _assign(empty.vit, tower, path)
    if recipe.image_size is None:
        set_image_size(empty.vit, empty.image_size, str(path))
    return LocalVit(check_known(empty.vit), empty.mean, empty.std, path, checksum)


def _vit_of_architecture(recipe: BackboneSettings) -> EmptyVit:
    name = check_architecture(recipe.architecture or "")
    vit = empty_vit(name)
    try:
        return EmptyVit(check_known(vit), *statistics(vit), any_grid=recipe.image_size is not None)
    except WeightsError as error:
        raise WeightsError(f"backbone.architecture: '{name}' cannot be used: {error}") from error


def _describe(path: Path, metadata: Mapping[str, str], tower: Tower) -> EmptyVit:
    """What a folder's config.json says, or a file's metadata, shapes, or the config.json beside it."""
    if path.is_dir():
        return vit_of_folder(path)
    empty = vit_of_metadata(path, metadata, tower.shapes)
    if empty is None and is_model_folder(path.parent):
        empty = vit_of_folder(path.parent)
    if empty is None:
        raise unknown_geometry(path, metadata, tower.shapes)
    return empty


def _assign(vit: VisionTransformer, tower: Tower, path: Path) -> None:
    state, wanted = tower.tensors, vit.state_dict()
    if "dist_token" in state and "dist_token" not in wanted:  # its features do not read the token: a register
        state = {("reg_token" if key == "dist_token" else key): value for key, value in state.items()}
    wrong = [
        f"{key} is {tuple(value.shape)}, expected {tuple(wanted[key].shape)}"
        for key, value in state.items()
        if key in wanted and value.shape != wanted[key].shape
    ]
    wrong += [
        f"{key} holds {'NaN or infinite numbers' if value.is_floating_point() else str(value.dtype)}"
        for key, value in state.items()
        if key in wanted and not (value.is_floating_point() and bool(value.float().isfinite().all()))
    ]
    wrong += [f"{key} is missing" for key in wanted if key not in state]
    wrong += [f"{key} is not a parameter of this architecture" for key in state if key not in wanted]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise WeightsError(f"backbone.name: {path} does not fit its architecture: {'; '.join(wrong[:3])}{more}")
    vit.load_state_dict(state, assign=True)


def _load_npz(path: Path, architecture: str | None) -> VisionTransformer:
    if not architecture:
        raise unknown_geometry(path, {}, {})
    with named_init(0):  # what the file does not hold, such as layer scale, starts as timm has it
        vit: VisionTransformer = timm.create_model(check_architecture(architecture), pretrained=False, num_classes=0)
    try:
        _check_npz(path, sum(value.nbytes for value in vit.state_dict().values()))
        vit.load_pretrained(str(path))
    except WeightsError:
        raise
    except Exception as error:  # zip archives, headers and shapes go wrong in many ways
        raise WeightsError(f"backbone.name: {path} does not fit {architecture}: {first_line(error)}") from error
    return vit


def _check_npz(path: Path, size: int) -> None:
    """Refuse archives of other content, and those whose arrays take much more than the weights: they are compressed."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    most = 4 * size + 2**28  # beside the weights, a classifier for 21,843 classes or a state of an optimizer
    if (total := sum(entry.file_size for entry in entries)) > most:
        limit = f"more than the limit of {format_bytes(most)} for this architecture"
        raise WeightsError(f"backbone.name: {path} holds {format_bytes(total)}, {limit}")
    if not any(entry.filename == "embedding/kernel.npy" for entry in entries):
        raise WeightsError(f"backbone.name: {path} holds no vision transformer in the published npz layout")


@contextmanager
def named_init(seed: int) -> Iterator[None]:
    """timm draws initial weights from torch's global generator: give it a named one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.key(seed, "backbone") & (2**63 - 1))
        yield


def first_line(error: BaseException) -> str:
    """The beginning of an error's text, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]

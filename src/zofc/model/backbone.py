"""The frozen backbone: any timm ViT by name, a local weight file, or the small one that is part of the package."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors import SafetensorError, safe_open
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from zofc import seeds
from zofc.errors import RecipeError, WeightsError, nearest
from zofc.model import vit as walking
from zofc.model.vit import STARTED, Inserts, Place, State
from zofc.recipe import BackboneSettings

EMBEDDED = "embedded"
START = Place(0, STARTED)
Shapes = Mapping[str, tuple[int, ...]]  # of a ViT's weights, by timm's names
GEOMETRY = ("img_size", "patch_size", "embed_dim", "depth", "num_heads")
CLASSIFIER_KEYS = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")


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


PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    is_file = name.endswith((".safetensors", ".npz"))
    if recipe.checksum and not is_file:
        raise RecipeError(f"backbone.checksum: only a local weight file has one to compare, not '{name}'")
    if not recipe.pretrained and (is_file or name == EMBEDDED):
        raise RecipeError(f"backbone.pretrained: '{name}' is a set of weights; for random ones give a timm name")
    if name == EMBEDDED:
        with embedded_weights() as path:
            found = _from_safetensors(path, recipe, name)
    elif is_file:
        found = _from_file(Path(name).expanduser(), recipe)
    else:
        found = _from_timm(recipe, seed)
    set_image_size(found.vit, recipe.image_size, name)
    found.vit.eval().requires_grad_(False)
    found.vit.to(device=device, dtype=dtype)
    return replace(found, recompute=recompute, compiled=compiled)


def embedded_weights() -> AbstractContextManager[Path]:
    """The weight file that is part of the package."""
    return resources.as_file(resources.files("zofc.model") / "weights" / "embedded.safetensors")


def _from_timm(recipe: BackboneSettings, seed: int) -> Backbone:
    if not timm.is_model(recipe.name):
        known = timm.list_models("vit_*") + timm.list_models("deit_*") + [EMBEDDED]
        raise RecipeError(f"backbone.name: no timm model '{recipe.name}'{nearest(recipe.name, known)}")
    if recipe.pretrained:  # what cannot be used is not fetched
        with suppress(RuntimeError):  # a model that cannot be made without memory is looked at below
            set_image_size(_known(empty_vit(recipe.name), recipe.name), recipe.image_size, recipe.name)
    with _named_init(seed):
        try:
            vit = timm.create_model(recipe.name, pretrained=recipe.pretrained, num_classes=0)
        except (OSError, RuntimeError, ValueError) as error:
            raise WeightsError(
                f"backbone.name: the weights of '{recipe.name}' could not be fetched or read ({_first_line(error)}). "
                "Without a network, give a local .safetensors or .npz file as backbone.name (with "
                f"backbone.architecture={recipe.name}), or backbone.pretrained=false for random weights."
            ) from error
    checksum = None if recipe.pretrained else f"random weights, seed {seed}"
    return Backbone(_known(vit, recipe.name), recipe.name, checksum, *statistics(vit))


def is_plain_vit(name: str) -> bool:
    """Whether a timm model is made by the module of the vision transformer, or that of DeiT, its variant."""
    return str(timm.model_entrypoint(name.partition(".")[0]).__module__).endswith((".vision_transformer", ".deit"))


def empty_vit(name: str) -> nn.Module:
    """A timm model without memory for its weights and, where timm allows it, without drawing them: quick to make."""
    quick = {"device": "meta", "weight_init": "skip"} if is_plain_vit(name) else {}
    with nullcontext() if quick else torch.device("meta"):
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **quick)
    return model


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
    vit.set_input_size(img_size=(size, size))


def _take_grid(vit: VisionTransformer, positions: int) -> None:
    """Give an empty ViT the square grid of a file's positions, which need not be its architecture's own."""
    tokens = positions - (0 if vit.no_embed_class else vit.num_prefix_tokens)
    side = math.isqrt(max(tokens, 0))
    if side and side**2 == tokens:
        vit.set_input_size(img_size=(side * vit.patch_embed.feat_ratio(),) * 2)


def _known(vit: nn.Module, name: str) -> VisionTransformer:
    try:
        return walking.check_known(vit)
    except WeightsError as error:
        raise WeightsError(f"backbone.name: '{name}' cannot be used: {error}") from error


def _from_file(path: Path, recipe: BackboneSettings) -> Backbone:
    """The weights of a file as given, in the working directory, or under $ZOFC_DATA."""
    places = dict.fromkeys((path, Path(os.environ.get("ZOFC_DATA") or "", path)))  # an absolute path stays what it is
    if not any(place.is_file() for place in places):
        raise WeightsError(f"backbone.name: no weight file {' or '.join(map(str, places))}")
    path = next(place for place in places if place.is_file())
    if recipe.checksum and (found := _sha256(path)) != recipe.checksum.lower():
        raise WeightsError(f"backbone.checksum: {path} has sha256 {found}, the recipe expects {recipe.checksum}")
    return _from_npz(path, recipe) if path.suffix == ".npz" else _from_safetensors(path, recipe, str(path))


def _from_safetensors(path: Path, recipe: BackboneSettings, name: str) -> Backbone:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"backbone.name: {path} is not a readable safetensors file: {error}") from error
    state = {key: value.float() for key, value in state.items() if key not in CLASSIFIER_KEYS}
    if recipe.architecture:
        vit = empty_vit(_checked(recipe.architecture))
        mean, std = statistics(vit)
        if recipe.image_size is not None and "pos_embed" in state:
            _take_grid(vit, state["pos_embed"].shape[1])
    else:
        vit, mean, std = vit_of_file(path, metadata, {key: tuple(value.shape) for key, value in state.items()})
    _load_state(vit, state, path)
    return Backbone(walking.check_known(vit), name, _sha256(path), mean, std)


def _from_npz(path: Path, recipe: BackboneSettings) -> Backbone:
    if not recipe.architecture:
        raise _unknown_geometry(path, GEOMETRY)
    with _named_init(0):  # what the file does not hold, such as layer scale, starts as timm has it
        vit = timm.create_model(_checked(recipe.architecture), pretrained=False, num_classes=0)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "embedding/kernel" not in arrays:
                raise WeightsError(f"backbone.name: {path} holds no vision transformer in the published npz layout")
        vit.load_pretrained(str(path))
    except (OSError, ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise WeightsError(f"backbone.name: {path} does not fit {recipe.architecture}: {_first_line(error)}") from error
    return Backbone(walking.check_known(vit), str(path), _sha256(path), *statistics(vit))


def statistics(vit: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation that a timm model's inputs are normalised with."""
    config: dict[str, Any] = vit.pretrained_cfg  # type: ignore[assignment]
    return tuple(config["mean"]), tuple(config["std"])


def _checked(architecture: str) -> str:
    if not timm.is_model(architecture):
        hint = nearest(architecture, timm.list_models("vit_*"))
        raise RecipeError(f"backbone.architecture: no timm model '{architecture}'{hint}")
    return architecture


def _unknown_geometry(path: Path, missing: Sequence[str]) -> WeightsError:
    return WeightsError(
        f"backbone.name: {path} does not state its geometry (no {', '.join(missing)} in its metadata); "
        "give the timm name of its architecture as backbone.architecture"
    )


def vit_of_file(
    path: Path, metadata: Mapping[str, str], shapes: Shapes
) -> tuple[VisionTransformer, tuple[float, ...], tuple[float, ...]]:
    """An empty ViT of the geometry that a file's metadata state, with its mean and std."""
    missing = [key for key in GEOMETRY if key not in metadata]
    if missing:
        raise _unknown_geometry(path, missing)
    try:
        geometry = {key: int(metadata[key]) for key in GEOMETRY}
        mean, std = (tuple(float(v) for v in metadata.get(key, "0.5,0.5,0.5").split(",")) for key in ("mean", "std"))
    except ValueError as error:
        raise WeightsError(f"backbone.name: the metadata of {path} cannot be read: {error}") from error
    with torch.device("meta"):
        vit = VisionTransformer(**geometry, **_parts(geometry, shapes), num_classes=0, weight_init="skip")
    return vit, mean, std


def _parts(geometry: Mapping[str, int], shapes: Shapes) -> dict[str, Any]:
    """What the names and shapes of a ViT's weights say of its architecture beside its geometry."""
    class_token, registers = "cls_token" in shapes, shapes.get("reg_token", (1, 0, 0))[1]
    patches = (geometry["img_size"] // geometry["patch_size"]) ** 2
    positions = shapes.get("pos_embed", (1, 0, 0))[1]
    after_pooling = "fc_norm.weight" in shapes
    hidden = shapes.get("blocks.0.mlp.fc1.weight", (4 * geometry["embed_dim"],))[0]
    return {
        "class_token": class_token,
        "reg_tokens": registers,
        "no_embed_class": positions == patches and (class_token or registers > 0),
        "global_pool": "token" if class_token and not after_pooling else "avg",
        "fc_norm": after_pooling,
        "pre_norm": "norm_pre.weight" in shapes,
        "qk_norm": "blocks.0.attn.q_norm.weight" in shapes,
        "init_values": 1.0 if "blocks.0.ls1.gamma" in shapes else None,  # layer scale, read from the file
        "mlp_ratio": hidden / geometry["embed_dim"],
    }


def _load_state(vit: VisionTransformer, state: dict[str, Tensor], path: Path) -> None:
    wanted = vit.state_dict()
    wrong = [
        f"{key} is {tuple(value.shape)}, expected {tuple(wanted[key].shape)}"
        for key, value in state.items()
        if key in wanted and value.shape != wanted[key].shape
    ]
    wrong += [f"{key} is missing" for key in wanted if key not in state]
    wrong += [f"{key} is not a parameter of this architecture" for key in state if key not in wanted]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise WeightsError(f"backbone.name: {path} does not fit its architecture: {'; '.join(wrong[:3])}{more}")
    vit.load_state_dict(state, assign=True)


@contextmanager
def _named_init(seed: int) -> Iterator[None]:
    """timm draws initial weights from torch's global generator: lend it a named one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.key(seed, "backbone") & (2**63 - 1))
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]

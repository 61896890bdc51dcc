"""Facts about local weights: checkpoints, folders of Hugging Face transformers and of timm; and about the hub."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from reference_models import FIXTURE, draw_images, draw_weight
from zofc.errors import RecipeError, RunError, WeightsError
from zofc.model import hub
from zofc.model.backbone import Backbone, load_backbone
from zofc.model.catalog import backbones
from zofc.recipe import BackboneSettings, Recipe
from zofc.training.runs import start_run, train

REFERENCES = json.loads(FIXTURE.read_text("utf-8"))
MODELS: dict[str, dict[str, Any]] = REFERENCES["models"]
OPEN_CLIP: dict[str, dict[str, Any]] = REFERENCES["open_clip_models"]
SMALL = "test_vit"  # timm's smallest
INCEPTION = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def load(path: Path, **settings: Any) -> Backbone:
    return load_backbone(BackboneSettings(name=str(path), **settings))


def weights_of(model: str) -> dict[str, Tensor]:
    return {name: draw_weight(name, shape) for name, shape in {**MODELS, **OPEN_CLIP}[model]["shapes"].items()}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_folder(folder: Path, model: str, **changes: Any) -> Path:
    """A folder as transformers saves it, with some values of its config.json changed, or left out where None."""
    config = {**MODELS[model]["config"], **changes}
    write_config(folder, {key: value for key, value in config.items() if value is not None})
    save_file(weights_of(model), folder / "model.safetensors", {"format": "pt"})
    return folder


def assert_features(backbone: Backbone, model: str) -> None:
    ours, theirs = backbone.features(draw_images(backbone.image_size)), torch.tensor(MODELS[model]["features"])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


# -- folders of Hugging Face transformers ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_features_of_a_folder_are_those_of_transformers(model: str, tmp_path: Path) -> None:
    assert_features(load(write_folder(tmp_path / "model", model)), model)


def test_weights_in_shards_and_in_a_torch_file_are_the_same(tmp_path: Path) -> None:
    one = load(write_folder(tmp_path / "one", "clip"))
    weights = weights_of("clip")
    shards = write_config(tmp_path / "shards", MODELS["clip"]["config"])
    parts: dict[str, dict[str, Tensor]] = {}
    for number, (name, value) in enumerate(weights.items()):
        parts.setdefault(f"model-0000{number % 3 + 1}-of-00003.safetensors", {})[name] = value
    for file, part in parts.items():
        save_file(part, shards / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    torch_file = write_config(tmp_path / "torch", MODELS["clip"]["config"])
    torch.save(weights, torch_file / "pytorch_model.bin")
    for path in (shards, torch_file, torch_file / "pytorch_model.bin", tmp_path / "one" / "model.safetensors"):
        assert_features(load(path), "clip")
    assert len({load(path).checksum for path in (tmp_path / "one", shards, torch_file)}) == 3 and one.checksum
    (shards / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        WeightsError, match=r"lacks 1 of 3 shards that model\.safetensors\.index\.json lists, model-00002"
    ):
        load(shards)


def test_a_configuration_may_leave_out_its_familys_defaults(tmp_path: Path) -> None:
    assert_features(load(write_folder(tmp_path, "clip tower", hidden_act=None, layer_norm_eps=None)), "clip tower")
    assert_features(load(write_folder(tmp_path, "dinov2", qkv_bias=None, num_channels=None)), "dinov2")
    vision = {key: value for key, value in MODELS["clip"]["config"]["vision_config"].items() if key != "hidden_act"}
    assert_features(load(write_folder(tmp_path, "clip", vision_config=vision)), "clip")


def test_epsilon_and_activation_are_those_of_the_configuration(tmp_path: Path) -> None:
    for changes in ({"layer_norm_eps": 1e-1}, {"hidden_act": "quick_gelu"}):
        backbone = load(write_folder(tmp_path, "vit", **changes))
        with pytest.raises(AssertionError):
            assert_features(backbone, "vit")


def test_the_image_processor_gives_mean_std_and_size(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "dinov2")
    plain = load(folder)
    assert (plain.mean, plain.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) and plain.image_size == 20
    processor = {"do_center_crop": True, "crop_size": {"height": 30, "width": 30}, "size": {"shortest_edge": 35},
                 "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    cropped = load(folder)
    assert (cropped.mean, cropped.std, cropped.image_size) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 30)
    assert cropped.checksum != plain.checksum
    assert load(folder, image_size=20).image_size == 20 and load(folder, image_size=25).tokens == 26
    assert_features(load(folder, image_size=20), "dinov2")
    uncropped = json.dumps({**processor, "do_center_crop": False, "do_normalize": False})
    (folder / "preprocessor_config.json").write_text(uncropped, encoding="utf-8")
    assert load(folder).image_size == 35 and load(folder).mean == (0.0, 0.0, 0.0)
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": processor}), encoding="utf-8")
    assert load(folder).image_size == 30 and load(folder).mean == (0.1, 0.2, 0.3)
    for wrong in ([0.5], 3, ["a", "b", "c"]):
        (folder / "processor_config.json").write_text(json.dumps({"image_mean": wrong}), encoding="utf-8")
        with pytest.raises(WeightsError, match=r"config\.json or a file beside it is wrong"):
            load(folder)
    odd = {**processor, "crop_size": 21}  # no multiple of the patch: the size of the positions
    (folder / "processor_config.json").write_text(json.dumps(odd), encoding="utf-8")
    assert load(folder).image_size == 20


def test_without_an_image_processor_a_family_has_its_own_mean_and_std(tmp_path: Path) -> None:
    assert load(write_folder(tmp_path / "vit", "vit")).mean == INCEPTION[0]
    assert load(write_folder(tmp_path / "clip", "clip")).mean[0] == pytest.approx(0.4815, abs=1e-4)


@pytest.mark.parametrize("model", ["vit", "dinov2 registers", "clip"])
def test_at_another_size_only_positions_differ(model: str, tmp_path: Path) -> None:
    """A folder run at another size is the model whose positions timm resampled."""
    folder = write_folder(tmp_path, model)
    plain, size = load(folder), 2 * load(folder).image_size
    plain.vit.set_input_size((size, size))
    x = draw_images(size)
    torch.testing.assert_close(load(folder, image_size=size).features(x), plain.vit(x), rtol=0, atol=1e-5)


def test_every_parameter_of_the_tower_is_needed_and_no_other_is_there(tmp_path: Path) -> None:
    folder, weights = write_folder(tmp_path, "clip"), weights_of("clip")
    for name in weights:
        if name.startswith(("text_", "logit_scale", "visual_projection")):
            continue
        save_file({key: value for key, value in weights.items() if key != name}, folder / "model.safetensors")
        with pytest.raises(WeightsError, match=r"is missing|no known model"):
            load(folder)
    save_file({**weights, "vision_model.encoder.layers.0.gate.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(
        WeightsError, match=r"parts that timm's VisionTransformer does not have: encoder\.layers\.0\.gate"
    ):
        load(folder)
    save_file({**weights, "vision_model.encoder.layers.2.mlp.fc1.bias": torch.zeros(40)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"blocks\.2\.mlp\.fc1\.bias is not a parameter of this architecture"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": [16, 32]}, r"image_size is \[16, 32\], but only square"),
        ({"num_channels": 4}, "num_channels is 4, but only images of 3 channels"),
        ({"hidden_act": "mish"}, "activation mish is not supported, only gelu"),
        ({"num_attention_heads": 5}, "5 heads do not divide the width 24"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps is 'small', not a number"),
        ({"architectures": 5}, r"config\.json or a file beside it is wrong"),
        ({"image_size": 24}, r"pos_embed is \(1, 17, 24\), expected \(1, 37, 24\)"),
        ({"hidden_size": "24"}, "hidden_size is '24', not a positive integer"),
        ({"model_type": "siglip", "architectures": ["SiglipModel"]}, r"not supported \(SiglipModel\).*vit, vit_mae"),
        ({"model_type": "bert", "vocab_size": 9, "image_size": None, "patch_size": None}, r"a text model \(ViTModel\)"),
        ({"model_type": None, "architecture": "vit_base_patch99"}, "'vit_base_patch99', which timm .* does not have"),
        ({"model_type": None, "architecture": "resnet18"}, "ResNet is not a timm VisionTransformer"),
        ({"model_type": "resnet", "architectures": ["ResNetModel"]}, r"not supported \(ResNetModel\)"),
    ],
)  # fmt: skip
def test_configurations_that_timm_cannot_express_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=message):
        load(write_folder(tmp_path, "vit", **changes))


def test_folders_that_are_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights in .*none of model\.safetensors"):
        load(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="is no known model"):
        load(tmp_path)
    save_file(weights_of("vit"), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("<html>", encoding="utf-8")
    with pytest.raises(WeightsError, match=r"config\.json cannot be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(WeightsError, match=r"config\.json is not a JSON object"):
        load(tmp_path)
    with pytest.raises(WeightsError, match=r"no weight file or folder facebook/dinov2.*: hf download facebook/dinov2"):
        load(Path("facebook/dinov2-small"))
    with pytest.raises(WeightsError, match=r"no weight file or folder .*absent/model$"):
        load(tmp_path / "absent" / "model")
    with pytest.raises(RecipeError, match="no timm model and no file or folder 'absent_model'"):
        load_backbone(BackboneSettings(name="absent_model"))


@pytest.mark.parametrize("model", ["vit", "deit distilled", "dinov2 swiglu", "dinov2 registers"])
def test_state_dicts_have_other_names_than_files_in_transformers_5(model: str, tmp_path: Path) -> None:
    names = {"attention.attention.query": "attention.q_proj", "attention.attention.key": "attention.k_proj",
             "attention.attention.value": "attention.v_proj", "attention.output.dense": "attention.o_proj",
             "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2",
             "mlp.weights_out": "mlp.down_proj"}  # fmt: skip
    state: dict[str, Tensor] = {}
    for key, value in weights_of(model).items():
        for saved, own in names.items():
            key = key.replace(saved, own)
        key = key if "dinov2" in model else key.replace("encoder.layer.", "layers.")
        if "weights_in" in key:
            halves = zip(("gate_proj", "up_proj"), value.chunk(2), strict=True)
            state |= {key.replace("weights_in", half): rows.clone() for half, rows in halves}
        else:
            state[key] = value
    torch.save(state, write_config(tmp_path, MODELS[model]["config"]) / "pytorch_model.bin")
    assert_features(load(tmp_path), model)


@pytest.mark.parametrize("model", OPEN_CLIP)
def test_features_of_open_clip_are_those_before_its_projection(model: str, tmp_path: Path) -> None:
    weights, x = weights_of(model), draw_images(16)
    config = {**OPEN_CLIP[model]["config"], "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, tmp_path / "open_clip_model.safetensors")
    backbone = load(tmp_path)
    assert (backbone.mean, backbone.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    ours, theirs = backbone.features(x) @ weights["visual.proj"], torch.tensor(OPEN_CLIP[model]["features"])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    torch.save({"state_dict": prefixed("module.", weights)}, tmp_path / "epoch_1.pt")  # a training checkpoint beside it
    torch.testing.assert_close(load(tmp_path / "epoch_1.pt").features(x), backbone.features(x))


@pytest.mark.parametrize(
    ("tower", "message"),
    [
        ({"timm_model_name": "vit_base_patch16_siglip_224"}, "has timm's vit_base_patch16_siglip_224 as image tower"),
        ({"layers": [3, 4, 6, 3]}, r"no plain ViT: layers=\[3, 4, 6, 3\]"),
        ({"attentional_pool": True, "patch_dropout": 0.5}, r"no plain ViT: attentional_pool=True$"),
        ({"pool_type": "avg"}, "pool_type=avg"),
    ],
)
def test_open_clips_that_are_no_plain_vit_are_refused(tower: dict[str, Any], message: str, tmp_path: Path) -> None:
    own = OPEN_CLIP["open_clip quick"]["config"]["model_cfg"]["vision_cfg"]
    config = {"model_cfg": {"vision_cfg": {**own, **tower}}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(WeightsError, match=r"no weights in .*: none of open_clip_model\.safetensors"):
        load(tmp_path)
    save_file(weights_of("open_clip quick"), tmp_path / "open_clip_model.safetensors")
    with pytest.raises(WeightsError, match=message):
        load(tmp_path)


def test_a_folder_has_a_checksum_that_sha256sum_prints_and_is_found_below_zofc_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "tiny-clip", "clip")
    names = ("config.json", "model.safetensors")
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    checksum = hashlib.sha256("".join(lines).encode()).hexdigest()
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    backbone = load_backbone(BackboneSettings(name="tiny-clip", checksum=checksum))
    assert backbone.describe()["checksum"] == checksum and backbone.name == str(folder)
    with pytest.raises(WeightsError, match=r"backbone\.checksum: .*tiny-clip has sha256"):
        load_backbone(BackboneSettings(name="tiny-clip", checksum="0" * 64))
    with pytest.raises(RecipeError, match=r"backbone\.pretrained: 'tiny-clip' is a set of weights"):
        load_backbone(BackboneSettings(name="tiny-clip", pretrained=False))


@pytest.mark.parametrize("model", ["clip", "dinov2 swiglu"])
def test_a_run_on_a_folder_trains_by_forward_gradients_and_refuses_other_weights(
    model: str, tiny_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", model)
    recipe = tiny_recipe(
        "zofc/base", f"backbone.name={folder}", "optimize.peft.estimator=forward_gradient", "training.workers=0"
    )
    run = start_run(recipe, tmp_path / "run")
    train(run)
    assert run.environment["backbone"]["checksum"] == load(folder).checksum
    run.check_weights(load(folder).checksum)
    write_folder(folder, model, layer_norm_eps=1e-4)
    with pytest.raises(RunError, match="weights changed"):
        run.check_weights(load(folder).checksum)


# -- folders of timm, and checkpoints ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> VisionTransformer:
    """A small timm model with random weights and a classifier."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit: VisionTransformer = timm.create_model(SMALL, num_classes=5).eval()
        for value in vit.parameters():
            value.data += 0.05 * torch.randn(value.shape)
    return vit


def assert_same(backbone: Backbone, vit: VisionTransformer) -> None:
    x = draw_images(backbone.image_size)
    expected = vit.forward_head(vit.forward_features(x), pre_logits=True)
    torch.testing.assert_close(backbone.features(x), expected, rtol=0, atol=1e-5)


def test_a_folder_of_timm_is_read_with_its_own_mean_and_arguments(small: VisionTransformer, tmp_path: Path) -> None:
    config = {"architecture": SMALL, "num_classes": 5, "pretrained_cfg": {"mean": [0.1] * 3, "std": [0.2] * 3}}
    save_file(small.state_dict(), write_config(tmp_path, config) / "model.safetensors")
    backbone = load(tmp_path)
    assert_same(backbone, small)
    assert (backbone.mean, backbone.std) == ((0.1,) * 3, (0.2,) * 3)
    deeper = timm.create_model(SMALL, num_classes=0, img_size=64, depth=7).eval()
    save_file(deeper.state_dict(), write_config(tmp_path, {**config, "model_args": {"depth": 7}}) / "model.safetensors")
    assert load(tmp_path).depth == 7 and load(tmp_path).image_size == 64  # the size of its positions
    assert_same(load(tmp_path), deeper)


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in state.items()}


WRAPPERS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda state: state,
    "model": lambda state: {"model": state, "epoch": 3, "args": argparse.Namespace(lr=0.1)},
    "state_dict": lambda state: {"state_dict": prefixed("module.", state), "optimizer": {"state": {}}},
    "model_state_dict": lambda state: {"model_state_dict": prefixed("encoder.", state)},
    "lightning": lambda state: {"state_dict": prefixed("model.", state) | {"loss.weight": torch.ones(2)}},
    "compiled": lambda state: prefixed("_orig_mod.", state),
    "dino": lambda state: {
        "student": prefixed("module.backbone.", {name: value + 1 for name, value in state.items()}),
        "teacher": prefixed("backbone.", state) | {"head.mlp.0.weight": torch.ones(2, 2)},
    },
    "dinov2": lambda state: {
        "model": prefixed("student.backbone.", {name: value + 1 for name, value in state.items()})
        | prefixed("teacher.backbone.", state)
        | {"teacher.dino_head.mlp.0.weight": torch.ones(2, 2)}
    },
    "mae": lambda state: {
        "model": {**state, "mask_token": torch.ones(1, 1, 8), "decoder_embed.weight": torch.ones(8, 64)}
    },
    "chunks": lambda state: {
        name.replace("blocks.", f"blocks.{int(name.split('.')[1]) // 3}.")
        if name.startswith("blocks.")
        else name: value
        for name, value in state.items()
    },
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_checkpoints_are_unwrapped(wrapper: str, small: VisionTransformer, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save(WRAPPERS[wrapper](dict(small.state_dict())), path)
    backbone = load(path, architecture=SMALL)
    assert_same(backbone, small)
    assert backbone.checksum == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.ckpt", "w.pth.tar"])
def test_the_content_of_a_file_decides_not_its_suffix(name: str, small: VisionTransformer, tmp_path: Path) -> None:
    torch.save(small.state_dict(), tmp_path / name)
    assert_same(load(tmp_path / name, architecture=SMALL), small)
    torch.save(small.state_dict(), tmp_path / name, _use_new_zipfile_serialization=False)  # as before torch 1.6
    assert_same(load(tmp_path / name, architecture=SMALL), small)
    save_file(small.state_dict(), tmp_path / name)
    assert_same(load(tmp_path / name, architecture=SMALL), small)


def test_a_checkpoint_with_the_suffix_of_safetensors_is_refused(small: VisionTransformer, tmp_path: Path) -> None:
    torch.save(small.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"is a torch checkpoint, not a safetensors file; rename it to \.pth"):
        load(tmp_path / "w.safetensors", architecture=SMALL)


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("swiglu", [False, True])
def test_dinov2_of_its_authors_is_recognised(registers: int, swiglu: bool, tmp_path: Path) -> None:
    """Their names and shapes, converted as timm converts them."""
    name = f"vit_{'giant' if swiglu else 'small'}_patch14_{'reg4_' * (registers > 0)}dinov2"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        arguments = {"embed_dim": 384, "num_heads": 6, "depth": 1, "img_size": 28, "num_classes": 0}
        own = timm.create_model(name, **arguments).eval()
        state = {key: torch.randn(value.shape) * 0.1 for key, value in own.state_dict().items()}
    if swiglu:
        state = {key.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): value for key, value in state.items()}
    state["mask_token"] = torch.zeros(1, 384)
    if registers:
        state["register_tokens"] = state.pop("reg_token")
        state["pos_embed"] = torch.randn(1, 5, 384)
    path = tmp_path / "dinov2_pretrain.pth"
    torch.save(state, path)
    backbone = load(path)
    own.load_state_dict(checkpoint_filter_fn(dict(state), own))
    assert_same(backbone, own)
    assert backbone.mean == (0.485, 0.456, 0.406) and backbone.image_size == 28
    assert load(path, image_size=56).tokens == 1 + registers + 16


def test_deit_3s_layer_scale_is_renamed(tmp_path: Path) -> None:
    own = timm.create_model("deit3_small_patch16_224", num_classes=0).eval()
    state = {
        key.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): v for key, v in own.state_dict().items()
    }
    torch.save({"model": state}, tmp_path / "deit3.pth")
    assert_same(load(tmp_path / "deit3.pth", architecture="deit3_small_patch16_224"), own)


def test_weights_of_transformers_fit_a_timm_architecture(tmp_path: Path) -> None:
    """The paper's weights from a folder of transformers count as the paper's where its architecture is named."""
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0).eval()
    theirs: dict[str, Tensor] = {}
    for key, value in vit.state_dict().items():
        for ours, name in (("blocks.", "encoder.layer."), ("norm1", "layernorm_before"), ("norm2", "layernorm_after"),
                           ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense"),
                           ("attn.proj", "attention.output.dense"), ("cls_token", "embeddings.cls_token"),
                           ("pos_embed", "embeddings.position_embeddings"),
                           ("patch_embed.proj", "embeddings.patch_embeddings.projection")):  # fmt: skip
            key = key.replace(ours, name)
        key = key.replace("norm.", "layernorm.") if key.startswith("norm.") else key
        if "attn.qkv" in key:
            parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
            theirs |= {key.replace("attn.qkv", f"attention.attention.{part}"): rows.clone() for part, rows in parts}
        else:
            theirs[key] = value
    torch.save(prefixed("vit.", theirs), tmp_path / "pytorch_model.bin")
    backbone = load(tmp_path / "pytorch_model.bin", architecture="vit_tiny_patch16_224.augreg_in21k")
    assert_same(backbone, vit)
    assert (backbone.mean, backbone.std) == INCEPTION


def test_a_checkpoint_without_an_architecture_is_answered_with_those_that_fit(tmp_path: Path) -> None:
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=3)
    torch.save({"model": vit.state_dict()}, tmp_path / "tiny.pth")
    with pytest.raises(
        WeightsError, match=r"does not state its geometry.*shapes are those of .*vit_tiny_patch16_224.*tag"
    ):
        load(tmp_path / "tiny.pth")
    with pytest.raises(WeightsError, match=r"pos_embed is \(1, 197, 192\), expected \(1, 577, 192\)"):
        load(tmp_path / "tiny.pth", architecture="vit_tiny_patch16_384")


# -- what is no vision transformer ------------------------------------------------------------------------------------


class Marker:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    for zipped in (True, False):
        torch.save({"model": {"a": torch.zeros(1)}, "x": Marker(tmp_path / "touched")}, tmp_path / "bad.pth",
                   _use_new_zipfile_serialization=zipped)  # fmt: skip
        with pytest.raises(WeightsError, match=r"bad\.pth holds pickled objects.*where you trust it.*bad\.safetensors"):
            load(tmp_path / "bad.pth", architecture=SMALL)
    assert not (tmp_path / "touched").exists()


def test_the_command_of_a_refusal_saves_the_weights(small: VisionTransformer, tmp_path: Path) -> None:
    """A whole pickled model is named as one; the command in the error makes a file of it that is accepted."""
    torch.save(small, tmp_path / "whole.pth")
    with pytest.raises(WeightsError, match=r"whole\.pth is a whole pickled model \(timm\.") as refusal:
        load(tmp_path / "whole.pth", architecture=SMALL)
    command = shlex.split(str(refusal.value)[str(refusal.value).index("python -c") :])
    assert command[0] == "python"
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    assert_same(load(tmp_path / "whole.safetensors", architecture=SMALL), small)


def test_a_torchscript_program_is_named(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "program.pt"))
    with pytest.raises(WeightsError, match=r"program\.pt is a TorchScript archive.*torch\.jit\.load"):
        load(tmp_path / "program.pt")


CONTENTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty; download it again"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "Git LFS pointer.*git lfs pull"),
    "html": (b"\n<!DOCTYPE html><html></html>", "is an HTML page"),
    "json": (b'{"hidden_size": 768, "model_type": "vit"}', "is a JSON text.*give the folder"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(50), r"HDF5 file \(Keras\)"),
    "gzip": (b"\x1f\x8b" + bytes(50), "gzip archive"),
    "text": (b"hello there, this is no checkpoint", "neither a safetensors file nor a torch checkpoint"),
    "damaged": (b"\x80\x02" + bytes(99), "not a readable torch checkpoint: its pickle is damaged"),
    "half a zip": (b"PK\x03\x04" + bytes(99), "is truncated"),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_files_that_hold_no_weights_are_named(content: str, tmp_path: Path) -> None:
    data, message = CONTENTS[content]
    (tmp_path / "w.pth").write_bytes(data)
    with pytest.raises(WeightsError, match=f"w\\.pth .*{message}"):
        load(tmp_path / "w.pth")


def test_truncated_files_are_named(small: VisionTransformer, tmp_path: Path) -> None:
    for zipped in (True, False):
        torch.save(small.state_dict(), tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
        data = (tmp_path / "w.pth").read_bytes()
        (tmp_path / "w.pth").write_bytes(data[: len(data) // 2])
        with pytest.raises(WeightsError, match=r"w\.pth is (truncated|not a readable torch checkpoint)"):
            load(tmp_path / "w.pth", architecture=SMALL)
    save_file(small.state_dict(), tmp_path / "w.safetensors")
    data = (tmp_path / "w.safetensors").read_bytes()
    for length in (len(data) // 2, 100):
        (tmp_path / "w.safetensors").write_bytes(data[:length])
        with pytest.raises(WeightsError, match=r"w\.safetensors is truncated \(.* of .*\); download it again"):
            load(tmp_path / "w.safetensors", architecture=SMALL)


def names_of(model: str) -> list[str]:
    with torch.device("meta"):
        return list(timm.create_model(model).state_dict())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (lambda: names_of("resnet50"), "is a ResNet-50 checkpoint; only vision transformers"),
        (lambda: prefixed("module.encoder_q.", dict.fromkeys(names_of("resnet18"))), "ResNet-18"),
        (lambda: names_of("convnext_atto"), "ConvNeXt"),
        (lambda: names_of("swin_tiny_patch4_window7_224"), "relative positions"),
        (lambda: names_of("efficientnet_b0"), "a convolutional network"),
        (lambda: ["bert.embeddings.word_embeddings.weight", "bert.pooler.dense.weight"], "a text model"),
        (lambda: ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"], "a text model"),
        (lambda: ["base.q.lora_A.weight", "base.q.lora_B.weight"], "a LoRA adapter"),
        (lambda: ["x", "y", "z", "u"], r"no known model \(its tensors are x, y, z, …\)"),
        (lambda: [f"{p}.{n}" for p in "ab" for n in ("patch_embed.proj.weight", "blocks.0.norm1.weight")],
         r"several vision transformers \(a\., b\.\)"),
    ],
)  # fmt: skip
def test_checkpoints_of_other_models_are_named(names: Callable[[], Any], message: str, tmp_path: Path) -> None:
    torch.save({name: torch.zeros(1) for name in names()}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match=message):
        load(tmp_path / "other.pth", architecture=SMALL)


@pytest.mark.parametrize(
    ("content", "message"),
    [([torch.zeros(2)], "holds a list and no named weights"), ({"epoch": 3, "step": 4}, "holds the entries epoch"),
     ({"model": {}}, "holds nothing")],
)  # fmt: skip
def test_checkpoints_without_named_tensors_are_named(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=message):
        load(tmp_path / "w.pth")


def test_an_architecture_that_cannot_be_used_is_named(small: VisionTransformer, tmp_path: Path) -> None:
    torch.save(small.state_dict(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"backbone\.architecture: 'resnet18' cannot be used: ResNet is not"):
        load(tmp_path / "w.pth", architecture="resnet18")
    torch.save({**small.state_dict(), "pos_embed": torch.zeros(())}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"pos_embed is \(\), expected"):
        load(tmp_path / "w.pth", architecture=SMALL, image_size=64)


# -- the hub and the catalogue ----------------------------------------------------------------------------------------


@pytest.fixture
def hub_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets the hub's address, which may be reached, with an empty cache; and no download may start."""
    monkeypatch.undo()  # the network guard of all tests
    make = timm.create_model

    def create(name: str, pretrained: bool = False, **more: Any) -> Any:
        return make(name, pretrained=False, **more) if not pretrained else pytest.fail("a download was started")

    monkeypatch.setattr(timm, "create_model", create)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr(hub, "_silent", {})
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return lambda address: monkeypatch.setattr(constants, "ENDPOINT", address)


@pytest.mark.parametrize("listening", [True, False], ids=["never answers", "refuses"])
def test_an_unreachable_hub_is_an_error_within_five_seconds(
    listening: bool, hub_address: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the times that the code asks to wait, which a busy machine does not change."""
    session, waits, timeouts = hub.get_session(), [], []
    head = session.head

    class Waited(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waits.append(math.inf if timeout is None else timeout)
            super().join(timeout)

    def ask(address: str, timeout: float) -> Any:
        assert isinstance(threading.current_thread(), Waited)  # nothing else waits for the answer
        timeouts.append(timeout)
        return head(address, timeout=0.1)

    monkeypatch.setattr(hub, "threading", argparse.Namespace(Thread=Waited))
    monkeypatch.setattr(hub, "get_session", lambda: argparse.Namespace(head=ask))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listening:
            server.close()
        hub_address(f"http://127.0.0.1:{port}")
        with pytest.raises(WeightsError, match=r"could not be fetched.*does not answer.*backbone\.pretrained=false"):
            load_backbone(BackboneSettings(name="vit_tiny_patch16_224.augreg_in21k"))
    assert len(timeouts) == 1 and 0 < sum(timeouts) < 5
    assert len(waits) == 1 and 0 < sum(waits) < 5


def test_several_names_of_an_unreachable_hub_wait_once(
    hub_address: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(hub, "get_session", lambda: asked.append(1) or time.sleep(30))
    monkeypatch.setattr(hub, "TOTAL_SECONDS", 0.2)
    hub_address("http://127.0.0.1:9")
    for name in ("vit_tiny_patch16_224.augreg_in21k", "vit_small_patch16_224.augreg_in21k"):
        with pytest.raises(WeightsError, match=r"does not answer.*ZOFC_DATA/backbones are found by themselves"):
            load_backbone(BackboneSettings(name=name))
    assert len(asked) == 1
    monkeypatch.setattr(hub, "REMEMBERED_SECONDS", 0.0)
    assert hub.why_unreachable("vit_tiny_patch16_224.augreg_in21k") and len(asked) == 2


def test_a_request_that_blocks_is_given_up(hub_address: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the look-up of an address, on which no timeout of a request has a hold."""
    monkeypatch.setattr(hub, "get_session", lambda: time.sleep(30))
    monkeypatch.setattr(hub, "TOTAL_SECONDS", 0.2)
    assert "does not answer within" in hub.why_unreachable("vit_tiny_patch16_224.augreg_in21k")


def test_the_users_wish_to_be_offline_is_respected(
    hub_address: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "get_session", lambda: pytest.fail("asked"))
    with pytest.raises(WeightsError, match=r"HF_HUB_OFFLINE is set and they are not in the cache"):
        load_backbone(BackboneSettings(name="vit_tiny_patch16_224.augreg_in21k"))


def test_cached_weights_are_used_without_asking_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=21843).eval()
    save_file(vit.state_dict(), tmp_path / "model.safetensors")
    monkeypatch.setattr(hub, "get_session", lambda: pytest.fail("asked"))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: str(tmp_path / "model.safetensors"))
    backbone = load_backbone(BackboneSettings(name="vit_tiny_patch16_224.augreg_in21k"))
    assert_same(backbone, vit)
    assert (backbone.mean, backbone.std) == INCEPTION


def test_the_catalogue_lists_checkpoints_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders with what they are, checkpoints, which would have to be loaded, by name alone."""
    folder = write_folder(tmp_path / "backbones" / "my-clip", "clip")
    (folder / "model.safetensors").write_bytes(b"not read")
    write_config(tmp_path / "backbones" / "my-bert", {"model_type": "bert"})
    write_config(tmp_path / "backbones" / "my-half", MODELS["vit"]["config"])  # without its weights
    (tmp_path / "backbones" / "my-notes").mkdir()
    (tmp_path / "backbones" / "my-dino.pth").write_bytes(b"not read")
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    entries = {entry.name: entry for entry in backbones("my-")}
    assert list(entries) == [f"backbones/my-{name}" for name in ("bert", "clip", "dino.pth", "half")]
    clip = entries["backbones/my-clip"]
    assert clip.weights == "file" and clip.backbone is not None
    assert (clip.backbone.width, clip.backbone.depth, clip.backbone.image_size) == (24, 2, 16)
    assert entries["backbones/my-bert"].backbone is None and entries["backbones/my-half"].backbone is None
    assert entries["backbones/my-dino.pth"].backbone is None and entries["backbones/my-dino.pth"].weights == "file"


def test_real_weights_saved_as_a_checkpoint_are_the_same(assets: Path, tmp_path: Path) -> None:
    file = assets / "backbones" / "vit_small_patch14_dinov2.safetensors"
    if not file.exists():
        pytest.skip(f"no {file}")
    torch.save({"teacher": prefixed("backbone.", load_file(file))}, tmp_path / "w.pth")
    x = draw_images(28)
    ours, theirs = (load(path, architecture=name, image_size=28).features(x) for path, name in
                    ((tmp_path / "w.pth", "vit_small_patch14_dinov2"), (file, None)))  # fmt: skip
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)

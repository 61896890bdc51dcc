"""Facts about the backbone, the walk through it, the adapter and the heads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from zofc.errors import RecipeError, WeightsError
from zofc.model import vit as walking
from zofc.model.adapter import Adapter, parse_blocks
from zofc.model.backbone import Backbone, load_backbone
from zofc.model.catalog import backbones
from zofc.model.heads import CosineHead, LinearHead
from zofc.model.peft import make_peft
from zofc.model.peft_base import PeftModule
from zofc.recipe import BackboneSettings, PeftSettings
from zofc.seeds import Noise, noise_key
from zofc.training.memory import measure_peak


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def peft(kind: str, backbone: Backbone, **settings: object) -> PeftModule:
    recipe = PeftSettings(kind=kind, **{"blocks": "first 2", **settings})  # type: ignore[arg-type]
    return make_peft(recipe, backbone, generator())


FAMILIES = [
    ("adapter", {"beside": "attention"}),
    ("adapter", {"scale": "learned"}),
    ("adaptformer", {}),
    ("lora", {}),
    ("prefix", {"length": 3}),
    ("prefix", {"length": 3, "compensated": False}),
]


def whole_walk(backbone: Backbone, images: torch.Tensor, inserts: walking.Inserts | None = None) -> torch.Tensor:
    """Features with every token carried to the end, as a ViT's own forward does."""
    end = walking.walk(backbone.vit, backbone.enter(images), inserts or {})
    return walking.read_out(backbone.vit, end.x)


def stirred(module: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """The module with every parameter moved away from its initial value."""
    for value in module.parameters():
        value.add_(0.3 * torch.randn(value.shape, generator=generator(seed), dtype=value.dtype))
    return module


def test_the_adapter_of_the_paper_has_42265_parameters_on_vit_b16() -> None:
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    assert (vit.num_features, len(vit.blocks)) == (768, 12)
    adapter = Adapter(
        vit.num_features, parse_blocks("first 5", len(vit.blocks)), rank=5, scale=0.1, generator=generator()
    )
    assert sum(p.numel() for p in adapter.parameters()) == 42_265


def test_a_fresh_adapter_leaves_the_features_of_the_plain_vit_unchanged_to_the_bit(
    tiny: Backbone, images: torch.Tensor
) -> None:
    """To the bit also with the ViT's own forward where all tokens are carried to the end."""
    adapter = Adapter(tiny.width, (0, 1, 2), rank=5, scale=0.1, generator=generator())
    plain = tiny.features(images)
    assert torch.equal(tiny.leave(tiny.enter(images), adapter.inserts({})), plain)
    assert torch.equal(whole_walk(tiny, images, adapter.inserts({})), tiny.vit(images))
    moved = stirred(adapter)
    assert not torch.allclose(tiny.leave(tiny.enter(images), moved.inserts({})), plain, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_tiny_patch16_224", None),
        ("deit3_small_patch16_224", None),
        ("vit_base_patch16_rpn_224", None),
        ("vit_small_patch14_reg4_dinov2", 112),  # of 518 px by itself
    ],
)
def test_the_walk_is_the_models_own_forward_for_any_timm_vit(name: str, size: int | None) -> None:
    """Class token, layer scale, mean pooling without a class token, register tokens: nothing is hard-coded."""
    try:
        backbone = load_backbone(BackboneSettings(name=name, pretrained=False, image_size=size))
    except WeightsError as refused:
        assert "only timm's pre-norm Block" in str(refused)  # a block of another kind is refused, not walked wrongly
        assert name == "vit_base_patch16_rpn_224"
        return
    x = torch.rand(2, 3, backbone.image_size, backbone.image_size, generator=generator())
    own = backbone.vit(x)
    assert torch.equal(whole_walk(backbone, x), own)
    with torch.no_grad():  # activations in place
        assert torch.equal(whole_walk(backbone, x), own) and torch.equal(backbone.vit(x), own)
    torch.testing.assert_close(backbone.features(x), own)
    assert backbone.features(x).shape == (2, backbone.width)


def test_no_tensor_of_a_walk_outlives_its_use(tiny: Backbone, images: torch.Tensor) -> None:
    """Where nothing is differentiated there are, beside the tokens that the walk began with, a block's input, its norm
    and four times that in the MLP with its result, or three times that before attention with its result."""
    tokens, own = walking.embed(tiny.vit, images), list(tiny.vit.parameters())
    with torch.no_grad(), measure_peak(torch.device("cpu"), own) as peak:
        tiny.features(images)
    assert peak.bytes - sum(weight.nbytes for weight in own) <= 8 * tokens.nbytes


def test_only_the_class_token_is_carried_through_the_last_block_where_nothing_else_is_read(tiny: Backbone) -> None:
    """In float64 it makes no difference; a ViT that pools over its tokens carries them all."""
    tiny.vit.double()
    x = torch.rand(2, 3, tiny.image_size, tiny.image_size, generator=generator(), dtype=torch.float64)
    assert tiny.read == slice(0, 1)
    torch.testing.assert_close(tiny.features(x), tiny.vit(x), rtol=1e-12, atol=1e-12)
    last = walking.walk(tiny.vit, tiny.enter(x), {}, rows=tiny.read)
    assert last.x.shape == (2, 1, tiny.width)
    assert load_backbone(BackboneSettings(name="vit_base_patch16_siglip_gap_224", pretrained=False)).read is None


@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("stage", range(5))
def test_a_walk_may_stop_anywhere_and_go_on(tiny: Backbone, images: torch.Tensor, block: int, stage: int) -> None:
    tiny.vit.double()
    state = tiny.enter(images.double(), walking.Place(block, stage))
    assert state.place == (walking.Place(block, stage) if stage < walking.DONE else walking.Place(block + 1, 0))
    torch.testing.assert_close(tiny.leave(state, {}), tiny.vit(images.double()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
@pytest.mark.parametrize("blocks", ["last 1", "last 2", (1,)])
def test_nothing_before_a_module_depends_on_it(
    tiny: Backbone, images: torch.Tensor, kind: str, settings: dict[str, object], blocks: object
) -> None:
    """What is prepared is all but the module: taken up from its entrance, the walk gives what the whole walk gives."""
    tiny.vit.double()
    module = stirred(peft(kind, tiny, **settings, blocks=blocks).double())
    assert module.entrance.stage > walking.STARTED  # at least the block's norm and projections are shared
    late = tiny.leave(tiny.enter(images.double(), module.entrance), module.inserts({}))
    whole = tiny.leave(tiny.enter(images.double()), module.inserts({}))
    torch.testing.assert_close(late, whole, rtol=1e-12, atol=1e-12)
    assert (whole - tiny.features(images.double())).abs().max() > 1e-3


def test_the_adapter_adds_its_formula_beside_the_mlp(tiny: Backbone, images: torch.Tensor) -> None:
    """x + MLP(h) + 0.1 (W_up GELU(W_down h + b) + b'), h = LN2 x, written out by hand."""
    adapter = stirred(Adapter(tiny.width, (1,), rank=5, scale=0.1, generator=generator()))
    state = tiny.enter(images, walking.Place(1, walking.STARTED))
    x = state.x
    block, w = tiny.vit.blocks[1], dict(adapter.blocks["1"].named_parameters())
    after_attention = x + block.attn(block.norm1(x))
    h = block.norm2(after_attention)
    inner = torch.nn.functional.gelu(h @ w["down_weight"].T + w["down_bias"])
    by_hand = after_attention + block.mlp(h) + 0.1 * (inner @ w["up_weight"].T + w["up_bias"])
    walked = walking.walk(tiny.vit, state, adapter.inserts({}), walking.Place(2, walking.STARTED))
    torch.testing.assert_close(walked.x, by_hand)


def test_stacked_parameters_give_what_vmap_over_functional_call_gives(tiny: Backbone, images: torch.Tensor) -> None:
    """A leading query axis on the adapter's parameters is the same as evaluating each query by itself."""
    tiny.vit.double()
    adapter = stirred(Adapter(tiny.width, (0, 2), rank=3, scale=0.1, generator=generator()).double())
    x = images.double()
    stacked = {
        name: torch.stack(
            [value + 0.1 * torch.randn(value.shape, generator=generator(q), dtype=value.dtype) for q in range(4)]
        )
        for name, value in adapter.named_parameters()
    }

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adapter = adapter

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return tiny.leave(walking.State(walking.Place(0, 0), tokens), self.adapter.inserts({}))

    named = {f"adapter.{name}": value for name, value in stacked.items()}
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no batching rule
        one_by_one = vmap(lambda p: functional_call(Plain(), p, (tiny.enter(x).x,)))(named)
    together = tiny.leave(tiny.enter(x), adapter.inserts(stacked))
    assert together.shape == (4, 6, tiny.width)
    torch.testing.assert_close(together, one_by_one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("spec", "blocks"),
    [("all", (0, 1, 2, 3)), ("first 2", (0, 1)), ("last 3", (1, 2, 3)), ((3, 0), (0, 3))],
)
def test_blocks_can_be_chosen_in_words_or_by_number(spec: str | tuple[int, ...], blocks: tuple[int, ...]) -> None:
    assert parse_blocks(spec, 4) == blocks


@pytest.mark.parametrize("spec", ["first 5", "first 0", "middle", "first two", (), (1, 1), (4,), (-1,)])
def test_impossible_blocks_are_refused(spec: str | tuple[int, ...]) -> None:
    with pytest.raises(RecipeError, match=r"peft\.blocks"):
        parse_blocks(spec, 4)


def test_a_weight_file_is_loaded_in_fp32_without_its_classifier_and_with_its_own_mean_and_std(
    tiny_weights: Path,
) -> None:
    backbone = load_backbone(BackboneSettings(name=str(tiny_weights)))
    stored = load_file(tiny_weights)
    assert "head.weight" in stored and "head.weight" not in backbone.vit.state_dict()
    assert stored["pos_embed"].dtype == torch.float16
    assert torch.equal(backbone.vit.pos_embed, stored["pos_embed"].float())
    assert (backbone.mean, backbone.std) == ((0.4, 0.5, 0.6), (0.2, 0.2, 0.2))
    assert (backbone.image_size, backbone.tokens, backbone.width, backbone.depth) == (16, 5, 24, 3)
    assert not any(p.requires_grad for p in backbone.vit.parameters()) and not backbone.vit.training


def test_the_embedded_backbone_is_small_and_describes_itself() -> None:
    backbone = load_backbone(BackboneSettings())
    assert 1e6 < backbone.parameters < 3e6
    assert backbone.image_size == 64
    path = Path(walking.__file__).parent / "weights" / "embedded.safetensors"
    assert path.stat().st_size <= 6_000_000


def test_weight_files_that_do_not_fit_are_refused_by_name(tiny_weights: Path, tmp_path: Path) -> None:
    state = load_file(tiny_weights)
    geometry = {"img_size": "16", "patch_size": "8", "embed_dim": "24", "depth": "3", "num_heads": "2"}
    wrong = tmp_path / "wrong.safetensors"
    save_file({**state, "pos_embed": torch.zeros(1, 9, 24)}, wrong, geometry)
    with pytest.raises(WeightsError, match=r"wrong\.safetensors.*pos_embed is \(1, 9, 24\), expected \(1, 5, 24\)"):
        load_backbone(BackboneSettings(name=str(wrong)))
    save_file({key: value for key, value in state.items() if not key.startswith("blocks.2.")}, wrong, geometry)
    with pytest.raises(WeightsError, match=r"wrong\.safetensors.* has 2 blocks, not depth=3"):
        load_backbone(BackboneSettings(name=str(wrong)))
    save_file({key: value for key, value in state.items() if not key.startswith("blocks.2.mlp.")}, wrong, geometry)
    with pytest.raises(WeightsError, match=r"is missing.* and \d+ more"):
        load_backbone(BackboneSettings(name=str(wrong)))
    save_file({"a": torch.zeros(1)}, wrong, geometry)
    with pytest.raises(WeightsError, match=r"is no known model \(its tensors are a\); only vision transformers"):
        load_backbone(BackboneSettings(name=str(wrong)))
    save_file(state, wrong)
    with pytest.raises(WeightsError, match=r"does not state its geometry.*backbone\.architecture"):
        load_backbone(BackboneSettings(name=str(wrong)))
    save_file(state, wrong, {**geometry, "depth": "three"})
    with pytest.raises(WeightsError, match="metadata"):
        load_backbone(BackboneSettings(name=str(wrong)))
    wrong.write_bytes(b"not safetensors at all")
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        load_backbone(BackboneSettings(name=str(wrong)))
    with pytest.raises(WeightsError, match="no weight file or folder"):
        load_backbone(BackboneSettings(name=str(tmp_path / "absent.safetensors")))
    with pytest.raises(WeightsError, match=r"backbone\.checksum: .* has sha256"):
        load_backbone(BackboneSettings(name=str(tiny_weights), checksum="0" * 64))


def test_a_weight_file_is_found_below_zofc_data(tiny_weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOFC_DATA", str(tiny_weights.parent))
    there = load_backbone(BackboneSettings(name=tiny_weights.name))
    assert there.checksum == load_backbone(BackboneSettings(name=str(tiny_weights))).checksum
    with pytest.raises(WeightsError, match=r"no weight file or folder absent\.npz or .*absent\.npz"):
        load_backbone(BackboneSettings(name="absent.npz"))


def test_published_npz_weights_are_read_and_pickles_in_them_are_not(tmp_path: Path) -> None:
    """The layout of the original ViT release, as written by its authors' code, on a small architecture."""
    name = "vit_tiny_patch16_224"
    vit = timm.create_model(name, num_classes=0)
    arrays = _published_npz(vit)
    path = tmp_path / "vit.npz"
    np.savez(path, **arrays)
    backbone = load_backbone(BackboneSettings(name=str(path), architecture=name))
    for key, value in vit.state_dict().items():
        torch.testing.assert_close(backbone.vit.state_dict()[key], value, msg=key)
    with pytest.raises(WeightsError, match="does not fit vit_small_patch16_224"):
        load_backbone(BackboneSettings(name=str(path), architecture="vit_small_patch16_224"))
    np.savez(path, other=np.zeros(3))
    with pytest.raises(WeightsError, match="published npz layout"):
        load_backbone(BackboneSettings(name=str(path), architecture=name))
    np.savez(path, **{"embedding/kernel": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(WeightsError):
        load_backbone(BackboneSettings(name=str(path), architecture=name))


def _published_npz(vit: VisionTransformer) -> dict[str, np.ndarray]:
    """A ViT's weights under the names and shapes of the published npz files."""
    state = {key: value.numpy() for key, value in vit.state_dict().items()}
    heads, width = vit.blocks[0].attn.num_heads, vit.embed_dim
    size = width // heads
    found = {
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "cls": state["cls_token"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
    }
    for i in range(len(vit.blocks)):
        ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
        attention = theirs + "MultiHeadDotProductAttention_1/"
        for j, part in enumerate(("query", "key", "value")):
            rows = slice(j * width, (j + 1) * width)
            found[f"{attention}{part}/kernel"] = state[ours + "attn.qkv.weight"][rows].T.reshape(width, heads, size)
            found[f"{attention}{part}/bias"] = state[ours + "attn.qkv.bias"][rows].reshape(heads, size)
        found[attention + "out/kernel"] = state[ours + "attn.proj.weight"].T.reshape(heads, size, width)
        found[attention + "out/bias"] = state[ours + "attn.proj.bias"]
        for j, part in enumerate(("fc1", "fc2")):
            found[f"{theirs}MlpBlock_3/Dense_{j}/kernel"] = state[f"{ours}mlp.{part}.weight"].T
            found[f"{theirs}MlpBlock_3/Dense_{j}/bias"] = state[f"{ours}mlp.{part}.bias"]
        for part, number in (("norm1", 0), ("norm2", 2)):
            found[f"{theirs}LayerNorm_{number}/scale"] = state[f"{ours}{part}.weight"]
            found[f"{theirs}LayerNorm_{number}/bias"] = state[f"{ours}{part}.bias"]
    return found


def test_unknown_names_are_answered_with_the_nearest(tiny_weights: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'vit_base_patch16_224'"):
        load_backbone(BackboneSettings(name="vit_base_patch16_225"))
    with pytest.raises(RecipeError, match=r"backbone\.architecture.*did you mean 'vit_tiny_patch16_224'"):
        load_backbone(BackboneSettings(name=str(tiny_weights), architecture="vit_tiny_patch16_22"))


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    make = timm.create_model

    def offline(name: str, pretrained: bool, **more: Any) -> Any:
        if pretrained:
            raise OSError("connection refused")
        return make(name, pretrained=False, **more)

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(WeightsError, match=r"could not be fetched.*local \.safetensors.*backbone\.pretrained=false"):
        load_backbone(BackboneSettings(name="vit_tiny_patch16_224"))


def test_random_backbones_are_the_same_for_the_same_seed_and_leave_torch_alone() -> None:
    recipe = BackboneSettings(name="vit_tiny_patch16_224", pretrained=False)
    before = torch.random.get_rng_state()
    a, b, c = (load_backbone(recipe, seed).vit.blocks[0].attn.qkv.weight for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_cannot_be_used_is_refused_before_its_weights_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    make = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **more: make(name, pretrained=False, **more)
                        if not pretrained else pytest.fail("fetched"))  # fmt: skip
    with pytest.raises(WeightsError, match=r"backbone\.name: 'resnet18' cannot be used: ResNet is not a timm"):
        load_backbone(BackboneSettings(name="resnet18"))


def test_a_model_with_other_blocks_is_refused() -> None:
    with pytest.raises(WeightsError, match="not a timm VisionTransformer"):
        walking.check_known(torch.nn.Linear(2, 2))
    vit = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=2, class_token=False, global_pool="map"
    )
    with pytest.raises(WeightsError, match="pool by attention"):
        walking.check_known(vit)


def test_heads_grow_without_touching_old_rows_and_start_as_specified() -> None:
    for head, bound in ((CosineHead(64), 1 / 8), (LinearHead(64), (3 / 64) ** 0.5)):
        head.grow(40, generator())
        first = head.rows[0].clone()
        head.grow(3, generator(1))
        assert [tuple(rows.shape) for rows in head.rows] == [(40, 64), (3, 64)]
        assert torch.equal(head.rows[0], first)
        assert 0.95 * bound < head.rows[0].abs().max() <= bound
        assert abs(float(head.rows[0].mean())) < 0.05 * bound


def test_the_cosine_head_scores_scaled_cosines_and_the_linear_head_a_linear_map() -> None:
    f = torch.randn(5, 8, generator=generator())
    cosine, linear = CosineHead(8), LinearHead(8)
    for head in (cosine, linear):
        head.grow(2, generator(1))
        head.grow(3, generator(2))
    cosine.sigma.fill_(3.0)
    linear.bias[1].copy_(torch.tensor([1.0, 2.0, 3.0]))
    rows = torch.cat(list(cosine.rows))
    expected = 3 * torch.nn.functional.cosine_similarity(f[:, None], rows[None], dim=-1)
    torch.testing.assert_close(cosine.logits({}, f), expected)
    torch.testing.assert_close(cosine.logits({}, f, [1]), expected[:, 2:])
    bias = torch.tensor([0.0, 0, 1, 2, 3])
    torch.testing.assert_close(linear.logits({}, f), f @ torch.cat(list(linear.rows)).T + bias)


@pytest.mark.parametrize("kind", [CosineHead, LinearHead])
def test_stacked_rows_score_each_query_by_itself(kind: type[CosineHead] | type[LinearHead]) -> None:
    head = kind(8)
    head.grow(3, generator())
    names = head.moving_names([0])
    own = dict(head.named_parameters())
    queries = [
        {name: own[name] + torch.randn(own[name].shape, generator=generator(q)) for name in names} for q in range(4)
    ]
    stacked = {name: torch.stack([query[name] for query in queries]) for name in names}
    shared, each = torch.randn(5, 8, generator=generator(9)), torch.randn(4, 5, 8, generator=generator(10))
    for features in (shared, each):
        alone = [head.logits(queries[q], features if features.dim() == 2 else features[q]) for q in range(4)]
        torch.testing.assert_close(head.logits(stacked, features), torch.stack(alone))


# -- image sizes -----------------------------------------------------------------------------------------------------

SMALL = {"patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}
VARIANTS: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({"init_values": 1.0}, 1),
    ({"reg_tokens": 4}, 5),
    ({"reg_tokens": 4, "no_embed_class": True, "init_values": 1.0}, 5),
    ({"no_embed_class": True}, 1),
    ({"pre_norm": True}, 1),
    ({"class_token": False, "global_pool": "avg"}, 0),
    ({"qk_norm": True, "mlp_ratio": 2.0}, 1),
]


@pytest.mark.parametrize(("variant", "prefix"), VARIANTS)
@pytest.mark.parametrize("size", [12, 20, 32, 40])
def test_a_weight_file_at_another_size_gives_the_features_of_timms_own_model_of_that_size(
    variant: dict[str, Any], prefix: int, size: int, tmp_path: Path
) -> None:
    """The file's names and shapes say what is in it: layer scale, registers, positions of the class token, norms."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = stirred(VisionTransformer(img_size=32, **SMALL, **variant, num_classes=0).eval().requires_grad_(False))
    path = tmp_path / "vit.safetensors"
    save_file(vit.state_dict(), path, {key: str(value) for key, value in {"img_size": 32, **SMALL}.items()})
    backbone = load_backbone(BackboneSettings(name=str(path), image_size=size))
    own = VisionTransformer(img_size=size, **SMALL, **variant, num_classes=0).eval()
    own.load_state_dict(checkpoint_filter_fn(vit.state_dict(), own))
    x = torch.rand(2, 3, size, size, generator=generator())
    torch.testing.assert_close(backbone.features(x), own(x), rtol=1e-5, atol=1e-5)
    assert (backbone.image_size, backbone.tokens) == (size, prefix + (size // 4) ** 2)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2"])
def test_a_timm_model_by_name_takes_images_of_a_chosen_size(name: str, tmp_path: Path) -> None:
    """The same weights as at its own size, and as timm makes of them at the chosen one; also through a file."""
    recipe = BackboneSettings(name=name, pretrained=False)
    plain, at_112 = load_backbone(recipe), load_backbone(recipe.model_copy(update={"image_size": 112}))
    own = timm.create_model(name, num_classes=0, img_size=112).eval()
    own.load_state_dict(checkpoint_filter_fn(plain.vit.state_dict(), own))
    x = torch.rand(2, 3, 112, 112, generator=generator())
    expected = own(x)
    torch.testing.assert_close(at_112.features(x), expected, rtol=1e-5, atol=1e-5)
    for state in (plain.vit.state_dict(), own.state_dict()):  # positions of its own size, or of another
        save_file(state, tmp_path / "vit.safetensors")
        from_file = BackboneSettings(name=str(tmp_path / "vit.safetensors"), architecture=name, image_size=112)
        torch.testing.assert_close(load_backbone(from_file).features(x), expected, rtol=1e-5, atol=1e-5)


def test_published_npz_weights_take_images_of_a_chosen_size(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    vit = timm.create_model(name, num_classes=0)
    np.savez(tmp_path / "vit.npz", **_published_npz(vit))
    backbone = load_backbone(BackboneSettings(name=str(tmp_path / "vit.npz"), architecture=name, image_size=96))
    vit.set_input_size((96, 96))
    x = torch.rand(1, 3, 96, 96, generator=generator())
    torch.testing.assert_close(backbone.features(x), vit.eval()(x), rtol=1e-5, atol=1e-5)


def test_a_size_that_is_no_multiple_of_the_patch_is_refused_before_weights_are_fetched(
    tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        RecipeError, match=r"backbone\.image_size: 20 is not a multiple of 8.*nearest sizes are 16 and 24"
    ):
        load_backbone(BackboneSettings(name=str(tiny_weights), image_size=20))
    with pytest.raises(RecipeError, match=r"5 is not a multiple of 8.*nearest sizes are 8$"):
        load_backbone(BackboneSettings(name=str(tiny_weights), image_size=5))
    make = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **more: make(name, pretrained=False, **more)
                        if not pretrained else pytest.fail("fetched"))  # fmt: skip
    with pytest.raises(RecipeError, match=r"backbone\.image_size: 225 is not .*nearest sizes are 224 and 240"):
        load_backbone(BackboneSettings(name="vit_tiny_patch16_224", image_size=225))


def test_the_catalog_says_what_a_backbone_is_and_where_its_weights_are(
    tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network, and without making models that are not asked for."""
    (tmp_path / "backbones").mkdir()
    (tmp_path / "backbones" / "tiny.safetensors").write_bytes(tiny_weights.read_bytes())
    save_file({"a": torch.zeros(1)}, tmp_path / "backbones" / "bare_tiny.safetensors")
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    downloaded = tmp_path / "hub" / "checkpoints" / "deit_tiny_patch16_224-a1311bcf.pth"
    downloaded.parent.mkdir(parents=True)
    downloaded.touch()
    entries = {entry.name: entry for entry in backbones("tiny")}
    assert all("tiny" in name for name in entries)
    tiny = entries["backbones/tiny.safetensors"]
    assert tiny.backbone is not None and tiny.weights == "file"
    assert (tiny.backbone.image_size, tiny.backbone.tokens, tiny.backbone.width) == (16, 5, 24)
    assert tiny.backbone.parameters == load_backbone(BackboneSettings(name=str(tiny_weights))).parameters
    assert entries["backbones/bare_tiny.safetensors"].backbone is None
    assert entries["deit_tiny_patch16_224.fb_in1k"].weights == "cached"
    assert entries["vit_tiny_patch16_384.augreg_in21k_ft_in1k"].weights == "hub"
    (embedded,) = backbones("embed")
    assert embedded.weights == "package" and embedded.backbone is not None and embedded.backbone.image_size == 64
    (dino,) = backbones("vit_small_patch14_dinov2.lvd")
    assert dino.backbone is not None and (dino.backbone.image_size, dino.backbone.tokens) == (518, 1370)
    assert not list(backbones("siglip_224"))  # those pool by attention, which is refused


def test_loading_onto_a_backbone_of_a_real_file(assets: Path) -> None:
    backbone = load_backbone(BackboneSettings(name="backbones/vit_micro_p8_64.safetensors"))
    assert (backbone.width, backbone.depth, backbone.image_size) == (192, 6, 64)
    assert backbone.mean == (0.5, 0.5, 0.5) and backbone.parameters == pytest.approx(2.7e6, rel=0.02)


@pytest.mark.parametrize(("size", "tokens"), [(224, 257), (112, 65)])
@pytest.mark.parametrize("architecture", [None, "vit_small_patch14_dinov2"])
def test_dinov2_at_224_and_112_px_is_timms_own_at_that_size(
    assets: Path, size: int, tokens: int, architecture: str | None
) -> None:
    file = assets / "backbones" / "vit_small_patch14_dinov2.safetensors"
    if not file.exists():
        pytest.skip(f"no {file}")
    backbone = load_backbone(BackboneSettings(name=str(file), image_size=size, architecture=architecture))
    own = timm.create_model("vit_small_patch14_dinov2", num_classes=0, img_size=size).eval()
    own.load_state_dict(checkpoint_filter_fn({key: value.float() for key, value in load_file(file).items()}, own))
    x = torch.rand(2, 3, size, size, generator=generator())
    with torch.no_grad():
        torch.testing.assert_close(backbone.features(x), own(x), rtol=1e-5, atol=1e-5)
    assert (backbone.tokens, backbone.width, backbone.image_size) == (tokens, 384, size)
    assert backbone.mean == (0.485, 0.456, 0.406) and backbone.std == (0.229, 0.224, 0.225)
    assert backbone.parameters < 22.1e6


# -- PEFT beyond the paper's adapter ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "settings"), FAMILIES[:4])
def test_adapters_and_lora_start_as_the_plain_vit(
    tiny: Backbone, images: torch.Tensor, kind: str, settings: dict[str, object]
) -> None:
    module = peft(kind, tiny, **settings)
    features, plain = tiny.leave(tiny.enter(images), module.inserts({})), tiny.features(images)
    assert torch.equal(features, plain)


@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
def test_every_family_evaluates_stacked_parameters_query_by_query(
    tiny: Backbone, images: torch.Tensor, kind: str, settings: dict[str, object]
) -> None:
    tiny.vit.double()
    module = stirred(peft(kind, tiny, **settings).double())
    x = tiny.enter(images.double())
    queries = [
        {n: p + 0.2 * torch.randn(p.shape, generator=generator(q), dtype=p.dtype) for n, p in module.named_parameters()}
        for q in range(3)
    ]
    alone = torch.stack([tiny.leave(x, module.inserts(query)) for query in queries])
    stacked = {name: torch.stack([query[name] for query in queries]) for name in queries[0]}
    torch.testing.assert_close(tiny.leave(x, module.inserts(stacked)), alone, rtol=1e-10, atol=1e-10)
    assert (alone[0] - alone[1]).abs().max() > 1e-3


def test_lora_merged_into_the_weights_agrees_with_lora_beside_them(tiny: Backbone, images: torch.Tensor) -> None:
    tiny.vit.double()
    module = stirred(peft("lora", tiny, scale=0.5).double())
    beside = tiny.leave(tiny.enter(images.double()), module.inserts({}))
    width = tiny.width
    for number in module.numbers:
        w = dict(module.blocks[str(number)].named_parameters())
        qkv = tiny.vit.blocks[number].attn.qkv.weight
        qkv[width : 2 * width] += 0.5 * w["up_key"] @ w["down_key"]
        qkv[2 * width :] += 0.5 * w["up_value"] @ w["down_value"]
    torch.testing.assert_close(tiny.vit(images.double()), beside, rtol=1e-9, atol=1e-9)


def test_a_compensated_prefix_that_is_hardly_attended_to_is_not_lost_in_fp16() -> None:
    attn = timm.create_model("test_vit", num_classes=0).eval().blocks[0].attn
    width = attn.qkv.in_features
    h = torch.randn(2, 5, width, generator=generator())
    qkv = torch.cat([torch.ones_like(h), torch.zeros_like(h), h], dim=-1)
    keys = torch.full((3, width), -22 * (width / attn.num_heads) ** -0.5)  # its weights are e^-22, and in fp16 nothing
    insert = walking.Insert(prefix=walking.Prefix(keys, torch.ones(3, width), compensated=True))
    with torch.no_grad():
        expected = walking.attend(attn.double(), qkv.double(), insert, h)
        found = walking.attend(attn.half(), qkv.half(), insert, h)
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.01)


def test_a_prefix_is_attended_to_as_further_keys_and_values(tiny: Backbone, images: torch.Tensor) -> None:
    """Written out for one block; compensated, the attention paid to the prefix sums to one."""
    for compensated in (False, True):
        module = stirred(peft("prefix", tiny, length=3, compensated=compensated))
        h = tiny.vit.blocks[0].norm1(tiny.enter(images).x)
        attn, w = tiny.vit.blocks[0].attn, dict(module.blocks["0"].named_parameters())
        q, k, v = (part.reshape(6, 5, 2, 12).transpose(1, 2) for part in attn.qkv(h).chunk(3, -1))
        pk, pv = (w[name].reshape(1, 3, 2, 12).transpose(1, 2).expand(6, -1, -1, -1) for name in ("keys", "values"))
        scores = (q @ torch.cat([pk, k], 2).mT / 12**0.5).softmax(-1)
        if compensated:
            scores = torch.cat([scores[..., :3] / scores[..., :3].sum(-1, keepdim=True), scores[..., 3:]], -1)
        by_hand = (scores @ torch.cat([pv, v], 2)).transpose(1, 2).reshape(6, 5, 24)
        torch.testing.assert_close(walking.attend(attn, attn.qkv(h), module.inserts({})[0], h), by_hand)


def test_adaptformer_reads_the_state_and_joins_the_residual_sum(tiny: Backbone, images: torch.Tensor) -> None:
    module = stirred(peft("adaptformer", tiny))
    x = tiny.enter(images).x
    block, w = tiny.vit.blocks[0], dict(module.blocks["0"].named_parameters())
    state = x + block.attn(block.norm1(x))
    inner = torch.relu(state @ w["down_weight"].T + w["down_bias"])
    by_hand = state + block.mlp(block.norm2(state)) + 0.1 * (inner @ w["up_weight"].T + w["up_bias"])
    torch.testing.assert_close(walking.walk_block(block, x, module.inserts({})[0]), by_hand)


def test_dropout_acts_only_where_a_stream_is_lent_and_repeats_with_it(tiny: Backbone, images: torch.Tensor) -> None:
    module = stirred(peft("adaptformer", tiny, dropout=0.5))
    x = tiny.enter(images)
    plain = tiny.leave(x, module.inserts({}))
    noisy = [tiny.leave(x, module.inserts({}, Noise(noise_key(seed, "noise")))) for seed in (1, 1, 2)]
    assert torch.equal(plain, tiny.leave(x, module.inserts({})))
    assert torch.equal(noisy[0], noisy[1]) and not torch.equal(noisy[0], noisy[2]) and not torch.equal(noisy[0], plain)


@pytest.mark.parametrize(("rank", "count"), [(5, 101_436), (16, 304_320), (64, 1_189_632)])
def test_adaptformer_has_the_published_number_of_parameters_on_vit_b16(rank: int, count: int) -> None:
    module = Adapter(768, range(12), rank, 0.1, generator(), place="across_mlp", activation="relu")
    assert sum(p.numel() for p in module.parameters()) == count


def test_a_learned_scale_adds_one_number_per_block() -> None:
    module = Adapter(768, range(5), 5, None, generator(), place="beside_attention")
    assert sum(p.numel() for p in module.parameters()) == 42_270


def test_peft_that_cannot_be_is_refused(tiny: Backbone) -> None:
    with pytest.raises(RecipeError, match="did you mean 'adapter'"):
        peft("adaptr", tiny)
    with pytest.raises(RecipeError, match=r"peft\.scale"):
        peft("lora", tiny, scale="learned")


@pytest.mark.parametrize(("recompute", "compiled"), [(True, False), (False, True), (True, True)])
def test_recomputed_and_compiled_blocks_have_the_same_gradients(
    tiny: Backbone, images: torch.Tensor, recompute: bool, compiled: bool
) -> None:
    """In float64, for an adapter and for LoRA; without a gradient to take, neither is done."""
    tiny.vit.double()
    for kind in ("adapter", "lora"):
        module = stirred(peft(kind, tiny).double())
        found = []
        for backbone in (tiny, dataclasses.replace(tiny, recompute=recompute, compiled=compiled)):
            leaves = {name: value.detach().requires_grad_() for name, value in module.named_parameters()}
            with torch.enable_grad():
                features = backbone.leave(backbone.enter(images.double(), module.entrance), module.inserts(leaves))
                found.append([features, *torch.autograd.grad(features.sin().sum(), list(leaves.values()))])
        for ours, plain in zip(*found, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-11)


def test_recomputation_keeps_one_activation_a_block(tiny: Backbone, images: torch.Tensor) -> None:
    module = stirred(peft("adapter", tiny, blocks="all"))
    kept = []
    for backbone in (tiny, dataclasses.replace(tiny, recompute=True)):
        leaves = {name: value.detach().requires_grad_() for name, value in module.named_parameters()}
        saved: list[int] = []
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t),
        ):
            backbone.leave(backbone.enter(images), module.inserts(leaves))
        kept.append(sum(saved))
    assert kept[1] < kept[0] / 3


def test_dropout_is_the_same_for_an_image_in_a_batch_in_pieces_and_when_computed_again(
    tiny: Backbone, images: torch.Tensor
) -> None:
    """And differs between images and between blocks."""
    tiny.vit.double()
    module = stirred(peft("adaptformer", tiny, dropout=0.5, blocks="all").double())
    found = []
    for backbone in (tiny, dataclasses.replace(tiny, recompute=True)):
        for sizes in ((6,), (2, 4), (1, 1, 4)):
            leaves = {name: value.detach().requires_grad_() for name, value in module.named_parameters()}
            total, first = images.new_zeros((), dtype=torch.float64), 0
            with torch.enable_grad():
                for size in sizes:
                    part = images[first : first + size].double()
                    inserts = module.inserts(leaves, Noise(noise_key(1, "noise"), first))
                    total = total + backbone.leave(backbone.enter(part, module.entrance), inserts).sin().sum()
                    first += size
            gradients = torch.autograd.grad(total, list(leaves.values()))
            found.append(torch.cat([total.detach()[None], *(g.flatten() for g in gradients)]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-11)
    noise, cpu = Noise(noise_key(1, "noise")), torch.device("cpu")
    masks = [noise.uniform(torch.Size((2, 9)), layer, cpu) for layer in (0, 1)]
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[0][0], masks[0][1])


def test_noise_is_uniform_and_its_layers_and_images_are_independent() -> None:
    shape, cpu = torch.Size((200, 500)), torch.device("cpu")
    draws = torch.stack([Noise(noise_key(1, "noise")).uniform(shape, layer, cpu) for layer in range(4)]).double()
    assert draws.min() >= 0 and draws.max() < 1
    counts = torch.histc(draws, 100, 0, 1)
    expected = draws.numel() / 100
    assert ((counts - expected) ** 2 / expected).sum() < 160  # of χ² with 99 degrees of freedom: one in 10,000
    for others in (draws.flatten(1), draws.flatten(1)[:, ::500].T[:, :4].T, draws[0], draws[0].T):
        correlation = torch.corrcoef(others)
        correlation.fill_diagonal_(0)
        assert correlation.abs().max() < 6 / others.shape[1] ** 0.5


def test_noise_is_the_reference_generator() -> None:
    """SplitMix64 in Python's whole numbers."""

    def mixed(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    key, golden = noise_key(7, "noise"), 0x9E3779B97F4A7C15
    found = Noise(key, first=3).uniform(torch.Size((2, 5)), 4, torch.device("cpu")).flatten()
    start = mixed((int(key) + 4 * golden) % 2**64)
    expected = [(mixed((start + place * golden) % 2**64) >> 40) / 2**24 for place in range(15, 25)]
    assert found.tolist() == expected

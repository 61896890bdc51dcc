"""Writes fixtures/reference_models.json: what transformers and open_clip compute with small models of each family.

    python tests/reference_models.py        # in an environment with transformers and open_clip, which tests do not need

Weights are drawn from their names, so the file holds only configurations, shapes and features. The versions that made
it are recorded in it.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

FIXTURE = Path(__file__).parent / "fixtures" / "reference_models.json"
VIT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "image_size": 16,
       "patch_size": 4}  # fmt: skip
DINOV2 = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "mlp_ratio": 3, "image_size": 20,
          "patch_size": 5}  # fmt: skip
TEXT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20,
        "max_position_embeddings": 8}  # fmt: skip
DECODER = {"decoder_hidden_size": 8, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
           "decoder_intermediate_size": 8}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # class, arguments of its configuration
    "vit": ("ViTModel", {**VIT, "layer_norm_eps": 1e-3}),
    "vit without biases": ("ViTModel", {**VIT, "qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"}),
    "vit classifier": ("ViTForImageClassification", {**VIT, "num_labels": 3}),
    "vit mae": ("ViTMAEForPreTraining", {**VIT, **DECODER, "mask_ratio": 0.0}),
    "vit msn": ("ViTMSNModel", VIT),
    "deit": ("DeiTModel", VIT),
    "deit classifier": ("DeiTForImageClassification", VIT),
    "deit distilled": ("DeiTForImageClassificationWithTeacher", VIT),
    "dinov2": ("Dinov2Model", DINOV2),
    "dinov2 swiglu": ("Dinov2Model", {**DINOV2, "use_swiglu_ffn": True}),
    "dinov2 registers": ("Dinov2WithRegistersModel", {**DINOV2, "num_register_tokens": 3}),
    "clip": ("CLIPModel", {"vision_config": VIT, "text_config": TEXT, "projection_dim": 8}),
    "clip tower": ("CLIPVisionModel", VIT),
    "clip projection": ("CLIPVisionModelWithProjection", {**VIT, "hidden_act": "gelu", "projection_dim": 8}),
}  # fmt: skip

OPEN_CLIP: dict[str, dict[str, Any]] = {  # what differs in the model_cfg of its folders
    "open_clip quick": {"vision_cfg": {}, "quick_gelu": True},
    "open_clip scaled": {"vision_cfg": {"ls_init_value": 0.5, "mlp_ratio": 3.3}, "quick_gelu": False},
}
OPEN_CLIP_TOWER = {"layers": 2, "width": 24, "head_width": 8, "patch_size": 4, "image_size": 16}
OPEN_CLIP_TEXT = {"context_length": 8, "vocab_size": 20, "width": 8, "heads": 2, "layers": 1}


def draw_weight(name: str, shape: list[int]) -> torch.Tensor:
    """A tensor that depends on its name and shape alone: around one for the weights of norms and layer scale."""
    drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape) * 0.3
    around = 1.0 if len(shape) == 1 and not name.endswith(("bias", "class_embedding")) else 0.0
    return torch.from_numpy(np.asarray(drawn + around, dtype=np.float32))


def draw_images(size: int) -> torch.Tensor:
    return torch.from_numpy(np.float32(np.random.RandomState(size).standard_normal((2, 3, size, size))))


def features(model: Any, images: torch.Tensor, name: str) -> torch.Tensor:
    """What the model's own head reads: the class token after the final norm, or the mean of two tokens."""
    tower = model.base_model
    if name.startswith("clip"):
        tower = getattr(model, "vision_model", model)
        return tower(images).pooler_output  # type: ignore[no-any-return]
    if name == "vit mae":  # it shuffles patches by noise
        noise = torch.arange((VIT["image_size"] // VIT["patch_size"]) ** 2).float().expand(len(images), -1)
        return tower(images, noise=noise).last_hidden_state[:, 0]  # type: ignore[no-any-return]
    tokens: torch.Tensor = tower(images).last_hidden_state
    return tokens[:, :2].mean(1) if name == "deit distilled" else tokens[:, 0]


def open_clip_models(open_clip: Any) -> dict[str, Any]:
    """With features after the projection into the space of texts, which open_clip's towers end with."""
    models = {}
    for name, own in OPEN_CLIP.items():
        tower = {**OPEN_CLIP_TOWER, **own["vision_cfg"]}
        config = {"embed_dim": 8, "vision_cfg": tower, "text_cfg": OPEN_CLIP_TEXT, "quick_gelu": own["quick_gelu"]}
        model = open_clip.CLIP(**config).eval()
        shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
        model.load_state_dict({key: draw_weight(key, shape) for key, shape in shapes.items()})
        with torch.no_grad():
            values = model.visual(draw_images(OPEN_CLIP_TOWER["image_size"])).tolist()
        rounded = [[round(value, 6) for value in row] for row in values]
        models[name] = {"config": {"model_cfg": config}, "shapes": shapes, "features": rounded}
    return models


def main() -> None:
    import tempfile

    import open_clip
    import transformers
    from safetensors.torch import load_file, save_file

    models = {}
    for name, (kind, arguments) in MODELS.items():
        cls = getattr(transformers, kind)
        model = cls(cls.config_class(**arguments)).eval()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model.save_pretrained(folder)
            config = json.loads(Path(folder, "config.json").read_text("utf-8"))
            shapes = {key: list(value.shape) for key, value in load_file(Path(folder, "model.safetensors")).items()}
            weights = {key: draw_weight(key, shape) for key, shape in shapes.items()}
            save_file(weights, Path(folder, "model.safetensors"), {"format": "pt"})
            model = cls.from_pretrained(folder).eval()
            size = arguments.get("image_size") or arguments["vision_config"]["image_size"]
            values = features(model, draw_images(size), name)
        models[name] = {
            "config": config,
            "shapes": shapes,
            "features": [[round(v, 6) for v in row] for row in values.tolist()],
        }
    versions = {
        "transformers": transformers.__version__,
        "open_clip": open_clip.__version__,
        "torch": torch.__version__,
    }
    content = {**versions, "models": models, "open_clip_models": open_clip_models(open_clip)}
    FIXTURE.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

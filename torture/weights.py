"""Weight files: headers, metadata, tensors and bytes of safetensors, .pth, .npz and Hugging Face folders mutated."""

from __future__ import annotations

import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from torture.kinds import Case, kind
from torture.mutate import hostile_text, hostile_value, mutate_bytes, mutate_tree
from torture.readers import finite_tensors
from torture.verdicts import ACCEPTED, Verdict

Header = dict[str, Any]
BIG = ("100000", "0", "-5", "7", "1e9", "999999999999", "", "nan", "3.5", "[8, 8]", "8,8", "x", "16 ", "２")


def split_file(data: bytes) -> tuple[Header, bytes]:
    """The header and the tensors of a safetensors file."""
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def join_file(header: Any, body: bytes, size: int | None = None) -> bytes:
    """A safetensors file; `size` is what it states of its header."""
    text = json.dumps(header, default=str).encode("utf-8", "replace")
    return struct.pack("<Q", (len(text) if size is None else size) % 2**64) + text + body


@kind("weights", "weight files: safetensors headers, metadata, tensors and bytes, .pth, .npz, Hugging Face folders")
def attempt_weights(case: Case) -> Verdict:
    """A mutated weight file as the backbone of a run."""
    draw = case.random
    data = case.stage.weights.read_bytes()
    path = draw.choice(MAKERS)(draw, case.folder, data)
    words = [word for word in case.stage.settings() if not word.startswith("backbone.name")]
    if draw.random() < 0.1:
        known = draw.choice(["vit_tiny_patch16_224", "resnet18", "x", "", "vit_base_patch16_224"])
        words.append(f"backbone.architecture={known}")
    if draw.random() < 0.05:
        words.append(f"backbone.image_size={draw.choice([1, 7, 8, 24, 100_000, 10**9])}")
    name = path if draw.random() < 0.7 else Path(path.name)
    named = f"./{name}" if len(name.parts) == 1 else str(name)
    verdict = case.judge("run", "simplecil/base", *words, f"backbone.name={named}", "-q")
    if verdict.word == ACCEPTED and path.suffix == ".safetensors" and path.is_file() and finite_tensors(path) is False:
        return Verdict("wrong", "accepted weights that are not finite")
    return verdict


def _bytes(draw: random.Random, folder: Path, data: bytes) -> Path:
    path = folder / "w.safetensors"
    path.write_bytes(mutate_bytes(draw, data))
    return path


def _metadata(draw: random.Random, folder: Path, data: bytes) -> Path:
    header, body = split_file(data)
    about = header["__metadata__"]
    for _ in range(draw.choice([1, 1, 2])):
        key = draw.choice(
            [*about, "architecture", "num_classes", "pool", "reg_tokens", "mlp_ratio", "qkv_bias", "init_values"]
        )
        about[key] = draw.choice(
            [*BIG, hostile_text(draw), "1,2", "0,0,0", "1,2,3,4", "a,b,c", "inf,inf,inf", "vit_tiny_patch16_224"]
        )
    if draw.random() < 0.1:
        about.pop(draw.choice(list(about)))
    if draw.random() < 0.1:
        header["__metadata__"] = hostile_value(draw)
    path = folder / "w.safetensors"
    path.write_bytes(join_file(header, body))
    return path


def _header(draw: random.Random, folder: Path, data: bytes) -> Path:
    header, body = split_file(data)
    match draw.randrange(6):
        case 0 | 1:
            header = mutate_tree(draw, header, draw.choice([1, 2, 4]))
        case 2:
            name = draw.choice([name for name in header if name != "__metadata__"])
            header[name]["shape"] = draw.choice(
                [[0], [], [2**40], [-1], [1, *header[name]["shape"]], [2**32, 2**32], header[name]["shape"][::-1]]
            )
        case 3:
            name = draw.choice([name for name in header if name != "__metadata__"])
            header[name]["dtype"] = draw.choice(["F32", "F64", "I64", "U8", "BOOL", "F8_E4M3", "BF16", "X", "", None])
        case 4:
            name = draw.choice([name for name in header if name != "__metadata__"])
            header[name]["data_offsets"] = draw.choice(
                [[0, 0], [0, 2**40], [5, 1], [-1, 3], [0, len(body)], [0], [0.5, 2]]
            )
        case _:
            names = [name for name in header if name != "__metadata__"]
            header[draw.choice(["x", "optimizer|a|b|c|d", "blocks.99.norm1.weight", "\x1b[2J", ""])] = header.pop(
                draw.choice(names)
            )
    path = folder / "w.safetensors"
    size = draw.choice([0, 1, 2**40, 2**63, 100_000_001]) if draw.random() < 0.1 else None
    path.write_bytes(join_file(header, body, size))
    return path


def _tensors(draw: random.Random, folder: Path, data: bytes) -> Path:
    from safetensors.numpy import load, save_file

    tensors = load(data)
    about = split_file(data)[0]["__metadata__"]
    name = draw.choice(list(tensors))
    value = tensors[name]
    special = np.array([np.nan, np.inf, -np.inf, 65504, 0], value.dtype)
    choices: tuple[Callable[[], Any], ...] = (
        lambda: np.full_like(value, draw.choice(special)),
        lambda: np.where(
            np.arange(value.size).reshape(value.shape) == draw.randrange(value.size), draw.choice(special), value
        ),
        lambda: value.reshape(-1),
        lambda: np.zeros((0, *value.shape), value.dtype),
        lambda: value.astype(draw.choice([np.float32, np.float64, np.int8, np.bool_])),
        lambda: np.concatenate([value, value]),
        lambda: None,
    )
    changed = draw.choice(choices)()
    tensors.pop(name)
    if changed is not None:
        tensors[name] = np.ascontiguousarray(changed)
    if draw.random() < 0.3:
        tensors = {
            f"{draw.choice(['model.', 'module.', 'vit.', 'student.'])}{key}": one for key, one in tensors.items()
        }
    save_file(tensors, folder / "w.safetensors", about if draw.random() < 0.8 else None)
    return folder / "w.safetensors"


class Evil:
    """Unpickling it would make a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("owned"),)


def _torch(draw: random.Random, folder: Path, data: bytes) -> Path:
    import torch
    from safetensors.torch import load

    path = folder / f"w.{draw.choice(['pth', 'pt', 'bin', 'ckpt', 'pth.tar'])}"
    state: Any = load(data)
    match draw.randrange(6):
        case 0:
            path.write_bytes(pickle.dumps(Evil()))
            return path
        case 1:
            torch.save({**state, "evil": Evil()}, path)
            return path
        case 2:
            state = draw.choice(
                [{"model": state}, {"state_dict": state}, {"a": {"b": state}}, [state], {}, None, 5, {1: 2}, {"x": "y"}]
            )
        case 3:
            state = {
                name: value.to(draw.choice([torch.int32, torch.complex64, torch.bool])) for name, value in state.items()
            }
    torch.save(state, path)
    if draw.random() < 0.6:
        path.write_bytes(mutate_bytes(draw, path.read_bytes()))
    return path


def _arrays(draw: random.Random, folder: Path, data: bytes) -> Path:
    from safetensors.numpy import load

    path = folder / "w.npz"
    arrays = (
        load(data)
        if draw.random() < 0.5
        else {"Transformer/encoderblock_0/x": np.zeros(3), "embedding/kernel": np.zeros((2, 2, 3, 4))}
    )
    match draw.randrange(6):
        case 0:
            path.write_bytes(draw.choice([b"", b"PK", b"x" * 100]))
        case 1:
            np.savez(path, a=np.array([Evil()], dtype=object))
        case 2:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                file.writestr(
                    "a.npy",
                    draw.choice(
                        [
                            bytes(2**24),
                            b"\x93NUMPY\x01\x00",
                            b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,)}",
                        ]
                    ),
                )
        case _:
            np.savez(path, **{name.replace(".", "/"): value for name, value in arrays.items()})  # type: ignore[arg-type]
            if draw.random() < 0.8:
                path.write_bytes(mutate_bytes(draw, path.read_bytes()))
    return path


def _folder(draw: random.Random, folder: Path, data: bytes) -> Path:
    path = folder / "model"
    path.mkdir()
    config: Any = {"architectures": ["ViTModel"], "model_type": draw.choice(["vit", "dinov2", "clip", "x"]),
                                     "hidden_size": 24, "num_hidden_layers": 3,
              "num_attention_heads": 2, "intermediate_size": 96, "image_size": 16, "patch_size": 8, "num_channels": 3,
              "hidden_act": "gelu", "qkv_bias": True, "layer_norm_eps": 1e-6}  # fmt: skip
    if draw.random() < 0.3:
        config = {
            "architecture": "vit_tiny_patch16_224",
            "num_classes": 0,
            "pretrained_cfg": {"input_size": [3, 16, 16], "mean": [0.5] * 3, "std": [0.5] * 3},
        }
    text = json.dumps(mutate_tree(draw, config, draw.choice([0, 1, 1, 2])), default=str).encode("utf-8", "replace")
    if draw.random() < 0.2:
        text = mutate_bytes(draw, text)
    if draw.random() < 0.95:
        (path / "config.json").write_bytes(text)
    if draw.random() < 0.9:
        (path / "model.safetensors").write_bytes(mutate_bytes(draw, data) if draw.random() < 0.3 else data)
    if draw.random() < 0.3:
        (path / "preprocessor_config.json").write_text(
            json.dumps(
                mutate_tree(draw, {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 16}}),
                default=str,
            )
        )
    if draw.random() < 0.2:
        (path / "model.safetensors.index.json").write_text(
            json.dumps(mutate_tree(draw, {"weight_map": {"a": "../../x", "b": "model.safetensors"}}), default=str)
        )
    return path


def _strange(draw: random.Random, folder: Path, _data: bytes) -> Path:
    path = folder / draw.choice(["w.safetensors", "w.pth", "w.npz", "model"])
    match draw.randrange(4):
        case 0:
            path.symlink_to(draw.choice(["/dev/zero", path.name, "nowhere", "/etc/passwd", "/"]))
        case 1:
            path.mkdir()
        case 2:
            path.write_bytes(b"")
            path.chmod(0)
    return path


MAKERS: tuple[Callable[[random.Random, Path, bytes], Path], ...] = (
    _bytes, _bytes, _metadata, _metadata, _metadata, _header, _header, _tensors, _tensors, _torch, _torch, _arrays,
    _folder, _folder, _strange,
)  # fmt: skip

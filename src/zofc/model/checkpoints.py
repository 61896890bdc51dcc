"""Reads weight files into named tensors: safetensors files and torch checkpoints.

Nothing that is stored in a file is executed: checkpoints are loaded by torch's weights-only unpickler. A file that
cannot be read is refused with what it is and what to do.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zofc.errors import WeightsError
from zofc.limits import JSON_BYTES
from zofc.paths import parse_json, why_unreadable
from zofc.units import format_bytes

SAFETENSORS_SUFFIX = ".safetensors"
WRAPPERS = (  # entries of a checkpoint that hold the weights, the preferred one first
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model_state_dict",
    "model",
    "teacher",
    "target_encoder",
    "module",
    "net",
    "student",
    "encoder",
)
SIGNATURES = (  # how a file that holds no weights starts, what it is, and the remedy
    (b"version https://git-lfs", "a Git LFS pointer, not the weights", "fetch them with `git lfs pull`"),
    (b"<!doctype", "an HTML page, not the weights", "the download failed; open the address in a browser"),
    (b"<html", "an HTML page, not the weights", "the download failed; open the address in a browser"),
    (b"<?xml", "an XML text, not the weights", "the download failed; open the address in a browser"),
    (b"\x89hdf", "an HDF5 file (Keras)", "use the PyTorch or safetensors weights of the model"),
    (b"gguf", "a GGUF file (llama.cpp)", "use the PyTorch or safetensors weights of the model"),
    (b"\x1f\x8b", "a gzip archive", "extract it and give the checkpoint in it"),
    (b"rar!", "a RAR archive", "extract it and give the checkpoint in it"),
    (b"7z\xbc\xaf", "a 7z archive", "extract it and give the checkpoint in it"),
)
SAVE_COMMAND = (
    'python -c "import torch, safetensors.torch as s; '
    "w = torch.load('{path}', map_location='cpu', weights_only=False); "
    "w = getattr(w, 'state_dict', lambda: w)(); w = w.get('state_dict', w.get('model', w)); "
    "s.save_file({{k: v.contiguous().clone() for k, v in w.items() if torch.is_tensor(v)}}, '{target}')\""
)


@dataclass(frozen=True)
class NamedTensors:
    """The named tensors of one or several weight files, and the text that is stored beside them."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_checkpoint(path: Path) -> NamedTensors:
    """The tensors of a safetensors file or a torch checkpoint; its content decides, not its suffix."""
    if reason := why_unreadable(path):
        raise WeightsError(f"backbone.name: {path} cannot be read: {reason}")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise WeightsError(f"backbone.name: {path} cannot be read: {error.strerror or error}") from error
    _refuse_other_content(path, start)
    if start[8:9] == b"{" or (path.suffix == SAFETENSORS_SUFFIX and not _is_torch(start)):
        return _read_safetensors(path)
    return NamedTensors(path, unwrap(_load_torch(path, start), path))


def _is_torch(start: bytes) -> bool:
    return start.startswith((b"PK", b"\x80"))


def _refuse_other_content(path: Path, start: bytes) -> None:
    if not start:
        raise WeightsError(f"backbone.name: {path} is empty; download it again")
    text = start.lstrip().lower()
    for signature, content, remedy in SIGNATURES:
        if text.startswith(signature):
            raise WeightsError(f"backbone.name: {path} is {content}; {remedy}")
    if text.startswith((b"{", b"[")) and start[8:9] != b"{":
        raise WeightsError(f"backbone.name: {path} is a JSON text, not the weights; give the folder that it lies in")


def _read_safetensors(path: Path) -> NamedTensors:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            return NamedTensors(path, tensors, file.metadata() or {})
    except RuntimeError as error:  # torch could not open the file again
        raise WeightsError(f"backbone.name: {path} cannot be read: {error}") from error
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:  # also of types torch lacks
        size, expected = path.stat().st_size, _expected_size(path)
        if expected and size < expected:
            raise _truncated(path, f"{format_bytes(size)} of {format_bytes(expected)}") from error
        raise WeightsError(f"backbone.name: {path} is not a readable safetensors file: {error}") from error


def _expected_size(path: Path) -> int | None:
    """Bytes that the header of a safetensors file promises."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= 100_000_000:
            return None
        header = file.read(length)
    try:
        entries = parse_json(header)
        ends = [int(entry["data_offsets"][1]) for key, entry in entries.items() if key != "__metadata__"]
        return 8 + length + max(ends)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return 8 + length if len(header) < length else None


def _truncated(path: Path, extent: str) -> WeightsError:
    return WeightsError(f"backbone.name: {path} is truncated ({extent}); download it again")


def _load_torch(path: Path, start: bytes) -> Any:
    zipped = start.startswith(b"PK")
    problem = _zip_problem(path) if zipped else ""
    if not _is_torch(start):
        problem = (
            "is neither a safetensors file nor a torch checkpoint; give one of these, or a folder with config.json"
        )
    elif path.suffix == SAFETENSORS_SUFFIX:  # by which torch would read it
        problem = problem or "is a torch checkpoint, not a safetensors file; rename it to .pth"
    if problem:
        raise WeightsError(f"backbone.name: {path} {problem}")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # training options, plain data
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # on damaged files the unpickler raises exceptions of every kind
        raise WeightsError(f"backbone.name: {path} {_refusal(path, error)}") from error


def _zip_problem(path: Path) -> str:
    """Why a zip archive is no torch checkpoint; empty if it is one."""
    if not zipfile.is_zipfile(path):
        return "is truncated (the end of its zip archive is missing); download it again"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {name.rpartition("/")[2] for name in archive.namelist()}
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        return f"is a damaged zip archive ({error}); download it again"
    if "constants.pkl" in entries:
        command = _save_command(path).replace("torch.load", "torch.jit.load").replace(", weights_only=False", "")
        return f"is a TorchScript archive, a program with weights; save them alone, where you trust it: {command}"
    if packed and "data.pkl" in entries:  # torch stores as is; a small archive may hold any amount
        return "is a compressed zip archive, which torch does not write; extract it and save its weights again"
    return "" if "data.pkl" in entries else "is a zip archive, not a checkpoint; extract it and give the file in it"


def _refusal(path: Path, error: Exception) -> str:
    """What a checkpoint is that torch did not load, and the remedy."""
    if isinstance(error, EOFError):
        return "is truncated; download it again"
    if not isinstance(error, pickle.UnpicklingError):
        text = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
        return f"is not a readable torch checkpoint: {text}"
    classes = _pickled_classes(path) or re.findall(r"GLOBAL ([\w.]+)", str(error))
    if not classes:
        return "is not a readable torch checkpoint: its pickle is damaged or of another program; save its state dict"
    examples = f" ({', '.join(classes[:3])}{', …' * (len(classes) > 3)})"
    is_model = any(name.startswith("torch.nn.modules.") for name in classes)
    content = "is a whole pickled model" if is_model else "holds pickled objects beside tensors"
    return (
        f"{content}{examples}, and loading it would run code of the file. Save its weights alone, where you trust it "
        f"and its packages are installed: {_save_command(path)}"
    )


def _save_command(path: Path) -> str:
    return SAVE_COMMAND.format(path=path, target=path.with_suffix(SAFETENSORS_SUFFIX))


def _pickled_classes(path: Path) -> list[str]:
    """The classes that a checkpoint needs beside torch's tensors, torch's own last; none known for old formats."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # see _load_torch
        return []
    return sorted(names, key=lambda name: (name.startswith("torch."), name))


def unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint, which training scripts wrap in entries such as `model`."""
    while isinstance(content, Mapping):
        wrapper = next((key for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if wrapper is None:
            break
        content = content[wrapper]
    if isinstance(content, Mapping):
        tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
        if tensors:
            return tensors
        content = f"the entries {', '.join(map(str, [*content][:5]))}" if content else "nothing"
    else:
        content = f"a {type(content).__name__}"
    raise WeightsError(f"backbone.name: {path} holds {content} and no named weights; give the state dict of a model")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that lies beside weights."""
    if reason := why_unreadable(path, JSON_BYTES):
        raise WeightsError(f"backbone.name: {path} cannot be read: {reason}")
    try:
        content = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"backbone.name: {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"backbone.name: {path} is not a JSON object; download it again")
    return content


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_files(paths: list[Path]) -> str:
    """The checksum of several files of a folder, which `sha256sum FILE… | sha256sum` prints for their sorted names."""
    lines = "".join(f"{sha256(path)}  {path.name}\n" for path in sorted(paths))
    return hashlib.sha256(lines.encode()).hexdigest()

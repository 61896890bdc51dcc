"""Files of tensors, in the safetensors format, with a checksum: what was damaged on disk is refused, not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from zofc.errors import RunError

CHECKSUM = "checksum"  # its name in the metadata of a file


def tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    """A digest of names, types, shapes and values of tensors on the CPU."""
    code = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        code.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        code.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return code.hexdigest()


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a file that holds tensors of any device."""
    values = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(values, {CHECKSUM: tensors_checksum(values)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file. Those of version 0.1 have no checksum; all must hold finite numbers."""
    try:
        with safe_open(path, framework="pt") as file:
            recorded = (file.metadata() or {}).get(CHECKSUM)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise RunError(f"{path.name} cannot be read: {error}") from error
    if recorded is not None and recorded != tensors_checksum(tensors):
        raise RunError(f"{path.name} is damaged: its checksum differs")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise RunError(f"{path.name} is damaged: '{name}' holds values that are not finite")
    return tensors

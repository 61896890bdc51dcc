"""Weights of 8 or 4 bits in blocks, as ONNX Runtime's MatMulNBits reads them: of a matrix (K, N), each run of
BLOCK_SIZE numbers along K has a scale s and a zero point z of its own, and stands for s · (q − z)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 32  # numbers that share a scale


def quantize_blocks(matrix: NDArray[np.float32], bits: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Values (N, blocks, bytes of a block), scales (N · blocks) and zero points of a matrix (K, N)."""
    rows, columns = matrix.shape
    blocks = -(-rows // BLOCK_SIZE)
    padded = np.zeros((columns, blocks * BLOCK_SIZE), np.float32)
    padded[:, :rows] = matrix.T
    values = padded.reshape(columns, blocks, BLOCK_SIZE)
    low, high = np.minimum(values.min(-1), 0), np.maximum(values.max(-1), 0)  # zero itself is kept exactly
    most = 2**bits - 1
    scales = np.maximum((high - low) / most, np.finfo(np.float32).tiny).astype(np.float32)
    zeros = np.rint(-low / scales).clip(0, most).astype(np.uint8)
    codes = (np.rint(values / scales[..., None]) + zeros[..., None]).clip(0, most).astype(np.uint8)
    return _pack(codes, bits), scales.reshape(-1), _pack(zeros, bits).reshape(-1)


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes along the last axis, two in each byte if they have 4 bits, the first one low."""
    if bits == 8:
        return codes
    even = np.concatenate([codes, np.zeros((*codes.shape[:-1], codes.shape[-1] % 2), np.uint8)], axis=-1)
    packed: NDArray[np.uint8] = even[..., 0::2] | (even[..., 1::2] << 4)
    return packed

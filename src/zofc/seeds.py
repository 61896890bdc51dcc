"""Named random streams: every draw is a pure function of (seed, name), so no generator state is ever saved.

`stream(1993, "shuffle", task, epoch)` gives the same numbers on every machine, in any order of use, after any
restart: a run that was killed continues with exactly the draws it would have made.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def key(seed: int, *name: str | int) -> int:
    """A 128-bit key for one named stream."""
    text = "\x1f".join([str(seed), *map(str, name)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """A numpy generator for one named stream."""
    return np.random.Generator(np.random.Philox(key=key(seed, *name)))


def torch_stream(seed: int, *name: str | int) -> torch.Generator:
    """A torch generator (CPU) for one named stream."""
    return torch.Generator().manual_seed(key(seed, *name) & (2**63 - 1))

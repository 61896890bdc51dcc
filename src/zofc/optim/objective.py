"""What a step needs of a method, its loss as a function of the moving parameters, and what a step gets from it: a
gradient, exact or estimated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from zofc.seeds import Noise


class Objective(Protocol):
    """A loss L(features(moving, prepare(images)), moving) with `moving` in place of parameters of the same name."""

    noise: Noise | None  # of random layers, in first-order steps only
    in_features: ClassVar[tuple[str, ...]]  # the groups that the features depend on; the loss may depend on any

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""

    def prepare(self, images: Tensor) -> Any:
        """Everything that no moving parameter touches, once per step."""

    def features(self, moving: Mapping[str, Tensor], prepared: Any) -> Any:
        """Features (..., batch, width) with `moving` in place of its own parameters."""

    def loss(self, moving: Mapping[str, Tensor], features: Any, labels: Tensor) -> Tensor:
        """Mean loss, () or one per point."""

    def hits(self, moving: Mapping[str, Tensor], features: Any, labels: Tensor) -> Tensor:
        """Number of correct answers, () or one per point."""


class Gradient(NamedTuple):
    """A gradient, exact or estimated, with the loss and the number of hits on the batch that it was computed from."""

    values: dict[str, Tensor]  # by parameter name
    loss: Tensor  # mean over the batch
    hits: Tensor | None  # None: not computed
    shares: Tensor | None = None  # of each direction in an estimate, with which it describes the step

    def of(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The part of these parameters."""
        return {name: self.values[name] for name in names if name in self.values}


def differentiate(value: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients of a scalar, computed in the calling thread: a thread of autograd's own would allocate a cuBLAS
    workspace of its own and keep it."""
    with torch.autograd.set_multithreading_enabled(False):
        return torch.autograd.grad(value, inputs, allow_unused=True)


def in_double(features: Any) -> Any:
    """A tree of features with its floating-point tensors in float64; on the CPU if the device has no float64 (MPS)."""

    def widen(t: Tensor) -> Tensor:
        t = t.cpu() if t.device.type == "mps" else t
        return t.double() if t.is_floating_point() else t

    return tree_map_only(Tensor, widen, features)


def device_of(features: Any) -> torch.device:
    """The device of a tree of features: where the loss is computed."""
    device: torch.device = next(leaf for leaf in tree_leaves(features) if isinstance(leaf, Tensor)).device
    return device

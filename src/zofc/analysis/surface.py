"""A loss as a surface over a mapping of tensors: its value, gradient and Hessian-vector products at any point.

It is a mean over images. A batch gives the mean over its own images, so it counts by how many these are: a sum of
batch means divided by the number of images, as published, makes gradients too short by the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Point = Mapping[str, Tensor]
PointLoss = Callable[[Point], Tensor]


@dataclass(frozen=True)
class BatchedLoss:
    """A mean over all images, batch by batch, so that only one batch's graph is held at a time."""

    parts: Sequence[tuple[PointLoss, int]]  # the mean loss of a batch, and of how many images

    @property
    def images(self) -> int:
        """Number of images that the loss is the mean over."""
        return sum(count for _, count in self.parts)

    @torch.no_grad()
    def value(self, point: Point) -> float:
        """The loss at a point."""
        return sum(float(loss(point)) * count for loss, count in self.parts) / self.images

    def gradient(self, point: Point) -> dict[str, Tensor]:
        """The gradient at a point."""
        return self.value_and_gradient(point)[1]

    def value_and_gradient(self, point: Point) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradient at a point."""
        total, value = _zeros(point), 0.0
        for loss, count in self.parts:
            leaves = _leaves(point)
            with torch.enable_grad():
                share = loss(leaves) * (count / self.images)
                _add(total, share, leaves)
            value += float(share.detach())
        return value, total

    def hvp(self, point: Point, vector: Point) -> dict[str, Tensor]:
        """H v, by a backward pass through the gradient along v."""
        total = _zeros(point)
        for loss, count in self.parts:
            leaves = _leaves(point)
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
                share = loss(leaves) * (count / self.images)
                slope = _zeros(point)
                _add(slope, share, leaves, create_graph=True)
                _add(total, dot(slope, vector), leaves)
        return total


def _zeros(point: Point) -> dict[str, Tensor]:
    return {name: torch.zeros_like(value) for name, value in point.items()}


def _leaves(point: Point) -> dict[str, Tensor]:
    return {name: value.detach().clone().requires_grad_() for name, value in point.items()}


def _add(total: dict[str, Tensor], value: Tensor, leaves: Point, create_graph: bool = False) -> None:
    """Add the gradient of a value to a sum; what the value does not depend on stays as it is."""
    if not value.requires_grad:
        return
    found = torch.autograd.grad(value, list(leaves.values()), create_graph=create_graph, allow_unused=True)
    for name, part in zip(leaves, found, strict=True):
        if part is not None:
            total[name] = total[name] + part


# -- points as vectors -----------------------------------------------------------------------------------------------


def moved(point: Point, along: Point, length: float = 1.0) -> dict[str, Tensor]:
    """point + length · along."""
    return {name: torch.add(value, along[name], alpha=length) for name, value in point.items()}


def difference(end: Point, start: Point) -> dict[str, Tensor]:
    """Entry by entry, `end` minus `start`."""
    return {name: end[name] - value for name, value in start.items()}


def dot(a: Point, b: Point) -> Tensor:
    """Inner product of two points."""
    return torch.stack([(value * b[name]).sum() for name, value in a.items()]).sum()


def norm(a: Point) -> float:
    """Euclidean length of a point."""
    return float(dot(a, a).sqrt())


def size(point: Point) -> int:
    """Number of entries of a point."""
    return sum(value.numel() for value in point.values())

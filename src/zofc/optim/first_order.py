"""Gradients of first-order groups by a backward pass (Algorithm 1, line 3): through the loss alone if the features do
not depend on the groups, else through the backbone, one micro-batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from zofc.optim.chunking import micro_batches
from zofc.optim.graphs import Recorder
from zofc.optim.objective import Gradient, Objective, device_of, differentiate, in_double
from zofc.optim.optimizers import GroupOptimizer
from zofc.seeds import Noise

LOSS_SCALE, LOSS_SCALE_BATCH = 2.0**12, 48  # in fp16; the scale is full from this many images per pass


def autograd_leaves(groups: Mapping[str, GroupOptimizer]) -> dict[str, Tensor]:
    """Fresh leaves for autograd; the parameters themselves never require gradients."""
    return {
        name: value.detach().requires_grad_() for group in groups.values() for name, value in group.parameters.items()
    }


def loss_gradient(
    method: Objective, leaves: Mapping[str, Tensor], features: Any, labels: Tensor, scale: float = 1.0
) -> Gradient:
    """The gradient of the loss of a batch with these features; the backward pass is that of scale · loss."""
    labels = labels.to(device_of(features))
    with torch.enable_grad():
        loss = method.loss(leaves, features, labels)
        gradients = differentiate(loss * scale, list(leaves.values()))
    values = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
    if scale != 1.0:
        values = {name: g / scale for name, g in values.items()}
    with torch.no_grad():
        hits = method.hits(leaves, features, labels)
    return Gradient(values, loss.detach(), hits)


def backbone_gradient(
    method: Objective,
    groups: Mapping[str, GroupOptimizer],
    images: Tensor,
    labels: Tensor,
    key: Tensor,
    micro_batch: int | None,
    recorder: Recorder | None = None,
    start: Tensor | int = 0,
) -> Gradient:
    """The gradient of groups that the features depend on, summed over micro-batches; `key` is that of the noise of
    random layers, and `start` the place of the first image in the batch of all ranks. A recorder may
    overwrite its result for one micro-batch with that for the next."""

    def work(images: Tensor, labels: Tensor, key: Tensor, start: Tensor) -> Gradient:
        return _pass_gradient(method, groups, images, labels, Noise(key, start))

    total: dict[str, Tensor] = {}
    losses, hits = [], []
    for where, part in micro_batches(images, micro_batch, method.device):
        inputs = part, labels[where], key, torch.full_like(key, where.start) + start
        gradient = work(*inputs) if recorder is None else recorder(("part", *groups), work, *inputs)
        share = len(part) / len(images)
        if share == 1.0 and recorder is None:
            return gradient
        for name, g in gradient.values.items():
            total[name] = total[name].add_(g, alpha=share) if name in total else g * share
        losses.append(gradient.loss * share)
        assert gradient.hits is not None
        hits.append(gradient.hits.clone())
    return Gradient(total, torch.stack(losses).sum(), torch.stack(hits).sum())


def _pass_gradient(
    method: Objective, groups: Mapping[str, GroupOptimizer], images: Tensor, labels: Tensor, noise: Noise
) -> Gradient:
    """The gradient on images that pass through the backbone together."""
    leaves = autograd_leaves(groups)
    method.noise = noise
    try:
        with torch.no_grad():
            prepared = method.prepare(images)
        with torch.enable_grad():  # the graph spans only what these leaves touch
            features = in_double(method.features(leaves, prepared))
            return loss_gradient(method, leaves, features, labels, _loss_scale(tree_leaves(prepared), len(images)))
    finally:
        method.noise = None


def _loss_scale(activations: Iterable[Any], images: int) -> float:
    """In fp16, small gradients of activations would underflow unless the loss is scaled up. The scale is proportional
    to the micro-batch, so that an image weighs the same in every one: in small ones its gradients would overflow."""
    half = any(isinstance(leaf, Tensor) and leaf.dtype == torch.float16 for leaf in activations)
    return LOSS_SCALE * min(1.0, images / LOSS_SCALE_BATCH) if half else 1.0

"""The published training steps, restated plainly as the baseline: fp32, unfused attention, one thing after the other.

Zeroth order: a forward pass and a backward pass of the classifier; then for each query two forward passes with the
adapter's tensors written to and restored; then a forward pass for the loss that is reported. First order: one forward
pass and one backward pass through the backbone.
"""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F


class Published:
    """A ViT with adapters beside the MLPs of some blocks, and a cosine classifier."""

    def __init__(
        self, vit: VisionTransformer, blocks: int, rank: int, classes: int, fused: bool = False, autocast: bool = False
    ) -> None:
        self.vit, self.autocast = vit, autocast
        for block in vit.blocks:
            block.attn.fused_attn = fused
        width, device = vit.num_features, next(vit.parameters()).device
        g = torch.Generator().manual_seed(0)
        self.adapters = [
            [torch.randn(shape, generator=g).mul_(0.02).to(device).requires_grad_() for shape in shapes]
            for shapes in [[(rank, width), (rank,), (width, rank), (width,)]] * blocks
        ]
        self.rows = torch.randn(classes, width, generator=g).mul_(0.02).to(device).requires_grad_()
        self.sigma = torch.ones((), device=device, requires_grad=True)
        self.moved = [tensor for adapter in self.adapters for tensor in adapter]
        self.head = [self.rows, self.sigma]
        self.slow = torch.optim.SGD(self.moved, lr=0.01, momentum=0.9)
        self.fast = torch.optim.SGD(self.head, lr=0.01, momentum=0.9)

    def features(self, images: Tensor) -> Tensor:
        """Features (batch, width) of the adapted transformer."""
        x = self.vit.patch_embed(images)
        x = torch.cat([self.vit.cls_token.expand(len(x), -1, -1), x], 1) + self.vit.pos_embed
        for number, block in enumerate(self.vit.blocks):
            x = x + block.attn(block.norm1(x))
            h = block.norm2(x)
            y = block.mlp(h)
            if number < len(self.adapters):
                down, down_bias, up, up_bias = self.adapters[number]
                y = y + 0.1 * F.linear(F.gelu(F.linear(h, down, down_bias)), up, up_bias)
            x = x + y
        tokens: Tensor = self.vit.norm(x)  # (batch, tokens, width)
        return tokens[:, 0]

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the cosine classifier."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.autocast):
            features = self.features(images)
        logits = self.sigma * F.linear(F.normalize(features.float(), dim=1), F.normalize(self.rows, dim=1))
        return F.cross_entropy(logits, labels)

    def zeroth_order(self, images: Tensor, labels: Tensor, queries: int, epsilon: float = 1e-3) -> float:
        """One step of ZO-FC: classifier, perturbed points in sequence, adapter, and the loss to report."""
        with torch.no_grad():
            features = self.features(images)
        logits = self.sigma * F.linear(F.normalize(features, dim=1), F.normalize(self.rows, dim=1))
        torch.autograd.backward(F.cross_entropy(logits, labels))
        self.fast.step()
        self.fast.zero_grad()
        with torch.no_grad():
            gradient = [torch.zeros_like(tensor) for tensor in self.moved]
            for _ in range(queries):
                direction = [
                    torch.randint(0, 2, t.shape, device=t.device).mul_(2).sub_(1).to(t.dtype) for t in self.moved
                ]
                torch._foreach_add_(self.moved, direction, alpha=epsilon)
                up = self.loss(images, labels)
                torch._foreach_add_(self.moved, direction, alpha=-2 * epsilon)
                down = self.loss(images, labels)
                torch._foreach_add_(self.moved, direction, alpha=epsilon)
                torch._foreach_add_(gradient, direction, alpha=float(up - down) / (2 * epsilon * queries))
            for tensor, g in zip(self.moved, gradient, strict=True):
                tensor.grad = g
            torch.nn.utils.clip_grad_norm_(self.moved, 1.0)
            self.slow.step()
            self.slow.zero_grad()
            return float(self.loss(images, labels))

    def first_order(self, images: Tensor, labels: Tensor) -> float:
        """One step of adapter and classifier by gradients."""
        loss = self.loss(images, labels)
        torch.autograd.backward(loss)
        for optimizer in (self.slow, self.fast):
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())

"""Components of composed prefixes (CODA-Prompt): per block and task, prompts P, keys K and attentions A.

With a query q, component k has the weight α_k = cos(q ⊙ A_k, K_k); p = Σ_k α_k P_k, whose first half stands before the
block's keys and whose second half before its values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zofc.model.params import Moving, alike, frozen
from zofc.model.vit import Prefix

KINDS = ("prompts", "keys", "attentions")  # P, K, A


class Components(nn.Module):
    """The components of one block: for each kind, one tensor per task."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.shapes = {"prompts": (length, width), "keys": (width,), "attentions": (width,)}
        self.prompts, self.keys, self.attentions = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()

    def grow(self, count: int, generator: torch.Generator, device: torch.device | str = "cpu") -> None:
        """`count` new components of each kind: normal draws made orthogonal to all others, of norm one."""
        for kind, shape in self.shapes.items():
            own: nn.ParameterList = getattr(self, kind)
            fresh = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
            rows = torch.cat([*(part.detach().cpu().double() for part in own), fresh]).flatten(1)
            # Gram–Schmidt by QR: orthogonal also to earlier components that training has moved off their right angles
            basis, upper = torch.linalg.qr(rows.mT)
            new = (basis * upper.diagonal().sign()).mT[-count:].reshape(fresh.shape)
            own.append(frozen(new.float().to(device)))

    def gather(self, moving: Moving, kind: str) -> Tensor:
        """All tasks' components of a kind, flat: ([queries,] components, length · width or width)."""
        own: nn.ParameterList = getattr(self, kind)
        inner = len(self.shapes[kind])
        parts = [moving.get(f"{kind}.{task}", value).flatten(-inner) for task, value in enumerate(own)]
        leading = max((part.shape[:-2] for part in parts), key=len)  # only tasks that move have the query axis
        return torch.cat([part.expand(*leading, -1, -1) for part in parts], dim=-2)

    def prefix(self, moving: Moving, query: Tensor) -> Prefix:
        """Keys and values ([queries,] batch, length / 2, width) for queries (batch, width)."""
        p, k, a = (self.gather(moving, kind) for kind in KINDS)
        # cos(q ⊙ A_k, K_k) as two products, so that nothing of shape (batch, components, width) is made
        norms = (query**2 @ (a**2).mT).clamp_min(1e-24).sqrt() * k.norm(dim=-1).clamp_min(1e-12)[..., None, :]
        weights = query @ (a * k).mT / norms  # ([queries,] batch, components)
        composed = (weights @ p).unflatten(-1, self.shapes["prompts"])
        return Prefix(*composed.chunk(2, dim=-2))

    def penalty(self, moving: Moving, like: Tensor) -> Tensor:
        """How far the components are from orthonormal, () or one for each query."""
        total = like.new_zeros(())
        for kind in KINDS:
            rows = alike(self.gather(moving, kind), like)
            identity = torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
            total = total + ((rows @ rows.mT - identity) ** 2).mean((-2, -1))
        return total

"""DualGPM (InfLoRA, section 4.3): the input directions of a layer that old tasks use, learned from second moments.

A layer's inputs h enter as H = E[h hᵀ] (width, width); energies are the squared singular values of H. What old tasks
use is kept as an orthonormal basis of whichever is smaller, that space or its complement, the free one. All of it is
float64 on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Subspace:
    """Orthonormal columns that span what old tasks use ("remove"), or what they leave free ("retain")."""

    basis: Tensor  # (width, columns)
    free: bool = False

    @property
    def columns(self) -> int:
        """Dimension of the subspace."""
        return self.basis.shape[1]

    def within(self, h: Tensor) -> Tensor:
        """The part of the columns of `h` inside span(basis)."""
        return self.basis @ (self.basis.mT @ h)

    def leave_free(self, h: Tensor) -> Tensor:
        """The part of the columns of `h` in directions that no old task uses."""
        return self.within(h) if self.free else h - self.within(h)

    def smaller(self) -> Subspace:
        """Itself, or the free complement where the used space fills more than half of the width: the same projector."""
        if self.free or self.columns <= self.basis.shape[0] / 2:
            return self
        u = torch.linalg.svd(self.basis)[0]
        return Subspace(u[:, self.columns :], free=True)


def keep(old: Subspace | None, h: Tensor, threshold: float) -> Subspace:
    """The subspace after a task whose inputs have the second moment `h`, of whose energy it keeps `threshold`.

    The first task keeps the directions before the one that reaches the threshold, later tasks include it: the
    authors' rule. Where the first task fills more than half of the width, the authors' code calls the *used* basis
    free; here it becomes its complement, as after every other task.
    """
    h = h.cpu().double()
    total = h.square().sum()
    if old is None:
        u, s = _left(h)
        count = int(((s**2).cumsum(0) / total < threshold).sum())
        return Subspace(u[:, : max(count, 1)]).smaller()
    inside = old.within(h)
    rest = inside if old.free else h - inside  # what is still free
    u, s = _left(rest)
    # the share of the energy that is kept with 0, 1, 2, … of these directions; one of no energy is none
    kept = 1 - (rest.square().sum() - torch.cat([s.new_zeros(1), (s**2).cumsum(0)])) / total
    real = int((s > negligible(h)).sum())
    if not old.free:
        count = min(int((kept < threshold).sum()), real, len(h) - old.columns)
        return Subspace(torch.cat([old.basis, u[:, :count]], dim=1)).smaller()
    count = min(int((kept <= threshold).sum()), real, old.columns)
    taken = u[:, :count]
    basis = _left(old.basis - taken @ (taken.mT @ old.basis))[0]
    return Subspace(basis[:, : old.columns - count], free=True) if count else old


def design(h: Tensor, rank: int, old: Subspace | None) -> Tensor:
    """InfLoRA's A (rank, width): the leading directions of the new inputs that old tasks leave free, over √3.

    Where fewer than `rank` such directions are left, the other rows are zero: any vector there would reach old inputs.
    """
    h = h.cpu().double()
    u, s = _left(h if old is None else old.leave_free(h))
    rows = u[:, :rank].mT / math.sqrt(3)
    return rows * (s[:rank] > negligible(h))[:, None]


def negligible(h: Tensor) -> float:
    """A singular value that rounding alone can make."""
    return float(torch.linalg.matrix_norm(h)) * len(h) * torch.finfo(torch.float64).eps


def _left(h: Tensor) -> tuple[Tensor, Tensor]:
    u, s, _ = torch.linalg.svd(h, full_matrices=False)
    return u, s


class Subspaces(nn.Module):
    """One subspace per block as buffers whose shapes no data changes: a basis at rest has at most width / 2 columns."""

    basis: Tensor
    columns: Tensor
    free: Tensor

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.register_buffer("basis", torch.zeros(depth, width, width // 2, dtype=torch.float64))
        self.register_buffer("columns", torch.zeros(depth, dtype=torch.int64))
        self.register_buffer("free", torch.zeros(depth, dtype=torch.bool))

    def __getitem__(self, block: int) -> Subspace | None:
        """The block's subspace; none before the first task (a used one has a column at least)."""
        columns, free = int(self.columns[block]), bool(self.free[block])
        return Subspace(self.basis[block, :, :columns].cpu().double(), free) if columns or free else None

    def __setitem__(self, block: int, subspace: Subspace) -> None:
        self.basis[block].zero_()
        self.basis[block, :, : subspace.columns].copy_(subspace.basis)
        self.columns[block] = subspace.columns
        self.free[block] = subspace.free

"""Sums of features by class, in float64, from which class means follow: images and classes come and go exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zofc.model.params import Resizable


class ClassMeans(Resizable):
    """The sum of the features of each class and how many there are; on the CPU, since not every device has float64."""

    resizable = ("sums", "counts")
    sums: Tensor  # (classes, width)
    counts: Tensor  # (classes,)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(0, width, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(0, dtype=torch.int64))

    def grow(self, classes: int) -> None:
        """Make room for the classes of a new task."""
        self.sums = nn.functional.pad(self.sums, (0, 0, 0, classes))
        self.counts = nn.functional.pad(self.counts, (0, classes))

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Include images."""
        self.sums.index_add_(0, labels.cpu(), features.detach().cpu().double())
        self.counts += torch.bincount(labels.cpu(), minlength=len(self.counts))

    def rows(self) -> Tensor:
        """The mean feature of each class, (classes, width), zero for one without images."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    def remove(self, gone: Sequence[int]) -> None:
        """Drop these classes."""
        stay = torch.tensor([c for c in range(len(self.counts)) if c not in gone], dtype=torch.int64)
        self.sums, self.counts = self.sums[stay], self.counts[stay]

"""Classifiers that grow by one tensor of rows per task, so that the rows of old classes are tensors of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zofc.model.params import Moving, alike, frozen


def torch_bound(width: int) -> float:
    """Half-width of the uniform distribution from which `nn.Linear` draws weights and bias."""
    return 1 / math.sqrt(width)


class Head(nn.Module):
    """Rows per task and how they score features; arithmetic is done in the features' type and on their device."""

    def __init__(self, width: int, init: str = "uniform") -> None:
        super().__init__()
        self.width = width
        self.init = init  # the distribution of initial rows, as `head.init` names it
        self.rows = nn.ParameterList()

    def grow(self, classes: int, generator: torch.Generator, device: torch.device | str = "cpu") -> None:
        """Rows for `classes` new classes."""
        self.rows.append(frozen(self.initial_rows(classes, generator).to(device)))

    def initial_rows(self, classes: int, generator: torch.Generator) -> Tensor:
        """Rows (classes, width) drawn from the initial distribution."""
        rows = torch.empty(classes, self.width)
        match self.init:
            case "zeros":
                return rows.zero_()
            case "normal":  # LAE's authors
                return rows.normal_(0, 0.001, generator=generator)
            case "trunc-normal":  # timm's, whose bounds ±2 are a hundred deviations away
                return nn.init.trunc_normal_(rows, std=0.02, generator=generator)
        bound = torch_bound(self.width) if self.init == "torch" else self.bound
        return rows.uniform_(-bound, bound, generator=generator)

    @property
    def bound(self) -> float:
        """Half-width of the distribution `uniform` of initial rows."""
        raise TypeError(f"{type(self).__name__} does not say how its rows start")

    def moving_names(self, tasks: Sequence[int]) -> list[str]:
        """Names of the tensors that training the rows of `tasks` moves."""
        return [f"rows.{task}" for task in tasks]

    def logits(self, moving: Moving, features: Tensor, tasks: Sequence[int] | None = None) -> Tensor:
        """Scores (..., batch, classes) of the classes of `tasks`, of all by default."""
        return self.score(moving, features, range(len(self.rows)) if tasks is None else tasks)

    def score(self, moving: Moving, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """Scores (..., batch, classes of these tasks)."""
        raise TypeError(f"{type(self).__name__} does not say how it scores")

    def set_rows(self, task: int, rows: Tensor) -> None:
        """Replace the rows of a task."""
        self.rows[task].copy_(rows)

    def rows_at(self, means: Tensor, scale: float) -> Tensor:
        """Rows that start at class means (classes, width), where scores are `scale` times a cosine."""
        raise TypeError(f"{type(self).__name__} does not start at class means")

    def remove(self, gone: Sequence[int]) -> None:
        """Drop the rows of these classes; a task whose classes are all gone keeps a tensor without rows."""
        start = 0
        for task, rows in enumerate(self.rows):
            stay = [i for i in range(len(rows)) if start + i not in gone]
            start += len(rows)
            self.keep_rows(task, torch.tensor(stay, dtype=torch.int64, device=rows.device))

    def keep_rows(self, task: int, stay: Tensor) -> None:
        """Keep these rows of a task alone."""
        self.rows[task] = frozen(self.rows[task][stay])

    def gather(self, moving: Moving, name: str, tasks: Sequence[int], like: Tensor) -> Tensor:
        """One tensor over `tasks` from `name.<task>`, moving ones in place of our own."""
        own = getattr(self, name)
        parts = [alike(moving.get(f"{name}.{task}", own[task]), like) for task in tasks]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2 if name == "rows" else -1)


class CosineHead(Head):
    """σ · cos(f, W_c), σ learnable and shared by all tasks. With prototypes as rows it is the prototype classifier."""

    def __init__(self, width: int, init: str = "uniform") -> None:
        super().__init__(width, init)
        self.sigma = frozen(torch.ones(()))

    @property
    def bound(self) -> float:
        """Half-width of the distribution `uniform` of initial rows."""
        return torch_bound(self.width)

    def moving_names(self, tasks: Sequence[int]) -> list[str]:
        """The rows of these tasks, and the scale that all tasks share."""
        return [*super().moving_names(tasks), "sigma"]

    def score(self, moving: Moving, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """Cosine of features and rows, times the scale."""
        rows = F.normalize(self.gather(moving, "rows", tasks, features), dim=-1)  # (..., classes, width)
        sigma = alike(moving.get("sigma", self.sigma), features)
        return sigma[..., None, None] * (F.normalize(features, dim=-1) @ rows.mT)

    def rows_at(self, means: Tensor, scale: float) -> Tensor:
        """Their directions: the scale is a parameter of its own."""
        return F.normalize(means, dim=-1)

    def set_means(self, means: Tensor, known: Tensor) -> None:
        """Replace rows by class means (classes, width) where `known` (classes,)."""
        sizes = [len(own) for own in self.rows]
        for own, new, which in zip(self.rows, torch.split(means, sizes), torch.split(known, sizes), strict=True):
            own[which.to(own.device)] = new[which].to(own)

    def logits_left_out(self, features: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """Scores of the images whose class means the rows are, each as if it were not among the `counts` (classes,)
        images of its class: cos(f, n m − f) in place of cos(f, m)."""
        logits = self.logits({}, features)
        rest = counts[labels][:, None] * torch.cat(list(self.rows))[labels] - features
        own = self.sigma * F.cosine_similarity(features, rest, dim=-1)
        return logits.scatter(1, labels[:, None], own[:, None])


class LinearHead(Head):
    """f W^T + b."""

    def __init__(self, width: int, init: str = "uniform") -> None:
        super().__init__(width, init)
        self.bias = nn.ParameterList()

    @property
    def bound(self) -> float:
        """Half-width of the distribution `uniform` of initial rows."""
        return math.sqrt(3 / self.width)  # Kaiming-uniform for a linear unit

    def grow(self, classes: int, generator: torch.Generator, device: torch.device | str = "cpu") -> None:
        """Add rows and a bias, which is zero but for `torch`, for a new task."""
        super().grow(classes, generator, device)
        bias = torch.zeros(classes)
        if self.init == "torch":
            bias.uniform_(-torch_bound(self.width), torch_bound(self.width), generator=generator)
        self.bias.append(frozen(bias.to(device)))

    def moving_names(self, tasks: Sequence[int]) -> list[str]:
        """The rows and biases of these tasks."""
        return [*super().moving_names(tasks), *(f"bias.{task}" for task in tasks)]

    def rows_at(self, means: Tensor, scale: float) -> Tensor:
        """Their directions, of one length: with the bias at zero, scores of features about as long as the means are
        `scale` times a cosine."""
        directions: Tensor = F.normalize(means, dim=-1)
        return directions * (scale / float(means.norm(dim=-1).mean()))

    def keep_rows(self, task: int, stay: Tensor) -> None:
        """Keep these rows and biases of a task alone."""
        super().keep_rows(task, stay)
        self.bias[task] = frozen(self.bias[task][stay])

    def score(self, moving: Moving, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """Inner product of features and rows, plus the bias."""
        rows = self.gather(moving, "rows", tasks, features)
        bias = self.gather(moving, "bias", tasks, features)
        return features @ rows.mT + bias[..., None, :]


HEADS: dict[str, type[Head]] = {"cosine": CosineHead, "linear": LinearHead}

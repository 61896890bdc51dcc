"""Parameters that an optimizer may hold elsewhere: a *moving* mapping (name → tensor) stands in for a module's own.

A moving tensor may carry one leading query axis: `linear` and the heads evaluate all queries at once then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from zofc.seeds import Noise

Moving = Mapping[str, Tensor]


def frozen(value: Tensor) -> nn.Parameter:
    """A parameter that autograd does not see; a first-order step asks for gradients of its own leaves."""
    return nn.Parameter(value, requires_grad=False)


def alike(value: Tensor, like: Tensor) -> Tensor:
    """On the device and of the type of `like`; in this order, because not every device has every type."""
    return value.to(like.device).to(like.dtype)


def under(moving: Moving, prefix: str) -> dict[str, Tensor]:
    """The part of `moving` below `prefix.`, with the prefix taken off."""
    return {name[len(prefix) + 1 :]: value for name, value in moving.items() if name.startswith(prefix + ".")}


def taken(module: nn.Module, moving: Moving, prefix: str = "") -> dict[str, Tensor]:
    """A module's own parameters by name, those in `moving` (below `prefix`) in place of its own."""
    return {name: moving.get(prefix + name, value) for name, value in module.named_parameters()}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for tokens x ([queries,] batch, tokens, in); a weight (queries, out, in) gives each query its own.
    Computed in the type of x."""
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    queries, out = weight.shape[:2]
    stacked = x.dim() == 4  # (queries, batch, tokens, in) against (batch, tokens, in)
    rows = x.reshape(queries if stacked else 1, -1, x.shape[-1])
    y = rows @ weight.mT  # (queries, batch · tokens, out)
    if bias is not None:
        y = y + bias[:, None, :]
    return y.reshape(queries, *x.shape[1 if stacked else 0 : -1], out)


def dropout(x: Tensor, share: float, noise: Noise | None, layer: int) -> Tensor:
    """Dropout of (images, ...) with a named mask; without noise (evaluation, zeroth-order queries) x as it is."""
    if noise is None or share == 0:
        return x
    kept = noise.uniform(x.shape, layer, x.device) >= share
    return x * kept / (1 - share)


class Resizable(nn.Module):
    """A module with buffers whose shapes depend on the images that it has learned."""

    resizable: ClassVar[tuple[str, ...]] = ()

    def adapt_state(self, prefix: str, state: dict[str, Tensor]) -> None:
        """Take on the shapes of a saved state; what an earlier version did not save stays as it is."""
        for name in self.resizable:
            own: Tensor = getattr(self, name)
            setattr(self, name, own.new_zeros(state.setdefault(f"{prefix}{name}", own).shape))

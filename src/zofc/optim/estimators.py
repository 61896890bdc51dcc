"""Gradient estimators: the coefficients c_q along random directions Δ_q of the estimate ĝ = (1/Q) Σ_q c_q Δ_q.

Finite differences evaluate the loss at the center and at multiples of εΔ_q from it; the forward gradient is the
derivative along Δ_q itself, computed with dual numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from zofc.errors import RecipeError
from zofc.plugins import Registry


@dataclass(frozen=True)
class Estimator:
    """c_q = (base · L(φ) + Σ_i weights_i · L(φ + lengths_i ε Δ_q)) / ε; without lengths, the derivative itself."""

    lengths: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    base: float = 0.0  # weight of the loss at the center

    @property
    def exact(self) -> bool:
        """Whether it uses derivatives instead of differences of the loss."""
        return not self.lengths

    @property
    def reads_center(self) -> bool:
        """Whether the loss at the center is evaluated in any case."""
        return self.exact or self.base != 0

    def coefficients(self, center: Tensor | None, around: Tensor, epsilon: float) -> Tensor:
        """From losses at the center (...) and around it (queries, lengths, ...), the coefficients (queries, ...)."""
        total = sum((weight * around[:, i] for i, weight in enumerate(self.weights)), around.new_zeros(()))
        return (total + self.base * center if center is not None else total) / epsilon


ESTIMATORS: Registry[Estimator] = Registry("estimator", "estimator", "zofc.estimators")
EstimatorMaker = Callable[[], Estimator]


def estimator(name: str) -> Callable[[EstimatorMaker], EstimatorMaker]:
    """Register the estimator that a function returns."""

    def register(maker: EstimatorMaker) -> EstimatorMaker:
        ESTIMATORS.register(name, maker(), maker)
        return maker

    return register


@estimator("spsa")
def _spsa() -> Estimator:
    """Simultaneous perturbation (the paper's eq. 1)."""
    return Estimator(lengths=(1.0, -1.0), weights=(0.5, -0.5))


@estimator("one_sided")
def _one_sided() -> Estimator:
    return Estimator(lengths=(1.0,), weights=(1.0,), base=-1.0)


@estimator("forward_gradient")
def _forward_gradient() -> Estimator:
    return Estimator()


def get_estimator(name: str) -> Estimator:
    """The estimator of this name."""
    if not ESTIMATORS.knows(name):
        raise RecipeError(ESTIMATORS.suggest(name))
    return ESTIMATORS[name]

"""How groups of parameters move: directions, estimators, optimizers, and the placement that is one training step."""

from zofc.optim.estimators import ESTIMATORS, Estimator, estimator, get_estimator
from zofc.optim.placement import Placement, StepReport

__all__ = ["ESTIMATORS", "Estimator", "Placement", "StepReport", "estimator", "get_estimator"]

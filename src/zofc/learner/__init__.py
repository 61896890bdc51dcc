"""The Python API: a model that learns tasks and answers, opened from or saved to a run folder."""

from zofc.learner.answers import Answer, Evaluation, Prediction
from zofc.learner.given_images import AnyImage, GivenImages
from zofc.learner.learner import Learner, load

__all__ = ["Answer", "AnyImage", "Evaluation", "GivenImages", "Learner", "Prediction", "load"]

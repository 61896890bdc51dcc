"""Bundles of `zofc export` predict and learn with ONNX Runtime: no torch, no backward pass."""

from zofc_device.bundle import BundleError, DeviceError
from zofc_device.images import ImageError
from zofc_device.learner import Evaluation, Learner, Prediction, load

__version__ = "0.2.0"
__all__ = ["BundleError", "DeviceError", "Evaluation", "ImageError", "Learner", "Prediction", "load"]

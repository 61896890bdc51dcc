"""One short file per method; importing this room fills the registry."""

from zofc.methods import adapter, classifier, simplecil
from zofc.methods.base import METHODS, Method, check_placement, get_method, method

__all__ = [
    "METHODS",
    "Method",
    "adapter",
    "check_placement",
    "classifier",
    "get_method",
    "method",
    "simplecil",
]

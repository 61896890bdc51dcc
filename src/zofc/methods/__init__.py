"""One short file per method; importing this room imports them all, and each registers itself."""

from importlib import import_module
from pkgutil import iter_modules

from zofc.methods.adapter import AdapterClassifier
from zofc.methods.base import (
    METHODS,
    SECTIONS,
    Batches,
    Method,
    check_placement,
    complete_recipe,
    get_method,
    method,
    method_class,
)
from zofc.methods.classifier import Classifier
from zofc.methods.simplecil import SimpleCIL

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")

__all__ = [
    "METHODS",
    "SECTIONS",
    "AdapterClassifier",
    "Batches",
    "Classifier",
    "Method",
    "SimpleCIL",
    "check_placement",
    "complete_recipe",
    "get_method",
    "method",
    "method_class",
]

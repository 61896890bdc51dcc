"""One short file per method; importing this room imports them all, and each registers itself."""

from importlib import import_module
from pkgutil import iter_modules

from zofc.methods.base import METHODS, Method, check_placement, get_method, method

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")

__all__ = ["METHODS", "Method", "check_placement", "get_method", "method"]

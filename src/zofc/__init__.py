"""zofc: class-incremental learning on a frozen vision transformer, first-order or zeroth-order by choice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zofc.errors import ZofcError
    from zofc.learner import Answer, Evaluation, Learner, Prediction, load
    from zofc.recipe import Recipe, load_recipe

# Threads of torch that wait for one another should sleep, not spin: where other programs use the cores too, a step can
# take many times as long. The variable is read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0"
__all__ = ["Answer", "Evaluation", "Learner", "Prediction", "Recipe", "ZofcError", "__version__", "load", "load_recipe"]

_HOMES = {
    "Answer": "zofc.learner",
    "Evaluation": "zofc.learner",
    "Learner": "zofc.learner",
    "Prediction": "zofc.learner",
    "load": "zofc.learner",
    "ZofcError": "zofc.errors",
    "Recipe": "zofc.recipe",
    "load_recipe": "zofc.recipe",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `import zofc` and `zofc --help` stay quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zofc' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)

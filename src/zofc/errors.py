"""Errors that speak to the user: what was wrong, where it came from, what would be right.

The command line prints the message alone; from Python they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ZofcError(Exception):
    """Anything the user can mend."""

    exit_code = 2


class RecipeError(ZofcError):
    """A recipe that cannot be run: unknown key, wrong type, impossible value."""


class BudgetError(RecipeError):
    """A memory budget that no plan of a step keeps to."""


class DataError(ZofcError):
    """Images or labels that cannot be used."""


class BrokenImages(DataError):
    """Images of a data set that cannot be decoded, which a recipe may allow to be left out."""


class WeightsError(ZofcError):
    """Backbone weights that cannot be found or do not fit."""


class RunError(ZofcError):
    """A run folder that cannot be written, read or resumed."""


class PluginError(ZofcError):
    """A plug-in that is missing or cannot be loaded."""


class DivergedError(ZofcError):
    """The loss became infinite or not a number."""


class Interrupted(ZofcError):
    """The user asked to stop; what was done is saved."""

    exit_code = 130


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or the list of them when none is close."""
    names = sorted(str(k) for k in known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"; known: {', '.join(names[:10])}{more}" if names else ""

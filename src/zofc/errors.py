"""Errors that speak to the user: what was wrong, where it came from, what would be right.

The command line prints the message alone; from Python they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping


class ZofcError(Exception):
    """Anything the user can mend."""

    exit_code = 2


class RecipeError(ZofcError):
    """A recipe that cannot be run: unknown key, wrong type, impossible value."""


class BudgetError(RecipeError):
    """A memory budget that no plan of a step keeps to."""


class DataError(ZofcError):
    """Images or labels that cannot be used."""


class UnreadableImage(DataError):
    """An image that cannot be decoded."""

    def __init__(self, name: str, reason: str, remedy: str = "Replace or remove it.") -> None:
        super().__init__(name, reason, remedy)
        self.reason = reason

    def __str__(self) -> str:
        name, reason, remedy = self.args
        return f"cannot read image {name}: {reason}. {remedy}".rstrip()


class BrokenImages(DataError):
    """Images of a data set that cannot be decoded, which a recipe may allow to be left out."""

    def __init__(self, text: str, images: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.images = dict(images or {})  # all of them, with the reasons


class WeightsError(ZofcError):
    """Backbone weights that cannot be found or do not fit."""


class RunError(ZofcError):
    """A run folder that cannot be written, read or resumed."""


class BundleError(ZofcError):
    """A bundle that cannot be written, read or imported."""


class PluginError(ZofcError):
    """A plug-in that is missing or cannot be loaded."""


class RanksError(ZofcError):
    """Processes of one run that do not find each other, or have read different things."""


class RankStopped(RanksError):
    """A run of several processes that lost one of them, or whose states differ: it goes on from its checkpoint."""


class DivergedError(ZofcError):
    """The loss became infinite or not a number."""


class Interrupted(ZofcError):
    """The user asked to stop; what was done is saved. The message says how to continue the runs that are given."""

    exit_code = 130

    def __init__(self, what: str, *runs: object) -> None:
        super().__init__(f"{what}; {continue_command(*runs)}" if runs else what)
        self.what = what


def continue_command(*runs: object) -> str:
    """How to continue runs, by their folders."""
    return f"continue with: zofc run --resume {shlex.join(map(str, runs))}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or the list of them when none is close."""
    names = sorted(str(k) for k in known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"; known: {', '.join(names[:10])}{more}" if names else ""

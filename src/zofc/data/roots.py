"""Where data sets lie on this machine: `data.root`, else `$ZOFC_DATA`, else the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from zofc.data.source import SourceOptions
from zofc.errors import DataError
from zofc.paths import expand, find_existing


def data_roots(name: str, options: SourceOptions) -> list[Path]:
    """The folders in which a named data set is looked for, in order."""
    if options.root is not None:
        return [expand(options.root)]
    data = os.environ.get("ZOFC_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    roots = [Path(data, name)] if data else []
    return [expand(root) for root in (*roots, Path(cache, "zofc", name))]


def find_root(name: str, options: SourceOptions, get: str) -> Path:
    """The folder of a data set that we cannot download; `get` says what it is and where it comes from."""
    roots = data_roots(name, options)
    root = find_existing(roots, "data.root", DataError)
    if root is not None and root.is_dir():
        return root
    looked = " or ".join(map(str, roots))
    raise DataError(
        f"data.source: {name} is not in {looked}. Get {get} and put it in $ZOFC_DATA/{name}, "
        "or say where it is with data.root."
    )


def find_path(kind: str, argument: str, options: SourceOptions) -> Path:
    """The path after the colon (or data.root): absolute, in the working directory, or under $ZOFC_DATA."""
    if not argument and options.root is None:
        raise DataError(f"data.source: {kind} needs a path, as in {kind}:my_images")
    path = expand(argument or str(options.root))
    places = [path]
    if os.environ.get("ZOFC_DATA"):
        places.append(Path(os.environ["ZOFC_DATA"], path))  # an absolute path stays what it is
    if (place := find_existing(places, "data.source", DataError)) is not None:
        return place
    unset = "; give its path, or set $ZOFC_DATA to the folder that it lies in"
    looked = " and ".join(str(place.absolute()) for place in places)
    raise DataError(f"data.source: {kind}:{argument} does not exist: looked for {looked}{unset}")

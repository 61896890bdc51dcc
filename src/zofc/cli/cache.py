"""`zofc cache`: the decoded images that runs keep for each other."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from zofc.cli.application import app, out, say
from zofc.errors import RecipeError


@app.command()
def cache(
    action: Annotated[str, typer.Argument(metavar="[clear]", help="clear: remove all that no run is using.")] = "",
) -> None:
    """Show the decoded images that runs keep for each other, or remove them (`zofc cache clear`)."""
    from zofc.data.decode_cache import DecodeCache, cache_folder, cache_limit
    from zofc.report.grid import Grid
    from zofc.units import format_bytes

    decoded = DecodeCache(cache_folder(), cache_limit())
    if action == "clear":
        removed, kept = decoded.clear()
        say(f"Removed {removed} entries" + (f"; {kept} in use by a run were left." if kept else "."))
        return
    if action:
        raise RecipeError(f"zofc cache: expected 'clear' or nothing, got '{action}'")
    entries = decoded.entries()
    total = format_bytes(sum(entry.bytes for entry in entries))
    say(f"{decoded.folder}: {total} of {format_bytes(decoded.limit)} (set by ZOFC_CACHE and ZOFC_CACHE_LIMIT)")
    rows = []
    for entry in entries:
        used = "now" if entry.in_use else time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        rows.append((entry.label, f"{entry.images:,}", format_bytes(entry.bytes), used))
    if rows:
        out.print(Grid(("source", "images", "size", "last used"), tuple(rows)))

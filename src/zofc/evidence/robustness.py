"""The table of kills and hostile inputs, from the summary of the torture harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zofc.report.grid import Grid

ENDINGS = ("traceback", "hang", "memory", "crash")


def torture_table(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/torture.json`: what was tried of each kind, how often, and what was found."""
    body = []
    for row in rows:
        tried = (
            f"{row['kills']} kills, {row.get('finished', 0)} finished" if "kills" in row else f"{row['inputs']} inputs"
        )
        others = row["findings"] - sum(row[word] for word in ENDINGS)
        counts = (row["ok"], row["refused"], *(row[word] for word in ENDINGS), others)
        about = row["about"].replace("|", "\\|")
        body.append((row["kind"], about, str(row["tries"]), tried, *map(str, counts)))
    heads = (
        "Kind",
        "What",
        "Tries",
        "Of these",
        "Accepted",
        "Refused",
        "Traceback",
        "Hang",
        "Over 4 GiB",
        "Crash",
        "Other failures",
    )
    return Grid(heads, tuple(body), names=2)

"""The table of searched rates that recipes take theirs from (`rates=searched`), made of the committed searches."""

from __future__ import annotations

import json
from pathlib import Path

from zofc.errors import RunError
from zofc.evidence.lines import LINES, PER_IMAGE, GridLine
from zofc.evidence.rates import SearchedRates, best_rates
from zofc.evidence.rows import result_rows
from zofc.recipe.files import shipped_tables
from zofc.recipe.rates import PER_IMAGE_ENTRY, RATES_FILE, weights_name

RATES_PATH = Path("src", "zofc", "recipes", RATES_FILE)
HEADER = """\
# Learning rates of groups that were searched on a backbone, by family of recipes: `rates=searched` takes them.
# Written by `python -m zofc.evidence recipe-rates` from results/*/rates.json; do not edit.
"""


def rates_text(root: Path) -> str:
    """The table of all searches below `results`: the best rates of the lines that are recipes of a family."""
    return HEADER + "".join(map(_backbone_text, sorted((root / "results").glob("*/rates.json"))))


def _backbone_text(path: Path) -> str:
    known, about = best_rates(result_rows(path)), json.loads(path.read_text("utf-8"))
    changes = dict(change.split("=", 1) for change in about.get("changes", ()))
    if "backbone.name" not in changes:
        raise RunError(f"{path}: the search does not say on which backbone; search with backbone.name=NAME")
    backbone = weights_name(changes.pop("backbone.name"))
    how = ", ".join([about["setting"], *(f"{key}={value}" for key, value in changes.items())])
    lines = [f"{backbone}:  # {path.parent.name}/{path.name}: {how}"]
    for entry, rates in sorted(_entries(known).items()):
        lines.append(f"  {entry}: {{{', '.join(f'{group}: {rate:g}' for group, rate in sorted(rates.items()))}}}")
    return "\n".join(lines) + "\n"


def _entries(known: SearchedRates) -> SearchedRates:
    entries = SearchedRates()
    for name, line in LINES.items():
        title = LINES[line.rates_of or name].title
        if title in known and (line.scan or line.rates_of) and (entry := _entry(name, line)):
            entries[entry] = known[title]
    return entries


def _entry(name: str, line: GridLine) -> str | None:
    """What the table calls a line: the family whose recipes it trains unchanged, if there is one."""
    if line.changes == PER_IMAGE:
        return PER_IMAGE_ENTRY.format(line.family)
    if line.changes or (line.hybrid and name not in shipped_tables()):
        return None
    return name if name in shipped_tables() else line.family

"""One-dimensional searches for learning rates on a backbone, on the whole stream, both orders.

Each line is trained at each of its rates. First the lines that scan their classifier, then those whose classifier takes
the best of these. A file of results holds every row, so a search goes on where it stopped; the best rate of a line has
the highest accuracy on all classes, mean over the seeds that all its rates have. Search on images that are in no table
(for CIFAR-100, a folder with its training files alone: part of each class is then held out). A search that began on
such images goes on with no others: rows say which images they are of.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zofc.errors import RunError
from zofc.evidence.lines import LINES, line_recipe
from zofc.evidence.rows import result_rows
from zofc.report.grid import Grid
from zofc.studies.cells import Cell
from zofc.studies.grid import collect
from zofc.studies.places import HERE, Place
from zofc.training.resolve import build_stream
from zofc.units import NONE

SCAN_SETTING = "cifar100-inc10"
RateRow = Mapping[str, Any]
Choice = tuple[float, float]  # the scanned rate and the classifier's
SearchedRates = dict[str, dict[str, float]]  # rates of groups, by title of a line


def scan_cells(
    names: Sequence[str], rates: Sequence[float], seeds: Sequence[int], changes: Sequence[str], known: SearchedRates
) -> list[Cell]:
    """A cell for each line, rate and seed; `rates` replace those of every line."""
    cells = []
    for line in (LINES[name] for name in names):
        for rate in rates or line.rates:
            for seed in seeds:
                searched = known.get(LINES[line.head_of].title, {}) if line.head_of else {}  # else the recipe's stays
                head = {"head": searched["head"]} if "head" in searched else {}
                chosen = {**head, **dict.fromkeys(line.scan, rate)}
                recipe = line_recipe(line, SCAN_SETTING, seed, chosen, changes)
                labels: dict[str, str | int | float]
                labels = {"line": line.title, "rate": rate, "head": recipe.optimize["head"].lr, "seed": seed}
                cells.append(Cell(labels, recipe))
    return cells


def search_rates(
    names: Sequence[str],
    rates: Sequence[float],
    seeds: Sequence[int],
    changes: Sequence[str],
    out: Path,
    runs: Path,
    place: Place = HERE,
) -> Grid:
    """Train what is left of a search and keep its rows in `out`; the table of all that the file has."""
    about = {"setting": SCAN_SETTING, "changes": list(changes)}
    scanned = [name for name in names if LINES[name].scan]
    for stage in (True, False):
        batch = [name for name in scanned if ("head" in LINES[name].scan) is stage]
        if batch:
            rows = result_rows(out) if out.is_file() else []
            cells = scan_cells(batch, rates, seeds, changes, best_rates(rows))
            if rows and json.loads(out.read_text("utf-8"))["changes"] == about["changes"]:  # else collect refuses
                _check_images(rows, cells, runs, out)
            collect(cells, runs, out, about, place)
    return rates_table(result_rows(out))


def _check_images(rows: Sequence[RateRow], cells: Sequence[Cell], runs: Path, out: Path) -> None:
    """Refuse to train on other images than those of the rows so far."""
    finished = {row.get("run") for row in rows}
    left = [cell for cell in cells if cell.name(runs) not in finished]
    searched = next((row["data"] for row in rows if "data" in row), None)
    if left and searched and build_stream(left[0].recipe, lambda _: None).checksums != searched:
        raise RunError(
            f"{out}: its rows were searched on other images than those found now. If they are training images alone, "
            "set ZOFC_DATA to a folder of these without the test file, as docs/results/untested.md does"
        )


# -- what did best ---------------------------------------------------------------------------------------------------


def best_rates(rows: Sequence[RateRow]) -> SearchedRates:
    """The best rates of every line's groups, all searched on the same images."""
    if len({json.dumps(row["data"], sort_keys=True) for row in rows if "data" in row}) > 1:
        raise RunError("a search on different images: some rows have other checksums in `data` than others; remove "
                       "those that were tested on images of a table")  # fmt: skip
    lines, found = {line.title: line for line in LINES.values()}, SearchedRates()
    for title, choices in _by_choice(rows).items():
        ranking = _ranking(title, choices)
        if ranking:
            rate, head = ranking[0]
            found[title] = {"head": head, **dict.fromkeys(lines[title].scan, rate)}
    return found


def rates_of(name: str, known: SearchedRates) -> dict[str, float]:
    """What a line is trained with in a grid: its own searched rates, or those of the line it follows."""
    line = LINES[name]
    if not line.scan and not line.rates_of:
        return {}
    title = LINES[line.rates_of].title if line.rates_of else line.title
    if title not in known:
        raise RunError(f"--rates: the file has no finished row of '{title}'; search {line.rates_of or name} first")
    return known[title]


def _by_choice(rows: Sequence[RateRow]) -> dict[str, dict[Choice, dict[int, RateRow]]]:
    found: dict[str, dict[Choice, dict[int, RateRow]]] = {}
    for row in rows:
        found.setdefault(row["line"], {}).setdefault((row["rate"], row["head"]), {})[row["seed"]] = row
    return found


def _ranking(title: str, choices: Mapping[Choice, Mapping[int, RateRow]]) -> list[Choice]:
    """Best first, the smaller rate of equals; rates at which a seed failed are out."""
    sound = {choice: by_seed for choice, by_seed in choices.items() if not _failed(by_seed)}
    if not sound:
        return []
    shared = set.intersection(*map(set, sound.values()))
    if not shared:
        raise RunError(f"{title}: no seed was run at all of its rates; give the same --seeds for all of them")
    means = {c: statistics.fmean(by_seed[seed]["all_classes"] for seed in shared) for c, by_seed in sound.items()}
    return sorted(sound, key=lambda choice: (-means[choice], choice))


def _failed(by_seed: Mapping[int, RateRow]) -> bool:
    return any("failed" in row for row in by_seed.values())


# -- the table -------------------------------------------------------------------------------------------------------


def rates_table(rows: Sequence[RateRow]) -> Grid:
    """All classes / forgetting by rate, mean over seeds, and which rate is best."""
    columns = sorted({row["rate"] for row in rows})
    body = []
    order = [line.title for line in LINES.values()]
    for title, choices in sorted(_by_choice(rows).items(), key=lambda item: order.index(item[0])):
        ranking = _ranking(title, choices)
        best = ranking[0] if ranking else None
        cells = [_scores(choices, rate, best) for rate in columns]
        body.append((title, *cells, f"{best[0]:g}" if best else NONE, f"{best[1]:g}" if best else NONE,
                     _edge(best, choices)))  # fmt: skip
    headers = ("line", *(f"{rate:g}" for rate in columns), "best", "classifier's rate", "at the edge")
    note = "All classes % / forgetting in points at each learning rate, mean over seeds."
    return Grid(headers, tuple(body), notes=(note,))


def _scores(choices: Mapping[Choice, Mapping[int, RateRow]], rate: float, best: Choice | None) -> str:
    at_rate = {choice: by_seed for choice, by_seed in choices.items() if choice[0] == rate}
    if not at_rate:
        return ""
    by_seed = at_rate[best] if best in at_rate else next(iter(at_rate.values()))
    if _failed(by_seed):
        return "failed"
    accuracy, forgetting = (
        [row[key] for row in by_seed.values() if row[key] is not None] for key in ("all_classes", "forgetting")
    )
    lost = f"{statistics.fmean(forgetting):.1f}" if forgetting else NONE
    return f"{statistics.fmean(accuracy):.1f} / {lost}"


def _edge(best: Choice | None, choices: Mapping[Choice, object]) -> str:
    """Whether a better rate may lie outside the range."""
    tried = {rate for rate, _ in choices}
    if best is None or len(tried) < 2:
        return ""
    return {max(tried): "largest tried", min(tried): "smallest tried"}.get(best[0], "")

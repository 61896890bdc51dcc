"""The learning rates of the studies at small scale: a search on training images that are in no table.

    python scripts/rate_search.py short --out results/small_rates.json --families MAIN --seeds 1 2 3 --set SLICE
    python scripts/rate_search.py short --out results/small_rates.json --families ABLATED --set SLICE
    python scripts/rate_search.py long --out results/small_rates.json --seeds 1 2 --set SLICE
    python scripts/rate_search.py chosen --out results/small_rates.json

where the slice is `data.source=parquet:cifar100-held-out backbone.name=vit_small_p8_64.safetensors training.device=cuda
training.threads=1`: a folder with the first of CIFAR-100's three files of training images as its training set and the
second as its test set (the studies train on the third). The families of the main table (MAIN) had three seeds in the
short round, those of the ablations alone (ABLATED) one. Every family of recipes that a study trains is searched, with
the studies' own recipes, fast as most of these are run: their rates belong to another backbone and to many more steps.
The short round multiplies all rates by the same factor, then, with the best of these, the module's once more. It has
two tasks, and what moves too far does its harm over many: so the long round repeats the three best of each family on
ten tasks, and the best of them is taken.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zofc.recipe import Recipe, change_recipe, load_recipe, recipe_names
from zofc.studies.catalogue import STUDIES
from zofc.studies.grid import Cell, collect
from zofc.studies.scale import LIKE, get_scale

Pair = tuple[float, float]  # factors on the rates of the classifier and of the module
Rows = Sequence[Mapping[str, Any]]
FACTORS = (1.0, 10.0, 100.0, 1000.0)
MODULES = (0.1, 10.0, 100.0)  # on the module's beyond that
REPEATED = 3  # of a family, in the long round


@dataclass(frozen=True)
class Round:
    """The tasks that a pair of factors is tried on."""

    increment: int
    classes: int

    def recipe(self, family: str, *changes: str) -> Recipe:
        """A family's for CIFAR-100; an ablation's has tasks of five, and gets the round's."""
        name = f"{family}/cifar100-inc{self.increment}"
        if name in recipe_names():
            return load_recipe(name, changes)
        return load_recipe(f"{family}/cifar100-inc5", [*changes, f"data.increment={self.increment}"])


ROUNDS = {"short": Round(10, 20), "long": Round(5, 50)}


def families() -> list[str]:
    """Those that the studies train with rates of their own."""
    found = dict.fromkeys(line.family for study in STUDIES.values() for line in study.lines)
    return [name for name in found if name not in LIKE and ROUNDS["short"].recipe(name).optimize]


def make_recipe(family: str, name: str, pair: Pair, seed: int, settings: Sequence[str]) -> Recipe:
    """What the studies run at small scale, with these factors and on the classes of a round."""
    scale = replace(get_scale("small").faster(), own_rates={family: pair})
    recipe = scale.apply(ROUNDS[name].recipe(family, f"seed={seed}"))
    return change_recipe(recipe, [*settings, f"data.classes={ROUNDS[name].classes}"])


def grid(name: str, pairs: Mapping[str, Sequence[Pair]], seeds: Sequence[int], settings: Sequence[str]) -> list[Cell]:
    found = []
    for family, tried in pairs.items():
        for pair in tried:
            for seed in seeds:
                labels = {"round": name, "family": family, "head": pair[0], "module": pair[1], "seed": seed}
                found.append(Cell(labels, make_recipe(family, name, pair, seed, settings)))
    return found


def ranked(rows: Rows, name: str) -> dict[str, list[Pair]]:
    """The pairs that a round has tried for each family, by accuracy on all classes, mean over the seeds that all of
    them have; of equals the smaller first. Those with which a seed failed come last."""
    tried: dict[str, dict[Pair, dict[int, float]]] = {}
    for row in rows:
        if row["round"] == name:
            found = tried.setdefault(row["family"], {}).setdefault((row["head"], row["module"]), {})
            found[row["seed"]] = -math.inf if "failed" in row else row["all_classes"]
    return {family: _sorted(pairs) for family, pairs in tried.items()}


def _sorted(pairs: Mapping[Pair, Mapping[int, float]]) -> list[Pair]:
    sound = [found for found in pairs.values() if -math.inf not in found.values()]
    shared = set.intersection(*map(set, sound)) if sound else set()
    if sound and not shared:
        raise SystemExit(f"no seed was tried with all of {', '.join(map(str, pairs))}: give the seeds of all at once")

    def mean(found: Mapping[int, float]) -> float:
        return -math.inf if -math.inf in found.values() else statistics.fmean(found[seed] for seed in shared)

    return sorted(pairs, key=lambda pair: (-mean(pairs[pair]), pair))


def chosen(rows: Rows) -> dict[str, Pair]:
    """The best pair of the last round that a family was in."""
    return {family: pairs[0] for name in ROUNDS for family, pairs in ranked(rows, name).items()}


def stages(name: str, wanted: Sequence[str], out: Path) -> Iterator[dict[str, list[Pair]]]:
    """What a round tries one after the other, with what the file has by then."""
    if name == "long":
        yield {family: pairs[:REPEATED] for family, pairs in ranked(rows_of(out), "short").items() if family in wanted}
        return
    yield {family: [(factor, factor) for factor in FACTORS] for family in wanted}
    alike = [row for row in rows_of(out) if row["head"] == row["module"]]  # those that stand before this stage
    best = {family: pairs[0] for family, pairs in ranked(alike, "short").items()}
    apart = [family for family in wanted if len(ROUNDS[name].recipe(family).optimize) > 1]
    yield {family: [(best[family][0], best[family][0] * more) for more in MODULES] for family in apart}


def rows_of(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise SystemExit(f"{path}: no such file; run the short round first")
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*ROUNDS, "chosen"], help="the round to run, or print what was chosen")
    parser.add_argument("--out", type=Path, required=True, help="the result file of all rounds")
    parser.add_argument("--runs", type=Path, default=Path("runs/rates"), help="where run folders go")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of every pair of factors")
    parser.add_argument("--families", nargs="+", default=families(), choices=families(), metavar="FAMILY",
                        help="all by default")  # fmt: skip
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE", help="for every recipe")
    options = parser.parse_args()
    if options.what == "chosen":
        for family, pair in chosen(rows_of(options.out)).items():
            print(f"{family}: classifier × {pair[0]:g}, module × {pair[1]:g}")
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for pairs in stages(options.what, options.families, options.out):
        cells = grid(options.what, pairs, options.seeds, options.settings)
        rows = collect(cells, options.runs, options.out, {"settings": options.settings}, options.processes)
        print(f"{len(rows)} cells, {sum('failed' in row for row in rows)} failed")


if __name__ == "__main__":
    main()

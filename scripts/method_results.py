"""Every method under every placement with one budget: a grid of runs that can be stopped and continued.

    python scripts/method_results.py --out results/method_rates.json --factors 1 10 100 --seeds 1 --set SLICE
    python scripts/method_results.py --out results/methods.json --rates results/method_rates.json --fast --chunk 4 \\
        --epochs 5 --processes 5 --set SLICE
    python scripts/method_results.py --out results/methods.json --table

where a slice is, for example, `data.source=parquet:cifar100 backbone.name=vit_small_p8_64.safetensors data.classes=50
data.per_class=144 data.test_per_class=50`; a result file holds its own. A method's recipe for CIFAR-100 in tasks of ten
classes (preset `controlled`) says how it is trained. The epochs are the same for all, so that first order, zeroth order
and the hybrid (zeroth-order module, first-order classifier) can be compared; the learning rates, which belong to
another backbone and many more steps, are multiplied by whichever of the first command's factors was best there. For it,
`cifar100-held-out` is a folder with the first shard of the training images as its training set and the second as its
test set; the second command trains on the third shard and tests on the test images. Where the released code's
zeroth-order baseline differs, its variant stands beside the correct one. With `--fast`, zeroth-order steps take the
derivative along their directions (forward gradients, in bf16, as the preset `fast` does) instead of differences.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from demo_results import spread
from zofc.recipe import Recipe, load_recipe
from zofc.studies.grid import Cell, collect

SETTING = "cifar100-inc10"
PLAIN = ("simplecil", "ridge")
TRAINED = ("classifier", "adapter", "lae", "l2p", "coda", "aper", "ease", "inflora")
REGRESSED = (("adapter", "hybrid"), ("aper", "FO"))  # whose features a regression reads as well
VARIED = ("lae", "l2p", "coda", "ease", "inflora")  # whose released zeroth-order baseline is another method
NAMES = {
    "simplecil": "SimpleCIL", "ridge": "Ridge regression", "classifier": "Classifier",
    "adapter": "Adapter + classifier", "lae": "LAE", "l2p": "L2P", "coda": "CODA-Prompt", "aper": "APER",
    "ease": "EASE", "inflora": "InfLoRA",
}  # fmt: skip
LABELS = ("method", "placement", "variant", "readout")
SHOWN = ("all_classes", "average_incremental", "last_task", "forgetting")
Factors = Mapping[tuple[str, str], Sequence[float]]  # on the learning rates, by method and placement


def rows_of(method: str) -> Iterator[tuple[str, str, str]]:
    """(placement, variant, readout) of each of a method's rows."""
    if method in PLAIN:
        yield "none", "official", "rows"
        return
    for placement in ("FO", "ZO") if method == "classifier" else ("FO", "ZO", "hybrid"):
        yield placement, "official", "rows"
        if (method, placement) in REGRESSED:
            yield placement, "official", "ridge"
    if method in VARIED:
        yield "ZO", "zofc", "rows"


def grid(options: argparse.Namespace, factors: Factors) -> Iterator[Cell]:
    for seed in options.seeds:
        for method in options.methods:
            for placement, variant, readout in rows_of(method):
                if placement not in options.placements:
                    continue
                if len(options.factors) > 1 and (variant, readout) != ("official", "rows"):
                    continue  # variants and readouts take the rates of the rows they stand beside
                for factor in factors.get((method, placement), [1.0]):
                    labels = {"method": method, "placement": placement, "variant": variant, "readout": readout,
                              "factor": factor, "seed": seed}  # fmt: skip
                    yield Cell(labels, make_recipe(labels, options))


def make_recipe(labels: Mapping[str, Any], options: argparse.Namespace) -> Recipe:
    """A row's recipe: the hybrid's module moves as in the ZO row, its classifier as in the FO row."""
    method, placement = labels["method"], labels["placement"]
    family = {"none": method, "FO": f"{method}-fo"}.get(placement, f"{method}-zo")
    own = [] if method in PLAIN else ["preset=controlled"]
    changes = [f"seed={labels['seed']}", f"method.variant={labels['variant']}", *own, *options.settings]
    if labels["readout"] == "ridge":
        changes.append("method.readout=ridge")
    if options.fast:
        changes += ["training.precision=bf16"]
    recipe: Recipe = load_recipe(f"{family}/{SETTING}", changes)
    plans = dict(recipe.optimize)
    if placement == "hybrid":
        plans["head"] = load_recipe(f"{method}-fo/{SETTING}", own).optimize["head"]
    for name, plan in plans.items():
        update: dict[str, Any] = {"epochs": options.epochs, "start": 0, "chunk": options.chunk}
        update |= {"lr": plan.lr * labels["factor"], "min_lr": plan.min_lr * labels["factor"]}
        if options.fast and plan.order == "zeroth":
            update["estimator"] = "forward_gradient"
        plans[name] = plan.model_copy(update=update)
    name = "-".join([method, placement, labels["variant"], labels["readout"]])
    return recipe.model_copy(update={"optimize": plans, "name": name, "title": name, "paper": None})


def best_factors(rows: Sequence[Mapping[str, Any]]) -> Factors:
    """The factor with the highest accuracy on all classes, mean over seeds, the smaller of equals, for each method and
    placement; those with which a seed failed are out."""
    tried: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in rows:
        if (row["variant"], row["readout"]) == ("official", "rows"):
            found = tried.setdefault((row["method"], row["placement"]), {}).setdefault(row["factor"], [])
            found.append(-math.inf if "failed" in row else row["all_classes"])
    return {
        key: [max(factors, key=lambda factor, factors=factors: (statistics.fmean(factors[factor]), -factor))]  # type: ignore[misc]
        for key, factors in tried.items()
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean ± standard deviation over seeds, as Markdown, in the order of the grid."""
    lines = [
        "| method | placement | all classes % | average over time % | last task % | forgetting | memory of a step "
        "| time |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method in NAMES:
        for kind in rows_of(method):
            mine = [
                row
                for row in rows
                if (row["method"], row["placement"], row["variant"], row["readout"]) == (method, *kind)
            ]
            mine = [row for row in mine if "failed" not in row]
            if not mine:
                continue
            placement, variant, readout = kind
            shown = {"none": "–", "hybrid": "ZO, FO classifier"}.get(placement, placement)
            shown += ", as released" * (variant == "zofc") + ", ridge readout" * (readout == "ridge")
            cells = [spread([row[key] for row in mine]) for key in SHOWN]
            trained = bool(mine[0]["steps"])
            memory = f"{statistics.median(row['peak_memory'] for row in mine) / 2**20:.0f} MiB" if trained else "–"
            seconds = f"{statistics.mean(row['seconds']['train'] for row in mine):.0f} s" if trained else "–"
            lines.append(f"| {NAMES[method]} | {shown} | {' | '.join(cells)} | {memory} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--table", action="store_true", help="print the table of the result file and run nothing")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1994, 1995])
    parser.add_argument("--methods", nargs="+", default=[*PLAIN, *TRAINED])
    parser.add_argument("--placements", nargs="+", default=["none", "FO", "ZO", "hybrid"])
    parser.add_argument("--epochs", type=int, default=3, help="of every group of every method")
    parser.add_argument("--chunk", type=int, default=1, help="perturbed points in one pass; 1 needs the least memory")
    parser.add_argument("--fast", action="store_true", help="forward gradients in bf16 instead of differences")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0], help="on all learning rates, each tried")
    parser.add_argument("--rates", type=Path, help="a result file with several factors: the best of each is taken")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE", help="for every recipe")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())["rows"]))
        return
    pairs = [(method, placement) for method in TRAINED for placement in ("FO", "ZO", "hybrid")]
    factors: Factors = dict.fromkeys(pairs, options.factors)
    if options.rates:
        factors = best_factors(json.loads(options.rates.read_text())["rows"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    about = {key: getattr(options, key) for key in ("epochs", "chunk", "fast", "settings")}
    rows = collect(list(grid(options, factors)), options.runs, options.out, about, options.processes)
    print(f"{len(rows)} cells, {sum('failed' in row for row in rows)} failed")


if __name__ == "__main__":
    main()

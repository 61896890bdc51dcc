"""Every method under every placement with one budget: a grid of runs that can be stopped and continued.

    python scripts/method_results.py --out results/method_rates.json --factors 1 10 100 --seeds 1 --set SLICE
    python scripts/method_results.py --out results/methods.json --rates results/method_rates.json --set SLICE

where a slice is, for example, `data.source=parquet:cifar100 backbone.name=vit_small_p8_64.safetensors data.classes=50
data.per_class=50`. A method's recipe for CIFAR-100 in tasks of ten classes (preset `controlled`) says how it is
trained. The epochs are the same for all, so that first order, zeroth order and the hybrid (zeroth-order module,
first-order classifier) can be compared; the learning rates, which belong to another backbone and many more steps, are
multiplied by whichever of the first command's factors was best there. For that command `cifar100-held-out` is a folder
with the first shard of the training images as its training set and the second as its test set; the second command
trains on the third shard and tests on the test images. Where the released code's zeroth-order baseline differs, its
variant stands beside the correct one.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SETTING = "cifar100-inc10"
PLAIN = ("simplecil", "ridge")
TRAINED = ("classifier", "adapter", "lae", "l2p", "coda", "aper", "ease", "inflora")
REGRESSED = (("adapter", "hybrid"), ("aper", "FO"))  # whose features a regression reads as well
VARIED = ("lae", "l2p", "coda", "ease", "inflora")  # whose released zeroth-order baseline is another method
KEPT = (
    "all_classes", "final_average", "average_incremental", "last_task", "forgetting", "seconds", "peak_memory",
    "trainable_parameters", "steps",
)  # fmt: skip


class Cell(NamedTuple):
    """One run of the grid."""

    method: str
    placement: str  # FO, ZO, hybrid or none
    variant: str
    readout: str  # rows or ridge
    factor: float  # on the recipe's learning rates
    seed: int

    @property
    def recipe(self) -> str:
        """The recipe it starts from: the hybrid's module moves as in the ZO row, its classifier as in the FO row."""
        family = {"none": self.method, "FO": f"{self.method}-fo"}.get(self.placement, f"{self.method}-zo")
        return f"{family}/{SETTING}"


Factors = Mapping[tuple[str, str], Sequence[float]]  # by method and placement


def grid(seeds: Sequence[int], methods: Sequence[str], factors: Factors) -> list[Cell]:
    """Every cell, with the learning-rate factors that are asked for a method and placement."""
    return [
        Cell(method, placement, variant, readout, factor, seed)
        for seed in seeds
        for method in methods
        for placement, variant, readout in rows_of(method)
        for factor in factors.get((method, placement), [1.0])
    ]


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


def best_factors(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """The factor with the highest accuracy on all classes, for each method and placement."""
    own = [row for row in rows if row["variant"] == "official" and row["readout"] == "rows" and "failed" not in row]
    found: dict[tuple[str, str], list[float]] = {}
    for row in sorted(own, key=lambda row: row["all_classes"]):
        found[row["method"], row["placement"]] = [row["factor"]]
    return found


def make_recipe(cell: Cell, epochs: int, chunk: int, settings: Sequence[str]) -> Any:
    from zofc.recipe import Recipe, load_recipe

    own = [] if cell.method in PLAIN else ["preset=controlled"]
    changes = [f"seed={cell.seed}", f"method.variant={cell.variant}", *own, *settings]
    if cell.readout == "ridge":
        changes.append("method.readout=ridge")
    recipe: Recipe = load_recipe(cell.recipe, changes)
    plans = dict(recipe.optimize)
    if cell.placement == "hybrid":
        plans["head"] = load_recipe(f"{cell.method}-fo/{SETTING}", own).optimize["head"]
    for name, plan in plans.items():
        rates = {"lr": plan.lr * cell.factor, "min_lr": plan.min_lr * cell.factor}
        plans[name] = plan.model_copy(update={"epochs": epochs, "start": 0, "chunk": chunk, **rates})
    name = "-".join([cell.method, cell.placement, cell.variant, cell.readout])
    return recipe.model_copy(update={"optimize": plans, "name": name, "title": name, "paper": None})


def measure(job: tuple[Cell, int, int, Sequence[str], Path]) -> dict[str, Any]:
    from zofc.errors import ZofcError
    from zofc.training.runs import start_run, train

    cell, epochs, chunk, settings, runs = job
    gc.collect()  # the memory of a cell is its own
    try:
        folder = start_run(make_recipe(cell, epochs, chunk, settings), runs)
        metrics = train(folder)
    except ZofcError as error:  # one cell that fails is reported and does not stop the others
        print(f"{cell}: {error}", flush=True)
        return {**cell._asdict(), "failed": str(error)}
    made_with = folder.read_json("environment.json")
    print(f"{' '.join(map(str, cell))}: {metrics['all_classes']:.1f} / {metrics['forgetting']:.1f}", flush=True)
    kept = {key: metrics[key] for key in KEPT}
    versions = {key: made_with[key] for key in ("python", "torch", "timm", "device_name")}
    return {**cell._asdict(), **kept, "environment": versions, "backbone": made_with["backbone"]["checksum"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1994, 1995])
    parser.add_argument("--methods", nargs="+", default=[*PLAIN, *TRAINED])
    parser.add_argument("--epochs", type=int, default=3, help="of every group of every method")
    parser.add_argument("--chunk", type=int, default=1, help="perturbed points in one pass; 1 needs the least memory")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0], help="on all learning rates, each tried")
    parser.add_argument("--rates", type=Path, help="a result file with several factors: the best of each is taken")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE", help="for every recipe")
    options = parser.parse_args()
    pairs = [(method, placement) for method in TRAINED for placement in ("FO", "ZO", "hybrid")]
    factors = dict.fromkeys(pairs, options.factors)
    if options.rates:
        factors = best_factors(json.loads(options.rates.read_text())["rows"])
    cells = grid(options.seeds, options.methods, factors)
    if len(options.factors) > 1:  # variants and readouts take the rates of the rows they stand beside
        cells = [cell for cell in cells if (cell.variant, cell.readout) == ("official", "rows")]
    jobs = [(cell, options.epochs, options.chunk, options.settings, options.runs) for cell in cells]
    rows: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(measure, jobs, chunksize=1):
            rows.append(row)
            whole = {"epochs": options.epochs, "chunk": options.chunk, "settings": options.settings, "rows": rows}
            options.out.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"{len(rows)} cells, {sum('failed' in row for row in rows)} failed")


if __name__ == "__main__":
    main()

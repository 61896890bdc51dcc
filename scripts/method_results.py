"""Every method under every placement with one budget: a grid of runs that can be stopped and continued.

    python scripts/method_results.py --out results/methods.json --runs runs/methods \\
        --set data.source=parquet:cifar100 backbone.name=vit_small_p8_64.safetensors data.per_class=100 --epochs 3

A method's recipe for CIFAR-100 in tasks of ten classes says how it is trained; the epochs of every group are the same
for all, so that first order, zeroth order and the hybrid (zeroth-order module, first-order classifier) can be compared.
Where the released code's zeroth-order baseline differs, its variant stands beside the correct one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SETTING = "cifar100-inc10"
PLAIN = ("simplecil", "ridge")
TRAINED = ("adapter", "lae", "l2p", "coda", "aper", "ease", "inflora")
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
    seed: int

    @property
    def recipe(self) -> str:
        """The recipe it starts from: the hybrid's module moves as in the ZO row, its classifier as in the FO row."""
        family = {"none": self.method, "FO": f"{self.method}-fo"}.get(self.placement, f"{self.method}-zo")
        return f"{family}/{SETTING}"


def grid(seeds: Sequence[int], methods: Sequence[str]) -> Iterator[Cell]:
    for seed in seeds:
        for method in methods:
            if method in PLAIN:
                yield Cell(method, "none", "official", seed)
                continue
            for placement in ("FO", "ZO", "hybrid"):
                yield Cell(method, placement, "official", seed)
            if method in VARIED:
                yield Cell(method, "ZO", "zofc", seed)


def make_recipe(cell: Cell, epochs: int, settings: Sequence[str]) -> Any:
    from zofc.recipe import Recipe, load_recipe

    recipe: Recipe = load_recipe(cell.recipe, [f"seed={cell.seed}", f"method.variant={cell.variant}", *settings])
    plans = dict(recipe.optimize)
    if cell.placement == "hybrid":
        plans["head"] = load_recipe(f"{cell.method}-fo/{SETTING}").optimize["head"]
    plans = {name: plan.model_copy(update={"epochs": epochs, "start": 0}) for name, plan in plans.items()}
    name = f"{cell.method}-{cell.placement}-{cell.variant}"
    return recipe.model_copy(update={"optimize": plans, "name": name, "title": name, "paper": None})


def measure(job: tuple[Cell, int, Sequence[str], Path]) -> dict[str, Any]:
    from zofc.errors import ZofcError
    from zofc.training.runs import start_run, train

    cell, epochs, settings, runs = job
    try:
        folder = start_run(make_recipe(cell, epochs, settings), runs)
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
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE", help="for every recipe")
    options = parser.parse_args()
    jobs = [(cell, options.epochs, options.settings, options.runs) for cell in grid(options.seeds, options.methods)]
    rows: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(measure, jobs, chunksize=1):
            rows.append(row)
            whole = {"epochs": options.epochs, "settings": options.settings, "rows": rows}
            options.out.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"{len(rows)} cells, {sum('failed' in row for row in rows)} failed")


if __name__ == "__main__":
    main()

"""Do the estimators learn the same? ZO-FC with each of them on one slice, over several seeds, beside its anchors.

    python scripts/estimator_results.py --out results/estimators.json --set data.source=parquet:cifar100 \\
        backbone.name=vit_small_p8_64.safetensors data.per_class=96 data.test_per_class=50
    python scripts/estimator_results.py --out results/estimators.json --table

Two-point differences and one-sided ones in fp32, and forward gradients in bf16, are to agree within the spread of
their seeds. Adapters in the last blocks and a direction for each image are other estimates, whose steps cost less.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_results import spread
from zofc.recipe import load_recipe
from zofc.studies.grid import Cell, collect

FORWARD = ("training.precision=bf16", "optimize.peft.estimator=forward_gradient", "optimize.peft.chunk=4")
STACKED = ("optimize.peft.chunk=8",)
LATE = (*FORWARD, "peft.blocks=last 3")
SINGLE = ("optimize.peft.estimator=one_sided", "optimize.peft.per=image", "optimize.peft.queries=1")


@dataclass(frozen=True)
class Way:
    """One way to learn; `longer` stretches its epochs to the time of the way it is compared with."""

    title: str
    family: str
    changes: tuple[str, ...] = ()
    longer: float = 1.0


WAYS = {
    "simplecil": Way("SimpleCIL", "simplecil"),
    "classifier": Way("Classifier only", "classifier-fo"),
    "first": Way("First order, adapter + classifier", "adapter-fo"),
    "spsa": Way("ZO-FC, two-point, fp32", "zofc", STACKED),
    "one_sided": Way("ZO-FC, one-sided, fp32", "zofc", ("optimize.peft.estimator=one_sided", *STACKED)),
    "forward": Way("ZO-FC, forward gradient, bf16", "zofc", FORWARD),
    "late": Way("ZO-FC, forward gradient, bf16, last 3 blocks", "zofc", LATE),
    "late_longer": Way("… in the time of the first 5 blocks", "zofc", LATE, 1.5),
    "per_image": Way("ZO-FC, one-sided, fp32, a direction for each image, Q = 1", "zofc", SINGLE),
    "per_image_longer": Way("… in the time of two-point", "zofc", SINGLE, 2.5),
}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean ± standard deviation over seeds; the time is that of the quickest seed, which had the device to itself."""
    lines = [
        "| way | all classes % | average over time % | forgetting | training | seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, way in WAYS.items():
        mine = [row for row in rows if row["way"] == name and "failed" not in row]
        if mine:
            cells = [spread([row[key] for row in mine]) for key in ("all_classes", "average_incremental", "forgetting")]
            seconds = min(row["seconds"]["train"] for row in mine)
            lines.append(f"| {way.title} | {' | '.join(cells)} | {seconds:.0f} s | {len(mine)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the table of the result file and run nothing")
    parser.add_argument("--runs", type=Path, default=Path("runs/estimators"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1994, 1995])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--factor", type=float, default=10.0, help="on all learning rates")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())["rows"]))
        return
    cells = []
    for seed in options.seeds:
        for way in options.ways:
            chosen = WAYS[way]
            own = [] if chosen.family == "simplecil" else ["preset=controlled"]
            changes = [f"seed={seed}", *own, *chosen.changes, *options.settings]
            recipe = load_recipe(f"{chosen.family}/cifar100-inc10", changes)
            plans = {
                name: plan.model_copy(
                    update={
                        "epochs": round(chosen.longer * options.epochs),
                        "lr": plan.lr * options.factor,
                        "min_lr": plan.min_lr * options.factor,
                    }
                )
                for name, plan in recipe.optimize.items()
            }
            update = {"optimize": plans, "name": f"estimator-{way}", "title": chosen.title, "paper": None}
            cells.append(Cell({"way": way, "seed": seed}, recipe.model_copy(update=update)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    about = {key: getattr(options, key) for key in ("epochs", "factor", "settings")}
    rows = collect(cells, options.runs, options.out, about, options.processes)
    print(table(rows))


if __name__ == "__main__":
    main()

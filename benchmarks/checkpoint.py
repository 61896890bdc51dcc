"""What a checkpoint costs, and its share of the time at the default interval.

    python benchmarks/checkpoint.py --out results/checkpoint.json

Every recipe is grown to ten tasks of ten classes on ViT-B/16 with random weights, with the state of its optimizers, and
saved as a run does it. Statistics of a regression (one tensor of 64 or 512 MiB) are saved once as they are inside a
task, where they have not changed since the last checkpoint, and once changed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from zofc.methods import complete_recipe
from zofc.optim.placement import Placement
from zofc.recipe import Recipe, load_recipe
from zofc.runfolder import create_run
from zofc.runfolder.checkpoint import save_checkpoint
from zofc.runfolder.progress import Progress
from zofc.training.device import environment
from zofc.training.incremental_model import IncrementalModel
from zofc.training.pacing import AT_MOST_SECONDS, AT_MOST_SHARE
from zofc.units import MIB, format_bytes, format_duration

RECIPES = ("zofc/base", *(f"{name}-fo/base" for name in ("adapter", "lae", "l2p", "coda", "inflora", "ease")))
TASKS, CLASSES = 10, 10
SavedState = tuple[Mapping[str, Tensor], dict[str, Any]]


def grown(recipe: Recipe) -> tuple[SavedState, set[str]]:
    """The tensors of a method in its last task, the state of its optimizers, and the names of the tensors that move."""
    model = IncrementalModel(recipe, torch.device("cpu"))
    model.method.expect(TASKS)
    for task in range(TASKS):
        model.extend([f"class {task * CLASSES + number}" for number in range(CLASSES)])
    method = model.method
    plans = {name: method.plan(name, group) for name, group in recipe.optimize.items()}
    placement = Placement(method, method.groups(), plans, recipe.seed, TASKS - 1, False)
    for optimizer in placement.optimizers.values():
        optimizer.allocate_state()
    moving = {name for group in placement.groups.values() for name in group}
    return (model.state_dict(), placement.state()), moving


def states(names: list[str]) -> Iterator[tuple[str, Recipe, SavedState, set[str]]]:
    """Name, recipe and tensors of each row, and the names of those that change between two checkpoints."""
    for name in names:
        recipe = complete_recipe(load_recipe(name, ["backbone.name=vit_base_patch16_224", "backbone.pretrained=false"]))
        yield name, recipe, *grown(recipe)
    for size in (64, 512):
        tensors = {"head.gram": torch.rand(size * MIB // 8, dtype=torch.float64)}
        for changed in (False, True):
            row = f"statistics of {size} MiB, {'changed' if changed else 'unchanged'}"
            yield row, complete_recipe(load_recipe("ridge/base")), (tensors, {}), set(tensors) if changed else set()


def seconds_to_save(recipe: Recipe, state: SavedState, moving: set[str], repeats: int, folder: Path) -> list[float]:
    """Seconds of each checkpoint after the first, which writes everything."""
    tensors, optimizers = state
    seconds = []
    run = create_run(folder / "run", recipe)
    with run.locked():
        for number in range(repeats + 1):
            tensors = {name: value + 1 if name in moving else value for name, value in tensors.items()}
            clock = time.perf_counter()
            save_checkpoint(run, Progress(step=number), tensors, optimizers)
            seconds.append(time.perf_counter() - clock)
    return seconds[1:]


def main() -> None:
    """Measure every state and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary folder by default")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    table = Table("state", "size", "a checkpoint", "slowest", f"share of {AT_MOST_SECONDS:.0f} s")
    for name, recipe, state, moving in states(asked.recipes):
        size = sum(tensor.nbytes for tensor in state[0].values())
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            seconds = seconds_to_save(recipe, state, moving, asked.repeats, Path(folder))
        median = statistics.median(seconds)
        share = median / max(AT_MOST_SECONDS, median / AT_MOST_SHARE)
        rows.append({"state": name, "bytes": size, "seconds": seconds, "median": median, "share": share,
                     "interval": max(AT_MOST_SECONDS, median / AT_MOST_SHARE)})  # fmt: skip
        times = format_duration(median), format_duration(max(seconds))
        table.add_row(name, format_bytes(size), *times, f"{100 * share:.2f} %")
    Console().print(table)
    if asked.out:
        made_with = {**environment(torch.device("cpu")), "load": os.getloadavg()[0], "command": sys.argv[1:]}
        asked.out.write_text(json.dumps({"environment": made_with, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

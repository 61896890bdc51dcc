"""Measure the demonstrations over several seeds, and write the README's table from what was measured.

python scripts/demo_results.py --runs runs/demo --out results/demo.json    # run (resumes) and write
python scripts/demo_results.py --out results/demo.json --table             # print the table again
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEMOS = ("simplecil", "ridge", "classifier", "zofc", "first-order", "finetune", "joint")
SHOWN = ("all_classes", "last_task", "forgetting")


def measure(job: tuple[str, int, Path, int]) -> dict[str, Any]:
    """One demonstration with one seed (of everything: images, class order, directions)."""
    import torch

    from zofc.recipe import load_recipe
    from zofc.training.folder import RunFolder
    from zofc.training.runs import start_run, train

    name, seed, runs, threads = job
    torch.set_num_threads(threads)
    recipe = load_recipe(f"demo/{name}", [f"seed={seed}", "training.device=cpu", f"training.threads={threads}"])
    folder: RunFolder = start_run(recipe, runs)
    metrics = train(folder)
    made_with = folder.read_json("environment.json")
    print(f"{name} seed {seed}: all classes {metrics['all_classes']:.1f}", flush=True)
    kept = (*SHOWN, "final_average", "average_incremental", "peak_memory", "seconds", "trainable_parameters")
    return {
        "demo": name,
        "title": recipe.title,
        "seed": seed,
        **{key: metrics[key] for key in kept},
        "environment": {key: made_with[key] for key in ("python", "torch", "timm", "pillow", "device_name", "threads")},
        "data": made_with["data"],
        "backbone": made_with["backbone"]["checksum"],
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds, as Markdown."""
    lines = [
        "| demonstration | all classes % | last task % | forgetting | memory of a step | time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    fastest = min(_mean(rows, name, "train") for name in ("first-order",))
    for name in DEMOS:
        mine = [row for row in rows if row["demo"] == name]
        if not mine:
            continue
        cells = [spread([row[key] for row in mine]) for key in SHOWN]
        trained = bool(mine[0]["trainable_parameters"])
        memory = f"{mine[0]['peak_memory'] / 2**20:.0f} MiB" if trained else "–"
        ratio = f"{_mean(rows, name, 'train') / fastest:.1f} ×" if trained else "–"
        lines.append(f"| {mine[0]['title']} | {' | '.join(cells)} | {memory} | {ratio} |")
    return "\n".join(lines)


def _mean(rows: Sequence[dict[str, Any]], name: str, part: str) -> float:
    return statistics.mean(row["seconds"][part] for row in rows if row["demo"] == name)


def spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.mean(known):.1f} ± {statistics.stdev(known):.1f}" if len(known) > 1 else f"{known[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--table", action="store_true", help="only print the table of an existing file")
    parser.add_argument("--runs", type=Path, default=Path("runs/demo"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1994, 1995])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each process")
    options = parser.parse_args()
    if not options.table:
        jobs = [(name, seed, options.runs, options.threads) for seed in options.seeds for name in reversed(DEMOS)]
        jobs.sort(key=lambda job: job[0] != "zofc")  # the longest first
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            rows = list(pool.imap_unordered(measure, jobs, chunksize=1))
        rows.sort(key=lambda row: (DEMOS.index(row["demo"]), row["seed"]))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(json.loads(options.out.read_text())))


if __name__ == "__main__":
    main()

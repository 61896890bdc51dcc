"""What the processes of one run exchange in a step, and how many images a second they train, beside one process.

    python benchmarks/ranks.py --out results/ranks.json

Every process has 16 images of a step, so N processes make steps of 16 N images, as in `docs/scaling.md`. A round trains
each kind of step in one process, in two, and in four where there are as many cores (gloo, one thread each), one
directly after another, in an order that changes; times are compared within a round, and medians over rounds are
written. The model of that page is given the time of a step of one process, and the latency and bandwidth of sums of
two, as measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from zofc.evidence.scaling import Network, ScaledBackbone, StepKind, agreement_text, ranks_table
from zofc.model.backbone import load_backbone
from zofc.ranks import Ranks, join_ranks
from zofc.recipe import load_recipe
from zofc.runfolder import Run, write_atomic
from zofc.runfolder.identity import folder_for
from zofc.training.device import environment
from zofc.training.resolve import check_recipe
from zofc.training.runs import start_run, train

PROCESSES = (1, 2, 4)  # as far as each has a core
IMAGES, PER_CLASS, CLASSES, EPOCHS = 16, 32, 10, 3  # images of a process; the first epoch is not timed
SMALL, LARGE = 1, 2**20  # numbers of the sums that latency and bandwidth are measured with
KINDS = {
    "first": (StepKind("first order", 0, 0, 0), ["adapter-fo/base"]),
    "shared": (StepKind("ZO-FC, four shared directions", 0, 0, 4), ["zofc/base"]),
    "image": (
        StepKind("ZO-FC, a direction per image", 0, 0, IMAGES, per="image"),
        ["zofc/base", "optimize.peft.per=image", "optimize.peft.queries=1"],
    ),
    "throughout": (StepKind("zeroth order throughout, four directions", 0, 0, 4, head="zeroth"), ["adapter-zo/base"]),
}
SETTINGS = (
    "backbone.name=embedded", "data.source=glyphs:clean", f"data.classes={CLASSES}", f"data.increment={CLASSES}",
    f"data.per_class={PER_CLASS}", "data.test_per_class=2", "training.device=cpu", "training.threads=1",
    "training.loading=device", "training.check_adapter=false", "training.calibrate=false",
)  # fmt: skip
PURPOSES = ("coefficients", "gradient", "loss and hits", "stop requests")  # of what travels in every step
Measures = dict[str, Any]
Round = dict[str, dict[int, Measures]]  # by kind of step and number of processes


# -- a rank ----------------------------------------------------------------------------------------------------------


def train_as_rank(name: str, output: Path) -> None:
    """Train a kind of step as a rank; the first one writes times and bytes."""
    with join_ranks() as ranks:
        measures = train_kind(KINDS[name][1], output, ranks)
        sums = [seconds_of_sum(size, ranks) for size in (SMALL, LARGE)]
        if ranks.first:
            write_atomic(output / "measures.json", json.dumps({**measures, "sums": sums}))


def train_kind(words: list[str], folder: Path, ranks: Ranks) -> Measures:
    """Bytes of a step by purpose, and the median time of a step after the first epoch."""
    name, *changes = words
    epochs = [f"optimize.{group}.epochs={EPOCHS}" for group in load_recipe(name).optimize]
    batch = f"training.batch_size={IMAGES * ranks.size}"
    recipe = check_recipe(load_recipe(name, [*SETTINGS, *epochs, batch, *changes]))
    ranks.sent.clear()
    run = start_run(recipe, folder) if ranks.first else Run(folder_for(recipe, folder))
    train(run, ranks=ranks)
    if not ranks.first:
        return {}
    timed = [event for event in run.events if event["event"] == "epoch"][1:]
    steps = run.metrics["steps"]
    return {
        "bytes": {what: ranks.sent[what] / steps for what in PURPOSES},
        "seconds": median(event["seconds"] / event["steps"] for event in timed),
        "width": load_backbone(recipe.backbone).width,
    }


def seconds_of_sum(size: int, ranks: Ranks, repeats: int = 50) -> float:
    """The median time of a sum of so many numbers over all ranks."""
    numbers, times = torch.zeros(size), []
    for _ in range(repeats):
        clock = time.perf_counter()
        ranks.sum({"probe": numbers})
        times.append(time.perf_counter() - clock)
    return median(times)


# -- rounds ----------------------------------------------------------------------------------------------------------


def measure(name: str, processes: int) -> Measures:
    """Start so many ranks of this file for a kind of step and read what the first one wrote."""
    with tempfile.TemporaryDirectory() as folder:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *start, __file__, "--rank", name, folder], env=variables, check=True)
        measures: Measures = json.loads((Path(folder) / "measures.json").read_text("utf-8"))
        return measures


def measure_round(number: int, counts: tuple[int, ...]) -> Round:
    """All kinds in all numbers of processes; which number comes first changes from round to round."""
    turn = number % len(counts)
    return {name: {count: measure(name, count) for count in (*counts[turn:], *counts[:turn])} for name in KINDS}


def local_network(rounds: list[Round]) -> Network:
    """Latency and bandwidth by the model's own formula, for which two processes take 2 α + n / β."""
    small, large = (median(one[name][2]["sums"][which] for one in rounds for name in KINDS) for which in (0, 1))
    return Network("processes of one machine", small / 2, 4 * (LARGE - SMALL) / (large - small))


def make_rows(rounds: list[Round], counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each kind of step and number of processes."""
    network, rows = local_network(rounds), []
    for name, (kind, _) in KINDS.items():
        for processes in counts:
            times = [(one[name][1]["seconds"], one[name][processes]["seconds"]) for one in rounds]
            found = rounds[-1][name][processes]
            backbone, alone = ScaledBackbone("embedded", found["width"], 1.0), median(one for one, _ in times)
            expected = replace(kind, fixed=alone).speed_up(backbone, network, processes)
            ratios = [processes * one / several for one, several in times]
            rows.append({
                "name": name, "what": kind.title, "processes": processes, "bytes": found["bytes"],
                "bytes_of_model": kind.step_bytes(backbone, processes),
                "width": found["width"], "images": IMAGES * processes, "step_ms": 1e3 * median(t for _, t in times),
                "speed_up": median(ratios), "speed_up_rounds": ratios, "speed_up_of_model": expected,
            })  # fmt: skip
    return rows


def main() -> None:
    """Measure in rounds and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)  # kind and folder of a rank that this file started
    options = parser.parse_args()
    if options.rank:
        train_as_rank(options.rank[0], Path(options.rank[1]))
        return
    cores, made_with = len(os.sched_getaffinity(0)), environment(torch.device("cpu"))
    counts = tuple(count for count in PROCESSES if count <= cores)
    if len(counts) == 1:
        raise SystemExit("two processes need two cores")
    rounds = [measure_round(number, counts) for number in range(options.rounds)]
    about = {"cores": cores, "rounds": options.rounds, "network": asdict(local_network(rounds))}
    content = {**about, "rows": make_rows(rounds, counts), "environment": made_with}
    Console().print(ranks_table(content).markdown())
    print(agreement_text(content))
    if options.out:
        write_atomic(options.out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

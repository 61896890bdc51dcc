"""SIGKILL of one of two ranks at ten moments of a run: how soon the other one ends, how soon the run goes on, and
whether it becomes the run that was never killed.

    python benchmarks/kills.py --out results/rank_kills.json

The moments are drawn uniformly over the whole run, from the start of the processes to their end (seeded). torchrun
starts the processes again. What counts is equality; the times are those of this machine and whatever else ran on it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from zofc.evidence.scaling import kills_table
from zofc.runfolder import write_atomic
from zofc.training.device import environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from rank_kills import SEED, kill_moments, kill_one, whole_run

EPOCHS = 20  # of each of two tasks, three steps each
WORDS = [
    "zofc/base", "backbone.name=embedded", "data.source=glyphs:clean", "data.classes=4", "data.increment=2",
    "data.per_class=7", "data.test_per_class=20", "training.batch_size=5", "training.device=cpu",
    "training.loading=device", "training.threads=1", f"optimize.peft.epochs={EPOCHS}",
    f"optimize.head.epochs={EPOCHS}", "training.checkpoint_minutes=0.002",
]  # fmt: skip


def main() -> None:
    """Make all kills and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    made_with, rows = environment(torch.device("cpu")), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = whole_run(WORDS, folder)
        print(f"never killed: {whole.seconds:.1f} s", flush=True)
        for number, (share, rank) in enumerate(kill_moments()):
            rows.append(kill_one(WORDS, folder / f"kill{number}", whole, share, rank))
            print(rows[-1], flush=True)
    Console().print(kills_table(rows).markdown())
    if options.out:
        about = {"seed": SEED, "seconds_never_killed": whole.seconds, "cores": len(os.sched_getaffinity(0))}
        content = {**about, "rows": rows, "environment": made_with}
        write_atomic(options.out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

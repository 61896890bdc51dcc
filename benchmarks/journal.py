"""What a journal costs: bytes of runs of the embedded backbone, and how fast steps of ViT-B's adapter are replayed.

    python benchmarks/journal.py --out results/journal.json

Runs learn glyphs in two tasks on the CPU. The speed is that of `zofc replay` on one thread, from a journal of as many
steps with random shares, whose sizes are those of the paper's adapter on ViT-B (rank 5, five blocks).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from zofc.analysis.replay import Replay, RunReplay, summarize_journal
from zofc.evidence.scaling import BACKBONES, journal_table
from zofc.recipe import load_recipe
from zofc.runfolder import write_atomic
from zofc.runfolder.journal_records import SetStart, SetStep, TensorStart
from zofc.training.device import environment
from zofc.training.resolve import check_recipe
from zofc.training.runs import start_run, train

BATCH, STEPS = 48, 100
KINDS = {
    "shared": ("four shared directions", 4, ["zofc/base"]),
    "image": ("a direction per image", BATCH, ["zofc/base", "optimize.peft.per=image", "optimize.peft.queries=1"]),
}
SETTINGS = (
    "backbone.name=embedded", "data.source=glyphs:clean", "data.classes=8", "data.increment=4", "data.per_class=48",
    "data.test_per_class=2", f"training.batch_size={BATCH}", "training.device=cpu", "training.loading=device",
    "training.check_adapter=false", "training.calibrate=false", "optimize.peft.epochs=5", "optimize.head.epochs=5",
    "optimize.peft.estimator=forward_gradient",
)  # fmt: skip


def measure_run(words: list[str], folder: Path) -> dict[str, Any]:
    """The bytes of the journal of a run."""
    name, *changes = words
    run = start_run(check_recipe(load_recipe(name, [*SETTINGS, *changes])), folder)
    train(run)
    summary = summarize_journal(RunReplay(run.path).journal)
    return {"steps": summary.total, "bytes": summary.length, "bytes_per_step": summary.bytes_per_step}


def measure_replay(shares: int) -> float:
    """Steps a second of ViT-B's adapter."""
    plan = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0, "directions": "rademacher", "queries": shares,
            "per": "batch", "estimator": "spsa", "epsilon": 1e-3}  # fmt: skip
    size, rng = BACKBONES[0].adapter, np.random.default_rng(0)
    replay = Replay(torch.device("cpu"))
    tensor = TensorStart("peft", (size,), "float32", bytes(4 * size))
    replay.take(SetStart(0, "peft", ("peft",), plan, 0, ("task", 0, "peft"), "", (tensor,)))
    steps = [rng.standard_normal(shares, np.float32).tobytes() for _ in range(STEPS)]
    clock = time.perf_counter()
    for number, content in enumerate(steps):
        replay.take(SetStep(0, 0, number, True, 0.01, 1.0, content))
    return STEPS / (time.perf_counter() - clock)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (what, shares, words) in KINDS.items():
            found = measure_run(words, Path(folder))
            rows.append({"name": name, "what": what, **found, "replayed_per_second": measure_replay(shares)})
    Console().print(journal_table(rows).markdown())
    if options.out:
        content = {"rows": rows, "environment": environment(torch.device("cpu"))}
        write_atomic(options.out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

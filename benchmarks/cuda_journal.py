"""What only a GPU can show of journals and ranks, in about a minute: bits of replay, the cost of a record, NCCL.

    python benchmarks/cuda_journal.py --out results/cuda.json

- Runs with SGD, Adam, signs and a direction per image: replay on the same device gives the stored adapter to the bit,
  and replay on the CPU is near it (SGD: 1e-5 of the largest number).
- What recording a step costs: runs with and without a journal in turns.
- A run in a process group of one, whose sums pass through NCCL: its bytes by purpose, and the run of one process.

`--device cpu` does the same with gloo, where all of it is tested as well: it shows that the script works.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from zofc.analysis.replay import CLOSE, RunReplay, distance
from zofc.evidence.scaling import cuda_table
from zofc.model.backbone import load_backbone
from zofc.ranks import Ranks, join_group
from zofc.recipe import BackboneSettings, load_recipe
from zofc.runfolder import Run, write_atomic
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.training.device import environment
from zofc.training.resolve import check_recipe
from zofc.training.runs import start_run, train

KINDS = {
    "sgd": ("four shared directions, SGD", []),
    "adam": ("four shared directions, Adam", ["optimize.peft.optimizer=adam"]),
    "sign": ("four shared directions, signs", ["optimize.peft.optimizer=sign"]),
    "image": ("a direction per image, SGD", ["optimize.peft.per=image", "optimize.peft.queries=1"]),
}
SETTINGS = (
    "data.source=glyphs:clean", "data.classes=8", "data.increment=4", "data.per_class=24", "data.test_per_class=8",
    "training.batch_size=24", "training.check_adapter=false", "training.calibrate=false",
)  # fmt: skip


class Bench:
    """Small runs on a device, below a folder."""

    def __init__(self, device: str, backbone: str, epochs: int, folder: Path) -> None:
        groups = [f"optimize.{group}.epochs={epochs}" for group in ("peft", "head")]
        self.words = [f"training.device={device}", f"backbone.name={backbone}", *SETTINGS, *groups]
        depth = load_backbone(BackboneSettings(name=backbone)).depth
        self.words += [f"peft.blocks=first {min(5, depth)}"]
        self.device, self.folder, self.count = torch.device(device), folder, 0

    def train(self, changes: list[str], ranks: Ranks | None = None) -> Run:
        """A run of ZO-FC with these changes."""
        self.count += 1
        recipe = check_recipe(load_recipe("zofc/base", [*self.words, *changes]))
        run = start_run(recipe, self.folder / str(self.count))
        train(run, ranks=ranks)
        return run

    def replay(self, name: str) -> dict[str, Any]:
        """Whether the stored adapter of a run follows from its journal."""
        what, changes = KINDS[name]
        run = self.train(changes)
        here, on_cpu = RunReplay(run.path).check(), RunReplay(run.path, "cpu").check()
        assert here.farthest is not None and on_cpu.farthest is not None
        return {
            "name": name, "what": what, "steps": here.steps, "tensors": len(here.compared),
            "bit_equal": here.problem is None and here.farthest.distance == 0 and not here.differing,
            "cpu_distance": on_cpu.farthest.distance, "linear": on_cpu.linear,
            "within": on_cpu.farthest.distance <= CLOSE if on_cpu.linear else None,
        }  # fmt: skip

    def record(self, rounds: int) -> dict[str, Any]:
        """Milliseconds of a step with and without a journal, in turns; the first epoch of a run is not timed."""
        times: dict[str, list[float]] = {"true": [], "false": []}
        for _ in range(rounds):
            for kept, found in times.items():
                events = self.train([f"training.journal={kept}"]).events
                epochs = [event for event in events if event["event"] == "epoch"][1:]
                found.append(1e3 * median(event["seconds"] / event["steps"] for event in epochs))
        pairs = zip(times["true"], times["false"], strict=True)
        return {
            "with": times["true"], "without": times["false"], "step_ms": median(times["false"]),
            "cost_ms": median(one - other for one, other in pairs),
        }  # fmt: skip

    def group_of_one(self) -> dict[str, Any]:
        """A run whose sums pass through NCCL, beside one that sums nothing."""
        alone = self.train([])
        with join_group(HashStore()) as ranks:
            grouped = self.train([], ranks)
            sent = dict(ranks.sent)
        own, other = tensors_of(alone), tensors_of(grouped)
        return {
            "backend": "nccl" if self.device.type == "cuda" else "gloo", "steps": grouped.metrics["steps"],
            "bytes": sent, "distance": max(distance(value, own[name]) for name, value in other.items()),
            "matrix_equal": grouped.matrix == alone.matrix,
        }  # fmt: skip


def tensors_of(run: Run) -> dict[str, Tensor]:
    """What a run has learned."""
    checkpoint = load_checkpoint(run)
    assert checkpoint is not None
    return {name: value for name, value in checkpoint.method.items() if value.is_floating_point() and value.numel()}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device is at hand; --device cpu shows that the script works")
    made_with, clock = environment(torch.device(options.device)), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.device, options.backbone, options.epochs, Path(folder))
        content: dict[str, Any] = {"rows": [bench.replay(name) for name in KINDS]}
        content |= {"recording": bench.record(options.rounds), "group_of_one": bench.group_of_one()}
    content |= {"seconds": time.perf_counter() - clock, "environment": made_with}
    Console().print(cuda_table(content).markdown())
    if options.out:
        write_atomic(options.out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

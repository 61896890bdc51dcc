"""Where the time of a task goes: waiting for images, steps, evaluation or saving, in the trainer as it is.

    python benchmarks/epoch.py zofc/cifar100-inc10 training.device=cuda --out results/epoch.json
    python benchmarks/epoch.py demo/zofc training.device=cpu --epochs 2

The first task is trained for one epoch that warms up and is not counted (it also measures memory and records graphs),
then for those that are; every group moves in all of them. Then it is evaluated and saved. The device has finished
whatever it was given whenever the clock is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from rich.console import Console
from rich.table import Table

from zofc.data.loading import Batch, Loader
from zofc.errors import Interrupted, RunError, ZofcError
from zofc.recipe import Recipe, load_recipe
from zofc.runfolder.events import Event
from zofc.training.device import environment, pick_device
from zofc.training.events import StepStatus
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import AnyStream
from zofc.training.runs import start_run
from zofc.training.signals import StopRequest
from zofc.training.task import TaskTraining
from zofc.training.trainer import Trainer

ENOUGH = 0.9  # of an epoch in steps: nothing else is worth speeding up then
P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Adds up seconds by what they went to; as a listener it learns where epochs end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.marks: list[float] = []  # the end of every epoch
        self.epochs = self.spent.copy()  # what was spent within those that count

    def now(self) -> float:
        """The time at which all work so far is done."""
        if self.device.type == "cuda":  # only what the steps wait for: the next batch may be in the making beside it
            torch.cuda.current_stream(self.device).synchronize()
        return time.perf_counter()

    def timed(self, what: str, work: Callable[P, R]) -> Callable[P, R]:
        """The same function, with its time added up under a name."""

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            clock = self.now()
            try:
                return work(*args, **kwargs)
            finally:
                self.spent[what] += self.now() - clock

        return run

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, with the time of waiting added up."""
        ask = self.timed("loading", lambda: next(batches, None))
        while (batch := ask()) is not None:
            yield batch

    def event(self, event: Event) -> None:
        """Keep the times of each epoch, the first one left out."""
        if event["event"] == "epoch":
            self.marks.append(self.now())
            if len(self.marks) == 1:
                self.spent.clear()
            self.epochs = self.spent.copy()
        if event["event"] == "task_trained" and self.marks:
            self.spent["end of task"] += self.now() - self.marks[-1]

    def step(self, status: StepStatus) -> None:
        """Nothing: epochs are timed, not steps."""

    def close(self) -> None:
        """Nothing is open."""


class OneTask(Trainer):
    """The trainer, stopped after its first task, with a watch on what it does."""

    watch: Stopwatch
    loader: Loader

    def _learn(self, training: TaskTraining, optimizers: dict[str, Any] | None, asked: StopRequest) -> None:
        self.loader, placement = training.loader, training.placement
        if not placement.epochs:
            raise RunError(f"{self.recipe.name}: nothing is trained step by step in the first task of this recipe")
        serve = self.loader.train_batches
        self.loader.train_batches = lambda *args, **kwargs: self.watch.batches(serve(*args, **kwargs))  # type: ignore[method-assign]
        placement.step = self.watch.timed("steps", placement.step)  # type: ignore[method-assign]
        super()._learn(training, optimizers, asked)
        asked.stop = True

    def _evaluate(self, model: IncrementalModel, stream: AnyStream) -> None:
        self.watch.timed("evaluation", super()._evaluate)(model, stream)

    def _save(self, model: IncrementalModel, training: TaskTraining | None) -> None:
        self.watch.timed("saving", super()._save)(model, training)

    def _write_results(self, stream: AnyStream, model: IncrementalModel) -> None:
        self.watch.timed("saving", super()._write_results)(stream, model)


def measure(recipe: Recipe) -> dict[str, Any]:
    """Train the first task of a recipe with a watch in hand."""
    device = pick_device(recipe.training.device)
    with tempfile.TemporaryDirectory() as runs:
        watch = Stopwatch(device)
        trainer = OneTask(start_run(recipe, Path(runs)), [watch])
        trainer.watch = watch
        try:
            trainer.run()
        except Interrupted:  # as asked for, after the first task
            if not trainer.progress.done:
                raise
    loader, epochs = trainer.loader, len(watch.marks) - 1
    seconds = watch.marks[-1] - watch.marks[0]
    parts = {"loading": watch.epochs["loading"], "steps": watch.epochs["steps"], "saving": watch.epochs["saving"]}
    parts["the loop itself"] = seconds - sum(parts.values())
    after = {key: watch.spent[key] - watch.epochs[key] for key in ("end of task", "evaluation", "saving")}
    images = epochs * len(loader.image_set)
    return {
        "epochs": epochs,
        "images": len(loader.image_set),
        "test_images": sum(trainer.progress.counts),
        "steps": epochs * loader.steps(recipe.training.batch_size),
        "batch_size": recipe.training.batch_size,
        "image_size": loader.train_view.size,
        "precision": recipe.training.precision,
        "loading": loader.path,
        "workers": loader.workers,
        "streamed": loader.stream,
        "seconds": {"epochs": seconds, "in epochs": parts, "after them": after},
        "images_per_second": images / seconds,
        "images_per_second_end_to_end": images / (seconds + sum(after.values())),
        "share_in_steps": parts["steps"] / seconds,
        "peak_memory": max(trainer.progress.peak_memory, default=0),
        "environment": environment(device),
    }


def verdict(found: dict[str, Any]) -> str:
    """The bottleneck in a sentence."""
    whole, parts = found["seconds"]["epochs"], found["seconds"]["in epochs"]
    if parts["steps"] >= ENOUGH * whole:
        return f"steps: {parts['steps'] / whole:.0%} of an epoch; to be faster, steps would have to be"
    worst = max((part for part in parts if part != "steps"), key=lambda part: parts[part])
    said = f"{worst}: {parts[worst] / whole:.0%} of an epoch, beside {parts['steps'] / whole:.0%} in steps"
    if worst != "loading":
        return said
    if found["loading"] == "device":
        return f"{said}; the device that trains also cuts the images: try training.loading=workers"
    cores = os.cpu_count() or 1
    return (
        f"{said}; use training.loading=device if the images are of one size and fit in memory, or more workers "
        f"(training.workers={found['workers']} on {cores} cores)"
    )


def table(found: dict[str, Any]) -> Table:
    """The result for a reader."""
    epochs, after = found["seconds"]["in epochs"], found["seconds"]["after them"]
    whole = found["seconds"]["epochs"]
    everything = whole + sum(after.values())
    shown = Table(
        "", "seconds", "of an epoch", "of all", title=f"{found['recipe']}, task 1, {found['epochs']} epoch(s)"
    )
    for name, seconds in epochs.items():
        shown.add_row(name, f"{seconds:.3f}", f"{seconds / whole:.1%}", f"{seconds / everything:.1%}")
    shown.add_section()
    for name, seconds in after.items():
        shown.add_row(
            f"{name} (after)" if name in epochs else name, f"{seconds:.3f}", "", f"{seconds / everything:.1%}"
        )
    return shown


def _portable(override: str) -> str:
    """An override without the folders of this machine."""
    key, _, value = override.partition("=")
    kind, colon, path = value.rpartition(":")
    return f"{key}={kind}{colon}{Path(path).name if Path(path).is_absolute() else path}"


def main() -> None:
    """Time the first task of a recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe by name or file")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="dotted overrides")
    parser.add_argument("--epochs", type=int, default=1, help="epochs that count (default 1)")
    parser.add_argument("--out", type=Path, help="also write the result as JSON")
    options = parser.parse_intermixed_args()
    if options.epochs < 1:
        parser.error("--epochs: expected at least 1")
    console = Console()
    try:
        groups = load_recipe(options.recipe, options.overrides).optimize
        length = [
            f"optimize.{name}.{setting}" for name in groups for setting in (f"epochs={1 + options.epochs}", "start=0")
        ]
        recipe = load_recipe(options.recipe, [*options.overrides, *length])
        found = {"recipe": recipe.name, "overrides": [_portable(o) for o in options.overrides], **measure(recipe)}
    except ZofcError as error:
        sys.exit(f"{error}")
    console.print(table(found))
    console.print(
        f"{found['images_per_second']:.0f} images/s in an epoch, "
        f"{found['images_per_second_end_to_end']:.0f} end to end; "
        f"{found['share_in_steps']:.1%} of an epoch in steps",
        highlight=False,
    )
    console.print(verdict(found), highlight=False)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""One training step of ZO-FC and of first order, in every way we have, beside the published one; all in one process.

    python benchmarks/step.py --out results/step.json                      # ViT-B/16, batch 48, Q = 4
    python benchmarks/step.py --device cpu --batch 8 --rows published spsa one_sided forward

Prints, for each way: milliseconds of a step (median), the peak of allocated memory, how many times faster it is than
the published step, its time over that of first order in the same precision, the correlation of its coefficients with
those of a float64 reference, and its executed matrix operations in forwards of the model (F). The weights are random:
neither time nor memory depends on them, the correlation may.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from published import Published
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from zofc.evidence.tables import steps_table
from zofc.methods import get_method
from zofc.methods.base import Method
from zofc.model.backbone import PRECISIONS, Backbone, load_backbone
from zofc.optim import kernels
from zofc.optim.evaluation import coefficients, evaluate_features
from zofc.optim.placement import Placement
from zofc.recipe import BackboneSettings, Group, PeftSettings, Recipe, TrainingSettings
from zofc.training.device import environment, set_up
from zofc.training.memory import measure_peak

SEED = 1993


@dataclass(frozen=True)
class Way:
    """One way to make a step."""

    what: str
    estimator: str | None = None  # None: first order
    precision: str = "fp32"
    blocks: str = "first 5"
    chunk: int = 99
    micro_batch: int | None = None
    per: Literal["batch", "image"] = "batch"
    graphs: bool = True
    fused: bool = True
    recompute: bool = False
    compiled: bool = False
    stream: bool = False  # images stay on the host, a micro-batch at a time is on the device


WAYS: dict[str, Way] = {
    "spsa-sequential": Way("two-point, one by one, fp32", "spsa", chunk=1),
    "spsa": Way("two-point, stacked, fp32", "spsa"),
    "one_sided": Way("one-sided, stacked, fp32", "one_sided"),
    "forward-fp32": Way("forward gradient, fp32", "forward_gradient"),
    "first-fp32": Way("first order, ours, fp32"),
    "spsa-bf16": Way("two-point, stacked, bf16", "spsa", "bf16"),
    "forward-plain": Way("forward gradient, bf16, no fused kernels", "forward_gradient", "bf16", fused=False),
    "forward-eager": Way("forward gradient, bf16, no graph", "forward_gradient", "bf16", graphs=False),
    "forward": Way("forward gradient, bf16", "forward_gradient", "bf16"),
    "first-eager": Way("first order, ours, bf16, no graph", precision="bf16", graphs=False),
    "first": Way("first order, ours, bf16", precision="bf16"),
    "first-compiled": Way("first order, ours, bf16, compiled", precision="bf16", compiled=True),
    "late-3": Way("forward gradient, bf16, last 3 blocks", "forward_gradient", "bf16", "last 3"),
    "late-2": Way("forward gradient, bf16, last 2 blocks", "forward_gradient", "bf16", "last 2"),
    "late-3-spsa": Way("two-point, fp32, last 3 blocks", "spsa", blocks="last 3"),
    "image": Way("forward gradient, bf16, a direction per image, Q = 1", "forward_gradient", "bf16", per="image"),
    "image-24": Way(
        "forward gradient, bf16, a direction per image, Q = 1, 24 images at a time", "forward_gradient", "bf16",
        micro_batch=24, per="image",
    ),
    "image-late-3": Way(
        "forward gradient, bf16, a direction per image, Q = 1, last 3 blocks", "forward_gradient", "bf16", "last 3",
        per="image",
    ),
    "image-small": Way(
        "forward gradient, bf16, a direction per image, Q = 1, small", "forward_gradient", "bf16", micro_batch=8,
        per="image", stream=True,
    ),
    "image-spsa": Way("two-point, fp32, a direction per image, Q = 1", "spsa", per="image"),
    "per-image": Way("one-sided, fp32, a direction per image, Q = 1", "one_sided", per="image"),
    "least-fp32": Way("two-point, fp32, least memory", "spsa", chunk=1, micro_batch=1, graphs=False, stream=True),
    "least-bf16": Way(
        "forward gradient, bf16, least memory", "forward_gradient", "bf16", chunk=1, micro_batch=1, graphs=False,
        stream=True,
    ),
    "small-bf16": Way(
        "forward gradient, bf16, small", "forward_gradient", "bf16", chunk=4, micro_batch=8, stream=True
    ),
    "first-small-bf16": Way("first order, bf16, small", precision="bf16", micro_batch=8, recompute=True, stream=True),
    "first-least": Way(
        "first order, fp32, least memory", micro_batch=1, graphs=False, recompute=True, stream=True
    ),
    "first-least-bf16": Way(
        "first order, bf16, least memory", precision="bf16", micro_batch=1, graphs=False, recompute=True, stream=True
    ),
}  # fmt: skip


@dataclass
class Row:
    """One measured way to make a step."""

    name: str
    what: str
    milliseconds: float
    peak_bytes: int
    spread: float  # of the middle half of the repeats, milliseconds
    correlation: float | None = None
    forwards: float | None = None  # matrix operations over those of one plain forward of the batch
    details: dict[str, Any] = field(default_factory=dict)


class Bench:
    """A backbone and a batch on which every way is measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        memory = "auto" if options.small_workspace else None  # cuBLAS then gets less than a megabyte for itself
        set_up(self.device, TrainingSettings(deterministic=False, memory=memory))
        self.blank = load_backbone(BackboneSettings(name=options.backbone, pretrained=False), SEED)
        g = torch.Generator().manual_seed(0)
        size = self.blank.image_size
        self.images = torch.randn(options.batch, 3, size, size, generator=g)
        self.labels = torch.randint(0, options.classes, (options.batch,), generator=g)
        self.before = 0  # bytes that are there before a way begins
        self.references: dict[tuple[str, str, str], Tensor] = {}

    def backbone(self, precision: str, recompute: bool = False, compiled: bool = False) -> Backbone:
        """A copy of the backbone in a precision."""
        vit = copy.deepcopy(self.blank.vit).to(PRECISIONS[precision]).to(self.device)
        return replace(self.blank, vit=vit, recompute=recompute, compiled=compiled)

    def method(self, way: Way, backbone: Backbone) -> Method:
        """The adapter method away from its initial values."""
        recipe = Recipe(seed=SEED, peft=PeftSettings(blocks=way.blocks, rank=5, scale=0.1))
        made = get_method("adapter")(backbone, recipe)
        made.extend(range(self.options.classes))
        g = torch.Generator().manual_seed(1)
        for value in made.parameters():  # away from zero, where half of the adapter has no gradient
            value.add_(0.02 * torch.randn(value.shape, generator=g).to(value.device))
        return made

    def plans(self, way: Way) -> dict[str, Group]:
        """The settings of both groups for a way."""
        head = Group(order="first", lr=0.01, epochs=1, micro_batch=way.micro_batch)
        if way.estimator is None:
            return {"peft": Group(order="first", lr=0.01, epochs=1, micro_batch=way.micro_batch), "head": head}
        queries = 1 if way.per == "image" else self.options.queries
        peft = Group(
            order="zeroth", estimator=way.estimator, queries=queries, clip=1.0, lr=0.01, epochs=1, per=way.per,
            chunk=min(way.chunk, 2 * queries), micro_batch=way.micro_batch,
        )  # fmt: skip
        return {"peft": peft, "head": head}

    def time(self, step: Callable[[int], Any]) -> tuple[float, float, int]:
        """Median milliseconds, their spread, and peak bytes of a step; the first ones are not counted."""
        peak = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()  # what a recording allocates is seen only while it is made
        self.run(step, 0, self.options.warm_up)
        times = self.run(step, self.options.warm_up, self.options.repeats)
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated() - self.before
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
        return statistics.median(times), high - low, peak

    def run(self, step: Callable[[int], Any], first: int, count: int) -> list[float]:
        """Milliseconds of steps one after the other, fewer than `count` where they take long."""
        times: list[float] = []
        while not times or (len(times) < count and sum(times) < 1000 * self.options.patience):
            clock = time.perf_counter()
            step(first + len(times))
            self.wait()
            times.append(1000 * (time.perf_counter() - clock))
        return times

    def wait(self) -> None:
        """Wait until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def on_device(self) -> tuple[Tensor, Tensor]:
        """The batch on the device."""
        return self.images.to(self.device), self.labels.to(self.device)

    def rows(self) -> Iterator[Row]:
        """Measure the published steps, then each way that was asked for."""
        yield from self.published()
        yield from (self.way(name) for name in self.options.rows if name in WAYS)

    def published(self) -> Iterator[Row]:
        """Measure the steps as published."""
        images, labels = self.on_device()
        for name, what, fused, autocast in (
            ("published", "ZO-FC as published", False, False),
            ("published-first", "first order as published", False, False),
            ("autocast-first", "first order, bf16 autocast", True, True),
        ):
            if name not in self.options.rows:
                continue
            self.tidy()
            made = Published(self.backbone("fp32").vit, 5, 5, self.options.classes, fused, autocast)
            if name == "published":
                found = self.time(lambda _, m=made: m.zeroth_order(images, labels, self.options.queries))  # type: ignore[misc]
            else:
                found = self.time(lambda _, m=made: m.first_order(images, labels))  # type: ignore[misc]
            del made
            yield Row(name, what, found[0], found[2], found[1])

    def way(self, name: str) -> Row:
        """Measure one way."""
        way = WAYS[name]
        self.tidy()
        method = self.method(way, self.backbone(way.precision, way.recompute, way.compiled))
        place = Placement(method, method.groups(), self.plans(way), SEED, 0, way.graphs)
        images, labels = (self.images, self.labels) if way.stream else self.on_device()
        if way.stream and self.device.type == "cuda":
            images, labels = images.pin_memory(), labels.pin_memory()
        with nullcontext() if way.fused else kernels.plain():
            middle, spread, peak = self.time(lambda number: place.step(images, labels, 0, number))
            if self.device.type != "cuda":
                with measure_peak(self.device, [*method.backbone.vit.parameters(), *method.parameters()]) as seen:
                    place.step(images, labels, 0, 0)
                peak = seen.bytes
            row = Row(name, way.what, middle, peak, spread, details=asdict(way))
            if self.device.type == "cuda":
                row.details["reserved_bytes"] = torch.cuda.max_memory_reserved()  # with what the allocator keeps
            if way.estimator is not None and not self.options.no_reference:
                row.correlation = self.correlation(way)
        if not self.options.no_flops:
            row.forwards = self.forwards(place)
        return row

    def correlation(self, way: Way) -> float:
        """Of the coefficients along many directions with the derivatives in float64, at the same values."""
        key = (way.blocks, way.precision, way.per)
        if key not in self.references:
            double = self.backbone(way.precision)
            double.vit.double()  # the same weights, rounded as they are resident
            exactly = Way("", "forward_gradient", blocks=way.blocks, per=way.per, chunk=2)
            self.references[key] = self.coefficients(exactly, self.method(way, double).double(), torch.float64)
        found = self.coefficients(way, self.method(way, self.backbone(way.precision)), torch.float32)
        return float(torch.corrcoef(torch.stack([found, self.references[key]]))[0, 1])

    def coefficients(self, way: Way, method: Method, dtype: torch.dtype) -> Tensor:
        """Coefficients of a way's first steps in a data type, to compare."""
        place = Placement(method, method.groups(), self.plans(way), SEED, 0)
        batch = self.options.reference_batch
        images, labels = self.images[:batch].to(self.device, dtype), self.labels[:batch].to(self.device)
        (peft,), along = place.zeroth, []
        for number in range(self.options.reference_steps):
            query = peft.query(peft.draw(number, batch, self.device))
            features = evaluate_features(method, images, query, False, peft.chunking)
            along.append(coefficients(method, labels, query, features)[0].flatten().cpu())
        return torch.cat(along)

    def forwards(self, place: Placement) -> float:
        """Matrix operations of a step, counted as torch executes them, in plain forwards of the batch."""
        images, labels = self.on_device()
        with (
            place.execution.recorder.paused(),
            kernels.plain(),
            FlopCounterMode(display=False) as step,
        ):  # the counter does not see into kernels
            place.step(images, labels, 0, 0)
        with torch.no_grad(), FlopCounterMode(display=False) as plain:
            backbone = place.method.backbone  # type: ignore[attr-defined]
            backbone.vit(images.to(backbone.dtype))
        return float(step.get_total_flops() / plain.get_total_flops())

    def tidy(self) -> None:
        """Away with the way before; what it leaves behind all the same is not counted to the next."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch._C._cuda_clearCublasWorkspaces()
            self.before = torch.cuda.memory_allocated()


def show(row: Row) -> None:
    """Print a row as soon as it is measured."""
    seen = "" if row.correlation is None else f"  corr {row.correlation:.4f}"
    forwards = "" if row.forwards is None else f"  {row.forwards:.2f} F"
    memory = f"{row.peak_bytes / 2**30:.3f} GiB"
    print(f"{row.name:18s} {row.milliseconds:9.2f} ms ± {row.spread:.2f}  {memory}{seen}{forwards}", flush=True)


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    return steps_table({row.name: asdict(row) for row in rows}).markdown()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    baselines = ["published", "published-first", "autocast-first"]
    parser.add_argument("--backbone", default="vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", default=[*baselines, *WAYS], choices=[*baselines, *WAYS], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds of warm-up, and of repeats, after which none is begun"
    )
    parser.add_argument("--reference-steps", type=int, default=8, help="of Q directions each, for the correlation")
    parser.add_argument("--reference-batch", type=int, default=16)
    parser.add_argument(
        "--small-workspace", action="store_true", help="what training.memory sets: for the least memory"
    )
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--no-flops", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of a result file and run nothing")
    options = parser.parse_args()
    if options.table:
        print(table([Row(**row) for row in json.loads(options.table.read_text())["rows"]]))
        return
    bench = Bench(options)
    rows: list[Row] = []
    for row in bench.rows():
        rows.append(row)
        show(row)
        if options.out:  # after each, so that a run that is cut short has what it measured
            write(options, bench.device, rows)
    print(table(rows))


def write(options: argparse.Namespace, device: torch.device, rows: list[Row]) -> None:
    """Write the rows with settings and environment."""
    settings = {key: value for key, value in vars(options).items() if key not in ("out", "rows", "table")}
    whole = {"settings": settings, "environment": environment(device), "rows": [asdict(row) for row in rows]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()

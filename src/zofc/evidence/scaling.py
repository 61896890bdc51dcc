"""A model of training on many machines: how long a step takes, what travels, and what more directions are worth.

A step on b images takes a + c·b, measured on one H200 (`results/step.json`), times the operations of a larger backbone.
What travels between N machines takes as long as the quicker of a ring and a tree would,

    ring: 2 (N − 1) (α + n / (N β)),    tree: 2 ⌈log₂ N⌉ (α + n / β),

for a sum of n bytes at latency α and bandwidth β. ZO-FC makes two sums, one after the other: of the gradient of its
classifier, then of the coefficients. Every sum has two numbers more, the loss and the hits. A request to stop travels
at the same time (8 bytes), so that it takes no time of its own.

K random directions in d dimensions capture of the squared length of a gradient the share K / (K + d − 1) on average, so
as long as K is far below d, twice the directions are worth twice the steps. A batch of first order has no such reserve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zofc.report.grid import Grid
from zofc.units import format_bytes

BATCH, RANK, ADAPTED, NEW_CLASSES, QUERIES = 48, 5, 5, 10, 4
FLOAT = 4  # bytes
REPORT, STOP_REQUEST = 2, 8  # numbers beside those of a sum; bytes
MACHINES = (1, 2, 8, 64, 1024)
FLEETS, STEP_SECONDS = (1, 100, 1000, 10_000), 2
TOLERANCE = 0.2  # of the model's speed-up of two processes, within which a measured one is said to agree


@dataclass(frozen=True)
class ScaledBackbone:
    """A ViT at 224 px: its width, and the operations of a forward pass beside ViT-B/16's."""

    name: str
    width: int
    operations: float

    @property
    def adapter(self) -> int:
        """Numbers of the paper's adapters: rank 5 beside the MLP of five blocks."""
        return ADAPTED * (2 * RANK * self.width + RANK + self.width)

    @property
    def rows(self) -> int:
        """Numbers of the rows of new classes and of their scale."""
        return NEW_CLASSES * self.width + 1


BACKBONES = (
    ScaledBackbone("ViT-B/16", 768, 1.0),
    ScaledBackbone("ViT-L/16", 1024, 61.6 / 17.6),
    ScaledBackbone("ViT-H/14", 1280, 167.4 / 17.6),
    ScaledBackbone("ViT-g/14", 1408, 267.2 / 17.6),
)


@dataclass(frozen=True)
class Network:
    """Latency (s) and bandwidth (bytes / s) between two machines."""

    name: str
    latency: float
    bandwidth: float

    def sum_seconds(self, size: float, machines: int) -> float:
        """Time of an all-reduce of so many bytes."""
        if machines == 1 or not size:
            return 0.0
        ring = 2 * (machines - 1) * (self.latency + size / (machines * self.bandwidth))
        tree = 2 * math.ceil(math.log2(machines)) * (self.latency + size / self.bandwidth)
        return min(ring, tree)


DATA_CENTRE = Network("data centre: 10 µs, 50 GB/s", 10e-6, 50e9)
INTERNET = Network("internet: 30 ms, 20 Mbit/s", 30e-3, 2.5e6)


@dataclass(frozen=True)
class StepKind:
    """A way to make a step: seconds for no image and for each, by which rows of the benchmark."""

    title: str
    fixed: float
    per_image: float
    directions: int  # of an estimate on one machine; 0: first order
    per: str = "batch"
    head: str = "first"  # the order of the classifier

    def seconds(self, backbone: ScaledBackbone, images: float = BATCH) -> float:
        """Time of the computation alone."""
        return self.fixed + backbone.operations * self.per_image * images

    def gradient_bytes(self, backbone: ScaledBackbone) -> int:
        """The gradient of the parameters that move by first order."""
        adapter = 0 if self.directions else backbone.adapter
        return FLOAT * (adapter + (backbone.rows if self.head == "first" else 0))

    def coefficient_bytes(self, machines: int) -> int:
        """The coefficients: one vector for the images of all machines, where every image has its own."""
        return FLOAT * self.directions * (machines if self.per == "image" else 1)

    def sums(self, backbone: ScaledBackbone, machines: int) -> tuple[int, ...]:
        """The bytes of each sum of a step, as `optim/division.py` makes them."""
        sizes = self.gradient_bytes(backbone), self.coefficient_bytes(machines)
        return tuple(size + FLOAT * REPORT for size in sizes if size) if machines > 1 else ()

    def step_bytes(self, backbone: ScaledBackbone, machines: int) -> int:
        """What a machine gives to the sums of a step, and to the request to stop."""
        return sum(self.sums(backbone, machines)) + STOP_REQUEST * (machines > 1)

    def step_seconds(self, backbone: ScaledBackbone, network: Network, machines: int) -> float:
        """A step of so many machines, each with a whole batch."""
        sums = self.sums(backbone, machines)
        return self.seconds(backbone) + sum(network.sum_seconds(size, machines) for size in sums)

    def speed_up(self, backbone: ScaledBackbone, network: Network, machines: int) -> float:
        """Images a second beside one machine."""
        return machines * self.seconds(backbone) / self.step_seconds(backbone, network, machines)

    def progress(self, backbone: ScaledBackbone, machines: int) -> float:
        """What a step of so many machines is worth in steps of one, by the share of the gradient that its directions
        capture; 1 for first order, whose gradient is whole."""
        if not self.directions:
            return 1.0
        size = backbone.adapter
        return captured(machines * self.directions, size) / captured(self.directions, size)


def captured(directions: int, size: int) -> float:
    """The mean share of a gradient's squared length that an estimate along random signs captures."""
    return directions / (directions + size - 1)


def measured_kinds(rows: Sequence[Mapping[str, Any]]) -> dict[str, StepKind]:
    """The kinds of steps by the rows of `results/step.json` and `results/step_memory.json`."""
    times = {row["name"]: row["milliseconds"] / 1e3 for row in rows}

    def line(whole: str, parts: str, size: int) -> tuple[float, float]:
        """a and c from a step in one pass, and from one in passes of `size` images."""
        part = times[parts] * size / BATCH
        slope = (times[whole] - part) / (BATCH - size)
        return part - slope * size, slope

    shared, image = line("forward", "small-bf16", 8), line("image", "image-24", 24)
    first = (shared[0], (times["first"] - shared[0]) / BATCH)  # the same launches and copies
    return {
        "first": StepKind("first order (DDP)", *first, 0),
        "shared": StepKind("ZO-FC, four shared directions", *shared, QUERIES),
        "image": StepKind("ZO-FC, a direction per image", *image, BATCH, per="image"),
        "throughout": StepKind("zeroth order throughout, four directions", *shared, QUERIES, head="zeroth"),
    }


def travel_table(kinds: Mapping[str, StepKind]) -> Grid:
    """Bytes that each machine gives for a step of two machines."""
    body = [
        (kind.title, str(len(kind.sums(BACKBONES[0], 2))), *(f"{kind.step_bytes(one, 2):,}" for one in BACKBONES))
        for kind in kinds.values()
    ]
    return Grid(("Bytes a step", "Sums", *(backbone.name for backbone in BACKBONES)), tuple(body))


def speed_up_table(kinds: Mapping[str, StepKind], network: Network) -> Grid:
    """Images a second beside one machine, for the smallest and the largest backbone."""
    body = [
        (backbone.name, kind.title, *(f"{kind.speed_up(backbone, network, machines):,.1f}" for machines in MACHINES))
        for backbone in (BACKBONES[0], BACKBONES[-1])
        for kind in kinds.values()
    ]
    return Grid((network.name, "Step", *(f"{machines:,}" for machines in MACHINES)), tuple(body))


def progress_table(kinds: Mapping[str, StepKind]) -> Grid:
    """What a step is worth in steps of one machine."""
    backbone = BACKBONES[0]
    body = [
        (kind.title, f"{kind.directions:,}" if kind.directions else "–",
         *(f"{kind.progress(backbone, machines):,.1f}" for machines in MACHINES))
        for kind in kinds.values()
    ]  # fmt: skip
    return Grid(("Step", "Directions", *(f"{machines:,}" for machines in MACHINES)), tuple(body))


def ranks_table(measured: Mapping[str, Any]) -> Grid:
    """`results/ranks.json`: bytes and images a second of processes with a core each, beside what this model says."""
    body = [
        (
            row["what"],
            str(row["processes"]),
            f"{sum(row['bytes'].values()):,.0f}",
            f"{row['bytes_of_model']:,}",
            f"{row['speed_up']:.2f}",
            f"{row['speed_up_of_model']:.2f}",
            f"{100 * beyond_model(row):+.0f} %" if row["processes"] > 1 else "–",
        )
        for row in measured["rows"]
        if row["processes"] <= measured["cores"]
    ]
    heads = ("Bytes a step", "Bytes by the model", "Speed-up", "Speed-up by the model", "Difference")
    return Grid(("Step", "Processes", *heads), tuple(body))


def beyond_model(row: Mapping[str, Any]) -> float:
    """How much faster than by the model processes are, as a share of the model's speed-up."""
    return float(row["speed_up"] / row["speed_up_of_model"] - 1)


def agreement_text(measured: Mapping[str, Any]) -> str:
    """Whether two processes are as fast as the model says, and by how much they are not."""
    two = [(row["what"], 100 * beyond_model(row)) for row in measured["rows"] if row["processes"] == 2]
    missed = [f"{what} ({beyond:+.0f} %)" for what, beyond in two if abs(beyond) > 100 * TOLERANCE]
    within = f"within {100 * TOLERANCE:.0f} % of the model's"
    rounds = f"in {measured['rounds']} rounds on {measured['cores']} cores"
    if not missed:
        return f"The speed-up of two processes, {rounds}, is {within} for every kind of step."
    agree = f"for {len(two) - len(missed)} of {len(two)} kinds of steps".replace("for 0 of", "for none of")
    return f"The speed-up of two processes, {rounds}, is {within} {agree}. It misses it for {', '.join(missed)}."


def journal_table(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/journal.json`: bytes of journals of real runs, and how fast steps of ViT-B's adapter are replayed."""
    body = [
        (row["what"], f"{row['steps']:,}", f"{row['bytes_per_step']:.0f}", format_bytes(row["bytes"]),
         format_bytes(20_000 * row["bytes_per_step"]), f"{row['replayed_per_second']:,.0f}")
        for row in rows
    ]  # fmt: skip
    heads = ("Steps", "Bytes a step", "Whole journal", "20,000 steps", "Replayed steps a second")
    return Grid(("Directions", *heads), tuple(body))


def fleet_table(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """What devices send that make a step every two seconds, by the measured bytes and speed of a journal."""
    row = next(row for row in rows if row["name"] == "shared")
    hourly = row["bytes_per_step"] * 3600 / STEP_SECONDS
    body = [
        (f"{devices:,}", format_bytes(hourly), format_bytes(hourly * devices),
         f"{devices * QUERIES * BACKBONES[0].adapter / 1e6:,.0f}", f"{devices / row['replayed_per_second']:.2f}")
        for devices in FLEETS
    ]  # fmt: skip
    heads = ("Each sends an hour", "All send an hour", "Million additions a step", "Replaying it on one core (s)")
    return Grid(("Devices", *heads), tuple(body))


def kills_table(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/rank_kills.json`: what became of runs of which one rank was killed."""
    body = [
        (
            f"{row['moment']:.1f}", str(row["rank"]), row["phase"], f"{row['ended']:.1f}",
            "–" if row["resumed"] is None else f"{row['resumed']:.1f}",
            "equal" if row["matrix_equal"] and row["journal_equal"] and row["adapter_follows"] else "differs",
        )
        for row in sorted(rows, key=lambda row: float(row["moment"]))
    ]  # fmt: skip
    heads = ("Phase", "The other had ended after (s)", "Resumed after (s)", "Matrix, journal and adapter")
    return Grid(("Killed at (s)", "Rank", *heads), tuple(body))


def kills_text(content: Mapping[str, Any]) -> str:
    """What the same file says of all kills."""
    rows = content["rows"]
    same = sum(row["matrix_equal"] and row["journal_equal"] and row["adapter_follows"] for row in rows)
    starting = sum(row["phase"] == "start of the processes" for row in rows)
    return (
        f"Of {len(rows)} runs, in each of which one of two processes was killed at a random moment ({starting} while "
        f"they started), {same} ended with the accuracy matrix, the journal and the adapter of a run that was never "
        f"killed. The other process had ended after at most {max(row['ended'] for row in rows):.1f} s, and the run "
        f"went on after {max(row['resumed'] or 0 for row in rows):.0f} s at most."
    )


def cuda_table(content: Mapping[str, Any]) -> Grid:
    """`results/cuda.json`: replay of runs that were trained on a GPU, and a run whose sums pass through NCCL."""
    equal = {True: "yes", False: "no"}
    body = [
        (row["what"], str(row["steps"]), equal[row["bit_equal"]], f"{row['cpu_distance']:.1e}")
        for row in content["rows"]
    ]
    group, cost = content["group_of_one"], content["recording"]
    sent = ", ".join(f"{count / group['steps']:,.0f} of {what}" for what, count in group["bytes"].items())
    notes = (
        f"Recording a step takes {cost['cost_ms']:.3f} ms; without a journal it takes {cost['step_ms']:.3f} ms.",
        f"A process group of one ({group['backend']}) sums these bytes a step: {sent}; what it learns differs by "
        f"{group['distance']:.1e} from one process, and its accuracies are "
        f"{'the same' if group['matrix_equal'] else 'others'}.",
    )
    return Grid(("Run", "Steps", "Replay equal to the bit", "Replay on the CPU differs by"), tuple(body), notes=notes)

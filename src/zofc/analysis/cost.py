"""What a recipe costs, measured on its model and one of its batches: bytes, seconds, multiply–adds (`flops`)."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zofc.analysis import flops
from zofc.analysis.task_start import OnProgress, run_batches, start_task, torch_settings
from zofc.errors import RecipeError
from zofc.optim.graphs import RECORDING_STEPS
from zofc.optim.placement import Placement
from zofc.recipe import Recipe
from zofc.training.device import pick_device
from zofc.training.memory import Peak, measure_peak, resident_tensors
from zofc.training.planner import plan_memory
from zofc.training.resolve import check_recipe
from zofc.training.task import TaskTraining


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers, not bytes."""

    frozen: int
    moving: dict[str, int]  # by group


@dataclass(frozen=True)
class MemoryCost:
    """Bytes; of the device's allocator on CUDA, of tensors elsewhere, and of the whole process (rss)."""

    weights: int  # the backbone
    resident: int  # before a step: with the method's own tensors, and on CUDA whatever else is there
    evaluation: int  # the most while a batch is scored
    rss: int  # before the first step
    rss_peak: int  # while steps were made


@dataclass(frozen=True)
class Phase:
    """Epochs in which the same groups move."""

    groups: tuple[str, ...]
    epochs: int  # of the task
    step_seconds: float  # median
    epoch_seconds: float  # its steps alone
    peak: int  # bytes of a step, what is resident included
    executed: flops.Executed
    forwards: float  # executed, in plain forwards of the batch
    formula: flops.Formula | None  # None: the paper has none for these groups
    differences: tuple[flops.Difference, ...]


@dataclass(frozen=True)
class Cost:
    """What a recipe costs at one of its tasks."""

    recipe: str
    task: int
    tasks: int
    device: str
    precision: str
    batch_size: int  # images of the measured batch
    eval_batch_size: int
    steps: int  # timed
    steps_per_epoch: int
    parameters: ParameterCounts
    memory: MemoryCost
    loading_seconds: float  # to make a training batch; beside the step on CUDA and with workers
    evaluation_seconds: float  # an image
    forward: flops.Forward
    phases: tuple[Phase, ...]
    conventions: tuple[str, ...]
    notices: tuple[str, ...]


def measure_cost(recipe: Recipe, steps: int = 5, task: int = 1, on_progress: OnProgress = lambda _: None) -> Cost:
    """Measure a recipe at the start of a task (those before it are not trained): `steps` timed steps in each phase
    after a warm-up. The model that is stepped is thrown away. `on_progress` is called with what is being done."""
    if steps < 1:
        raise RecipeError("a cost needs one timed step at least")
    check_recipe(recipe)
    device = pick_device(recipe.training.device)
    with torch_settings(device, recipe.training):
        training, notices = start_task(recipe, task, device, on_progress)
        return _measured(training, notices, steps, task, on_progress)


def _measured(training: TaskTraining, notices: list[str], steps: int, task: int, on_progress: OnProgress) -> Cost:
    model, placement, device = training.model, training.placement, training.model.device
    on_progress("making batches")
    batches = run_batches(training)
    _, images, labels = next(batches)  # which also opens files and starts workers
    loading = _median(lambda: next(batches), steps, device)
    if model.recipe.training.memory is not None and placement.epochs:
        notices.append(plan_memory(model, placement, images, labels))
    own = resident_tensors(model)
    before, rss = _resident_bytes(device, own), process_memory()[0]
    with suppress(OSError):  # Linux counts the most anew from here; elsewhere it stays that of the whole process
        Path("/proc/self/clear_refs").write_text("5")
    phases = phases_of(placement)
    timed = []
    for groups, epochs in phases.items():
        on_progress(f"steps of {' and '.join(groups)}")
        timed.append(_time(training, images, labels, epochs[0], steps, own))
    rss_peak = process_memory()[1]

    on_progress("evaluating")
    shown, _ = next(iter(model.plain_batches(training.loader)))
    with measure_peak(device, own) as scoring:
        model.scores(shown)
    evaluation = _median(partial(model.scores, shown), steps, device) / len(shown)

    on_progress("counting")
    forward = flops.count_forward(model, placement, shown[:1])
    sizes = placement.sizes
    return Cost(
        recipe=model.recipe.name,
        task=task,
        tasks=training.tasks,
        device=str(device),
        precision=model.recipe.training.precision,
        batch_size=len(images),
        eval_batch_size=len(shown),
        steps=steps,
        steps_per_epoch=training.steps_per_epoch,
        parameters=ParameterCounts(
            model.backbone.parameters + sum(p.numel() for p in model.method.parameters()) - sum(sizes.values()), sizes
        ),
        memory=MemoryCost(model.backbone.bytes, before, scoring.bytes, rss, rss_peak),
        loading_seconds=loading,
        evaluation_seconds=evaluation,
        forward=forward,
        phases=tuple(
            _phase(training, images, labels, groups, epochs, seconds, peak.bytes, forward)
            for (groups, epochs), (seconds, peak) in zip(phases.items(), timed, strict=True)
        ),
        conventions=flops.conventions(model, forward),
        notices=tuple(notices),
    )


def _phase(
    training: TaskTraining, images: Tensor, labels: Tensor, groups: tuple[str, ...], epochs: list[int],
    seconds: float, peak: int, forward: flops.Forward,
) -> Phase:  # fmt: skip
    model, batch = training.model, len(images)
    executed = flops.count_step(training, images, labels, epochs[0])
    formula = flops.paper_formula(training.placement, groups, batch, forward.formula, flops.head_term(model))
    return Phase(
        groups=groups,
        epochs=len(epochs),
        step_seconds=seconds,
        epoch_seconds=seconds * training.steps_per_epoch,
        peak=peak,
        executed=executed,
        forwards=executed.total / (batch * forward.backbone),
        formula=formula,
        differences=flops.explain_difference(training, groups, images, executed, formula, forward),
    )


def phases_of(placement: Placement) -> dict[tuple[str, ...], list[int]]:
    """The epochs of a task by the sets that move in them, in the order in which they first do."""
    found: dict[tuple[str, ...], list[int]] = {}
    for epoch in range(placement.epochs):
        if groups := placement.active(epoch):
            found.setdefault(groups, []).append(epoch)
    return found


def _time(
    training: TaskTraining, images: Tensor, labels: Tensor, epoch: int, steps: int, own: list[Tensor]
) -> tuple[float, Peak]:
    """Median seconds of a step, and its peak: on CUDA that of all of them, for some make recordings; elsewhere that of
    the first, which warms up, since watching every tensor takes time."""
    device, cuda = training.model.device, training.model.device.type == "cuda"

    def step() -> None:
        training.placement.step(images, labels, epoch, training.steps_done)
        training.model.method.after_step()

    training.placement.execution.recorder.forget()  # no recording outlives the workspace it was made with
    with measure_peak(device, own) as peak:
        for _ in range(RECORDING_STEPS if cuda else 1):
            step()
        if cuda:
            return _median(step, steps, device), peak
    return _median(step, steps, device), peak


def _median(work: Callable[[], Any], repeats: int, device: torch.device) -> float:
    _wait(device)
    times = []
    for _ in range(repeats):
        clock = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - clock)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _resident_bytes(device: torch.device, own: list[Tensor]) -> int:
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # which steps before these may have left
        return torch.cuda.memory_allocated(device)
    return sum({part.data_ptr(): part.nbytes() for part in (tensor.untyped_storage() for tensor in own)}.values())


def process_memory() -> tuple[int, int]:
    """Bytes of this process in memory: now, and the most so far. Without /proc, the most for both."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        now, most = (
            int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024 for key in ("VmRSS:", "VmHWM:")
        )
        return now, max(now, most)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most, most

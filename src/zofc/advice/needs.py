"""What `zofc run` needs on this machine: the seconds and the memory of a learner's steps, measured on one of them."""

from __future__ import annotations

import hashlib
import json
import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from zofc.advice.features import cached_measurement
from zofc.analysis.task_start import run_batches, start_task, torch_settings
from zofc.recipe import Recipe
from zofc.runfolder import write_atomic
from zofc.training.device import pick_device
from zofc.training.memory import measure_peak, resident_tensors
from zofc.training.resolve import check_recipe
from zofc.training.task import TaskTraining

TIMED_STEPS = 2  # after one that makes what stays


@dataclass(frozen=True)
class StepNeeds:
    """All steps that a recipe plans: how long they take, and the most bytes that one needs, weights included."""

    seconds: float = 0.0
    memory: int = 0


def measure_steps(recipe: Recipe, data: str, weights: str | None) -> StepNeeds:
    """The steps of a recipe at the start of its first task, times the number planned; none if nothing is trained. Kept
    with cached features, by the checksums of the data and the weights."""
    recipe = check_recipe(recipe)
    if not recipe.optimize:
        return StepNeeds()
    parts = json.dumps([recipe.model_dump(mode="json"), data, weights], sort_keys=True)
    kept = cached_measurement(hashlib.sha256(parts.encode()).hexdigest()[:32])
    with suppress(OSError, ValueError, TypeError):  # else they are measured
        return StepNeeds(**json.loads(kept.read_text("utf-8")))
    device = pick_device(recipe.training.device)
    with torch_settings(device, recipe.training):
        needs = _measure(start_task(recipe, 1, device, lambda _: None)[0])
    with suppress(OSError):  # a cache that cannot be written is no error
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, json.dumps(asdict(needs)))
    return needs


def _measure(training: TaskTraining) -> StepNeeds:
    batches = run_batches(training)

    def step() -> float:
        """The loss as a number: whatever a device has still to do is done."""
        number, images, labels = next(batches)
        loss = training.placement.step(images, labels, 0, number).loss
        training.model.method.after_step()
        return loss

    if not training.total_steps:
        return StepNeeds()
    with measure_peak(training.model.device, resident_tensors(training.model)) as peak:
        step()
    clock = time.perf_counter()
    for _ in range(TIMED_STEPS):
        step()
    seconds = (time.perf_counter() - clock) / TIMED_STEPS
    tasks = max(min(plan.tasks or math.inf, training.tasks) for plan in training.model.recipe.optimize.values())
    return StepNeeds(seconds * training.total_steps * tasks, peak.bytes)

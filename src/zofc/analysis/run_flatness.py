"""The flatness of a run after each of its tasks: scores, curvature, smoothing and forgetting of the old tasks' loss."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from zofc.analysis import curvature
from zofc.analysis import flatness as scores
from zofc.analysis.kept_run import KeptRun, MeasuredRun, RowChoice, Split, parameters, task_losses
from zofc.analysis.surface import BatchedLoss, Point, size
from zofc.analysis.task_start import OnProgress
from zofc.data.loading import Batch
from zofc.errors import RunError
from zofc.methods.classifier import Classifier

PARAMETER_SETS = ("peft", "head", "peft+head")
SMOOTHING_LENGTHS = (1.0, 10.0, 100.0)  # in units of the recipe's ε
NEGLIGIBLE_SHARE = 0.1  # of the first-order term, below which it may be dropped


@dataclass(frozen=True)
class FlatnessSettings:
    """What is measured, and how closely."""

    over: tuple[str, ...] = ()  # of PARAMETER_SETS; (): peft alone and with the head, or the head if there is no peft
    rho: float = 0.005
    images: int | None = 20  # per class
    split: Split = "test"
    rows: RowChoice = "own"
    directions: int = 20  # random ones, of either norm; 0: none of their scores
    probes: int = 8  # of the trace and the smoothed loss; 0: neither
    products: int = 30  # of the Hessian with a vector, at most, for its spectrum; 0: none, and no forgetting
    tolerance: float = 1e-2  # of the largest eigenvalue
    batch: int = 16  # images at a time
    every: int = 1  # measured after each, or after every so many tasks

    def __post_init__(self) -> None:
        for name in ("rho", "images", "batch", "every", "directions", "probes", "products"):
            value, may_be_zero = getattr(self, name), name in ("directions", "probes", "products")
            if value is not None and not (value > 0 or (may_be_zero and value == 0)):
                raise RunError(f"{name}: expected {'0 or more' if may_be_zero else 'more than 0'}, got {value}")
        words = [("split", self.split, get_args(Split)), ("rows", self.rows, get_args(RowChoice))]
        for key, value, known in [*words, *(("over", over, PARAMETER_SETS) for over in self.over)]:
            if value not in known:
                raise RunError(f"{key}: expected {' or '.join(known)}, got '{value}'")


@dataclass(frozen=True)
class TaskTransition:
    """From one task to the next: what the tasks until then lost."""

    whole: float  # rise of their loss between the two states, whatever moved
    over: scores.Forgetting  # of it, what the parameters in question do, and its expansion
    spectrum: curvature.Spectrum  # of the same loss at the start


@dataclass(frozen=True)
class TaskFlatness:
    """After one task. The task just learned is apart; after the first there are no old ones."""

    task: int
    parameters: int
    last: scores.Sharpness
    old: scores.Sharpness | None = None
    random: tuple[scores.RandomSharpness, ...] = ()
    spectrum: curvature.Spectrum | None = None
    trace: curvature.Trace | None = None
    smoothed: tuple[scores.Smoothed, ...] = ()
    forgetting: TaskTransition | None = None  # by the next task


@dataclass(frozen=True)
class RunFlatness:
    """All states of a run, for each set of parameters."""

    settings: FlatnessSettings
    images: dict[int, int]  # of each task
    by_set: dict[str, list[TaskFlatness]]
    notices: list[str]

    def verdict(self, name: str) -> str | None:
        """Whether the paper may drop the first-order term of forgetting, in this run."""
        steps = [entry.forgetting.over for entry in self.by_set[name] if entry.forgetting]
        steps = [step for step in steps if step.distance]
        if not steps:
            return None
        share = statistics.median(step.first_share for step in steps)
        held = sum(step.within_bound for step in steps)
        dropped = "may be dropped here" if share < NEGLIGIBLE_SHARE else "may not be dropped here"
        over = f"median of {len(steps)} steps" if len(steps) > 1 else "one step"
        return (
            f"gᵀΔθ is {share:.0%} of |gᵀΔθ| + |½ΔθᵀHΔθ| ({over}): the first-order term "
            f"{dropped}; F ≤ ½λ‖Δθ‖² in {held} of {len(steps)}"
        )


def measure_flatness(
    run: KeptRun, settings: FlatnessSettings, notices: list[str], on_progress: OnProgress = lambda _: None
) -> RunFlatness:
    """Measure every kept state; `on_progress` is called with what is being done."""
    sets = chosen_sets(run, settings)
    states = [task for task in run.kept if task % settings.every == 0]
    if not states:
        kept = ", ".join(map(str, run.kept))
        raise RunError(f"every: none of the kept tasks ({kept}) is a multiple of {settings.every}")
    on_progress("loading the images")
    batches = load_batches(run, max(run.kept), settings, notices)
    by_set: dict[str, list[TaskFlatness]] = {name: [] for name in sets}
    for task in states:
        state = _KeptState(run, task, batches, settings)
        for name in sets:
            on_progress(f"after task {task}, over {name}")
            entry = state.measure_set(name)
            if entry is None:
                notices.append(f"task {task} moved nothing of {name}: left out")
            else:
                by_set[name].append(entry)
    return RunFlatness(settings, count_images(batches), by_set, notices)


def load_batches(run: MeasuredRun, last: int, settings: FlatnessSettings, notices: list[str]) -> dict[int, list[Batch]]:
    """The images of the tasks until `last`."""
    if why := type(run.model.method).couples_images:
        notices.append(f"the loss is no mean over images: it depends on the batches, here of {settings.batch} ({why})")
    tasks = range(1, last + 1)
    return {task: run.batches(task, settings.split, settings.images, settings.batch) for task in tasks}


def count_images(batches: dict[int, list[Batch]]) -> dict[int, int]:
    """How many images of each task there are."""
    return {task: sum(len(labels) for _, labels in some) for task, some in batches.items()}


def chosen_sets(run: MeasuredRun, settings: FlatnessSettings, most: int | None = None) -> tuple[str, ...]:
    """The sets that were asked for, or the first `most` that the method has; refused if it has not."""
    for name in settings.over:
        missing = [group for group in name.split("+") if group not in type(run.model.method).group_names]
        if missing:
            raise RunError(f"over: '{run.recipe.method.name}' has no {missing[0]}; measure it over {all_sets(run)[-1]}")
    return settings.over or all_sets(run)[:most]


def all_sets(run: MeasuredRun) -> tuple[str, ...]:
    """The adapter alone and with the head, or the head where there is nothing else."""
    return ("peft", "peft+head") if "peft" in type(run.model.method).group_names else ("head",)


class MeasuredState:
    """The losses of all tasks so far at a state of a method."""

    def __init__(
        self, run: MeasuredRun, task: int, method: Classifier, batches: dict[int, list[Batch]],
        settings: FlatnessSettings,
    ) -> None:  # fmt: skip
        self.task, self.method, self.settings = task, method, settings
        self.seen = {number: some for number, some in batches.items() if number <= task}
        self.losses = task_losses(method, self.seen, task, settings.rows)
        plan = run.recipe.optimize.get("peft")
        self.seed, self.kind = run.recipe.seed, "rademacher" if plan is None else plan.directions
        self.epsilon = 1e-3 if plan is None else plan.epsilon

    def loss(self, tasks: range) -> BatchedLoss:
        """The mean over the images of these tasks."""
        return BatchedLoss([part for task in tasks for part in self.losses[task]])

    def point(self, name: str, tasks: range) -> dict[str, Tensor]:
        """The tensors of a set of parameters."""
        return parameters(self.method, name, tasks, self.settings.rows)

    def spectrum(self, loss: BatchedLoss, point: Point) -> curvature.Spectrum:
        """Both ends of the Hessian's spectrum."""
        return curvature.lanczos_spectrum(loss, point, self.settings.products, self.settings.tolerance, self.seed)

    def probes(self, point: Point) -> list[dict[str, Tensor]]:
        """Directions for the Hessian's trace."""
        return curvature.probes(point, self.settings.probes, self.kind, self.seed)


class _KeptState(MeasuredState):
    """A run after one task."""

    def __init__(self, run: KeptRun, task: int, batches: dict[int, list[Batch]], settings: FlatnessSettings) -> None:
        super().__init__(run, task, run.method_after(task), batches, settings)
        self.run = run

    def measure_set(self, name: str) -> TaskFlatness | None:
        """Everything over one set of parameters; None if the task moves none."""
        settings, rho = self.settings, self.settings.rho
        last, old = range(self.task, self.task + 1), range(1, self.task)
        point = self.point(name, last)
        if not point:
            return None
        sharp = scores.sam_score(self.loss(last), point, rho)
        step = self.step(name) if settings.products and self.task + 1 in self.run.kept else None
        if not old:
            return TaskFlatness(self.task, size(point), sharp, forgetting=step)
        point, loss = self.point(name, old), self.loss(old)
        kinds = scores.NORMS if settings.directions else ()
        along = self.probes(point)
        values = curvature.forms(loss, point, along)
        return TaskFlatness(
            task=self.task,
            parameters=size(point),
            last=sharp,
            old=scores.sam_score(loss, point, rho),
            random=tuple(scores.random_score(loss, point, rho, kind, settings.directions, self.seed) for kind in kinds),
            spectrum=self.spectrum(loss, point) if settings.products else None,
            trace=curvature.trace(values) if values else None,
            smoothed=tuple(
                scores.smoothed(loss, point, self.epsilon * by, along, values) for by in SMOOTHING_LENGTHS if values
            ),
            forgetting=step,
        )

    def step(self, name: str) -> TaskTransition:
        """What the next task does to the tasks until now, this one included."""
        tasks = range(1, self.task + 1)
        loss, start = self.loss(tasks), self.point(name, tasks)
        end = {**start, **self.run.tensors_after(self.task + 1, start)}
        later = task_losses(self.run.method_after(self.task + 1), self.seen, self.task, self.settings.rows)
        there = BatchedLoss([part for parts in later.values() for part in parts])
        ends = self.spectrum(loss, start)
        over = scores.expand_forgetting(loss, start, end, ends.largest)
        return TaskTransition(there.value({}) - loss.value({}), over, ends)

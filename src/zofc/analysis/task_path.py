"""Flatness, curvature and losses along the path *inside* of the tasks of a run, from its journal and the recipe's data.

The journal holds what moved by zeroth order. What else the loss reads, the rows of a first-order classifier, has the
value that the run stored next: at the end of the task where `training.keep_tasks` kept it, else at the last checkpoint.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from zofc.analysis import curvature
from zofc.analysis import flatness as scores
from zofc.analysis.kept_run import MeasuredRun
from zofc.analysis.landscape import LossPlane, named_tasks, plane_axes, plane_through
from zofc.analysis.replay import Replay, RunReplay
from zofc.analysis.run_flatness import FlatnessSettings, MeasuredState, chosen_sets, count_images, load_batches
from zofc.analysis.surface import Point, difference, dot, moved, norm, size
from zofc.analysis.task_start import OnProgress, torch_settings
from zofc.data.loading import Batch
from zofc.errors import RunError
from zofc.methods import method_class
from zofc.methods.classifier import Classifier
from zofc.runfolder.checkpoint import Checkpoint
from zofc.runfolder.journal_records import SetStart, SetStep


@dataclass(frozen=True)
class LossShape:
    """A loss around a point."""

    sharpness: scores.Sharpness
    spectrum: curvature.Spectrum | None = None
    trace: curvature.Trace | None = None


@dataclass(frozen=True)
class PathPoint:
    """After a step of a task, counted from 1; step 0 is the start of the task."""

    task: int
    step: int
    steps: int  # of the task
    distance: float  # from the start of the task
    new: LossShape  # of the task itself
    old: LossShape | None = None  # of those before it


@dataclass(frozen=True)
class RunPathFlatness:
    """Points inside of the tasks of a run, for each set of parameters."""

    settings: FlatnessSettings
    along: int
    images: dict[int, int]  # of each task
    parameters: dict[str, int]  # of each set, in the last task
    by_set: dict[str, list[PathPoint]]
    notices: list[str]


class Snapshot(NamedTuple):
    """What the zeroth-order sets of a task were after a step."""

    step: int
    tensors: dict[str, Tensor]


class ReplayedRun(MeasuredRun):
    """A run whose journal says what its adapter was at any step."""

    def require_states(self) -> Checkpoint:
        """The last checkpoint, if a journal leads to it."""
        recipe, again = self.folder.recipe, f"zofc run {shlex.quote(str(self.folder.recipe_file))}"
        if "peft" in method_class(recipe).group_names and recipe.optimize["peft"].order == "first":
            raise RunError(
                f"{self.folder}: its adapter moved by first order (optimize.peft.order), and a journal holds only "
                f"zeroth-order steps; measure it after its tasks: {again} training.keep_tasks=true --again"
            )
        self.replay = RunReplay(self.folder.path)
        return self.replay.checkpoint

    @property
    def steps(self) -> dict[int, list[int]]:
        """The steps of each finished task in the journal, counted from 1."""
        steps: dict[int, set[int]] = {}
        task = 0
        for entry, _ in self.replay.journal.entries:
            if isinstance(entry, SetStart):
                task = entry.task + 1
            elif isinstance(entry, SetStep) and task <= self.progress.done:
                steps.setdefault(task, set()).add(entry.step + 1)
        return {task: sorted(some) for task, some in steps.items()}

    def snapshots(self, moments: Mapping[int, Sequence[int]]) -> dict[int, list[Snapshot]]:
        """What the journal leads to at the start of tasks and after steps of theirs."""
        found: dict[int, dict[int, dict[str, Tensor]]] = {task: {} for task in moments}
        replay = Replay(self.replay.device)
        with torch_settings(self.replay.device, self.folder.recipe.training):
            for entry in self.replay.states(replay):
                step = entry.step + 1 if isinstance(entry, SetStep) else 0 if isinstance(entry, SetStart) else None
                if step is not None and step in moments.get(replay.task + 1, ()):
                    names = [one.name for start in replay.starts for one in start.tensors]
                    found[replay.task + 1][step] = {name: replay.tensors[name].clone() for name in names}
        return {task: [Snapshot(*pair) for pair in sorted(some.items())] for task, some in found.items()}

    def method_in(self, number: int) -> Classifier:
        """The method with the tasks until `number`; what the journal does not hold is as the run stored it next."""
        if number in self.kept:
            return self.method_after(number)
        model, stored = self.model, self.replay.checkpoint.method
        model.classes, model.method = [], method_class(self.recipe)(model.backbone, self.recipe)
        for start, stop in self.progress.tasks[:number]:
            model.extend(self.progress.classes[start:stop])
        own = model.method.state_dict()
        fitting = {name for name, value in own.items() if name in stored and stored[name].shape == value.shape}
        if lost := sorted({*model.method.groups().get("head", {})} - fitting):
            raise RunError(
                f"{self.folder}: {lost[0]} is no longer what it was in task {number}; run it again with what each task "
                f"ended with: zofc run {shlex.quote(str(self.folder.recipe_file))} training.keep_tasks=true --again"
            )
        model.method.load_state_dict({**own, **{name: stored[name] for name in fitting}})
        method = model.method.double()
        assert isinstance(method, Classifier)
        return method

    def describe_classifier(self) -> str:
        """Where the values come from that the journal does not hold."""
        head = self.recipe.optimize.get("head")
        if head is not None and head.order == "zeroth":
            return "the classifier moved by zeroth order, so that it too is that of each step"
        if self.kept:
            return "the adapter is that of each step, the first-order classifier that of the end of its task"
        changed = (
            "its rows no longer move after their task" if self.recipe.method.mask else "later tasks moved its rows"
        )
        kept = "training.keep_tasks=true would keep that of each task"
        return (
            f"the adapter is that of each step, the first-order classifier that of the last checkpoint ({changed}; its "
            f"scale, if it has one, moves in every task; {kept})"
        )


def measure_path(
    run: ReplayedRun,
    settings: FlatnessSettings,
    along: int,
    notices: list[str],
    on_progress: OnProgress = lambda _: None,
) -> RunPathFlatness:
    """Measure the start of each task and `along` points of its steps, evenly spaced, the last step among them."""
    sets, steps = chosen_sets(run, settings, 1), run.steps
    moments = {task: evenly(some, along) for task, some in steps.items() if task % settings.every == 0}
    if not moments:
        raise RunError(f"{run.folder}: no finished task with steps in its journal is a multiple of {settings.every}")
    on_progress("replaying the journal")
    snapshots = run.snapshots(moments)
    on_progress("loading the images")
    batches = load_batches(run, max(moments), settings, notices)
    notices.append(run.describe_classifier())
    by_set: dict[str, list[PathPoint]] = {name: [] for name in sets}
    sizes: dict[str, int] = {}
    for task, some in snapshots.items():
        path = TaskPath(run, task, some, batches, settings)
        for name in sets:
            if not path.point(name):
                notices.append(f"task {task} moved nothing of {name}: left out")
                continue
            for number, point in enumerate(path.measure(name, steps[task][-1]), 1):
                on_progress(f"task {task}, {number} of {len(some)} points, over {name}")
                by_set[name].append(point)
            sizes[name] = size(path.point(name))
    return RunPathFlatness(settings, along, count_images(batches), sizes, by_set, notices)


def evenly(steps: Sequence[int], count: int) -> list[int]:
    """The start, 0, and `count` of these steps, evenly spaced, or all of them if they are fewer."""
    places = {round(number * len(steps) / count) for number in range(1, count + 1)} - {0}
    return [0, *(steps[place - 1] for place in sorted(places))]


class TaskPath:
    """The states that the steps of one task passed through."""

    def __init__(
        self, run: ReplayedRun, task: int, snapshots: Sequence[Snapshot], batches: dict[int, list[Batch]],
        settings: FlatnessSettings,
    ) -> None:  # fmt: skip
        self.task, self.snapshots, self.settings = task, snapshots, settings
        self.state = MeasuredState(run, task, run.method_in(task), batches, settings)

    @torch.no_grad()
    def set(self, tensors: Point) -> None:
        """Give the method the tensors of a snapshot."""
        own = self.state.method.state_dict()
        for name, value in tensors.items():
            own[name].copy_(value)

    def measure(self, name: str, steps: int) -> Iterator[PathPoint]:
        """Every snapshot over a set of parameters."""
        new, old = range(self.task, self.task + 1), range(1, self.task)
        start: Point | None = None
        for step, tensors in self.snapshots:
            self.set(tensors)
            here = self.point(name)
            start = start or here
            shapes = self._shape(name, new), self._shape(name, old) if old else None
            yield PathPoint(self.task, step, steps, norm(difference(here, start)), *shapes)

    def point(self, name: str) -> dict[str, Tensor]:
        """The present values of a set of parameters."""
        tasks = range(1, self.task + 1)
        return {key: value.clone() for key, value in self.state.point(name, tasks).items()}

    def _shape(self, name: str, tasks: range) -> LossShape:
        state, loss, point = self.state, self.state.loss(tasks), self.state.point(name, tasks)
        forms = curvature.forms(loss, point, state.probes(point))
        return LossShape(
            scores.sam_score(loss, point, self.settings.rho),
            state.spectrum(loss, point) if self.settings.products else None,
            curvature.trace(forms) if forms else None,
        )

    def planes(self, name: str, resolution: int) -> list[LossPlane]:
        """The losses of old tasks and of this one over the plane through the start, the end and the point between
        that is farthest from the line between both, with the path as the plane sees it."""
        points = []
        for _, tensors in self.snapshots:
            self.set(tensors)
            points.append(self.point(name))
        if len(points) < 3:
            raise RunError(
                "--landscape: a plane needs a point between start and end of the task; use --along 2 or more"
            )
        start, end = points[0], points[-1]
        far = max(range(1, len(points) - 1), key=lambda number: _height(points[number], start, end))
        names = (f"start of task {self.task}", "its end", f"step {self.snapshots[far].step}")
        axes = plane_axes(dict(zip(names, (start, end, points[far]), strict=True)))
        path = tuple(axes.project(point) for point in points)
        spans = [range(1, self.task)] * (self.task > 1) + [range(self.task, self.task + 1)]
        return [
            replace(
                plane_through(self.state.loss(span), axes, resolution, path=path),
                what=f"mean loss of {named_tasks(span)}",
            )
            for span in spans
        ]


def _height(point: Point, start: Point, end: Point) -> float:
    """The distance of a point from the line between two others."""
    along, away = difference(end, start), difference(point, start)
    length = float(dot(along, along))
    return norm(moved(away, along, -float(dot(away, along)) / length)) if length else norm(away)


def landscape_inside(
    run: ReplayedRun, settings: FlatnessSettings, along: int, resolution: int, on_progress: OnProgress
) -> list[LossPlane]:
    """The planes of the last task that moved."""
    steps = run.steps
    task = max(steps)
    snapshots = run.snapshots({task: evenly(steps[task], along)})[task]
    path = TaskPath(run, task, snapshots, load_batches(run, task, settings, []), settings)
    on_progress(f"the plane of task {task}")
    return path.planes(chosen_sets(run, settings, 1)[0], resolution)

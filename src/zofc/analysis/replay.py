"""Training again from its journal: no data, no forward pass, no backbone.

The directions Δ_q of a step follow from the seed, its shares s_q, learning rate η and factor of the clip from the
journal: φ ← φ − η · scale · Σ_q s_q Δ_q by the same optimizer. The operations are those of training, so on the same
kind of device the result is the same to the bit.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from zofc.analysis.task_start import torch_settings
from zofc.errors import RecipeError, RunError
from zofc.optim.chunking import Chunking
from zofc.optim.directions import Directions, Space
from zofc.optim.evaluation import weigh_directions
from zofc.optim.optimizers import GroupOptimizer, Update
from zofc.optim.sets import ZerothOrderSet
from zofc.recipe import Group, Recipe
from zofc.runfolder import Run, open_run, write_atomic
from zofc.runfolder.checkpoint import Checkpoint, load_checkpoint, load_task
from zofc.runfolder.journal import Journal, JournalPosition, read_journal
from zofc.runfolder.journal_records import JournalEntry, SetEnd, SetStart, SetStep, value_digest
from zofc.runfolder.names import JOURNAL_FILE
from zofc.runfolder.tensors import pack_tensors
from zofc.training.device import pick_device
from zofc.training.run_journal import tensor_bytes
from zofc.units import format_bytes

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MOST_ENTRIES = 2**31  # of the directions of a step
CLOSE = 1e-5  # relative, between kinds of devices


class Moment(NamedTuple):
    """A point of a run: after a step of a task, both counted from 1; None: after its last step."""

    task: int
    step: int | None = None

    @classmethod
    def parse(cls, text: str) -> Moment:
        """`TASK` or `TASK.STEP`."""
        task, dot, step = text.partition(".")
        if not task.isdecimal() or not int(task) or (dot and not step.isdecimal()):
            raise RunError(f"--to: expected TASK or TASK.STEP such as 2 or 2.150, counted from 1, got '{text}'")
        return cls(int(task), int(step) if dot else None)

    def is_before(self, task: int, step: int) -> bool:
        """Whether a step, counted from 0, is made after this moment."""
        return task + 1 > self.task or (task + 1 == self.task and self.step is not None and step >= self.step)


class Replay:
    """The tensors that zeroth-order steps moved, from the first entry of a journal on."""

    def __init__(self, device: torch.device, known: Mapping[str, Tensor] | None = None) -> None:
        self.device = device
        self.tensors = {  # by their names in a checkpoint; `known`: before the first entry
            name: value.detach().clone().to(device) for name, value in (known or {}).items()
        }
        self.changed: set[str] = set()  # of these, what the method changed after the last step
        self.differing: list[str] = []  # tensors whose bits are not those of the run at the end of a task
        self.task, self.steps = -1, 0
        self.linear = True  # whether all sets moved by SGD
        self.starts: list[SetStart] = []  # of the present task
        self.sets: list[ZerothOrderSet] = []

    @torch.no_grad()
    def take(self, entry: JournalEntry) -> None:
        """Go on by an entry; ValueError if that is impossible."""
        if isinstance(entry, SetStart):
            self._begin(entry)
        elif isinstance(entry, SetStep) and entry.moved:
            self._step(entry)
        elif isinstance(entry, SetEnd):
            self._end(entry)

    def _begin(self, start: SetStart) -> None:
        if start.task != self.task:
            self.task, self.starts, self.sets = start.task, [], []
        for one in start.tensors:
            if one.value is not None:
                value = torch.frombuffer(bytearray(one.value), dtype=DTYPES[one.dtype])
                self.tensors[one.name] = value.reshape(one.shape).to(self.device)
            held = self.tensors.get(one.name)
            if held is None or held.shape != one.shape or held.dtype != DTYPES[one.dtype]:
                raise ValueError(f"task {start.task + 1} starts from values of {one.name} that the journal has not")
        try:
            plan = Group(order="zeroth", **{**start.plan, "lr": 0.0})
        except (ValidationError, TypeError) as error:
            raise ValueError(f"settings of {start.label} that cannot be: {error}") from error
        names = [one.name for one in start.tensors]
        self.changed -= {*names}
        self.linear &= plan.optimizer == "sgd"
        parameters = {name: self.tensors[name] for name in names}
        directions = Directions(plan.directions, start.seed, start.stream)
        optimizer = GroupOptimizer(parameters, plan)
        self.starts.append(start)
        self.sets.append(ZerothOrderSet(start.members, optimizer, directions, Chunking(None, 1), True))

    def _step(self, entry: SetStep) -> None:
        start, part = self.starts[entry.number], self.sets[entry.number]
        kind = torch.float64 if start.share_width == 8 else torch.float32
        shares = torch.frombuffer(bytearray(entry.shares), dtype=kind).to(DTYPES[start.tensors[0].dtype])
        space = Space(part.optimizer.parameters)
        if len(shares) * space.size > MOST_ENTRIES:
            raise ValueError(f"step {entry.step + 1} of task {start.task + 1} has {len(shares):,} directions")
        vectors = part.draw(entry.step, len(shares) // part.plan.queries, self.device)
        if math.prod(vectors.shape[:-1]) != len(shares):
            raise ValueError(f"step {entry.step + 1} of task {start.task + 1} has {len(shares):,} shares")
        gradient = weigh_directions(space, vectors, shares.to(self.device))
        part.optimizer.apply(gradient, Update(entry.rate, entry.scale))
        self.steps += 1

    def _end(self, entry: SetEnd) -> None:
        start = self.starts[entry.number]
        for one, digest, changed in zip(start.tensors, entry.digests, entry.changed, strict=True):
            if value_digest(tensor_bytes(self.tensors[one.name])) != digest:
                self.differing.append(f"{one.name} after task {start.task + 1}")
            if changed:
                self.changed.add(one.name)


# -- a journal -------------------------------------------------------------------------------------------------------


class JournalReplay:
    """A journal, and what it leads to."""

    def __init__(self, path: Path, position: JournalPosition | None, device: str | None, recipe: Recipe) -> None:
        self.file, self.recipe = path, recipe
        self.journal = read_journal(path, position)
        self.position = position or self.journal.position  # what is after it does not count
        self.device = _device(device, self.journal.header.device)
        self.known: dict[str, Tensor] = {}  # before the first entry
        self.done = 0  # tasks

    @property
    def same_device(self) -> bool:
        """Whether this is the kind of device that the run was trained on."""
        return self.device.type == self.journal.header.device

    def replay(self, to: Moment | None = None) -> tuple[Replay, float]:
        """The tensors at a moment, by default at the last checkpoint, and the seconds that it took."""
        if to is not None:
            self._check_moment(to)
        replay, clock = Replay(self.device, self.known), time.perf_counter()
        with torch_settings(self.device, self.recipe.training):
            for _ in self.states(replay, to):
                pass
        return replay, time.perf_counter() - clock

    def write(self, path: Path, to: Moment | None = None) -> tuple[int, float]:
        """Write the tensors at a moment to a file; returns the number of steps and the seconds that it took."""
        replay, seconds = self.replay(to)
        if not all(bool(value.isfinite().all()) for value in replay.tensors.values()):
            raise RunError(f"{self.file}: it leads to numbers that are not finite")
        write_atomic(path, pack_tensors(replay.tensors))
        return replay.steps, seconds

    def states(self, replay: Replay, to: Moment | None = None) -> Iterator[JournalEntry]:
        """Take all entries until a moment, each of which is yielded after it was taken."""
        for number, (entry, end) in enumerate(self.journal.entries, 1):
            if end > self.position.length if to is None else self._is_after(entry, replay.task, to):
                return
            try:
                replay.take(entry)
            except (ValueError, RuntimeError, IndexError) as error:
                what = f"record {number} of {self.file.name} makes no sense: {error}"
                raise RunError(f"{self.file.parent}: {what}") from error
            yield entry

    def _is_after(self, entry: JournalEntry, task: int, to: Moment) -> bool:
        """Whether an entry comes after a moment, in a task counted from 0."""
        if isinstance(entry, SetStart):
            return entry.task + 1 > to.task
        if isinstance(entry, SetEnd):
            return task + 1 == to.task and to.step is not None
        return isinstance(entry, SetStep) and to.is_before(task, entry.step)

    def _check_moment(self, to: Moment) -> None:
        summary = summarize_journal(self.journal)
        first, last = min(summary.steps, default=0), max(summary.steps, default=0)
        last, where = max(last, self.done), self.file.parent
        if not first <= to.task <= last:
            raise RunError(f"--to: {where} has no task {to.task} in its journal, but tasks {first} to {last}")
        if to.step and to.step > summary.last_steps.get(to.task, 0):
            steps = summary.last_steps.get(to.task, 0)
            raise RunError(f"--to: task {to.task} has {steps:,} steps in the journal of {where}, not {to.step:,}")


class RunReplay(JournalReplay):
    """The journal of a run folder, and what it leads to."""

    def __init__(self, path: Path, device: str | None = None) -> None:
        self.folder = open_run(path)
        checkpoint = load_checkpoint(self.folder)
        position = None if checkpoint is None else checkpoint.progress.journal
        if checkpoint is None or position is None:
            raise RunError(_without_journal(self.folder, checkpoint))
        super().__init__(self.folder.path / JOURNAL_FILE, JournalPosition(*position), device, self.folder.recipe)
        self.checkpoint, self.done = checkpoint, checkpoint.progress.done

    def check(self) -> JournalCheck:
        """Compare the tensors that the run stored with those that its journal leads to."""
        compared: list[Comparison] = []
        replay, clock = Replay(self.device), time.perf_counter()

        def compare(stored: Mapping[str, Tensor], where: str) -> None:
            compared.extend(
                Comparison(name, where, distance(value, stored[name].to(value.device)))
                for name, value in replay.tensors.items()
                if name in stored and name not in replay.changed
            )

        with torch_settings(self.device, self.folder.recipe.training):
            for entry in self.states(replay):
                ended = isinstance(entry, SetEnd) and entry.number == len(replay.sets) - 1
                if ended and (path := self.folder.kept_tasks.get(replay.task + 1)):
                    compare(load_task(path), f"{path.parent.name}/{path.name}")
        compare(self.checkpoint.method, "the checkpoint")
        seconds = time.perf_counter() - clock
        trained_on = None if self.same_device else self.journal.header.device
        return JournalCheck(tuple(compared), tuple(replay.differing), replay.steps, seconds, trained_on, replay.linear)


class Comparison(NamedTuple):
    """A stored tensor beside the one that the journal leads to."""

    name: str
    where: str
    distance: float  # relative; 0 where all bits are the same


@dataclass(frozen=True)
class JournalCheck:
    """What comparing a run with its journal came to."""

    compared: tuple[Comparison, ...]
    differing: tuple[str, ...]  # tensors whose bits are not those that the run had at the end of a task
    steps: int
    seconds: float
    trained_on: str | None  # the kind of device, if it was another
    linear: bool  # whether all steps were SGD's, through which rounding does not grow

    @property
    def farthest(self) -> Comparison | None:
        """The stored tensor that differs most."""
        return max(self.compared, key=lambda one: one.distance, default=None)

    @property
    def problem(self) -> str | None:
        """What does not follow from the journal, None if all does."""
        far = self.farthest
        if far is not None and far.distance > (CLOSE if self.trained_on else 0):
            what = f"{far.name} in {far.where} differs from what the journal leads to by {far.distance:.1e} (relative)"
            if self.trained_on and not self.linear:
                return f"{what}; the run was trained on {self.trained_on}, and Adam and signs enlarge its rounding"
            return what
        if self.differing and not self.trained_on:
            return f"{self.differing[0]} is not what the run had then, to the bit"
        return None

    @property
    def conclusion(self) -> str:
        """What the check shows where it found no problem."""
        far, tensors = self.farthest, f"{len(self.compared)} stored tensors follow from the journal"
        if far is None:
            return "nothing to compare: the method has changed all that the steps moved"
        return f"{tensors} within {far.distance:.1e} (relative)" if self.trained_on else f"{tensors}, bit for bit"


def distance(value: Tensor, stored: Tensor) -> float:
    """The largest difference relative to the largest stored number; 0 only where all bits are the same."""
    if value.shape != stored.shape or value.dtype != stored.dtype:
        return math.inf
    if tensor_bytes(value) == tensor_bytes(stored):
        return 0.0
    tiny = torch.finfo(torch.float64).tiny
    apart = float((value.double() - stored.double()).abs().max() / stored.double().abs().max().clamp_min(tiny))
    return max(apart, tiny) if math.isfinite(apart) else math.inf


@dataclass(frozen=True)
class JournalSummary:
    """What a journal holds."""

    steps: dict[int, int]  # by task, counted from 1, of all sets
    last_steps: dict[int, int]  # by task, the number of the last one
    skipped: int
    step_bytes: int  # of the records of steps
    length: int  # of all

    @property
    def total(self) -> int:
        """Number of steps."""
        return sum(self.steps.values())

    @property
    def bytes_per_step(self) -> float:
        """Mean size of the record of a step."""
        return self.step_bytes / max(1, self.total)

    def __str__(self) -> str:
        skipped = f" ({self.skipped} of them skipped)" if self.skipped else ""
        tasks = f"{len(self.steps)} task{'s' * (len(self.steps) != 1)}"
        size = f"{format_bytes(self.length)}, {self.bytes_per_step:.1f} bytes a step"
        return f"journal: {self.total:,} zeroth-order steps{skipped} in {tasks}, {size}"


def summarize_journal(journal: Journal) -> JournalSummary:
    """Count what a journal holds."""
    steps: dict[int, int] = {}
    last: dict[int, int] = {}
    skipped = step_bytes = before = task = 0
    for entry, end in journal.entries:
        if isinstance(entry, SetStart):
            task = entry.task + 1
            steps.setdefault(task, 0)
        elif isinstance(entry, SetStep):
            steps[task] += 1
            last[task] = entry.step + 1
            skipped += not entry.moved
            step_bytes += end - before
        before = end
    return JournalSummary(steps, last, skipped, step_bytes, journal.position.length)


def _device(name: str | None, trained_on: str) -> torch.device:
    """The device that was asked for, or one of the kind that the run was trained on, or else the CPU."""
    if name is not None:
        return pick_device(name)
    try:
        return pick_device(trained_on)
    except RecipeError:
        return torch.device("cpu")


def _without_journal(run: Run, checkpoint: Checkpoint | None) -> str:
    """Why a run has no journal, and how to get one."""
    if checkpoint is None:
        return f"{run} has no checkpoint yet, so its journal cannot be trusted; train it: zofc run --resume {run}"
    if all(plan.order == "first" for plan in run.recipe.optimize.values()):
        return f"{run} has no journal: nothing in it moves by zeroth order, and only such steps can be replayed"
    again = f"zofc run {shlex.quote(str(run.recipe_file))} training.journal=true --again"
    return (
        f"{run} has no journal (training.journal=false, or an earlier version of zofc); run it again with one: {again}"
    )

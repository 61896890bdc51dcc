"""Kinds of tries: a registry of functions, each of which makes one try from a seed and judges it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torture.sandbox import Job, Limits, Outcome, Process, command, start
from torture.stage import Stage
from torture.verdicts import Verdict, judge

STOP_SECONDS = 2.0  # of a run that trains: it is then stopped, as by Ctrl-C
STOP_AGAIN_SECONDS = 6.0  # until a second Ctrl-C, which acts at once


@dataclass
class Case:
    """One try: where it happens, what it draws from, and the commands it has run."""

    kind: str
    number: int
    random: random.Random
    folder: Path  # empty, its own
    stage: Stage
    limits: Limits = field(default_factory=Limits)
    stops: bool = True  # whether runs that train for long are stopped
    commands: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def start(
        self,
        words: Sequence[str],
        *,
        rlimits: Mapping[int, int] | None = None,
        before: Sequence[Callable[[], object]] = (),
    ) -> Process:
        """Start `zofc WORDS`."""
        return self.start_job(command(words), " ".join(["zofc", *words]), rlimits=rlimits, before=before)

    def start_job(
        self,
        job: Job,
        label: str,
        *,
        rlimits: Mapping[int, int] | None = None,
        before: Sequence[Callable[[], object]] = (),
    ) -> Process:
        """Start a function in a process of its own."""
        self.commands.append(label)
        output = self.folder.with_name(f"{self.folder.name}.out") / f"{len(self.commands)}.txt"
        output.parent.mkdir(exist_ok=True)
        home = output.with_name("home")
        home.mkdir(exist_ok=True)
        return start(job, self.folder, output, home=home, rlimits=rlimits, before=before)

    def finish(self, process: Process) -> Outcome:
        """Wait for a process within the limits; a run that trains for long is stopped as by Ctrl-C."""
        if process.watch(self.limits, self._trains if self.stops else None):
            process.send(signal.SIGINT)
            again = process.seconds + STOP_AGAIN_SECONDS
            if process.watch(self.limits, lambda one: one.seconds > again):
                process.send(signal.SIGINT)
        outcome = process.finish(self.limits)
        self.outcomes.append(outcome)
        return outcome

    def _trains(self, process: Process) -> bool:
        if process.seconds < STOP_SECONDS:
            return False
        logs = [*self.folder.glob("*/*/events.jsonl"), *self.folder.glob("*/events.jsonl")]
        return any(b'"task_started"' in log.read_bytes() for log in logs)

    def run(
        self,
        *words: str,
        rlimits: Mapping[int, int] | None = None,
        before: Sequence[Callable[[], object]] = (),
    ) -> Outcome:
        """Run `zofc WORDS` to its end."""
        return self.finish(self.start(words, rlimits=rlimits, before=before))

    def call(self, job: Job, label: str) -> Outcome:
        """Run a function to its end."""
        return self.finish(self.start_job(job, label))

    def judge(self, *words: str, controls: bool = True) -> Verdict:
        """The verdict on `zofc WORDS`."""
        return judge(self.run(*words), controls)


Attempt = Callable[[Case], Verdict]


@dataclass(frozen=True)
class Kind:
    """A kind of tries: how one is made, and in which row of the summary it is counted."""

    name: str
    about: str
    attempt: Attempt
    family: str
    share: int = 1000  # tries of a whole run
    inputs: str = "inputs"  # what is counted: inputs, or kills


KINDS: dict[str, Kind] = {}


def kind(name: str, about: str, *, share: int = 1000, inputs: str = "inputs") -> Callable[[Attempt], Attempt]:
    """Register a function as a kind of tries."""

    def register(attempt: Attempt) -> Attempt:
        KINDS[name] = Kind(name, about, attempt, attempt.__module__.rpartition(".")[2], share, inputs)
        return attempt

    return register


def make_case(name: str, seed: int, number: int, work: Path, stage: Stage, limits: Limits) -> Case:
    """The try of this number, in an empty folder."""
    folder = work / "tries" / f"{name}-{number}"
    clear(folder)
    folder.mkdir(parents=True)
    return Case(name, number, random.Random(f"{name}:{seed}:{number}"), folder, stage, limits)


def clear(folder: Path) -> None:
    """Remove the folder of a try and its outputs, whatever was made in it."""
    for path in (folder, folder.with_name(f"{folder.name}.out")):
        if not path.exists():
            continue
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():  # folders without permissions
            for inside, _, _ in os.walk(path):
                with contextlib.suppress(OSError):
                    Path(inside).chmod(stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)

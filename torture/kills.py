"""Kills: commands ended by SIGKILL at any moment and continued until they finish, compared with runs never killed.

Half of the moments are drawn from the time that the command takes; half are file operations, counted by an audit hook
in the child, so that a kill lands before every rename, removal and opening for writing in turn.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torture.kinds import Case, kind
from torture.sandbox import Outcome
from torture.verdicts import ACCEPTED, GOOD, Verdict, judge

MOST_KILLS = 8  # in one try
OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
TIMES = {"seconds", "peak_memory", "peak_memory_by_task"}
COMPARED = (
    "classes",
    "tasks",
    "done",
    "inherited",
    "epoch",
    "step",
    "rows",
    "counts",
    "groups",
    "steps",
    "trained",
    "calibration",
    "journal",
)


# -- what a run has come to ------------------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    """A short digest of some bytes."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def tensor_digests(path: Path) -> dict[str, str]:
    """A digest of every tensor of a file, with its type and shape."""
    from safetensors.numpy import load_file

    return {name: f"{value.dtype} {value.shape} {digest(value.tobytes())}" for name, value in load_file(path).items()}


def fingerprint(run: Path) -> dict[str, Any]:
    """What must not depend on kills: accuracies, metrics but times, journal, the tensors of checkpoint and tasks."""
    state = json.loads((run / "checkpoint" / "state.json").read_text("utf-8"))
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    files = [state["tensors"], *state.get("large", {}).values()]
    return {
        "matrix": json.loads((run / "matrix.json").read_text("utf-8")),
        "metrics": {key: value for key, value in metrics.items() if key not in TIMES},
        "state": {key: state.get(key) for key in COMPARED},
        "tensors": [tensor_digests(run / "checkpoint" / file) for file in files],
        "kept": {path.name: tensor_digests(path) for path in sorted((run / "tasks").glob("*.safetensors"))},
        "journal": [digest(path.read_bytes()) for path in run.glob("journal.bin")],
    }


def all_files(folder: Path) -> dict[str, str]:
    """A digest of every file below a folder but locks."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def leftovers(folder: Path) -> list[str]:
    """Temporary files below a folder."""
    return [path.name for path in folder.rglob(".*") if path.name.endswith((".tmp", ".part"))]


def difference(found: Any, expected: Any, path: str = "") -> str:
    """Where two trees differ first; empty if they are equal."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in {**expected, **found}:
            if inner := difference(found.get(key), expected.get(key), f"{path}/{key}"):
                return inner
        return ""
    return "" if found == expected else f"{path}: {str(found)[:80]}, expected {str(expected)[:80]}"


# -- moments ---------------------------------------------------------------------------------------------------------


class OperationCounter:
    """Counts the file operations of a child below a folder, and kills it before one of them."""

    def __init__(self, folder: Path, kill_at: int = 0) -> None:
        self.folder, self.kill_at = str(folder), kill_at
        self.memory = mmap.mmap(-1, 8)  # shared with the child

    @property
    def count(self) -> int:
        """Operations so far."""
        return int(struct.unpack("<Q", self.memory[:8])[0])

    def install(self) -> None:
        """Begin to count, in the child."""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & WRITING:
                return
        elif event not in OPERATIONS:
            return
        try:
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 (quick, and never fails on odd names)
        except TypeError:
            return
        if path.startswith(self.folder) and not path.endswith(".txt"):
            self.memory[:8] = struct.pack("<Q", self.count + 1)
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Target:
    """A command to kill: how it starts, how it goes on, and where its results are."""

    name: str
    words: Sequence[str]
    results: Callable[[Path], Any]  # below the folder of a try; what must be equal in the end
    again: Callable[[Path], Sequence[str] | None] = lambda _: None  # another way to continue
    looks: Sequence[Sequence[str]] = ()  # commands that read what a kill left


def reference(case: Case, target: Target) -> Mapping[str, Any]:
    """Results, time and file operations of a command that is not killed; measured once for a stage."""
    file = case.stage.path / f"{target.name}.reference.json"
    if file.is_file():
        found: Mapping[str, Any] = json.loads(file.read_text("utf-8"))
        return found
    folder = case.folder
    case.folder = folder.with_name(f"{folder.name}.out") / "reference"
    case.folder.mkdir(parents=True)
    counter = OperationCounter(case.folder)
    outcome = case.finish(case.start(target.words, before=[counter.install]))
    if outcome.status:
        raise RuntimeError(f"{target.name} fails without kills ({outcome.status}): {outcome.text}")
    made = {"results": target.results(case.folder), "seconds": outcome.seconds, "operations": counter.count}
    case.folder = folder
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(json.dumps(made), "utf-8")
    part.replace(file)
    return json.loads(file.read_text("utf-8"))  # type: ignore[no-any-return]


def start_and_kill(case: Case, words: Sequence[str], moments: Mapping[str, Any]) -> Outcome:
    """Run a command until a moment that is drawn; it may be over before."""
    draw = case.random
    if draw.random() < 0.5:
        counter = OperationCounter(case.folder, draw.randint(1, moments["operations"]))
        return case.finish(case.start(words, before=[counter.install]))
    moment = draw.uniform(0, 1.1 * moments["seconds"])
    whole = draw.random() < 0.5
    process = case.start(words)
    if process.watch(case.limits, lambda one: one.seconds >= moment):
        process.send(signal.SIGKILL, session=whole)
    outcome = process.finish(case.limits)
    case.outcomes.append(outcome)
    return outcome


def kill_and_continue(case: Case, target: Target) -> Verdict:
    """Kill a command up to a few times, continue it to its end, and compare its results with those of no kill."""
    case.stops = False
    moments = reference(case, target)
    before = {run: all_files(run) for run in case.stage.runs}
    kills, wanted, words = 0, case.random.randint(1, MOST_KILLS), target.words
    while True:
        outcome = start_and_kill(case, words, moments) if kills < wanted else case.run(*words)
        if outcome.status == -signal.SIGKILL and not outcome.excess:
            kills += 1
        elif (verdict := judge(outcome)).word != ACCEPTED:
            word = verdict.word if verdict.word not in GOOD else "lost"
            return Verdict(word, f"after {kills} kills: {verdict.detail}").counting(kills=kills)
        else:
            break
        if target.looks and case.random.random() < 0.3:
            look = case.judge(*case.random.choice(target.looks))
            if look.bad:
                return look.counting(kills=kills)
        another = target.again(case.folder) if case.random.random() < 0.5 else None
        words = another or target.words
    return _compare(case, target, moments, before).counting(kills=kills, finished=1)


def _compare(
    case: Case, target: Target, moments: Mapping[str, Any], before: Mapping[Path, Mapping[str, str]]
) -> Verdict:
    try:
        found = json.loads(json.dumps(target.results(case.folder)))
    except (OSError, ValueError, KeyError) as error:
        return Verdict("lost", f"{type(error).__name__}: {error}")
    if differs := difference(found, moments["results"]):
        return Verdict("lost", f"not as without kills: {differs}")
    for run, files in before.items():
        if differs := difference(all_files(run), files):
            return Verdict("lost", f"{run.name} was changed: {differs}")
    if left := leftovers(case.folder):
        return Verdict("lost", f"temporary files were left: {', '.join(left[:4])}")
    return Verdict(ACCEPTED)


# -- targets ---------------------------------------------------------------------------------------------------------


def one_run(folder: Path) -> Path | None:
    """The run folder below `runs`, if there is one."""
    found = sorted(path.parent for path in folder.glob("runs/*/recipe.yaml"))
    return found[0] if found else None


def run_results(folder: Path) -> Any:
    """What every run below `runs` has come to."""
    runs = sorted(path.parent for path in folder.glob("runs/*/recipe.yaml"))
    return {run.name: fingerprint(run) for run in runs}


def _resume(folder: Path) -> list[str] | None:
    run = one_run(folder)
    return None if run is None else ["run", "--resume", str(run), "-q"]


LOOKS = (("show", "runs"), ("report", "runs", "-o", "look.html"), ("watch", "runs", "--once"))


@kind(
    "kill-run",
    "zofc run killed while it starts, steps, saves, evaluates and reports, then continued",
    share=350,
    inputs="kills",
)
def attempt_kill_run(case: Case) -> Verdict:
    """A run of ZO-FC or of ridge regression, or one with loader processes."""
    stage = case.stage
    photos = [f"data.source=folder:{stage.photos}", "training.workers=1", "training.loading=workers"]
    choices = {
        "zofc": stage.zofc(),
        "ridge": stage.ridge(),
        "workers": stage.zofc(*photos, "training.keep_tasks=false"),
    }
    name = case.random.choice(["zofc"] * 7 + ["ridge"] * 4 + ["workers"])
    target = Target(f"kill-run-{name}", ["run", *choices[name], "-q"], run_results, _resume, LOOKS)
    return kill_and_continue(case, target)


@kind("kill-learn", "zofc learn killed and given again", share=150, inputs="kills")
def attempt_kill_learn(case: Case) -> Verdict:
    """A finished run taught two classes; the run itself must stay as it is."""
    closed = case.random.random() < 0.4
    run = case.stage.closed if closed else case.stage.trained
    words = ["learn", str(run), f"folder:{case.stage.new_photos}", "-o", "more", "-q"]
    looks = (("show", "more"), ("report", "more", "-o", "look.html"), ("watch", "more", "--once"))
    name = f"kill-learn-{run.name}"
    return kill_and_continue(case, Target(name, words, lambda folder: fingerprint(folder / "more"), looks=looks))


@kind("kill-study", "zofc reproduce killed and given again", share=60, inputs="kills")
def attempt_kill_study(case: Case) -> Verdict:
    """The smallest study, with two runs."""
    words = [
        "reproduce", "augmentation-ablation", "--scale", "tiny", "--dataset", "cifar100", "--seeds", "1",
        "--runs", "runs", "--output", "tables", f"backbone.name={case.stage.weights}", "data.classes=4",
        "peft.blocks=first 2",
    ]  # fmt: skip
    return kill_and_continue(case, Target("kill-study", words, run_results))


@kind("kill-report", "zofc report killed and given again; the page is the old one or whole", share=60, inputs="kills")
def attempt_kill_report(case: Case) -> Verdict:
    """A page about two runs, written over an older one."""
    page = case.folder / "page.html"
    old = "<html>old</html>\n"
    page.write_text(old, "utf-8")
    words = ["report", str(case.stage.trained), str(case.stage.closed), "-o", "page.html"]

    def whole(folder: Path) -> Any:
        text = (folder / "page.html").read_text("utf-8")
        return text == old or text.rstrip().endswith("</html>")

    verdict = kill_and_continue(case, Target("kill-report", words, whole))
    return verdict if verdict.bad or page.read_text("utf-8") != old else Verdict("lost", "the page was never written")

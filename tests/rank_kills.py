"""SIGKILL of one of two ranks at a moment of a run, and whether what becomes of it is the run that was never killed.

Tests and `benchmarks/kills.py` share this. Moments are counted from the start of both ranks, so that a kill may meet
imports, the exchange of addresses, training, evaluation, a checkpoint that is being written, or the end. A moment is
the time since the event that came before it in a run that was never killed, so that a slow run is killed there too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waiting import DEADLINE, wait_until
from zofc.analysis.replay import RunReplay
from zofc.errors import ZofcError
from zofc.runfolder import Run
from zofc.runfolder.names import JOURNAL_FILE

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
KILLS, SEED = 10, 20
PHASES = {
    "run_started": "start of the run", "run_resumed": "start of the run", "task_started": "first epoch of task",
    "epoch": "training of task", "task_trained": "evaluation of task", "evaluated": "end of task",
    "run_finished": "end of the run",
}  # fmt: skip


@dataclass(frozen=True)
class WholeRun:
    """A run of two ranks that was never killed."""

    run: Run
    seconds: float  # from the start of both ranks to the end of torchrun
    events: tuple[float, ...]  # seconds of what it reported

    @property
    def deadline(self) -> float:
        """Seconds after which a run of the same kind that is killed once has hung."""
        return 120 + 10 * self.seconds

    def find_moment(self, share: float) -> tuple[int, float]:
        """How many events come before a share of the time, and the seconds since the last of them."""
        moment = share * self.seconds
        before = [seconds for seconds in self.events if seconds <= moment]
        return len(before), moment - (before[-1] if before else 0.0)


def kill_moments() -> list[tuple[float, int]]:
    """Ten moments, uniform over a run, as shares of its time, and the rank to kill."""
    rng = random.Random(SEED)
    return [(rng.random(), rng.randrange(2)) for _ in range(KILLS)]


def environment_of_ranks() -> dict[str, str]:
    """One thread a rank, and no warnings."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def start_ranks(words: list[str], runs: Path, log: Path, restarts: int = 0) -> subprocess.Popen[bytes]:
    """`torchrun … zofc run` with two ranks, which print to a file."""
    command = [*TORCHRUN, "--max-restarts", str(restarts), "-m", "zofc", "run", *words, "--runs", str(runs)]
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment_of_ranks(), stdout=file, stderr=subprocess.STDOUT)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # it has ended
        return []
    return [int(word) for word in text.split()]


def ranks_of(torchrun: subprocess.Popen[bytes]) -> dict[int, int]:
    """The processes of the ranks that are alive, by their numbers."""
    found: dict[int, int] = {}
    for pid in children(torchrun.pid):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {int(word[5:]): pid for word in words if word.startswith(b"RANK=")}
    return found


def marks_in(runs: Path) -> list[dict[str, Any]]:
    """The events that every run has in the same order: not the checkpoints, which are made by the clock."""
    return [event for event in events_in(runs) if event["event"] in PHASES]


def events_in(runs: Path) -> list[dict[str, Any]]:
    """What a run has reported so far; nothing before there is a run."""
    files = list(runs.glob("*/events.jsonl"))
    lines = files[0].read_text("utf-8").splitlines() if files else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def whole_run(words: list[str], folder: Path) -> WholeRun:
    """The run that the others are compared with."""
    torchrun = start_ranks(words, folder / "runs", folder / "log")
    wait_until(lambda: len(ranks_of(torchrun)) == 2, torchrun, 0.01)
    clock, start = time.monotonic(), time.time()
    assert torchrun.wait(DEADLINE) == 0, (folder / "log").read_text("utf-8", "replace")[-3000:]
    seconds = time.monotonic() - clock
    run = Run(next((folder / "runs").glob("*/recipe.yaml")).parent)
    return WholeRun(run, seconds, tuple(event["time"] - start for event in marks_in(folder / "runs")))


def kill_one(words: list[str], folder: Path, whole: WholeRun, share: float, rank: int) -> dict[str, Any]:
    """Kill a rank at a share of the time of the whole run, and let torchrun start the ranks again. A run that has ended
    before, because its last seconds were quicker, is repeated and killed sooner after its last event."""
    for attempt in range(8):
        row = _kill_one(words, folder / str(attempt), whole, share, rank, 0.5**attempt)
        if row is not None:
            return row
    raise AssertionError("the run ended eight times before its moment")


def _kill_one(
    words: list[str], folder: Path, whole: WholeRun, share: float, rank: int, haste: float
) -> dict[str, Any] | None:
    folder.mkdir(parents=True)
    runs, log, (marks, since) = folder / "runs", folder / "log", whole.find_moment(share)
    torchrun = start_ranks(words, runs, log, restarts=2)
    try:
        wait_until(lambda: len(ranks_of(torchrun)) == 2, torchrun, 0.01)
        clock, both = time.monotonic(), ranks_of(torchrun)
        wait_until(lambda: len(marks_in(runs)) >= marks, torchrun, 0.01)
        time.sleep(since * haste)
        if not {*both.values()} <= {*children(torchrun.pid)}:
            return None
        moment = time.monotonic() - clock
        os.kill(both[rank], signal.SIGKILL)
        killed, before = time.monotonic(), events_in(runs)
        ended = _seconds_until_ended(torchrun, [*both.values()], killed, whole.deadline)
        starts = _starts(runs)
        resumed = None
        while torchrun.poll() is None:
            assert time.monotonic() - killed < whole.deadline, f"it hangs: {log.read_text('utf-8', 'replace')[-3000:]}"
            if resumed is None and _starts(runs) > starts:
                resumed = time.monotonic() - killed
            time.sleep(0.01)
    finally:
        if torchrun.poll() is None:
            torchrun.terminate()  # and with it the ranks
            torchrun.wait()
    assert torchrun.returncode == 0, log.read_text("utf-8", "replace")[-3000:]
    return {
        "share": share, "moment": moment, "rank": rank, "phase": phase_after(before), "ended": ended,
        "resumed": resumed, **compare(runs, whole.run),
    }  # fmt: skip


def _seconds_until_ended(torchrun: subprocess.Popen[bytes], pids: list[int], since: float, most: float) -> float:
    """The time until none of the first ranks is left."""
    while {*pids} & {*children(torchrun.pid)}:
        assert time.monotonic() - since < most, "a rank has not ended after the other one was killed"
        time.sleep(0.01)
    return time.monotonic() - since


def _starts(runs: Path) -> int:
    return sum(event["event"] in ("run_started", "run_resumed") for event in events_in(runs))


def phase_after(events: list[dict[str, Any]]) -> str:
    """What a run was doing, by the last that it reported."""
    for event in reversed(events):
        if text := PHASES.get(event["event"]):
            return f"{text} {event['task'] + 1}" if text.endswith("task") else text
    return "start of the processes"


def compare(runs: Path, whole: Run) -> dict[str, bool]:
    """Whether the run is finished with the matrix and the journal of the whole one, from which its adapter follows."""
    run = Run(next(runs.glob("*/recipe.yaml")).parent)
    try:
        check = RunReplay(run.path).check()
        follows = check.problem is None and check.conclusion.endswith("bit for bit")
    except ZofcError:
        follows = False
    return {
        "matrix_equal": run.finished and run.matrix is not None and run.matrix == whole.matrix,
        "journal_equal": (run.path / JOURNAL_FILE).read_bytes() == (whole.path / JOURNAL_FILE).read_bytes(),
        "adapter_follows": follows,
    }

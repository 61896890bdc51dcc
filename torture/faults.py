"""Faults of the machine: full disks, read-only folders, few descriptors, stops, clock jumps, two writers, moves."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torture.kills import Target, difference, fingerprint, one_run, reference, run_results
from torture.kinds import Case, kind
from torture.sandbox import Process, open_streams, running
from torture.verdicts import ACCEPTED, GOOD, REFUSED, Verdict, judge

Fault = Callable[[Case], Verdict]


def words_of(case: Case) -> list[str]:
    """The command that faults happen to."""
    return ["run", *case.stage.zofc(), "-q"]


def target_of(case: Case) -> Target:
    """The same as a target, whose results are known."""
    return Target("kill-run-zofc", words_of(case), run_results)


def finish_after(case: Case, verdict: Verdict, allowed: tuple[str, ...] = GOOD) -> Verdict:
    """The verdict on a command in trouble; once the trouble is over it must go on to the same result."""
    if verdict.word not in allowed:
        return verdict
    again = judge(case.run(*words_of(case)))
    if again.word != ACCEPTED:
        return Verdict("lost" if again.word in GOOD else again.word, f"afterwards: {again.detail}")
    if differs := difference(run_results(case.folder), reference(case, target_of(case))["results"]):
        return Verdict("lost", f"not as without the fault: {differs}")
    return verdict


@functools.cache
def can_mount() -> bool:
    """Whether a small disk can be made here."""
    return os.geteuid() == 0 and ctypes.CDLL(None).mount is not None


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """A disk of so many bytes at a folder, where that is possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = can_mount() and libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=%d" % size) == 0
    try:
        yield mounted
    finally:
        if mounted:
            libc.umount2(os.fsencode(folder), 2)


def full_disk(case: Case) -> Verdict:
    """No space left: a small disk, or a limit on the size of files."""
    runs = case.folder / "runs"
    size = case.random.randrange(4096, 300_000, 4096)
    if case.random.random() < 0.5:
        runs.mkdir()
        kept = case.folder / "kept"
        with small_disk(runs, size) as mounted:
            if mounted:
                verdict = judge(case.run(*words_of(case)))
                shutil.copytree(runs, kept)
        if mounted:
            runs.rmdir()
            kept.rename(runs)
            return finish_after(case, verdict)
        runs.rmdir()
    limit = {resource.RLIMIT_FSIZE: size // 4}
    verdict = judge(
        case.run(*words_of(case), rlimits=limit, before=[lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN)])
    )
    return finish_after(case, verdict)


def read_only(case: Case) -> Verdict:
    """A folder that cannot be written: from the beginning, or from the middle of a run."""
    runs = case.folder / "runs"
    runs.mkdir()
    moment = case.random.choice([0.0, case.random.uniform(0, 0.5)])
    process = case.start(words_of(case)) if moment else None
    if process is not None:
        process.watch(case.limits, lambda one: one.seconds > moment)
    folders = [runs, *(path for path in runs.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    verdict = judge(case.finish(process or case.start(words_of(case))))
    for folder in folders:
        folder.chmod(0o755)
    return finish_after(case, verdict)


def few_descriptors(case: Case) -> Verdict:
    """Hardly any files may be open."""
    most = case.random.randint(4, 40)
    photos = [f"data.source=folder:{case.stage.photos}"] if case.random.random() < 0.3 else []
    verdict = judge(case.run(*words_of(case), *photos, rlimits={resource.RLIMIT_NOFILE: most}))
    return verdict if photos else finish_after(case, verdict)


def stopped_process(case: Case) -> Verdict:
    """SIGSTOP for a moment, while another process asks for the run."""
    process = case.start(words_of(case))
    with running(process):
        for _ in range(case.random.randint(1, 3)):
            moment = process.seconds + case.random.uniform(0, 0.4)
            process.watch(case.limits, lambda one, moment=moment: one.seconds > moment)  # type: ignore[misc]
            process.send(signal.SIGSTOP, session=True)
            time.sleep(0.05)
            if case.random.random() < 0.3 and (run := one_run(case.folder)):
                look = case.judge("watch", str(run), "--once")
                if look.bad:
                    return look
            process.send(signal.SIGCONT, session=True)
        verdict = judge(case.finish(process))
    return finish_after(case, verdict, (ACCEPTED,))


def clock_jumps(case: Case) -> Verdict:
    """The time of day jumps by years, back and forth."""
    jumps = [case.random.choice([-1e9, 1e9, -4e9, 3e10, 0.0, -1.0, 86400.0]) for _ in range(7)]

    def jump() -> None:
        now, calls = time.time, [0]

        def shifted() -> float:
            calls[0] += 1
            return now() + jumps[calls[0] % len(jumps)]

        time.time = shifted

    verdict = judge(case.run(*words_of(case), before=[jump]))
    if verdict.word != ACCEPTED:
        return Verdict("lost" if verdict.word in GOOD else verdict.word, verdict.detail)
    for look in (["show", "runs"], ["report", "runs"], ["watch", "runs", "--once"]):
        if (seen := case.judge(*look)).bad:
            return seen
    return finish_after(case, verdict)


def two_writers(case: Case) -> Verdict:
    """Two processes with one run: one of them trains, the other is refused or waits, and nothing is changed by it."""
    other = case.random.choice([[], ["training.threads=2"], ["training.keep_tasks=false"], ["--again"]])
    first = case.start(words_of(case))
    with running(first):
        moment = case.random.uniform(0, 0.4)
        first.watch(case.limits, lambda one: one.seconds > moment)
        second = case.start([*words_of(case), *other])
        with running(second):
            verdicts = [judge(case.finish(process)) for process in (first, second)]
    bad = next((verdict for verdict in verdicts if verdict.bad), None)
    if bad is not None:
        return bad
    if ACCEPTED not in (verdict.word for verdict in verdicts):
        return Verdict("lost", f"neither of two writers finished: {verdicts[0].detail}; {verdicts[1].detail}")
    expected = reference(case, target_of(case))["results"]
    ours = [path.parent for path in case.folder.glob("runs/*/metrics.json")]
    name = next(iter(expected))
    if "training.keep_tasks=false" not in other:
        for run in ours:
            if differs := difference(fingerprint(run), expected[name]):
                return Verdict("lost", f"{run.name}: {differs}")
    return Verdict(ACCEPTED if all(verdict.word == ACCEPTED for verdict in verdicts) else REFUSED, verdicts[1].detail)


def side_by_side(case: Case) -> Verdict:
    """Two runs in one folder that end together and write one page."""
    first = case.start(words_of(case))
    second = case.start([*words_of(case), f"seed={case.random.randint(1, 10**6)}"])
    with running(first), running(second):
        verdicts = [judge(case.finish(process)) for process in (first, second)]
    return next((verdict for verdict in verdicts if verdict.word != ACCEPTED), verdicts[0])


def folder_goes_away(case: Case) -> Verdict:
    """The run folder, its lock or its checkpoint is moved, removed or replaced while it trains."""
    process = case.start(words_of(case))
    with running(process):
        moment = case.random.uniform(0.05, 0.5)
        process.watch(case.limits, lambda one: one.seconds > moment and one_run(case.folder) is not None)
        run = one_run(case.folder)
        if run is not None:
            _take_away(case, run)
        return judge(case.finish(process))


def _take_away(case: Case, run: Path) -> None:
    match case.random.randrange(6):
        case 0:
            run.rename(case.folder / "moved")
        case 1:
            shutil.rmtree(run, ignore_errors=True)
        case 2:
            (run / ".lock").unlink(missing_ok=True)
        case 3:
            shutil.rmtree(run / "checkpoint", ignore_errors=True)
        case 4:
            run.rename(case.folder / "moved")
            run.write_text("a file", "utf-8")
        case _:
            run.parent.rename(case.folder / "elsewhere")


def broken_pipe(case: Case) -> Verdict:
    """Standard output is closed, or its reader is gone."""

    def close() -> None:
        if case.number % 2:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        else:
            reading, writing = os.pipe()
            os.close(reading)
            os.dup2(writing, 1)
        open_streams()

    words = case.random.choice([["show", str(case.stage.trained)], ["list", "recipes"], words_of(case)])
    process: Process = case.start(words, before=[close])
    outcome = case.finish(process)
    verdict = judge(outcome)
    return Verdict(REFUSED, verdict.detail) if verdict.word == "unclear" else verdict


FAULTS: dict[str, Fault] = {
    "full-disk": full_disk,
    "read-only": read_only,
    "few-descriptors": few_descriptors,
    "stopped": stopped_process,
    "clock-jumps": clock_jumps,
    "two-writers": two_writers,
    "side-by-side": side_by_side,
    "folder-moved": folder_goes_away,
    "broken-pipe": broken_pipe,
}


@kind(
    "faults",
    "full disk, read-only, few descriptors, SIGSTOP, clock jumps, two writers, folders moved, closed output",
    share=270,
)
def attempt_fault(case: Case) -> Verdict:
    """The faults in turn."""
    case.stops = False
    name = [*FAULTS][case.number % len(FAULTS)]
    verdict = FAULTS[name](case)
    return Verdict(verdict.word, f"{name}: {verdict.detail}", verdict.counts) if verdict.bad else verdict

"""Making many tries: those that the journal does not have yet, in turn or several at a time, and the summary."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from torture.journal import Journal, Record, code_version, line, record_of, summary
from torture.kinds import KINDS, clear, make_case
from torture.sandbox import Limits, warm_up
from torture.stage import Stage, make_stage
from torture.verdicts import BAD, Verdict

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Plan:
    """Which tries to make."""

    kinds: Sequence[str] = ()
    count: int | None = None
    seed: int = 1993
    minutes: float | None = None
    jobs: int = 1
    retry: bool = False

    def keys(self, journal: Journal) -> Iterator[Key]:
        """The tries still to make, the kinds in turn, so that a run cut short has some of each."""
        chosen = [KINDS[name] for name in self.kinds or KINDS]
        ranges = [[(kind.name, number) for number in range(self.count or kind.share)] for kind in chosen]
        for group in zip_longest(*ranges):
            for entry in group:
                if entry is not None and not journal.done(key := (entry[0], self.seed, entry[1]), self.retry):
                    yield key


def load_kinds() -> None:
    """Import every module that registers kinds, in the order of the summary."""
    from torture import kills  # noqa: F401, I001  (as the summary lists them)
    from torture import recipes, runfolders, images, folders, tables, weights, faults  # noqa: F401


def attempt(
    key: Key, work: Path, stage: Stage, version: str, keep: bool = False, limits: Limits | None = None
) -> Record:
    """Make one try; a mistake of the harness itself is a finding too."""
    name, seed, number = key
    case = make_case(name, seed, number, work, stage, limits or Limits())
    began = time.monotonic()
    try:
        verdict = KINDS[name].attempt(case)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        verdict = Verdict(
            "harness", f"{Path(where.filename).name}:{where.lineno}: {type(error).__name__}: {error}"[:300]
        )
    seconds = time.monotonic() - began
    peak = max((outcome.peak for outcome in case.outcomes), default=0)
    shown = "; ".join(case.commands).replace(str(stage.path), "STAGE")
    record = record_of(key, verdict, seconds, peak, shown[-2000:], version)
    if not keep:
        clear(case.folder)
    return record


def run(plan: Plan, work: Path, out: Path | None) -> int:
    """Make the tries of a plan and print a line for each kind; status 1 if anything was found."""
    load_kinds()
    unknown = sorted(set(plan.kinds) - set(KINDS))
    if unknown or plan.jobs < 1:
        print(f"unknown kind '{unknown[0]}'; known: {', '.join(KINDS)}" if unknown else "--jobs: at least 1")
        return 2
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    warm_up()
    stage = make_stage(work)
    journal = Journal(work / "journal.jsonl")
    keys = list(plan.keys(journal))
    end = None if plan.minutes is None else time.monotonic() + 60 * plan.minutes
    print(f"{len(keys)} tries to make, {len(journal.records)} in the journal", flush=True)
    status = _in_parallel(plan.jobs, keys, work, stage, end)
    journal = Journal(work / "journal.jsonl")
    found = report(journal, plan.seed, out)
    return status or int(found > 0)


def _in_parallel(jobs: int, keys: Sequence[Key], work: Path, stage: Stage, end: float | None) -> int:
    """Deal the tries out to processes, each of which forks its own; status 3 if one of them failed."""
    if jobs == 1:
        return _make(keys, work, stage, end)
    pids = []
    for number in range(jobs):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                status = _make(keys[number::jobs], work, stage, end)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        pids.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def _make(keys: Sequence[Key], work: Path, stage: Stage, end: float | None) -> int:
    from torture.sandbox import adopt_orphans

    adopt_orphans()
    journal, version = Journal(work / "journal.jsonl"), code_version()
    for key in keys:
        if end is not None and time.monotonic() > end:
            break
        record = attempt(key, work, stage, version)
        journal.add(record)
        if record.verdict in BAD:
            print(f"{key[0]}:{key[2]} {record.verdict}: {record.detail}", flush=True)
    return 0


def report(journal: Journal, seed: int, out: Path | None) -> int:
    """Print the summary, write it where asked, and return the number of findings."""
    whole = summary(journal, seed)
    for row in whole["rows"]:
        print(line(row))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
        print(f"written: {out}")
    return sum(row["findings"] for row in whole["rows"])


def repeat(text: str, seed: int, work: Path) -> int:
    """Make one try, keep its files and print what its commands printed."""
    load_kinds()
    name, _, number = text.partition(":")
    if name not in KINDS or not number.isdecimal():
        print(f"--only: expected KIND:NUMBER with a kind of {', '.join(KINDS)}")
        return 2
    work = work.resolve()
    warm_up()
    stage = make_stage(work)
    case_folder = work / "tries" / f"{name}-{number}"
    record = attempt((name, seed, int(number)), work, stage, code_version(), keep=True)
    for output in sorted(case_folder.with_name(f"{case_folder.name}.out").glob("*.txt")):
        print(f"--- {output}\n{output.read_text('utf-8', 'backslashreplace')}")
    print(f"{text}: {record.verdict} after {record.seconds} s, {record.peak / 2**20:.0f} MiB: {record.detail}")
    print(f"{record.command}\nfiles: {case_folder}")
    return int(record.verdict in BAD)


def show(work: Path, seed: int) -> int:
    """List the kinds, and the findings in the journal."""
    load_kinds()
    journal = Journal(work / "journal.jsonl")
    for kind in KINDS.values():
        print(f"{kind.name}: {kind.about} ({kind.share} tries)")
    for record in journal.records.values():
        if record.seed == seed and record.verdict in BAD:
            print(f"{record.kind}:{record.number} {record.verdict}: {record.command} -> {record.detail}")
    return report(journal, seed, None) and 1

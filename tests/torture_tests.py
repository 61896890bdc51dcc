"""The torture harness: its verdicts notice what they should, and a few tries of every kind are made here. Collected by
test_torture.py, in a process of its own."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from waiting import DEADLINE, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torture import campaign
from torture.folders import build_tree, compare
from torture.journal import Journal, Record, summarize
from torture.kills import Target, all_files, kill_and_continue
from torture.kinds import KINDS, Case, kind, make_case
from torture.mutate import mutate_bytes, mutate_tree
from torture.readers import Counts, count_folder
from torture.sandbox import Job, Limits, start, warm_up
from torture.stage import Stage, make_stage, save_photos
from torture.verdicts import BAD, Verdict, judge

campaign.load_kinds()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torture")


@pytest.fixture(scope="module")
def stage(work: Path) -> Iterator[Stage]:
    warm_up()
    yield make_stage(work)
    gc.unfreeze()


def verdict_of(job: Job, folder: Path, limits: Limits) -> Verdict:
    return judge(start(job, folder, folder / "out.txt").finish(limits))


def say(text: str, status: int) -> Job:
    def job() -> int:
        print(text)
        return status

    return job


def fail() -> None:
    raise ValueError("not a user's error")


def grow() -> None:
    blocks = []
    while True:
        blocks.append(bytearray(b"x" * 2**26))


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (say("done", 0), "ok"),
        (say("zofc: no such file 'x'; did you mean 'y'?", 2), "refused"),
        (fail, "traceback"),
        (lambda: time.sleep(60), "hang"),
        (grow, "memory"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "crash"),
        (say("no such status of ours", 77), "crash"),
        (say("Aborted.", 1), "unclear"),
        (say("class \x1b]0;owned\x07", 0), "escape"),
        (lambda: __import__("socket").create_connection(("192.0.2.1", 9)), "network"),
    ],
)
def test_every_way_to_end_has_its_verdict(job: Job, word: str, tmp_path: Path) -> None:
    limits = Limits(seconds=0.7) if word == "hang" else Limits(memory=3 * 2**29)
    assert verdict_of(job, tmp_path, limits).word == word


def test_processes_that_a_command_leaves_are_ended_with_it(tmp_path: Path) -> None:
    def leave() -> None:
        if (pid := os.fork()) == 0:
            time.sleep(60)
        print(f"left {pid}", flush=True)

    outcome = start(leave, tmp_path, tmp_path / "out.txt").finish(Limits(seconds=DEADLINE))
    pid = int(outcome.text.split()[1])
    state = Path(f"/proc/{pid}/stat")

    def ended() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            return state.read_text().rpartition(")")[2].split()[0] == "Z"
        return True

    wait_until(ended)


def test_a_wrong_count_is_noticed(tmp_path: Path) -> None:
    save_photos(tmp_path / "photos", ("ant", "bee"), seed=3)
    (tmp_path / "photos" / "ant" / "up").symlink_to("..")
    reader = count_folder(tmp_path / "photos")
    assert reader.classes == {"ant": 6, "bee": 6}  # the link leads above
    assert compare(Counts({"ant": 6, "bee": 6}), reader) == ""
    assert "778" in compare(Counts({"ant": 778, "bee": 6}), reader)
    assert "cow" in compare(Counts({"ant": 6, "cow": 6}), reader)


def test_a_lost_run_is_noticed(stage: Stage, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of this command depends on how often it was killed."""

    def careless() -> None:
        times = Path("times")
        times.write_text(times.read_text() + "x" if times.exists() else "x")
        time.sleep(0.2)

    monkeypatch.setattr("torture.kinds.command", lambda _words: careless)
    target = Target("careless", ["x"], lambda folder: (folder / "times").read_text())
    cases = [make_case("careless", 1, number, work, stage, Limits()) for number in range(4)]
    verdicts = [kill_and_continue(case, target) for case in cases]
    assert sum(verdict.counts["kills"] for verdict in verdicts) > 3
    for case, verdict in zip(cases, verdicts, strict=True):
        assert verdict.word == ("ok" if (case.folder / "times").read_text() == "x" else "lost")
    assert "lost" in {verdict.word for verdict in verdicts}


@pytest.mark.parametrize("name", list(KINDS))
def test_a_few_tries_of_every_kind_find_nothing(name: str, stage: Stage, work: Path) -> None:
    before = {run: all_files(run) for run in stage.runs}
    for number in range(1 if name.startswith("kill") else 4 if name == "faults" else 12):
        record = campaign.attempt((name, 7, number), work, stage, "test")
        assert record.verdict not in BAD, f"{record.verdict}: {record.detail} ({record.command})"
    assert before == {run: all_files(run) for run in stage.runs}


def test_a_try_is_determined_by_its_number(stage: Stage, work: Path) -> None:
    def names_and_commands(number: int) -> tuple[list[str], list[str]]:
        case = make_case("overrides", 5, number, work, stage, Limits())
        KINDS["overrides"].attempt(case)
        commands = case.commands
        case = make_case("folders", 5, number, work, stage, Limits())
        build_tree(case.random, case.folder / "images")
        return sorted(path.name for path in case.folder.rglob("*")), commands

    assert names_and_commands(0) == names_and_commands(0) != names_and_commands(1)


def test_the_journal_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.add(Record("images", 1, 0, "ok", counts={"inputs": 5}))
    journal.add(Record("images", 1, 1, "hang"))
    with journal.path.open("a") as file:
        file.write('{"kind": "images", "see')
    again = Journal(tmp_path / "journal.jsonl")
    plan = campaign.Plan(["images"], count=3, seed=1)
    assert list(plan.keys(again)) == [("images", 1, 2)]
    assert list(campaign.Plan(["images"], 3, 1, retry=True).keys(again)) == [("images", 1, 1), ("images", 1, 2)]
    row = summarize(KINDS["images"], again.of("images", 1))
    assert (row["tries"], row["inputs"], row["hang"], row["findings"]) == (2, 5, 1, 1)


def test_a_summary_is_written_and_findings_have_a_status(stage: Stage, work: Path, tmp_path: Path) -> None:
    @kind("toy", "for this test")
    def attempt(case: Case) -> Verdict:
        return Verdict("wrong" if case.number else "ok", "so it is")

    try:
        status = campaign.run(campaign.Plan(["toy"], count=2), work, tmp_path / "summary.json")
    finally:
        KINDS.pop("toy")
    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    toy = next(row for row in rows if row["kind"] == "toy")
    assert status == 1
    assert (toy["ok"], toy["wrong"], toy["findings"]) == (1, 1, 1)


def test_mutations_change_something() -> None:
    import random

    tree = {"a": 1, "b": {"c": [1, 2.5, "x"]}}
    for number in range(50):
        assert mutate_tree(random.Random(number), tree) != {}
    assert tree == {"a": 1, "b": {"c": [1, 2.5, "x"]}}
    assert (
        sum(mutate_bytes(random.Random(number), b"0123456789" * 20) != b"0123456789" * 20 for number in range(50)) > 40
    )

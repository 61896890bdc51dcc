"""Facts about watching a run: its file is read as it grows, whatever state it is in, and never touched."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

from waiting import DEADLINE
from zofc import cli
from zofc.errors import RunError
from zofc.recipe import Recipe
from zofc.report.live import ABANDONED_AFTER, QUIET_SECONDS, Follower, RunView
from zofc.report.terminal import run_picture, sparkline
from zofc.report.watch import watch_run
from zofc.runfolder import Run, newest_run
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]
START = 1_000_000.0


class Script:
    """Writes the events of an imaginary run, at times of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, START
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text("name: imaginary\n")

    def text(self, kind: str, /, **fields: Any) -> str:
        return json.dumps({"time": self.now, "event": kind, **fields}) + "\n"

    def write(self, text: str) -> None:
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(text)

    def send(self, kind: str, after: float = 0.0, /, **fields: Any) -> None:
        self.now += after
        self.write(self.text(kind, **fields))

    def start(self, kind: str = "run_started", task: int = 0, epoch: int = 0, step: int = 0, **fields: Any) -> None:
        self.send(kind, name="[imaginary]", method="adapter", groups=["peft"], tasks=3, classes=6, device="cpu",
                  parameters=9, position={"task": task, "epoch": epoch, "step": step}, **fields)  # fmt: skip

    def task(self, number: int, step: int = 0) -> None:
        self.send("task_started", task=number, classes=["a", "b"], images=40, epochs=2, steps=20, step=step)

    def epoch(self, task: int, epoch: int, loss: float = 1.0, seconds: float = 10.0) -> None:
        self.send("epoch", seconds, task=task, epoch=epoch, number=2 * task + epoch + 1, loss=loss,
                  accuracy=50.0 + loss, lr={"peft": 0.1}, seconds=seconds, steps=10)  # fmt: skip

    def learn(self, number: int) -> None:
        """A whole task: twenty seconds of steps, one second of evaluation for each group."""
        self.task(number)
        self.epoch(number, 0)
        self.epoch(number, 1, 0.5)
        self.send("task_trained", task=number, seconds=20.0, steps=20, peak_memory=5_000_000 + number)
        row = [90.0 - number] * number + [95.0]
        self.send("evaluated", number + 1.0, task=number, row=row, all_classes=91.0, seconds=number + 1.0)
        self.send("checkpoint", task=number + 1, epoch=0, step=0)

    def finish(self) -> None:
        self.send("run_finished", metrics={"final_average": 89.25})


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "runs" / "one")


def viewed(script: Script) -> RunView:
    follower = Follower(script.folder)
    follower.read()
    return follower.view


def picture(script: Script, width: int = 80, height: int = 50, now: float | None = None) -> str:
    follower = Follower(script.folder)
    follower.read()
    console = Console(file=io.StringIO(), width=width)
    now = script.now if now is None else now
    console.print(run_picture(follower.view, width, height, now, follower.warning(now)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def plainly(path: Path, steps: list[Callable[[], None]], **settings: Any) -> tuple[bool, str]:
    """Watch without a terminal; what happens between two looks is given."""
    console, waiting = Console(file=io.StringIO(), width=100), iter(steps)

    def sleep(seconds: float) -> None:
        next(waiting, _too_long)()

    found = watch_run(path, console, clock=settings.pop("clock", lambda: START), sleep=sleep, **settings)
    return found, console.file.getvalue()  # type: ignore[attr-defined]


def _too_long() -> None:
    raise AssertionError("watch went on after all that was to happen")


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_line_that_is_being_written_waits_for_its_end(script: Script) -> None:
    script.start()
    follower = Follower(script.folder)
    assert [event["event"] for event in follower.read()] == ["run_started"] and follower.read() == []
    line = script.text("notice", text="a note with Φ and ≈ in it").encode()
    path = script.folder / "events.jsonl"
    for cut in range(0, len(line), 7):  # also in the middle of a letter
        with path.open("ab") as file:
            file.write(line[cut : cut + 7])
        events = follower.read()
        assert len(events) == (cut + 7 >= len(line))
    assert follower.view.notice == "a note with Φ and ≈ in it" and follower.view.unread == 0


def test_a_half_line_that_a_resumed_run_cuts_off_is_never_seen(script: Script) -> None:
    script.start()
    script.task(0)
    script.epoch(0, 0)
    follower = Follower(script.folder)
    whole = (script.folder / "events.jsonl").stat().st_size
    script.write('{"time": 1000010.0, "event": "epo')
    follower.read()
    os.truncate(script.folder / "events.jsonl", whole)  # as `EventLog` does
    script.start("run_resumed")
    assert [event["event"] for event in follower.read()] == ["run_resumed"] and follower.view.unread == 0


def test_lines_without_sense_are_counted_and_passed_over(script: Script) -> None:
    script.start()
    script.write("not json\n[1, 2]\n\n")
    script.write('{"event": "epoch", "time": 1, "task": 0}\n{"event": "of another version", "time": 2}\n')
    script.task(0)
    view = viewed(script)
    assert view.unread == 3 and view.status == "training" and view.number == 0
    assert "3 events of the log make no sense" in picture(script)


def test_a_file_that_was_replaced_is_read_anew(script: Script) -> None:
    script.start()
    script.learn(0)
    follower = Follower(script.folder)
    follower.read()
    (script.folder / "events.jsonl").unlink()
    assert follower.read() == []
    script.start()
    assert len(follower.read()) == 1 and not follower.view.epochs and not follower.view.rows


def test_watching_leaves_the_folder_as_it_is(script: Script) -> None:
    script.start()
    script.learn(0)
    script.write('{"half')

    def state() -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in script.folder.iterdir()}

    before = state()
    plainly(script.folder.parent, [], once=True)
    with pytest.raises(AssertionError, match="went on"):
        plainly(script.folder, [lambda: None] * 3)
    assert state() == before


# -- where a run stands ----------------------------------------------------------------------------------------------


def test_what_a_resumed_run_does_again_replaces_what_it_did(script: Script) -> None:
    script.start()
    script.learn(0)
    script.task(1)
    script.epoch(1, 0, loss=3.0)
    script.epoch(1, 1, loss=2.0)
    script.now += 3600  # killed; the checkpoint was taken in the second epoch, after four steps
    script.start("run_resumed", task=1, epoch=1, step=4)
    script.task(1, step=14)
    script.epoch(1, 1, loss=7.0)
    view = viewed(script)
    assert [(one.task, one.epoch, one.loss) for one in view.epochs] == [
        (0, 0, 1.0),
        (0, 1, 0.5),
        (1, 0, 3.0),
        (1, 1, 7.0),
    ]
    assert sorted(view.rows) == [0] and view.number == 1 and view.step == 20
    assert view.elapsed(script.now) == 21 + 20 + 10  # the hour in between does not count


def test_a_run_that_began_anew_has_no_past(script: Script) -> None:
    for _ in range(3):  # killed before its first checkpoint, twice
        script.start()
        script.task(0)
        script.epoch(0, 0)
    view = viewed(script)
    assert len(view.epochs) == 1 and len(view.sessions) == 3


def test_between_epochs_the_step_is_guessed_by_the_clock(script: Script) -> None:
    script.start()
    script.task(0)
    view = viewed(script)
    assert (
        view.estimated_step(script.now + 100) == 0 and view.remaining(script.now) is None
    )  # nothing is known of its pace
    script.epoch(0, 0)
    view = viewed(script)
    assert view.step == 10 and view.estimated_step(script.now + 4.2) == 14
    assert view.estimated_step(script.now + 900) == 19  # the end of an epoch would have been told
    assert view.estimated_step(script.now - 900) == 10  # a clock of another machine
    assert "≈ 14/20" in picture(script, now=script.now + 4.2) and " 10/20" in picture(script)
    script.send("checkpoint", 5.0, task=0, epoch=1, step=6)
    assert viewed(script).step == 16


def test_the_time_left_is_that_of_what_is_to_come(script: Script) -> None:
    script.start()
    script.task(0)
    script.epoch(0, 0)
    assert viewed(script).remaining(script.now) == 10 + 2 * 20  # no evaluation has been seen
    script.epoch(0, 1)
    script.send("task_trained", task=0, seconds=20.0, steps=20, peak_memory=0)
    assert viewed(script).remaining(script.now) == 2 * 20
    script.send("evaluated", 1.0, task=0, row=[95.0], all_classes=95.0, seconds=1.0)
    assert viewed(script).remaining(script.now) == (20 + 2) + (20 + 3)
    script.learn(1)
    assert viewed(script).remaining(script.now) == 20 + 3
    script.task(2)
    script.epoch(2, 0)
    assert viewed(script).remaining(script.now + 5) == 5 + 3
    script.finish()
    assert viewed(script).remaining(script.now) is None


def test_tasks_that_train_nothing_take_no_time_until_one_has_been_seen(script: Script) -> None:
    script.start(epochs=[2, 0, 0])
    script.task(0)
    script.epoch(0, 0)
    assert viewed(script).remaining(script.now) == 10
    script.epoch(0, 1)
    script.send("task_trained", task=0, seconds=20.0, steps=20, peak_memory=0)
    script.send("evaluated", 1.0, task=0, row=[95.0], all_classes=95.0, seconds=1.0)
    assert viewed(script).remaining(script.now) == 2 + 3  # evaluation alone
    script.send("task_started", task=1, classes=["c"], images=40, epochs=0, steps=0, step=0)
    script.send("task_trained", 4.0, task=1, seconds=4.0, steps=0, peak_memory=0)
    script.send("evaluated", 2.0, task=1, row=[90.0, 95.0], all_classes=92.0, seconds=2.0)
    assert viewed(script).remaining(script.now) == 4 + 3


def test_tasks_with_fewer_epochs_take_less_time(script: Script) -> None:
    script.start(epochs=[2, 1, 1])
    script.task(0)
    script.epoch(0, 0)
    assert viewed(script).remaining(script.now) == 10 + 2 * 10


def test_everything_there_is_to_see_is_shown(script: Script) -> None:
    script.start()
    script.learn(0)
    script.learn(1)
    script.task(2)
    script.epoch(2, 0, loss=0.25)
    script.send("notice", text="[memory] plan: 3 of 8 images at a time")
    said = picture(script)
    for expected in (
        "[imaginary]: adapter on cpu, 6 classes in 3 tasks; training", "3/3, 2 classes, 40 images", "2/2", "10/20",
        "0.2500 █▃█▃▁", "50.2 %", "95.0 | all 91.0", "89.0 95.0 | all 91.0", "53 s, about 13 s left",
        "4.77 MiB at most", "[memory] plan: 3 of 8 images at a time",
    ):  # fmt: skip
        assert expected in said


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (24, 10), (12, 6)])
def test_it_fits_into_the_terminal(tmp_path: Path, width: int, height: int) -> None:
    script = Script(tmp_path / "long")
    script.start()
    for number in range(20):
        script.learn(number)
    lines = picture(script, width, height).splitlines()
    assert all(len(line.rstrip()) <= max(width, 20) for line in lines)
    if width >= 24:
        assert sum("after 20" in line for line in lines) == 1  # whatever else has to go
    if width >= 40:
        assert len(lines) <= height and not any(line.startswith("after 1 ") for line in lines)


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█" and sparkline([1.0] * 3, 9) == "▁▁▁"
    assert sparkline([0, float("nan"), 7], 9) == "▁ █" and sparkline([], 5) == "" and sparkline([2.0, 1.0], -3) == "▁"


# -- following -------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_shown_and_that_is_all(script: Script) -> None:
    script.start()
    for number in range(3):
        script.learn(number)
    script.finish()
    finished, said = plainly(script.folder, [])
    assert finished and "final average accuracy 89.25 %" in said and "88.0 88.0 95.0" in said and "about" not in said


def test_an_interrupted_run_says_how_to_go_on(script: Script) -> None:
    script.start()
    script.learn(0)
    script.task(1)
    script.send("checkpoint", task=1, epoch=0, step=3)
    script.send("interrupted", task=1, epoch=0, step=3)
    finished, said = plainly(script.folder, [])
    assert not finished and f"zofc run --resume {script.folder}" in said.replace("\n", "")
    script.start("run_resumed", task=1, step=3)
    assert viewed(script).status == "training"


def test_a_run_is_awaited_and_followed_to_its_end(script: Script, tmp_path: Path) -> None:
    (script.folder / "recipe.yaml").unlink()
    script.folder.rmdir()
    script.folder.parent.rmdir()
    again = Script.__init__

    def finish() -> None:
        script.learn(2)
        script.finish()

    finished, said = plainly(
        tmp_path / "runs",
        [
            lambda: None,
            lambda: again(script, script.folder),
            lambda: script.send("notice", text="opened"),
            script.start,
            lambda: script.learn(0),
            lambda: script.write('{"time": 1, "eve'),
            lambda: script.write('nt": "notice", "text": "half"}\n'),
            lambda: script.learn(1),
            finish,
        ],
    )
    assert finished
    assert said.splitlines() == [
        f"waiting for a run at {tmp_path / 'runs'}",
        "note: opened",
        "[imaginary]: adapter on cpu, 6 classes in 3 tasks; 9 parameters frozen, peft trained",
        "task 1/3: 2 classes, 40 images, 20 steps in 2 epochs",
        "task 1 epoch 1: loss 1.0000, accuracy 51.0 %, 1 steps/s",
        "task 1 epoch 2: loss 0.5000, accuracy 50.5 %, 1 steps/s",
        "task 1 trained: 20 steps in 20 s, 4.77 MiB at most",
        "task 1 learned: 95.0 | all 91.0, about 45 s left",
        "note: half",
        *(line for line in said.splitlines() if line.startswith("task 2")),
        *(line for line in said.splitlines() if line.startswith("task 3")),
        f"finished, final average accuracy 89.25 %; zofc show {script.folder} has the rest",
    ]
    assert "task 2 learned: 89.0 95.0 | all 91.0, about 23 s left" in said


def test_in_a_terminal_it_is_drawn_in_place(script: Script) -> None:
    script.start()
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=20)
    steps = iter([lambda: script.learn(0), lambda: script.learn(1), lambda: script.learn(2), script.finish])
    assert watch_run(script.folder, console, clock=lambda: script.now, sleep=lambda seconds: next(steps)())
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2K" in drawn and "finished" in drawn.rpartition("\x1b[2K")[2]
    assert "2/3, 2 classes" in drawn and "about 23 s left" in drawn


def test_leaving_by_the_keyboard_is_no_error(script: Script) -> None:
    script.start()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal)
        assert watch_run(script.folder, console, clock=lambda: script.now, sleep=interrupt)


def test_the_newest_run_of_a_folder_is_followed(tmp_path: Path) -> None:
    runs = [Script(tmp_path / name) for name in ("b", "a", "c")]
    for age, run in enumerate(runs):
        run.start()
        for file in run.folder.iterdir():
            os.utime(file, (START - age, START - age))
    assert newest_run(tmp_path) == tmp_path / "b" and newest_run(tmp_path / "c") == tmp_path / "c"
    waiting = Script(tmp_path / "queued")  # the newest folder, but its turn has not come
    os.utime(waiting.folder / "recipe.yaml", (START + 1, START + 1))
    assert newest_run(tmp_path) == tmp_path / "queued"

    def goes_on() -> None:
        runs[2].finish()
        os.utime(runs[2].folder / "events.jsonl", (START + 2, START + 2))

    finished, said = plainly(tmp_path, [goes_on])
    assert finished and str(tmp_path / "c") in said
    assert newest_run(tmp_path / "nowhere") is None
    with pytest.raises(RunError, match="expected a run folder"):
        newest_run(tmp_path / "c" / "recipe.yaml")
    with pytest.raises(RunError, match="no run folder there"):
        watch_run(tmp_path / "nowhere", Console(file=io.StringIO()), once=True)


def test_a_folder_that_goes_away_is_missed(script: Script) -> None:
    script.start()

    def remove() -> None:
        for file in script.folder.iterdir():
            file.unlink()
        script.folder.rmdir()

    with pytest.raises(RunError, match="is gone"):
        plainly(script.folder, [remove])


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list its locks")
def test_a_killed_run_is_told_from_a_slow_one(script: Script) -> None:
    script.start()
    script.task(0)
    lock, now = FileLock(script.folder / ".lock"), [script.now]
    assert Run(script.folder).is_locked() is False
    lock.acquire()
    assert Run(script.folder).is_locked() is True

    def later(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    patient = [later(10 * QUIET_SECONDS), lock.release, later(1), later(1)]
    finished, said = plainly(script.folder, patient, clock=lambda: now[0])
    assert not finished and "is gone and did not finish" in said and "silent" not in said

    now[0] = script.now + QUIET_SECONDS + 1
    with pytest.raises(AssertionError, match="went on"):  # one that another machine may be at is not given up so soon
        plainly(script.folder, [later(0)], clock=lambda: now[0])
    assert "no event for" in picture(script, now=now[0]) and "no event" not in picture(
        script, now=script.now + QUIET_SECONDS - 1
    )
    finished, said = plainly(script.folder, [later(ABANDONED_AFTER[0])], clock=lambda: now[0])
    assert not finished and "is gone and did not finish" in said


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list its locks")
def test_a_run_that_nobody_is_at_makes_no_progress(script: Script) -> None:
    script.start()
    script.task(0)
    script.epoch(0, 0)
    shown = []
    for seconds in (1, 20, 2 * ABANDONED_AFTER[0]):
        console = Console(file=io.StringIO(), width=160)
        assert watch_run(script.folder, console, once=True, clock=lambda later=seconds: script.now + later)
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert shown[0] == shown[1] and "training, but no process of this machine trains it" in shown[0]
    assert "≈" not in shown[0] and "left" not in shown[0]
    assert "; stopped\n" in shown[2] and "is gone and did not finish" in shown[2]


# -- real runs -------------------------------------------------------------------------------------------------------


def test_a_real_run_is_watched_while_it_trains(tiny_recipe: Make, tmp_path: Path) -> None:
    said: list[tuple[bool, str]] = []
    begun = threading.Event()

    def look() -> None:
        console = Console(file=io.StringIO(), width=100)
        begun.set()
        said.append((watch_run(tmp_path / "runs", console, every=0.01), console.file.getvalue()))  # type: ignore[attr-defined]

    watcher = threading.Thread(target=look)
    watcher.start()
    begun.wait()
    folder = start_run(tiny_recipe("zofc/base"), tmp_path / "runs")
    metrics = train(folder)
    watcher.join(timeout=DEADLINE)
    ((finished, text),) = said
    assert finished and text.startswith("waiting for a run")
    assert text.count(" learned: ") == 3 and text.count(" epoch ") == 6
    assert f"final average accuracy {metrics['final_average']:.2f} %" in text
    view = Follower(folder.path)
    view.read()
    assert view.view.unread == 0 and view.view.peak_memory == metrics["peak_memory"]


def test_the_command_follows_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(tmp_path / "one")
    lines = tmp_path / "lines.txt"
    script.start()
    (script.folder / "events.jsonl").rename(tmp_path / "begun.txt")
    script.learn(0)
    script.send("interrupted", task=1, epoch=0, step=0)
    (script.folder / "events.jsonl").rename(lines)
    code = (
        "import sys, time; file = open(sys.argv[2], 'a')\n"
        "for line in open(sys.argv[1]): file.write(line[:9]); file.flush(); time.sleep(0.02);"
        " file.write(line[9:]); file.flush()"
    )
    events = script.folder / "events.jsonl"
    events.write_text((tmp_path / "begun.txt").read_text())
    monkeypatch.setattr("zofc.report.live.ABANDONED_AFTER", (math.inf, 1))  # the times of these events are long gone

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["zofc", "watch", *words])
        status = 0
        try:
            cli.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, capsys.readouterr().out

    status, said = call(str(script.folder), "--once")
    assert status == 0 and "6 classes in 3 tasks; training" in said
    writer = subprocess.Popen([sys.executable, "-c", code, str(lines), str(events)])
    try:
        status, said = call(str(tmp_path))
    finally:
        writer.wait(timeout=DEADLINE)
    assert status == 1 and "95.0 | all 91.0" in said and "interrupted and saved; continue with: zofc run" in said
    status, said = call(str(tmp_path), "--once")
    assert status == 0 and "interrupted" in said
    assert call(str(tmp_path / "nowhere"), "--once")[0] == 2

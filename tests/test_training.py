"""Facts about runs: what they leave, how they stop, that they continue to the same bits, that nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from waiting import DEADLINE
from zofc.data import loading
from zofc.errors import DivergedError, Interrupted, RecipeError, RunError
from zofc.recipe import Recipe, dump_recipe
from zofc.runfolder import open_run, write_atomic
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.events import Event
from zofc.runfolder.identity import folder_for, recipe_digest
from zofc.training import trainer as trainers
from zofc.training.device import environment, pick_device
from zofc.training.events import Events, StepStatus
from zofc.training.incremental_model import IncrementalModel
from zofc.training.runs import extend_run, resume_run, start_run, train
from zofc.training.signals import stop_signals

Make = Callable[..., Recipe]


class Recorder:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.steps: list[StepStatus] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def step(self, status: StepStatus) -> None:
        self.steps.append(status)

    def close(self) -> None:
        pass

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]


def result(run: Path) -> tuple[Any, ...]:
    """All that must not depend on how a run was interrupted: matrix, metrics without clocks, tensors."""
    metrics = json.loads((run / "metrics.json").read_text())
    metrics.pop("seconds")
    (tensors,) = (run / "checkpoint").glob("*.safetensors")
    return (
        json.loads((run / "matrix.json").read_text()),
        metrics,
        {k: v.tolist() for k, v in load_file(tensors).items()},
    )


@pytest.mark.parametrize("name", ["zofc/base", "adapter-fo/base", "classifier-fo/base", "simplecil/base"])
def test_a_run_leaves_what_its_folder_promises(tiny_recipe: Make, tmp_path: Path, name: str) -> None:
    recorder = Recorder()
    folder = start_run(tiny_recipe(name), tmp_path)
    metrics = train(folder, [recorder])
    matrix = json.loads((folder.path / "matrix.json").read_text())
    assert [len(row) for row in matrix["accuracy"]] == [1, 2, 3]
    assert matrix["counts"] == [8, 8, 8] and [len(names) for names in matrix["groups"]] == [2, 2, 2]
    assert metrics["finished"] and metrics["tasks"] == 3
    assert metrics["all_classes"] == pytest.approx(metrics["final_average"])
    assert load_checkpoint(folder) is not None
    made_with = json.loads((folder.path / "environment.json").read_text())
    assert made_with["torch"] == metadata.version("torch")
    assert made_with["backbone"]["width"] == 24 and made_with["data"]
    names = [json.loads(line)["event"] for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert names[0] == "run_started" and names[-1] == "run_finished" and names.count("evaluated") == 3
    assert recorder.named("evaluated")[-1]["row"] == matrix["accuracy"][-1]
    if "head" in folder.recipe.optimize:
        assert metrics["peak_memory"] > made_with["backbone"]["parameters"] * 4
        assert recorder.steps[-1].step == recorder.steps[-1].steps


def test_zeroth_order_steps_need_less_memory_than_first_order_ones(tiny_recipe: Make, tmp_path: Path) -> None:
    zeroth = train(start_run(tiny_recipe("zofc/base"), tmp_path))
    first = train(start_run(tiny_recipe("adapter-fo/base"), tmp_path))
    assert zeroth["peak_memory"] < first["peak_memory"]
    assert zeroth["trainable_parameters"] == first["trainable_parameters"]


def test_peak_memory_is_that_of_the_costliest_phase_with_its_optimizers(tiny_recipe: Make, tmp_path: Path) -> None:
    adam = ("optimize.peft.optimizer=adam", "optimize.head.optimizer=adam", "optimize.head.epochs=2")
    together = train(start_run(tiny_recipe("adapter-fo/base", *adam), tmp_path))
    joining = ("optimize.peft.start=1", "optimize.peft.epochs=3")
    later = train(start_run(tiny_recipe("adapter-fo/base", *adam, *joining, "optimize.head.epochs=3"), tmp_path))
    assert later["peak_memory"] == pytest.approx(together["peak_memory"], rel=0.01)  # it joins in the second epoch
    plain = [f"optimize.{group}.{key}" for group in ("peft", "head") for key in ("optimizer=sgd", "momentum=0")]
    without = train(start_run(tiny_recipe("adapter-fo/base", "optimize.head.epochs=2", *plain), tmp_path))
    moments = 2 * 4 * sum(together["trainable_parameters"].values())
    assert together["peak_memory"] - without["peak_memory"] == pytest.approx(moments, rel=0.2)


def test_the_joint_anchor_learns_once_and_is_evaluated_per_task(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("zofc/base", "data.joint=true"), tmp_path)
    metrics = train(folder)
    assert [len(row) for row in json.loads((folder.path / "matrix.json").read_text())["accuracy"]] == [3]
    assert metrics["forgetting"] is None and metrics["all_classes"] is not None


def test_an_uneven_last_task_of_one_class_is_learned_by_its_prototype(tiny_recipe: Make, tmp_path: Path) -> None:
    recorder = Recorder()
    folder = start_run(tiny_recipe("zofc/base", "data.classes=5"), tmp_path)
    assert train(folder, [recorder])["tasks"] == 3
    assert any("one class" in notice["text"] for notice in recorder.named("notice"))
    with pytest.raises(RecipeError, match="single class"):
        train(start_run(tiny_recipe("zofc/base", "data.classes=5", "head.kind=linear"), tmp_path))


def test_the_same_recipe_gives_the_same_bits_and_another_seed_does_not(tiny_recipe: Make, tmp_path: Path) -> None:
    a, b = (start_run(tiny_recipe(), tmp_path / name) for name in "ab")
    c = start_run(tiny_recipe("zofc/base", "seed=7"), tmp_path / "c")
    for folder in (a, b, c):
        train(folder)
    assert result(a.path) == result(b.path)
    assert result(a.path)[2] != result(c.path)[2]


def test_both_ways_of_loading_train_alike(tiny_recipe: Make, tmp_path: Path) -> None:
    """The same crops through PIL and through the batched resampler: the same rows up to 8-bit rounding."""
    runs = [
        start_run(tiny_recipe("classifier-fo/base", f"training.loading={way}", "training.workers=0"), tmp_path)
        for way in ("device", "workers")
    ]
    for folder in runs:
        train(folder)
    one, other = (torch.tensor(result(folder.path)[2]["method|head.rows.2"]) for folder in runs)
    torch.testing.assert_close(one, other, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("zofc/base", [], [1, 1, 1]),
        ("zofc/base", ["optimize.peft.tasks=1", "optimize.head.tasks=1", "head.init=means"], [1, 0, 0]),
        ("zofc/base", ["optimize.peft.steps=1", "optimize.peft.epochs=3", "optimize.head.epochs=1"], [1, 1, 1]),
        ("aper-fo/base", [], [1, 0, 0]),
        ("simplecil/base", [], [0, 0, 0]),
    ],
)
def test_a_run_says_beforehand_how_many_epochs_each_task_trains(
    tiny_recipe: Make, tmp_path: Path, name: str, changes: list[str], expected: list[int]
) -> None:
    recorder = Recorder()
    recipe = tiny_recipe(name, *changes)
    short = {group: plan.model_copy(update={"epochs": 1}) for group, plan in recipe.optimize.items()}
    train(start_run(recipe.model_copy(update={"optimize": short}), tmp_path), [recorder])
    assert recorder.named("run_started")[0]["epochs"] == expected
    assert [event["epochs"] for event in recorder.named("task_started")] == expected


# -- stopping and continuing -----------------------------------------------------------------------------------------


def command(recipe: Recipe, tmp_path: Path, *words: str) -> list[str]:
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_recipe(recipe))
    return [sys.executable, "-m", "zofc", "run", str(path), "--runs", str(tmp_path / "runs"), *words]


def start_and_signal(
    recipe: Recipe, tmp_path: Path, number: signal.Signals, wanted: Callable[[list[Event]], bool]
) -> tuple[Path, subprocess.Popen[str]]:
    """Run in a process group of its own and signal all of it as soon as its events satisfy `wanted`."""
    process = subprocess.Popen(
        command(recipe, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        logs = list((tmp_path / "runs").glob("*/events.jsonl"))
        lines = logs[0].read_text().splitlines() if logs else []
        if wanted([json.loads(line) for line in lines if line.endswith("}")]):
            os.killpg(process.pid, number)  # as a terminal, `timeout` and a scheduler do
            break
        time.sleep(0.005)
    process.wait(DEADLINE)
    (run,) = (tmp_path / "runs").glob("*/recipe.yaml")
    return run.parent, process


@pytest.fixture(scope="module")
def long_recipe(tiny_recipe: Make) -> Recipe:
    """Enough steps to be stopped in the middle of its second task, saving at every step."""
    return tiny_recipe(
        "zofc/base",
        "optimize.peft.epochs=8",
        "optimize.peft.queries=1",
        "optimize.head.epochs=4",
        "training.checkpoint_minutes=1.0e-9",
        "data.classes=4",
        "training.threads=1",
    )


@pytest.fixture(scope="module")
def straight(long_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of the long recipe, never stopped."""
    folder = start_run(long_recipe, tmp_path_factory.mktemp("straight"))
    train(folder)
    return result(folder.path)


def in_second_task(events: list[Event]) -> bool:
    return any(
        event["event"] == "checkpoint" and event["task"] == 1 and event["epoch"] >= 2 and event["step"] == 1
        for event in events
    )


def test_a_killed_run_continues_to_bit_identical_results(long_recipe: Recipe, straight: Any, tmp_path: Path) -> None:
    run, process = start_and_signal(long_recipe, tmp_path, signal.SIGKILL, in_second_task)
    assert process.returncode == -signal.SIGKILL
    found = load_checkpoint(open_run(run))
    assert found is not None and found[0].done == 1 and found[0].epoch >= 2  # inside the second task
    assert not open_run(run).finished
    recorder = Recorder()
    train(resume_run(run), [recorder])
    assert recorder.events[0]["event"] == "run_resumed"
    assert recorder.steps[0].epoch >= 2  # it did not begin the task anew
    assert result(run) == straight


def test_ctrl_c_stops_cleanly_and_says_how_to_continue(long_recipe: Recipe, straight: Any, tmp_path: Path) -> None:
    run, process = start_and_signal(long_recipe, tmp_path, signal.SIGINT, in_second_task)
    assert process.stdout is not None
    said = process.stdout.read()
    assert process.returncode == 130
    assert f"zofc run --resume {run}" in said.replace("\n", "") and "Traceback" not in said
    train(resume_run(run))
    assert result(run) == straight


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "asked to stop"])
def test_a_signal_to_the_whole_group_stops_a_run_that_has_workers(
    tiny_recipe: Make, tmp_path: Path, number: signal.Signals
) -> None:
    """The processes that make batches get it too, and must not take the run down with them."""
    many = "optimize.peft.epochs=200", "optimize.peft.queries=1", "optimize.head.epochs=4", "training.threads=1"
    recipe = tiny_recipe("zofc/base", *many, "training.loading=workers", "training.workers=2", "data.classes=2")
    run, process = start_and_signal(
        recipe, tmp_path, number, lambda events: sum(event["event"] == "epoch" for event in events) > 2
    )
    assert process.stdout is not None
    said = process.stdout.read()
    assert process.returncode == 130, said
    assert f"stopped and saved; continue with: zofc run --resume {run}" in said and "Traceback" not in said
    assert load_checkpoint(open_run(run)) is not None


@pytest.fixture
def _heard() -> Iterator[None]:
    """A hang-up is heard, also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["asked to stop", "terminal gone"])
def test_stopping_between_two_tasks_also_continues(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    recipe = tiny_recipe("simplecil/base")
    folder = start_run(recipe, tmp_path)
    real = trainers.Trainer._evaluate

    def evaluate_then_ask(self: trainers.Trainer, *args: Any) -> None:
        real(self, *args)
        signal.raise_signal(number)

    monkeypatch.setattr(trainers.Trainer, "_evaluate", evaluate_then_ask)
    with pytest.raises(Interrupted, match="--resume"):
        train(folder)
    monkeypatch.undo()
    assert train(folder)["tasks"] == 3
    straight = start_run(recipe, tmp_path / "straight")
    train(straight)
    assert result(folder.path) == result(straight.path)


@pytest.mark.usefixtures("_heard")
def test_a_hang_up_is_heard_once_and_under_nohup_not_at_all() -> None:
    with stop_signals() as asked:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # shell and system both send one
    assert asked.stop
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals() as asked:
        signal.raise_signal(signal.SIGHUP)
    assert not asked.stop


def test_a_request_to_stop_is_heard_where_nobody_reads_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(number: int, data: bytes) -> int:
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(os, "write", gone)
    with stop_signals() as asked:
        signal.raise_signal(signal.SIGTERM)
    assert asked.stop


def test_results_lost_between_checkpoint_and_writing_are_written_on_resume(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)
    before = train(folder)
    (folder.path / "metrics.json").unlink()
    assert train(folder) == before


def test_a_half_written_event_is_dropped_before_more_are_appended(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)
    (folder.path / "events.jsonl").write_text('{"event": "notice", "text": "whole"}\n{"event": "not')
    train(folder)
    events = [json.loads(line)["event"] for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert events[:2] == ["notice", "run_started"]


def test_two_processes_never_write_one_folder(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", f"from zofc.runfolder import open_run\n"
         f"with open_run({str(folder.path)!r}).locked():\n print('held', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(RunError, match="written by another process"):
        train(folder)
    holder.kill()
    holder.wait()
    assert train(folder)["finished"]


def test_a_run_made_by_another_recipe_is_not_continued(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe(), tmp_path)
    with pytest.raises(RunError, match=r"another recipe \(seed: 1993 there, 5 here\)"):
        resume_run(folder.path, tiny_recipe("zofc/base", "seed=5"))
    assert resume_run(folder.path, tiny_recipe()).path == folder.path
    with pytest.raises(RunError, match="not a run folder"):
        resume_run(tmp_path / "nothing")


def test_changed_data_or_weights_are_noticed_before_continuing(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)
    train(folder)
    (folder.path / "metrics.json").unlink()
    path = folder.path / "environment.json"
    good = json.loads(path.read_text())
    for change, words in (
        ({"data": dict.fromkeys(good["data"], "other")}, "data of .* changed"),
        ({"backbone": {"checksum": "other"}}, "weights changed"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(RunError, match=words):
            train(folder)


def test_a_corrupt_checkpoint_is_named(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)
    train(folder)
    state = folder.path / "checkpoint" / "state.json"
    content = json.loads(state.read_text())
    for broken in (
        "{",
        json.dumps({**content, "tensors": "absent.safetensors"}),
        json.dumps({**content, "surprise": 1}),
        "null",
        "{}",
    ):
        state.write_text(broken)
        with pytest.raises(RunError, match=r"checkpoint cannot be read: .*zofc run --again"):
            load_checkpoint(folder)
    state.write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(RunError, match="another version"):
        load_checkpoint(folder)


def test_a_recipe_edited_in_place_or_tensors_of_another_shape_are_refused(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("adapter-fo/base"), tmp_path)
    train(folder)
    (folder.path / "metrics.json").unlink()
    changed = folder.recipe.model_copy(update={"peft": folder.recipe.peft.model_copy(update={"rank": 3})})
    (folder.path / "recipe.yaml").write_text(dump_recipe(changed))
    with pytest.raises(RunError, match=r"recipe\.yaml was changed"):
        train(folder)
    found = load_checkpoint(folder)
    assert found is not None
    model = IncrementalModel(changed, torch.device("cpu"))
    with pytest.raises(RunError, match=r"does not fit this recipe: peft\.blocks"):
        model.restore(found[0].classes, found[0].tasks, found[1])


def test_ctrl_c_in_the_last_evaluation_finishes_this_run_and_starts_no_other(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = start_run(tiny_recipe("simplecil/base", "data.classes=2"), tmp_path)
    real = trainers.Trainer._evaluate

    def evaluate_then_ask(self: trainers.Trainer, *args: Any) -> None:
        real(self, *args)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainers.Trainer, "_evaluate", evaluate_then_ask)
    with pytest.raises(Interrupted, match="is finished; stopped before"):
        train(folder)
    assert folder.finished


@pytest.mark.parametrize(("room", "decoded"), [(2**30, 24), (8 * 3 * 16 * 16, 8 + 16 + 8), (0, 8 + 16 + 24)])
def test_test_images_are_decoded_once_while_there_is_room(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, decoded: int
) -> None:
    """Three tasks of two classes with four test images each; what is kept changes no accuracy."""
    cut: list[int] = []
    load = loading.Cutter.__getitem__

    def counted(self: loading.Cutter, request: loading.Request) -> Any:
        cut.extend(request.indices if request.crops is None else [])
        return load(self, request)

    monkeypatch.setattr(loading.Cutter, "__getitem__", counted)
    monkeypatch.setattr(trainers, "TEST_IMAGE_BYTES", room)
    settings = (
        "training.loading=workers",
        "training.workers=0",
        "training.check_adapter=false",
        "training.calibrate=false",
    )
    found = start_run(tiny_recipe("zofc/base", *settings), tmp_path / "workers")
    train(found)
    assert len(cut) == decoded
    plain = start_run(tiny_recipe("zofc/base", *settings), tmp_path / "plain")
    monkeypatch.setattr(trainers, "TEST_IMAGE_BYTES", 0)
    train(plain)
    assert found.matrix == plain.matrix


def test_a_second_ctrl_c_stops_at_once_and_says_how_to_continue(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = start_run(tiny_recipe("simplecil/base"), tmp_path), signal.getsignal(signal.SIGINT)

    def ask_twice(self: trainers.Trainer, *args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainers.Trainer, "_evaluate", ask_twice)
    with pytest.raises(Interrupted, match="stopped at once; continue with: zofc run --resume"):
        train(folder)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is before
    assert train(folder)["finished"]


# -- what can go wrong -----------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_with_the_step_and_what_to_try(tiny_recipe: Make, tmp_path: Path) -> None:
    for name, group in (("adapter-fo/base", "head"), ("zofc/base", "peft")):
        recipe = tiny_recipe(
            name,
            "head.kind=linear",
            f"optimize.{group}.lr=1e38",
            f"optimize.{group}.clip=null",
            f"optimize.{group}.optimizer=sign",
        )
        with pytest.raises(
            DivergedError, match=r"task 1, epoch \d, step \d.*learning rates: .*Try a smaller learning rate"
        ):
            train(start_run(recipe, tmp_path))


def test_a_full_disk_is_told_and_what_was_saved_is_intact(long_recipe: Recipe, straight: Any, tmp_path: Path) -> None:
    """The system refuses to write further, as a full disk does: files may not grow beyond a limit."""
    limited = subprocess.run(
        command(long_recipe, tmp_path), capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)),
    )  # fmt: skip
    assert limited.returncode == 2 and "no space left" in limited.stderr and "Traceback" not in limited.stderr
    (run,) = (tmp_path / "runs").glob("*")
    assert not list(run.rglob("*.tmp"))
    assert train(open_run(run))["finished"]
    assert result(run) == straight


def test_a_folder_removed_under_a_run_is_told(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)

    class Remover(Recorder):
        def event(self, event: Event) -> None:
            if event["event"] == "task_started":
                shutil.rmtree(folder.path)

    with pytest.raises(RunError, match="is gone"):
        train(folder, [Remover()])


def test_an_event_log_that_cannot_be_opened_is_told_and_listeners_are_closed(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)
    (folder.path / "events.jsonl").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*events\.jsonl"):
        train(folder)
    closed = []

    class Stubborn(Recorder):
        def close(self) -> None:
            closed.append(self)
            raise OSError("cannot close")

    with pytest.raises(OSError, match="cannot close"):
        Events([Stubborn(), Stubborn()]).close()
    assert len(closed) == 2


def test_a_folder_that_cannot_be_written_is_told(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match=r"cannot write .*--runs"):
        start_run(tiny_recipe(), tmp_path / "file" / "runs")

    def denied(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)  # root may write anywhere, so the refusal is played
    with pytest.raises(RunError, match="Permission denied"):
        start_run(tiny_recipe(), tmp_path / "other")


def test_writing_whole_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="no space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.source=glyfs", r"data\.source.*did you mean 'glyphs'"),
        ("peft.kind=adaptor", r"peft\.kind.*did you mean 'adapter'"),
        ("optimize.peft.estimator=spza", r"optimize\.peft\.estimator.*did you mean 'spsa'"),
        ("training.loggers=[tensorbord]", r"training\.loggers.*did you mean 'tensorboard'"),
        ("training.device=gpu", r"training\.device"),
        ("training.device=cuda:99", r"training\.device"),
        ("method.name=adaptor", r"method\.name.*did you mean 'adapter'"),
        ("method.name=classifier", r"optimize\.peft: method 'classifier' has no group 'peft'"),
    ],
)
def test_what_a_registry_knows_is_checked_before_a_folder_is_made(
    tiny_recipe: Make, tmp_path: Path, override: str, words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        start_run(tiny_recipe("zofc/base", override), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_devices_are_picked_by_name() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    assert environment(pick_device("cpu"))["device"] == "cpu"


def test_the_same_recipe_finds_its_folder_and_again_makes_a_new_one(tiny_recipe: Make, tmp_path: Path) -> None:
    recipe = tiny_recipe()
    folder = start_run(recipe, tmp_path)
    assert start_run(recipe, tmp_path).path == folder.path
    assert start_run(recipe, tmp_path, again=True).path.name == folder.path.name + "-2"
    assert folder_for(tiny_recipe("zofc/base", "seed=5"), tmp_path) != folder.path
    assert recipe_digest(tiny_recipe("zofc/base", "training.workers=7")) == recipe_digest(recipe)


# -- extending a finished run ----------------------------------------------------------------------------------------


def test_a_finished_run_learns_further_classes_in_a_folder_of_its_own(tiny_recipe: Make, tmp_path: Path) -> None:
    old = start_run(tiny_recipe("adapter-fo/base"), tmp_path)
    with pytest.raises(RunError, match="not finished"):
        extend_run(old.path, "glyphs:ink")
    train(old)
    before = result(old.path)
    photos = tmp_path / "photos"
    save_glyph_folders(photos, ("fox", "hare"))
    new = extend_run(old.path, f"folder:{photos}")
    metrics = train(new)
    assert metrics["tasks"] == 4 and metrics["finished"]
    rows = json.loads((new.path / "matrix.json").read_text())["accuracy"]
    assert rows[:3] == before[0]["accuracy"] and len(rows[3]) == 4 and None not in rows[3]
    assert result(old.path) == before
    assert extend_run(old.path, f"folder:{photos}").path == new.path  # asked again, it is found again
    with pytest.raises(RunError, match="another run"):
        extend_run(old.path, f"folder:{photos}", output=old.path)


def test_a_run_can_be_extended_where_its_first_data_is_gone(tiny_recipe: Make, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    save_glyph_folders(first, ("ant", "bee", "cow", "dog"))
    save_glyph_folders(second, ("elk", "fox"))
    recipe = tiny_recipe("adapter-fo/base", f"data.source=folder:{first}", "data.classes=null", "training.workers=0")
    old = start_run(recipe, tmp_path / "runs")
    train(old)
    first.rename(tmp_path / "elsewhere")
    recorder = Recorder()
    new = extend_run(old.path, f"folder:{second}")
    train(new, [recorder])
    assert any("earlier tasks are not evaluated again" in notice["text"] for notice in recorder.named("notice"))
    rows = json.loads((new.path / "matrix.json").read_text())["accuracy"]
    assert rows[-1][:2] == [None, None] and rows[-1][2] is not None
    assert open_run(new.path).finished


def test_what_cannot_be_learned_is_refused_before_a_folder_is_made(tiny_recipe: Make, tmp_path: Path) -> None:
    """Also where the first data is gone: a linear head has no prototype for a single class."""
    first, one = tmp_path / "first", tmp_path / "one"
    save_glyph_folders(first, ("ant", "bee"))
    save_glyph_folders(one, ("cow",))
    recipe = tiny_recipe(
        "adapter-fo/base", f"data.source=folder:{first}", "data.classes=null", "head.kind=linear", "training.workers=0"
    )
    old = start_run(recipe, tmp_path / "runs")
    train(old)
    for _ in range(2):
        with pytest.raises(RecipeError, match="task 2 has a single class"):
            extend_run(old.path, f"folder:{one}")
        assert len(list((tmp_path / "runs").iterdir())) == 1
        if first.exists():
            first.rename(tmp_path / "elsewhere")


def test_first_data_that_has_grown_does_not_keep_a_run_from_learning(tiny_recipe: Make, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    save_glyph_folders(first, ("ant", "bee"))
    save_glyph_folders(second, ("cow", "dog"))
    recipe = tiny_recipe("adapter-fo/base", f"data.source=folder:{first}", "data.classes=null", "training.workers=0")
    old = start_run(recipe, tmp_path / "runs")
    train(old)
    shutil.copy(first / "ant" / "0.png", first / "ant" / "new.png")
    recorder = Recorder()
    assert train(extend_run(old.path, f"folder:{second}"), [recorder])["tasks"] == 2
    assert any("changed since it was learned" in notice["text"] for notice in recorder.named("notice"))


def test_a_joint_run_has_no_further_tasks(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base", "data.joint=true"), tmp_path)
    train(folder)
    with pytest.raises(RunError, match="jointly"):
        extend_run(folder.path, "glyphs:ink")


def save_glyph_folders(root: Path, names: tuple[str, ...], images: int = 5) -> None:
    """Class folders of small, different pictures."""
    import numpy as np
    from PIL import Image

    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(images):
            pixels = np.random.default_rng(100 * number + i).integers(0, 255, (20, 24 + i, 3)).astype(np.uint8)
            pixels[:, :, number % 3] = 255
            Image.fromarray(pixels).save(root / name / f"{i}.png")


def test_the_optional_loggers_receive_scalars(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zofc.training import loggers

    written: list[tuple[dict[str, float], int]] = []
    closed: list[bool] = []
    monkeypatch.setitem(
        loggers.LOGGERS,
        "tensorboard",
        lambda recipe, run: loggers.ScalarLogger(
            lambda s, step: written.append((s, step)), lambda: closed.append(True)
        ),
    )
    train(start_run(tiny_recipe("zofc/base", "training.loggers=[tensorboard]"), tmp_path))
    assert closed == [True]
    assert any("train/loss" in scalars for scalars, _ in written)
    assert [step for scalars, step in written if "test/all classes" in scalars] == [1, 2, 3]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_that_is_not_installed_says_how_to_get_it(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from zofc.training import loggers

    def absent(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr(loggers, "import_module", absent)
    with pytest.raises(RecipeError, match=rf"zofc\[{name}\]"):
        train(start_run(tiny_recipe("simplecil/base", f"training.loggers=[{name}]"), tmp_path))


def test_each_logger_speaks_its_tools_language(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tools themselves are extras; stand-ins with their calls receive what a run tells them."""
    from zofc.training import loggers

    told: dict[str, list[Any]] = {"tensorboard": [], "wandb": [], "mlflow": []}
    writer = SimpleNamespace(add_scalar=lambda *call: told["tensorboard"].append(call), close=lambda: None)
    session = SimpleNamespace(log=told["wandb"].append, finish=lambda: None)
    tools = {
        "torch.utils.tensorboard": SimpleNamespace(SummaryWriter=lambda folder: writer),
        "wandb": SimpleNamespace(init=lambda **settings: told["wandb"].append(settings) or session),
        "mlflow": SimpleNamespace(
            set_experiment=lambda name: None,
            start_run=lambda run_name: told["mlflow"].append(run_name),
            log_params=told["mlflow"].append,
            log_metrics=lambda scalars, step: told["mlflow"].append((scalars, step)),
            end_run=lambda: None,
        ),
    }
    monkeypatch.setattr(loggers, "import_module", tools.__getitem__)
    folder = start_run(tiny_recipe("zofc/base", "training.loggers=[tensorboard, wandb, mlflow]"), tmp_path)
    overall = train(folder)["all_classes"]
    assert ("test/all classes", overall, 3) in told["tensorboard"]
    assert told["wandb"][0]["id"] == folder.path.name and told["wandb"][-1]["test/all classes"] == overall
    assert told["mlflow"][0] == folder.path.name and told["mlflow"][-1][0]["test/all classes"] == overall

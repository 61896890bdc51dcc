"""Facts about run folders under attack: kills, second writers, damaged files and tools that fail."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import zofc as package
from test_training import Recorder, result, save_glyph_folders
from zofc.errors import Interrupted, RunError
from zofc.recipe import Recipe
from zofc.report.live import Follower
from zofc.report.terminal import run_picture
from zofc.runfolder import create_run, open_run, read_runs, write_atomic
from zofc.runfolder.checkpoint import keep_task, load_checkpoint, load_task
from zofc.runfolder.create import is_free
from zofc.runfolder.files import json_text
from zofc.runfolder.progress import state_checksum
from zofc.training import loggers, pacing
from zofc.training.incremental_model import IncrementalModel
from zofc.training.runs import extend_run, resume_run, start_run, train

Make = Callable[..., Recipe]
Zofc = Callable[..., tuple[int, str]]
PACKAGE = Path(package.__file__).parent


@pytest.fixture(scope="module")
def trained(tiny_recipe: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = start_run(tiny_recipe("classifier-fo/base", "data.classes=4", "training.keep_tasks=true"),
                    tmp_path_factory.mktemp("trained"))  # fmt: skip
    train(run)
    return run.path


@pytest.fixture
def run_copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


# -- loggers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["init", "log", "finish"])
def test_a_logger_that_fails_is_switched_off_with_one_notice(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    calls: list[str] = []

    def act(name: str) -> None:
        calls.append(name)
        if name == when:
            raise ConnectionError("no server")

    def init(**_settings: object) -> SimpleNamespace:
        act("init")
        return SimpleNamespace(log=lambda _: act("log"), finish=lambda: act("finish"))

    monkeypatch.setattr(loggers, "import_module", {"wandb": SimpleNamespace(init=init)}.__getitem__)
    run = start_run(tiny_recipe("classifier-fo/base", "training.loggers=[wandb]"), tmp_path)
    recorder = Recorder()
    assert train(run, [recorder])["finished"]
    (notice,) = [event["text"] for event in recorder.named("notice") if "wandb" in event["text"]]
    assert "switched off (ConnectionError: no server)" in notice
    assert calls.count(when) == 1 and (when == "finish" or "finish" not in calls)


# -- what kills leave ------------------------------------------------------------------------------------------------


def test_what_a_killed_writer_left_is_removed_by_the_next_one_and_a_live_writers_file_stays(run_copy: Path) -> None:
    left = [run_copy / ".recipe.yaml.4242.tmp", run_copy / "checkpoint" / ".state.json.77.tmp",
            run_copy / "tasks" / ".01.safetensors.1.tmp", run_copy / ".matrix.json.9.tmp"]  # fmt: skip
    alive, other = run_copy / ".report.html.123.tmp", run_copy / ".mine.tmp"
    for path in (*left, alive, other):
        path.write_text("half")
    with alive.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with open_run(run_copy).locked():
            assert not any(path.exists() for path in left)
            assert alive.exists() and other.exists()  # another process writes the one, the other is not ours
    write_atomic(run_copy / "report.html", "whole")
    assert not alive.exists() and (run_copy / "report.html").read_text() == "whole"


def test_learning_continues_where_it_was_killed_before_its_folder_was_a_run(
    run_copy: Path, tmp_path: Path, zofc: Zofc
) -> None:
    save_glyph_folders(tmp_path / "new", ("fox", "hare"))
    output = tmp_path / "L"
    output.mkdir()
    (output / ".recipe.yaml.4242.tmp").write_text("half")
    code, said = zofc("learn", str(run_copy), f"folder:{tmp_path / 'new'}", "-o", str(output), "-q")
    assert code == 0, said
    assert open_run(output).finished and not (output / ".recipe.yaml.4242.tmp").exists()


def test_a_model_is_saved_where_saving_was_killed(run_copy: Path, tmp_path: Path) -> None:
    learner = package.load(run_copy)
    for killed_after in ("recipe.yaml", "metrics.json", "environment.json"):
        learner.save(tmp_path / "model")
        (tmp_path / "model" / "recipe.yaml").unlink()
        (tmp_path / "model" / killed_after).unlink(missing_ok=True)
        assert is_free(tmp_path / "model")
    learner.save(tmp_path / "model")
    assert package.load(tmp_path / "model").classes == learner.classes
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        learner.save(tmp_path / "file")


# -- two writers -----------------------------------------------------------------------------------------------------


def test_a_process_that_is_refused_changes_nothing(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe("simplecil/base"), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = tiny_recipe("simplecil/base", "training.threads=2", "training.keep_tasks=true")
    with open_run(run.path).locked():
        for second in (start_run(other, tmp_path), resume_run(run.path, other)):
            with pytest.raises(RunError, match="written by another process"):
                train(second)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    train(start_run(other, tmp_path))
    assert run.setting("training.keep_tasks") is True and sorted(run.kept_tasks) == [1, 2, 3]


def test_a_lock_that_was_deleted_is_made_again_unless_another_process_came(run_copy: Path) -> None:
    run = open_run(run_copy)
    with run.locked():
        (run_copy / ".lock").unlink()
        run.write_metrics(run.metrics)
        with pytest.raises(RunError, match="written by another process"), open_run(run_copy).locked():
            pass
        (run_copy / ".lock").unlink()
        with open_run(run_copy).locked():
            pass  # it came and went: what it wrote must not be written over
        before = (run_copy / "metrics.json").read_bytes()
        for write in (lambda: run.write_metrics({}), lambda: keep_task(run, 1, {})):
            with pytest.raises(RunError, match="deleted while this process was writing"):
                write()
        assert (run_copy / "metrics.json").read_bytes() == before


def test_children_of_a_killed_process_do_not_hold_its_lock(run_copy: Path) -> None:
    script = f"""
import os, time
from zofc.runfolder import open_run
with open_run({str(run_copy)!r}).locked():
    child = not os.fork()
    os.write(1, b"child\\n" if child else b"held\\n")
    time.sleep(60)
    os._exit(0)
"""
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert holder.stdout is not None
        assert {holder.stdout.readline() for _ in range(2)} == {"held\n", "child\n"}
        with pytest.raises(RunError, match="written by another process"), open_run(run_copy).locked():
            pass
        holder.kill()
        holder.wait()
        with open_run(run_copy).locked():
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)


def test_resuming_a_finished_run_removes_what_the_killed_report_left(zofc: Zofc, run_copy: Path) -> None:
    left = [folder / ".report.html.4242.tmp" for folder in (run_copy, run_copy.parent)]
    other = run_copy.parent / ".other.html.4242.tmp"
    for path in (*left, other):
        path.touch()
    assert zofc("run", "--resume", str(run_copy), "-q")[0] == 0
    assert not any(path.exists() for path in left) and other.exists()  # of others it knows nothing


def _write_many(path: Path, letter: str) -> None:
    for _ in range(20):
        write_atomic(path, letter * 10_000)


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_writers_of_one_file_do_not_meet(tmp_path: Path, pool: Any) -> None:
    """As runs that end together and write one report."""
    options = {"mp_context": get_context("fork")} if pool is ProcessPoolExecutor else {}
    with pool(6, **options) as workers:
        for future in [workers.submit(_write_many, tmp_path / "report.html", letter) for letter in "abcdef"]:
            future.result()
    assert len(set((tmp_path / "report.html").read_text())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_files_are_written_in_one_way() -> None:
    """Everything that others may read passes through `write_atomic`, but for what is renamed or marked as a whole."""
    written = {
        f"{path.relative_to(PACKAGE)}: {word}"
        for path in PACKAGE.rglob("*.py")
        for word in ("write_text(", "write_bytes(", '.open("w', '.open("ab', "savefig(", "to_csv(", "save_file(")
        if word in path.read_text("utf-8")
    }
    assert written == {
        "analysis/cost.py: write_text(",  # of the system
        "data/decode_cache.py: write_text(", 'data/decode_cache.py: .open("w',  # into a folder that is renamed
        "evidence/photographs.py: write_bytes(",  # into a folder that counts once it is complete
        "export/writer.py: write_text(", "export/writer.py: write_bytes(",  # into a folder that is renamed
        "export/conversion.py: write_bytes(", 'export/conversion.py: .open("ab',
        "report/draw_matplotlib.py: savefig(",  # into memory
        "model/checkpoints.py: save_file(",  # in a command that users are told
        'runfolder/files.py: .open("ab',
    }  # fmt: skip


# -- damage ----------------------------------------------------------------------------------------------------------


def test_a_damaged_tensor_is_seen_and_tensors_of_0_1_without_a_checksum_are_read(run_copy: Path) -> None:
    run = open_run(run_copy)
    (file,) = (run_copy / "checkpoint").glob("*.safetensors")
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(RunError, match="its checksum differs"):
        load_checkpoint(run)
    kept = run.kept_tasks[1]
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RunError, match="its checksum differs"):
        load_task(kept)
    file.write_bytes(good)
    tensors = load_file(file)
    save_file(tensors, file)  # without metadata
    assert load_checkpoint(run) is not None
    for value in (float("nan"), float("inf")):
        save_file({**tensors, "method|head.rows.0": torch.full_like(tensors["method|head.rows.0"], value)}, file)
        with pytest.raises(RunError, match=r"'method\|head\.rows\.0' holds values that are not finite"):
            load_checkpoint(run)
    save_file({**tensors, "optimizer|a|b|c|d": torch.ones(1)}, file)
    with pytest.raises(RunError, match=r"optimizer\|a\|b\|c\|d' is no name of a tensor"):
        load_checkpoint(run)


def test_a_model_without_finite_answers_gives_none(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = package.load(run_copy)
    monkeypatch.setattr(learner.model, "scores", lambda images: torch.full((len(images), 4), torch.nan))
    image = torch.zeros(3, 16, 16, dtype=torch.uint8)
    for answer in (learner.predict, learner.predict_proba):
        with pytest.raises(RunError, match="scores of 1 of 1 images are not finite"):
            answer(image)
    assert json_text({"a": [float("nan"), 1.0, (float("-inf"),)]}) == '{"a": [null, 1.0, [null]]}'


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file, without its checksum if it had one."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    path.write_text(json.dumps(change(content)))


@pytest.mark.parametrize(
    "change",
    [
        {"done": "2"}, {"done": -1}, {"done": 10**30}, {"tasks": 5}, {"tasks": [[0, 2], [2, 99]]},
        {"tasks": [[0], [1]]},
        {"classes": ["a", "a", "b", "c"]}, {"classes": {}}, {"rows": [[1.0]]}, {"rows": [[1e9], [1.0, 2.0]]},
        {"meter": []}, {"calibration": {"scale": {}, "images": 3}}, {"calibration": {"scale": 0.0, "images": 3}},
        {"calibration": []}, {"train_seconds": float("nan")}, {"scalars": 3}, {"scalars": {"optimizer|a|b|c": []}},
        {"large": {"method|x": 7}}, {"tensors": None}, {"tensors": ["x"]}, {"counts": [-1, 1]}, {"surprise": 1},
        {"peak_memory": ["x"]}, {"tasks": [[2, 4], [0, 2]]},
    ],
    ids=str,
)  # fmt: skip
def test_a_state_that_cannot_be_is_refused(run_copy: Path, zofc: Zofc, change: dict[str, Any]) -> None:
    state = run_copy / "checkpoint" / "state.json"
    edit(state, lambda content: {**content, **change})
    (run_copy / "metrics.json").unlink()
    code, said = zofc("run", "--resume", str(run_copy), "-q")
    assert code == 2 and "Traceback" not in said and ("state.json" in said or "damaged" in said), said


def test_a_state_that_was_edited_is_refused_by_its_checksum(run_copy: Path) -> None:
    state = run_copy / "checkpoint" / "state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({**content, "classes": ["w", "x", "y", "z"]}))
    with pytest.raises(RunError, match="damaged or edited"):
        load_checkpoint(open_run(run_copy))


BAD_EVENTS: list[Any] = [
    7, [], {"event": 3}, {"event": "notice", "text": 5}, {"event": "run_started", "tasks": [1]},
    {"event": "run_started", "tasks": 10**400}, {"event": "task_trained", "task": 0, "seconds": 1, "peak_memory": []},
    {"event": "evaluated", "task": "x", "row": 5}, {"event": "evaluated", "task": 0, "row": [{}], "seconds": 1.0},
    {"event": "epoch", "task": 0, "epoch": 0, "loss": "low", "accuracy": 1, "seconds": 1, "steps": -4},
    {"event": "task_started", "task": 0, "classes": 7, "steps": 1, "epochs": "2"},
    {"event": "run_finished", "metrics": 3},
    {"event": "run_resumed", "position": {"task": None, "epoch": {}}}, {"event": "notice", "text": "x", "task": "y"},
]  # fmt: skip


@pytest.mark.parametrize("event", BAD_EVENTS, ids=lambda event: str(event)[:60])
def test_events_that_make_no_sense_are_counted_by_watch_and_named_by_reports(run_copy: Path, event: Any) -> None:
    with (run_copy / "events.jsonl").open("a") as log:
        log.write(json.dumps({"time": 1.0, **event} if isinstance(event, dict) else event) + "\n")
    follower = Follower(run_copy)
    follower.read()
    assert follower.view.unread == 1
    run_picture(follower.view, 80, 40, time.time())
    with pytest.raises(RunError, match=r"events\.jsonl"):
        read_runs([run_copy])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("metrics.json", {"trainable_parameters": {"head": "\ud800"}}), ("metrics.json", {"tasks": "three"}),
        ("metrics.json", {"finished": 1}), ("metrics.json", {"seconds": [1]}), ("metrics.json", {"tasks": -3}),
        ("environment.json", {"data": []}), ("environment.json", {"plugins": 5}), ("environment.json", {"backbone": 1}),
        ("environment.json", {"threads": "many"}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("command", ["show", "report", "run"])
def test_values_of_the_wrong_kind_are_named(
    run_copy: Path, zofc: Zofc, name: str, change: dict[str, Any], command: str
) -> None:
    edit(run_copy / name, lambda content: {**content, **change})
    code, said = zofc(*{"run": ["run", "--resume"]}.get(command, [command]), str(run_copy))
    assert code == 2 and name in said and "Traceback" not in said, said


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.json", "checkpoint/state.json", "flatness.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\xff", ""], ids=lambda text: text[:3])
def test_a_file_that_is_no_json_is_named(run_copy: Path, name: str, content: str) -> None:
    (run_copy / name).write_bytes(content.encode("latin-1") + b"\n")
    if name == "events.jsonl" and not content:
        return  # a log may be empty
    with pytest.raises(RunError, match=Path(name).name):
        load_checkpoint(open_run(run_copy)) if "state" in name else read_runs([run_copy])


# -- checkpoints -----------------------------------------------------------------------------------------------------


def test_another_number_of_threads_is_said_to_change_bits(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe("classifier-fo/base", "training.threads=1"), tmp_path)

    class StopAfterTask(Recorder):
        def event(self, event: Any) -> None:
            super().event(event)
            if event["event"] == "checkpoint" and event["task"] == 1:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(run, [StopAfterTask()])
    environment = json.loads((run.path / "environment.json").read_text())
    (run.path / "environment.json").write_text(json.dumps({**environment, "threads": 4}))
    recorder = Recorder()
    train(resume_run(run.path), [recorder])
    (text,) = [event["text"] for event in recorder.named("notice") if "threads" in event["text"]]
    assert "threads: 1, the run was begun with 4" in text and "bits of results may differ" in text


def test_half_a_minute_is_the_most_that_a_kill_loses_unless_saving_is_slow(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now[0])
    clock = pacing.CheckpointPacing(tiny_recipe().training.checkpoint_minutes)
    now[0] += 29
    assert not clock.due and clock.affordable
    now[0] += 2
    assert clock.due and clock.note_save(0.2) is None and clock.interval == 30
    assert not clock.due
    text = clock.note_save(1.2)
    assert text is not None and "takes 1.2 s, so there is one every 2.0 min" in text
    assert clock.note_save(1.3) is None and clock.interval == pytest.approx(130)
    assert pacing.CheckpointPacing(2.0).interval == 120


def test_a_run_killed_in_an_evaluation_neither_trains_nor_evaluates_again(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe("zofc/base", "training.checkpoint_minutes=1.0e-9", "training.threads=1")
    whole = start_run(recipe, tmp_path / "whole")
    train(whole)
    monkeypatch.setattr(pacing.CheckpointPacing, "affordable", True)
    run = start_run(recipe, tmp_path / "killed")
    guesses, calls = IncrementalModel.guesses, [0]

    def killed(self: Any, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:  # the second group after the second task
            raise ZeroDivisionError
        return guesses(self, *given)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("zofc.training.trainer.IncrementalModel.guesses", killed)
        train(run)
    checkpoint = load_checkpoint(run)
    assert checkpoint is not None and checkpoint.progress.learned and len(checkpoint.progress.row) == 1
    recorder = Recorder()
    train(resume_run(run.path), [recorder])
    assert recorder.steps[0].task == 2 and recorder.named("evaluated")[0]["task"] == 1
    assert result(run.path) == result(whole.path)


def test_a_run_that_another_process_made_meanwhile_is_not_overwritten(tiny_recipe: Make, tmp_path: Path) -> None:
    first = create_run(tmp_path / "run", tiny_recipe("simplecil/base", "training.threads=1"))
    before = first.recipe_file.read_bytes()
    create_run(tmp_path / "run", tiny_recipe("simplecil/base", "training.threads=2"))
    assert first.recipe_file.read_bytes() == before
    state = {"version": 1, "a": [1.0, float("nan")]}
    assert state_checksum(json.loads(json.dumps(state))) == state_checksum(state)
    with pytest.raises(RunError, match="not finished"):
        extend_run(first.path, "glyphs:ink")

"""Facts about the journal: every zeroth-order step is in it, and training follows from it to the bit."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from test_training import save_glyph_folders
from waiting import DEADLINE
from zofc.analysis.replay import Comparison, JournalCheck, Moment, Replay, RunReplay, summarize_journal
from zofc.errors import DivergedError, RunError
from zofc.optim.optimizers import GroupOptimizer
from zofc.optim.placement import Placement
from zofc.recipe import Recipe
from zofc.runfolder import Run, open_run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.journal import MAGIC, JournalPosition, JournalWriter, read_journal
from zofc.runfolder.journal_records import JournalHeader, SetEnd, SetStart, SetStep, TensorStart
from zofc.runfolder.names import JOURNAL_FILE
from zofc.training.pacing import CheckpointPacing
from zofc.training.run_journal import RunJournal
from zofc.training.runs import extend_run, resume_run, start_run, train

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
Make = Callable[..., Recipe]
Command = Callable[..., tuple[int, str]]
RECIPES = {
    "ZO-FC": ("zofc/base",),
    "per image": ("zofc/base", "optimize.peft.per=image"),
    "several per image": ("zofc/base", "optimize.peft.per=image", "optimize.peft.queries=2", "optimize.peft.chunk=2"),
    "forward gradient": ("zofc/base", "optimize.peft.estimator=forward_gradient", "optimize.peft.directions=gaussian"),
    "sphere": ("zofc/base", "optimize.peft.directions=sphere", "optimize.peft.schedule=cosine"),
    "sign": ("zofc/base", "optimize.peft.optimizer=sign"),
    "adam": ("zofc/base", "optimize.peft.optimizer=adam", "optimize.peft.weight_decay=0.1"),
    "adamw": ("zofc/base", "optimize.peft.optimizer=adamw", "optimize.peft.per=image"),
    "zeroth order throughout": ("adapter-zo/base",),
    "two sets": ("adapter-zo/base", "optimize.head.lr=0.02"),
    "classifier": ("classifier-zo/base",),
    "swapped": ("zofc/base", "optimize.peft.order=first", "optimize.head.order=zeroth"),
    "prototypes": ("adapter-zo/base", "method.prototypes=true"),
    "ZO-Ridge": ("zo-ridge/base",),
    "LAE": ("lae-zo/base",),
    "L2P": ("l2p-zo/base",),
    "CODA-Prompt": ("coda-zo/base", "coda.blocks=first 2", "coda.per_task=3", "coda.length=4"),
    "EASE": ("ease-zo/base",),
    "InfLoRA": ("inflora-zo/base",),
    "APER": ("aper-zo/base",),
    "released EASE": ("ease-zo/base", "method.variant=zofc"),
    "released InfLoRA": ("inflora-zo/base", "method.variant=zofc"),
}


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture(scope="module")
def trained(tiny_recipe: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of ZO-FC with 36 steps in three tasks; leave it as it is."""
    run = start_run(tiny_recipe("zofc/base", "optimize.peft.epochs=6"), tmp_path_factory.mktemp("trained"))
    torch.set_num_threads(1)
    train(run)
    return run


def journal_bytes(run: Run) -> bytes:
    return (run.path / JOURNAL_FILE).read_bytes()


def copy_with(run: Run, path: Path, content: bytes | None) -> Path:
    """A copy of a run with another journal."""
    shutil.copytree(run.path, path)
    (path / JOURNAL_FILE).unlink()
    if content is not None:
        (path / JOURNAL_FILE).write_bytes(content)
    return path


def records(data: bytes) -> list[tuple[int, int]]:
    """Where each record of a journal begins and ends, read as the reference describes it."""
    at, places = len(MAGIC), []
    while at < len(data):
        begin, length, shift, at = at, 0, 0, at + 1
        while True:
            byte = data[at]
            length, shift, at = length | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        at += length + 4
        places.append((begin, at))
    return places


def sealed(*entries: Any, path: Path) -> JournalPosition:
    """A journal of these entries with checksums that are right."""
    writer = JournalWriter(path, JournalHeader("recipe", 0, "cpu"))
    for entry in entries:
        writer.append(entry)
    return writer.commit()


def start(**changes: Any) -> SetStart:
    plan = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "directions": "rademacher", "queries": 2,
            "per": "batch", "estimator": "spsa", "epsilon": 1e-3}  # fmt: skip
    tensors = (TensorStart("a", (3,), "float32", bytes(12)),)
    whole = SetStart(0, "peft", ("peft",), plan, 7, ("task", 0, "peft"), "", tensors)
    return whole._replace(**changes)


# -- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_training_follows_from_the_journal_bit_for_bit(name: str, tiny_recipe: Make, tmp_path: Path) -> None:
    recipe, *overrides = RECIPES[name]
    run = start_run(tiny_recipe(recipe, *overrides, "training.keep_tasks=true"), tmp_path)
    train(run)
    replay = RunReplay(run.path)
    check = replay.check()
    assert check.problem is None and check.compared and check.conclusion.endswith("bit for bit")
    assert check.steps == summarize_journal(replay.journal).total > 0
    ends = [entry for entry, _ in replay.journal.entries if isinstance(entry, SetEnd)]
    assert len(ends) == sum(isinstance(entry, SetStart) for entry, _ in replay.journal.entries)
    moved = {name for entry, _ in replay.journal.entries if isinstance(entry, SetStart) for name, *_ in entry.tensors}
    assert {one.name for one in check.compared} <= moved


def test_only_values_that_the_journal_does_not_know_are_in_it(tiny_recipe: Make, tmp_path: Path) -> None:
    """Of a shared adapter those before the first task; of rows and adapters of a task their own."""
    for name, expected in (
        ("zofc/base", [True, False, False]),
        ("ease-zo/base", [True, True, True]),
    ):
        run = start_run(tiny_recipe(name, "optimize.head.order=first"), tmp_path / name)
        train(run)
        entries = [entry for entry, _ in RunReplay(run.path).journal.entries if isinstance(entry, SetStart)]
        for entry, known in zip(entries, expected, strict=True):
            assert all((one.value is not None) == known for one in entry.tensors)


def test_what_the_method_changes_after_the_steps_is_not_taken_for_damage(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe(*RECIPES["prototypes"]), tmp_path)
    train(run)
    replay = RunReplay(run.path)
    last = [entry for entry, _ in replay.journal.entries if isinstance(entry, SetEnd)][-1]
    assert any(last.changed) and not all(last.changed)  # rows have become class means
    assert replay.check().problem is None


def test_the_adapter_at_any_step_is_that_of_training(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zofc: Command
) -> None:
    real, seen = Placement.step, {}

    def step(self: Placement, images: Any, labels: Any, epoch: int, number: int, **rest: Any) -> Any:
        report = real(self, images, labels, epoch, number, **rest)
        (part,) = self.zeroth
        task = part.directions.name[1]
        seen[task, number] = {name: value.clone() for name, value in part.optimizer.parameters.items()}
        return report

    monkeypatch.setattr(Placement, "step", step)
    run = start_run(tiny_recipe("zofc/base"), tmp_path)
    train(run)
    assert len(seen) == 12
    for text, expected in (
        ("1", seen[0, 3]), ("2.2", seen[1, 1]), ("3.0", seen[1, 3]), ("3.4", seen[2, 3]), ("3", seen[2, 3])
    ):  # fmt: skip
        code, said = zofc("replay", str(run.path), "--to", text, "-o", "adapter.safetensors")
        assert code == 0 and "bytes a step" in said and "steps a second" in said
        found = load_file("adapter.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_replay_needs_no_data_and_no_backbone(trained: Run, tmp_path: Path) -> None:
    path = copy_with(trained, tmp_path / "run", journal_bytes(trained))
    text = (path / "recipe.yaml").read_text()
    (path / "recipe.yaml").write_text(text.replace("tiny.safetensors", "gone.safetensors"))
    assert RunReplay(path).check().problem is None


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("4", "no task 4 in its journal, but tasks 1 to 3"),
        ("2.13", "task 2 has 12 steps"),
        ("x", "expected TASK or TASK.STEP"),
        ("0", "expected TASK or TASK.STEP"),
        ("1.", "expected TASK or TASK.STEP"),
    ],
)
def test_moments_that_there_are_not_are_refused(trained: Run, zofc: Command, to: str, message: str) -> None:
    code, said = zofc("replay", str(trained.path), "--to", to, "-o", "file.safetensors")
    assert code == 2 and message in said and not Path("file.safetensors").exists()


def test_a_stored_adapter_that_does_not_follow_is_named(
    trained: Run, zofc: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert zofc("replay", str(trained.path), "--check")[0] == 0
    checkpoint = load_checkpoint(trained)
    assert checkpoint is not None
    name = "peft.blocks.1.up_bias"
    checkpoint.method[name][3] += 1e-6
    monkeypatch.setattr("zofc.analysis.replay.load_checkpoint", lambda _: checkpoint)
    code, said = zofc("replay", str(trained.path), "--check")
    assert code == 2 and f"{name} in the checkpoint differs from what the journal leads to by" in said


def test_other_kinds_of_devices_are_compared_by_distance() -> None:
    def check(distance: float, trained_on: str | None, linear: bool) -> str | None:
        return JournalCheck((Comparison("a", "b", distance),), (), 1, 1.0, trained_on, linear).problem

    assert check(1e-9, None, linear=True) is not None  # on the same kind every bit counts
    assert check(9e-6, "cuda", linear=True) is None
    assert "differs" in (check(2e-5, "cuda", linear=True) or "")
    assert "Adam" in (check(1e-2, "cuda", linear=False) or "")


@pytest.mark.parametrize("name", ["ZO-FC", "per image"])
def test_another_rounding_stays_close_under_sgd(
    name: str, tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another kind of device: sums are rounded otherwise."""
    run = start_run(tiny_recipe(*RECIPES[name], "optimize.peft.epochs=40"), tmp_path)
    train(run)

    def in_double(space: Any, vectors: torch.Tensor, shares: torch.Tensor) -> Any:
        total = (shares.double() @ vectors.flatten(0, -2).double()).float()
        return space.split(total * (1 + 2.0**-23))

    monkeypatch.setattr("zofc.analysis.replay.weigh_directions", in_double)
    replay = RunReplay(run.path)
    assert "differs" in (replay.check().problem or "")
    monkeypatch.setattr(RunReplay, "same_device", False)
    check = replay.check()
    assert check.problem is None and "within" in check.conclusion and check.steps == 240


@needs_cuda
@pytest.mark.parametrize("name", ["ZO-FC", "per image", "forward gradient", "adam", "EASE"])
def test_on_cuda_bit_for_bit_and_on_the_cpu_close_to_it(name: str, tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe(*RECIPES[name], "training.device=cuda", "optimize.peft.epochs=10"), tmp_path)
    train(run)
    assert RunReplay(run.path).check().conclusion.endswith("bit for bit")
    check = RunReplay(run.path, "cpu").check()
    assert check.problem is None if check.linear else check.steps


def test_the_measurement_of_a_gpu_runs_on_a_cpu_too(tiny_weights: Path, tmp_path: Path) -> None:
    """So that it does not fail where there is a GPU; what it finds here is known."""
    script = Path(__file__).resolve().parents[1] / "benchmarks" / "cuda_journal.py"
    small = ["--device", "cpu", "--backbone", str(tiny_weights), "--epochs", "2", "--rounds", "1"]
    command = [sys.executable, str(script), *small, "--out", str(tmp_path / "cuda.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr[-2000:]
    content = json.loads((tmp_path / "cuda.json").read_text("utf-8"))
    assert [row["name"] for row in content["rows"]] == ["sgd", "adam", "sign", "image"]
    assert all(row["bit_equal"] and row["cpu_distance"] == 0 and row["steps"] == 16 for row in content["rows"])
    group = content["group_of_one"]
    assert group["backend"] == "gloo" and group["matrix_equal"] and group["distance"] < 1e-5
    assert group["bytes"]["coefficients"] == 16 * 4 * 4 and group["bytes"]["gradient"] == 16 * 4 * (4 * 24 + 1)
    assert content["recording"]["step_ms"] > 0 and "a direction per image" in done.stdout


# -- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "tail"),
    [(0, b""), (5, b""), (13, b""), (30, b""), (14, b"T\x1d\x00"), (14, bytes(50)), (14, b"T\xff\xff\xff\xff\x7f")],
)
def test_a_killed_and_resumed_run_has_the_journal_of_one_never_killed(
    trained: Run, tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, tail: bytes
) -> None:
    steps, asked, record = count(), count(1), RunJournal._record

    def record_until(self: RunJournal, move: Any) -> None:
        record(self, move)
        if next(steps) == at:
            raise Killed

    monkeypatch.setattr(RunJournal, "_record", record_until)
    monkeypatch.setattr(CheckpointPacing, "due", property(lambda _: next(asked) % 4 == 0))
    run = start_run(tiny_recipe("zofc/base", "optimize.peft.epochs=6"), tmp_path)
    with pytest.raises(Killed):
        train(run)
    assert len(journal_bytes(run)) > 0 and journal_bytes(trained).startswith(journal_bytes(run))
    with (run.path / JOURNAL_FILE).open("ab") as file:
        file.write(tail)
    if at >= 4:
        replay = RunReplay(run.path)
        assert replay.check().problem is None  # the checkpoint, which is some steps behind
        assert replay.journal.lost == len(tail)
    monkeypatch.setattr(RunJournal, "_record", record)
    train(resume_run(run.path))
    assert journal_bytes(run) == journal_bytes(trained)
    progress = load_checkpoint(run)
    assert progress is not None and progress.progress.journal == load_checkpoint(trained).progress.journal  # type: ignore[union-attr]


def test_a_resumed_run_whose_journal_is_damaged_says_so(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: RunJournal) -> None:
        raise Killed

    monkeypatch.setattr(CheckpointPacing, "due", property(lambda _: True))
    monkeypatch.setattr(RunJournal, "end_steps", stop)
    run = start_run(tiny_recipe("zofc/base"), tmp_path)
    with pytest.raises(Killed):
        train(run)
    monkeypatch.undo()
    path = run.path / JOURNAL_FILE
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"journal.bin is damaged at record \d+, after task 1, step 3.*journal=false"):
        train(resume_run(run.path))
    path.unlink()
    with pytest.raises(RunError, match=r"journal.bin is missing.*training.journal=false"):
        train(resume_run(run.path))
    without = run.recipe.model_copy(update={"training": run.recipe.training.model_copy(update={"journal": False})})
    train(resume_run(run.path, without))
    with pytest.raises(RunError, match="has no journal"):
        RunReplay(run.path)


def test_a_run_that_goes_on_from_another_begins_a_journal_of_its_own(
    trained: Run, tmp_path: Path, zofc: Command
) -> None:
    save_glyph_folders(tmp_path / "new", ("new", "newer"))
    more = extend_run(trained.path, f"folder:{tmp_path / 'new'}", tmp_path / "more")
    train(more)
    replay = RunReplay(more.path)
    assert summarize_journal(replay.journal).steps.keys() == {4} and replay.check().problem is None
    code, said = zofc("replay", str(more.path), "--to", "3", "-o", "file.safetensors")
    assert code == 2 and "no task 3 in its journal, but tasks 4 to 4" in said


# -- what is recorded ------------------------------------------------------------------------------------------------


def test_a_step_that_was_skipped_is_recorded(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, move = count(), GroupOptimizer.move

    def refuse(self: GroupOptimizer, gradient: Any, *rest: Any) -> Any:
        zeroth = self.plan.order == "zeroth"
        return None if zeroth and next(steps) == 5 else move(self, gradient, *rest)

    monkeypatch.setattr(GroupOptimizer, "move", refuse)
    run = start_run(tiny_recipe("zofc/base"), tmp_path)
    with pytest.raises(DivergedError):
        train(run)
    replay = RunReplay(run.path)
    assert summarize_journal(replay.journal).skipped == 1 and "1 of them skipped" in str(
        summarize_journal(replay.journal)
    )
    last = replay.journal.entries[-1][0]
    assert isinstance(last, SetStep) and not last.moved and (last.step, last.shares) == (1, b"")
    assert replay.check().problem is None
    assert replay.replay(Moment(2, 2))[0].steps == 5


@pytest.mark.parametrize(
    ("shares", "most"), [(4, 1_000_000), (48, 5_000_000)], ids=["four queries", "one direction per image, batch 48"]
)
def test_twenty_thousand_steps_are_small(tmp_path: Path, shares: int, most: int) -> None:
    values = torch.rand(42_000).numpy().tobytes()  # a ViT-B adapter of rank 5 in five blocks, half of it not zero
    tensors = tuple(TensorStart(f"peft.{i}", (2100,), "float32", values[8400 * i :][:8400]) for i in range(20))
    path = tmp_path / "journal.bin"
    entries: list[Any] = []
    for task in range(20):
        plan = {**start().plan, "queries": shares}
        known = tuple(one._replace(value=None) for one in tensors)
        entries.append(start(task=task, plan=plan, tensors=known if task else tensors))
        entries += [
            SetStep(0, step // 50, step, True, 0.01, 0.1 + step, torch.rand(shares).numpy().tobytes())
            for step in range(1000)
        ]
        entries.append(SetEnd(0, (b"12345678",) * 20, (False,) * 20))
    position = sealed(*entries, path=path)
    assert position.length == path.stat().st_size < most
    journal = read_journal(path, position)
    assert [entry for entry, _ in journal.entries[1:]] == entries
    assert summarize_journal(journal).bytes_per_step < 4 * shares + 24


def test_reading_a_journal_needs_no_torch(trained: Run) -> None:
    length, checksum = load_checkpoint(trained).progress.journal or (0, 0)  # type: ignore[union-attr]
    code = (
        "import sys; from pathlib import Path; from zofc.runfolder.journal import *;"
        f"journal = read_journal(Path({str(trained.path / JOURNAL_FILE)!r}), JournalPosition({length}, {checksum}));"
        "print(len(journal.entries), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(1 + 3 * 2 + 36), "False"]


def test_first_order_runs_have_none_and_others_can_do_without(tiny_recipe: Make, tmp_path: Path, zofc: Command) -> None:
    first = start_run(tiny_recipe("adapter-fo/base", "data.classes=2"), tmp_path)
    train(first)
    assert not (first.path / JOURNAL_FILE).exists()
    code, said = zofc("replay", str(first.path))
    assert code == 2 and "nothing in it moves by zeroth order" in said
    without = start_run(tiny_recipe("zofc/base", "data.classes=2", "training.journal=false"), tmp_path)
    train(without)
    assert not (without.path / JOURNAL_FILE).exists()
    code, said = zofc("replay", str(without.path), "--check")
    assert code == 2 and "training.journal=true --again" in said


# -- damage ----------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_is_found_and_its_record_named(trained: Run, tmp_path: Path) -> None:
    data, path = journal_bytes(trained), tmp_path / JOURNAL_FILE
    position = JournalPosition(*load_checkpoint(trained).progress.journal)  # type: ignore[union-attr, misc]
    places = records(data)
    assert places[-1][1] == len(data)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        number = next((number for number, (_, end) in enumerate(places, 1) if at < end), 0)
        with pytest.raises(RunError, match=rf"journal.bin is damaged at record {number}, "):
            read_journal(path, position)


def test_a_record_that_was_removed_or_moved_is_found(trained: Run, tmp_path: Path) -> None:
    data, path = journal_bytes(trained), tmp_path / JOURNAL_FILE
    position = JournalPosition(*load_checkpoint(trained).progress.journal)  # type: ignore[union-attr, misc]
    (a, b), (_, c) = records(data)[5:7]
    for changed, message in (
        (data[:a] + data[b:] + data[-100:], "record 6, after task 1, step 3: its checksum differs"),
        (data[:a] + data[b:c] + data[a:b] + data[c:], "record 6, after task 1, step 3: its checksum differs"),
        (data[:c], "bytes of the"),
    ):
        path.write_bytes(changed)
        with pytest.raises(RunError, match=message):
            read_journal(path, position)


def test_a_journal_of_another_run_is_refused(trained: Run, tiny_recipe: Make, tmp_path: Path) -> None:
    other = start_run(tiny_recipe("zofc/base", "optimize.peft.epochs=6", "seed=4"), tmp_path)
    train(other)
    path = copy_with(trained, tmp_path / "run", journal_bytes(other) + bytes(100))
    with pytest.raises(RunError, match=r"it is not the journal of the checkpoint|its checksum differs"):
        RunReplay(path)
    same = load_checkpoint(other).progress.journal  # type: ignore[union-attr]
    with pytest.raises(RunError, match="it is not the journal of the checkpoint"):
        read_journal(path / JOURNAL_FILE, JournalPosition(same[0], same[1] ^ 1))  # type: ignore[index]


def with_crc(kind: bytes, payload: bytes) -> bytes:
    """A journal of a header and a record, whose checksums are right."""
    data, checksum = MAGIC, zlib.crc32(MAGIC)
    header = json.dumps(JournalHeader("r", 0, "cpu")._asdict()).encode()
    for record in (b"H" + bytes([len(header)]) + header, kind + bytes([len(payload)]) + payload):
        checksum = zlib.crc32(record, checksum)
        data += record + struct.pack("<I", checksum)
    return data


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        (b"X", b"", "unknown kind"),
        (b"T", b"", "too short"),
        (b"T", b"\x00\x00\x00\x00", "set 1 of 0"),
        (b"T", b"\xff" * 12, "too long"),
        (b"E", b"\x05", "set 6 of 0"),
        (b"S", b"\x02ab", "cannot be decompressed"),
        (b"S", b"\x7f", "too short"),
        (b"H", b"[]", "no names"),
        (b"H", b"{}", "no sense"),
    ],
)
def test_hostile_records_are_refused(tmp_path: Path, kind: bytes, payload: bytes, message: str) -> None:
    path = tmp_path / "journal.bin"
    path.write_bytes(with_crc(kind, payload))
    with pytest.raises(RunError, match=message):
        read_journal(path, JournalPosition(path.stat().st_size, 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": (TensorStart("a", (2**40, 2**20), "float32", bytes(12)),)}, "bytes of values in"),
        ({"tensors": (TensorStart("a", (4,), "float32", bytes(12)),)}, "not the 16 bytes"),
        ({"tensors": (TensorStart("a", (2,), "float32", bytes(12)),)}, "not the 8 bytes"),
        ({"tensors": (TensorStart("a", (-1,), "float32", bytes(12)),)}, "makes no sense"),
        ({"tensors": (TensorStart("a", (3,), "int7", bytes(12)),)}, "makes no sense"),
        ({"tensors": ()}, "makes no sense"),
        ({"task": -1}, "makes no sense"),
        ({"plan": {"queries": 0}}, "makes no sense"),
        ({"plan": {"queries": "x"}}, "makes no sense"),
        ({"stream": ([],)}, "makes no sense"),
        ({"label": 5}, "makes no sense"),
    ],
)
def test_hostile_sets_are_refused_before_memory_is_asked_for(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "journal.bin"
    position = sealed(start(**changes), path=path)
    with pytest.raises(RunError, match=message):
        read_journal(path, position)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([start(tensors=(TensorStart("a", (2**40,), "float32", None),))], "that the journal has not"),
        ([start(plan={**start().plan, "optimizer": "none"})], "settings of peft that cannot be"),
        ([start(plan={**start().plan, "queries": 2, "x": 1})], "settings of peft that cannot be"),
        ([start(), SetStep(0, 0, 0, True, 0.1, 1.0, bytes(32))], "has 8 shares"),
    ],
)
def test_hostile_steps_are_errors(entries: list[Any], message: str) -> None:
    replay = Replay(torch.device("cpu"))
    with pytest.raises(ValueError, match=message):
        for entry in entries:
            replay.take(entry)


def test_a_journal_that_cannot_be_read_is_a_one_line_error(trained: Run, tmp_path: Path, zofc: Command) -> None:
    for number, content in enumerate([None, b"", b"{}", b"\x00" * 5000, journal_bytes(trained)[:-1]]):
        path = copy_with(trained, tmp_path / str(number), content)
        code, said = zofc("replay", str(path), "--check")
        assert code == 2 and said.count("\n") == 1 and "journal.bin" in said and "Traceback" not in said
    assert open_run(trained.path).finished

"""Facts about the journal of zofc-device: a few bytes a step, from which zofc rebuilds the adapter of the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import zofc_device
from device_bundles import FIRST, SECOND, Pair, make_lesson
from zofc.analysis.lesson_replay import LessonReplay
from zofc.analysis.replay import Moment, summarize_journal
from zofc.errors import RunError
from zofc.runfolder.journal import read_journal
from zofc.runfolder.journal_records import SetEnd, SetStart, SetStep
from zofc.runfolder.names import JOURNAL_FILE
from zofc_device import lesson as lesson_module
from zofc_device import progress as progress_module
from zofc_device.bundle import Bundle
from zofc_device.steps import Placement

Command = Callable[..., tuple[int, str]]
THIRD = make_lesson("emu", "fox")
FORWARD = "optimize.peft.estimator=forward_gradient"
FEW = ("optimize.peft.epochs=4", "optimize.head.epochs=2", FORWARD)  # 20 steps a lesson
SETTINGS = {
    "shared": FEW,
    "two-point": FEW[:2],
    "per image": (*FEW, "optimize.peft.per=image", "optimize.peft.directions=gaussian"),
    "schedule": (*FEW, "optimize.peft.schedule=cosine", "optimize.peft.directions=sphere"),
    "no clip": (*FEW, "optimize.peft.clip=null", "optimize.peft.weight_decay=0.01"),
    "late": (*FEW, "optimize.peft.start=1"),
}


def adapter_of(path: Path) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(np.asarray(value))
        for name, value in Bundle(path).read().tensors.items()
        if name.startswith("peft.")
    }


def displacement(start: Any, found: Any, stored: Any) -> float:
    """How far two adapters are from each other, over how far they went."""
    moved = sum(float((stored[name] - start[name]).square().sum()) for name in stored)
    assert moved > 0
    return float((sum(float((stored[name] - found[name]).square().sum()) for name in stored) / moved) ** 0.5)


class Stopped(BaseException):
    """Stands for a power cut."""


def interrupt(device: zofc_device.Learner, lesson: Any, at: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn a lesson that is cut off before some of its steps, and begun again; progress is saved at every third."""
    monkeypatch.setattr(progress_module, "SAVE_SHARE", 0)
    step, save = Placement.step, lesson_module.Lesson._save

    def save_some(self: Any, *given: Any) -> None:
        if self.step % 3 == 0:
            save(self, *given)

    for number in at:

        def stop(self: Placement, *given: Any, at: int = number) -> float:
            if given[-1] == at:
                raise Stopped
            return step(self, *given)

        monkeypatch.setattr(progress_module, "SAVE_SECONDS", -1.0)
        monkeypatch.setattr(lesson_module.Lesson, "_save", save_some)
        monkeypatch.setattr(Placement, "step", stop)
        with pytest.raises(Stopped):
            zofc_device.load(device.bundle.path).learn(lesson)
    monkeypatch.setattr(Placement, "step", step)
    zofc_device.load(device.bundle.path).learn(lesson)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_adapter_of_a_device_follows_from_its_journal(
    name: str, device_pair: Callable[..., Pair], tmp_path: Path
) -> None:
    learner, device = device_pair("zofc/base", *SETTINGS[name])
    base, bundle = tmp_path / "base", device.bundle.path
    device.save(base)
    learner.save(tmp_path / "run")
    for lesson in (SECOND, THIRD):
        device.learn(lesson)
    start, stored = adapter_of(base), adapter_of(bundle)
    (tmp_path / "sent").write_bytes((bundle / JOURNAL_FILE).read_bytes())
    for source in (base, tmp_path / "run"):
        replay, _ = LessonReplay(source, tmp_path / "sent").replay()
        assert displacement(start, replay.tensors, stored) < 1e-5
    assert replay.steps == (30 if name == "late" else 40)
    check = LessonReplay(base, bundle).check()
    assert check.problem is None and check.compared and "within" in check.conclusion
    if name == "shared":
        first = LessonReplay(base, tmp_path / "sent").replay(Moment(2))[0].tensors
        assert displacement(start, first, stored) > 0.01


def test_a_device_sends_a_few_bytes_a_step(device_pair: Callable[..., Pair]) -> None:
    _, device = device_pair("zofc/base", *FEW)
    device.learn(SECOND)
    device.learn(THIRD)
    journal = read_journal(device.bundle.path / JOURNAL_FILE, None)
    assert [type(entry) for entry, _ in journal.entries[1:]] == 2 * [SetStart, *[SetStep] * 20, SetEnd]
    starts = [entry for entry, _ in journal.entries if isinstance(entry, SetStart)]
    assert all(one.value is None for entry in starts for one in entry.tensors)  # the receiver has the first ones
    summary = summarize_journal(journal)
    assert summary.bytes_per_step < 16 + 24
    assert journal.position.length < 40 * (16 + 24) + 1500


def test_an_interrupted_lesson_has_the_journal_of_one_that_was_not(
    device_pair: Callable[..., Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("zofc/base", *FEW, "optimize.peft.schedule=cosine")
    device.save(tmp_path / "base")
    device.save(tmp_path / "whole")
    whole = zofc_device.load(tmp_path / "whole")
    for lesson, at in ((SECOND, [2, 7, 8, 19]), (THIRD, [0, 11])):
        whole.learn(lesson)
        interrupt(device, lesson, at, monkeypatch)
    bundle = device.bundle.path
    assert (bundle / JOURNAL_FILE).read_bytes() == (tmp_path / "whole" / JOURNAL_FILE).read_bytes()
    found, _ = LessonReplay(tmp_path / "base", bundle / JOURNAL_FILE).replay()
    assert displacement(adapter_of(tmp_path / "base"), found.tensors, adapter_of(bundle)) < 1e-5


def test_a_lesson_that_was_saved_after_its_last_step_ends_its_journal_once(
    device_pair: Callable[..., Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("zofc/base", *FEW)
    device.save(tmp_path / "base")
    finish = lesson_module.Lesson._finish

    def stop(self: Any, unseen: Any) -> None:
        self._save()
        raise Stopped

    monkeypatch.setattr(progress_module, "SAVE_SECONDS", -1.0)
    monkeypatch.setattr(lesson_module.Lesson, "_finish", stop)
    with pytest.raises(Stopped):
        device.learn(SECOND)
    monkeypatch.setattr(lesson_module.Lesson, "_finish", finish)
    zofc_device.load(device.bundle.path).learn(SECOND)
    journal = read_journal(device.bundle.path / JOURNAL_FILE, None)
    assert [type(entry) for entry, _ in journal.entries[1:]] == [SetStart, *[SetStep] * 20, SetEnd]
    assert LessonReplay(tmp_path / "base", device.bundle.path).check().problem is None


def test_a_lesson_that_was_dropped_is_not_in_the_journal(
    device_pair: Callable[..., Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("zofc/base", *FEW)
    device.save(tmp_path / "base")
    monkeypatch.setattr(progress_module, "SAVE_SECONDS", -1.0)
    monkeypatch.setattr(progress_module, "SAVE_SHARE", 0)
    device.learn(SECOND)
    step = Placement.step
    monkeypatch.setattr(Placement, "step", lambda self, *given: step(self, *given) if given[-1] < 9 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        device.learn(THIRD)
    monkeypatch.setattr(Placement, "step", step)
    assert summarize_journal(read_journal(device.bundle.path / JOURNAL_FILE, None)).total > 20
    assert LessonReplay(tmp_path / "base", device.bundle.path).check().problem is None  # without the unfinished lesson
    device.learn(make_lesson("gnu", "hen", images=5), restart=True)
    assert summarize_journal(read_journal(device.bundle.path / JOURNAL_FILE, None)).total == 20 + 4 * 2
    assert LessonReplay(tmp_path / "base", device.bundle.path).check().problem is None


def test_a_journal_that_was_lost_begins_again_with_values(device_pair: Callable[..., Pair], tmp_path: Path) -> None:
    _, device = device_pair("zofc/base", *FEW)
    device.save(tmp_path / "base")
    device.learn(SECOND)
    device.save(tmp_path / "later")
    (device.bundle.path / JOURNAL_FILE).unlink()
    device.learn(THIRD)
    journal = LessonReplay(tmp_path / "base", device.bundle.path)
    assert journal.check().problem is None and summarize_journal(journal.journal).total == 20


def test_every_flipped_byte_is_found_and_named(device_pair: Callable[..., Pair], tmp_path: Path) -> None:
    _, device = device_pair("zofc/base", *FEW)
    device.save(tmp_path / "base")
    device.learn(SECOND)
    data, sent = (device.bundle.path / JOURNAL_FILE).read_bytes(), tmp_path / "sent.bin"
    for at in range(len(data)):
        sent.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        with pytest.raises(RunError, match=r"sent.bin is damaged at record \d+, .*have it sent again"):
            read_journal(sent, None)
    with pytest.raises(RunError, match=r"sent.bin is damaged at record \d+, .*have it sent again"):
        LessonReplay(tmp_path / "base", sent)
    sent.write_bytes(data[:-3])
    with pytest.raises(RunError, match=r"damaged at record 23, after task 2, step 20: it ends inside of the record"):
        LessonReplay(tmp_path / "base", sent)


def test_the_command(device_pair: Callable[..., Pair], tmp_path: Path, zofc: Command) -> None:
    def call(*words: object) -> tuple[int, str]:
        return zofc("replay", *map(str, words))

    learner, device = device_pair("zofc/base", *FEW)
    learner.save(tmp_path / "run")
    device.save(tmp_path / "base")
    device.learn(SECOND)
    bundle, adapter = device.bundle.path, tmp_path / "adapter.safetensors"
    code, said = call(tmp_path / "run", "--journal", bundle / JOURNAL_FILE, "-o", adapter)
    assert code == 0 and "20 zeroth-order steps in 1 task" in said
    assert displacement(adapter_of(tmp_path / "base"), load_file(adapter), adapter_of(bundle)) < 1e-5
    code, said = call(tmp_path / "base", "--journal", bundle, "--check")
    assert code == 0 and "follow from the journal within" in said
    for words, message in (
        ((bundle, "--journal", bundle / JOURNAL_FILE), "it starts from another adapter than that of"),
        ((tmp_path / "base", "--journal", bundle / JOURNAL_FILE, "--check"), "--check needs the bundle that learned"),
        ((tmp_path / "base", "--journal", tmp_path / "base"), "has no journal"),
        ((tmp_path / "base", "--journal", tmp_path / "absent"), "no journal; give the file"),
        ((tmp_path / "run", "--journal", bundle, "--to", "3", "-o", adapter), "no task 3 in its journal"),
    ):
        code, said = call(*words)
        assert code == 2 and message in said and "Traceback" not in said


def test_models_without_an_adapter_have_none(device_pair: Callable[..., Pair]) -> None:
    _, device = device_pair("simplecil/base")
    device.learn(SECOND)
    device.learn(FIRST)
    assert not (device.bundle.path / JOURNAL_FILE).exists()
    assert "journal" not in Bundle(device.bundle.path).read().values

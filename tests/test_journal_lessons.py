"""Facts about the journal of a learner: it is saved with the model, from its first lesson on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_bundles import make_lesson
from zofc import Learner, load
from zofc.analysis.replay import RunReplay, summarize_journal
from zofc.errors import RunError
from zofc.optim.placement import Placement
from zofc.recipe import Recipe
from zofc.runfolder.names import JOURNAL_FILE
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]
LESSONS = [
    make_lesson("ant", "bee", images=6),
    make_lesson("cat", "dog", images=6),
    make_lesson("eel", "fox", images=6),
]


class Heard:
    """A listener that keeps what is said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, event: dict[str, Any]) -> None:
        self.texts.append(str(event.get("text")))

    def step(self, *_: Any) -> None:
        """Not of interest."""


def steps_in(path: Path) -> dict[int, int]:
    return summarize_journal(RunReplay(path).journal).steps


@pytest.mark.parametrize("name", ["zofc/base", "zo-ridge/base", "adapter-zo/base", "ease-zo/base"])
def test_a_saved_learner_follows_from_its_journal_bit_for_bit(name: str, tiny_recipe: Make, tmp_path: Path) -> None:
    learner = Learner(tiny_recipe(name))
    for number, lesson in enumerate(LESSONS):
        learner.learn(lesson)
        learner.save(tmp_path / "model")
        check = RunReplay(tmp_path / "model").check()
        assert check.problem is None and check.compared and check.trained_on is None
        assert len(steps_in(tmp_path / "model")) == (1 if name == "zo-ridge/base" else number + 1)
        learner = load(tmp_path / "model")


def test_an_undone_or_failed_lesson_leaves_the_journal_of_the_model(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(tiny_recipe("zofc/base"))
    learner.learn(LESSONS[0])
    learner.save(tmp_path / "first")
    before = learner.journal
    assert before is not None
    with monkeypatch.context() as patch:
        patch.setattr(Placement, "step", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            learner.learn(LESSONS[1])
    assert learner.journal == before
    learner.learn(LESSONS[1])
    assert learner.journal is not None and learner.journal.content.startswith(before.content)
    learner.save(tmp_path / "model")
    load(tmp_path / "first").save(tmp_path / "model")  # undo
    assert (tmp_path / "model" / JOURNAL_FILE).read_bytes() == before.content
    assert RunReplay(tmp_path / "model").check().problem is None


def test_a_learner_loaded_from_a_run_goes_on_with_its_journal(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe("zofc/base"), tmp_path)
    train(run)
    learner = load(run.path)
    tasks = len(learner.model.tasks)
    learner.learn(LESSONS[0])
    learner.save(tmp_path / "more")
    assert (tmp_path / "more" / JOURNAL_FILE).read_bytes().startswith((run.path / JOURNAL_FILE).read_bytes())
    assert RunReplay(tmp_path / "more").check().problem is None and max(steps_in(tmp_path / "more")) == tasks + 1


def test_a_damaged_journal_is_left_out_with_a_notice_and_the_model_answers(tiny_recipe: Make, tmp_path: Path) -> None:
    learner = Learner(tiny_recipe("zofc/base"))
    learner.learn(LESSONS[0])
    learner.save(tmp_path / "model")
    file = tmp_path / "model" / JOURNAL_FILE
    file.write_bytes(file.read_bytes()[:-9] + b"no journal")
    heard = Heard()
    found = Learner.load(tmp_path / "model", listeners=[heard])
    images = LESSONS[0]["ant"]
    assert (found.predict_proba(images) == learner.predict_proba(images)).all() and found.journal is None
    assert any("damaged" in text and "another journal" in text for text in heard.texts)
    with pytest.raises(RunError, match="is damaged at record"):
        RunReplay(tmp_path / "model")
    found.learn(LESSONS[1])
    found.save(tmp_path / "model")
    assert RunReplay(tmp_path / "model").check().problem is None and list(steps_in(tmp_path / "model")) == [2]


def test_forgetting_keeps_the_journal_unless_its_steps_moved_the_rows(tiny_recipe: Make, tmp_path: Path) -> None:
    for name, kept in (("zofc/base", True), ("adapter-zo/base", False)):
        learner = Learner(tiny_recipe(name))
        learner.learn(LESSONS[0])
        learner.forget("ant")
        assert (learner.journal is not None) == kept
        learner.learn(LESSONS[1])
        learner.save(tmp_path / name.partition("/")[0])
        assert RunReplay(tmp_path / name.partition("/")[0]).check().problem is None


def test_a_learner_without_zeroth_order_steps_or_told_so_has_none(tiny_recipe: Make, tmp_path: Path) -> None:
    for number, words in enumerate((("ridge/base",), ("adapter-fo/base",), ("zofc/base", "training.journal=false"))):
        learner = Learner(tiny_recipe(*words))
        learner.learn(LESSONS[0])
        learner.save(tmp_path / str(number))
        assert learner.journal is None and not (tmp_path / str(number) / JOURNAL_FILE).exists()

"""A bundle learns without torch as zofc learns with it: same directions, same batches, same answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import zofc
import zofc_device
from device_bundles import EMBEDDED, FIRST, QUIET, SECOND, Pair, make_lesson, write_bundle
from zofc.export.reader import import_bundle
from zofc.methods.base import Batches
from zofc.methods.classifier import Classifier
from zofc.recipe import Recipe
from zofc_device.features import Extractor

EPOCHS = ("optimize.peft.epochs=4", "optimize.head.epochs=3")  # of five steps


def displacement(
    start: dict[str, torch.Tensor], learner: zofc.Learner, device: zofc_device.Learner, part: str
) -> float:
    """How far tensors of the two ended from each other, over how far they went."""
    assert device.model is not None
    end, own = learner.model.state_dict(), device.model.tensors
    names = [name for name in own if name.startswith(part)]
    moved = sum(float((end[name] - start[name]).square().sum()) for name in names)
    apart = sum(float((end[name] - torch.from_numpy(np.asarray(own[name]))).square().sum()) for name in names)
    return (apart / moved) ** 0.5


FORWARD = "optimize.peft.estimator=forward_gradient"
# the features of both engines are rounded to float32, which is noise of a size over ε in their differences
LONGER, LONGEST = "optimize.peft.epsilon=0.003", "optimize.peft.epsilon=0.01"


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ((FORWARD,), 1e-4),
        ((FORWARD, "optimize.peft.per=image", "optimize.peft.directions=gaussian"), 1e-4),
        ((FORWARD, "views.augment=none", "optimize.peft.optimizer=sign", "optimize.peft.lr=0.0001"), 1e-4),
        ((FORWARD, "optimize.peft.steps=12", "optimize.head.steps=7"), 1e-4),
        ((LONGER,), 1e-2),
        ((LONGER, "optimize.peft.per=image", "optimize.peft.directions=sphere"), 1e-2),
        (("optimize.peft.estimator=one_sided", LONGEST, "head.init=means", "head.scale=10.0"), 1e-2),
        (
            (LONGER, "head.kind=linear", "method.mask=false", "optimize.peft.start=1", "optimize.peft.momentum=0.0"),
            1e-2,
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_twenty_steps_end_where_torch_ends(
    device_pair: Callable[..., Pair], settings: tuple[str, ...], tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_lessons(*device_pair("zofc/base", *EPOCHS, *settings), tolerance, monkeypatch)


@pytest.mark.parametrize(("settings", "tolerance"), [((FORWARD,), 1e-4), ((), 1e-2)], ids=["forward gradient", "spsa"])
def test_twenty_steps_on_the_embedded_backbone_end_where_torch_ends(
    embedded_graphs: Path, tiny_recipe: Callable[..., Recipe], settings: tuple[str, ...], tolerance: float,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    learner = zofc.Learner(tiny_recipe(*EMBEDDED, *QUIET, *EPOCHS, *settings))
    learner.learn(FIRST)
    device = zofc_device.load(write_bundle(learner, embedded_graphs, tmp_path / "bundle"))
    compare_lessons(learner, device, tolerance, monkeypatch)


def compare_lessons(
    learner: zofc.Learner, device: zofc_device.Learner, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both learn the same lesson of twenty steps, and end at the same place."""
    start: dict[str, torch.Tensor] = {}
    begin = Classifier.begin_task

    def begin_task(method: Classifier, batches: Batches) -> str | None:
        said = begin(method, batches)
        start.update({name: value.clone() for name, value in method.state_dict().items()})
        return said

    monkeypatch.setattr(Classifier, "begin_task", begin_task)
    learner.learn(SECOND)
    device.learn(SECOND)
    assert device.model is not None
    assert displacement(start, learner, device, "peft.") < tolerance
    assert displacement(start, learner, device, "head.") < tolerance
    assert device.classes == learner.classes
    ours, theirs = device.predict_proba(SECOND["cat"]), learner.predict_proba(SECOND["cat"])
    np.testing.assert_allclose(ours, theirs, atol=tolerance)
    scale = learner.model.calibration_state
    assert scale is not None and device.model.calibration is not None
    assert device.model.calibration["scale"] == pytest.approx(scale["scale"], rel=tolerance)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("simplecil/base", ()),
        ("ridge/base", ()),
        ("ridge/base", ("ridge.strength_from=task", "ridge.projection=30", "ridge.orthogonal=true")),
        ("zo-ridge/base", ("ridge.projection=300", "optimize.peft.tasks=2", "optimize.head.tasks=2")),
        ("zo-ridge/base", ("ridge.projection=300", "ridge.strength_from=all")),
        ("zo-ridge/base", ("ridge.projection=30", "ridge.fallback=false", "ridge.strength_from=all")),
        ("zofc/base", (FORWARD, "method.prototypes=true")),
        ("classifier-fo/base", ("views.augment=none",)),
        ("classifier-fo/base", ("head.kind=linear", "head.init=torch")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_lessons_end_with_the_answers_of_torch(
    device_pair: Callable[..., Pair], name: str, settings: tuple[str, ...]
) -> None:
    learner, device = device_pair(name, *settings)
    more = {"cat": make_lesson("cat", images=30)["cat"][20:], "emu": make_lesson("emu", images=9)["emu"]}
    closed_form = not name.startswith("classifier")
    for lesson in (
        SECOND,
        more if closed_form else make_lesson("emu", "fox"),
    ):  # known and new classes, one of them alone
        learner.learn(lesson)
        device.learn(lesson)
        assert device.classes == learner.classes
        asked = [image for images in (*FIRST.values(), *lesson.values()) for image in images]
        np.testing.assert_allclose(device.predict_proba(asked), learner.predict_proba(asked), atol=2e-4)
        np.testing.assert_allclose(device.embed(asked), learner.embed(asked), rtol=1e-3, atol=1e-3)
    assert device.model is not None
    own, theirs = device.model.state.tensors, learner.model.method.state_dict()
    assert {key: value.shape for key, value in own.items()} == {key: tuple(v.shape) for key, v in theirs.items()}
    assert {key: str(value.dtype) for key, value in own.items()} == {
        key: str(value.numpy().dtype) for key, value in theirs.items()
    }
    again = zofc_device.load(device.bundle.path)
    assert (again.predict_proba(asked) == device.predict_proba(asked)).all()


@pytest.mark.parametrize("name", ["zofc/base", "zo-ridge/base"])
def test_what_was_learned_returns_to_a_run(device_pair: Callable[..., Pair], tmp_path: Path, name: str) -> None:
    _, device = device_pair(name, *(("ridge.projection=300",) if name.startswith("zo-ridge") else ()))
    device.learn(SECOND)
    import_bundle(device.bundle.path, tmp_path / "run")
    learner = zofc.load(tmp_path / "run")
    assert learner.classes == device.classes
    asked = FIRST["ant"] + SECOND["dog"]
    np.testing.assert_allclose(learner.predict_proba(asked), device.predict_proba(asked), atol=1e-4)
    learner.learn(make_lesson("emu", "fox", images=6))


def test_known_classes_are_refused_where_rows_are_trained(device_pair: Callable[..., Pair]) -> None:
    _, device = device_pair("zofc/base")
    with pytest.raises(zofc_device.DeviceError, match="already learned: ant"):
        device.learn(FIRST)


@pytest.mark.parametrize(("name", "group"), [("adapter-fo/base", "peft"), ("adapter-zo/base", "head")])
def test_other_orders_are_refused(device_pair: Callable[..., Pair], name: str, group: str) -> None:
    _, device = device_pair(name)
    with pytest.raises(zofc_device.DeviceError, match=rf"optimize\.{group}\.order: bundles learn with"):
        device.learn(SECOND)
    assert device.classes == ("ant", "bee")


@pytest.mark.parametrize(
    "settings",
    [("optimize.peft.lr=0.0", FORWARD), ("optimize.peft.order=first", "optimize.peft.lr=0.0"),
     ("optimize.peft.order=first", "optimize.peft.optimizer=adam", "optimize.peft.tasks=1")],
)  # fmt: skip
def test_groups_that_do_not_move_any_more_may_have_any_settings(
    device_pair: Callable[..., Pair], settings: tuple[str, ...]
) -> None:
    learner, device = device_pair("zofc/base", *settings)
    learner.learn(SECOND)
    device.learn(SECOND)
    np.testing.assert_allclose(device.predict_proba(SECOND["cat"]), learner.predict_proba(SECOND["cat"]), atol=1e-4)


def test_answers_have_the_forms_of_zofc(device_pair: Callable[..., Pair]) -> None:
    learner, device = device_pair("simplecil/base")
    ours, theirs = device.predict(FIRST["ant"], top=2), learner.predict(FIRST["ant"], top=2)
    assert [[one.name for one in row] for row in ours] == [[one.name for one in row] for row in theirs]
    assert ours[0][0].probability == pytest.approx(theirs[0][0].probability, abs=1e-4)
    assert len(device.predict(FIRST["ant"][0])) == 1
    assert device.predict_proba([]).shape == (0, 2)
    mixed = {**FIRST, "gnu": FIRST["bee"]}
    ours_scored, theirs_scored = (one.evaluate(mixed, learned_only=True) for one in (device, learner))
    assert ours_scored.accuracy == theirs_scored.accuracy
    assert (ours_scored.confusion == theirs_scored.confusion).all()
    assert ours_scored.left_out == ("gnu",)
    with pytest.raises(zofc_device.ImageError, match="never learned: gnu"):
        device.evaluate(mixed)


def test_micro_batches_change_rounding_only(device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    _, device = device_pair("zofc/base", FORWARD, "optimize.peft.per=image")
    device.save(device.bundle.path.with_name("copy"))
    device.learn(SECOND)
    monkeypatch.setattr(Extractor, "_micro_batch", lambda *_: 1)
    other = zofc_device.load(device.bundle.path.with_name("copy"))
    other.learn(SECOND)
    assert device.model is not None and other.model is not None
    for name, value in device.model.tensors.items():
        np.testing.assert_allclose(other.model.tensors[name], value, rtol=1e-3, atol=1e-6)


def test_a_budget_below_what_one_image_needs_is_refused(device_pair: Callable[..., Pair]) -> None:
    _, device = device_pair("zofc/base")
    small = zofc_device.Learner.load(device.bundle.path, memory=1_000_000)
    with pytest.raises(zofc_device.DeviceError, match=r"one image at a time needs about \d+ MB, not 1 MB"):
        small.learn(SECOND)
    large = zofc_device.Learner.load(device.bundle.path, memory=10_000_000_000)
    assert large.predict(FIRST["ant"][0])[0][0].name in ("ant", "bee")


@pytest.mark.parametrize(("first", "compared"), [(("ant",), False), (("ant", "bee"), True)], ids=["one", "two"])
def test_answers_with_and_without_an_adapter_are_compared_if_a_lesson_trained_it(
    device_graphs: Path, tiny_recipe: Callable[..., Recipe], tmp_path: Path, first: tuple[str, ...], compared: bool
) -> None:
    learner = zofc.Learner(tiny_recipe("zo-ridge/base", *QUIET, "ridge.projection=300"))
    learner.learn({name: FIRST[name] for name in first})
    said: list[str] = []
    device = zofc_device.Learner(write_bundle(learner, device_graphs, tmp_path / "bundle"), say=said.append)
    device.learn(SECOND)
    learner.learn(SECOND)
    asked = [image for images in SECOND.values() for image in images]
    np.testing.assert_allclose(device.predict_proba(asked), learner.predict_proba(asked), atol=2e-4)
    assert any("are right with it" in text for text in said) == compared

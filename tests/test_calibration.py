"""Facts about calibrated probabilities and the answer "none of these"."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import zofc
from zofc.errors import DataError, RunError
from zofc.evidence.rows import result_rows
from zofc.model.heads import CosineHead
from zofc.model.ridge import CalibrationSample, RidgeHead, draw_projection
from zofc.recipe import Recipe
from zofc.training.calibration import best_scale, calibrate, calibration_error, fit_calibration
from zofc.training.runs import start_run, train
from zofc.training.typicality import Typicality, learn_typicality

Make = Callable[..., Recipe]


def clusters(classes: int, images: int, width: int = 12, spread: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features around a random centre for each class."""
    centres = torch.randn(50, width, generator=torch.Generator().manual_seed(1))[:classes]
    labels = torch.arange(classes).repeat_interleave(images)
    noise = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(seed))
    return centres[labels] + spread * noise, labels


def ridge_on(features: Tensor, labels: Tensor, projection: int = 0, budget: int | None = None) -> RidgeHead:
    width = features.shape[1]
    head = RidgeHead(
        width,
        projection,
        budget,
        lambda size: draw_projection(width, size, False, torch.Generator().manual_seed(0)),
        torch.device("cpu"),
    )
    head.grow(int(labels.max()) + 1)
    head.learn(features, labels, np.random.default_rng(0))
    return head


def test_the_scale_is_the_minimum_of_the_likelihood_and_finds_a_known_temperature() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 10, generator=rng, dtype=torch.float64)
    labels = logits.softmax(-1).multinomial(1, generator=rng)[:, 0]
    assert best_scale(logits, labels) == pytest.approx(1, rel=0.1)
    assert best_scale(logits / 30, labels) == pytest.approx(30 * best_scale(logits, labels), rel=1e-6)
    chosen = best_scale(logits, labels)
    losses = [F.cross_entropy(scale * logits, labels) for scale in (0.9 * chosen, chosen, 1.1 * chosen)]
    assert min(losses) == losses[1]


def test_few_images_that_are_all_right_leave_doubt() -> None:
    scores = torch.eye(3, dtype=torch.float64).repeat(4, 1)
    scale = best_scale(scores, torch.arange(3).repeat(4))
    assert 1 - 2 / 13 < float((scale * scores).softmax(-1).amax(-1).mean()) < 1
    assert best_scale(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)) == 1
    assert best_scale(torch.ones(4, 1), torch.zeros(4, dtype=torch.int64)) == 1


def test_earlier_images_weigh_like_fifty_at_most() -> None:
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(10, 5, generator=rng, dtype=torch.float64)
    labels = scores.argmax(-1)
    before = fit_calibration(scores.repeat(100, 1), labels.repeat(100))
    after = fit_calibration(scores[:2], labels[:2], before)
    assert abs(np.log(after.scale / before.scale)) < 0.1 * abs(
        np.log(best_scale(scores[:2], labels[:2]) / before.scale)
    )
    assert after.images == 1002


@pytest.mark.parametrize(("projection", "budget"), [(0, None), (40, None), (40, 10_000_000)])
def test_scores_of_a_regression_leave_the_image_out(projection: int, budget: int | None) -> None:
    features, labels = clusters(3, 8)
    head = ridge_on(features, labels, projection, budget)
    assert head.left_out is not None and head.by_images == (budget is not None)
    for number in range(0, 24, 5):
        image = head.left_out.features[number]
        rest = (features != image).any(-1)
        without = torch.linalg.solve(
            (phi := head.regress_from(features[rest])).mT @ phi + head.strength * torch.eye(phi.shape[1]).double(),
            phi.mT @ F.one_hot(labels[rest], 3).double(),
        )
        expected = head.regress_from(image[None]) @ without
        torch.testing.assert_close(head.left_out.scores[number][None], expected, rtol=1e-6, atol=1e-8)


def test_cosines_with_class_means_leave_the_image_out() -> None:
    features, labels = clusters(3, 6)
    head = CosineHead(features.shape[1])
    means = torch.stack([features[labels == c].mean(0) for c in range(3)])
    head.grow(3, torch.Generator())
    head.set_rows(0, means)
    scores = head.logits_left_out(features, labels, torch.tensor([6, 6, 6]))
    for number in (0, 7, 17):
        own = labels == labels[number]
        own[number] = False
        expected = F.cosine_similarity(features[number], features[own].mean(0), dim=0)
        assert float(scores[number, labels[number]]) == pytest.approx(float(expected), abs=1e-5)


def test_probabilities_of_a_regression_mean_what_they_say() -> None:
    features, labels = clusters(20, 40, spread=1.3)
    head = ridge_on(features, labels)
    assert head.left_out is not None
    state = calibrate(head.left_out, range(20), labels.bincount(), None)
    assert state is not None
    test, truth = clusters(20, 100, spread=1.3, seed=5)
    scores = head.scores(test)
    assert calibration_error(state[0].probabilities(scores), truth) < 0.05
    assert calibration_error(scores.double().softmax(-1), truth) > 0.3


def test_the_calibration_error_is_the_mean_gap_of_bins_of_equal_size() -> None:
    chances = torch.tensor([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10, dtype=torch.float64)
    labels = torch.tensor([0] * 8 + [1] * 2 + [0] * 6 + [1] * 4)
    assert calibration_error(chances, labels, bins=2) == pytest.approx(0.05)
    assert calibration_error(chances[:1], torch.tensor([0])) == pytest.approx(0.1)


def test_images_of_unseen_classes_are_told_from_known_ones_at_the_rate_that_was_asked_for() -> None:
    features, labels = clusters(30, 60, width=24, spread=0.6)
    few = labels < 20
    head = ridge_on(features[few], labels[few])
    assert head.left_out is not None
    state = calibrate(head.left_out, range(20), labels[few].bincount(), None)
    assert state is not None
    test, truth = clusters(30, 60, width=24, spread=0.6, seed=9)
    rejected = state[1].confidence(head.scores(test), test) < state[1].threshold(0.05)
    known = truth < 20
    assert 0.02 < float(rejected[known].double().mean()) < 0.08
    assert float(rejected[~known].double().mean()) > 0.5


def test_statistics_learned_in_two_parts_are_those_of_all_images() -> None:
    features, labels = clusters(4, 10)
    scores = F.one_hot(labels, 4).double()
    whole = learn_typicality(scores, labels, features, None)
    first = labels < 2
    part = learn_typicality(scores[first][:, :2], labels[first], features[first], None)
    both = learn_typicality(scores[~first], labels[~first], features[~first], part)
    for name in ("means", "counts", "scatter"):
        torch.testing.assert_close(getattr(both, name), getattr(whole, name))
    again = learn_typicality(scores[::2], labels[::2], features[::2], None)
    again = learn_typicality(scores[1::2], labels[1::2], features[1::2], again)
    torch.testing.assert_close(again.scatter, whole.scatter)


def test_a_distance_leaves_the_image_out() -> None:
    features, labels = clusters(3, 40)
    learned = learn_typicality(F.one_hot(labels, 3).double(), labels, features, None)
    rest = torch.arange(120) != 7
    without = learn_typicality(F.one_hot(labels, 3).double()[rest], labels[rest], features[rest], None)
    expected = without.distances(features[7:8]).amin()
    assert float(learned.known[7, 1]) == pytest.approx(float(expected), rel=0.05)


def test_an_image_near_any_class_is_known_even_where_another_is_answered() -> None:
    features, labels = clusters(3, 40)
    learned = learn_typicality(F.one_hot(labels, 3).double(), labels, features, None)
    of_first = learned.means[:1]
    answers = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    right, wrong = learned.confidence(answers, of_first.expand(2, -1))
    assert float(right) == pytest.approx(float(wrong))
    far = learned.confidence(answers[:1], of_first + 100)
    assert float(far) < float(wrong)


def test_statistics_of_before_compare_with_the_class_that_is_answered() -> None:
    features, labels = clusters(3, 40)
    learned = learn_typicality(F.one_hot(labels, 3).double(), labels, features, None)
    saved = {name: value for name, value in learned.state().items() if name != "nearest"}
    assert Typicality.problem(saved, 3) is None
    old = Typicality(**saved)
    answers = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    right, wrong = old.confidence(answers, old.means[:1].expand(2, -1))
    assert float(wrong) < float(right)
    more, others = clusters(3, 40, seed=5)
    assert not learn_typicality(F.one_hot(others, 3).double(), others, more, old).nearest


def test_statistics_may_be_of_more_images_than_were_scored() -> None:
    features, labels = clusters(3, 40)
    some = torch.arange(120) % 4 == 0
    scores = F.one_hot(labels, 3).double()
    learned = learn_typicality(scores[some], labels[some], features[some], None, (features, labels))
    whole = learn_typicality(scores, labels, features, None)
    for name in ("means", "counts", "scatter", "usual", "level"):
        torch.testing.assert_close(getattr(learned, name), getattr(whole, name))
    torch.testing.assert_close(learned.known, whole.known[some])


def test_images_of_classes_with_one_image_tell_nothing() -> None:
    features, labels = clusters(3, 1)
    sample = CalibrationSample(F.one_hot(labels, 3).double(), labels, features)
    assert calibrate(sample, range(3), torch.ones(3, dtype=torch.int64), None) is None


# -- the learner -----------------------------------------------------------------------------------------------------


def patterns(kind: int, count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(100 * seed + kind)
    base = np.random.default_rng(kind).integers(0, 256, (4, 4, 3))
    noisy = [np.clip(base + rng.normal(0, 20, base.shape), 0, 255) for _ in range(count)]
    return [np.kron(one, np.ones((4, 4, 1))).astype(np.uint8) for one in noisy]


@pytest.fixture
def learner(tiny_recipe: Make) -> zofc.Learner:
    learner = zofc.Learner(tiny_recipe("ridge/base", "training.workers=0"))
    learner.learn({str(kind): patterns(kind, 30) for kind in range(3)})
    learner.learn({str(kind): patterns(kind, 30) for kind in range(3, 6)})
    return learner


def test_right_answers_are_probable_and_strangers_are_none_of_the_classes(learner: zofc.Learner) -> None:
    known = [image for kind in range(6) for image in patterns(kind, 20, seed=1)]
    answers = learner.predict(known)
    assert np.mean([answer[0].probability for answer in answers]) > 0.5
    kept = learner.predict(known, reject=0.05)
    assert 0.8 < np.mean([answer is not None for answer in kept]) <= 1
    assert all(answer in (None, same) for answer, same in zip(kept, answers, strict=True))
    strange = [image for kind in range(50, 60) for image in patterns(kind, 5)]
    assert np.mean([answer is None for answer in learner.predict(strange, reject=0.05)]) > 0.5
    for rate in (0, 1, -1, 5):
        with pytest.raises(DataError, match="reject: expected a share between 0 and 1"):
            learner.predict(known, reject=rate)


def test_a_saved_model_keeps_its_calibration(learner: zofc.Learner, tmp_path: Path) -> None:
    images = [image for kind in range(8) for image in patterns(kind, 5, seed=2)]
    learner.save(tmp_path / "model")
    loaded = zofc.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(images), learner.predict_proba(images))
    assert loaded.predict(images, reject=0.1) == learner.predict(images, reject=0.1)
    error = learner.evaluate({str(kind): patterns(kind, 20, seed=1) for kind in range(6)}).calibration_error
    assert error is not None and 0 <= error < 100


def test_a_run_is_calibrated_and_one_without_calibration_answers_with_the_plain_softmax(
    tiny_recipe: Make, tmp_path: Path
) -> None:
    run = start_run(tiny_recipe("zofc/base"), tmp_path / "runs")
    train(run)
    state = json.loads((run.path / "checkpoint" / "state.json").read_text())
    assert state["calibration"]["scale"] > 0
    plain = start_run(tiny_recipe("zofc/base", "training.calibrate=false"), tmp_path / "plain")
    train(plain)
    images = patterns(0, 3)
    one, other = zofc.load(run.path), zofc.load(plain.path)
    chances = torch.from_numpy(other.predict_proba(images))
    calibrated = (state["calibration"]["scale"] * chances.log()).softmax(-1)
    assert np.allclose(one.predict_proba(images), calibrated)
    with pytest.raises(RunError, match=r"made with training\.calibrate=false; learn it again"):
        other.predict(images, reject=0.05)


@pytest.mark.parametrize("name", ["zo-ridge/base", "ridge/base", "simplecil/base"])
def test_one_image_of_each_class_is_no_calibration_and_the_reason_is_told(
    name: str, tiny_recipe: Make, tmp_path: Path
) -> None:
    learner = zofc.Learner(tiny_recipe(name, "training.workers=0"))
    learner.learn({"0": patterns(0, 1)})
    learner.learn({"1": patterns(1, 1)})
    learner.save(tmp_path / "run")
    loaded = zofc.load(tmp_path / "run", overrides="training.workers=0")
    for one in (learner, loaded):
        with pytest.raises(RunError, match=r"^reject: this model has seen one image of each class"):
            one.predict(patterns(0, 1), reject=0.05)
    loaded.learn({"0": patterns(0, 5, seed=1)})
    assert len(loaded.predict(patterns(0, 1), reject=0.05)) == 1


def test_a_lone_class_has_no_calibration_error(tiny_recipe: Make) -> None:
    """Its probability is one, whatever the image is."""
    learner = zofc.Learner(tiny_recipe("zo-ridge/base", "training.workers=0"))
    learner.learn({"0": patterns(0, 6)})
    assert learner.evaluate({"0": patterns(0, 3, seed=1)}).calibration_error is None
    learner.learn({"1": patterns(1, 6)})
    assert learner.evaluate({"0": patterns(0, 3, seed=1)}).calibration_error is not None


def test_a_run_of_version_0_1_answers_with_the_plain_softmax(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "fixtures" / "runs-0.1" / "finished", tmp_path / "old")
    old = zofc.load(tmp_path / "old")
    images = patterns(0, 3)
    (batch,) = old._batches(images)
    assert np.array_equal(old.predict_proba(images), old.model.scores(batch).double().softmax(-1))
    with pytest.raises(RunError, match=r"version 0\.1"):
        old.predict(images, reject=0.05)


def test_a_task_that_fails_leaves_the_calibration(learner: zofc.Learner, tmp_path: Path) -> None:
    before = learner.predict_proba(patterns(0, 2))
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(DataError):
        learner.learn({"new": [*patterns(9, 5), tmp_path / "broken.png"]})
    assert np.array_equal(learner.predict_proba(patterns(0, 2)), before)
    assert len(learner.predict(patterns(0, 2), reject=0.05)) == 2


# -- what was measured -----------------------------------------------------------------------------------------------

RESULTS = Path(__file__).parents[1] / "results" / "calibration.json"
MEASURED = {row["per_class"]: row["seeds"] for row in result_rows(RESULTS)}  # of CIFAR-100 with DINOv2-S


@pytest.mark.parametrize("per_class", MEASURED)
def test_probabilities_were_within_five_percent_of_the_share_of_right_answers(per_class: int) -> None:
    assert per_class >= 20
    for run in MEASURED[per_class]:
        assert run["images"]["known"] >= 1000 and run["calibration_error"] <= 0.05


@pytest.mark.parametrize("per_class", [100, 500])
def test_half_of_the_images_of_unseen_classes_were_recognised(per_class: int) -> None:
    runs = MEASURED[per_class]
    assert fmean(run["unseen_rejected"] for run in runs) >= 0.5
    assert fmean(run["known_rejected"] for run in runs) == pytest.approx(0.05, abs=0.01)


DELIVERED = result_rows(RESULTS, "delivered")  # on photographs, by the learner that zofc.Learner() chooses


@pytest.mark.parametrize("row", DELIVERED, ids=lambda row: f"{row['photographs']} {row['backbone']} {row['per_class']}")
def test_on_photographs_ten_images_a_class_calibrate_within_five_percent(row: dict[str, Any]) -> None:
    """And five do not, as the guide says."""
    assert (fmean(run["calibration_error"] for run in row["seeds"]) <= 0.05) == (row["per_class"] >= 10)

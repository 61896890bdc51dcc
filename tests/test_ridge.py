"""Facts about the closed-form head: streaming is exact, the order of tasks is not felt, the budget holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import zofc
from zofc.errors import DataError, RecipeError
from zofc.methods import get_method, ridge
from zofc.methods.ridge import RidgeSettings
from zofc.model.backbone import Backbone
from zofc.model.ridge import BYTES, RIDGE_STRENGTHS, RidgeHead, best_strength, draw_projection, regressors, solve
from zofc.recipe import DataSettings, HeadSettings, MethodSettings, PeftSettings, Recipe
from zofc.training.runs import start_run, train

CPU = torch.device("cpu")


def toy(seed: int, classes: int = 6, per_class: int = 60, width: int = 12) -> tuple[Tensor, Tensor]:
    """Classes that differ in one direction each, under strong noise that all directions share."""
    g = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(0)
    means = torch.randn(classes, width, generator=fixed, dtype=torch.float64)
    mixing = torch.randn(3, width, generator=fixed, dtype=torch.float64)
    labels = torch.arange(classes).repeat_interleave(per_class)
    shared = 6 * torch.randn(len(labels), 3, generator=g, dtype=torch.float64) @ mixing
    own = 0.3 * torch.randn(len(labels), width, generator=g, dtype=torch.float64)
    return means[labels] + shared + own, labels


def noisy() -> tuple[Tensor, Tensor]:
    """Five images a class that a regression must not follow too closely."""
    features, labels = (part[::12] for part in toy(1))
    return features + 3 * torch.randn(features.shape, generator=torch.Generator().manual_seed(3)), labels


def head(projection: int = 0, budget: int | None = None, width: int = 12) -> RidgeHead:
    def draw(size: int) -> Tensor:
        return draw_projection(width, size, False, torch.Generator().manual_seed(1))

    return RidgeHead(width, projection, budget, draw, CPU)


def learned(order: list[list[int]], projection: int = 0, strength_from: str = "all") -> RidgeHead:
    """A head that met classes in tasks; the classes are renamed in the order of arrival."""
    features, labels = toy(1)
    made, met = head(projection), 0
    made.strength_from = strength_from
    for number, classes in enumerate(order):
        made.grow(len(classes))
        parts = [features[labels == c] for c in classes]
        names = torch.cat([torch.full((len(part),), met + i) for i, part in enumerate(parts)])
        made.learn(torch.cat(parts), names, np.random.default_rng(number))
        met += len(classes)
    return made


@pytest.mark.parametrize("projection", [0, 40])
def test_streaming_is_the_closed_form_on_all_data_at_once(projection: int) -> None:
    made = learned([[0, 1], [2], [3, 4, 5]], projection)
    features, labels = toy(1)
    phi = made.regress_from(features)
    one_hot = torch.eye(6, dtype=torch.float64)[labels]
    strength = float(made.strength)
    batch = torch.linalg.solve(phi.mT @ phi + strength * torch.eye(phi.shape[1], dtype=torch.float64), phi.mT @ one_hot)
    torch.testing.assert_close(made.weights, batch, rtol=1e-7, atol=1e-9)
    assert made.weights.dtype == torch.float64 and phi.shape[1] == (projection or 12)


@pytest.mark.parametrize("projection", [0, 40])
def test_the_order_of_tasks_changes_nothing_but_the_names(projection: int) -> None:
    one, other = learned([[0, 1], [2, 3], [4, 5]], projection), learned([[4, 5], [0, 1], [2, 3]], projection)
    renamed = [4, 5, 0, 1, 2, 3]
    torch.testing.assert_close(one.gram, other.gram)
    torch.testing.assert_close(one.sums[:, renamed], other.sums)
    for strength in (1e-2, 1.0, 1e3):
        torch.testing.assert_close(
            solve(one.gram, one.sums, strength)[:, renamed],
            solve(other.gram, other.sums, strength),
            rtol=1e-7,
            atol=1e-9,
        )


def test_it_beats_class_means_where_features_are_correlated() -> None:
    features, labels = toy(1)
    fresh, truth = toy(2)
    means = torch.stack([features[labels == c].mean(0) for c in range(6)])
    nearest = torch.cdist(fresh, means).argmin(1)
    cosine = torch.nn.functional.cosine_similarity(fresh[:, None], means[None], dim=-1).argmax(1)
    right = float((learned([[0, 1], [2, 3], [4, 5]]).scores(fresh).argmax(1) == truth).float().mean())
    for guess in (nearest, cosine):
        assert right > float((guess == truth).float().mean()) + 0.2


def test_the_strength_is_the_power_of_ten_with_the_least_error_on_images_held_out() -> None:
    features, labels = toy(1, per_class=4)
    held, truth = toy(2)
    gram, sums = features.mT @ features, features.mT @ torch.eye(6, dtype=torch.float64)[labels]
    errors = [
        (held @ solve(gram, sums, s) - torch.eye(6, dtype=torch.float64)[truth]).square().mean()
        for s in RIDGE_STRENGTHS
    ]
    chosen, _ = best_strength(gram, sums, held, truth)
    assert chosen == RIDGE_STRENGTHS[int(torch.stack(errors).argmin())]
    assert RIDGE_STRENGTHS[0] < chosen < RIDGE_STRENGTHS[-1]


def test_the_strength_is_chosen_with_the_statistics_of_all_tasks_or_of_the_current_one() -> None:
    """What the solution is made of stays the same."""
    order = [[0, 1], [2, 3], [4, 5]]
    everything, alone = (learned(order, 200, choice) for choice in ("all", "task"))
    torch.testing.assert_close(everything.gram, alone.gram)
    torch.testing.assert_close(everything.sums, alone.sums)
    features, labels = (part[toy(1)[1] >= 4] for part in toy(1))
    shuffled = np.random.default_rng(2).permutation(len(labels))
    phi, labels = alone.regress_from(features[shuffled]), labels[shuffled]
    held = len(labels) // 5
    one_hot = torch.eye(6, dtype=torch.float64)[labels[held:]]
    gram, sums = phi[held:].mT @ phi[held:], phi[held:].mT @ one_hot
    assert (
        float(alone.strength) == best_strength(gram, sums, phi[:held], labels[:held])[0] != float(everything.strength)
    )


def test_too_few_images_to_hold_any_out_leave_the_strength_as_it_was() -> None:
    made = head()
    made.grow(2)
    made.learn(torch.randn(4, 12), torch.tensor([0, 1, 0, 1]), np.random.default_rng(0))
    assert float(made.strength) == 1.0 and float(made.weights.abs().max()) > 0


@pytest.mark.parametrize("budget", [BYTES, 1000, 8 * 40**2 - 1, 8 * 40**2, 10**9])
def test_the_projection_is_as_wide_as_asked_or_as_the_budget_allows(budget: int) -> None:
    made = head(projection=40, budget=budget)
    made.grow(6)
    features, labels = toy(1)
    made.learn(features, labels, np.random.default_rng(0))
    size = made.gram.shape[0]
    assert made.gram.numel() * made.gram.element_size() <= budget
    assert size == 40 or BYTES * (size + 1) ** 2 > budget
    assert made.projection is not None and made.projection.shape == (12, size) and not len(made.features)


def test_few_images_are_regressed_from_a_matrix_of_their_number_with_the_same_solution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(ΦᵀΦ + λI)⁻¹ ΦᵀY = Φᵀ (ΦΦᵀ + λI)⁻¹ Y, task by task."""
    monkeypatch.setattr("zofc.model.ridge.RIDGE_STRENGTHS", (1e2, 1e3))  # below, the sums are ill-conditioned
    features, labels = noisy()
    sums, images = head(projection=2000), head(projection=2000, budget=BYTES * 30**2)
    for number in range(3):
        which = labels // 2 == number
        for made in (sums, images):
            made.grow(2)
            made.learn(features[which].float(), labels[which], np.random.default_rng(number))
        assert not len(images.gram) and images.features.shape == (10 * (number + 1), 12)
        torch.testing.assert_close(
            images.weights, solve(sums.gram, sums.sums, float(images.strength)), rtol=1e-6, atol=1e-12
        )


@pytest.mark.parametrize("choice", ["all", "task"])
def test_with_few_images_the_strength_is_that_of_the_least_error_on_images_left_out_one_by_one(choice: str) -> None:
    features, labels = noisy()
    made = head(projection=2000, budget=BYTES * 30**2)
    made.strength_from = choice
    for number in range(3):
        made.grow(2)
        made.learn(features[labels // 2 == number], labels[labels // 2 == number], np.random.default_rng(number))
    rows = torch.arange(30) if choice == "all" else torch.arange(20, 30)
    phi, targets = made.regress_from(made.features)[rows], torch.eye(6, dtype=torch.float64)[made.labels[rows]]
    errors = []
    for strength in RIDGE_STRENGTHS[6:]:  # below 0.01 rounding decides
        residuals = []
        for out in range(len(rows)):
            rest = torch.arange(len(rows)) != out
            kernel = phi[rest] @ phi[rest].mT
            residuals.append(phi[out] @ phi[rest].mT @ solve(kernel, targets[rest], strength) - targets[out])
        errors.append(float(torch.stack(residuals).square().mean()))
    assert float(made.strength) == RIDGE_STRENGTHS[6 + int(np.argmin(errors))]


def test_more_images_than_the_budget_holds_become_sums() -> None:
    """From then on it is the regression that knows sums alone, at the width that the budget allows."""
    features, labels = toy(1)
    budget = BYTES * 150**2
    sums, images = head(projection=150), head(projection=2000, budget=budget)
    for number, start in enumerate((0, 2, 4)):
        which = (labels >= start) & (labels < start + 2)
        for made in (sums, images):
            made.grow(2)
            made.learn(features[which].float(), labels[which], np.random.default_rng(number))
        assert images.by_images == (number == 0)
    torch.testing.assert_close(images.gram, sums.gram)
    torch.testing.assert_close(images.weights, sums.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("budget", [None, BYTES * 40**2, BYTES * 150**2])
def test_a_state_is_restored_whatever_it_was_made_of(budget: int | None) -> None:
    made, other = head(projection=200, budget=budget), head(projection=200, budget=budget)
    features, labels = toy(1, classes=2)
    for each in (made, other):
        each.grow(2)
    made.learn(features, labels, np.random.default_rng(0))
    state = {f"head.{name}": value for name, value in made.state_dict().items()}
    assert "head.projection" not in state
    state["head.projection"] = torch.zeros(1)  # version 0.1 saved it
    other.adapt_state("head.", state)
    other.load_state_dict({name.removeprefix("head."): value for name, value in state.items()})
    assert torch.equal(other.scores(features), made.scores(features))


def test_a_run_of_version_0_1_is_restored_from_its_sums() -> None:
    made, other = head(projection=40), head(projection=40)
    features, labels = toy(1, classes=2)
    for each in (made, other):
        each.grow(2)
    made.learn(features, labels, np.random.default_rng(0))
    state = {name: made.state_dict()[name] for name in ("gram", "sums", "weights", "strength")}
    other.adapt_state("", state)
    other.load_state_dict(state)
    assert torch.equal(other.scores(features), made.scores(features))


def test_an_orthogonal_projection_has_blocks_at_right_angles() -> None:
    drawn = draw_projection(6, 15, True, torch.Generator().manual_seed(2))
    assert drawn.shape == (6, 15)
    for block in torch.split(drawn, 6, dim=1):
        torch.testing.assert_close(block.mT @ block, 6 * torch.eye(block.shape[1], dtype=torch.float64))


def test_a_matrix_that_rounding_left_indefinite_takes_the_next_strength_that_solves_it() -> None:
    gram = torch.diag(torch.tensor([1.0, -1e-6], dtype=torch.float64))
    ones = torch.ones(2, 1, dtype=torch.float64)
    torch.testing.assert_close(solve(gram, ones, 1e-8), solve(gram, ones, 1e-5))


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    assert regressors(12, 0, BYTES * 144) == 12
    with pytest.raises(
        RecipeError, match=r"ridge\.budget: the Gram matrix of 12 features needs 1152 bytes.*projection"
    ):
        regressors(12, 0, 1151)
    with pytest.raises(RecipeError, match=r"ridge\.budget: 7 bytes hold no Gram matrix"):
        regressors(12, 5, 7)


# -- the method ------------------------------------------------------------------------------------------------------


def halves(images: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(images[:4], labels[:4]), (images[4:], labels[4:])]


def learner(tiny: Backbone, images: Tensor, **settings: int) -> ridge.Ridge:
    made = get_method("ridge")(
        tiny, Recipe(seed=3, method=MethodSettings(name="ridge"), ridge=RidgeSettings(**settings))
    )
    assert isinstance(made, ridge.Ridge) and made.groups() == {}
    for start in (0, 2):
        made.extend(range(start, start + 2))
        labels = start + torch.tensor([0, 1, 0, 1, 0, 1])
        made.end_task(partial(halves, images + start, labels))
    return made


def test_the_method_regresses_on_the_plain_features(tiny: Backbone, images: Tensor) -> None:
    made = learner(tiny, images)
    parts = [part for shift in (0, 2) for part, _ in halves(images + shift, images)]  # rounding differs with the batch
    features = torch.cat([tiny.features(part) for part in parts]).double()
    torch.testing.assert_close(made.head.gram, features.mT @ features)
    assert made.scores(images).shape == (6, 4) and made.scores(images).dtype == torch.float32
    fit = made.scores(images + 2)
    torch.testing.assert_close(fit.double(), features[6:] @ made.head.weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("projection", [0, 30])
def test_a_restored_method_gives_identical_scores(tiny: Backbone, images: Tensor, projection: int) -> None:
    made = learner(tiny, images, projection=projection)
    other = get_method("ridge")(tiny, made.recipe)
    for classes in made.tasks:
        other.extend(classes)
    state = other.adapt_state(made.state_dict())
    assert {k: v.shape for k, v in other.state_dict().items()} == {k: v.shape for k, v in state.items()}
    other.load_state_dict(state)
    assert torch.equal(other.scores(images), made.scores(images))


def test_the_seed_decides_the_projection_and_the_images_held_out(tiny: Backbone, images: Tensor) -> None:
    one, other = learner(tiny, images, projection=30), learner(tiny, images, projection=30)
    assert torch.equal(one.scores(images), other.scores(images))


def test_a_task_without_images_is_refused(tiny: Backbone) -> None:
    made = get_method("ridge")(tiny, Recipe(method=MethodSettings(name="ridge")))
    made.extend(range(2))
    with pytest.raises(DataError, match="no training images"):
        made.end_task(lambda: [])


def test_a_run_on_glyphs_learns_in_closed_form(tiny_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = tiny_recipe("simplecil/base", "method.name=ridge", "ridge.projection=64", "ridge.budget=2000")
    folder = start_run(recipe, tmp_path)
    metrics = train(folder)
    assert metrics["finished"] and metrics["trainable_parameters"] == {} and metrics["all_classes"] > 100 / 6
    assert zofc.load(folder.path).model.method.head.gram.shape == (15, 15)


# -- as the answer of other methods ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classifier", "adapter", "aper"])
def test_a_regression_may_answer_for_methods_that_adapt_features(tiny: Backbone, images: Tensor, name: str) -> None:
    """Its sums are those of the method's own features, task by task; the answer is theirs, also when restored."""
    peft = PeftSettings(kind="adaptformer" if name == "aper" else "adapter", blocks="first 2")
    made = Recipe(seed=3, method=MethodSettings(name=name, readout="ridge"), peft=peft)
    method = get_method(name)(tiny, made)
    shown, answers = [], []
    for task in range(2):
        method.extend(range(2 * task, 2 * task + 2))
        if name != "classifier":
            method.peft.blocks["0"].up_bias.add_(0.5 * (task + 1))
        labels = torch.tensor([0, 1, 0, 1, 1, 0]) + 2 * task
        method.end_task(lambda labels=labels: [(images, labels)])
        shown.append((method.embed(images) if name == "aper" else method.extract(images)).double())
        answers.append(torch.nn.functional.one_hot(labels, 4).double())
    phi, truth = torch.cat(shown), torch.cat(answers)
    torch.testing.assert_close(method.ridge.gram, phi.mT @ phi)
    torch.testing.assert_close(method.ridge.sums, phi.mT @ truth)
    last = method.embed(images) if name == "aper" else method.extract(images)
    torch.testing.assert_close(method.scores(images), method.ridge.scores(last))
    copy = get_method(name)(tiny, made)
    for task in range(2):
        copy.extend(range(2 * task, 2 * task + 2))
    copy.load_state_dict(method.state_dict())
    assert torch.equal(copy.scores(images), method.scores(images))


@pytest.mark.parametrize("name", ["lae", "l2p", "coda", "ease", "inflora"])
def test_methods_with_an_answer_of_their_own_refuse_a_regression(name: str) -> None:
    made = Recipe(
        method=MethodSettings(name=name, readout="ridge"),
        data=DataSettings(classes=10, increment=5),
        head=HeadSettings(kind="cosine" if name == "ease" else "linear"),
    )
    with pytest.raises(RecipeError, match=r"method\.readout: .*rule of its own"):
        get_method(name).check(made, [5, 5])

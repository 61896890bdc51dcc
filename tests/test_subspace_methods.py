"""Facts about LAE, APER and EASE."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import grow_method, method_recipe, shake
from zofc.methods import Method
from zofc.methods.aper import Aper
from zofc.methods.ease import Ease, EaseSettings
from zofc.methods.lae import LaeSettings, LearnAccumulateEnsemble
from zofc.model.backbone import Backbone
from zofc.optim.placement import Placement
from zofc.recipe import Group, Recipe


def subspace_recipe(name: str, variant: str = "official", head: str = "cosine", **sections: object) -> Recipe:
    whole = {"kind": "adaptformer", "blocks": "all"}
    peft = whole if name in ("aper", "ease") else {"blocks": "first 2", "scale": "learned"}
    peft["beside"] = "attention"
    return method_recipe(name, method={"variant": variant}, peft=peft, head={"kind": head}, **sections)


def learned(method: Method, images: Tensor, labels: Tensor) -> None:
    method.end_task(lambda: [(images, labels)])


# -- LAE ---------------------------------------------------------------------------------------------------------------


def test_lae_with_equal_copies_answers_as_one_model(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, subspace_recipe("lae"), 2, 3)
    assert isinstance(method, LearnAccumulateEnsemble) and method.offline is not None
    shake(method.peft, 0.3)
    for slow, fast in zip(method.offline.parameters(), method.peft.parameters(), strict=True):
        slow.copy_(fast)
    single = method.head.logits({}, method.extract(images))
    torch.testing.assert_close(method.scores(images).exp(), single.softmax(-1))
    assert torch.equal(method.scores(images).argmax(1), single.argmax(1))


def test_lae_answers_with_the_larger_of_two_probabilities(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, subspace_recipe("lae"), 2, 3)
    assert isinstance(method, LearnAccumulateEnsemble) and method.offline is not None
    shake(method.peft, 0.3)
    shake(method.offline, 0.3, 2)
    online = method.head.logits({}, method.extract(images)).softmax(-1)
    slow = tiny.leave(tiny.enter(images), method.offline.inserts({}))
    offline = method.head.logits({}, slow).softmax(-1)
    torch.testing.assert_close(method.scores(images).exp(), torch.maximum(online, offline))


def test_laes_copy_is_made_when_its_variant_says_and_follows_slowly(tiny: Backbone) -> None:
    for variant, task in (("official", 2), ("zofc", 1)):
        method = grow_method(tiny, subspace_recipe("lae", variant, lae=LaeSettings(decay=0.9)))
        assert isinstance(method, LearnAccumulateEnsemble)
        for number in (1, 2):
            assert (method.offline is None) == (number <= task) or number > task
            method.extend(range(2 * number - 2, 2 * number))
            assert (method.offline is not None) == (number >= task)
            if number < task:
                method.after_step()  # nothing to follow yet
                shake(method.peft, 0.3)
        assert method.offline is not None
        before = [value.clone() for value in method.offline.parameters()]
        shake(method.peft, 0.3, 5)
        method.after_step()
        for old, slow, fast in zip(before, method.offline.parameters(), method.peft.parameters(), strict=True):
            torch.testing.assert_close(slow, 0.9 * old + 0.1 * fast)


def test_lae_pauses_its_module_but_officially_not_in_the_first_task(tiny: Backbone) -> None:
    plan = Group(epochs=5, start=3)
    for variant, starts in (("official", [0, 3]), ("zofc", [3, 3])):
        method = grow_method(tiny, subspace_recipe("lae", variant))
        found = []
        for task in range(2):
            method.extend(range(2 * task, 2 * task + 2))
            found.append(method.plan("peft", plan).start)
            assert method.plan("head", plan).start == 3
        assert found == starts


def test_a_paused_group_does_not_move_before_its_start(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, subspace_recipe("lae"), 3)
    groups = {"peft": method.groups()["peft"], "head": method.groups()["head"]}
    plans = {"peft": Group(epochs=3, start=2, lr=1.0), "head": Group(epochs=3, lr=1.0)}
    placement = Placement(method, groups, plans, 3, 0)
    moved = []
    for epoch in range(3):
        before = method.peft.blocks["0"].up_bias.clone()
        placement.step(images, torch.arange(6) % 3, epoch, epoch)
        moved.append(not torch.equal(before, method.peft.blocks["0"].up_bias))
    assert moved == [False, False, True]


def test_lae_stands_where_its_variant_says_and_starts_its_rows_small(tiny: Backbone) -> None:
    official, released = (grow_method(tiny, subspace_recipe("lae", v, "linear"), 40) for v in ("official", "zofc"))
    assert official.peft.place == "beside_attention" and released.peft.place == "beside_mlp"
    assert float(official.head.rows[0].std()) == pytest.approx(0.001, rel=0.1)
    assert float(released.head.rows[0].std()) > 0.05


def test_laes_module_stays_as_it_starts_where_the_released_code_trains_the_classifier_alone(tiny: Backbone) -> None:
    first, zeroth = Group(order="first"), Group(order="zeroth")

    def trained(variant: str, frozen: bool | None, **plans: Group) -> set[str]:
        recipe = subspace_recipe("lae", variant, "linear", optimize=plans, lae=LaeSettings(frozen=frozen))
        return set(grow_method(tiny, recipe, 2, 2).groups())

    assert trained("zofc", None, peft=zeroth, head=zeroth) == {"head"}
    for variant, frozen, peft, head in (
        ("zofc", None, zeroth, first), ("zofc", None, first, first), ("zofc", False, zeroth, zeroth),
        ("official", None, zeroth, zeroth), ("official", None, first, first),
    ):  # fmt: skip
        assert trained(variant, frozen, peft=peft, head=head) == {"peft", "head"}
    assert trained("official", True, peft=first, head=first) == {"head"}


# -- APER --------------------------------------------------------------------------------------------------------------


def test_aper_with_an_identity_adapter_ranks_as_simplecil(tiny: Backbone, images: Tensor) -> None:
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    aper, simple = grow_method(tiny, subspace_recipe("aper"), 2), grow_method(tiny, subspace_recipe("simplecil"), 2)
    for method in (aper, simple):
        learned(method, images, labels)
    torch.testing.assert_close(aper.scores(images), simple.scores(images))


def test_aper_answers_with_one_cosine_over_plain_and_adapted_features(tiny: Backbone, images: Tensor) -> None:
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    method = grow_method(tiny, subspace_recipe("aper"), 2)
    shake(method.peft, 0.3)
    learned(method, images, labels)
    both = torch.cat([tiny.features(images), method.extract(images)], 1)
    means = torch.stack([both[labels == c].mean(0) for c in (0, 1)])
    torch.testing.assert_close(method.scores(images), F.cosine_similarity(both[:, None], means[None], dim=-1))


def test_aper_trains_in_the_first_task_alone(tiny: Backbone) -> None:
    method = grow_method(tiny, subspace_recipe("aper"), 2)
    assert isinstance(method, Aper) and set(method.groups()) == {"peft", "head"}
    method.extend(range(2, 3))
    assert method.groups() == {} and method.begin_task(lambda: []) is None
    assert len(method.head.rows) == 1 and len(method.means.rows) == 2
    Aper.check(subspace_recipe("aper", head="linear"), [2, 1])  # a later task of one class has no loss at all


# -- EASE --------------------------------------------------------------------------------------------------------------


def ease(backbone: Backbone, images: Tensor, tasks: int, **settings: object) -> Ease:
    """EASE after some tasks of two classes, each adapter somewhere else."""
    method = grow_method(backbone, subspace_recipe("ease", **settings))  # type: ignore[arg-type]
    assert isinstance(method, Ease)
    for task in range(tasks):
        method.extend(range(2 * task, 2 * task + 2))
        shake(method.peft, 0.3, task + 1)
        shown = images + 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(task))
        learned(method, shown, torch.tensor([0, 1, 0, 1, 1, 0]) + 2 * task)
    return method


def test_ease_with_one_task_is_the_cosine_to_prototypes(tiny: Backbone, images: Tensor) -> None:
    method = ease(tiny, images, 1)
    features = method.subspaces(images)[:, 0]
    expected = F.cosine_similarity(features[:, None], method.means[0][:, 0][None], dim=-1)
    torch.testing.assert_close(method.scores(images), expected)


def test_ease_with_alpha_zero_scores_a_class_in_its_own_subspace_alone(tiny: Backbone, images: Tensor) -> None:
    method = ease(tiny, images, 3, ease=EaseSettings(alpha=0.0))
    features, scores = method.subspaces(images), method.scores(images)
    for task in range(3):
        own = F.cosine_similarity(features[:, task][:, None], method.means[task][:, task][None], dim=-1)
        torch.testing.assert_close(scores[:, 2 * task : 2 * task + 2], own)


def test_ease_synthesises_old_prototypes_as_its_formula_says(tiny: Backbone, images: Tensor) -> None:
    """Class by class, in plain loops: for i < j, similarities in subspace i mix prototypes in subspace j."""
    method = ease(tiny, images, 3)
    known = method.prototypes()
    assert known.shape == (6, 3, tiny.width)
    for i in range(3):
        for j in range(3):
            for a in range(2):
                if j <= i:
                    expected = method.means[i][a, j]
                else:
                    others = [(s, b) for s in range(j, 3) for b in range(2)]
                    here = [F.cosine_similarity(method.means[i][a, i], method.means[s][b, i], dim=0) for s, b in others]
                    chances = torch.stack(here).softmax(0)
                    expected = sum(p * method.means[s][b, j] for p, (s, b) in zip(chances, others, strict=True))
                torch.testing.assert_close(known[2 * i + a, j], expected)


def test_ease_weighs_the_other_subspaces_by_alpha_together(tiny: Backbone, images: Tensor) -> None:
    method = ease(tiny, images, 3, ease=EaseSettings(alpha=0.4))
    features, known = method.subspaces(images), method.prototypes()
    cosines = F.cosine_similarity(features[:, None], known[None], dim=-1)  # (images, classes, subspaces)
    weights = torch.full((6, 3), 0.2)
    weights[torch.arange(6), torch.arange(6) // 2] = 1
    torch.testing.assert_close(method.scores(images), (cosines * weights).sum(-1))


def test_ease_moves_its_newest_adapter_and_in_the_released_variant_old_prototypes_too(tiny: Backbone) -> None:
    def moved(variant: str, order: str) -> set[str]:
        plans = {"peft": Group(order=order), "head": Group()}  # type: ignore[arg-type]
        return set(grow_method(tiny, subspace_recipe("ease", variant, optimize=plans), 2, 2, 2).groups()["peft"])

    official = moved("official", "zeroth")
    assert all(name.startswith("adapters.2.") for name in official)
    assert moved("zofc", "zeroth") - official == {"means.0", "means.1"}
    assert moved("zofc", "first") == official  # no gradient reaches them


def test_these_methods_come_back_from_their_tensors(tiny: Backbone, images: Tensor) -> None:
    for method in (
        ease(tiny, images, 3),
        grow_method(tiny, subspace_recipe("lae"), 2, 2),
        grow_method(tiny, subspace_recipe("aper"), 2, 2),
    ):
        shake(method, 0.3)
        if isinstance(method, Ease):
            method.known = None
        copy = grow_method(tiny, method.recipe, *(len(task) for task in method.tasks))
        copy.load_state_dict(method.state_dict())
        assert torch.equal(copy.scores(images), method.scores(images))

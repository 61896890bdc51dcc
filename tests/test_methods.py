"""Facts about what each method trains, its loss and its answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import grow_method, method_recipe, names_by_group
from zofc.errors import RecipeError
from zofc.methods import METHODS, check_placement, get_method
from zofc.model.backbone import Backbone
from zofc.recipe import Group, Recipe


def adapter_recipe(head: str = "cosine", **method: bool) -> Recipe:
    return method_recipe("adapter", head={"kind": head}, method=method)


def test_the_methods_have_the_names_and_groups_that_recipes_use() -> None:
    assert {
        name: cls.group_names for name, cls in METHODS.items() if name in ("simplecil", "classifier", "adapter")
    } == {
        "simplecil": (),
        "classifier": ("head",),
        "adapter": ("peft", "head"),
    }


def test_simplecil_answers_with_the_cosine_to_class_means(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, method_recipe("simplecil"), 2)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    method.end_task(lambda: [(images[:4], labels[:4]), (images[4:], labels[4:])])
    features = tiny.features(images)
    means = torch.stack([features[labels == c].mean(0) for c in (0, 1)])
    assert method.groups() == {}
    torch.testing.assert_close(method.scores(images), F.cosine_similarity(features[:, None], means[None], dim=-1))


@pytest.mark.parametrize("head", ["cosine", "linear"])
def test_the_masked_loss_is_cross_entropy_with_old_logits_at_minus_infinity(
    tiny: Backbone, images: Tensor, head: str
) -> None:
    method = grow_method(tiny, adapter_recipe(head=head), 2, 3)
    labels = torch.tensor([2, 3, 4, 2, 3, 4])
    features = method.extract(images)
    logits = method.head.logits({}, features)
    masked = logits.masked_fill(torch.arange(5) < 2, -torch.inf)
    torch.testing.assert_close(method.loss({}, features, labels), F.cross_entropy(masked, labels))
    assert int(method.hits({}, features, labels)) == int((masked.argmax(1) == labels).sum())


def test_without_the_mask_all_rows_are_in_the_loss_and_move(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, adapter_recipe(mask=False), 2, 3)
    labels = torch.tensor([2, 3, 4, 2, 3, 4])
    features = method.extract(images)
    torch.testing.assert_close(
        method.loss({}, features, labels), F.cross_entropy(method.head.logits({}, features), labels)
    )
    assert names_by_group(method.groups())["head"] == {"head.rows.0", "head.rows.1", "head.sigma"}


def test_groups_hold_the_current_rows_and_never_the_old_ones(tiny: Backbone) -> None:
    cosine, linear = grow_method(tiny, adapter_recipe(), 2, 3), grow_method(tiny, adapter_recipe(head="linear"), 2, 3)
    assert names_by_group(cosine.groups())["head"] == {"head.rows.1", "head.sigma"}
    assert names_by_group(linear.groups())["head"] == {"head.rows.1", "head.bias.1"}
    names = {"down_weight", "down_bias", "up_weight", "up_bias"}
    assert names_by_group(cosine.groups())["peft"] == {f"peft.blocks.{b}.{n}" for b in (0, 1) for n in names}


def test_a_task_of_one_class_takes_its_prototype_and_says_so(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, adapter_recipe(), 2, 1)
    notice = method.begin_task(lambda: [])
    assert notice is not None and "one class" in notice and "prototype" in notice
    assert method.groups() == {}
    labels = torch.full((6,), 2)
    method.end_task(lambda: [(images, labels)])
    torch.testing.assert_close(method.head.rows[1][0], tiny.features(images).mean(0))


def test_a_task_of_one_class_is_refused_where_there_is_no_prototype() -> None:
    cls = get_method("adapter")
    with pytest.raises(RecipeError, match=r"data\.increment: task 2 has a single class.*head\.kind=cosine"):
        cls.check(adapter_recipe(head="linear"), [2, 1])
    cls.check(adapter_recipe(), [2, 1])
    cls.check(adapter_recipe(head="linear", mask=False), [2, 1])


def test_prototypes_without_the_mask_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"method\.prototypes.*mask"):
        get_method("adapter").check(adapter_recipe(prototypes=True, mask=False), [2, 2])


def test_without_the_mask_only_a_first_task_of_one_class_has_nothing_to_train(tiny: Backbone) -> None:
    assert grow_method(tiny, adapter_recipe(mask=False), 1).groups() == {}
    assert grow_method(tiny, adapter_recipe(mask=False), 2, 1).groups() != {}


def test_the_prototype_variant_replaces_the_trained_rows_by_class_means(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, adapter_recipe(prototypes=True), 2)
    method.head.sigma.fill_(5.0)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    method.peft.blocks["0"].up_bias.add_(0.5)
    method.end_task(lambda: [(images, labels)])
    features = method.extract(images)
    torch.testing.assert_close(method.head.rows[0], torch.stack([features[labels == c].mean(0) for c in (0, 1)]))
    assert not torch.allclose(features, tiny.features(images))  # means of the adapted features
    method.extend(range(2, 4))
    assert float(method.head.sigma) == 1.0
    with pytest.raises(RecipeError, match=r"method\.prototypes.*cosine"):
        get_method("adapter").check(adapter_recipe(head="linear", prototypes=True), [2, 2])


def test_initial_values_depend_on_the_seed_and_the_task_alone(tiny: Backbone) -> None:
    one, other = grow_method(tiny, adapter_recipe(), 2, 3), grow_method(tiny, adapter_recipe(), 2, 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    third = grow_method(tiny, adapter_recipe().model_copy(update={"seed": 4}), 2, 3)
    assert not torch.equal(one.head.rows[1], third.head.rows[1])


def test_a_placement_must_name_the_methods_groups() -> None:
    with pytest.raises(RecipeError, match=r"optimize\.pfet: method 'adapter' has no group 'pfet'; did you mean 'peft'"):
        check_placement(adapter_recipe(), {"pfet": Group(), "head": Group()})
    with pytest.raises(RecipeError, match=r"optimize\.head: method 'simplecil' has no group 'head'; it trains nothing"):
        check_placement(method_recipe("simplecil"), {"head": Group()})
    with pytest.raises(RecipeError, match=r"optimize\.peft: method 'adapter' needs a placement for 'peft'"):
        check_placement(adapter_recipe(), {"head": Group()})
    with pytest.raises(RecipeError, match=r"unknown method 'adaptor'; did you mean 'adapter'"):
        get_method("adaptor")


def test_simplecil_cannot_be_asked_for_a_loss(tiny: Backbone, images: Tensor) -> None:
    method = grow_method(tiny, method_recipe("simplecil"), 2)
    with pytest.raises(TypeError, match="SimpleCIL trains nothing"):
        method.prepare(images)

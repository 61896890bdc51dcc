"""Facts about every estimator on every method: what its coefficients are, and that no way of working changes them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from test_every_method import TRAINED, task_batches, three_task_recipe
from zofc.errors import RecipeError
from zofc.methods import get_method
from zofc.methods.base import Method
from zofc.model.backbone import Backbone
from zofc.optim.chunking import Chunking
from zofc.optim.directions import Directions, Space
from zofc.optim.dual import Dual
from zofc.optim.estimators import ESTIMATORS, get_estimator
from zofc.optim.evaluation import Query, coefficients, combine, evaluate_features
from zofc.optim.placement import Placement
from zofc.recipe import Group, load_recipe
from zofc.training.resolve import check_recipe

QUERIES = 3


def second_task(tiny: Backbone, images: Tensor, name: str, kind: str = "") -> tuple[Method, Tensor, Tensor]:
    """A method in float64, in its second task and away from its initial values, with a batch of that task."""
    tiny.vit.double()
    method = get_method(name)(tiny, three_task_recipe(name, **({"kind": kind} if kind else {})))
    for task in range(2):
        shown, labels = task_batches(images, task)
        shown = shown.double()
        method.double()
        if task:
            method.end_task(lambda shown=shown, labels=labels: [(shown, labels - 3)])  # type: ignore[misc]
        method.extend(range(3 * task, 3 * task + 3))
        method.double()
        method.begin_task(lambda shown=shown, labels=labels: [(shown, labels)])  # type: ignore[misc]
    method.double()
    g = torch.Generator().manual_seed(5)
    for value in method.parameters():
        value.add_(0.05 * torch.randn(value.shape, generator=g, dtype=value.dtype))
    return method, shown, labels


def groups_of(method: Method) -> dict[str, Tensor]:
    return {name: value for group in method.groups().values() for name, value in group.items()}


def query_for(method: Method, estimator: str, kind: str = "gaussian", batch: int = 0, epsilon: float = 1e-3) -> Query:
    """A query about all that the method may move; with `batch`, a direction for each of its images."""
    space = Space(groups_of(method))
    shape = (batch, space.size) if batch else (space.size,)
    vectors = Directions(kind, 1).stack(0, QUERIES, shape, torch.device("cpu"))
    deep = any(name in method.in_features for name in method.groups())
    return Query(space, vectors, get_estimator(estimator), epsilon, deep)


def along(method: Method, images: Tensor, labels: Tensor, query: Query, chunking: Chunking | None = None) -> Tensor:
    features = evaluate_features(method, images, query, False, chunking or Chunking())
    return coefficients(method, labels, query, features)[0]


def gradient(method: Method, images: Tensor, labels: Tensor) -> Tensor:
    """The true gradient as one vector, by autograd."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in groups_of(method).items()}
    with torch.enable_grad():
        loss = method.loss(leaves, method.features(leaves, method.prepare(images)), labels)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    filled = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves.values(), found, strict=True)]
    return torch.cat([g.flatten() for g in filled])


MODULES = [(name, "") for name in TRAINED if name != "aper"]  # which trains in the first task alone, as `adapter` does
MODULES += [("adapter", kind) for kind in ("adaptformer", "lora", "prefix")]


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize(("name", "kind"), MODULES)
def test_forward_gradients_are_the_derivatives_along_their_directions(
    tiny: Backbone, images: Tensor, name: str, kind: str, chunk: int
) -> None:
    """For every method and family of modules: c_q = ∇L·Δ_q, with the gradient of autograd."""
    method, shown, labels = second_task(tiny, images, name, kind)
    query = query_for(method, "forward_gradient")
    expected = query.vectors.double() @ gradient(method, shown, labels)
    torch.testing.assert_close(
        along(method, shown, labels, query, Chunking(chunk=chunk)), expected, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("estimator", ["spsa", "one_sided"])
@pytest.mark.parametrize(("name", "kind"), MODULES)
def test_differences_come_near_the_derivatives_as_their_length_shrinks(
    tiny: Backbone, images: Tensor, name: str, kind: str, estimator: str
) -> None:
    method, shown, labels = second_task(tiny, images, name, kind)
    exact = along(method, shown, labels, query_for(method, "forward_gradient"))
    errors = [
        float((along(method, shown, labels, query_for(method, estimator, epsilon=epsilon)) - exact).norm())
        for epsilon in (1e-3, 1e-4)
    ]
    order = 2 if estimator == "spsa" else 1  # of the error in ε
    assert errors[1] < errors[0] / 10**order * 2 + 1e-9 * float(exact.norm())
    assert errors[1] < 1e-2 * float(exact.norm())


@pytest.mark.parametrize(
    "chunking", [Chunking(None, 2), Chunking(None, 8), Chunking(2, 1), Chunking(4, 3), Chunking(1, 8)]
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", [name for name in TRAINED if name not in ("aper", "l2p")])  # L2P's images vote
def test_no_way_of_working_changes_the_coefficients(
    tiny: Backbone, images: Tensor, name: str, estimator: str, chunking: Chunking
) -> None:
    """One by one, in chunks, all at once, in micro-batches: equal to 1e-9 in float64."""
    method, shown, labels = second_task(tiny, images, name)
    query = query_for(method, estimator)
    plain = along(method, shown, labels, query)
    other = along(method, shown, labels, query, chunking)
    assert float((other - plain).norm() / plain.norm()) < 1e-9


@pytest.mark.parametrize("chunking", [Chunking(), Chunking(2), Chunking(4)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", ["adapter", "adaptformer", "lora", "prefix"])
def test_with_a_direction_for_each_image_a_coefficient_is_about_that_image_alone(
    tiny: Backbone, images: Tensor, kind: str, estimator: str, chunking: Chunking
) -> None:
    method, shown, labels = second_task(tiny, images, "adapter", kind)
    query = query_for(method, estimator, batch=len(labels), epsilon=1e-5)
    found = along(method, shown, labels, query, chunking)
    assert found.shape == (QUERIES, len(labels))
    each = torch.stack([gradient(method, shown[i : i + 1], labels[i : i + 1]) for i in range(len(labels))])
    expected = torch.einsum("qbd,bd->qb", query.vectors.double(), each)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4 * float(expected.abs().max()))
    total = torch.cat([part.flatten() for part in combine(query, found).values()])
    by_hand = torch.einsum("qb,qbd->d", found, query.vectors.double()) / found.numel()
    torch.testing.assert_close(total, by_hand)


def test_every_image_of_every_query_has_a_direction_of_its_own() -> None:
    batch = Directions("rademacher", 3).stack(5, 2, (6, 10), torch.device("cpu"))
    assert batch.shape == (2, 6, 10) and batch.dtype == torch.int8
    assert len({tuple(row.tolist()) for row in batch.flatten(0, 1)}) == 12


def test_a_loss_that_couples_images_has_no_direction_for_each_image() -> None:
    own = load_recipe("l2p-zo/cifar100-inc10", ["optimize.peft.per=image", "optimize.head.per=image"])
    with pytest.raises(RecipeError, match=r"optimize\.head\.per: no image has a loss of its own"):
        check_recipe(own)


def test_an_epoch_in_which_nothing_moves_is_refused() -> None:
    with pytest.raises(RecipeError, match="no group moves in epoch 2"):
        check_recipe(load_recipe("zofc/base", ["optimize.head.epochs=1", "optimize.peft.start=2"]))


def test_a_group_by_any_name_is_trained_through_the_features(tiny: Backbone, images: Tensor) -> None:
    """What is not the head is taken to be in the features, unless a method says otherwise."""

    class Renamed(get_method("adapter")):  # type: ignore[misc]
        group_names = ("module", "head")

        def groups(self) -> dict[str, dict[str, Tensor]]:
            found = super().groups()
            return {"module": found["peft"], "head": found["head"]}

    for order in ("first", "zeroth"):
        method = Renamed(tiny, three_task_recipe("adapter"))
        method.extend(range(3))
        before = [value.clone() for value in method.groups()["module"].values()]
        plans = {"module": Group(order=order, epochs=9, lr=0.1), "head": Group(epochs=9)}
        Placement(method, method.groups(), plans, seed=3, task=0).step(*task_batches(images, 0), 0, 0)
        moved = [not torch.equal(a, b) for a, b in zip(before, method.groups()["module"].values(), strict=True)]
        assert any(moved)


def test_directions_on_the_sphere_have_the_length_of_signs() -> None:
    vectors = Directions("sphere", 3).stack(0, 4, (5, 50), torch.device("cpu"))
    torch.testing.assert_close(vectors.norm(dim=-1), torch.full((4, 5), 50.0).sqrt())


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("per", ["batch", "image"])
def test_the_classifier_moves_as_if_its_features_had_been_computed_for_it_alone(
    tiny: Backbone, images: Tensor, estimator: str, per: str
) -> None:
    """ZO-FC's classifier reads the features of the queries' pass, and the queries see it moved (Algorithm 1)."""
    head = Group(order="first", lr=0.5, epochs=9)
    moved = {}
    for together in (True, False):
        method, shown, labels = second_task(tiny, images, "adapter")
        groups = method.groups()
        peft = Group(order="zeroth", estimator=estimator, per=per, epsilon=1e-4, queries=QUERIES, lr=0.1, epochs=9)
        plans = {"peft": peft, "head": head}
        if together:
            report = Placement(method, groups, plans, seed=3, task=1).step(shown, labels, 0, 0)
            expected = method_loss_before = None
        else:
            method_loss_before = float(method.loss({}, method.features({}, method.prepare(shown)), labels))
            for name in ("head", "peft"):
                Placement(method, {name: groups[name]}, plans, seed=3, task=1).step(shown, labels, 0, 0)
            expected = method_loss_before
        moved[together] = torch.cat([value.flatten() for value in groups_of(method).values()])
    assert expected is not None and report.loss == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(moved[True], moved[False], rtol=1e-9, atol=1e-12)


def test_a_zeroth_order_classifier_needs_its_features_once(tiny: Backbone, images: Tensor) -> None:
    method, shown, labels = second_task(tiny, images, "adapter")
    calls = []
    features = method.features
    method.features = lambda moving, prepared: calls.append(1) or features(moving, prepared)  # type: ignore[method-assign]
    plan = Group(order="zeroth", queries=8, epochs=9)
    Placement(method, {"head": method.groups()["head"]}, {"head": plan}, seed=3, task=1).step(shown, labels, 0, 0)
    assert len(calls) == 1


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_directions_for_each_image_are_evaluated_together_or_one_by_one(
    tiny: Backbone, images: Tensor, micro_batch: int | None
) -> None:
    """Tangents of several directions per image pass through the backbone once, with the same estimate."""
    moved, passes = [], []
    for chunk in (1, 2, 4):
        method, shown, labels = second_task(tiny, images, "adapter")
        features = method.features
        method.features = lambda moving, given, own=features: passes.append(1) or own(moving, given)  # type: ignore[method-assign, misc]
        plan = Group(order="zeroth", estimator="forward_gradient", per="image", queries=4, lr=0.1, epochs=9,
                     chunk=chunk, micro_batch=micro_batch)  # fmt: skip
        Placement(method, {"peft": method.groups()["peft"]}, {"peft": plan}, seed=3, task=1).step(shown, labels, 0, 0)
        moved.append(torch.cat([value.flatten() for value in groups_of(method).values()]))
    parts = 1 if micro_batch is None else -(-len(shown) // micro_batch)
    assert len(passes) == parts * (4 + 2 + 1)
    for other in moved[1:]:
        torch.testing.assert_close(other, moved[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("estimator", "passes"), [("spsa", 9), ("one_sided", 5), ("forward_gradient", 1)])
def test_what_comes_before_the_adapter_is_computed_once_and_no_pass_is_made_in_vain(
    tiny: Backbone, images: Tensor, estimator: str, passes: int
) -> None:
    """With Q = 4 and a first-order classifier: 2Q + 1 passes, Q + 1, or one with its tangents; none to report."""
    method, shown, labels = second_task(tiny, images, "adapter")
    prepared, featured = [], []
    prepare, features = method.prepare, method.features
    method.prepare = lambda some: prepared.append(1) or prepare(some)  # type: ignore[method-assign]
    method.features = lambda moving, given: featured.append(1) or features(moving, given)  # type: ignore[method-assign]
    zeroth = Group(order="zeroth", estimator=estimator, queries=4, chunk=4 if passes == 1 else 1, epochs=9)
    plans = {"peft": zeroth, "head": Group(order="first", epochs=9)}
    Placement(method, method.groups(), plans, seed=3, task=1).step(shown, labels, 0, 0)
    assert (len(prepared), len(featured)) == (1, passes)


# -- dual numbers ----------------------------------------------------------------------------------------------------


def test_any_function_of_a_dual_number_has_its_derivative() -> None:
    """Also one without a rule of its own, and one that returns several things, some of which have no derivative."""
    g = torch.Generator().manual_seed(0)
    x, dx = torch.randn(3, 4, generator=g).double(), torch.randn(2, 3, 4, generator=g).double()
    y, dy = torch.randn(4, 4, generator=g).double(), torch.randn(2, 4, 4, generator=g).double()

    def function(a: Tensor, b: Tensor) -> Tensor:
        c = torch.cat([a @ b, 1 - a, a.tanh() / (2 + b.cos().sum(0)), -a[:, :2].repeat(1, 2)])
        values, ids = c.topk(2, dim=-1)
        return (values * ids).sum(-1) + torch.nn.functional.normalize(c, dim=-1).logsumexp(-1) + (c**3).mT.mean(0)

    found = function(Dual(x, dx), Dual(y, dy))
    assert isinstance(found, Dual)
    expected = torch.stack([torch.func.jvp(function, (x, y), (dx[q], dy[q]))[1] for q in range(2)])
    torch.testing.assert_close(found.primal, function(x, y))
    torch.testing.assert_close(found.tangents, expected)


STEPS: list[Callable[[Tensor], Any]] = [
    lambda x: x.reshape(6, -1), lambda x: x.reshape((3, 8)), lambda x: x.transpose(0, 2), lambda x: x.transpose(-1, 1),
    lambda x: x.chunk(2, dim=-1), lambda x: x.chunk(3)[1], lambda x: x[..., 1:, :], lambda x: x[1], lambda x: x[:, 0],
    lambda x: x[None, :, ..., 2], lambda x: x[torch.tensor([1, 0, 1])], lambda x: x[x.detach()[:, 0, 0] > -9],
    lambda x: x.mT, lambda x: -x.contiguous().clone(), lambda x: x.to(torch.float32).double(), lambda x: x[..., None],
    lambda x: torch._C._nn.gelu_(x.clone()),  # type: ignore[attr-defined]
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_steps_with_a_rule_of_their_own_are_their_derivatives(step: Callable[[Tensor], Any]) -> None:
    g = torch.Generator().manual_seed(0)
    x, dx = torch.randn(3, 2, 4, generator=g).double(), torch.randn(5, 3, 2, 4, generator=g).double()
    found, value = tree_leaves(step(Dual(x, dx))), tree_leaves(step(x))
    assert len(found) == len(value)
    for number, part in enumerate(found):
        assert isinstance(part, Dual) and torch.equal(part.primal, value[number])
        for q in range(len(dx)):
            moved = torch.func.jvp(lambda x, n=number: tree_leaves(step(x))[n], (x,), (dx[q],))[1]
            torch.testing.assert_close(part.tangents[q], moved)


def test_what_a_dual_number_says_of_itself_is_its_value() -> None:
    value = Dual(torch.ones(2, 3), torch.zeros(5, 2, 3))
    assert value.shape == (2, 3) and value.dim() == 2 and len(value) == 2 and value.dtype == torch.float32
    assert torch.equal(value.argmax(-1), torch.tensor([0, 0])) and not isinstance(value.detach(), Dual)
    assert "Dual" in repr(value)
    with pytest.raises(AssertionError, match="tangents"):
        Dual(torch.ones(2), torch.zeros(5, 3))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.mul_(2), lambda x: operator.iadd(x, 1), lambda x: operator.setitem(x, 0, 1.0), lambda x: x.exp_(),
     lambda x: torch.nn.functional.elu(x, inplace=True), lambda x: torch.exp(x, out=x)],
)  # fmt: skip
def test_what_would_change_a_dual_number_in_place_is_refused(change: Callable[[Tensor], Any]) -> None:
    value = Dual(torch.ones(3), torch.zeros(5, 3))
    with pytest.raises(RuntimeError, match="in place, which forward gradients do not support"):
        change(value)
    assert torch.equal(value.primal, torch.ones(3)) and torch.equal(~(value > 2), torch.ones(3, dtype=torch.bool))


def test_random_layers_refuse_dual_numbers() -> None:
    value = Dual(torch.ones(2, 3), torch.zeros(5, 2, 3))
    assert torch.nn.functional.dropout(value, 0.5, training=False) is value
    with pytest.raises(AssertionError, match="random layer"):
        torch.nn.functional.dropout(value, 0.5, training=True)


# -- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "aper"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_forward_gradients_keep_their_direction_in_16_bits(
    tiny: Backbone, images: Tensor, name: str, dtype: torch.dtype
) -> None:
    """Frozen weights and activations in 16 bits, what is trained in fp32: the coefficients correlate with float64's."""
    method, shown, labels = second_task(tiny, images, name)
    query = replace(query_for(method, "forward_gradient"), vectors=Directions("rademacher", 2).stack(
        0, 64, (Space(groups_of(method)).size,), torch.device("cpu")))  # fmt: skip
    exact = along(method, shown, labels, query, Chunking(chunk=64))
    method.float()
    tiny.vit.to(dtype)
    found = along(method, shown.float(), labels, query, Chunking(chunk=64))
    assert float(torch.corrcoef(torch.stack([exact, found]))[0, 1]) > 0.98

"""Facts about directions, the two-point estimator, optimizers and the step of Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zofc.errors import RecipeError
from zofc.methods import get_method
from zofc.methods.base import Method
from zofc.model.backbone import Backbone, load_backbone
from zofc.optim.chunking import Chunking
from zofc.optim.directions import Directions, Space, unpack_signs
from zofc.optim.estimators import ESTIMATORS, get_estimator
from zofc.optim.evaluation import Query, coefficients, combine, evaluate_features
from zofc.optim.length_matched import LengthMatchedOptimizer
from zofc.optim.optimizers import GroupOptimizer
from zofc.optim.placement import Placement
from zofc.recipe import BackboneSettings, Group, HeadSettings, PeftSettings, Recipe

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
RECIPE = Recipe(seed=3, peft=PeftSettings(blocks="first 2", rank=4))
ZEROTH = Group(order="zeroth", queries=4, epsilon=1e-3, clip=1.0, lr=0.01, epochs=20)
FIRST = Group(order="first", lr=0.01, schedule="cosine", min_lr=1e-5, epochs=10)


class Function:
    """A loss that is a function of one vector, which takes the place of the features of a single image."""

    noise = None
    in_features = ("x",)
    device = torch.device("cpu")

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.f, self.x = f, x

    def prepare(self, images: Tensor) -> Tensor:
        return images

    def features(self, moving: Mapping[str, Tensor], prepared: Tensor) -> Tensor:
        return moving.get("x", self.x)[..., None, :]

    def loss(self, moving: Mapping[str, Tensor], features: Tensor, labels: Tensor) -> Tensor:
        return self.f(features[..., 0, :])

    def hits(self, moving: Mapping[str, Tensor], features: Tensor, labels: Tensor) -> Tensor:
        return torch.zeros(())


def estimate(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    queries: int,
    estimator: str = "spsa",
    epsilon: float = 1e-3,
    chunk: int = 1,
    kind: str = "rademacher",
) -> tuple[Tensor, Tensor, Tensor]:
    """Directions, coefficients along them, and the estimated gradient, of f (of vectors along the last axis) at x."""
    objective, label = Function(f, x), torch.zeros(1, dtype=torch.int64)
    vectors = Directions(kind, 0).stack(0, queries, (len(x),), x.device)
    query = Query(Space({"x": x}), vectors, get_estimator(estimator), epsilon)
    features = evaluate_features(objective, torch.zeros(1, 1), query, False, Chunking(chunk=chunk))
    along, _ = coefficients(objective, label, query, features)
    return vectors.to(x.dtype), along, combine(query, along)["x"]


def make(
    backbone: Backbone, name: str = "adapter", dtype: torch.dtype = torch.float64, recipe: Recipe = RECIPE
) -> Method:
    """A method in its second task, away from its initial values."""
    backbone.vit.to(dtype)
    method = get_method(name)(backbone, recipe)
    method.extend(range(2))
    method.extend(range(2, 5))
    g = torch.Generator().manual_seed(5)
    for value in method.parameters():
        value.add_(0.05 * torch.randn(value.shape, generator=g))
    return method.to(dtype)


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


# -- directions ------------------------------------------------------------------------------------------------------


def test_directions_depend_only_on_seed_name_step_and_query() -> None:
    like = {"a": torch.zeros(3, 5), "b": torch.zeros(7)}
    for kind in ("rademacher", "gaussian", "sphere"):
        base = Directions(kind, 1, ("task", 0))
        again = Directions(kind, 1, ("task", 0)).draw(4, 2, like)
        assert all(torch.equal(again[n], base.draw(4, 2, like)[n]) for n in like)
        assert again["a"].shape == (3, 5) and again["b"].shape == (7,)
        for other in (
            base.draw(4, 3, like),
            base.draw(5, 2, like),
            Directions(kind, 2, ("task", 0)).draw(4, 2, like),
            Directions(kind, 1, ("task", 1)).draw(4, 2, like),
        ):
            assert not torch.equal(flat(other), flat(again))


def test_directions_are_the_same_numbers_in_every_precision_and_however_the_tensors_are_cut() -> None:
    d = Directions("rademacher", 1)
    whole = d.draw(0, 0, {"x": torch.zeros(100)})["x"]
    cut = d.draw(0, 0, {"a": torch.zeros(30), "b": torch.zeros(7, 10, dtype=torch.float64)})
    assert torch.equal(whole, torch.cat([cut["a"], cut["b"].flatten().float()]))


@settings(max_examples=30)
@given(size=st.integers(1, 300), step=st.integers(0, 10**6), query=st.integers(0, 64))
def test_rademacher_directions_are_signs(size: int, step: int, query: int) -> None:
    values = Directions("rademacher", 7).draw(step, query, {"x": torch.zeros(size)})["x"]
    assert set(values.tolist()) <= {-1.0, 1.0} and len(values) == size


def test_directions_have_mean_zero_unit_variance_and_no_correlation() -> None:
    for kind, fourth in (("rademacher", 1.0), ("gaussian", 3.0)):
        x = torch.stack([Directions(kind, 7).draw(0, q, {"x": torch.zeros(20_000)})["x"] for q in range(4)]).double()
        assert abs(float(x.mean())) < 0.02
        assert abs(float((x**2).mean()) - 1) < 0.03
        assert abs(float((x**4).mean()) - fourth) < 0.15
        assert float((x @ x.T / 20_000 - torch.eye(4)).abs().max()) < 0.04


def test_known_directions_stay_known() -> None:
    """Journals of zeroth-order steps can only be replayed if directions never change between versions."""
    signs = Directions("rademacher", 1993, ("task", 0, "peft")).draw(0, 0, {"x": torch.zeros(16)})["x"]
    assert "".join("+" if s > 0 else "-" for s in signs.tolist()) == "----+++++--+-++-"


# -- the two-point estimator -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["spsa", "forward_gradient"])
def test_the_mean_of_an_estimate_converges_to_the_gradient_on_a_quadratic(estimator: str) -> None:
    g = torch.Generator().manual_seed(0)
    a = torch.randn(6, 6, generator=g, dtype=torch.float64)
    h, b, x = (
        a @ a.T,
        torch.randn(6, generator=g, dtype=torch.float64),
        torch.randn(6, generator=g, dtype=torch.float64),
    )
    gradient = h @ x + b
    errors = []
    for queries in (100, 10_000):
        found = estimate(lambda v: ((v @ h) * v).sum(-1) / 2 + (v * b).sum(-1), x, queries, estimator, chunk=1000)[2]
        errors.append(float((found - gradient).norm() / gradient.norm()))
    assert errors[1] < 0.04
    assert errors[1] < errors[0] / 4  # the error falls as 1/√Q: ten times is expected


def test_the_central_difference_of_a_quadratic_is_exact_for_any_epsilon() -> None:
    """c_q = ∇L·Δ_q: the even term cancels."""
    x, b = (
        torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64),
        torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64),
    )
    for epsilon in (1e-3, 1.0):
        vectors, along, _ = estimate(lambda v: (v * v).sum(-1) + (v * b).sum(-1), x, 5, epsilon=epsilon)
        torch.testing.assert_close(along, vectors @ (2 * x + b), rtol=1e-9, atol=1e-9)


def test_the_one_sided_difference_of_a_quadratic_is_off_by_half_its_curvature_times_epsilon() -> None:
    """c_q = ∇L·Δ_q + (ε/2) Δ_qᵀHΔ_q; here H = 2I and |Δ_q|² = 3."""
    x, b = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    for epsilon in (1e-3, 1.0):
        vectors, along, _ = estimate(lambda v: (v * v).sum(-1) + (v * b).sum(-1), x, 5, "one_sided", epsilon, chunk=3)
        torch.testing.assert_close(along, vectors @ (2 * x + b) + 3 * epsilon, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_the_forward_gradient_is_the_derivative_along_each_direction(chunk: int) -> None:
    def f(v: Tensor) -> Tensor:
        return (v.sin() * v.exp()).sum(-1) / (1 + (v**2).sum(-1))

    x = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64)
    vectors, along, _ = estimate(f, x, 5, "forward_gradient", chunk=chunk, kind="gaussian")
    torch.testing.assert_close(along, vectors @ torch.func.grad(f)(x), rtol=1e-12, atol=1e-12)


def test_on_a_line_one_query_is_exact() -> None:
    x = torch.tensor([0.7], dtype=torch.float64)
    for name in ESTIMATORS:
        assert float(estimate(lambda v: 3 * v.sum(-1), x, 1, name)[2]) == pytest.approx(3.0, rel=1e-9)


def test_unknown_estimators_are_answered_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'spsa'"):
        get_estimator("spa")


def method_update(backbone: Backbone, dtype: torch.dtype, images: Tensor, **plan: object) -> Tensor:
    """The clipped gradient estimate of one zeroth-order step on the adapter, as one vector in float64."""
    method = make(backbone, dtype=dtype)
    groups = {"peft": method.groups()["peft"]}
    group = ZEROTH.model_copy(update={"momentum": 0.0, "lr": 1.0, "clip": 0.01, **plan})
    before = flat(groups["peft"]).double()
    Placement(method, groups, {"peft": group}, seed=3, task=1).step(images.to(dtype), LABELS % 3 + 2, 0, 0)
    return flat(groups["peft"]).double() - before


WAYS = [{"chunk": 8}, {"chunk": 3}, {"micro_batch": 2}, {"micro_batch": 4, "chunk": 8}]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("directions", ["rademacher", "gaussian"])
def test_sequential_batched_and_micro_batched_updates_agree_in_float64(
    tiny: Backbone, images: Tensor, way: dict[str, int], directions: str
) -> None:
    plain = method_update(tiny, torch.float64, images, directions=directions)
    other = method_update(tiny, torch.float64, images, directions=directions, **way)
    assert float(plain.norm()) == pytest.approx(0.01)  # the clip was active
    assert float((other - plain).norm() / plain.norm()) < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_no_way_of_working_in_fp32_is_much_further_from_the_float64_update_than_one_by_one(
    tiny: Backbone, images: Tensor, seed: int
) -> None:
    """Within 1.5 times, over 32 coefficients: stacking and micro-batches round differently, not worse."""

    def errors(dtype: torch.dtype) -> list[Tensor]:
        method = make(tiny, dtype=dtype, recipe=RECIPE.model_copy(update={"seed": seed}))
        space = Space(method.groups()["peft"])
        vectors = Directions("rademacher", seed).stack(0, 32, (space.size,), torch.device("cpu"))
        query = Query(space, vectors, get_estimator("spsa"), 1e-3)
        chunkings = [Chunking(), Chunking(None, 8), Chunking(None, 64), Chunking(2), Chunking(3, 16)]
        features = [evaluate_features(method, images.to(dtype), query, False, chunking) for chunking in chunkings]
        return [coefficients(method, LABELS % 3 + 2, query, each)[0] for each in features]

    exact = errors(torch.float64)[0]
    one_by_one, *others = [float((found - exact).norm()) for found in errors(torch.float32)]
    assert one_by_one < 1e-2 * float(exact.norm())
    assert max(others) < 1.5 * one_by_one


@pytest.mark.parametrize("way", [{}, *WAYS])
def test_fp32_updates_point_where_the_float64_update_points(
    tiny: Backbone, images: Tensor, way: dict[str, int]
) -> None:
    exact = method_update(tiny, torch.float64, images)
    single = method_update(tiny, torch.float32, images, **way)
    assert float(torch.nn.functional.cosine_similarity(exact, single, dim=0)) >= 0.999


def test_queries_leave_the_parameters_untouched_to_the_bit_and_keep_no_graph(tiny: Backbone, images: Tensor) -> None:
    method = make(tiny, dtype=torch.float32)
    before = {name: value.clone() for name, value in method.named_parameters()}
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        groups = {"peft": method.groups()["peft"]}
        still = ZEROTH.model_copy(update={"lr": 0.0})
        Placement(method, groups, {"peft": still}, seed=3, task=1).step(images, LABELS % 3 + 2, 0, 0)
    assert not saved
    for name, value in method.named_parameters():
        assert torch.equal(value, before[name]) and value.grad is None and not value.requires_grad


@pytest.mark.parametrize("shape", [(1,), (63,), (64,), (1000,), (3, 37)])
def test_signs_are_the_same_unpacked_on_the_device_or_on_the_host(shape: tuple[int, ...]) -> None:
    directions, size = Directions("rademacher", 5, ("task", 1)), math.prod(shape)
    expected = directions.vectors(7, 2, shape)
    unpacked = unpack_signs(torch.from_numpy(directions._bits(7, 2, size)), size).reshape(shape)
    assert unpacked.dtype == torch.int8 and np.array_equal(unpacked, expected) and set(expected.flat) <= {-1, 1}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert np.array_equal(directions.stack(7, 3, shape, device)[2].cpu(), expected)


# -- optimizers ------------------------------------------------------------------------------------------------------


def test_the_clip_is_one_norm_over_the_whole_set() -> None:
    a, b = torch.zeros(3), torch.zeros(4)
    optimizer = GroupOptimizer({"a": a, "b": b}, Group(lr=1.0, momentum=0.0, clip=1.0))
    optimizer.move({"a": torch.full((3,), 2.0), "b": torch.full((4,), -1.0)}, 0)
    assert float(torch.cat([a, b]).norm()) == pytest.approx(1.0, rel=1e-6)
    torch.testing.assert_close(a / b[:3], torch.full((3,), -2.0))
    optimizer.move({"a": torch.full((3,), 0.1), "b": torch.zeros(4)}, 0)  # shorter than the clip: as it is
    torch.testing.assert_close(a, torch.full((3,), -0.5 - 0.1))


def test_a_zero_gradient_under_a_clip_moves_nothing() -> None:
    a = torch.ones(3)
    GroupOptimizer({"a": a}, Group(lr=1.0, clip=1.0)).move({"a": torch.zeros(3)}, 0)
    assert torch.equal(a, torch.ones(3))


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(clip: float | None, bad: float) -> None:
    a = torch.ones(3)
    assert not GroupOptimizer({"a": a}, Group(lr=1.0, clip=clip)).move({"a": torch.tensor([0.0, bad, 1.0])}, 0)
    assert torch.equal(a, torch.ones(3))


def test_first_order_steps_of_matched_length_are_as_long_as_zeroth_order_ones() -> None:
    """A zeroth-order group that is given the gradient along its directions moves exactly as far, elsewhere."""
    plan = Group(order="first", length="zeroth", queries=3, lr=0.5, momentum=0.9, clip=0.7)
    values = {"a": torch.randn(5, 4, dtype=torch.float64), "b": torch.randn(3, dtype=torch.float64)}
    matched, zeroth = ({name: value.clone() for name, value in values.items()} for _ in range(2))
    directions = Directions("rademacher", 7, ("task", 2, "peft"))
    one = LengthMatchedOptimizer(matched, plan, directions)
    other = GroupOptimizer(zeroth, plan)
    plain = {name: value.clone() for name, value in values.items()}
    own = GroupOptimizer(plain, plan)
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        starts = [Space(each).center for each in (matched, zeroth, plain)]
        gradient = {name: torch.randn(value.shape, generator=generator).double() for name, value in values.items()}
        g = Space(gradient).center
        vectors = directions.stack(step, 3, g.shape, torch.device("cpu")).double()
        estimate = torch.stack([(g @ v) * v for v in vectors]).mean(0)
        one.move(gradient, 0, step)
        other.move(Space(values).split(estimate), 0, step)
        own.move(gradient, 0, step)
        ours, theirs, first = (
            Space(each).center - start for each, start in zip((matched, zeroth, plain), starts, strict=True)
        )
        assert float(ours.norm()) == pytest.approx(float(theirs.norm()), rel=1e-9)
        assert float(ours @ first / ours.norm() / first.norm()) == pytest.approx(1, abs=1e-9)
    restored = LengthMatchedOptimizer({name: value.clone() for name, value in matched.items()}, plan, directions)
    restored.load_state(deepcopy(one.state()))
    for each in (one, restored):
        each.move(gradient, 0, 6)
    assert all(torch.equal(restored.parameters[name], one.parameters[name]) for name in values)


def test_schedules_run_over_the_groups_own_epochs() -> None:
    cosine = GroupOptimizer({"a": torch.zeros(1)}, Group(lr=0.01, schedule="cosine", min_lr=1e-5, epochs=10))
    assert cosine.learning_rate(0) == 0.01
    assert cosine.learning_rate(5) == pytest.approx((0.01 + 1e-5) / 2)
    assert cosine.learning_rate(9) == pytest.approx(1e-5 + (0.01 - 1e-5) * (1 + math.cos(0.9 * math.pi)) / 2)
    constant = GroupOptimizer({"a": torch.zeros(1)}, Group(lr=0.01, schedule="constant", epochs=10))
    assert {constant.learning_rate(e) for e in range(10)} == {0.01}


def test_the_cosine_of_coda_and_inflora_ends_just_above_zero() -> None:
    """lr·cos(99πe / (200(E−1))) for e = 0..E−1; with one epoch the rate is lr."""
    optimizer = GroupOptimizer({"a": torch.zeros(1)}, Group(lr=0.5, schedule="cosine99", epochs=20))
    for epoch in range(20):
        assert optimizer.learning_rate(epoch) == pytest.approx(0.5 * math.cos(99 * math.pi * epoch / (200 * 19)))
    assert optimizer.learning_rate(19) == pytest.approx(0.5 * 0.0157, rel=1e-3)
    assert GroupOptimizer({"a": torch.zeros(1)}, Group(lr=0.5, schedule="cosine99", epochs=1)).learning_rate(0) == 0.5


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "sign"])
def test_group_optimizers_are_the_torch_optimizers(optimizer: str) -> None:
    start = torch.linspace(-1, 1, 5)
    gradients = [torch.randn(5, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    ours = start.clone()
    group = GroupOptimizer({"a": ours}, Group(optimizer=optimizer, lr=0.1, momentum=0.9, weight_decay=0.01))
    for g in gradients:
        group.move({"a": g}, 0)
    theirs = torch.nn.Parameter(start.clone())
    reference: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01),
        "sign": lambda: torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01),
        "adam": lambda: torch.optim.Adam([theirs], lr=0.1, weight_decay=0.01),
        "adamw": lambda: torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.01),
    }[optimizer]()
    for g in gradients:
        theirs.grad = g.sign() if optimizer == "sign" else g
        reference.step()
    assert torch.equal(ours, theirs.detach())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_optimizers_state_can_be_carried_to_another(optimizer: str) -> None:
    g = [torch.randn(5, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    plan = Group(optimizer=optimizer, lr=0.1)
    a = torch.zeros(5)
    one = GroupOptimizer({"a": a}, plan)
    for part in g[:2]:
        one.move({"a": part}, 0)
    b = a.clone()
    two = GroupOptimizer({"a": b}, plan)
    two.load_state({"a": {key: value.clone() for key, value in one.state()["a"].items()}})
    for part in g[2:]:
        one.move({"a": part}, 0)
        two.move({"a": part}, 0)
    assert torch.equal(a, b)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_optimizers_state_goes_where_its_parameters_are(optimizer: str) -> None:
    """Also that of a single number, such as the scale of a cosine classifier."""
    plan = Group(optimizer=optimizer, lr=0.1, momentum=0.9)
    one = GroupOptimizer({"sigma": torch.ones(())}, plan)
    one.move({"sigma": torch.tensor(0.5)}, 0)
    elsewhere = GroupOptimizer({"sigma": torch.ones((), device="meta")}, plan)
    elsewhere.load_state(one.state())
    found = elsewhere.state()["sigma"]
    assert {key: str(value.device) for key, value in found.items() if key != "step"} == {
        key: "meta" for key in found if key != "step"
    }
    assert len(found) > ("step" in found) and str(found.get("step", torch.ones(())).device) == "cpu"


# -- the placement ---------------------------------------------------------------------------------------------------


def algorithm_1(
    backbone: Backbone, method: Method, images: Tensor, labels: Tensor, steps: int, clip: float
) -> dict[str, Tensor]:
    """The paper's Algorithm 1 with momentum, from the formula alone: the loss is written out for a plain ViT, the
    classifier's gradient is taken by autograd of that loss, the adapter's by finite differences of it."""
    vit = backbone.vit
    own = {name: value.clone() for name, value in method.named_parameters()}
    phi = [name for name in own if name.startswith("peft.")]
    psi = ["head.rows.1", "head.sigma"]

    def loss(p: Mapping[str, Tensor]) -> Tensor:
        x = vit.patch_embed(images)
        x = torch.cat([vit.cls_token.expand(len(x), -1, -1), x], 1) + vit.pos_embed
        for i, block in enumerate(vit.blocks):
            x = x + block.attn(block.norm1(x))
            h = block.norm2(x)
            y = block.mlp(h)
            if i < 2:
                w = {k: p[f"peft.blocks.{i}.{k}"] for k in ("down_weight", "down_bias", "up_weight", "up_bias")}
                y = y + 0.1 * (
                    torch.nn.functional.gelu(h @ w["down_weight"].T + w["down_bias"]) @ w["up_weight"].T + w["up_bias"]
                )
            x = x + y
        f = vit.norm(x)[:, 0]
        rows = torch.cat([p["head.rows.0"], p["head.rows.1"]])
        cosines = (f / f.norm(dim=1, keepdim=True)) @ (rows / rows.norm(dim=1, keepdim=True)).T
        logits = (p["head.sigma"] * cosines).masked_fill(torch.arange(5) < 2, -torch.inf)
        return torch.nn.functional.cross_entropy(logits, labels)

    velocity = {name: torch.zeros_like(own[name]) for name in phi + psi}
    directions = Directions("rademacher", 3, ("task", 1, "peft"))
    for step in range(steps):
        leaves = {name: own[name].clone().requires_grad_() for name in psi}
        gradients = torch.autograd.grad(loss({**own, **leaves}), list(leaves.values()))
        for name, g in zip(psi, gradients, strict=True):
            velocity[name] = 0.9 * velocity[name] + g
            own[name] = own[name] - 0.01 * velocity[name]
        estimate = {name: torch.zeros_like(own[name]) for name in phi}
        for q in range(4):
            delta = directions.draw(step, q, {name: own[name] for name in phi})
            up = loss({**own, **{name: own[name] + 1e-3 * delta[name] for name in phi}})
            down = loss({**own, **{name: own[name] - 1e-3 * delta[name] for name in phi}})
            for name in phi:
                estimate[name] += (up - down) / 2e-3 * delta[name] / 4
        norm = torch.sqrt(sum((g**2).sum() for g in estimate.values()))
        for name in phi:
            velocity[name] = 0.9 * velocity[name] + estimate[name] * min(1.0, clip / float(norm))
            own[name] = own[name] - 0.01 * velocity[name]
    return own


@pytest.mark.parametrize(("chunk", "clip"), [(1, 0.01), (8, 0.01), (1, 1.0)])
def test_zofc_steps_equal_the_papers_algorithm_1_restated(
    tiny: Backbone, images: Tensor, chunk: int, clip: float
) -> None:
    method, x, labels = make(tiny), images.double(), LABELS % 3 + 2
    expected = algorithm_1(tiny, method, x, labels, steps=3, clip=clip)
    plans = {"peft": ZEROTH.model_copy(update={"chunk": chunk, "clip": clip}), "head": FIRST}
    placement = Placement(method, method.groups(), plans, seed=3, task=1)
    start = {name: value.clone() for name, value in method.named_parameters()}
    for step in range(3):
        placement.step(x, labels, 0, step)
    for name, value in method.named_parameters():
        moved = (expected[name] - start[name]).norm()
        assert float((value - expected[name]).norm()) <= 1e-9 * float(moved), name
    assert torch.equal(expected["head.rows.0"], start["head.rows.0"])


PLACEMENTS = {
    "first order": {"peft": FIRST, "head": FIRST},
    "zeroth order": {"peft": ZEROTH, "head": ZEROTH},
    "ZO-FC": {"peft": ZEROTH, "head": FIRST},
    "swapped": {"peft": FIRST, "head": ZEROTH},
}


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ["adapter", "classifier"])
def test_only_the_declared_groups_move(tiny: Backbone, images: Tensor, name: str, placement: str, kind: str) -> None:
    """After any kind of step, all else is what it was to the bit: the ViT, the rows of old classes."""
    method = make(
        tiny,
        name,
        torch.float32,
        RECIPE.model_copy(update={"head": RECIPE.head.model_copy(update={"kind": kind})}),
    )
    groups = method.groups()
    plans = {group: PLACEMENTS[placement][group].model_copy(update={"weight_decay": 0.1}) for group in groups}
    everything = {
        **dict(method.named_parameters()),
        **{f"vit.{n}": v for n, v in tiny.vit.named_parameters()},
    }
    before = {n: v.clone() for n, v in everything.items()}
    moving = {n for group in groups.values() for n in group}
    place = Placement(method, groups, plans, seed=3, task=1)
    for step in range(2):
        place.step(images, LABELS % 3 + 2, 0, step)
    for n, value in everything.items():
        assert torch.equal(value, before[n]) == (n not in moving), n
    assert "head.rows.0" not in moving and not any("0" in n and n.startswith("head.bias") for n in moving)


def test_the_head_stops_at_its_epochs_to_the_bit(tiny: Backbone, images: Tensor) -> None:
    method = make(tiny, dtype=torch.float32)
    plans = {"peft": ZEROTH.model_copy(update={"epochs": 4}), "head": FIRST.model_copy(update={"epochs": 2})}
    placement = Placement(method, method.groups(), plans, seed=3, task=1)
    assert placement.epochs == 4
    seen = []
    for epoch in range(4):
        placement.step(images, LABELS % 3 + 2, epoch, epoch)
        seen.append({name: value.clone() for name, value in method.named_parameters()})
        assert ("head" in placement.learning_rates(epoch)) == (epoch < 2)
    for name in ("head.rows.1", "head.sigma"):
        assert not torch.equal(seen[0][name], seen[1][name])
        assert torch.equal(seen[1][name], seen[2][name]) and torch.equal(seen[1][name], seen[3][name])
    assert not torch.equal(seen[2]["peft.blocks.0.up_weight"], seen[3]["peft.blocks.0.up_weight"])


@pytest.mark.parametrize("order", ["first", "zeroth"])
def test_with_learning_rate_zero_on_the_adapter_it_is_classifier_training(
    tiny: Backbone, images: Tensor, order: str
) -> None:
    adapted, plain = get_method("adapter")(tiny, RECIPE), get_method("classifier")(tiny, RECIPE)
    for method in (adapted, plain):
        method.extend(range(3))
    still = Group(order=order, lr=0.0, epochs=5, clip=1.0)
    a = Placement(adapted, adapted.groups(), {"peft": still, "head": FIRST}, seed=3, task=0)
    b = Placement(plain, plain.groups(), {"head": FIRST}, seed=3, task=0)
    for step in range(4):
        a.step(images, LABELS, 0, step)
        b.step(images, LABELS, 0, step)
    assert torch.equal(adapted.head.rows[0], plain.head.rows[0])
    assert torch.equal(adapted.scores(images), plain.scores(images))


def test_zeroth_order_groups_with_equal_settings_are_one_set(tiny: Backbone) -> None:
    method = make(tiny)
    same = Placement(method, method.groups(), {"peft": ZEROTH, "head": ZEROTH}, seed=3, task=1)
    (both,) = same.zeroth
    assert both.members == ("peft", "head")
    assert set(both.optimizer.parameters) == {n for g in method.groups().values() for n in g}
    assert both.directions.name == ("task", 1, "peft+head"), "the name of its random stream"
    assert list(same.state()) == ["peft+head"], "its name in checkpoints"
    apart = Placement(
        method,
        method.groups(),
        {"peft": ZEROTH, "head": ZEROTH.model_copy(update={"lr": 0.1})},
        seed=3,
        task=1,
    )
    assert [part.members for part in apart.zeroth] == [("peft",), ("head",)]


def test_a_classifier_step_keeps_no_activations_of_the_backbone(tiny: Backbone, images: Tensor) -> None:
    """ZO-FC's first-order part back-propagates through the head alone: what autograd saves does not grow with depth."""
    method = make(tiny, dtype=torch.float32)
    saved: list[int] = []

    def keep(t: Tensor) -> Tensor:
        saved.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        plans = {"peft": ZEROTH, "head": FIRST}
        Placement(method, method.groups(), plans, seed=3, task=1).step(images, LABELS % 3 + 2, 0, 0)
    assert 0 < max(saved) <= len(images) * tiny.width


def test_first_order_training_lowers_the_loss(tiny: Backbone, images: Tensor) -> None:
    for name in ("adapter", "classifier"):
        method = make(tiny, name, torch.float32)
        plans = {group: FIRST.model_copy(update={"lr": 0.5}) for group in method.groups()}
        placement = Placement(method, method.groups(), plans, seed=3, task=1)
        losses = [placement.step(images, LABELS % 3 + 2, 0, step).loss for step in range(20)]
        assert losses[-1] < 0.7 * losses[0]


def test_step_reports_tell_the_loss_and_accuracy_before_the_step(tiny: Backbone, images: Tensor) -> None:
    method = make(tiny, dtype=torch.float32)
    labels = LABELS % 3 + 2
    logits = method.head.logits({}, method.extract(images), [1])
    expected = float(torch.nn.functional.cross_entropy(logits, labels - 2))
    right = float((logits.argmax(1) + 2 == labels).float().mean())
    for plan in (
        FIRST.model_copy(update={"lr": 0.0}),
        ZEROTH.model_copy(update={"lr": 0.0, "epsilon": 1e-5}),
        ZEROTH.model_copy(update={"lr": 0.0, "epsilon": 1e-5, "micro_batch": 4}),
    ):
        report = Placement(method, {"peft": method.groups()["peft"]}, {"peft": plan}, seed=3, task=1).step(
            images, labels, 0, 0
        )
        assert report.loss == pytest.approx(expected, rel=1e-4)
        assert report.accuracy == pytest.approx(right)


@pytest.mark.parametrize("micro_batch", [None, 16, 1])
def test_large_gradients_do_not_overflow_in_half_precision(micro_batch: int | None) -> None:
    """Of a loss far from its minimum, in small micro-batches as in the whole batch."""
    backbone = load_backbone(BackboneSettings(name="embedded"), dtype=torch.float16)
    changes = {"peft": RECIPE.peft.model_copy(update={"kind": "prefix"}), "head": HeadSettings(kind="linear")}
    method = get_method("adapter")(backbone, RECIPE.model_copy(update=changes))
    method.extend(range(10))
    for value in method.groups()["head"].values():
        value.mul_(30)
    plan = FIRST.model_copy(update={"lr": 1e-6, "micro_batch": micro_batch})
    place = Placement(method, {"peft": method.groups()["peft"]}, {"peft": plan}, seed=3, task=0)
    images = torch.rand(32, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert 20 < place.step(images, torch.arange(32) % 10, 0, 0).loss < 100  # not a number if a gradient is none


@pytest.mark.parametrize("micro_batch", [None, 16])
def test_small_gradients_do_not_vanish_in_half_precision(micro_batch: int | None) -> None:
    """Of a batch as large as the paper's, in micro-batches too; plain fp16 loses some and correlates with 0.9996."""
    found, images = {}, torch.rand(48, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float16):
        backbone = load_backbone(BackboneSettings(name="embedded"), dtype=dtype)
        method = get_method("adapter")(backbone, RECIPE)
        method.extend(range(10))
        for number, value in enumerate(method.peft.parameters()):
            value += 0.02 * torch.randn(value.shape, generator=torch.Generator().manual_seed(number))
        before = torch.cat([value.flatten() for value in method.peft.parameters()])
        plan = FIRST.model_copy(update={"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "micro_batch": micro_batch})
        place = Placement(method, {"peft": method.groups()["peft"]}, {"peft": plan}, seed=3, task=0)
        place.step(images, torch.arange(48) % 10, 0, 0)
        found[dtype] = (before - torch.cat([value.flatten() for value in method.peft.parameters()])).double()
    right = found[torch.float32].abs()
    assert not ((found[torch.float16] == 0) & (right > right.median() / 100)).any()
    assert torch.corrcoef(torch.stack(list(found.values())))[0, 1] > 0.99995


def test_numpy_is_not_asked_for_global_randomness(tiny: Backbone, images: Tensor) -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    torch_before = torch.random.get_rng_state()
    method = make(tiny, dtype=torch.float32)
    Placement(method, method.groups(), PLACEMENTS["ZO-FC"], seed=3, task=1).step(images, LABELS % 3 + 2, 0, 0)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_before, torch.random.get_rng_state())

"""Facts about flatness: closed forms on quadratics, torch's own Hessian, and what is measured of a kept run."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zofc.analysis import landscape
from zofc.analysis.curvature import forms, lanczos_spectrum, probes, trace
from zofc.analysis.flatness import expand_forgetting, random_score, sam_score, smoothed
from zofc.analysis.kept_run import KeptRun, parameters, repeat_task, task_losses
from zofc.analysis.run_flatness import FlatnessSettings, measure_flatness
from zofc.analysis.surface import BatchedLoss, Point, difference, dot, moved, norm
from zofc.analysis.task_path import ReplayedRun, measure_path
from zofc.errors import RunError
from zofc.methods.adapter import AdapterClassifier
from zofc.model.backbone import Backbone
from zofc.optim.directions import Space
from zofc.recipe import Recipe
from zofc.report.draw_matplotlib import encode, pictures
from zofc.report.figures import loss_landscape
from zofc.runfolder import Run
from zofc.runfolder.checkpoint import load_checkpoint, load_task
from zofc.runfolder.identity import recipe_digest
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]
SHAPES = {"a": (3, 2), "b": (4,)}
SIZE = 10
QUICK = FlatnessSettings(images=2, directions=3, probes=2, products=6, batch=8)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_point(seed: int = 0) -> dict[str, Tensor]:
    return {name: drawn(*shape, seed=seed + number) for number, (name, shape) in enumerate(SHAPES.items())}


def flat(point: Point) -> Tensor:
    return torch.cat([value.reshape(-1) for value in point.values()])


def quadratic(hessian: Tensor, slope: Tensor, constant: float = 3.0) -> BatchedLoss:
    """L(θ) = c + bᵀθ + ½ θᵀHθ."""
    return BatchedLoss([(lambda p: constant + slope @ flat(p) + 0.5 * flat(p) @ hessian @ flat(p), 1)])


def a_hessian(seed: int = 7) -> Tensor:
    """Symmetric, with positive and negative eigenvalues."""
    half = drawn(SIZE, SIZE, seed=seed)
    return half + half.mT


# -- the surface -----------------------------------------------------------------------------------------------------


def test_batches_count_by_their_images_however_they_are_cut() -> None:
    inputs, targets, point = drawn(11, SIZE), drawn(11, seed=1), a_point()

    def loss(where: slice) -> Callable[[Point], Tensor]:
        return lambda p: ((inputs[where] @ flat(p)).tanh() - targets[where]).square().mean()

    whole = BatchedLoss([(loss(slice(None)), 11)])
    cut = BatchedLoss([(loss(slice(a, b)), b - a) for a, b in ((0, 4), (4, 8), (8, 11))])
    assert cut.value(point) == pytest.approx(whole.value(point), rel=1e-12)
    for ours, theirs in (
        (cut.gradient(point), whole.gradient(point)),
        (cut.hvp(point, point), whole.hvp(point, point)),
    ):
        assert torch.allclose(flat(ours), flat(theirs), rtol=1e-12)
    published = sum(flat(BatchedLoss([part]).gradient(point)) for part in cut.parts) / 11
    assert not torch.allclose(published, flat(whole.gradient(point)), rtol=0.5)  # its mistake: short by the batch size


def test_a_loss_may_ignore_or_be_linear_in_what_it_is_asked_about() -> None:
    point = a_point()
    linear = BatchedLoss([(lambda p: p["a"].sum(), 1), (lambda p: torch.tensor(2.0, dtype=torch.float64), 3)])
    value, slope = linear.value_and_gradient(point)
    assert value == pytest.approx((float(point["a"].sum()) + 6) / 4)
    assert torch.equal(slope["a"], torch.full((3, 2), 0.25, dtype=torch.float64)) and not slope["b"].any()
    assert not flat(linear.hvp(point, point)).any()


# -- closed forms on quadratics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [1e-3, 0.005, 0.5])
def test_the_score_of_a_quadratic_is_its_closed_form(rho: float) -> None:
    hessian, slope, point = a_hessian(), drawn(SIZE, seed=3), a_point()
    loss = quadratic(hessian, slope, constant=40.0)
    theta = flat(point)
    g, value = slope + hessian @ theta, 40.0 + slope @ theta + 0.5 * theta @ hessian @ theta
    u = g / g.norm()
    increase = rho * g.norm() + 0.5 * rho**2 * u @ hessian @ u
    found = sam_score(loss, point, rho)
    assert found.score == pytest.approx(float(increase / (rho * (value + 1e-12))), abs=1e-4, rel=1e-6)
    assert found.gradient_change == pytest.approx(float((hessian @ u).norm() * rho), rel=1e-6)
    assert (found.loss, found.gradient) == pytest.approx((float(value), float(g.norm())))


def test_a_surface_without_a_slope_is_flat() -> None:
    found = sam_score(BatchedLoss([(lambda p: 0 * flat(p).sum(), 1)]), a_point(), 0.1)
    assert (found.score, found.increase, found.gradient_change) == (0, 0, 0)


@pytest.mark.parametrize(("kind", "length"), [("l2", 0.05), ("linf", 0.05 * math.sqrt(SIZE))])
def test_random_scores_are_at_the_radius_that_their_norm_says(kind: str, length: float) -> None:
    bowl, origin = quadratic(torch.eye(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)), a_point()
    origin = {name: torch.zeros_like(value) for name, value in origin.items()}
    found = random_score(bowl, origin, 0.05, kind, 5)  # type: ignore[arg-type]
    expected = 0.5 * length**2 / (0.05 * 3)  # the same in every direction
    assert (found.mean, found.max) == pytest.approx((expected, expected)) and found.std == pytest.approx(0, abs=1e-12)


def test_both_ends_of_the_spectrum_are_those_of_the_matrix() -> None:
    hessian = a_hessian()
    values = torch.linalg.eigvalsh(hessian)
    found = lanczos_spectrum(quadratic(hessian, drawn(SIZE)), a_point())
    assert found.largest == pytest.approx(float(values[-1]), abs=1e-4)
    assert found.smallest == pytest.approx(float(values[0]), abs=1e-4)
    assert found.converged and found.products <= SIZE and found.residual <= 1e-4


def test_few_products_say_that_they_did_not_converge_and_come_from_below() -> None:
    hessian = a_hessian()
    found = lanczos_spectrum(quadratic(hessian, drawn(SIZE)), a_point(), products=2)
    assert not found.converged and found.products == 2
    assert found.largest <= float(torch.linalg.eigvalsh(hessian)[-1])


@pytest.mark.parametrize("rank", [1, 0])
def test_a_hessian_of_low_rank_ends_the_search_early(rank: int) -> None:
    row = drawn(SIZE)
    found = lanczos_spectrum(quadratic(rank * torch.outer(row, row), drawn(SIZE)), a_point())
    assert found.largest == pytest.approx(rank * float(row @ row), abs=1e-9) and found.products <= 3


def test_hutchinson_is_exact_on_a_diagonal_and_within_its_error_elsewhere() -> None:
    diagonal, point = torch.diag(drawn(SIZE)), a_point()
    one = trace(forms(quadratic(diagonal, drawn(SIZE)), point, probes(point, 1)))
    assert one.mean == pytest.approx(float(diagonal.trace()), abs=1e-12)
    hessian = a_hessian()
    for kind in ("rademacher", "gaussian", "sphere"):
        found = trace(forms(quadratic(hessian, drawn(SIZE)), point, probes(point, 200, kind)))
        assert abs(found.mean - float(hessian.trace())) < 4 * found.error and found.error > 0


def test_forgetting_on_a_quadratic_is_its_first_two_orders_and_nothing_else() -> None:
    hessian, start, end = a_hessian(), a_point(), a_point(5)
    loss = quadratic(hessian, drawn(SIZE, seed=3))
    largest = float(torch.linalg.eigvalsh(hessian)[-1])
    found = expand_forgetting(loss, start, end, largest)
    assert found.change == pytest.approx(loss.value(end) - loss.value(start))
    assert found.rest == pytest.approx(0, abs=1e-10) and abs(found.first) > 0.1
    assert found.second <= found.bound == pytest.approx(0.5 * largest * found.distance**2)
    assert found.distance == pytest.approx(norm(difference(end, start)))


def test_the_papers_bound_fails_where_the_dropped_slope_is_steep() -> None:
    """F ≤ ½ λ_max ‖Δθ‖² holds at a stationary point; on a slope it does not."""
    hessian, start = torch.eye(SIZE, dtype=torch.float64), {name: 0 * value for name, value in a_point().items()}
    step = a_point(5)
    at_rest = expand_forgetting(quadratic(hessian, torch.zeros(SIZE, dtype=torch.float64)), start, step, 1.0)
    assert at_rest.change == pytest.approx(at_rest.bound) and at_rest.first_share == 0
    on_slope = expand_forgetting(quadratic(hessian, flat(step)), start, step, 1.0)
    assert not on_slope.within_bound and on_slope.first_share > 0.5


def test_the_smoothed_loss_of_a_quadratic_is_its_expansion_and_of_a_quartic_is_not() -> None:
    point, hessian = a_point(), a_hessian()
    along = probes(point, 5)
    loss = quadratic(hessian, drawn(SIZE))
    found = smoothed(loss, point, 0.3, along, forms(loss, point, along))
    assert found.rest == pytest.approx(0, abs=1e-10)
    assert found.increase == pytest.approx(0.3**2 / 2 * trace(forms(loss, point, along)).mean)
    quartic = BatchedLoss([(lambda p: flat(p).pow(4).sum(), 1)])
    values = forms(quartic, point, along)
    for epsilon in (0.1, 0.2):  # Σ Δ⁴ = size for Rademacher directions: the rest is size · ε⁴ exactly
        assert smoothed(quartic, point, epsilon, along, values).rest == pytest.approx(SIZE * epsilon**4)


# -- torch's own Hessian ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_products_and_spectrum_agree_with_torchs_hessian_on_a_tiny_net() -> None:
    inputs, labels = drawn(9, 4), torch.arange(9) % 3
    point = {"w": drawn(5, 4), "v": drawn(3, 5, seed=1)}
    space = Space(point)

    def loss(p: Point) -> Tensor:
        return torch.nn.functional.cross_entropy((inputs @ p["w"].mT).tanh() @ p["v"].mT, labels)

    hessian = torch.func.hessian(lambda vector: loss(space.split(vector)))(space.center)
    batched, direction = BatchedLoss([(loss, 9)]), drawn(space.size, seed=4)
    assert torch.allclose(flat(batched.hvp(point, space.split(direction))), hessian @ direction, atol=1e-12)
    largest = float(torch.linalg.eigvalsh(hessian)[-1])
    assert lanczos_spectrum(batched, point).largest == pytest.approx(largest, abs=1e-6)
    found = trace(forms(batched, point, probes(point, 300)))
    assert abs(found.mean - float(hessian.trace())) < 4 * found.error


@pytest.fixture
def learned(tiny: Backbone, tiny_recipe: Make) -> AdapterClassifier:
    """Three tasks of two classes in float64, with an adapter that does something."""
    tiny.vit.double()
    method = AdapterClassifier(tiny, tiny_recipe("zofc/base", "peft.rank=1", "peft.blocks=[1]"))
    for start in (0, 2, 4):
        method.extend(range(start, start + 2))
    method.double()
    for number, value in enumerate(method.groups()["peft"].values()):
        value.copy_(0.3 * drawn(*value.shape, seed=number))
    method.head.sigma.fill_(4.0)  # type: ignore[operator,union-attr]
    return method


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_old_task_loss_over_a_vit_has_torchs_hessian(learned: AdapterClassifier, images: Tensor) -> None:
    batches = {1: [(images[:2], torch.tensor([0, 1]))], 2: [(images[2:5], torch.tensor([2, 3, 2]))]}
    parts = task_losses(learned, batches, 3, "own")
    loss = BatchedLoss([part for task in (1, 2) for part in parts[task]])
    assert loss.images == 5
    for over in ("peft", "head", "peft+head"):
        point = parameters(learned, over, (1, 2), "own")
        assert ("head.rows.0" in point) == ("head" in over) and "head.rows.2" not in point
        space = Space(point)

        def whole(vector: Tensor, space: Space = space) -> Tensor:
            return sum((part(space.split(vector)) * count / 5 for part, count in loss.parts), torch.zeros(()))

        with sdpa_kernel(SDPBackend.MATH):
            hessian = torch.func.hessian(whole)(space.center)
        direction = drawn(space.size)
        assert torch.allclose(flat(loss.hvp(point, space.split(direction))), hessian @ direction, atol=1e-10)
        values = torch.linalg.eigvalsh(hessian)
        assert lanczos_spectrum(loss, point).largest == pytest.approx(float(values[-1]), abs=1e-4)


def test_an_old_task_is_asked_with_the_loss_it_was_trained_with(learned: AdapterClassifier, images: Tensor) -> None:
    labels = torch.tensor([2, 3, 2, 3, 2, 3])
    features = learned.features({}, learned.prepare(images))
    own = learned.head.logits({}, features, [1]).log_softmax(-1)
    alone = -own[torch.arange(6), labels - 2].mean()
    assert torch.allclose(repeat_task(learned, 2, 3, "own").loss({}, features, labels), alone)
    every = learned.head.logits({}, features, [0, 1]).log_softmax(-1)  # all that had been learned by then
    assert torch.allclose(
        repeat_task(learned, 2, 2, "all").loss({}, features, labels), -every[torch.arange(6), labels].mean()
    )
    assert learned.tasks == [range(0, 2), range(2, 4), range(4, 6)] and learned.recipe.method.mask


# -- runs ------------------------------------------------------------------------------------------------------------


def kept_run(make: Make, path: Path, name: str = "zofc/base", *overrides: str) -> Run:
    folder = start_run(make(name, "training.keep_tasks=true", *overrides), path)
    train(folder)
    return folder


@pytest.fixture(scope="module")
def kept(tiny_recipe: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return kept_run(tiny_recipe, tmp_path_factory.mktemp("kept"))


def test_a_run_keeps_its_tasks_only_if_asked_and_is_the_same_run(tiny_recipe: Make, kept: Run, tmp_path: Path) -> None:
    plain = start_run(tiny_recipe("zofc/base"), tmp_path)
    train(plain)
    assert not (plain.path / "tasks").exists() and recipe_digest(plain.recipe) == recipe_digest(kept.recipe)
    assert sorted(path.name for path in (kept.path / "tasks").iterdir()) == [f"0{n}.safetensors" for n in (1, 2, 3)]
    found = load_checkpoint(kept)
    assert found is not None
    last = load_file(kept.path / "tasks" / "03.safetensors")
    method = {key for key in found[1] if not key.startswith("typicality.")}  # what is known of scores is not its own
    assert last.keys() == method and all(torch.equal(last[key], found[1][key]) for key in last)
    first = load_task(kept.kept_tasks[1])
    assert "head.rows.1" not in first and torch.equal(first["head.rows.0"], last["head.rows.0"])


def test_a_run_without_its_tasks_is_told_how_to_keep_them(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("zofc/base"), tmp_path)
    train(folder)
    with pytest.raises(RunError, match=r"zofc run .*recipe\.yaml training\.keep_tasks=true --again"):
        KeptRun(folder.path)
    (folder.path / "tasks").mkdir()
    (folder.path / "tasks" / "01.safetensors").write_bytes(b"no tensors")
    with pytest.raises(RunError, match=r"01\.safetensors cannot be read"):
        KeptRun(folder.path).method_after(1)


def test_a_kept_run_is_measured_after_each_task(kept: Run) -> None:
    run = KeptRun(kept.path)
    found = measure_flatness(run, QUICK, [])
    assert list(found.by_set) == ["peft", "peft+head"] and found.images == {1: 4, 2: 4, 3: 4}
    for name, entries in found.by_set.items():
        assert [entry.task for entry in entries] == [1, 2, 3]
        assert [entry.old is None for entry in entries] == [True, False, False]  # after the first there are no old ones
        assert [entry.forgetting is None for entry in entries] == [False, False, True]
        assert {one.norm for one in entries[1].random} == {"l2", "linf"}
        assert [one.epsilon for one in entries[1].smoothed] == pytest.approx([1e-3, 1e-2, 1e-1])
        assert found.verdict(name)
    with_head = found.by_set["peft+head"]
    for entry in with_head[:2]:  # peft and head are all that moves, so they forget all that is forgotten
        assert entry.forgetting is not None
        assert entry.forgetting.over.change == pytest.approx(entry.forgetting.whole, abs=1e-12)
    old = with_head[1].old
    assert old is not None and with_head[0].forgetting is not None
    assert old.loss == pytest.approx(with_head[0].last.loss + with_head[0].forgetting.whole)
    text = json.dumps(asdict(found), allow_nan=False)
    assert "within_bound" in text and "first_share" in text


def test_what_is_not_asked_for_is_not_measured_and_the_score_is_the_same(kept: Run) -> None:
    run, few = KeptRun(kept.path), replace(QUICK, directions=0, probes=0, products=0)
    for name, entries in measure_flatness(run, few, []).by_set.items():
        for entry, whole in zip(entries, measure_flatness(run, QUICK, []).by_set[name], strict=True):
            assert (entry.last, entry.old) == (whole.last, whole.old)
            assert (entry.random, entry.spectrum, entry.trace, entry.smoothed, entry.forgetting) == (
                (),
                None,
                None,
                (),
                None,
            )
    with pytest.raises(RunError, match="probes: expected 0 or more, got -1"):
        replace(QUICK, probes=-1)


def test_every_so_many_tasks_are_counted_by_their_numbers(kept: Run) -> None:
    run = KeptRun(kept.path)
    tasks = list(run.kept)
    few = replace(QUICK, over=("head",), probes=0, products=0, directions=0)
    found = measure_flatness(run, replace(few, every=2), []).by_set["head"]
    assert [entry.task for entry in found] == [task for task in tasks if task % 2 == 0]
    del run.kept[1]  # as of a run that went on from another
    found = measure_flatness(run, replace(few, every=2), []).by_set["head"]
    assert [entry.task for entry in found] == [task for task in tasks if task % 2 == 0]
    with pytest.raises(RunError, match=r"every: none of the kept tasks \(2, 3\) is a multiple of 50"):
        measure_flatness(
            run, replace(few, every=50), [], on_progress=lambda text: pytest.fail(f"before it is refused: {text}")
        )


def test_the_first_order_run_of_a_head_alone_is_measured_over_it(tiny_recipe: Make, tmp_path: Path) -> None:
    run = KeptRun(kept_run(tiny_recipe, tmp_path, "classifier-fo/base").path)
    assert list(measure_flatness(run, QUICK, []).by_set) == ["head"]
    with pytest.raises(RunError, match="has no peft; measure it over head"):
        measure_flatness(run, FlatnessSettings(over=("peft",)), [])
    every = measure_flatness(
        run, FlatnessSettings(over=("head",), rows="all", split="train", images=2, products=3, probes=1), []
    )
    own = measure_flatness(run, FlatnessSettings(over=("head",), split="train", images=2, products=3, probes=1), [])
    for seen, alone in zip(every.by_set["head"][1:], own.by_set["head"][1:], strict=True):
        assert seen.old is not None and alone.old is not None
        assert seen.old.loss > alone.old.loss  # more classes to be mistaken for
        assert seen.parameters > alone.parameters  # the rows of the task just learned are in that loss


@pytest.mark.parametrize("name", ["lae-fo", "l2p-fo", "coda-fo", "inflora-fo", "finetune"])
def test_other_methods_are_measured_with_their_own_loss(tiny_recipe: Make, tmp_path: Path, name: str) -> None:
    small = ["peft.rank=2"] if name == "inflora-fo" else ["optimize.peft.start=0"] if name == "lae-fo" else []
    small += ["coda.pool=6", "coda.blocks=first 2"] if name == "coda-fo" else []
    recipe = tiny_recipe(
        f"{name}/cifar100-inc5", "training.keep_tasks=true", "data.classes=4", "data.root=null", *small
    )
    folder = start_run(recipe, tmp_path)
    train(folder)
    notices: list[str] = []
    found = measure_flatness(KeptRun(folder.path), QUICK, notices)
    entry = found.by_set["peft"][1]
    assert entry.old is not None and entry.old.gradient > 0
    assert any("batches" in text for text in notices) == (name == "l2p-fo")


def test_old_domains_are_asked_under_the_rows_that_all_domains_share(tiny_recipe: Make, tmp_path: Path) -> None:
    domains = ["data.source=glyphs:domains=ink+neon", "data.by=domain", "training.recompute=true"]
    found = measure_flatness(KeptRun(kept_run(tiny_recipe, tmp_path, "zofc/base", *domains).path), QUICK, [])
    (first, second) = found.by_set["peft+head"]
    assert first.forgetting is not None and second.old is not None
    assert first.forgetting.over.change == pytest.approx(first.forgetting.whole, abs=1e-12)
    assert second.old.loss == pytest.approx(first.last.loss + first.forgetting.whole)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ease-fo", "adapter of its own"),
        ("aper-fo", "nothing moves"),
        ("simplecil", "trains nothing"),
        ("joint", "joint"),
    ],
)
def test_what_has_no_old_task_loss_is_refused(tiny_recipe: Make, tmp_path: Path, name: str, why: str) -> None:
    few = ["data.classes=4", "data.root=null", "training.keep_tasks=true"]
    folder = start_run(tiny_recipe(f"{name}/cifar100-inc5", *few), tmp_path)
    train(folder)
    with pytest.raises(RunError, match=why):
        KeptRun(folder.path)


@pytest.mark.parametrize("wrong", [{"rho": 0.0}, {"over": ("peftt",)}, {"rows": "old"}, {"split": "both"}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RunError, match=f"{next(iter(wrong))}: expected"):
        FlatnessSettings(**wrong)  # type: ignore[arg-type]


# -- landscapes ------------------------------------------------------------------------------------------------------


def test_a_line_passes_through_both_of_its_ends() -> None:
    loss, start, end = quadratic(a_hessian(), drawn(SIZE)), a_point(), a_point(5)
    found = landscape.line({"old": loss}, start, end, positions=5, beyond=0.5)
    assert found.positions.tolist() == [-0.5, 0, 0.5, 1, 1.5]
    at = [loss.value(start), loss.value(moved(start, difference(end, start), 0.5)), loss.value(end)]
    assert found.losses["old"][1:4] == pytest.approx(at)


def test_a_plane_holds_its_three_points_at_their_distances() -> None:
    points = {"a": a_point(), "b": a_point(5), "c": a_point(9)}
    bowl = BatchedLoss([(lambda p: dot(difference(p, points["a"]), difference(p, points["a"])), 1)])
    found = landscape.plane_through(bowl, landscape.plane_axes(points), resolution=7)
    for name, (x, y) in found.marks.items():
        assert x**2 + y**2 == pytest.approx(bowl.value(points[name]))
    x, y = np.meshgrid(found.x, found.y)
    assert found.loss == pytest.approx(x**2 + y**2)  # the axes are orthonormal
    with pytest.raises(RunError, match="one line"):
        middle = moved(points["a"], difference(points["b"], points["a"]), 0.5)
        landscape.plane_axes({**points, "c": middle})
    with pytest.raises(RunError, match="the same"):
        landscape.plane_axes({**points, "b": points["a"]})


def test_random_directions_have_the_filters_lengths() -> None:
    point = {**a_point(), "zero": torch.zeros(2, 3, dtype=torch.float64), "one": torch.tensor(2.0, dtype=torch.float64)}
    along = landscape.filter_normalised({name: torch.ones_like(value) for name, value in point.items()}, point)
    assert torch.allclose(along["a"].norm(dim=1), point["a"].norm(dim=1)) and not along["zero"].any()
    assert float(along["b"].norm()) == pytest.approx(float(point["b"].norm())) and float(along["one"]) == 2
    found = landscape.plane_random(quadratic(a_hessian(), drawn(SIZE)), a_point(), resolution=5)
    assert found.loss[2, 2] == pytest.approx(quadratic(a_hessian(), drawn(SIZE)).value(a_point()))


@pytest.mark.parametrize("through", [True, False])
def test_the_picture_of_a_run_is_a_png(kept: Run, tmp_path: Path, through: bool) -> None:
    run = KeptRun(kept.path)
    lines, plane = landscape.of_run(run, QUICK, "peft+head", through, 4, lambda text: None)
    assert list(lines.losses) == ["task 1", "task 3", "tasks 1–2"]
    assert list(plane.marks) == (["after task 1", "after task 3", "after task 2"] if through else ["after task 3"])
    drawn = encode(pictures(loss_landscape(asdict(lines), asdict(plane)), "a run"), "png")
    with Image.open(io.BytesIO(drawn)) as picture:
        assert picture.width > 1000
    state = measure_flatness(
        run, FlatnessSettings(over=("peft+head",), images=2, batch=8, products=1, probes=1, directions=1), []
    )
    last = state.by_set["peft+head"][-1]
    assert last.old is not None
    assert lines.losses["tasks 1–2"][30] == pytest.approx(last.old.loss)  # α = 1 is the state itself


def test_methods_whose_tensors_grow_have_no_plane_in_common(tiny_recipe: Make, tmp_path: Path) -> None:
    few = ["training.keep_tasks=true", "data.classes=4", "data.root=null", "peft.rank=2"]
    folder = start_run(tiny_recipe("inflora-fo/cifar100-inc5", *few), tmp_path)
    train(folder)
    with pytest.raises(RunError, match="no plane in common"):
        landscape.of_run(KeptRun(folder.path), QUICK, "peft+head", True, 3, lambda text: None)


def test_the_command_prints_and_writes_what_it_measured(
    kept: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from zofc import cli

    monkeypatch.setattr(cli.out, "_width", 200)
    words = ["--images", "2", "--directions", "2", "--probes", "2", "--products", "4", "--resolution", "3"]
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", ["zofc", "flatness", str(kept.path), *words, "--landscape", str(picture)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr().out
    assert stop.value.code == 0 and picture.is_file()
    assert "over peft:" in said and "over peft+head:" in said and "first-order term" in said and "task 1 → 2" in said
    monkeypatch.setattr(cli.out, "_width", 60)
    monkeypatch.setattr(sys, "argv", ["zofc", "flatness", str(kept.path), *words])
    with pytest.raises(SystemExit):
        cli.main()
    assert "…" not in (said := capsys.readouterr().out) and "task 3" in said  # no number is cut
    found = json.loads((kept.path / "flatness.json").read_text())
    assert found["settings"]["rho"] == 0.005 and len(found["by_set"]["peft"]) == 3


# -- inside of tasks -------------------------------------------------------------------------------------------------


def test_the_path_inside_a_task_ends_at_the_state_that_was_kept(kept: Run) -> None:
    after = measure_flatness(KeptRun(kept.path), QUICK, []).by_set["peft"]
    points = measure_path(ReplayedRun(kept.path), QUICK, 2, []).by_set["peft"]
    assert len(points) == 9 and next(point.step for point in points if point.task == 1) == 0
    ends = [point for point in points if point.step == point.steps]
    for end, state in zip(ends, after, strict=True):
        assert end.task == state.task and end.distance > 0
        assert end.new.sharpness.loss == pytest.approx(state.last.loss, rel=1e-12)
        assert (end.old is None) == (state.old is None)
        if end.old is not None and state.old is not None:
            assert end.old.sharpness.score == pytest.approx(state.old.score, rel=1e-9)


def test_the_command_measures_along_the_journal_without_kept_tasks(
    tiny_recipe: Make, tmp_path: Path, zofc: Callable[..., tuple[int, str]]
) -> None:
    folder = start_run(tiny_recipe("zofc/base"), tmp_path)
    train(folder)
    words = ["--images", "2", "--probes", "2", "--products", "4", "--resolution", "3", "--along", "2"]
    code, said = zofc("flatness", str(folder.path), *words, "--figure", "along.png", "--landscape", "plane.png")
    assert code == 0 and "along the steps, over peft" in said and "that of the last checkpoint" in said
    assert Path("along.png").stat().st_size > 10_000 and Path("plane.png").stat().st_size > 10_000
    found = json.loads((folder.path / "flatness-along.json").read_text())
    assert len(found["by_set"]["peft"]) == 9
    code, said = zofc("flatness", str(folder.path), "--figure", "along.png")
    assert code == 2 and "--along STEPS" in said

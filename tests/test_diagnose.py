"""Facts about a diagnosis: it tells signal from noise, agrees with theory, and leaves everything as it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zofc.analysis import SetDiagnosis, diagnose
from zofc.analysis.diagnose import Examination
from zofc.analysis.group_examination import exact_gradient, in_float64
from zofc.analysis.task_start import run_batches, start_task
from zofc.errors import RecipeError
from zofc.methods import Method
from zofc.optim.chunking import Chunking
from zofc.recipe import Recipe, dump_recipe

Make = Callable[..., Recipe]
module = sys.modules["zofc.analysis.diagnose"]
NOISY = ("training.precision=bf16", "training.workers=0")
EXACT = "optimize.peft.estimator=forward_gradient"


def only_set(recipe: Recipe, **settings: Any) -> SetDiagnosis:
    (found,) = diagnose(recipe, **{"batches": 2, "queries": (8,), **settings}).sets
    return found


def line(found: SetDiagnosis, what: str) -> str:
    return next(one.verdict for one in found.lines if what in one.what)


def test_differences_in_fp32_are_as_good_as_derivatives(tiny_recipe: Make) -> None:
    found = only_set(tiny_recipe("zofc/base"))
    assert found.estimator == "spsa" and found.agreement.pearson > 0.99 and found.agreement.cosine > 0.99
    assert found.differences is not None and found.differences.epsilon == 1e-3
    assert found.differences.signal > 10 * found.differences.noise
    assert 1e-3 in found.differences.sound and found.differences.best is not None
    assert "as good as exact" in line(found, "against float64")


@pytest.mark.parametrize("changes", [(), ("optimize.peft.per=image",), ("optimize.peft.directions=gaussian",)])
def test_forward_gradients_in_fp32_are_the_derivatives(tiny_recipe: Make, changes: tuple[str, ...]) -> None:
    found = only_set(tiny_recipe("zofc/base", EXACT, *changes), batches=1)
    assert found.agreement.pearson > 0.99999 and found.agreement.error < 1e-3
    assert found.differences is None and not any("ε" in one.what for one in found.lines)


def test_in_bf16_differences_are_noise_and_forward_gradients_are_not(tiny_recipe: Make) -> None:
    noisy, exact = (only_set(tiny_recipe("zofc/base", *NOISY, *more)) for more in ((), (EXACT,)))
    assert exact.agreement.pearson > 0.95 > 0.6 > abs(noisy.agreement.pearson)
    assert noisy.differences is not None and noisy.differences.noise > noisy.differences.signal
    assert noisy.differences.vanished > 0.05 and "% of them vanish" in line(noisy, "against noise")
    assert "forward_gradient" in line(noisy, "against float64") + line(noisy, "by ε")
    assert noisy.alignments[-1].cosine < exact.alignments[-1].cosine


def test_what_a_run_would_refuse_is_measured_and_said(tiny_recipe: Make) -> None:
    found = diagnose(tiny_recipe("zofc/base", *NOISY), batches=1, queries=(4,))
    assert found.refusal is not None and "allow_noisy_differences" in found.refusal
    allowed = tiny_recipe("zofc/base", *NOISY, "training.allow_noisy_differences=true")
    assert diagnose(allowed, batches=1, queries=(4,)).refusal is None


def test_the_cosine_to_the_gradient_grows_with_queries_as_theory_says(tiny_recipe: Make) -> None:
    """Each batch has 64 directions, so the mean cosine over its 64/Q estimates has a relative deviation of about
    1/√64; two batches, 9 %. The mean of one query's is √(2/π) = 0.8 of the theory's root mean square."""
    queries = (1, 4, 16, 64)
    found = only_set(tiny_recipe("zofc/base", EXACT), queries=queries)
    assert [point.queries for point in found.alignments] == [*queries]
    assert found.size == 538 and found.alignments[1].theory == pytest.approx((4 / 541) ** 0.5)
    for point in found.alignments:
        assert 0.5 < point.cosine / point.theory < 1.35
    assert found.alignments[-1].cosine > 4 * found.alignments[0].cosine


def test_a_step_is_as_long_as_clip_and_rate_make_it(tiny_recipe: Make) -> None:
    tight = only_set(tiny_recipe("zofc/base", EXACT, "optimize.peft.clip=1e-6", "optimize.peft.lr=0.5"), batches=1)
    assert tight.step.clipped == 1 and tight.step.length == pytest.approx(0.5e-6)
    assert "always active" in line(tight, "clip") and "hardly anything" in line(tight, "length")
    wide = only_set(tiny_recipe("zofc/base", EXACT, "optimize.peft.clip=1e6", "optimize.peft.lr=0.5"), batches=1)
    assert wide.step.clipped == 0 and wide.step.length == pytest.approx(0.5 * wide.step.norm)
    assert "never active" in line(wide, "clip")
    assert wide.step.steps == 2 * 2  # two epochs of twelve images, eight at a time, at a constant rate
    sign = only_set(tiny_recipe("zofc/base", EXACT, "optimize.peft.optimizer=sign"), batches=1)
    assert sign.step.length == pytest.approx(sign.step.lr * sign.size**0.5)


def test_both_exact_ways_agree(tiny_recipe: Make) -> None:
    """The derivative along Δ by dual numbers is the gradient of a backward pass times Δ."""
    recipe = tiny_recipe("zofc/base")
    training, _ = start_task(recipe, 2, torch.device("cpu"), print)
    (peft,) = training.placement.zeroth
    examination = Examination(training, peft, in_float64(training.model.method), (4,))
    _, images, labels = next(run_batches(training))
    examination.measure_batch(images, labels, 0)
    slope, _ = exact_gradient(examination.exact, examination.space, images, labels, Chunking(3))
    vectors = peft.draw(0, len(images), torch.device("cpu")).double()
    torch.testing.assert_close(examination.pairs[0][1], vectors @ slope, rtol=1e-9, atol=1e-12)


def test_first_order_groups_are_judged_by_their_exact_gradient(tiny_recipe: Make) -> None:
    """A tiny rate is told from a fitting one, with the number to type; what it predicts is what a step does."""
    changes = ("head.init=uniform", "head.scale=1", "optimize.head.momentum=0", "optimize.head.clip=null")
    recipe = tiny_recipe("classifier-fo/base", *changes, "optimize.head.lr=1e-4", "optimize.head.min_lr=0")
    found = diagnose(recipe, batches=1)
    (head,) = found.groups
    assert not found.sets and head.gradient > 0 and head.step.length == pytest.approx(1e-4 * head.gradient)
    assert head.step.descent == pytest.approx(1e-4 * head.gradient**2)
    verdict = {line.what: line.verdict for line in head.lines}["length of a step"]
    assert "hardly anything" in verdict
    rate = float(verdict.rpartition("optimize.head.lr=")[2])
    total = head.step.descent * head.step.steps
    assert rate == pytest.approx(1e-4 * head.loss / 2 / total, rel=0.5)
    both = diagnose(tiny_recipe("zofc/base", EXACT), batches=1, queries=(2,))
    assert [one.name for one in both.sets] == ["peft"] and [one.name for one in both.groups] == ["head"]
    assert both.groups[0].beside == ("peft",)


def test_nothing_is_trained_and_nothing_is_left_behind(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[tuple[Method, dict[str, torch.Tensor]]] = []

    def copy(method: Method) -> Method:
        seen.append((method, {name: value.clone() for name, value in method.state_dict().items()}))
        return in_float64(method)

    monkeypatch.setattr(module, "in_float64", copy)
    torch.set_num_threads(2)  # a recipe with one thread must give the other back
    state = torch.random.get_rng_state()
    strict = torch.are_deterministic_algorithms_enabled()
    first = diagnose(tiny_recipe("adapter-zo/cifar100-inc10", "training.threads=1"), batches=1, queries=(2,))
    assert [found.name for found in first.sets] == ["peft", "head"]
    ((method, before),) = seen
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert all(value.grad is None and not value.requires_grad for value in method.parameters())
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled() == strict and not list(tmp_path.iterdir())
    assert diagnose(tiny_recipe("adapter-zo/cifar100-inc10", "training.threads=1"), batches=1, queries=(2,)) == first


@pytest.mark.parametrize(
    "name",
    [
        "l2p-zo/cifar100-inc10",
        "coda-zo/cifar100-inc10",
        "ease-zo/cifar100-inc10",
        "inflora-zo/cifar100-inc10",
        "swapped/cifar100-inc10",
    ],
)
def test_every_method_can_be_diagnosed_at_a_later_task(tiny_recipe: Make, name: str) -> None:
    changes = ["coda.pool=6", "coda.blocks=first 2"] if name.startswith("coda") else []
    found = diagnose(tiny_recipe(name, *changes), task=2, batches=1, queries=(2,))
    assert found.task == 2 and found.tasks == 3
    assert all(one.gradient > 0 and one.agreement.pearson > 0.9 for one in found.sets)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("ridge/base", {}, "task 1 moves nothing"),
        ("zofc/base", {"task": 9}, "there is no task 9; the recipe has 3"),
        ("aper-zo/cifar100-inc10", {"task": 2}, "task 2 moves nothing"),
        ("zofc/base", {"queries": (0,)}, "at least one batch and one query"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(
    tiny_recipe: Make, name: str, settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RecipeError, match=expected):
        diagnose(tiny_recipe(name), **settings)


def test_the_command_prints_and_writes(tiny_recipe: Make, zofc: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    Path("mine.yaml").write_text(dump_recipe(tiny_recipe("zofc/base")))
    code, said = zofc("diagnose", "mine.yaml", *NOISY, "--batches", "1", "--queries", "1,4", "--json", "found.json")
    assert code == 0, said
    assert "would be refused" in said and "cosine to the gradient" in said and "written: found.json" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "mine.yaml"]
    found = json.loads(Path("found.json").read_text())
    assert found["sets"][0]["differences"]["ladder"][0]["epsilon"] == 1e-5
    assert all(one["verdict"] for one in found["sets"][0]["lines"])
    for words, expected in (
        (("mine.yaml", "--queries", "1,x"), "expected positive numbers"),
        (("mine.yaml", "zofc/base"), "give one recipe"),
        (("mine.yaml", "--task", "9"), "there is no task 9"),
    ):
        code, said = zofc("diagnose", *words)
        assert code == 2 and expected in said

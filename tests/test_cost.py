"""Facts about the cost of a recipe: what is counted is what is executed, and every difference to the paper has a reason
and a number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from timm.models.vision_transformer import vit_base_patch16_224
from torch import Tensor

from zofc import paper
from zofc.analysis.cost import Cost, Phase, measure_cost, phases_of, process_memory
from zofc.analysis.flops import multiply_adds, paper_formula
from zofc.analysis.task_start import start_task
from zofc.errors import RecipeError
from zofc.model.backbone import Backbone
from zofc.optim import kernels
from zofc.recipe import Recipe, dump_recipe
from zofc.studies.catalogue import StudyLine, get_study

Make = Callable[..., Recipe]
FORWARD_GRADIENT = "optimize.peft.estimator=forward_gradient"
TOKENS, WIDTH, BATCH, QUERIES = 5, 24, 8, 4  # of the tiny backbone and its recipes
ADAPTERS = 2 * TOKENS * 2 * WIDTH * 5  # multiply–adds of two adapters of rank five, an image


def phases(found: Cost) -> dict[str, Phase]:
    return {"+".join(phase.groups): phase for phase in found.phases}


# -- counting --------------------------------------------------------------------------------------------------------


def test_a_forward_of_vit_b16_is_what_its_shapes_say() -> None:
    """12 blocks of 12ND² + 2N²D and the patches: 1.756e10; the paper's 1.768e10 has softmax, norms and the like too."""
    with torch.device("meta"):
        vit, image = vit_base_patch16_224(num_classes=0), torch.empty(1, 3, 224, 224)
    with torch.no_grad():
        found = multiply_adds(lambda: vit(image))
    n, d = 197, 768
    assert found == 12 * (12 * n * d**2 + 2 * n**2 * d) + (n - 1) * 3 * 16**2 * d
    assert found == pytest.approx(1.757e10, rel=0.01)
    assert found == pytest.approx(1.768e10, rel=0.01)


def test_forwards_that_share_nothing_count_in_full(tiny: Backbone, images: Tensor) -> None:
    def forwards(count: int) -> int:
        return multiply_adds(lambda: [tiny.vit(images) for _ in range(count)])

    with torch.no_grad():
        one = forwards(1)
        assert one == len(images) * forwards_of_an_image(tiny)
        assert forwards(2 * QUERIES + 1) == (2 * QUERIES + 1) * one


def forwards_of_an_image(backbone: Backbone) -> int:
    n, d, patches = backbone.tokens, backbone.width, backbone.tokens - 1
    return backbone.depth * (12 * n * d**2 + 2 * n**2 * d) + patches * 3 * 8**2 * d


def test_counting_takes_no_kernel_and_leaves_them_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton", object())
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    x, taken = torch.zeros(1), []
    with pytest.raises(ZeroDivisionError):
        multiply_adds(lambda: (taken.append(kernels._fused(x)), 1 // 0))
    assert taken == [False] and kernels._fused(x)


def test_a_step_is_below_2q_plus_1_forwards_by_exactly_what_is_computed_once(tiny_recipe: Make, tiny: Backbone) -> None:
    found = measure_cost(tiny_recipe("zofc/base"), steps=1)
    both, alone = phases(found)["head+peft"].executed, phases(found)["peft"].executed
    before = both.once  # up to the first adapter, of the whole batch
    behind = alone.features // (2 * QUERIES)
    walked = both.once + both.features
    assert (2 * QUERIES + 1) * (before + behind) - walked == 2 * QUERIES * before
    assert alone.once == before and both.features == (2 * QUERIES + 1) * behind
    with torch.no_grad():  # and one forward of the method is that of the features, with adapters on all tokens
        plain = multiply_adds(lambda: tiny.features(torch.zeros(BATCH, 3, 16, 16)))
    assert before + behind == plain + BATCH * ADAPTERS
    score = BATCH * 2 * WIDTH  # two classes
    assert both.classifier == (1 + 2 * QUERIES + 1) * score  # at the center, at every point, and for the accuracy
    assert both.update == score + QUERIES * found.parameters.moving["peft"]  # the rows' gradient; Σ_q c_q Δ_q


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_stacking_points_changes_no_count(tiny_recipe: Make, chunk: int) -> None:
    found = measure_cost(
        tiny_recipe("zofc/base", f"optimize.peft.chunk={chunk}", "optimize.peft.micro_batch=3"), steps=1
    )
    (first, *_) = found.phases
    assert first.executed.features == (2 * QUERIES + 1) * BATCH * 52_224


def test_first_order_goes_back_once_and_not_through_what_is_before_the_adapters(tiny_recipe: Make) -> None:
    (phase, _) = measure_cost(tiny_recipe("adapter-fo/base"), steps=1).phases
    assert phase.formula is not None and phase.formula.text == "3 B F"
    forward = phase.executed.once + phase.executed.features
    assert phase.executed.features < phase.executed.update < forward  # gradients of activations, and the adapters' own
    assert phase.formula.total > 2 * phase.executed.total


def test_one_sided_differences_and_forward_gradients_are_counted_as_they_are(tiny_recipe: Make) -> None:
    executed = {
        name: measure_cost(
            tiny_recipe("zofc/base", f"optimize.peft.estimator={name}", "optimize.peft.chunk=4"), 1
        ).phases[0]
        for name in ("spsa", "one_sided", "forward_gradient")
    }
    passes = {name: phase.executed.features / (BATCH * 52_224) for name, phase in executed.items()}
    assert passes["spsa"] == 2 * QUERIES + 1 and passes["one_sided"] == QUERIES + 1
    assert QUERIES + 1 < passes["forward_gradient"] < 2 * QUERIES + 1  # tangents of attention are three products
    assert "q tangents" in executed["forward_gradient"].differences[0].why


# -- the paper's formulas --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("zofc/base", ()),
        ("zofc/base", (FORWARD_GRADIENT,)),
        ("zofc/base", ("optimize.peft.estimator=one_sided", "optimize.peft.per=image")),
        ("adapter-fo/base", ()),
        ("adapter-zo/cifar100-inc10", ()),
        ("classifier-zo/cifar100-inc10", ()),
        ("classifier-fo/cifar100-inc10", ()),
        ("l2p-zo/cifar100-inc10", ()),
        ("ease-fo/cifar100-inc10", ()),
        ("inflora-hybrid/cifar100-inc5", ()),
    ],
)
def test_the_differences_add_up(tiny_recipe: Make, name: str, changes: tuple[str, ...]) -> None:
    found = measure_cost(tiny_recipe(name, *changes), steps=1)
    assert found.phases
    for phase in found.phases:
        assert phase.formula is not None
        assert sum(part.multiply_adds for part in phase.differences) == phase.formula.total - phase.executed.total
        assert all(part.multiply_adds and part.why for part in phase.differences)


def test_the_formulas_are_those_of_appendix_h(tiny_recipe: Make) -> None:
    found = measure_cost(tiny_recipe("zofc/base"), steps=1)
    classes = 2
    head = 5 * classes * WIDTH + 3 * WIDTH + classes
    assert found.forward.formula == found.forward.backbone + 2 * ADAPTERS + head  # an adapter's multiply–add is two
    forward = BATCH * found.forward.formula
    early, late = phases(found)["head+peft"].formula, phases(found)["peft"].formula
    assert early is not None and early.total == (2 * QUERIES + 2) * forward + 2 * BATCH * head
    assert late is not None and late.total == (2 * QUERIES + 1) * forward
    whys = " ".join(part.why for part in found.phases[0].differences)
    assert "10 forwards, executed is the work of 9" in whys and "computed once" in whys and "class token" in whys
    assert any("pet_length" in said for said in found.conventions) and "fvcore" in found.conventions[0]


@pytest.mark.parametrize("line", get_study("flops").lines, ids=lambda line: line.title)
def test_with_the_papers_forward_the_formulas_give_what_it_prints(tiny_recipe: Make, line: StudyLine) -> None:
    """But for early epochs of ZO-FC, of which its table leaves out one of the text's 2q + 2 forwards."""
    together = [] if line.family == "zofc" else ["optimize.head.epochs=2"]
    recipe = tiny_recipe(f"{line.family}/cifar100-inc5", *line.changes, *together)
    placement = start_task(recipe, 1, torch.device("cpu"), lambda text: None)[0].placement
    (groups,) = (sets for sets in phases_of(placement) if set("+".join(sets).split("+")) == set(line.moving))
    batch, classes, width, forward = 48, 5, 768, 8.484e11  # the last of a batch, by fvcore
    head = 5 * classes * width + 3 * width + classes
    found = paper_formula(placement, groups, batch, round(forward / batch), head)
    assert found is not None and line.printed is not None
    printed, left_out = paper.printed("flops", line.printed, "batch48"), line.printed.startswith("zofc-early")
    assert found.forwards - left_out == printed["forwards"]
    assert found.total - left_out * forward == pytest.approx(printed["total_flops"], abs=0.5e9)
    assert found.total - found.backward - left_out * forward == pytest.approx(printed["forward_flops"], abs=0.5e9)
    assert found.backward == pytest.approx(printed["backward_flops"], abs=0.5e9 if line.printed == "fo" else 0.5e4)


def test_what_the_paper_has_no_formula_for_has_none(tiny_recipe: Make) -> None:
    found = phases(measure_cost(tiny_recipe("swapped/cifar100-inc10"), steps=1))
    assert found["peft+head"].formula is None and not found["peft+head"].differences
    assert found["peft"].formula is not None


# -- seconds and bytes -----------------------------------------------------------------------------------------------


def test_memory_is_ordered_as_it_must_be(tiny_recipe: Make) -> None:
    zeroth, first = (measure_cost(tiny_recipe(name), steps=1) for name in ("zofc/base", "adapter-fo/base"))
    memory, (step, *_) = zeroth.memory, zeroth.phases
    assert memory.weights == 4 * 26_496 < memory.resident < step.peak
    assert memory.resident < memory.evaluation
    assert first.memory.resident == memory.resident and first.phases[0].peak > step.peak  # activations are kept
    assert 10**8 < memory.rss <= memory.rss_peak + 2**20 < 2**38  # the system counts in pages, and a little late
    assert memory.rss > memory.resident


def test_the_parameters_are_those_of_the_task(tiny_recipe: Make) -> None:
    first, second = (measure_cost(tiny_recipe("zofc/base"), steps=1, task=task) for task in (1, 2))
    assert first.parameters.moving == second.parameters.moving == {"peft": 538, "head": 2 * WIDTH + 1}
    assert first.parameters.frozen == 26_496 and second.parameters.frozen == 26_496 + 2 * WIDTH  # old rows
    assert second.forward.evaluation == first.forward.evaluation + 2 * WIDTH


def test_phases_are_the_epochs_in_which_the_same_groups_move(tiny_recipe: Make) -> None:
    found = measure_cost(tiny_recipe("zofc/base", "optimize.peft.epochs=5", "optimize.head.epochs=3"), steps=2)
    assert [(phase.groups, phase.epochs) for phase in found.phases] == [(("head", "peft"), 3), (("peft",), 2)]
    for phase in found.phases:
        assert 0 < phase.step_seconds < 10 and phase.epoch_seconds == pytest.approx(2 * phase.step_seconds)
    assert found.steps_per_epoch == 2 and found.evaluation_seconds > 0 and found.loading_seconds > 0


@pytest.mark.parametrize("name", ["simplecil/cifar100-inc10", "ridge/cifar100-inc10"])
def test_a_method_without_steps_still_answers(tiny_recipe: Make, name: str) -> None:
    found = measure_cost(tiny_recipe(name), steps=1)
    assert found.phases == () and found.parameters.moving == {} and found.forward.evaluation > 0


def test_a_memory_limit_is_planned_as_in_a_run(tiny_recipe: Make) -> None:
    free, tight = (measure_cost(tiny_recipe("zofc/base", *more), steps=1) for more in ((), ("training.memory=170kB",)))
    assert any("memory 170kB" in notice for notice in tight.notices)
    assert tight.phases[0].peak < 170_000 < free.phases[0].peak
    assert tight.phases[0].executed == free.phases[0].executed


def test_nothing_is_left_behind(tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(2)
    state = torch.random.get_rng_state()
    first, again = (measure_cost(tiny_recipe("zofc/base", "training.threads=1"), steps=1) for _ in range(2))
    assert [phase.executed for phase in first.phases] == [phase.executed for phase in again.phases]
    assert [phase.peak for phase in first.phases] == [phase.peak for phase in again.phases]
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == 2
    assert not list(tmp_path.iterdir())


def test_the_process_knows_its_memory_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most = process_memory()
    assert 10**7 < now <= most

    def absent(path: Path, *args: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", absent)
    now, most = process_memory()
    assert 10**7 < now == most


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(tiny_recipe: Make, zofc: Callable[..., tuple[int, str]]) -> None:
    Path("mine.yaml").write_text(dump_recipe(tiny_recipe("zofc/base")))
    code, said = zofc("cost", "mine.yaml", "optimize.peft.queries=2", "--steps", "1", "--json", "cost.json")
    assert code == 0, said
    assert "26,496 frozen; moving: peft 538, head 49" in said and "(2q + 2) B F + 2 B F_cls" in said
    assert "6 forwards, executed is the work of 5" in said and "written: cost.json" in said
    found = json.loads(Path("cost.json").read_text())
    assert found["phases"][0]["executed"]["total"] == sum(
        found["phases"][0]["executed"][part] for part in ("once", "features", "classifier", "update")
    )
    code, said = zofc("cost", "mine.yaml", "method.name=simplecil", "--steps", "1")
    assert code == 2
    code, said = zofc("cost", "mine.yaml", "zofc/base")
    assert code == 2 and "give one recipe" in said
    with pytest.raises(RecipeError, match="one timed step"):
        measure_cost(tiny_recipe("zofc/base"), steps=0)
    with pytest.raises(RecipeError, match="no task 9"):
        measure_cost(tiny_recipe("zofc/base"), task=9)

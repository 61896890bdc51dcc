"""Facts about the memory planner: it stays inside, says what it chose, changes no update; and about running out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zofc.errors import BudgetError, RecipeError
from zofc.optim.chunking import Chunking
from zofc.optim.placement import Placement
from zofc.optim.sets import ParameterSet
from zofc.recipe import Recipe
from zofc.runfolder.events import Event
from zofc.runfolder.identity import recipe_digest
from zofc.training.events import Events, StepStatus
from zofc.training.incremental_model import IncrementalModel
from zofc.training.memory import measure_peak, memory_budget, resident_tensors
from zofc.training.planner import choose_chunking, chunked_sets, plan_memory, points_per_step, step_bytes
from zofc.training.resolve import open_stream
from zofc.training.runs import start_run, train
from zofc.training.task import TaskTraining
from zofc.units import parse_bytes

Make = Callable[..., Recipe]
LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
QUERIES = "optimize.peft.queries=2"
ZEROTH_HEAD = ("optimize.head.order=zeroth", "optimize.head.queries=2", "optimize.head.epsilon=1e-3")
KINDS: dict[str, tuple[str, ...]] = {
    "ZO-FC": ("zofc/base", QUERIES),
    "ZO-FC, one-sided": ("zofc/base", QUERIES, "optimize.peft.estimator=one_sided"),
    "ZO-FC, forward gradient": ("zofc/base", QUERIES, "optimize.peft.estimator=forward_gradient"),
    "ZO-FC, a direction for each image": ("zofc/base", QUERIES, "optimize.peft.per=image"),
    "first order": ("adapter-fo/base",),
    "first order, Adam": ("adapter-fo/base", "optimize.peft.optimizer=adam", "optimize.head.optimizer=adam"),
    "zeroth order": ("zofc/base", QUERIES, *ZEROTH_HEAD),
    "swapped": ("adapter-fo/base", *ZEROTH_HEAD),
    "classifier": ("classifier-fo/base",),
    "L2P": ("l2p-fo/cifar100-inc10", "l2p.pool=4", "l2p.top=2"),
}


class Notices:
    """A listener that remembers what the user was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, event: Event) -> None:
        if event["event"] == "notice":
            self.texts.append(event["text"])

    def step(self, status: StepStatus) -> None:
        pass

    def close(self) -> None:
        pass


def learner(recipe: Recipe, dtype: torch.dtype = torch.float32) -> tuple[IncrementalModel, Placement]:
    """A model at its first two classes, away from its initial values, and what moves it."""
    model = IncrementalModel(recipe, torch.device("cpu"))
    model.extend(["a", "b"])
    if dtype == torch.float64:
        model.backbone.vit.to(dtype)
        model.method.to(dtype)
    g = torch.Generator().manual_seed(5)
    for value in model.method.parameters():
        value.add_(0.05 * torch.randn(value.shape, generator=g))
    plans = {name: model.method.plan(name, group) for name, group in recipe.optimize.items()}
    return model, Placement(model.method, model.method.groups(), plans, recipe.seed, 0)


def batch(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=dtype)


SPANS: dict[str, tuple[int, int]] = {}  # by recipe: many tests ask for the same


def span(recipe: Recipe) -> tuple[int, int]:
    """What the smallest and the largest chunking need."""
    key = recipe.model_dump_json()
    if key not in SPANS:
        SPANS[key] = measure_span(recipe)
    return SPANS[key]


def measure_span(recipe: Recipe) -> tuple[int, int]:
    model, placement = learner(recipe)

    def need(chunking: Callable[[ParameterSet], Chunking]) -> int:
        parts = chunked_sets(placement)
        return int(max(step_bytes(model, placement, part, batch(), LABELS, chunking(part)) for part in parts))

    return need(lambda part: Chunking(1)), need(lambda part: Chunking(8, points_per_step(placement, part)))


def allowed(recipe: Recipe, size: float) -> Recipe:
    memory = f"{size / 1000:.3f}kB"
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"memory": memory})})


def moving(placement: Placement) -> dict[str, Tensor]:
    return {key: value for group in placement.groups.values() for key, value in group.items()}


def values(placement: Placement) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in moving(placement).items()}


# -- staying inside --------------------------------------------------------------------------------------------------


@pytest.mark.no_cover  # sixty times the same lines, which other tests cover
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_stays_inside_the_budget(tiny_recipe: Make, kind: str, share: float) -> None:
    plain = tiny_recipe(*KINDS[kind])
    least, most = span(plain)
    recipe = allowed(plain, budget := least + share * (most - least) + 1)
    model, placement = learner(recipe)
    before = values(placement)
    said = plan_memory(model, placement, batch(), LABELS)
    assert all(torch.equal(value, before[name]) for name, value in moving(placement).items()), "planning moves nothing"
    assert said.startswith(f"memory {recipe.training.memory}: ") and " of 8 images" in said
    for step in range(3):  # optimizers have their states from the second on
        states = [entry for each in placement.state().values() for of in each.values() for entry in of.values()]
        held = [entry for entry in states if isinstance(entry, Tensor)]
        with measure_peak(model.device, [*resident_tensors(model), *held]) as peak:
            placement.step(batch(), LABELS, 0, step)
        assert peak.bytes <= budget
    chunkings = {part.chunking for part in chunked_sets(placement)}
    assert not placement.execution.notices
    if share >= 1:
        assert all(chunking.micro_batch == 8 for chunking in chunkings)
    elif kind.startswith("ZO-FC") and share > 0:
        assert any(chunking.micro_batch != 1 or chunking.chunk != 1 for chunking in chunkings), (
            "some of the room is used"
        )


@pytest.mark.parametrize("kind", ["ZO-FC", "first order", "zeroth order"])
def test_a_run_reports_a_peak_within_its_budget_and_says_what_it_chose(
    tiny_recipe: Make, tmp_path: Path, kind: str
) -> None:
    plain = tiny_recipe(*KINDS[kind], "optimize.peft.epochs=1")
    free = train(start_run(plain, tmp_path / "free"))
    least, _ = span(plain)
    notices = Notices()
    metrics = train(start_run(allowed(plain, budget := 1.05 * least), tmp_path / "planned"), [notices])
    assert max(metrics["peak_memory_by_task"]) <= budget < free["peak_memory"]
    assert len(notices.texts) == 3, "one plan for each task"
    assert all(re.search(r"at a time \(measured \d+ KiB\)", text) for text in notices.texts)


@pytest.mark.parametrize("name", ["zofc/base", "lae-fo/base", "ease-fo/base", "simplecil/base"])
@pytest.mark.parametrize("room", [0, 1, 5, 40])
def test_images_are_scored_inside_the_budget_too(tiny_recipe: Make, name: str, room: int) -> None:
    """With room for so many more than two images at a time, of the 16 that the recipe has."""
    plain = tiny_recipe(name, "training.eval_batch_size=16")
    model, _ = learner(plain)

    def need(count: int) -> int:
        with torch.no_grad(), measure_peak(model.device, resident_tensors(model)) as peak:
            model.scores(torch.rand(count, 3, 16, 16))
        return peak.bytes

    budget = need(2) + room * (need(3) - need(2)) + 1
    inside, _ = learner(allowed(plain, budget))
    assert (found := inside.plain_batch_size(99)) == min(2 + room, 16) and need(found) <= budget
    assert inside.plain_batch_size(3) == min(found, 3)
    assert learner(allowed(plain, need(1)))[0].plain_batch_size(99) == 1
    assert model.plain_batch_size(99) == 16


def test_a_run_inside_a_budget_scores_what_it_would_without(tiny_recipe: Make, tmp_path: Path) -> None:
    plain = tiny_recipe("simplecil/base", "data.test_per_class=10")
    free = train(start_run(plain, tmp_path / "free"))
    model, _ = learner(plain)
    tight = allowed(plain, 1.2 * sum(value.nbytes for value in resident_tensors(model)))
    assert learner(tight)[0].plain_batch_size(10) < 10
    found = train(start_run(tight, tmp_path / "tight"))
    assert found["all_classes"] == free["all_classes"] and found["forgetting"] == free["forgetting"]


def test_what_a_method_keeps_for_its_first_answer_is_counted_and_one_image_is_not_measured(tiny_recipe: Make) -> None:
    """EASE makes its prototypes when they are first asked for."""
    plain = tiny_recipe("ease-fo/base", "training.eval_batch_size=16")
    model, _ = learner(plain)
    model.extend([f"class {number}" for number in range(400)])

    def need() -> int:
        with torch.no_grad(), measure_peak(model.device, resident_tensors(model)) as peak:
            model.scores(torch.rand(2, 3, 16, 16))
        return peak.bytes

    first, again = need(), need()
    assert first > again
    for budget in range(again - 1000, first + 9000, 1000):
        inside, _ = learner(allowed(plain, budget))
        inside.extend(model.classes[2:])
        assert 1 <= inside.plain_batch_size(99) <= 16
        inside.method.scores = None  # type: ignore[assignment,method-assign]
        assert inside.plain_batch_size(1) == 1


def test_where_images_are_answered_together_a_budget_does_not_part_them(tiny_recipe: Make) -> None:
    few = ("l2p.pool=4", "l2p.top=2", "training.eval_batch_size=16", "training.memory=1kB")
    for variant, together in (("zofc", 16), ("official", 1)):
        model, _ = learner(tiny_recipe("l2p-fo/cifar100-inc10", *few, f"method.variant={variant}"))
        assert model.plain_batch_size(99) == together


def test_buffers_are_part_of_what_is_there(tiny_recipe: Make) -> None:
    model, _ = learner(tiny_recipe("ridge/base"))
    assert {id(buffer) for buffer in model.method.buffers()} & {id(tensor) for tensor in resident_tensors(model)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_planned_update_is_the_update(tiny_recipe: Make, kind: str) -> None:
    """But for L2P, whose images vote for prompts together."""
    plain = tiny_recipe(*KINDS[kind], "training.batch_size=8")
    model, placement = learner(plain, torch.float64)
    start = values(placement)
    placement.step(batch(torch.float64), LABELS, 0, 0)
    expected = values(placement)
    least = max(
        step_bytes(model, placement, part, batch(torch.float64), LABELS, Chunking(1))
        for part in chunked_sets(placement)
    )
    model, placement = learner(allowed(plain, 1.02 * least), torch.float64)
    plan_memory(model, placement, batch(torch.float64), LABELS)
    if kind != "ZO-FC, a direction for each image":  # there, the directions are most of it
        assert any(part.chunking.micro_batch != 8 for part in chunked_sets(placement))
    placement.step(batch(torch.float64), LABELS, 0, 0)
    if kind == "L2P":
        return
    for name, value in values(placement).items():
        assert float((value - expected[name]).norm()) <= 1e-9 * float((expected[name] - start[name]).norm()), name


def test_a_method_that_couples_images_says_so_if_they_are_apart(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(*KINDS["L2P"])
    least, most = span(recipe)
    for budget, said in ((1.1 * least, True), (2.0 * most, False)):
        model, placement = learner(allowed(recipe, budget))
        monkeypatch.setattr(type(model.method), "couples_images", "images vote together", raising=False)
        assert plan_memory(model, placement, batch(), LABELS).endswith("; images vote together") == said


def test_a_resumed_epoch_that_begins_with_its_rest_is_planned_for_whole_batches(tiny_recipe: Make) -> None:
    recipe = tiny_recipe("zofc/base", "training.memory=1GB")
    model, stream = IncrementalModel(recipe, torch.device("cpu")), open_stream(recipe, lambda text: None)
    model.extend(stream.tasks[0].names)
    notices = Notices()
    training = TaskTraining(model, model.loader(stream.train_set(stream.tasks[0])), Events([notices]), 3)
    training.resume(0, 1, {})  # four of twelve images are left of the epoch
    next(training.run())
    assert "8 of 8 images" in notices.texts[0]


def test_a_classifier_that_moves_on_alone_has_a_plan_too(tiny_recipe: Make) -> None:
    """Its own chunking counts in epochs in which no features are evaluated for the adapter."""

    def labels(*recipe: str) -> list[str]:
        return [part.label for part in chunked_sets(learner(tiny_recipe(*recipe))[1])]

    assert labels("zofc/base") == ["peft"]
    assert labels("zofc/base", "optimize.head.epochs=3") == ["first", "peft"]
    assert labels("adapter-fo/base") == ["first"]


# -- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("400MB", 400_000_000), ("1.5GiB", 3 * 2**29), ("800 MiB", 800 * 2**20), ("2GB", 2 * 10**9), ("64kb", 64_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["400", "MB", "-1GB", "0MB", "4 apples", "automatic"])
def test_what_is_no_size_is_refused_with_an_example(tiny_recipe: Make, text: str) -> None:
    with pytest.raises(RecipeError, match=r"training\.memory: expected .*"):
        tiny_recipe("zofc/base", f"training.memory={text}")
    if text != "400":  # a number, to YAML
        with pytest.raises(RecipeError, match=r"such as 400MB or 1\.5GiB, or auto, got '"):
            tiny_recipe("zofc/base", f"training.memory={text}")


def test_auto_is_a_share_of_what_is_free(tiny_recipe: Make) -> None:
    assert memory_budget("auto", torch.device("cpu")) > 2**20
    model, placement = learner(tiny_recipe("zofc/base", "training.memory=auto"))
    assert plan_memory(model, placement, batch(), LABELS).startswith("memory auto (")
    assert placement.zeroth[0].chunking == Chunking(8, 8)


def test_memory_is_how_to_run_and_not_what(tiny_recipe: Make) -> None:
    plain = tiny_recipe("zofc/base")
    assert recipe_digest(plain) == recipe_digest(allowed(plain, 1e6))


@pytest.mark.parametrize(
    ("kind", "share", "words"),
    [
        ("ZO-FC", 0.9, ["fp16 would fit", "estimator=forward_gradient"]),
        ("ZO-FC, forward gradient", 0.9, ["fp16 would fit, with about"]),
        ("ZO-FC", 0.1, ["would not fit either"]),
        ("first order", 0.9, ["fp16 would fit", "training.recompute=true"]),
    ],
)
def test_too_small_a_budget_is_refused_with_the_least_and_what_would_fit(
    tiny_recipe: Make, tmp_path: Path, kind: str, share: float, words: list[str]
) -> None:
    recipe = tiny_recipe(*KINDS[kind])
    least, _ = span(recipe)
    model, placement = learner(allowed(recipe, share * least))
    with pytest.raises(RecipeError) as refused:
        plan_memory(model, placement, batch(), LABELS)
    said = str(refused.value)
    assert said.startswith(f"training.memory: {share * least / 1000:.3f}kB is not enough for this task: the weights")
    assert all(word in said for word in words)
    needed = re.search(r"with one image at a time need ([\d.]+ [KM]iB)\.", said)
    assert needed and least <= parse_bytes(needed[1]) <= 1.011 * least, "the budget that it names is enough"
    folder = start_run(allowed(recipe, share * least), tmp_path)
    with pytest.raises(RecipeError, match="is not enough"):
        train(folder)
    assert not folder.path.exists(), "no step was taken"


def test_the_precision_that_would_fit_does(tiny_recipe: Make) -> None:
    recipe = tiny_recipe(*KINDS["ZO-FC, forward gradient"])
    least, _ = span(recipe)
    model, placement = learner(allowed(recipe, 0.95 * least))
    with pytest.raises(RecipeError, match="bf16 or fp16 would fit, with about") as refused:
        plan_memory(model, placement, batch(), LABELS)
    promised = parse_bytes(" ".join(str(refused.value).rpartition("about ")[2].rstrip(".").split()[:2]))
    half, _ = span(tiny_recipe(*KINDS["ZO-FC, forward gradient"], "training.precision=bf16"))
    assert half == pytest.approx(promised, rel=0.1)


def test_what_trains_nothing_still_needs_its_weights(tiny_recipe: Make, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"50kB is not enough .* the weights \(10\d KiB\) alone need"):
        train(start_run(tiny_recipe("simplecil/base", "training.memory=50kB"), tmp_path))


# -- out of memory ---------------------------------------------------------------------------------------------------


def limit(model: IncrementalModel, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A device that runs out of memory beyond so many images times points."""
    real: Callable[[Mapping[str, Tensor], Any], Any] = model.method.features

    def features(moving: Mapping[str, Tensor], prepared: Any) -> Any:
        biases = [value for name, value in moving.items() if name.endswith("bias")]
        points = len(biases[0]) if biases and biases[0].dim() > 1 else 1
        if points * len(prepared.x) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(moving, prepared)

    monkeypatch.setattr(model.method, "features", features)


@pytest.mark.parametrize("kind", ["ZO-FC", "first order", "zeroth order"])
@pytest.mark.parametrize("most", [8, 3, 1])
def test_out_of_memory_shrinks_the_plan_and_repeats_the_step(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch, kind: str, most: int
) -> None:
    recipe = tiny_recipe(*KINDS[kind], "optimize.peft.chunk=8")
    if kind == "zeroth order":
        recipe = tiny_recipe(*KINDS[kind], "optimize.peft.chunk=8", "optimize.head.chunk=8")
    _, placement = learner(recipe, torch.float64)
    start = values(placement)
    reports = [placement.step(batch(torch.float64), LABELS, 0, step) for step in range(2)]
    expected = values(placement)
    model, placement = learner(recipe, torch.float64)
    limit(model, monkeypatch, most)
    shrunk = [placement.step(batch(torch.float64), LABELS, 0, step) for step in range(2)]
    for name, value in values(placement).items():
        assert float((value - expected[name]).norm()) <= 1e-9 * float((expected[name] - start[name]).norm()), name
    assert [report.loss for report in shrunk] == pytest.approx([report.loss for report in reports], rel=1e-9)
    notices = placement.execution.notices
    assert bool(notices) == (kind != "first order" or most < 8)
    assert all(text.startswith("out of memory: from here on ") for text in notices)
    chunking = chunked_sets(placement)[0].chunking
    assert (chunking.micro_batch or 8) * chunking.chunk <= most


@pytest.mark.parametrize("most", [8, 3, 1, 0])
def test_images_are_scored_in_halves_where_memory_runs_out(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    model, _ = learner(tiny_recipe("zofc/base"))
    expected, real = model.scores(batch()), model.method.scores

    def scores(images: Tensor) -> Tensor:
        if len(images) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(images)

    monkeypatch.setattr(model.method, "scores", scores)
    if not most:
        with pytest.raises(torch.OutOfMemoryError):
            model.scores(batch())
        return
    torch.testing.assert_close(model.scores(batch()), expected)


def test_a_method_that_couples_images_says_so_when_memory_runs_out(tiny_recipe: Make) -> None:
    model, placement = learner(tiny_recipe(*KINDS["L2P"]))
    placement.execution.shrink(placement.first, 8)
    assert placement.execution.notices == [
        f"out of memory: from here on 4 images and 1 points at a time (first); {model.method.couples_images}"
    ]


@pytest.mark.parametrize("kind", ["ZO-FC", "first order", "zeroth order"])
def test_what_can_never_fit_is_raised_with_nothing_moved(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    model, placement = learner(tiny_recipe(*KINDS[kind]))
    start = values(placement)
    limit(model, monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError):
        placement.step(batch(), LABELS, 0, 0)
    assert all(torch.equal(value, start[name]) for name, value in moving(placement).items())


def test_a_plan_heeds_a_device_that_has_less_than_the_budget(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, placement = learner(tiny_recipe("zofc/base", "training.memory=1GB"))
    limit(model, monkeypatch, 8)
    plan_memory(model, placement, batch(), LABELS)
    chunking = placement.zeroth[0].chunking
    assert 1 < (chunking.micro_batch or 8) * chunking.chunk <= 8 and not placement.execution.notices
    limit(model, monkeypatch, 0)
    with pytest.raises(RecipeError, match="the device runs out of memory before 1GB, with one image at a time"):
        plan_memory(model, placement, batch(), LABELS)


def test_where_not_even_two_points_fit_more_images_may() -> None:
    def need(chunking: Chunking) -> float:
        return math.inf if chunking.chunk > 1 else 10.0 * (chunking.micro_batch or 16)

    assert choose_chunking(need, need, least=10.0, batch=16, points=4, budget=100) == (Chunking(8, 1), 80.0)


def test_planning_is_no_training(tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-3
        return now[0]

    def plan(*anything: Any) -> None:
        now[0] += 1000

    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr(TaskTraining, "_plan", plan)
    metrics = train(start_run(tiny_recipe("zofc/base", "training.memory=1GB"), tmp_path))
    assert now[0] > 3000 and metrics["seconds"]["train"] < 100


def test_a_task_that_needs_more_than_those_before_it_says_how_to_go_on(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(task: TaskTraining, *anything: Any) -> None:
        if task.index == 1:
            raise BudgetError("training.memory: 1MB is not enough for this task.")

    with monkeypatch.context() as context:
        context.setattr(TaskTraining, "_plan", plan)
        folder = start_run(tiny_recipe("zofc/base", "training.memory=1GB"), tmp_path)
        with pytest.raises(RecipeError, match=r"The tasks before it are saved; continue with: zofc run --resume"):
            train(folder)
    assert train(folder)["finished"]

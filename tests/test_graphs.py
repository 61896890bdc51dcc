"""Facts about recorded work: replayed steps are the steps. Most need a CUDA device; the others show the bookkeeping."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zofc.methods import get_method
from zofc.model.backbone import load_backbone
from zofc.optim.chunking import Chunking
from zofc.optim.graphs import PLAIN_RUNS, RECORDING_STEPS, Recorder, Recording
from zofc.optim.placement import Placement
from zofc.recipe import BackboneSettings, Group, PeftSettings, Recipe
from zofc.training.incremental_model import IncrementalModel
from zofc.training.memory import measure_peak, resident_tensors
from zofc.training.planner import chunked_sets, plan_memory, step_bytes
from zofc.training.resolve import open_stream

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FIRST = Group(order="first", lr=0.1, epochs=2)
ZEROTH = Group(order="zeroth", lr=0.1, queries=3, clip=1.0, epochs=4)
KINDS = {
    "ZO-FC": {"peft": ZEROTH, "head": FIRST},
    "ZO-FC, stacked": {"peft": ZEROTH.model_copy(update={"chunk": 6}), "head": FIRST},
    "ZO-FC, one-sided": {"peft": ZEROTH.model_copy(update={"estimator": "one_sided"}), "head": FIRST},
    "ZO-FC, forward gradients": {
        "peft": ZEROTH.model_copy(update={"estimator": "forward_gradient", "chunk": 3}),
        "head": FIRST,
    },
    "ZO-FC, a direction for each image": {"peft": ZEROTH.model_copy(update={"per": "image"}), "head": FIRST},
    "zeroth order": {"peft": ZEROTH, "head": ZEROTH},
    "first order": {"peft": FIRST, "head": FIRST},
    "first order, dropout": {"peft": FIRST, "head": FIRST},
    "first order, computed again": {"peft": FIRST, "head": FIRST},
    "swapped": {"peft": FIRST, "head": ZEROTH},
}


def recordings(recorder: Recorder) -> list[Recording | None]:
    """Those of a recorder, and of work that reads their results."""
    own = list(recorder.recordings.values())
    return own + [other for each in own if each is not None for other in recordings(each.readers)]


def train(path: str, kind: str, graphs: bool, stream: bool, dtype: torch.dtype) -> tuple[Tensor, list[float]]:
    """Twelve steps on batches of two sizes, over two epochs after which the first-order groups stop."""
    backbone = load_backbone(BackboneSettings(name=path), device="cuda", dtype=dtype, recompute="again" in kind)
    module = PeftSettings(kind="adaptformer" if "dropout" in kind else "adapter", blocks="first 2", rank=4, dropout=0.5)
    method = get_method("adapter")(backbone, Recipe(seed=3, peft=module))
    method.extend(range(3))
    g = torch.Generator().manual_seed(0)
    plans = KINDS[kind]
    if stream:
        plans = {name: plan.model_copy(update={"micro_batch": 2}) for name, plan in plans.items()}
    place = Placement(method, method.groups(), plans, seed=3, task=0, graphs=graphs)
    losses = []
    for step in range(18):
        images = torch.rand(6 if step % 3 else 4, 3, 16, 16, generator=g)
        labels = torch.arange(len(images)) % 3
        if not stream:
            images, labels = images.cuda(), labels.cuda()
        epoch = step // 6
        if place.active(epoch):
            losses.append(place.step(images, labels, epoch, step).loss)
    if graphs:
        assert recordings(place.execution.recorder) and None not in recordings(place.execution.recorder)
    return torch.cat([value.flatten() for value in method.parameters()]).cpu(), losses


@needs_cuda
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_steps_are_the_steps(tiny_weights: str, kind: str, stream: bool) -> None:
    """With two batch sizes, and groups that stop while others go on: the same parameters, the same losses."""
    plain, plain_losses = train(str(tiny_weights), kind, False, stream, torch.float32)
    replayed, losses = train(str(tiny_weights), kind, True, stream, torch.float32)
    torch.testing.assert_close(replayed, plain, rtol=1e-5, atol=1e-6)
    assert losses == pytest.approx(plain_losses, rel=1e-5)


@needs_cuda
def test_forward_gradients_in_bf16_are_replayed_too(tiny_weights: str) -> None:
    kind = "ZO-FC, forward gradients"
    plain, _ = train(str(tiny_weights), kind, False, False, torch.bfloat16)
    replayed, _ = train(str(tiny_weights), kind, True, False, torch.bfloat16)
    torch.testing.assert_close(replayed, plain, rtol=1e-3, atol=1e-4)


@needs_cuda
def test_what_waits_for_the_device_is_done_as_it_is() -> None:
    recorder = Recorder(True)
    for number in range(5):
        x = torch.full((3,), float(number), device="cuda")
        assert recorder("waits", lambda x: float(x.sum()), x) == 3 * number
    assert list(recorder.recordings.values()) == [None]
    other, before = torch.cuda.Stream(), torch.cuda.memory_allocated()
    for _ in range(20):  # what another stream has used is still given back
        used = torch.empty(2**20, device="cuda")
        used.record_stream(other)
        del used
        torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 8 * 2**20


@needs_cuda
def test_a_recording_that_fails_leaves_the_others_alone() -> None:
    recorder, x = Recorder(True), torch.ones(2**20, device="cuda")
    works = {"before": lambda x: (x * 2,), "waits": lambda x: float(x.sum()), "after": lambda x: (x * 3,)}
    for kind, work in works.items():
        for _ in range(PLAIN_RUNS + 2):
            recorder(kind, work, x)
    assert [recording is None for recording in recorder.recordings.values()] == [False, True, False]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.equal(recorder("before", works["before"], x)[0], 2 * x)


@needs_cuda
def test_a_recording_is_made_after_a_few_plain_runs_and_once_for_each_shape() -> None:
    recorder, runs = Recorder(True), []

    def work(x: Tensor) -> tuple[Tensor]:
        runs.append(1)
        return (x * 2,)

    for size in (3, 5):
        for number in range(PLAIN_RUNS + 4):
            x = torch.full((size,), float(number), device="cuda")
            (result,), readers = recorder.run("double", work, x)
            assert torch.equal(result, 2 * x)
            assert readers.enabled == (number >= PLAIN_RUNS), "only the result of a recording stays where it is"
    assert len(recorder.recordings) == 2 and len(runs) == 2 * (PLAIN_RUNS + 2)
    recorder.forget()
    assert not recorder.recordings and not recorder.run("double", work, x)[1].enabled


@needs_cuda
def test_all_recordings_share_one_workspace() -> None:
    recorder, x = Recorder(True), torch.ones(64, 64, device="cuda")
    taken = []
    for kind in ("one", "two", "three"):
        for _ in range(PLAIN_RUNS + 1):
            recorder(kind, lambda x: (x @ x,), x)
        taken.append(torch.cuda.memory_allocated())
    assert len(recorder.recordings) == 3 and taken[2] - taken[0] < 2**20


@needs_cuda
def test_all_recordings_work_in_the_same_memory() -> None:
    recorder, x = Recorder(True), torch.ones(2**22, device="cuda")
    taken = []
    for kind in ("one", "two", "three", "four"):
        for _ in range(PLAIN_RUNS + 2):
            (total,) = recorder(kind, lambda x: ((x * 2).exp().add(1).sum()[None],), x[:])
        assert float(total) == pytest.approx(2**22 * 8.389056, rel=1e-4)
        taken.append(torch.cuda.memory_reserved())
    own_inputs = x.nbytes  # of each
    assert len(recorder.recordings) == 4 and taken[3] - taken[0] < 3 * own_inputs + 2**22


def test_on_other_devices_nothing_is_recorded() -> None:
    recorder = Recorder(True)
    for number in range(PLAIN_RUNS + 3):
        assert recorder("plain", lambda x: x + 1, torch.tensor([number])).tolist() == [number + 1]
        assert not recorder.run("plain", lambda x: x, torch.tensor([number]))[1].enabled
    assert not recorder.recordings


@needs_cuda
def test_planned_steps_stay_inside_the_budget_with_their_recordings(tiny_recipe: Callable[..., Recipe]) -> None:
    recipe = tiny_recipe("zofc/base", "training.device=cuda", "training.batch_size=12", "data.per_class=12")
    model = IncrementalModel(recipe, torch.device("cuda"))
    task = open_stream(recipe, lambda text: None).tasks[0]
    model.extend(task.names)
    images, labels = torch.rand(12, 3, model.backbone.image_size, model.backbone.image_size), torch.arange(12) % 2

    def steps(place: Placement) -> int:
        with measure_peak(model.device, resident_tensors(model)) as peak:
            for number in range(RECORDING_STEPS):
                place.step(images, labels, 0, number)
        assert any(recording is not None for recording in recordings(place.execution.recorder))
        return peak.bytes

    def fresh() -> Placement:
        return Placement(model.method, model.method.groups(), recipe.optimize, 1, 0, graphs=True)

    whole, place = steps(fresh()), fresh()
    least = max(step_bytes(model, place, part, images, labels, Chunking(1)) for part in chunked_sets(place))
    assert least < whole
    budget = int(least + whole) // 2
    settings = recipe.training.model_copy(update={"memory": f"{budget // 1000}kB"})
    model.recipe = recipe.model_copy(update={"training": settings})
    plan_memory(model, place, images, labels)
    assert steps(place) <= budget < whole

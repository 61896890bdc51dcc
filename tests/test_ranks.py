"""Facts about one run in several processes: two learn what one learns, exchange few bytes, and end together."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from zofc.analysis.replay import RunReplay
from zofc.model.subspace import Subspaces
from zofc.ranks import ProcessRanks, Ranks
from zofc.recipe import load_recipe
from zofc.runfolder import Run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.journal_records import SetStep
from zofc.runfolder.names import JOURNAL_FILE
from zofc.training.resolve import check_recipe
from zofc.training.runs import start_run, train

WORKER = Path(__file__).with_name("ranks_worker.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
CASES = {  # the last batch of 14 images has 4 of 5, or 1 of 13, which is fewer than there are ranks
    "shared": ["zofc/base"],
    "image": ["zofc/base", "optimize.peft.per=image", "optimize.peft.queries=2"],
    "queries": ["zofc/base", "training.divide=queries", "optimize.peft.queries=3"],
    "small batch": ["zofc/base", "training.batch_size=13", "optimize.peft.epochs=10"],
    "first order": ["adapter-fo/base"],
    "dropout": ["adapter-fo/base", "peft.kind=adaptformer", "peft.dropout=0.5"],
    "throughout": [
        "adapter-zo/base",
        "optimize.peft.estimator=forward_gradient",
        "optimize.head.estimator=forward_gradient",
    ],
    "kept features": ["classifier-fo/base", "views.augment=none"],
    "simplecil": ["simplecil/base"],
    "ridge": ["ridge/base"],
    "zo-ridge": ["zo-ridge/base"],
    "ease": ["ease-fo/base"],
    "ease zeroth order": ["ease-zo/base", "optimize.peft.estimator=forward_gradient"],
    "lae": ["lae-zo/base", "optimize.peft.estimator=forward_gradient"],
    "aper": ["aper-fo/base"],
    "inflora": ["inflora-fo/base", "head.kind=linear"],
    "l2p by queries": ["l2p-zo/base", "training.divide=queries"],
}
REFUSED = {
    "l2p": (["l2p-zo/base"], "training.divide=queries divides the directions"),
    "l2p first order": (["l2p-fo/base"], "start it in one process"),
    "queries per image": (["zofc/base", "training.divide=queries", "optimize.peft.per=image"], "directions of its own"),
    "one query": (["zofc/base", "training.divide=queries", "optimize.peft.queries=1"], "one query cannot be divided"),
    "no queries": (["adapter-fo/base", "training.divide=queries"], "no group has queries"),
    "differs": (["zofc/base", "training.check_ranks=5"], "after step 5 of task 1, parameters of rank 1 differ"),
}  # fmt: skip


def words(case: list[str], weights: Path, precision: str = "fp64") -> list[str]:
    """The words of a small recipe with more than 20 steps."""
    name, *overrides = case
    recipe = load_recipe(name)
    small = [
        f"backbone.name={weights}", "data.source=glyphs:clean", "data.classes=4", "data.increment=2",
        "data.per_class=7", "data.test_per_class=5", "training.batch_size=5", "training.eval_batch_size=4",
        "training.device=cpu",
        "views.augment=crop-flip", f"training.precision={precision}", "training.loading=device",
    ]  # fmt: skip
    small += [f"optimize.{group}.epochs=4" for group in recipe.optimize]
    return [name, *small, *(["peft.blocks=first 2"] if "peft" in recipe.optimize else []), *overrides]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def results(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All cases in one process ("one") and in two ("two"); single precision ones begin with "fp32"."""
    cases = {name: words(case, tiny_weights) for name, case in CASES.items()}
    cases |= {f"fp32 {name}": words(CASES[name], tiny_weights, "fp32") for name in ("shared", "image", "first order")}
    cases |= {f"fp32 {name}": words(CASES[name], tiny_weights, "fp32") for name in ("throughout",)}
    refused = {name: words(case, tiny_weights) for name, (case, _) in REFUSED.items()}
    found = {}
    for kind, start in (("one", (sys.executable,)), ("two", TORCHRUN)):
        folder = tmp_path_factory.mktemp(kind)
        (folder / "cases.json").write_text(json.dumps(cases | (refused if kind == "two" else {})), "utf-8")
        command = [*start, str(WORKER), str(folder / "cases.json"), str(folder)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        found[kind] = json.loads((folder / "results.json").read_text("utf-8"))
        counts = sorted(folder.glob("answered.*.json"))
        found[f"answered by {kind}"] = [json.loads(file.read_text("utf-8")) for file in counts]
    return found


def trained(result: dict[str, Any]) -> dict[str, torch.Tensor]:
    assert "folder" in result, result
    checkpoint = load_checkpoint(Run(result["folder"]))
    assert checkpoint is not None
    return checkpoint.method


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_learns(results: dict[str, Any], name: str) -> None:
    one, two = results["one"][name], results["two"][name]
    state, other = trained(one), trained(two)
    assert state.keys() == other.keys()
    for key, value in state.items():
        if name == "inflora" and key.startswith("used."):
            continue
        if value.is_floating_point() and value.numel():
            assert value.dtype == torch.float64
            scale = float(value.abs().max())
            assert float((value - other[key]).abs().max()) <= 1e-9 * max(scale, 1e-300), key
        else:
            assert torch.equal(value, other[key]), key
    matrix = Run(one["folder"]).matrix
    assert matrix is not None and matrix == Run(two["folder"]).matrix
    steps = Run(two["folder"]).metrics["steps"]
    assert steps >= 20 or name in ("simplecil", "ridge", "zo-ridge", "aper")  # which train nothing, or in one task


def test_inflora_keeps_the_same_subspaces(results: dict[str, Any]) -> None:
    projectors = []
    for kind in ("one", "two"):
        state = {
            k.removeprefix("used."): v for k, v in trained(results[kind]["inflora"]).items() if k.startswith("used.")
        }
        spaces = Subspaces(len(state["columns"]), state["basis"].shape[1])
        spaces.load_state_dict(state)
        found = [spaces[block] for block in range(len(state["columns"]))]
        projectors.append(torch.stack([space.basis @ space.basis.mT for space in found if space is not None]))
    assert float(torch.linalg.matrix_norm(projectors[0] - projectors[1]).max()) < 1e-7


@pytest.mark.parametrize("name", ["simplecil", "ridge"])
def test_statistics_of_frozen_features_are_the_same_bits(results: dict[str, Any], name: str) -> None:
    one, two = (trained(results[kind][name]) for kind in ("one", "two"))
    assert all(torch.equal(value, two[key]) for key, value in one.items())


@pytest.mark.parametrize("name", ["shared", "image", "queries"])
def test_the_journal_is_that_of_one_process(results: dict[str, Any], name: str) -> None:
    """The same steps with the same coefficients; what the two processes stored follows from theirs to the bit."""
    one, two = (RunReplay(Path(results[kind][name]["folder"])) for kind in ("one", "two"))
    check = two.check()
    assert check.problem is None and check.compared and check.conclusion.endswith("bit for bit")
    pairs = list(zip(one.journal.entries, two.journal.entries, strict=True))
    assert [type(own) for (own, _), _ in pairs] == [type(other) for _, (other, _) in pairs]
    steps = [(own, other) for (own, _), (other, _) in pairs if isinstance(own, SetStep)]
    assert len(steps) >= 20
    for own, other in steps:
        assert (own.number, own.epoch, own.step, own.rate) == (other.number, other.epoch, other.step, other.rate)  # type: ignore[union-attr]
        assert own.scale == pytest.approx(other.scale, rel=1e-9)  # type: ignore[union-attr]
        shares, others = (np.frombuffer(step.shares) for step in (own, other))  # type: ignore[union-attr]
        np.testing.assert_allclose(others, shares, rtol=1e-9, atol=1e-9 * np.abs(shares).max())


def test_a_step_exchanges_its_coefficients_and_the_gradient_of_first_order_groups(results: dict[str, Any]) -> None:
    """Of 2 tasks with 4 epochs of 14 images in batches of 5, 5 and 4: 24 steps."""
    rows = 2 * 24 + 1  # two classes of 24 numbers, and the scale

    def sent(name: str) -> dict[str, int]:
        counts: dict[str, int] = results["two"][name]["sent"]
        return counts

    adapter = 2 * (2 * 5 * 24 + 5 + 24)
    assert sent("fp32 shared")["coefficients"] == 24 * 4 * 4
    assert sent("fp32 shared")["gradient"] == 24 * 4 * rows
    assert sent("fp32 image")["coefficients"] == 2 * 4 * 4 * 2 * 14  # 4 bytes × 2 queries × each image of an epoch
    assert sent("fp32 first order")["gradient"] == 24 * 4 * (adapter + rows)
    assert "coefficients" not in sent("fp32 first order")
    assert "gradient" not in sent("fp32 throughout")
    assert sent("shared")["coefficients"] == 24 * 8 * 4
    assert sent("shared")["loss and hits"] == 24 * 2 * 2 * 8
    assert not results["one"]["shared"]["sent"]


@pytest.mark.parametrize("name", ["shared", "ridge"])
def test_each_of_two_processes_evaluates_its_part_of_the_test_images(results: dict[str, Any], name: str) -> None:
    """They answer as many images as one process, in turns: some of its batches each."""
    (alone,), (one, two) = ([counts[name] for counts in results[f"answered by {kind}"]] for kind in ("one", "two"))
    assert alone >= 20 and one + two == alone
    assert min(one, two) >= 0.3 * alone


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_divided_or_differs_is_refused(results: dict[str, Any], name: str) -> None:
    assert REFUSED[name][1] in results["two"][name]["error"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("whole", [1, 2, 5, 48])
def test_the_parts_of_all_ranks_are_the_whole(size: int, whole: int) -> None:
    parts = []
    for rank in range(size):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, size
        parts.append(ranks.part(whole))
    assert sum(part.weight for part in parts) == pytest.approx(1)
    assert [i for part in parts if part.weight for i in range(whole)[part.where]] == list(range(whole))
    assert all(len(range(whole)[part.where]) > 0 for part in parts)


def test_single_precision_is_what_it_was_beside_double(tiny_weights: Path, tmp_path: Path) -> None:
    """The same start; after 24 steps both are near each other, and only one of them is in float64."""
    states = []
    for precision in ("fp32", "fp64"):
        recipe = check_recipe(load_recipe("adapter-fo/base", words(CASES["first order"], tiny_weights, precision)[1:]))
        run = start_run(recipe, tmp_path)
        train(run)
        states.append(trained({"folder": str(run.path)}))
    for name, value in states[0].items():
        assert value.dtype == torch.float32 or not value.is_floating_point() or name.startswith("typicality")
        assert torch.allclose(value.double(), states[1][name].double(), atol=1e-3), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl_with_one_rank(tmp_path: Path) -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        ranks = ProcessRanks()
        value = torch.arange(5.0, device="cuda")
        assert torch.equal(ranks.sum({"gradient": value})["gradient"], value)
        assert ranks.sent["gradient"] == 20 and not ranks.any(False) and ranks.least(3) == 3
        batches = [(torch.full((2, 3), float(k), device="cuda"), torch.tensor([k, k])) for k in range(3)]
        features = [features for features, _ in ranks.in_order(batches, lambda images: 2 * images)]
        assert torch.equal(torch.cat(features), 2 * torch.cat([images for images, _ in batches]).cpu())
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_with_nccl_is_that_of_one_process(tiny_weights: Path, tmp_path: Path) -> None:
    """One rank, whose sums of CUDA tensors pass through NCCL."""
    name, *overrides = words(CASES["shared"], tiny_weights)
    recipe = check_recipe(load_recipe(name, [*overrides, "training.device=cuda"]))
    runs = [start_run(recipe, tmp_path / kind) for kind in ("one", "nccl")]
    train(runs[0])
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        train(runs[1], ranks=ProcessRanks())
    finally:
        dist.destroy_process_group()
    state, other = (trained({"folder": str(run.path)}) for run in runs)
    assert all(torch.allclose(value, other[key], rtol=1e-9) for key, value in state.items())
    assert runs[0].matrix == runs[1].matrix


# -- kills -----------------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """The ranks that a torchrun has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in text]


KILLS, EPOCHS = 10, 150  # of each of two tasks
LONG = [f"optimize.{group}.epochs={EPOCHS}" for group in ("peft", "head")] + ["training.checkpoint_minutes=0.002"]
IN_PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")


@pytest.fixture(scope="module")
def never_killed(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two ranks from beginning to end."""
    runs = tmp_path_factory.mktemp("whole")
    command = [*TORCHRUN, "-m", "zofc", "run", *words(["zofc/base", *LONG], tiny_weights), "--runs", str(runs)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return Run(next(runs.glob("zofc-base-*")))


def epochs_in(runs: Path) -> int:
    """Finished epochs that a run has reported so far; -1 before there is a run."""
    files = list(runs.glob("*/events.jsonl"))
    return files[0].read_text("utf-8").count('"event": "epoch"') if files else -1


@IN_PROC
@pytest.mark.parametrize("number", [0, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in range(KILLS) if n % 5)])
def test_a_killed_rank_ends_all_and_a_restart_resumes(
    tiny_weights: Path, never_killed: Run, tmp_path: Path, number: int
) -> None:
    """SIGKILL in the n-th tenth of the run, the first time as soon as there is a run, before its first checkpoint.
    All ten: pytest tests/test_ranks.py -m "slow or not slow" -k killed_rank"""
    rng = random.Random(number)
    moment = int((number + rng.random()) * 2 * EPOCHS / KILLS) if number else 0
    case = words(["zofc/base", *LONG], tiny_weights)
    start = [*TORCHRUN, "--max-restarts", "2", "-m", "zofc", "run", *case, "--runs", str(tmp_path)]
    with subprocess.Popen(start, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as torchrun:  # fmt: skip
        deadline = time.monotonic() + 200
        while epochs_in(tmp_path) < moment:
            assert time.monotonic() < deadline and torchrun.poll() is None
            time.sleep(0.01)
        os.kill(rng.choice(children(torchrun.pid)), signal.SIGKILL)
        text, _ = torchrun.communicate(timeout=200)
    assert torchrun.returncode == 0, text[-3000:]
    run = Run(next(tmp_path.glob("zofc-base-*")))
    assert run.finished and run.matrix == never_killed.matrix
    assert "exitcode: -9" in text or "SIGKILL" in text or "Signal 9" in text, text[-2000:]
    if number:
        assert any(event["event"] == "run_resumed" for event in run.events), text[-2000:]
    assert (run.path / JOURNAL_FILE).read_bytes() == (never_killed.path / JOURNAL_FILE).read_bytes()
    check = RunReplay(run.path).check()
    assert check.problem is None and check.conclusion.endswith("bit for bit")


@IN_PROC
@pytest.mark.parametrize("kind", ["SIGTERM to one rank", "Ctrl-C", "SIGKILL before the first checkpoint"])
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tiny_weights: Path, tmp_path: Path, kind: str) -> None:
    """A stop is agreed and saved, whoever was asked; the same command ends with the bits of a run that was not."""
    minutes = 1000 if kind.startswith("SIGKILL") else 0.002
    more = [f"optimize.{group}.epochs=150" for group in ("peft", "head")]
    case = words(["zofc/base", *more, f"training.checkpoint_minutes={minutes}"], tiny_weights)
    start = [*TORCHRUN, "-m", "zofc", "run", *case, "--runs"]
    whole = subprocess.run([*start, str(tmp_path / "whole")], env=environment(), capture_output=True, timeout=200)
    assert whole.returncode == 0, whole.stderr[-2000:]
    with subprocess.Popen([*start, str(tmp_path / "parts")], env=environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as torchrun:  # fmt: skip
        deadline = time.monotonic() + 100
        early = kind.startswith("SIGKILL")  # in the first task, whose end writes the first checkpoint
        while not (epochs_in(tmp_path / "parts") > 0 if early else [*(tmp_path / "parts").glob("*/checkpoint/*")]):
            assert time.monotonic() < deadline and torchrun.poll() is None
            time.sleep(0.02)
        if kind == "Ctrl-C":
            os.killpg(torchrun.pid, signal.SIGINT)
        else:
            os.kill(children(torchrun.pid)[1], signal.SIGTERM if kind.startswith("SIGTERM") else signal.SIGKILL)
        text, _ = torchrun.communicate(timeout=60)
    assert torchrun.returncode, text[-2000:]
    run = Run(next((tmp_path / "parts").glob("zofc-base-*")))
    assert not run.finished
    interrupted = any(event["event"] == "interrupted" for event in run.events)
    assert interrupted == (not kind.startswith("SIGKILL")), text[-2000:]
    assert bool(list(run.path.glob("checkpoint/*"))) == interrupted
    rest = subprocess.run([*start, str(tmp_path / "parts")], env=environment(), capture_output=True, timeout=200)
    assert rest.returncode == 0, rest.stderr[-2000:]
    one, two = (Run(next((tmp_path / name).glob("zofc-base-*"))) for name in ("whole", "parts"))
    assert two.finished and two.matrix == one.matrix
    state, other = trained({"folder": str(one.path)}), trained({"folder": str(two.path)})
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    assert (one.path / JOURNAL_FILE).read_bytes() == (two.path / JOURNAL_FILE).read_bytes()

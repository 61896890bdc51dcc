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

import pytest
import torch
import torch.distributed as dist

from zofc.model.subspace import Subspaces
from zofc.ranks import ProcessRanks, Ranks
from zofc.recipe import load_recipe
from zofc.runfolder import Run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.journal import JournalPosition, read_journal
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
    assert steps >= 20 or name in ("simplecil", "ridge", "zo-ridge")  # which train nothing, or in one task


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
    kinds = []
    for kind in ("one", "two"):
        run = Run(results[kind][name]["folder"])
        checkpoint = load_checkpoint(run)
        assert checkpoint is not None and checkpoint.progress.journal is not None
        journal = read_journal(run.path / JOURNAL_FILE, JournalPosition(*checkpoint.progress.journal))
        kinds.append([type(entry).__name__ for entry, _ in journal.entries])
    assert kinds[0] == kinds[1]


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


# -- kills -----------------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """The ranks that a torchrun has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in text]


def kills() -> range:
    """Seeds of random moments: one in tests, as many as ZOFC_KILLS says by hand."""
    return range(int(os.environ.get("ZOFC_KILLS", "1")))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("seed", kills())
def test_a_killed_rank_ends_all_and_a_restart_resumes(tiny_weights: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    case = words(["zofc/base", "optimize.peft.epochs=150", "training.checkpoint_minutes=0.002"], tiny_weights)
    start = [*TORCHRUN, "--max-restarts", "2", "-m", "zofc", "run", *case, "--runs"]
    plain = subprocess.run([sys.executable, "-m", "zofc", "run", *case, "--runs", str(tmp_path / "one")],
                           env=environment(), capture_output=True, text=True, timeout=200)  # fmt: skip
    assert plain.returncode == 0, plain.stderr
    with subprocess.Popen([*start, str(tmp_path / "two")], env=environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as torchrun:  # fmt: skip
        deadline = time.monotonic() + 100
        while not list((tmp_path / "two").glob("*/checkpoint/*")):
            assert time.monotonic() < deadline and torchrun.poll() is None
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1.5))
        os.kill(rng.choice(children(torchrun.pid)), signal.SIGKILL)
        text, _ = torchrun.communicate(timeout=150)
    assert torchrun.returncode == 0, text[-3000:]
    one, two = (Run(next((tmp_path / kind).glob("zofc-base-*"))) for kind in ("one", "two"))
    assert two.finished and two.matrix == one.matrix
    assert any(event["event"] == "run_resumed" for event in two.events), text[-2000:]

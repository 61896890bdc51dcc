"""Facts about one run in several processes: two learn what one learns, exchange few bytes, and end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rank_kills import (
    TORCHRUN,
    WholeRun,
    children,
    environment_of_ranks,
    events_in,
    kill_moments,
    kill_one,
    whole_run,
)
from waiting import DEADLINE, wait_until
from zofc.analysis.replay import RunReplay
from zofc.errors import RunError
from zofc.model.subspace import Subspaces
from zofc.ranks import ProcessRanks, Ranks, join_group
from zofc.recipe import dump_recipe, load_recipe
from zofc.runfolder import Run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.journal_records import SetStep
from zofc.runfolder.names import JOURNAL_FILE
from zofc.training.resolve import check_recipe
from zofc.training.runs import start_run, train

WORKER = Path(__file__).with_name("ranks_worker.py")
ROOT = Path(__file__).resolve().parents[1]
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
    "differs later": (["zofc/base", "training.check_ranks=5", "training.checkpoint_minutes=0.0000001"],
                      "after step 5 of task 1, parameters of rank 1 differ"),
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


def run_to_end(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment_of_ranks(), capture_output=True, text=True, timeout=DEADLINE)


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
        done = run_to_end(command)
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


# -- a group of one --------------------------------------------------------------------------------------------------


@pytest.fixture
def one_rank() -> Iterator[ProcessRanks]:
    """A process group of this process alone."""
    try:
        with join_group(dist.HashStore()) as ranks:
            yield ranks
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
def test_a_group_of_one_rank_exchanges_with_itself(one_rank: ProcessRanks, device: str) -> None:
    """Through gloo, or NCCL where the tensors are on a GPU."""
    value = torch.arange(5.0, device=device)
    assert torch.equal(one_rank.sum({"gradient": value})["gradient"], value)
    assert one_rank.sent["gradient"] == 20 and not one_rank.any(False) and one_rank.least(3) == 3
    batches = [(torch.full((2, 3), float(k), device=device), torch.tensor([k, k])) for k in range(3)]
    features = [features for features, _ in one_rank.in_order(batches, lambda images: 2 * images)]
    assert torch.equal(torch.cat(features), 2 * torch.cat([images for images, _ in batches]).cpu())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["shared", "image", "first order"])
def test_a_run_of_a_group_of_one_is_that_of_one_process(
    one_rank: ProcessRanks, tiny_weights: Path, tmp_path: Path, name: str, device: str
) -> None:
    """One rank, all of whose sums pass through gloo, or NCCL where the tensors are on a GPU."""
    recipe_name, *overrides = words(CASES[name], tiny_weights)
    recipe = check_recipe(load_recipe(recipe_name, [*overrides, f"training.device={device}"]))
    runs = [start_run(recipe, tmp_path / kind) for kind in ("one", "group")]
    train(runs[0])
    train(runs[1], ranks=one_rank)
    steps = runs[1].metrics["steps"]
    assert one_rank.sent["gradient"] > 0 and one_rank.sent["loss and hits"] >= steps * 2 * 8
    assert (one_rank.sent["coefficients"] > 0) == (name != "first order") and one_rank.sent["checksums"] > 0
    state, other = (trained({"folder": str(run.path)}) for run in runs)
    assert all(torch.allclose(value, other[key], rtol=1e-9) for key, value in state.items())
    assert runs[0].matrix == runs[1].matrix


# -- bytes -----------------------------------------------------------------------------------------------------------

EXCHANGES = """
import sys
from pathlib import Path
import torch
from torch.distributed import FileStore
from zofc.ranks import join_group

def travelled():
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])

with join_group(FileStore(sys.argv[1], 2), int(sys.argv[2]), 2) as ranks:
    kind, numbers, repeats, least = sys.argv[3], torch.ones(int(sys.argv[4])), int(sys.argv[5]), None
    batches = [(numbers, torch.tensor([k])) for k in range(3)]
    for _ in range(20):
        ranks.any(False)
        before, counted = travelled(), ranks.sent.total()
        for _ in range(repeats):
            ranks.sum({"gradient": numbers}) if kind == "sums" else list(ranks.in_order(batches, lambda values: values))
        ranks.any(False)
        found = travelled() - before, 2 * (ranks.sent.total() - counted)
        least = min(least or found, found)
    if ranks.first:
        print(*least)
"""
BYTES = {  # kind, numbers in a tensor, repeats; bytes of a rank in each; most that headers and acknowledgements add
    "sums of a megabyte": ("sums", 250_000, 4, 1_000_000, 20_000),
    "sums of four coefficients": ("sums", 4, 100, 16, 4_000),
    # the second of two has no second batch and pads; of each two types and shapes travel before
    "features of three batches": ("features", 100_000, 4, 2 * (64 + 400_000 + 64 + 8), 40_000),
}


@pytest.mark.skipif(not Path("/proc/net/dev").exists(), reason="reads the counters of Linux")
@pytest.mark.parametrize("name", BYTES)
def test_what_is_counted_is_what_travels(tmp_path: Path, name: str) -> None:
    """The bytes that leave the loopback device while two processes exchange tensors are those that both have counted,
    and little more: headers of gloo and TCP, and acknowledgements. Others may use the device at the same time, so the
    least of twenty rounds counts."""
    kind, numbers, repeats, each, overhead = BYTES[name]
    command = [sys.executable, "-c", EXCHANGES, str(tmp_path / "meet")]
    given = [kind, str(numbers), str(repeats)]
    with subprocess.Popen([*command, "1", *given], env=environment_of_ranks()) as other:
        done = run_to_end([*command, "0", *given])
        assert done.returncode == 0 == other.wait(DEADLINE), done.stderr[-2000:]
    travelled, counted = map(int, done.stdout.split())
    agreements = 2 * 8  # that a round ends
    assert counted == 2 * each * repeats + agreements
    assert counted <= travelled <= counted + overhead * repeats


# -- errors ----------------------------------------------------------------------------------------------------------

SILENT = """
import os, signal, sys, time
from pathlib import Path
from torch.distributed import FileStore
from zofc.errors import ZofcError
from zofc.ranks import join_group

folder, rank, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
(folder / f"ready {rank}").touch()
while not (folder / f"ready {1 - rank}").exists():
    time.sleep(0.01)
try:
    with join_group(FileStore(str(folder / "meet"), 2), rank, 2, minutes=0.2) as ranks:
        ranks.any(False)
        if rank:
            os.kill(os.getpid(), signal.SIGSTOP if how == "hangs" else signal.SIGKILL)
        ranks.any(False)
except ZofcError as error:
    print(error, flush=True)
    os._exit(2)
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("hangs", "rank 0 of 2 has waited 0.2 minutes for another process of this run, which hangs or is slower ("),
        ("dies", "rank 0 of 2 lost another process of this run, whose message says why, or which was killed ("),
    ],
)
def test_a_rank_that_hangs_is_told_from_one_that_is_gone(tmp_path: Path, how: str, message: str) -> None:
    command = [sys.executable, "-c", SILENT, str(tmp_path)]
    with subprocess.Popen([*command, "1", how], env=environment_of_ranks()) as other:
        try:
            done = subprocess.run(
                [*command, "0", how], env=environment_of_ranks(), capture_output=True, text=True, timeout=DEADLINE
            )
        finally:
            other.kill()
    assert done.returncode == 2 and message in done.stdout, (done.stdout, done.stderr[-2000:])
    assert ("training.rank_wait=MINUTES waits longer" in done.stdout) == (how == "hangs")
    assert "checkpoint" not in done.stdout  # of which ranks know nothing


def test_the_longest_wait_of_several_recipes_counts(
    tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zofc: Any
) -> None:
    for minutes in (3, 20):
        recipe = load_recipe("zofc/base", [f"training.rank_wait={minutes}", f"backbone.name={tiny_weights}"])
        (tmp_path / f"{minutes}.yaml").write_text(dump_recipe(recipe))
    waits = []

    def join(minutes: float) -> Any:
        waits.append(minutes)
        raise RunError("not today")

    monkeypatch.setattr("zofc.ranks.join_ranks", join)
    assert "not today" in zofc("run", str(tmp_path / "3.yaml"), str(tmp_path / "20.yaml"))[1] and waits == [20]


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("differs", "no checkpoint yet: the same command begins anew"),
        ("differs later", "last checkpoint is kept: the same command continues"),
    ],
)
def test_a_run_that_had_to_stop_says_what_is_left_of_it(results: dict[str, Any], name: str, left: str) -> None:
    error = results["two"][name]["error"]
    assert error.count("checkpoint") == 1 and left in error


def test_the_last_that_torchrun_prints_says_what_was_wrong(tmp_path: Path) -> None:
    """In its report of the processes that failed, where it would have a link to its documentation."""
    command = [*TORCHRUN, "-m", "zofc", "run", "zofc/base", "optimize.peft.lr=fast", "--runs", str(tmp_path)]
    done = run_to_end(command)
    report = done.stderr[done.stderr.index("Root Cause") :]
    assert done.returncode and "traceback : zofc" in report and "optimize.peft.lr" in report, done.stderr[-3000:]
    assert "To enable traceback" not in done.stderr and not list(tmp_path.iterdir())


# -- kills -----------------------------------------------------------------------------------------------------------


EPOCHS = 60  # of each of two tasks
LONG = [f"optimize.{group}.epochs={EPOCHS}" for group in ("peft", "head")] + ["training.checkpoint_minutes=0.002"]
IN_PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
KILLED = ROOT / "results" / "rank_kills.json"


@pytest.fixture(scope="module")
def never_killed(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A run of two ranks from beginning to end."""
    return whole_run(words(["zofc/base", *LONG], tiny_weights), tmp_path_factory.mktemp("whole"))


@IN_PROC
@pytest.mark.parametrize(("share", "rank"), sorted(kill_moments())[::4])
def test_a_killed_rank_ends_all_and_a_restart_resumes(
    tiny_weights: Path, never_killed: WholeRun, tmp_path: Path, share: float, rank: int
) -> None:
    """At three of the ten moments of `benchmarks/kills.py`, which makes all of them."""
    row = kill_one(words(["zofc/base", *LONG], tiny_weights), tmp_path, never_killed, share, rank)
    text = max(tmp_path.glob("*/log")).read_text("utf-8", "replace")
    if row["phase"] != "end of the run":  # when a rank may have ended by itself; torchrun names the one that ends first
        assert any(sign in text for sign in ("exitcode: -9", "Signal 9", "lost another process")), text[-2000:]
    assert row["matrix_equal"] and row["journal_equal"] and row["adapter_follows"], row
    assert row["resumed"] is not None or row["phase"] == "end of the run"


def test_ten_kills_of_a_rank_left_what_no_kill_leaves() -> None:
    """At moments drawn over the whole run, in processes that start as in those that train or evaluate."""
    content = json.loads(KILLED.read_text("utf-8"))
    rows = content["rows"]
    assert [(row["share"], row["rank"]) for row in rows] == kill_moments() and len(rows) == 10
    assert all(row["matrix_equal"] and row["journal_equal"] and row["adapter_follows"] for row in rows)
    assert all(row["resumed"] is not None for row in rows if row["phase"] != "end of the run")
    phases = {row["phase"] for row in rows}
    assert {row["rank"] for row in rows} == {0, 1} and {"start of the processes", "end of the run"} <= phases
    assert any(phase.startswith("training of task") for phase in phases)
    assert max(row["ended"] for row in rows) < 10


@IN_PROC
@pytest.mark.parametrize("kind", ["SIGTERM to one rank", "Ctrl-C", "SIGKILL before the first checkpoint"])
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tiny_weights: Path, tmp_path: Path, kind: str) -> None:
    """A stop is agreed and saved, whoever was asked; the same command ends with the bits of a run that was not."""
    minutes = 1000 if kind.startswith("SIGKILL") else 0.002
    more = [f"optimize.{group}.epochs=150" for group in ("peft", "head")]
    case = words(["zofc/base", *more, f"training.checkpoint_minutes={minutes}"], tiny_weights)
    start = [*TORCHRUN, "-m", "zofc", "run", *case, "--runs"]
    whole = subprocess.run(
        [*start, str(tmp_path / "whole")], env=environment_of_ranks(), capture_output=True, timeout=DEADLINE
    )
    assert whole.returncode == 0, whole.stderr[-2000:]
    parts = tmp_path / "parts"
    early = kind.startswith("SIGKILL")  # in the first task, whose end writes the first checkpoint
    with subprocess.Popen([*start, str(parts)], env=environment_of_ranks(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as torchrun:  # fmt: skip

        def under_way() -> bool:
            return any(event["event"] == ("epoch" if early else "checkpoint") for event in events_in(parts))

        wait_until(under_way, torchrun, 0.02)
        if kind == "Ctrl-C":
            os.killpg(torchrun.pid, signal.SIGINT)
        else:
            os.kill(children(torchrun.pid)[1], signal.SIGTERM if kind.startswith("SIGTERM") else signal.SIGKILL)
        text, _ = torchrun.communicate(timeout=DEADLINE)
    assert torchrun.returncode, text[-2000:]
    run = Run(next((tmp_path / "parts").glob("zofc-base-*")))
    assert not run.finished
    interrupted = any(event["event"] == "interrupted" for event in run.events)
    assert interrupted == (not kind.startswith("SIGKILL")), text[-2000:]
    assert bool(list(run.path.glob("checkpoint/*"))) == interrupted
    rest = subprocess.run(
        [*start, str(tmp_path / "parts")], env=environment_of_ranks(), capture_output=True, timeout=DEADLINE
    )
    assert rest.returncode == 0, rest.stderr[-2000:]
    one, two = (Run(next((tmp_path / name).glob("zofc-base-*"))) for name in ("whole", "parts"))
    assert two.finished and two.matrix == one.matrix
    state, other = trained({"folder": str(one.path)}), trained({"folder": str(two.path)})
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    assert (one.path / JOURNAL_FILE).read_bytes() == (two.path / JOURNAL_FILE).read_bytes()

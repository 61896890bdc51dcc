"""Facts about grids on Ray: the rows are those of the local pool, whatever happens to nodes, and either goes on where
the other stopped. The cluster is real: two nodes on this machine."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import zofc
from rank_kills import children
from waiting import DEADLINE, wait_until
from zofc import cli
from zofc.analysis.run_flatness import FlatnessSettings
from zofc.errors import Interrupted, RecipeError, RunError
from zofc.recipe import Recipe, change_recipe, dump_recipe
from zofc.report.tables import COSTS, summary_table
from zofc.runfolder import Run, open_run, read_runs
from zofc.runfolder.travel import pack_result, unpack_result
from zofc.studies import jobs, ray_node
from zofc.studies.cells import Cell, run_cell
from zofc.studies.grid import run_grid
from zofc.studies.jobs import CellRow, MeasureCost, MeasureFlatness
from zofc.studies.places import LocalPool, get_place
from zofc.studies.ray_node import MeasureShare, RunCell, do_order, gpu_share

Make = Callable[..., Recipe]
ROOT = Path(__file__).resolve().parents[1]
needs_ray = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import ray"], capture_output=True).returncode != 0,
    reason="Ray is not installed: pip install 'zofc[ray]'",
)


def cells(make: Make, *seeds: int, epochs: int = 1) -> list[Cell]:
    lengths = [f"optimize.{group}.epochs={epochs}" for group in ("peft", "head")]
    return [Cell({"row": "ZO-FC", "seed": seed}, make("zofc/base", f"seed={seed}", *lengths)) for seed in seeds]


def lasting(row: CellRow) -> CellRow:
    """What does not depend on where and when a cell was run."""
    cost = {"cost": {"parameters": row["cost"]["parameters"]}} if "cost" in row else {}
    return {key: row[key] for key in row.keys() - {"seconds", "peak_memory", "environment", "cost"}} | cost


# -- a cluster of two nodes ------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nodes have their scratch folders. Ray's own files stay where its sockets have short names."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return folder


@pytest.fixture
def cluster(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A node with a core and what Ray takes for a GPU, to which others may be added."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False})
    try:
        monkeypatch.setenv("RAY_ADDRESS", nodes.address)
        yield nodes
    finally:
        nodes.shutdown()


def begun(scratch: Path) -> list[Path]:
    """The scratch folders of cells that have closed an epoch."""
    return [path.parents[1] for path in scratch.glob("zofc-*/*/events.jsonl") if '"epoch"' in path.read_text()]


def begun_on(node: Any, scratch: Path) -> list[Path]:
    """Those of one node: its workers, which its raylet has started, have files open there."""
    opened = set()
    for raylet in node.all_processes["raylet"]:
        for pid in children(raylet.process.pid):
            with suppress(OSError):  # a worker that has ended
                opened |= {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    return [folder for folder in begun(scratch) if any(name.startswith(f"{folder}{os.sep}") for name in opened)]


def scores(runs: Path) -> list[tuple[Any, ...]]:
    """The rows of the table that `zofc report` prints of run folders, without times and memory."""
    grid = summary_table(read_runs(sorted(path.parent for path in runs.glob("*/recipe.yaml"))))
    return [row[: -len(COSTS)] for row in grid.rows]


@needs_ray
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the workers of a node in /proc")
def test_a_grid_on_ray_survives_the_loss_of_a_node_and_has_the_rows_of_the_local_pool(
    tiny_recipe: Make, tmp_path: Path, cluster: Any, scratch: Path
) -> None:
    first, second = cells(tiny_recipe, 1, 2, epochs=100)
    kept = replace(first, recipe=change_recipe(first.recipe, "training.keep_tasks=true"))
    flat = replace(kept, labels={"row": "flatness"}, job=MeasureFlatness(FlatnessSettings(images=2)))
    timed = Cell({"row": "timed"}, tiny_recipe("zofc/base"), MeasureCost(1))
    on_gpu = Cell({"row": "GPU"}, tiny_recipe("zofc/base", "seed=5", "training.device=auto"))
    lost = Cell({"row": "lost"}, tiny_recipe("zofc/base", "data.source=folder:nowhere"))
    wanted = [timed, flat, kept, second, on_gpu, lost]
    second_node, told, removed = cluster.add_node(num_cpus=1), list[str](), list[Path]()
    ended = Event()

    def remove() -> None:
        wait_until(lambda: ended.is_set() or bool(begun_on(second_node, scratch)))
        removed.extend(begun_on(second_node, scratch))
        cluster.remove_node(second_node, allow_graceful=False)

    thread = Thread(target=remove)
    thread.start()
    found = list(run_grid(wanted, tmp_path / "ray", get_place("ray", None, told.append)))
    ended.set()
    thread.join()
    assert len(removed) == 1  # the cell that the second node worked on
    assert list(scratch.glob("zofc-*")) == removed  # and left behind, as a machine does that is switched off
    assert told == ["Ray cluster of 2 nodes: 2 CPUs, 1 GPUs"]
    assert found[-1][0] is timed and found[-2][0] is flat
    rows = {str(cell): row for cell, row in found}
    here = {str(cell): row for cell, row in run_grid(wanted, tmp_path / "local")}
    assert "nowhere" in here["lost"]["failed"] and rows["lost"].pop("failed").startswith(here["lost"].pop("failed"))
    assert {name: lasting(row) for name, row in rows.items()} == {name: lasting(row) for name, row in here.items()}
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == sorted(
        path.name for path in (tmp_path / "local").iterdir()
    )
    assert scores(tmp_path / "ray") == scores(tmp_path / "local") and len(scores(tmp_path / "ray")) >= 3


GRID = """
from pathlib import Path
from zofc.recipe import load_recipe
from zofc.studies.cells import Cell
from zofc.studies.grid import collect
from zofc.studies.places import get_place

if __name__ == "__main__":
    cells = [Cell({"kind": kind}, load_recipe(f"{kind}.yaml")) for kind in ("short", "long")]
    collect(cells, Path("runs"), Path("rows.json"), {}, get_place("ray", None))
"""


@needs_ray
def test_ctrl_c_cancels_what_runs_on_ray_and_keeps_what_is_finished(
    tiny_recipe: Make, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    for kind, epochs in (("short", 1), ("long", 100000)):
        (cell,) = cells(tiny_recipe, 1, epochs=epochs)
        (tmp_path / f"{kind}.yaml").write_text(dump_recipe(change_recipe(cell.recipe, "training.threads=1")))
    (tmp_path / "grid.py").write_text(GRID)
    rows = tmp_path / "rows.json"
    process = subprocess.Popen(
        [sys.executable, "grid.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: rows.exists() and bool(begun(scratch)), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=DEADLINE)
    assert said.count("Traceback") == 1 and "Interrupted: stopped; finished cells are kept" in said, said
    assert [row["kind"] for row in json.loads(rows.read_text())["rows"]] == ["short"]
    (run,) = (tmp_path / "runs").iterdir()
    assert open_run(run).finished and not list(scratch.glob("zofc-*"))


# -- without a cluster -----------------------------------------------------------------------------------------------


@needs_ray
def test_what_is_finished_is_read_without_a_cluster(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = cells(tiny_recipe, 1, 2)
    rows = [row for _, row in run_grid(wanted, tmp_path)]
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert [row for _, row in run_grid(wanted, tmp_path, get_place("ray", None))] == rows


def test_places_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(get_place("local", None), LocalPool)
    with pytest.raises(RecipeError, match="--on: unknown place 'slurm'; local, ray, or the address"):
        get_place("slurm", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("ray", "ray://head:10001"):
        with pytest.raises(RecipeError, match=r"not installed; install the extra: pip install 'zofc\[ray\]'"):
            get_place(name, None)
    shown = CliRunner().invoke(cli.app, ["reproduce", "main-table", "--scale", "tiny", "--on", "ray"])
    assert isinstance(shown.exception, RecipeError)


def test_only_the_room_of_studies_imports_ray() -> None:
    importing = {
        path.relative_to(ROOT / "src" / "zofc").parts[0]
        for path in (ROOT / "src").rglob("*.py")
        if any(line.strip().startswith(("import ray", "from ray")) for line in path.read_text("utf-8").splitlines())
    }
    assert importing == {"studies"}


# -- what a node does ------------------------------------------------------------------------------------------------


def node_answer(version: str = zofc.__version__, order: bytes = b"") -> Any:
    from zofc.studies.ray_cluster import _function_of_nodes

    return _function_of_nodes()(version, order)


def test_a_node_with_another_version_or_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = node_answer("9.9")
    assert f"has zofc {zofc.__version__}, this machine 9.9" in said and "pip install 'zofc[ray]==9.9'" in said
    monkeypatch.setitem(sys.modules, "zofc", None)
    assert "cannot import zofc" in node_answer("9.9")


def test_an_interrupted_run_goes_to_the_node_and_comes_back_finished(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zofc.studies.ray_cluster import _files_to_send, _keep

    (cell,) = cells(tiny_recipe, 1)
    run_cell(cell, tmp_path / "local")
    real = jobs.train

    class StopsAtTask:
        """As a scheduler does that takes the node away."""

        def event(self, event: Any) -> None:
            if event["event"] == "evaluated":
                os.kill(os.getpid(), signal.SIGTERM)

        def step(self, status: Any) -> None: ...

        def close(self) -> None: ...

    def stopped(run: Run) -> Any:
        return real(run, [StopsAtTask()])

    monkeypatch.setattr(jobs, "train", stopped)
    assert do_order(pickle.dumps(RunCell(cell, {}))) is None  # to be tried again
    with pytest.raises(Interrupted):
        run_cell(cell, tmp_path / "mine")
    monkeypatch.setattr(jobs, "train", real)
    sent = _files_to_send(cell.path(tmp_path / "mine"))
    assert not cell.done(tmp_path / "mine") and "events.jsonl" in sent and ".lock" not in sent
    answer: Any = do_order(pickle.dumps(RunCell(cell, sent)))
    assert '"run_resumed"' in answer["events.jsonl"].decode()
    row, here = _keep(cell, answer, tmp_path / "mine"), run_cell(cell, tmp_path / "local")
    assert lasting(row) == lasting(here) and len(list((tmp_path / "mine").iterdir())) == 1


def test_what_is_no_result_is_not_kept_as_one(tiny_recipe: Make, tmp_path: Path) -> None:
    from zofc.studies.ray_cluster import _keep

    (cell,) = cells(tiny_recipe, 1)
    assert _keep(cell, "why", tmp_path)["failed"] == "why"
    assert "does not belong" in _keep(cell, {"../metrics.json": b"{}"}, tmp_path)["failed"]
    assert not list(tmp_path.iterdir())
    assert "no finished result" in _keep(cell, {"metrics.json": b"{}"}, tmp_path)["failed"]


def test_a_node_without_the_images_is_named(tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell({"row": "lost"}, tiny_recipe("zofc/base", "data.source=folder:nowhere"))
    monkeypatch.setenv("ZOFC_DATA", "/data")
    assert "where $ZOFC_DATA is /data: every node needs" in str(RunCell(cell, {}).do())
    monkeypatch.delenv("ZOFC_DATA")
    assert "$ZOFC_DATA is not set" in str(RunCell(cell, {}).do())


@pytest.mark.parametrize(("needed", "cells_on_it"), [(81, 1), (40, 2), (30, 3), (22, 4), (15, 6), (1, 8), (200, 1)])
def test_equal_cells_fill_a_gpu_in_the_units_that_ray_counts_in(needed: int, cells_on_it: int) -> None:
    share = gpu_share(needed * 2**30, 100 * 2**30)
    assert int(1 / share) == cells_on_it and cells_on_it * round(share * 10_000) <= 10_000


def test_the_share_of_a_gpu_is_measured_at_the_first_and_last_task(
    tiny_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    monkeypatch.setattr(ray_node, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(ray_node, "measure_cost", lambda recipe, steps, task: measured.append(task))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * 2**30, 100 * 2**30))
    assert MeasureShare(tiny_recipe("zofc/base")).do() == 0.3333 and measured == [1, 3]
    assert "nowhere" in str(MeasureShare(tiny_recipe("zofc/base", "data.source=folder:nowhere")).do())


# -- files that travel -----------------------------------------------------------------------------------------------


def test_files_arrive_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    for name in ("recipe.yaml", ".lock", "checkpoint/state.json", ".metrics.json.12.tmp"):
        (tmp_path / "run" / name).write_text(name)
    files = pack_result(tmp_path / "run")
    assert set(files) == {"recipe.yaml", "checkpoint/state.json"}
    unpack_result(files, tmp_path / "there" / "run")
    assert pack_result(tmp_path / "there" / "run") == files
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["run"]
    unpack_result({"": b"{}"}, tmp_path / "costs" / "x.cost.json")
    assert pack_result(tmp_path / "costs" / "x.cost.json") == {"": b"{}"} and pack_result(tmp_path / "none") == {}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "C:\\x", "..\\x", "\\x", ".", "a\0b"])
def test_names_that_lead_elsewhere_are_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not belong below it"):
        unpack_result({"good": b"", name: b"bad"}, tmp_path / "runs" / "run")
    assert not list(tmp_path.iterdir())


def test_a_finished_run_is_not_replaced(tiny_recipe: Make, tmp_path: Path) -> None:
    (cell,) = cells(tiny_recipe, 1)
    run_cell(cell, tmp_path)
    path = cell.path(tmp_path)
    before = pack_result(path)
    unpack_result({"recipe.yaml": b""}, path)
    assert pack_result(path) == before
    with Run(path).locked(), pytest.raises(RunError, match="another process"):
        unpack_result({"recipe.yaml": b""}, path)


# -- Slurm -----------------------------------------------------------------------------------------------------------


def test_the_batch_script_for_slurm_is_one() -> None:
    script = ROOT / "examples" / "slurm_ray.sh"
    subprocess.run(["bash", "-n", script], check=True)
    assert script.read_text() in (ROOT / "docs" / "guides" / "slurm.md").read_text("utf-8")


def test_the_batch_script_starts_a_cluster_of_all_nodes_with_one_token(tmp_path: Path) -> None:
    """With stubs for Slurm's commands, `ray` and `zofc`, each of which writes down how it was called."""
    log = tmp_path / "log"
    record = f'echo "$(basename "$0") $* $RAY_AUTH_MODE $RAY_AUTH_TOKEN ${{RAY_ADDRESS:-none}}" >> {log}'
    stubs = {
        "scontrol": "echo one; command -p sleep 0.3; echo two",  # whoever leaves after the first line breaks its pipe
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "hostname": "echo 10.0.0.1 fe80::1",
        "sleep": "exit 0",
        "ray": record,
        "zofc": f"{record}; exit 3",
    }
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ZOFC_DATA": "/data", "SLURM_JOB_NUM_NODES": "2",
                 "SLURM_JOB_NODELIST": "[one-two]", "SLURM_CPUS_PER_TASK": "4"}  # fmt: skip
    done = subprocess.run(["bash", ROOT / "examples" / "slurm_ray.sh", "main-table"], env=variables, timeout=DEADLINE)
    assert done.returncode == 3
    wait_until(lambda: len(log.read_text().splitlines()) == 3)
    called = sorted(log.read_text().splitlines())
    head = next(line for line in called if "--head" in line)
    token = head.split()[-2]
    assert len(token) == 32 and all(line.split()[-3:-1] == ["token", token] for line in called)
    assert "ray start --head --node-ip-address=10.0.0.1 --port=6379 --num-cpus=4 --num-gpus=0 --block" in head
    assert any("ray start --address=10.0.0.1:6379" in line for line in called)
    assert any(line.startswith("zofc reproduce main-table --on ray") and line.endswith(":6379") for line in called)

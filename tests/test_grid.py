"""Facts about grids of runs: finished cells are not run again, a failing one stops nothing, rows keep their order."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from waiting import DEADLINE, wait_until
from zofc.analysis.cost import Cost
from zofc.data.source import SOURCES, Source, SourceOptions, open_source
from zofc.errors import Interrupted, RunError
from zofc.recipe import Recipe, dump_recipe
from zofc.runfolder import Run, create_run, open_run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.studies import jobs
from zofc.studies.cells import Cell, run_cell
from zofc.studies.grid import collect, run_grid
from zofc.studies.jobs import RESULT_KEYS, MeasureCost
from zofc.studies.places import LocalPool, take_device
from zofc.studies.pool import Killed, in_processes

Make = Callable[..., Recipe]


def cells(make: Make, *seeds: int) -> list[Cell]:
    return [Cell({"row": "ZO-FC", "seed": seed}, make("zofc/base", f"seed={seed}")) for seed in seeds]


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers come from a server that has imported torch, where nothing depends on how they start."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["zofc.studies.grid"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: server)


def test_a_grid_keeps_labels_metrics_and_what_each_run_was_made_with(tiny_recipe: Make, tmp_path: Path) -> None:
    out, told = tmp_path / "rows.json", []
    rows = collect(cells(tiny_recipe, 1, 2), tmp_path / "runs", out, {"scale": "tiny"}, on_progress=told.append)
    written = json.loads(out.read_text())
    assert written["scale"] == "tiny" and written["rows"] == rows
    for row, seed in zip(rows, (1, 2), strict=True):
        assert (row["row"], row["seed"]) == ("ZO-FC", seed) and set(RESULT_KEYS) <= row.keys()
        assert open_run(tmp_path / "runs" / row["run"]).recipe.seed == seed
        assert "torch" in row["environment"] and str(tmp_path) not in json.dumps(row)
    assert [line[:5] for line in told] == ["[1/2]", "[2/2]"]


def test_finished_cells_are_found_again_and_the_table_is_the_same(tiny_recipe: Make, tmp_path: Path) -> None:
    wanted = cells(tiny_recipe, 1, 2)
    first = [row for _, row in run_grid(wanted[:1], tmp_path)]
    before = (tmp_path / first[0]["run"] / "events.jsonl").read_bytes()
    again = [row for _, row in run_grid(wanted, tmp_path)]
    assert again[0] == first[0] and len(again) == 2
    assert (tmp_path / first[0]["run"] / "events.jsonl").read_bytes() == before
    assert len(list(tmp_path.glob("*/recipe.yaml"))) == 2


def test_rows_of_a_result_file_are_kept_where_their_recipe_is_the_same(tiny_recipe: Make, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    first = collect(cells(tiny_recipe, 1), tmp_path / "one", out, {}, on_progress=lambda text: None)
    told: list[str] = []
    both = collect(cells(tiny_recipe, 2, 1), tmp_path / "other", out, {}, on_progress=told.append)
    assert both[1] == first[0] and both[0]["seed"] == 2 and json.loads(out.read_text())["rows"] == both
    assert len(told) == 1 and len(list((tmp_path / "other").iterdir())) == 1
    changed = [Cell({"row": "ZO-FC", "seed": 1}, tiny_recipe("zofc/base", "seed=1", "optimize.peft.lr=0.5"))]
    (row,) = collect(changed, tmp_path / "other", out, {}, on_progress=lambda text: None)
    assert row["run"] != first[0]["run"] and json.loads(out.read_text())["rows"] == [row, *both]  # none is lost
    with pytest.raises(RunError, match="other settings"):
        collect(changed, tmp_path / "other", out, {"epochs": 3}, on_progress=lambda text: None)


def test_a_cell_that_fails_is_reported_and_the_others_run(tiny_recipe: Make, tmp_path: Path) -> None:
    good = cells(tiny_recipe, 1)
    bad = Cell({"row": "missing", "seed": 1}, tiny_recipe("zofc/base", "data.source=folder:nowhere"))
    rows = collect([bad, *good], tmp_path / "runs", tmp_path / "rows.json", {}, on_progress=lambda text: None)
    assert "nowhere" in rows[0]["failed"] and rows[1]["all_classes"] >= 0
    others = cells(tiny_recipe, 2)
    collect(others, tmp_path / "runs", tmp_path / "rows.json", {}, on_progress=lambda text: None)
    kept = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(kept) == 3 and rows[0] in kept  # known to have failed until it is tried again
    mended = [Cell(bad.labels, tiny_recipe("zofc/base", "optimize.peft.lr=0.5"))]
    (row,) = collect(mended, tmp_path / "runs", tmp_path / "rows.json", {}, on_progress=lambda text: None)
    kept = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(kept) == 3 and row in kept and not any("failed" in one for one in kept)


@pytest.mark.usefixtures("quick_start")
def test_several_workers_give_the_rows_of_one(tiny_recipe: Make, tmp_path: Path) -> None:
    wanted = cells(tiny_recipe, 1, 2)
    alone = collect(wanted, tmp_path / "a", tmp_path / "a.json", {}, on_progress=lambda text: None)
    together = collect(
        wanted, tmp_path / "b", tmp_path / "b.json", {}, place=LocalPool(2), on_progress=lambda text: None
    )
    for one, other in zip(alone, together, strict=True):
        assert {key: one[key] for key in ("seed", "all_classes", "forgetting", "steps", "run")} == {
            key: other[key] for key in ("seed", "all_classes", "forgetting", "steps", "run")
        }


def test_how_many_threads_a_run_has_is_no_part_of_its_name(tiny_recipe: Make, tmp_path: Path) -> None:
    ((_, row),) = run_grid([Cell({"n": 1}, tiny_recipe("zofc/base", "training.threads=1"))], tmp_path)
    ((_, same),) = run_grid([Cell({"n": 1}, tiny_recipe("zofc/base"))], tmp_path)
    assert row["run"] == same["run"]


def test_a_run_that_another_process_is_still_saving_is_waited_for(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = cells(tiny_recipe, 1)
    folder = create_run(tmp_path / cell.name(tmp_path), cell.recipe)
    monkeypatch.setattr(jobs, "SAVE_SECONDS", 0.1)
    with folder.locked():
        assert "another process" in run_cell(cell, tmp_path)["failed"]
    monkeypatch.setattr(jobs, "SAVE_SECONDS", 20.0)
    taken = Event()

    def save() -> None:
        with folder.locked():
            taken.set()
            time.sleep(0.5)

    Thread(target=save).start()
    assert taken.wait(DEADLINE) and run_cell(cell, tmp_path)["all_classes"] >= 0


GRID = """
import sys
from pathlib import Path
from zofc.recipe import load_recipe
from zofc.studies.cells import Cell
from zofc.studies.grid import collect
from zofc.studies.places import LocalPool

if __name__ == "__main__":
    recipes = [load_recipe(f"{kind}.yaml", [f"seed={seed}"]) for seed, kind in enumerate(sys.argv[1:])]
    cells = [Cell({"seed": recipe.seed}, recipe) for recipe in recipes]
    collect(cells, Path("runs"), Path("rows.json"), {}, place=LocalPool(2), on_progress=lambda text: None)
"""


def start_grid(make: Make, folder: Path, *kinds: str, **how: Any) -> subprocess.Popen[str]:
    """Two workers at cells of these kinds, in a process of their own."""
    for kind, epochs in (("short", 1), ("long", 100000)):
        lengths = [f"optimize.{group}.epochs={epochs}" for group in ("peft", "head")]
        (folder / f"{kind}.yaml").write_text(dump_recipe(make("zofc/base", "training.threads=1", *lengths)))
    (folder / "grid.py").write_text(GRID)
    command = [sys.executable, "grid.py", *kinds]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, **how)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["asked to stop", "killed"])
@pytest.mark.parametrize(("kinds", "at_work"), [(["long"] * 4, 2), (["short", "long"], 1)], ids=["busy", "one idle"])
def test_workers_stop_with_the_process_that_began_them(
    tiny_recipe: Make, tmp_path: Path, number: int, kinds: list[str], at_work: int
) -> None:
    process = start_grid(tiny_recipe, tmp_path, *kinds)
    finished = kinds.count("short")
    wait_until(lambda: steps(tmp_path) == at_work + finished and rows_in(tmp_path / "rows.json") == finished, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE)  # the workers hold the other end: it returns when they are gone
    assert process.returncode == (-number if number == signal.SIGKILL else 1), said
    saved = [load_checkpoint(open_run(path.parent)) for path in tmp_path.glob("runs/*/recipe.yaml")]
    stopped = [found[0] for found in saved if found is not None and found[0].task_steps and not found[0].done]
    assert len(stopped) == at_work


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(
        ["ps", "-ww", "--ppid", str(process.pid), "-o", "pid=,args="], capture_output=True, text=True
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "spawn_main" in line]


def test_a_cell_whose_process_is_killed_twice_fails_and_the_others_go_on(tiny_recipe: Make, tmp_path: Path) -> None:
    process = start_grid(tiny_recipe, tmp_path, "long", "short")
    wait_until(lambda: steps(tmp_path) == 2 and rows_in(tmp_path / "rows.json") == 1, process)
    for worker in workers_of(process):  # at the long one, and idle
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: begun(tmp_path) == 3, process)
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, said
    failed, good = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert failed["failed"].startswith("its process was killed (signal 9), alone too: perhaps out of memory")
    assert good["all_classes"] >= 0


def dies(number: int, at: int, before: Path) -> int:
    """Once, or always where there is no place to remember it."""
    if number == at and not before.is_file():
        if before.parent.is_dir():
            before.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 10 * number


@pytest.mark.usefixtures("quick_start")
def test_an_item_whose_process_is_killed_is_worked_once_more_after_all_others(tmp_path: Path) -> None:
    found = list(in_processes(partial(dies, at=0, before=tmp_path / "once"), range(3), 2))
    assert sorted(found[:2]) == [(1, 10), (2, 20)] and found[2] == (0, 0)
    always = dict(in_processes(partial(dies, at=1, before=tmp_path / "nowhere" / "always"), range(3), 2))
    assert always == {0: 0, 1: Killed(-signal.SIGKILL), 2: 20}


def test_ctrl_c_while_workers_start_leaves_no_traces_of_them(tiny_recipe: Make, tmp_path: Path) -> None:
    process = start_grid(tiny_recipe, tmp_path, "long", "long", start_new_session=True)
    wait_until(lambda: len(workers_of(process)) == 2, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=DEADLINE)
    assert said.count("Traceback") == 1 and "Interrupted: stopped and saved" in said, said  # the script's own


def test_a_grid_that_is_stopped_goes_on_by_its_own_command(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(folder: Run) -> None:
        raise Interrupted("stopped and saved; continue with: zofc run --resume x")

    monkeypatch.setattr(jobs, "train", stopped)
    with pytest.raises(Interrupted, match="the same command goes on from there") as found:
        list(run_grid(cells(tiny_recipe, 2), tmp_path))
    assert "--resume" not in str(found.value)


def test_what_is_finished_is_read_without_a_process(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = cells(tiny_recipe, 1, 2)
    rows = [row for _, row in run_grid(wanted, tmp_path)]
    monkeypatch.delattr(multiprocessing, "get_context")
    assert [row for _, row in run_grid(wanted, tmp_path, place=LocalPool(2))] == rows


def begun(folder: Path) -> int:
    """How often a run was started or resumed."""
    events = "".join(path.read_text() for path in folder.glob("runs/*/events.jsonl"))
    return events.count('"run_started"') + events.count('"run_resumed"')


def rows_in(path: Path) -> int:
    return len(json.loads(path.read_text())["rows"]) if path.exists() else 0


def steps(folder: Path) -> int:
    """How many runs have closed an epoch."""
    return sum('"epoch"' in path.read_text() for path in folder.glob("runs/*/events.jsonl"))


def test_a_grid_reads_the_images_of_its_runs_once(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = SOURCES["glyphs"]

    def counted(argument: str, options: SourceOptions) -> Source:
        read.append(options.seed)
        options.notice("as it was found")
        return real(argument, options)

    monkeypatch.setitem(SOURCES, "glyphs", counted)
    wanted = [Cell({"row": name}, tiny_recipe(f"{name}/base", "seed=1")) for name in ("zofc", "simplecil")]
    rows = [row for _, row in run_grid(wanted, tmp_path)]
    assert read == [1]
    for row in rows:
        assert "as it was found" in (tmp_path / row["run"] / "events.jsonl").read_text()
    assert open_source("glyphs", SourceOptions(seed=1, notice=lambda text: None)) is not None and read == [1, 1]


@pytest.mark.usefixtures("quick_start")
def test_a_clock_is_read_with_nothing_beside_it(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, after all others, whatever the number of workers; and threads are as the recipe has them."""
    timed = Cell({"row": "timed"}, tiny_recipe("zofc/base"), MeasureCost(1))
    real, seen = jobs.measure_cost, []

    def cost(recipe: Recipe, steps: int, task: int) -> Cost:
        seen.append(recipe)
        return real(recipe, steps, task)

    monkeypatch.setattr(jobs, "measure_cost", cost)
    order = [cell for cell, _ in run_grid([timed, *cells(tiny_recipe, 1)], tmp_path, place=LocalPool(2))]
    assert order[-1] is timed and seen == [timed.recipe]


seats: list[int] = []


def sit(seat: int) -> None:
    seats.append(seat)


def seat_of(number: int) -> int:
    time.sleep(0.5)  # long enough for both to have something to do
    return seats[0]


@pytest.mark.usefixtures("quick_start")
def test_processes_have_seats_and_the_one_who_follows_takes_that_of_the_one_who_died(tmp_path: Path) -> None:
    assert set(dict(in_processes(seat_of, range(6), 2, sit)).values()) == {0, 1}
    taken = dict(in_processes(partial(sits, at=1, before=tmp_path / "once"), range(8), 2, sit))
    assert set(taken.values()) == {0, 1}


def sits(number: int, at: int, before: Path) -> int:
    dies(number, at, before)
    return seat_of(number)


def test_the_longest_cells_are_begun_first(tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(work: Any, items: Any, workers: int, sit: Any) -> Any:
        return ((number, {**cell.labels}) for number, cell in enumerate(items))

    monkeypatch.setattr("zofc.studies.places.in_processes", begun)
    queries = {1: 2, 2: 8, 3: 4}
    wanted = [Cell({"seed": seed}, tiny_recipe("zofc/base", f"seed={seed}", f"optimize.peft.queries={count}"))
              for seed, count in queries.items()]  # fmt: skip
    wanted.append(Cell({"seed": 4}, tiny_recipe("zofc/base", "data.source=folder:nowhere")))  # which will fail
    assert [cell.labels["seed"] for cell, _ in run_grid(wanted, tmp_path, place=LocalPool(2))] == [2, 3, 1, 4]


def test_workers_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for count in (0, 1, 3):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        for seat in range(5):
            take_device(seat)
    assert taken == [0, 1, 2, 0, 1]


def start_method(number: int) -> str:
    return multiprocessing.get_start_method()


def test_processes_of_a_worker_begin_as_those_of_any_other() -> None:
    """Else a run whose images are loaded by processes of its own would begin them anew, slowly, for every epoch."""
    assert dict(in_processes(start_method, [0], 1)) == {0: multiprocessing.get_start_method()}

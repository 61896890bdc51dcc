"""Facts about grids of runs: finished cells are not run again, a failing one stops nothing, rows keep their order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from zofc.analysis.cost import Cost
from zofc.recipe import Recipe
from zofc.studies import work
from zofc.studies.grid import Cell, collect, run_grid
from zofc.studies.work import KEPT, MeasureCost
from zofc.training.folder import RunFolder

Make = Callable[..., Recipe]


def cells(make: Make, *seeds: int) -> list[Cell]:
    return [Cell({"row": "ZO-FC", "seed": seed}, make("zofc/base", f"seed={seed}")) for seed in seeds]


def test_a_grid_keeps_labels_metrics_and_what_each_run_was_made_with(tiny_recipe: Make, tmp_path: Path) -> None:
    out, told = tmp_path / "rows.json", []
    rows = collect(cells(tiny_recipe, 1, 2), tmp_path / "runs", out, {"scale": "tiny"}, tell=told.append)
    written = json.loads(out.read_text())
    assert written["scale"] == "tiny" and written["rows"] == rows
    for row, seed in zip(rows, (1, 2), strict=True):
        assert (row["row"], row["seed"]) == ("ZO-FC", seed) and set(KEPT) <= row.keys()
        assert RunFolder.existing(tmp_path / "runs" / row["run"]).recipe.seed == seed
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


def test_a_cell_that_fails_is_reported_and_the_others_run(tiny_recipe: Make, tmp_path: Path) -> None:
    good = cells(tiny_recipe, 1)
    bad = Cell({"row": "missing", "seed": 1}, tiny_recipe("zofc/base", "data.source=folder:nowhere"))
    rows = collect([bad, *good], tmp_path / "runs", tmp_path / "rows.json", {}, tell=lambda text: None)
    assert "nowhere" in rows[0]["failed"] and rows[1]["all_classes"] >= 0


def test_several_workers_give_the_rows_of_one(tiny_recipe: Make, tmp_path: Path) -> None:
    wanted = cells(tiny_recipe, 1, 2, 3)
    alone = collect(wanted, tmp_path / "a", tmp_path / "a.json", {}, tell=lambda text: None)
    together = collect(wanted, tmp_path / "b", tmp_path / "b.json", {}, workers=2, tell=lambda text: None)
    for one, other in zip(alone, together, strict=True):
        assert {key: one[key] for key in ("seed", "all_classes", "forgetting", "steps", "run")} == {
            key: other[key] for key in ("seed", "all_classes", "forgetting", "steps", "run")
        }


@pytest.mark.parametrize("threads", [None, 1])
def test_how_many_threads_a_run_has_is_no_part_of_its_name(
    tiny_recipe: Make, tmp_path: Path, threads: int | None
) -> None:
    given = [] if threads is None else [f"training.threads={threads}"]
    recipe = tiny_recipe("zofc/base", *given)
    ((_, row),) = run_grid([Cell({"n": 1}, recipe)], tmp_path)
    ((_, same),) = run_grid([Cell({"n": 1}, tiny_recipe("zofc/base"))], tmp_path)
    assert row["run"] == same["run"]


def test_a_clock_is_read_with_nothing_beside_it(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, after all others, whatever the number of workers; and threads are as the recipe has them."""
    timed = Cell({"row": "timed"}, tiny_recipe("zofc/base"), MeasureCost(1))
    real, seen = work.cost, []

    def cost(recipe: Recipe, steps: int, task: int) -> Cost:
        seen.append(recipe)
        return real(recipe, steps, task)

    monkeypatch.setattr(work, "cost", cost)
    order = [cell for cell, _ in run_grid([timed, *cells(tiny_recipe, 1)], tmp_path, workers=2)]
    assert order[-1] is timed and seen == [timed.recipe]

"""scripts/rate_search.py: what is tried, with which recipes, and which learning rates are picked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rate_search import FACTORS, ROUNDS, chosen, families, grid, ranked, rows_of, stages
from zofc.studies.catalogue import STUDIES, get_study
from zofc.studies.grid import Cell, collect
from zofc.studies.scale import LIKE, get_scale


def row(head: float, module: float, accuracy: float | None, name: str = "short", seed: int = 1) -> dict[str, Any]:
    found = {"failed": "the loss became nan"} if accuracy is None else {"all_classes": accuracy}
    return {"round": name, "family": "lae-fo", "head": head, "module": module, "seed": seed, **found}


def test_pairs_stand_by_their_mean_over_seeds_not_by_the_luckiest() -> None:
    rows = [row(1, 1, 50.0), row(1, 1, 52.0, seed=2), row(10, 10, 56.0), row(10, 10, 44.0, seed=2)]
    assert ranked(rows, "short") == {"lae-fo": [(1, 1), (10, 10)]}
    assert ranked(rows[:1] + rows[2:], "short") == {"lae-fo": [(10, 10), (1, 1)]}  # the seed that both have


def test_of_equals_the_smaller_rate_comes_first_and_what_failed_last() -> None:
    rows = [row(10, 100, 50.0), row(10, 10, 50.0), row(100, 100, 60.0), row(100, 100, None, seed=2)]
    assert ranked(rows, "short") == {"lae-fo": [(10, 10), (10, 100), (100, 100)]}


def test_what_failed_is_still_known_after_the_next_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the file, as the search goes on: a pair with which a seed failed must not win by its other seeds."""

    def trained(cells: Sequence[Cell], runs: Path, workers: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
        for cell in cells:
            bad = (cell.labels["head"], cell.labels["module"], cell.labels["seed"]) == (100.0, 100.0, 2)
            found = {"failed": "nan"} if bad else {"all_classes": cell.labels["head"], "run": cell.name(runs)}
            yield cell, {**cell.labels, **found}

    monkeypatch.setattr("zofc.studies.grid.run_grid", trained)
    monkeypatch.setattr(Cell, "describe", lambda cell, row: "")
    out = tmp_path / "rates.json"
    for pairs in stages("short", ["lae-fo"], out):
        collect(grid("short", pairs, [1, 2], []), tmp_path / "runs", out, {}, on_progress=lambda text: None)
    again = grid("short", {"lae-fo": [(100.0, 100.0)]}, [3, 2], [])  # and if a second try is stopped before it
    monkeypatch.setattr("zofc.studies.grid.run_grid", lambda cells, *rest: list(trained(cells, *rest))[:1])
    collect(again, tmp_path / "runs", out, {}, on_progress=lambda text: None)
    rows = [row for row in rows_of(out) if row["seed"] < 3]
    assert [row["head"] for row in rows if "failed" in row] == [100.0] and len(rows) == 2 * 7
    assert ranked(rows, "short")["lae-fo"][0][0] == 1000.0 and ranked(rows, "short")["lae-fo"][-1] == (100.0, 100.0)


def test_seeds_that_no_two_pairs_share_are_refused() -> None:
    with pytest.raises(SystemExit, match="no seed was tried with all of"):
        ranked([row(1, 1, 50.0), row(10, 10, 60.0, seed=2)], "short")


def test_the_last_round_decides() -> None:
    rows = [row(10, 10, 50.0), row(10, 100, 60.0)]
    assert chosen(rows) == {"lae-fo": (10, 100)}
    assert chosen([*rows, row(10, 10, 30.0, "long"), row(10, 100, 20.0, "long")]) == {"lae-fo": (10, 10)}


def test_a_round_goes_on_from_what_was_best(tmp_path: Path) -> None:
    out = tmp_path / "rates.json"
    short = stages("short", ["lae-fo", "classifier-fo"], out)
    assert next(short) == {name: [(factor, factor) for factor in FACTORS] for name in ("lae-fo", "classifier-fo")}
    rows = [row(1, 1, 40.0), row(10, 10, 60.0), row(100, 100, 50.0)]
    rows += [{**one, "family": "classifier-fo"} for one in rows]
    out.write_text(json.dumps({"rows": rows}))
    assert next(short) == {"lae-fo": [(10, 1.0), (10, 100.0), (10, 1000.0)]}  # a classifier alone has no module
    assert list(short) == []
    rows += [row(10, 100, 61.0)]
    out.write_text(json.dumps({"rows": rows}))
    assert list(stages("long", ["lae-fo"], out)) == [{"lae-fo": [(10, 100), (10, 10), (100, 100)]}]


def test_every_family_that_a_study_trains_is_searched_or_has_the_rates_of_one_that_is() -> None:
    trained = {line.family for study in STUDIES.values() for line in study.lines}
    assert trained - set(families()) - set(LIKE) == {"simplecil", "ridge"}


@pytest.mark.parametrize(("study", "name"), [("inc10-table", "short"), ("main-table", "long"), ("peft-choice", "long")])
def test_the_search_runs_what_the_studies_run_at_other_rates(study: str, name: str) -> None:
    scale = get_scale("small").faster()
    settings = ["data.source=parquet:held-out"]
    cells = {
        cell.recipe.name.partition("/")[0]: cell.recipe for cell in get_study(study).cells(scale, [7], ["cifar100"], [])
    }
    asked = {family: [(10.0, 1000.0)] for family in cells if family in families()}
    assert asked
    for cell in grid(name, asked, [7], settings):
        family, recipe = str(cell.labels["family"]), cell.recipe
        theirs = cells[family]
        assert recipe.seed == 7 and recipe.data.source == "parquet:held-out" and recipe.peft == theirs.peft
        data = {"source": recipe.data.source, "classes": ROUNDS[name].classes}
        assert recipe.data == theirs.data.model_copy(update=data)
        for group, plan in recipe.optimize.items():
            own, factor = theirs.optimize[group], scale.own_rates[family][0 if group == "head" else 1]
            assert plan.lr == pytest.approx(own.lr / factor * (10 if group == "head" else 1000))
            assert plan.model_copy(update={"lr": own.lr, "min_lr": own.min_lr}) == own

"""Searched learning rates: which recipes are trained, which rate is best, how grids use it, how a search goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zofc.errors import RunError
from zofc.evidence.lines import HIGHER, LINES, PARTS, RATES, get_part, line_recipe
from zofc.evidence.parts import part_cells, part_table, run_part
from zofc.evidence.rates import best_rates, rates_table, scan_cells, search_rates
from zofc.evidence.recipe_rates import RATES_PATH, rates_text
from zofc.evidence.rows import EARLIER, result_rows
from zofc.recipe import load_recipe
from zofc.recipe.parse import read_text
from zofc.runfolder.identity import recipe_digest

SMALL = (
    "data.source=glyphs", "data.classes=4", "data.increment=2", "data.per_class=3", "data.test_per_class=2",
    "backbone.name=embedded", "training.device=cpu", "training.workers=0", "optimize.head.epochs=1",
)  # fmt: skip


def row(rate: float, accuracy: float | None, seed: int = 1, line: str = "zofc", head: float = 0.1) -> dict[str, Any]:
    scores = {"failed": "nan"} if accuracy is None else {"all_classes": accuracy, "forgetting": 8.0}
    return {"line": LINES[line].title, "rate": rate, "head": head, "seed": seed, **scores}


def test_the_best_rate_is_the_best_on_average_over_shared_seeds() -> None:
    rows = [row(0.01, 50.0), row(0.01, 52.0, 2), row(0.03, 56.0), row(0.03, 44.0, 2), row(0.01, 90.0, 3)]
    assert best_rates(rows) == {"ZO-FC": {"peft": 0.01, "head": 0.1}}


def test_of_equals_the_smaller_rate_is_best_and_what_failed_never() -> None:
    rows = [row(0.03, 50.0), row(0.01, 50.0), row(0.1, 60.0), row(0.1, None, 2)]
    assert best_rates(rows)["ZO-FC"]["peft"] == 0.01
    assert best_rates([row(0.1, None)]) == {}


def test_rates_without_a_shared_seed_are_not_compared() -> None:
    with pytest.raises(RunError, match=r"ZO-FC: no seed was run at all of its rates; give the same --seeds"):
        best_rates([row(0.01, 50.0), row(0.03, 50.0, 2)])


def test_a_best_rate_at_the_end_of_its_range_is_marked() -> None:
    rows = [row(0.001, 50.0), row(0.01, 60.0), row(0.1, None), *(row(rate, rate, line="aper-fo") for rate in RATES)]
    zofc, aper = rates_table(rows).rows
    assert zofc == ("ZO-FC", "", "50.0 / 8.0", "", "60.0 / 8.0", "", "failed", "0.01", "0.1", "")
    assert aper[-3:] == ("0.1", "0.1", "largest tried")


def test_a_scan_changes_one_rate_and_takes_the_classifiers_from_its_own_search() -> None:
    known = best_rates([row(0.3, 70.0, line="classifier", head=0.3), row(0.1, 60.0, line="classifier", head=0.1)])
    cells = scan_cells(["zofc", "adapter-fo", "aper-zo"], [], [7], ["data.per_class=50"], known)
    assert len(cells) == 3 * len(RATES)
    for cell in cells:
        plans, rate = cell.recipe.optimize, cell.labels["rate"]
        assert plans["peft"].lr == rate and cell.recipe.seed == 7 and cell.recipe.data.per_class == 50
        assert plans["head"].lr == (rate if cell.labels["line"] == "APER Adapter, ZO" else 0.3)
        assert plans["head"].lr == cell.labels["head"]
        assert cell.recipe.training.precision == "bf16"
        assert all(plan.estimator == "forward_gradient" for plan in plans.values() if plan.order == "zeroth")
    (first, *_) = scan_cells(["zofc"], [], [7], [], {})
    assert first.labels["head"] == 0.01  # the recipe's, where no search has been made
    assert [cell.labels["head"] for cell in scan_cells(["classifier"], [], [1], [], {})] == list(HIGHER)


def test_a_schedule_ends_at_the_same_share_of_a_searched_rate() -> None:
    plan = line_recipe(LINES["adapter-fo"], "cifar100-inc10", 1, {"peft": 0.1}).optimize["peft"]
    assert (plan.lr, plan.schedule) == (0.1, "cosine") and plan.min_lr == pytest.approx(1e-4)


def test_a_hybrid_trains_its_classifier_as_the_first_order_row_does() -> None:
    plans = {name: line_recipe(LINES[f"lae-{name}"], "cifar100-inc10", 1).optimize for name in ("fo", "zo", "hybrid")}
    assert plans["hybrid"] == {"head": plans["fo"]["head"], "peft": plans["zo"]["peft"]}


def test_a_grid_takes_searched_rates_and_names_the_search_that_is_missing() -> None:
    rows = [row(0.003, 50.0), row(0.3, 50.0, line="classifier", head=0.3)]
    part = get_part("b")
    wanted = ["simplecil", "zofc", "zofc-wide", "classifier"]
    cells = part_cells(part, wanted, [1, 2], [], best_rates(rows))
    assert [cell.labels["seed"] for cell in cells] == [1] * 8 + [2] * 8
    rates = [{name: plan.lr for name, plan in cell.recipe.optimize.items()} for cell in cells[:4]]
    assert rates == [{}, {"head": 0.1, "peft": 0.003}, {"head": 0.1, "peft": 0.003}, {"head": 0.3}]
    assert cells[2].recipe.method.readout == "ridge" and cells[2].recipe.sections["ridge"]["projection"] == 8192
    assert cells[0].recipe.data.per_class == 100 and cells[4].recipe.data.increment == 5
    with pytest.raises(RunError, match=r"no finished row of 'APER Adapter, FO'; search aper-fo first"):
        part_cells(part, ["ranpac"], [1], [], best_rates(rows))


@pytest.mark.parametrize("name", PARTS)
def test_every_part_has_recipes_for_all_its_cells_and_titles_that_differ(name: str) -> None:
    cells = part_cells(PARTS[name], PARTS[name].lines, [1], [], None)
    assert {cell.recipe.data.increment for cell in cells} == {5, 10} if name == "b" else {10}
    assert len({(cell.labels["line"], cell.labels["setting"]) for cell in cells}) == len(cells)


def test_recipes_take_the_rates_that_the_committed_searches_found() -> None:
    """Else: python -m zofc.evidence recipe-rates."""
    root = Path(__file__).resolve().parents[1]
    assert (root / RATES_PATH).read_text("utf-8") == rates_text(root)


# -- the committed rows ----------------------------------------------------------------------------------------------

RESULTS = Path(__file__).resolve().parents[1] / "results" / "dinov2s"
BACKBONE = ("backbone.name=backbones/vit_small_patch14_dinov2.safetensors", "backbone.image_size=224")
WITHOUT_LIMIT = ("optimize.peft.steps=null", "optimize.head.steps=null")
STALE = {  # rows that ZO-Ridge's recipe made before its first task ended after 420 steps, to be run again
    ("d", LINES[line].title, "pacs-styles") for line in ("zo-ridge", "zo-ridge-64")
}  # fmt: skip


def committed_cells(name: str, changes: tuple[str, ...] = ()) -> dict[tuple[Any, ...], str]:
    """The names that the runs of a part have now."""
    known = best_rates(result_rows(RESULTS / "rates.json"))
    lines = {line.title: name for name, line in LINES.items()}
    made = [lines[title] for title in dict.fromkeys(row["line"] for row in result_rows(RESULTS / f"{name}.json"))]
    cells = part_cells(PARTS[name], made, [1993, 1994, 1995], [*BACKBONE, *changes], known)
    return {tuple(cell.labels.values()): str(cell.recipe.name.replace("/", "-") + "-" + recipe_digest(cell.recipe))
            for cell in cells}  # fmt: skip


@pytest.mark.parametrize("name", ["b", "c", "d", "f", "f-curvature"])
def test_committed_rows_are_of_the_recipes_as_they_are_so_that_a_grid_that_goes_on_trains_none_again(name: str) -> None:
    """A recipe that changes makes its rows stale: list them here, mark them with `earlier_recipe`, run them again."""
    names, stale = committed_cells(name), set()
    for row in result_rows(RESULTS / f"{name}.json"):
        if EARLIER in row:
            stale.add((name, row["line"], row["setting"]))
        assert (row["run"] == names[row["line"], row["setting"], row["seed"]]) is (EARLIER not in row), row["run"]
    assert stale == {entry for entry in STALE if entry[0] == name}


def test_committed_searches_are_of_the_recipes_as_they_are() -> None:
    rows = result_rows(RESULTS / "rates.json")
    known, lines = best_rates(rows), {line.title: name for name, line in LINES.items()}
    images = ["data.per_class=50", "data.test_per_class=50", *BACKBONE]
    for row in rows:
        (cell,) = scan_cells([lines[row["line"]]], [row["rate"]], [row["seed"]], images, known)
        assert row["run"] == cell.name(Path("runs"))


@pytest.mark.parametrize("name", ["b", "d"])
def test_renamed_rows_were_trained_without_the_limit_and_stay_below_it(name: str) -> None:
    before, now = committed_cells(name, WITHOUT_LIMIT), committed_cells(name)
    renamed = [row for row in result_rows(RESULTS / f"{name}.json") if "renamed_from" in row]
    assert len(renamed) == {"b": 12, "d": 6}[name]
    for row in renamed:
        key = row["line"], row["setting"], row["seed"]
        assert row["renamed_from"] == before[key] and row["run"] == now[key]
        assert row["steps"] <= 420 == load_recipe("zo-ridge/cifar100-inc10").optimize["peft"].steps


def test_the_rows_of_seed_1993_are_those_of_an_independent_run() -> None:
    """79.6 ± 0.3 and 85.6 ± 0.5 %, with all images of CIFAR-100."""
    rows = {row["line"]: row["all_classes"] for row in result_rows(RESULTS / "c.json") if row["seed"] == 1993}
    assert rows["SimpleCIL"] == pytest.approx(79.6, abs=0.3)
    assert rows[LINES["ridge-wide"].title] == pytest.approx(85.6, abs=0.5)


# -- searches --------------------------------------------------------------------------------------------------------


def test_a_search_on_other_images_is_refused(tmp_path: Path) -> None:
    mixed = [{**row(rate, 50.0), "data": {"cifar100": f"sha256:{rate}"}} for rate in (0.01, 0.03)]
    with pytest.raises(RunError, match="a search on different images"):
        best_rates(mixed)
    out, runs = tmp_path / "rates.json", tmp_path / "runs"
    search_rates(["classifier"], [0.1], [1], SMALL, out, runs)
    whole = json.loads(out.read_text("utf-8"))
    assert whole["rows"][0]["data"]
    whole["rows"][0]["data"] = {"glyphs": "others"}
    out.write_text(json.dumps(whole), encoding="utf-8")
    search_rates(["classifier"], [0.1], [1], SMALL, out, runs)  # there is nothing to train
    with pytest.raises(RunError, match=r"rates.json: its rows were searched on other images .* set ZOFC_DATA"):
        search_rates(["classifier"], [0.1, 1.0], [1], SMALL, out, runs)
    assert len(result_rows(out)) == 1


def test_a_search_is_packaged_by_backbone_and_family(tmp_path: Path) -> None:
    path = tmp_path / "results" / "x" / "rates.json"
    path.parent.mkdir(parents=True)
    rows = [row(0.003, 50.0), row(0.01, 60.0, line="zofc-image"), row(0.3, 50.0, line="classifier", head=0.3)]
    rows += [row(0.1, 50.0, line=name) for name in ("lae-hybrid", "l2p-hybrid", "lae-fo-released")]
    about = {"setting": "cifar100-inc10", "changes": ["data.per_class=50", "backbone.name=a/vit_x.safetensors"]}
    path.write_text(json.dumps({**about, "rows": rows}), encoding="utf-8")
    packaged = read_text(rates_text(tmp_path), "").values["vit_x"]
    assert packaged == {
        "classifier-fo": {"head": 0.3},
        "lae-hybrid": {"head": 0.1, "peft": 0.1},
        "zofc-image": {"head": 0.1, "peft": 0.01},
        **{family: {"head": 0.1, "peft": 0.003} for family in ("prototypes", "zofc", "zofc-noaug")},
    }
    path.write_text(json.dumps({"setting": "cifar100-inc10", "rows": rows}), encoding="utf-8")
    with pytest.raises(RunError, match="the search does not say on which backbone"):
        rates_text(tmp_path)


def test_a_search_trains_what_is_new_and_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runs = tmp_path / "results" / "rates.json", tmp_path / "runs"
    search_rates(["classifier"], [0.1], [1], SMALL, out, runs)
    grid = search_rates(["classifier", "zofc-image"], [0.1, 1.0], [1], SMALL, out, runs)
    head = float(grid.rows[0][-2])
    done = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in done] == [
        "[1/1] Learnable Cls., FO 0.1 0.1 1", "[2/2] Learnable Cls., FO 1.0 1.0 1",
        *(f"[{n}/2] ZO-FC, one direction per image {rate} {head} 1" for n, rate in ((1, 0.1), (2, 1.0))),
    ]  # fmt: skip
    rows = result_rows(out)
    assert len(rows) == 4 and all(0 <= row["all_classes"] <= 100 for row in rows)
    assert [row[0] for row in grid.rows] == ["Learnable Cls., FO", "ZO-FC, one direction per image"]
    with pytest.raises(RunError, match="other settings"):
        search_rates(["classifier"], [0.1], [1], [*SMALL, "data.per_class=2"], out, runs)


def test_a_part_that_measures_its_runs_keeps_one_row_for_each(tmp_path: Path) -> None:
    changes = [change for change in SMALL if "head" not in change]
    for _ in range(2):  # the second only reads
        run_part(PARTS["f"], ["adapter-fo"], [1], [*changes, "optimize.peft.epochs=1", "optimize.head.epochs=1"],
                 None, tmp_path / "f.json", tmp_path / "runs")  # fmt: skip
    (row,) = result_rows(tmp_path / "f.json")
    assert row["setting"] == "cifar100-inc10, 100 images a class" and row["flatness"]["peft"][-1][0] == 2


def test_a_table_of_a_grid_names_what_failed() -> None:
    rows = [{"line": "ZO-FC", "setting": "cifar100-inc10", "seed": seed, "all_classes": 60.0 + seed, "forgetting": None}
            for seed in (1, 3)]  # fmt: skip
    rows.append({"line": "EASE, FO", "setting": "cifar100-inc10", "seed": 1, "failed": "out of memory"})
    grid = part_table(rows)
    assert grid.rows == (("ZO-FC", "62.0 ± 1.4", "—"), ("EASE, FO", "—", "—"))
    assert grid.warnings == ("EASE, FO, cifar100-inc10, seed 1 failed: out of memory",)

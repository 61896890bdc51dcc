"""Facts about studies: what they run, what they print beside it, and that they can be stopped and started again."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zofc import paper
from zofc.cli import app
from zofc.errors import RecipeError
from zofc.recipe import load_recipe, recipe_names
from zofc.report.tables import Grid
from zofc.studies import figures, reproduce, tables
from zofc.studies.catalogue import DATASETS, STUDIES, changed, get_study
from zofc.studies.scale import SCALES, get_scale
from zofc.training.resolve import check_recipe

PAPER = get_scale("paper")


def plan(tmp_path: Path, tiny_weights: Path, *names: str, seeds: tuple[int, ...] = (1,)) -> reproduce.Plan:
    """Studies at a scale that takes seconds."""
    least = (
        f"backbone.name={tiny_weights}", "data.source=glyphs:clean", "data.classes=4", "data.per_class=4",
        "data.test_per_class=2", "peft.blocks=first 2", "training.device=cpu",
    )  # fmt: skip
    studies = tuple(get_study(name) for name in names)
    return reproduce.Plan(studies, get_scale("tiny"), seeds, ("cifar100",), least, tmp_path / "runs")


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_at_the_papers_scale_a_study_runs_the_shipped_recipes(study: object) -> None:
    assert isinstance(study, type(get_study("main-table")))
    cells = study.cells(PAPER, [1993], DATASETS, [])
    assert cells
    for cell in cells:
        check_recipe(cell.recipe)
        line = next(line for line in study.lines if line.title == cell.labels["line"])
        assert f"{line.family}/{cell.labels['setting']}" in recipe_names()
        if not line.changes:
            assert cell.recipe == load_recipe(f"{line.family}/{cell.labels['setting']}")


def test_every_printed_number_of_the_accuracy_tables_has_a_cell_beside_it() -> None:
    names = {"main": "main-table", "inc10": "inc10-table", "queries": "query-ablation",
             "classifiers": "classifier-ablation", "placement": "placement-ablation",
             "augmentation": "augmentation-ablation", "prompt-epochs": "prompt-epochs"}  # fmt: skip
    for table, name in names.items():
        study = get_study(name)
        cells = {(c.labels["line"], c.labels["setting"]) for c in study.cells(PAPER, [1993], DATASETS, [])}
        for row, columns in paper.tables()[table]["rows"].items():
            line = next(line for line in study.lines if line.printed == row)
            for setting, printed in columns.items():
                assert (line.title, setting) in cells, f"{table}: {row}, {setting}"
                assert study.printed(line, setting)["all_classes"] == printed["last"]


def test_the_query_ablation_changes_the_number_of_queries_and_nothing_else() -> None:
    cells = get_study("query-ablation").cells(PAPER, [1993], ("cifar100",), [])
    plain = load_recipe("zofc/cifar100-inc5")
    assert [cell.recipe.optimize["peft"].queries for cell in cells] == [1, 2, 4, 8, 16, 32, 64]
    assert cells[2].recipe == plain


@pytest.mark.parametrize("name", [name for name in SCALES if name != "paper"])
def test_a_scaled_recipe_is_valid_and_carries_no_printed_number(name: str) -> None:
    for cell in get_study("main-table").cells(get_scale(name), [1993], DATASETS, []):
        check_recipe(cell.recipe)
        assert cell.recipe.paper is None
        assert cell.recipe.data.per_class == get_scale(name).per_class
        for group, group_plan in load_recipe(cell.recipe.name).optimize.items():
            scaled = cell.recipe.optimize[group]
            assert scaled.epochs == max(1, round(get_scale(name).epochs * group_plan.epochs))
            assert scaled.start < scaled.epochs and scaled.lr == pytest.approx(10 * group_plan.lr)


def test_changes_lie_over_the_scale_and_are_checked() -> None:
    recipe = load_recipe("zofc/cifar100-inc5")
    assert changed(recipe, ["data.per_class=3"]).data.per_class == 3
    assert changed(recipe, []) is recipe
    with pytest.raises(RecipeError, match="per_clas"):
        changed(recipe, ["data.per_clas=3"])


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'main-table'"):
        get_study("main-tabel")
    with pytest.raises(RecipeError, match="did you mean 'tiny'"):
        get_scale("tny")


def test_a_study_that_was_stopped_gives_the_same_table_and_shared_runs_are_run_once(
    tmp_path: Path, tiny_weights: Path
) -> None:
    whole = plan(tmp_path / "a", tiny_weights, "placement-ablation", "augmentation-ablation")
    assert len(whole.distinct()) == 3  # ZO-FC is in both
    told: list[str] = []
    tables_of = reproduce.run(whole, tmp_path / "out", 1, told.append)
    assert len(told) == 3 and not whole.open()
    part = plan(tmp_path / "b", tiny_weights, "placement-ablation")
    reproduce.run(part, tmp_path / "part", 1, lambda text: None)
    later = plan(tmp_path / "b", tiny_weights, "placement-ablation", "augmentation-ablation")
    assert len(later.open()) == 1
    again = reproduce.run(later, tmp_path / "later", 1, lambda text: None)
    assert again == tables_of
    for name in ("placement-ablation", "augmentation-ablation"):
        for form in ("md", "csv", "tex"):
            first, second = (tmp_path / place / name / f"table.{form}" for place in ("out", "later"))
            assert first.read_bytes() == second.read_bytes()
    rows = json.loads((tmp_path / "out" / "placement-ablation" / "rows.json").read_text())
    assert rows["scale"] == "tiny" and "glyphs" in rows["says"] and len(rows["rows"]) == 2
    assert "[88.39]" in (tmp_path / "out" / "placement-ablation" / "table.md").read_text()


def test_a_failed_cell_is_a_warning_below_the_table() -> None:
    study = get_study("placement-ablation")
    good = {"line": "ZO-FC", "setting": "cifar100-inc5", "seed": 1, "average_incremental": 50.0, "all_classes": 40.0,
            "forgetting": 5.0, "peak_memory": 1, "steps": 3}  # fmt: skip
    bad = {"line": "FO adapter + ZO Cls.", "setting": "cifar100-inc5", "seed": 1, "failed": "no images"}
    grid = tables.table(
        study, get_scale("tiny"), [good, {**good, "seed": 2, "all_classes": 42.0}, bad], ["cifar100-inc5"]
    )
    assert grid.rows[0][2] == "41.00 ± 1.41 [83.34]"
    assert grid.warnings == ("FO adapter + ZO Cls., cifar100-inc5, seed 1 failed: no images",)
    assert list(csv.reader(io.StringIO(tables.as_csv(grid))))[1][0] == "ZO-FC"
    text = tables.as_latex(grid)
    assert r"41.00 $\pm$ 1.41 [83.34]" in text and text.count("&") == 3 * (1 + len(grid.rows)) and "%" in text
    assert r"\%" in tables.as_latex(Grid(("a & b", "50 %"), (("x_y", "1"),), "t"))


def test_figures_are_drawn_in_every_format(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = plan(tmp_path, tiny_weights, "tradeoff")
    lines = tuple(line for line in chosen.studies[0].lines if line.family in ("adapter-fo", "zofc"))
    few = [type(study)(study.name, study.title, study.shows, study.settings, lines) for study in
           (chosen.studies[0], get_study("accuracy-trends"))]  # fmt: skip
    both = reproduce.Plan(tuple(few), chosen.scale, (1, 2), chosen.datasets, chosen.changes, chosen.runs)
    reproduce.run(both, tmp_path / "out", 1, lambda text: None)
    for study in few:
        for form in figures.FORMATS:
            path = tmp_path / "out" / study.name / f"cifar100-inc5.{form}"
            assert path.stat().st_size > 5000
    assert not list((tmp_path / "out").rglob(".*"))
    page = (tmp_path / "out" / "tradeoff" / "cifar100-inc5.html").read_text()
    assert "peak memory of a training step (MiB)" in page and "scale tiny" in page


def test_the_command_shows_its_plan_and_refuses_what_it_does_not_know(tmp_path: Path, tiny_weights: Path) -> None:
    words = ["reproduce", "placement-ablation", "--scale", "tiny", "--dataset", "cifar100", "--runs", str(tmp_path),
             "--dry-run", *plan(tmp_path, tiny_weights, "main-table").changes]  # fmt: skip
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "2 runs, 0 finished" in shown.output and "about" in shown.output and not list(tmp_path.iterdir())
    assert isinstance(CliRunner().invoke(app, ["reproduce", "nothing"]).exception, RecipeError)
    wrong = CliRunner().invoke(app, ["reproduce", "main-table", "--dataset", "cifar10"])
    assert isinstance(wrong.exception, RecipeError) and "cifar100" in str(wrong.exception)


def test_what_cannot_be_estimated_is_said() -> None:
    cells = get_study("placement-ablation").cells(PAPER, [1993], ("cifar100",), ["data.source=folder:nowhere",
            "backbone.name=embedded"])  # fmt: skip
    seconds, unknown = reproduce.estimate(cells)
    assert seconds == 0 and len(unknown) == 2 and "nowhere" in unknown[0]

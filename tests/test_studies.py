"""Facts about studies: what they run, what they print beside it, and that they can be stopped and started again."""

from __future__ import annotations

import csv
import io
import json
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from zofc import __version__, paper
from zofc.analysis.cost import measure_cost
from zofc.cli import app
from zofc.errors import RecipeError, RunError
from zofc.methods import complete_recipe
from zofc.recipe import Recipe, change_recipe, files, load_recipe, recipe_names
from zofc.report.draw_matplotlib import picture
from zofc.report.draw_plotly import own_page
from zofc.report.drawing import Axis, Chart, Curve, CurveStyle, wrap_title
from zofc.report.grid import Grid
from zofc.runfolder import Run, open_run
from zofc.studies import export, figures, jobs, reproduce, tables
from zofc.studies import forecast as forecasts
from zofc.studies.catalogue import STUDIES, Study, get_study
from zofc.studies.displays import ACCURACY_COLUMNS, DISPLAYS
from zofc.studies.forecast import forecast
from zofc.studies.places import HERE
from zofc.studies.scale import LIKE, SCALES, SMALL_RATES, get_scale
from zofc.studies.settings import OUR_SETTINGS, PAPERS, SETTINGS
from zofc.studies.tables import describe_reasons
from zofc.training.resolve import build_stream, check_recipe

PAPER = get_scale("paper")


def plan(tmp_path: Path, tiny_weights: Path, *names: str, seeds: tuple[int, ...] = (1,)) -> reproduce.Plan:
    """Studies at a scale that takes seconds."""
    least = (
        f"backbone.name={tiny_weights}", "data.source=glyphs:clean", "data.classes=4", "data.per_class=4",
        "data.test_per_class=2", "peft.blocks=first 2", "training.device=cpu",
    )  # fmt: skip
    studies = tuple(get_study(name) for name in names)
    return reproduce.Plan(studies, get_scale("tiny"), seeds, ("cifar100",), least, tmp_path / "runs")


def of(study: Study, *titles: str) -> Study:
    """A study with some of its lines."""
    return replace(study, lines=tuple(line for line in study.lines if line.title in titles))


def done(plan: reproduce.Plan, out: Path) -> dict[str, Grid]:
    return reproduce.run_plan(plan, out, HERE, lambda text: None)


def stopping(monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> None:
    """Stop the process, as Ctrl-C does, when `work` calls this for the given time."""
    real: Callable[..., Any] = getattr(jobs, name)
    calls = count(1)

    def call(*args: Any) -> Any:
        if next(calls) == at:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(jobs, name, call)


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_at_the_papers_scale_a_study_runs_the_shipped_recipes(study: object) -> None:
    assert isinstance(study, type(get_study("main-table")))
    cells = study.cells(PAPER, [1993], PAPERS, [])
    assert cells
    for cell in cells:
        check_recipe(cell.recipe)
        line = next(line for line in study.lines if line.title == cell.labels["line"])
        assert f"{line.family}/{cell.labels['setting']}" in recipe_names()
        if not line.changes:
            assert cell.recipe == complete_recipe(load_recipe(f"{line.family}/{cell.labels['setting']}"))


def test_every_printed_number_of_the_accuracy_tables_has_a_cell_beside_it() -> None:
    names = {"main": "main-table", "inc10": "inc10-table", "queries": "query-ablation",
             "classifiers": "classifier-ablation", "placement": "placement-ablation",
             "augmentation": "augmentation-ablation", "prompt-epochs": "prompt-epochs"}  # fmt: skip
    for table, name in names.items():
        study = get_study(name)
        cells = {(c.labels["line"], c.labels["setting"]) for c in study.cells(PAPER, [1993], PAPERS, [])}
        for row, columns in paper.tables()[table]["rows"].items():
            line = next(line for line in study.lines if line.printed == row)
            for setting, printed in columns.items():
                assert (line.title, setting) in cells, f"{table}: {row}, {setting}"
                assert study.printed(line, setting)["all_classes"] == printed["last"]


def test_the_query_ablation_changes_the_number_of_queries_and_nothing_else() -> None:
    cells = get_study("query-ablation").cells(PAPER, [1993], ("cifar100",), [])
    plain = load_recipe("zofc/cifar100-inc5")
    assert [cell.recipe.optimize["peft"].queries for cell in cells] == [1, 2, 4, 8, 16, 32, 64]
    assert cells[2].recipe == complete_recipe(plain)


@pytest.mark.parametrize("name", [name for name in SCALES if name != "paper"])
def test_a_scaled_recipe_is_valid_and_carries_no_printed_number(name: str) -> None:
    scale = get_scale(name)
    for cell in get_study("main-table").cells(scale, [1993], PAPERS, []):
        check_recipe(cell.recipe)
        assert cell.recipe.paper is None
        assert f"data.per_class={cell.recipe.data.per_class}" in scale.changes
        for group, group_plan in load_recipe(cell.recipe.name).optimize.items():
            head, module = scale.own_rates.get(cell.recipe.name.split("/")[0], (10, 10))
            scaled, factor = cell.recipe.optimize[group], head if group == "head" else module
            assert scaled.epochs == max(scale.least_epochs, round(scale.epochs * group_plan.epochs))
            assert scaled.start < scaled.epochs and scaled.lr == pytest.approx(factor * group_plan.lr)


def test_changes_lie_over_the_scale() -> None:
    (cell, *_) = get_study("query-ablation").cells(get_scale("small"), [7], ["cifar100"], ["data.per_class=3"])
    assert (cell.recipe.data.per_class, cell.recipe.data.test_per_class, cell.recipe.seed) == (3, 50, 7)


def test_a_plan_is_made_of_files_that_are_each_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = reproduce.Plan(tuple(STUDIES.values()), get_scale("small"), (1,), PAPERS, ("data.per_class=3",), Path())
    before = list(chosen.distinct)
    monkeypatch.delattr(files, "read_text")
    assert list(replace(chosen).distinct) == before


@pytest.mark.parametrize("setting", OUR_SETTINGS)
@pytest.mark.parametrize("scale", ["paper", "small", "tiny"])
def test_our_own_columns_take_the_recipes_to_other_data(setting: str, scale: str) -> None:
    there = SETTINGS[setting]
    cells = get_study("main-table").cells(get_scale(scale), [1], [there.dataset], [])
    mine = [cell.recipe for cell in cells if cell.labels["setting"] == setting]
    left_out = [line for lines in get_study("main-table").left_out(setting).values() for line in lines]
    assert len(mine) + len(left_out) == len(get_study("main-table").lines)
    assert len(left_out) == (5 if setting == "pacs-domains" else 0)
    for recipe in mine:
        check_recipe(recipe)
        assert (scale == "tiny") == recipe.data.source.startswith("glyphs")
        assert f"data.by={recipe.data.by}" in (*there.changes, "data.by=class")
    if scale == "tiny":
        stream = build_stream(mine[0], lambda text: None)
        expected = {"caltech101-inc10": 2, "pacs-styles": 2, "pacs-pooled": 4, "pacs-domains": 2}
        assert len(stream.tasks) == expected[setting]


def test_the_papers_data_sets_are_taken_unless_others_are_asked_for(tmp_path: Path) -> None:
    def listed(*words: str) -> str:
        command = ["reproduce", "main-table", "--scale", "tiny", "--runs", str(tmp_path), "--dry-run", *words]
        return CliRunner().invoke(app, command).output

    assert "domainnet-inc69" in listed() and "57 runs" in listed()
    assert "71 runs" in listed("--dataset", "pacs", "--dataset", "caltech101")


def test_several_studies_are_one_plan_whose_cells_are_worked_once(tmp_path: Path) -> None:
    def told(*words: str) -> str:
        command = [
            "reproduce",
            *words,
            "--scale",
            "tiny",
            "--dataset",
            "cifar100",
            "--runs",
            str(tmp_path),
            "--dry-run",
        ]
        found = CliRunner().invoke(app, command)
        return f"{found.output}{found.exception or ''}"

    assert told("placement-ablation").startswith("2 runs")
    assert told("augmentation-ablation", "training.batch_size=9") != told("augmentation-ablation")
    both = told("placement-ablation", "augmentation-ablation", "placement-ablation")
    assert both.startswith("3 runs") and "ZO-FC w/o aug" in both and "FO adapter + ZO Cls." in both
    assert "which table or figure?" in told("seed=5") and "did you mean" in told("placement-ablation", "main-tabel")


def test_a_study_without_a_column_on_the_data_is_refused_and_left_out_of_all() -> None:
    with pytest.raises(RecipeError, match="query-ablation has no column on pacs; it has cifar100, imagenet-r"):
        reproduce.studies_on([get_study("query-ablation")], ["pacs"])
    assert [study.name for study in reproduce.studies_on(list(STUDIES.values()), ["pacs"])] == ["main-table"]


def test_small_rates_are_those_that_were_best_on_other_images() -> None:
    rows = json.loads((Path(__file__).parents[1] / "results" / "small_rates.json").read_text())["rows"]
    tried: dict[str, dict[tuple[float, float], list[float]]] = {}
    for row in rows:
        if row["round"] == "long" and "failed" not in row:
            tried.setdefault(row["family"], {}).setdefault((row["head"], row["module"]), []).append(row["all_classes"])
    assert {
        family: min(pairs, key=lambda pair: (-statistics.fmean(pairs[pair]), pair)) for family, pairs in tried.items()
    } == SMALL_RATES
    trained = {line.family for study in STUDIES.values() for line in study.lines}
    assert trained - set(SMALL_RATES) - set(LIKE) == {"simplecil", "ridge"}
    assert set(LIKE.values()) <= set(SMALL_RATES) and {name.partition("/")[0] for name in recipe_names()} >= set(LIKE)
    (cell,) = get_study("prompt-epochs").cells(get_scale("small"), [1], ["cifar100"], [])[:1]
    long = load_recipe("l2p-zo-long/cifar100-inc5").optimize["peft"]
    assert cell.recipe.optimize["peft"].lr == pytest.approx(SMALL_RATES["l2p-zo"][1] * long.lr)
    (cell,) = of(get_study("main-table"), "L2P, ZO").cells(get_scale("small"), [1], ["cifar100"], [])
    own = load_recipe("l2p-zo/cifar100-inc5").optimize["peft"]
    assert cell.recipe.optimize["peft"].lr == pytest.approx(SMALL_RATES["l2p-zo"][1] * own.lr)


def test_a_finished_run_that_was_damaged_is_named_with_what_to_do(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = plan(tmp_path, tiny_weights, "placement-ablation")
    reproduce.run_plan(chosen, tmp_path / "out", HERE, lambda text: None)
    (matrix,) = chosen.runs.glob("swapped-*/matrix.json")
    for content, fault in (
        ("{}", " has no accuracy matrix"),
        ('{"accuracy": 1}', ": matrix.json is not an accuracy matrix"),
    ):
        matrix.write_text(content)
        grid = reproduce.run_plan(chosen, tmp_path / "out", HERE, lambda text: None)["placement-ablation"]
        (warning,) = grid.warnings
        assert f"{matrix.parent}{fault}" in warning and "remove the folder" in warning


def test_a_faster_scale_says_so_and_takes_no_differences() -> None:
    scale = get_scale("small").faster()
    assert "bf16" in scale.says and scale.says != get_scale("small").says
    for cell in get_study("main-table").cells(scale, [1], ["cifar100"], []):
        check_recipe(cell.recipe)
        assert cell.recipe.training.precision == "bf16"
        for plan in cell.recipe.optimize.values():
            assert plan.order == "first" or plan.estimator == "forward_gradient"


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'main-table'"):
        get_study("main-tabel")
    with pytest.raises(RecipeError, match="did you mean 'tiny'"):
        get_scale("tny")


def test_a_study_that_was_stopped_gives_the_same_table_and_shared_runs_are_run_once(
    tmp_path: Path, tiny_weights: Path
) -> None:
    whole = plan(tmp_path / "a", tiny_weights, "placement-ablation", "augmentation-ablation")
    assert len(whole.distinct) == 3  # ZO-FC is in both
    told: list[str] = []
    tables_of = reproduce.run_plan(whole, tmp_path / "out", HERE, told.append)
    assert len(told) == 3 and not whole.open()
    part = plan(tmp_path / "b", tiny_weights, "placement-ablation")
    reproduce.run_plan(part, tmp_path / "part", HERE, lambda text: None)
    later = plan(tmp_path / "b", tiny_weights, "placement-ablation", "augmentation-ablation")
    assert len(later.open()) == 1
    again = reproduce.run_plan(later, tmp_path / "later", HERE, lambda text: None)
    assert again == tables_of
    for name in ("placement-ablation", "augmentation-ablation"):
        for form in ("md", "csv", "tex"):
            first, second = (tmp_path / place / "tiny" / name / f"table.{form}" for place in ("out", "later"))
            assert first.read_bytes() == second.read_bytes()
    rows = json.loads((tmp_path / "out" / "tiny" / "placement-ablation" / "rows.json").read_text())
    assert rows["scale"] == "tiny" and "glyphs" in rows["says"] and len(rows["rows"]) == 2
    assert "[88.39]" in (tmp_path / "out" / "tiny" / "placement-ablation" / "table.md").read_text()


def test_what_a_method_cannot_learn_is_left_out_and_said_below_the_table() -> None:
    grid = tables.table(get_study("main-table"), get_scale("tiny"), [], ["pacs-domains"])
    said = "Not on pacs-domains: SimpleCIL; APER Adapter, FO; APER Adapter, ZO (the means of a new domain would take "
    assert [note.startswith(said) for note in grid.notes].count(True) == 1 and not grid.warnings


def test_many_cells_that_failed_for_one_reason_are_counted() -> None:
    rows = [{"line": "ZO-FC", "setting": "cifar100-inc5", "seed": seed, "failed": "no images"} for seed in range(9)]
    (warning,) = tables.table(get_study("placement-ablation"), get_scale("tiny"), rows, ["cifar100-inc5"]).warnings
    assert warning.startswith("ZO-FC, cifar100-inc5, seed 0; ") and warning.endswith(
        "seed 4 and 4 others failed: no images"
    )


def test_finished_runs_of_another_machine_are_only_read(tiny_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = tiny_recipe("simplecil/base", "training.device=cpu")
    row = jobs.TRAIN.do(recipe, tmp_path)
    elsewhere = recipe.model_copy(update={"training": recipe.training.model_copy(update={"device": "cuda:7"})})
    with pytest.raises(RecipeError, match="not available"):
        check_recipe(elsewhere)
    assert jobs.TRAIN.do(elsewhere, tmp_path) == row


def result(line: str, seed: int, **changes: Any) -> dict[str, Any]:
    """A row of a trained cell."""
    found = {"line": line, "setting": "cifar100-inc5", "seed": seed, "average_incremental": 50.0, "all_classes": 40.0,
             "forgetting": 5.0, "peak_memory": 2**30, "steps": 3}  # fmt: skip
    return found | changes


def failure(line: str, seed: int, why: str = "no {images}") -> dict[str, Any]:
    return {"line": line, "setting": "cifar100-inc5", "seed": seed, "failed": why}


def test_a_failed_cell_is_a_warning_in_every_form_and_says_over_how_many_seeds_it_is() -> None:
    study, scale, columns = get_study("placement-ablation"), get_scale("tiny"), ["cifar100-inc5"]
    rows = [result("ZO-FC", 1), result("ZO-FC", 2, all_classes=42.0), failure("ZO-FC", 3)]
    rows.append(failure("FO adapter + ZO Cls.", 1))
    grid = tables.table(study, scale, rows, columns)
    said = "ZO-FC, cifar100-inc5, seed 3; FO adapter + ZO Cls., cifar100-inc5, seed 1 failed: no {images}"
    assert grid.rows[0][2] == "41.00 ± 1.41 (2 of 3 seeds) [83.34]" and grid.warnings == (said,)
    latex = export.as_latex(grid, columns, DISPLAYS[study.shows].columns)
    assert said in grid.markdown() and said.replace("{images}", r"\{images\}") in latex
    assert r"41.00 $\pm$ 1.41 (2 of 3 seeds) [83.34]" in latex

    lines = list(csv.DictReader(io.StringIO(export.as_csv(study.name, scale, tables.numbers(study, rows, columns)))))
    assert [line["metric"] for line in lines] == list(ACCURACY_COLUMNS) * len(study.lines)
    about = {"study": study.name, "scale": "tiny", "fast": "false", "line": "ZO-FC", "setting": "cifar100-inc5"}
    numbers = {"metric": "all_classes", "mean": "41", "std": "1.414213562", "seeds": "2", "failed": "1"}
    assert lines[1] == {**about, **numbers, "paper": "83.34"}
    assert [lines[4][key] for key in ("mean", "std", "seeds", "failed")] == ["", "", "0", "1"]


def test_a_latex_table_has_settings_over_short_heads_and_its_notes_below() -> None:
    study, columns = get_study("query-ablation"), ["cifar100-inc5", "imagenet-r-inc5"]
    grid = tables.table(study, get_scale("tiny"), [], columns, ["x=${a_b}^~\\"])
    text = export.as_latex(grid, columns, DISPLAYS[study.shows].columns)
    assert text.startswith("% needs \\usepackage{booktabs}\n")
    assert r"& \multicolumn{3}{c}{cifar100-inc5} & \multicolumn{3}{c}{imagenet-r-inc5} \\" in text
    assert r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}" in text and " & avg & last & fgt & avg & last & fgt" in text
    assert r"\caption{ZO-FC with Q queries per step}" in text
    above, below = text.split(r"\end{tabular}")
    assert "Scale tiny" not in above and "Scale tiny" in below and r"avg: average over time \% (avg);" in below
    assert r"x=\$\{a\_b\}\textasciicircum{}\textasciitilde{}\textbackslash{}" in below


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_what_a_table_says_by_itself_is_known_to_latex(study: Study) -> None:
    grid = tables.table(study, get_scale("small").faster(), [], study.settings)
    text = export.as_latex(grid, study.settings, DISPLAYS[study.shows].columns)
    assert text.isascii(), {letter for letter in text if not letter.isascii()}


def test_one_seed_has_no_spread_and_says_nothing_of_one() -> None:
    study = get_study("placement-ablation")
    one, two = (tables.table(study, get_scale("tiny"), [result("ZO-FC", seed) for seed in range(count)],
                             ["cifar100-inc5"]).notes[0] for count in (1, 2))  # fmt: skip
    assert one.endswith(". 1 seed.") and two.endswith(". 2 seeds; mean ± standard deviation.")


def test_the_trade_off_shows_memory_beside_accuracy_and_none_where_there_are_no_steps() -> None:
    rows = [result("ZO-FC", 1), result("SimpleCIL", 1, steps=0)]
    grid = tables.table(get_study("tradeoff"), get_scale("tiny"), rows, ["cifar100-inc5"])
    assert [head.removeprefix("cifar100-inc5: ") for head in grid.headers[1:]] == [
        "peak memory of a step, GiB", "all classes % (last)",
    ]  # fmt: skip
    assert set(grid.rows) == {("ZO-FC", "1.000", "40.00"), ("SimpleCIL", "—", "40.00")}


def test_scales_lie_beside_each_other_and_old_pictures_go(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = replace(plan(tmp_path, tiny_weights), studies=(of(get_study("accuracy-trends"), "SimpleCIL"),))
    done(chosen, tmp_path / "out")
    place = tmp_path / "out" / "tiny" / "accuracy-trends"
    pictures = {f"cifar100-inc{n}.{form}" for n in (5, 10) for form in figures.FORMATS}
    files = {"rows.json", "table.md", "table.csv", "table.tex"}
    assert {path.name for path in place.iterdir()} == files | pictures
    fast = replace(
        chosen, scale=chosen.scale.faster(), studies=(replace(chosen.studies[0], settings=("cifar100-inc5",)),)
    )
    done(fast, tmp_path / "out")
    assert len(list(place.iterdir())) == len(files | pictures)
    about = json.loads((tmp_path / "out" / "tiny-fast" / "accuracy-trends" / "rows.json").read_text())
    assert about["fast"] is True and about["zofc"] == __version__ and "bf16" in about["says"]
    done(replace(fast, scale=chosen.scale), tmp_path / "out")
    assert {path.name for path in place.iterdir()} == files | {name for name in pictures if "inc5" in name}


def test_figures_are_drawn_in_every_format(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = plan(tmp_path, tiny_weights, "tradeoff")
    lines = tuple(line for line in chosen.studies[0].lines if line.family in ("adapter-fo", "zofc"))
    few = [type(study)(study.name, study.title, study.shows, study.settings, lines) for study in
           (chosen.studies[0], get_study("accuracy-trends"))]  # fmt: skip
    both = reproduce.Plan(tuple(few), chosen.scale, (1, 2), chosen.datasets, chosen.changes, chosen.runs)
    reproduce.run_plan(both, tmp_path / "out", HERE, lambda text: None)
    for study in few:
        for form in figures.FORMATS:
            path = tmp_path / "out" / "tiny" / study.name / f"cifar100-inc5.{form}"
            assert path.stat().st_size > 5000
    assert not list((tmp_path / "out").rglob(".*"))
    page = (tmp_path / "out" / "tiny" / "tradeoff" / "cifar100-inc5.html").read_text()
    assert "peak memory of a training step (GiB)" in page and "scale tiny" in page


def test_the_command_shows_its_plan_and_refuses_what_it_does_not_know(tmp_path: Path, tiny_weights: Path) -> None:
    words = ["reproduce", "placement-ablation", "--scale", "tiny", "--dataset", "cifar100", "--runs", str(tmp_path),
             "--dry-run", *plan(tmp_path, tiny_weights, "main-table").changes]  # fmt: skip
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "2 runs, 0 finished" in shown.output and "about" in shown.output and not list(tmp_path.iterdir())
    assert "  FO adapter + ZO Cls.  cifar100-inc5  seed 1993  " in shown.output
    assert isinstance(CliRunner().invoke(app, ["reproduce", "nothing"]).exception, RecipeError)
    wrong = CliRunner().invoke(app, ["reproduce", "main-table", "--dataset", "cifar10"])
    assert isinstance(wrong.exception, RecipeError) and "cifar100" in str(wrong.exception)


def test_what_cannot_be_estimated_is_said_once_for_each_reason() -> None:
    nowhere = ["data.source=folder:nowhere", "backbone.name=embedded"]
    found = forecast(get_study("placement-ablation").cells(PAPER, [1993], ("cifar100",), nowhere))
    (text,) = describe_reasons(found.unknown)
    assert found.seconds == 0 and not found.refused and "nowhere" in text
    assert text.startswith("ZO-FC cifar100-inc5 1993; FO adapter + ZO Cls. cifar100-inc5 1993: ")


def test_what_would_be_refused_is_said_before_anything_is_run(tmp_path: Path) -> None:
    words = ["reproduce", "classifier-ablation", "--scale", "tiny", "--dataset", "cifar100", "--dry-run", "--runs",
             str(tmp_path), "training.precision=bf16"]  # fmt: skip
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0 and shown.output.count("would be refused:") >= 1, shown.output
    assert "drown in the rounding of bf16" in shown.output and "not estimated" not in shown.output


@pytest.mark.parametrize(
    ("study", "change", "why"),
    [
        ("query-ablation", "optimize.peft.queries=7", "the lines of query-ablation set it themselves"),
        ("placement-ablation", "optimize.peft.order=zeroth", "the lines of placement-ablation set it"),
        ("peft-choice", "peft.kind=lora", "the lines of peft-choice set it"),
        ("main-table", "seed=5", "say how many with --seeds"),
    ],
)
def test_what_a_study_varies_cannot_be_changed_for_all_of_its_lines(study: str, change: str, why: str) -> None:
    with pytest.raises(RecipeError, match=f"^{change.partition('=')[0]}: .*{why}"):
        get_study(study).cells(get_scale("tiny"), [1993], ("cifar100",), [change])
    assert get_study("placement-ablation").cells(
        PAPER, [1], ("cifar100",), ["optimize.peft.queries=7"]
    )  # varied by none


def test_where_nothing_can_be_written_nothing_is_run(tmp_path: Path, tiny_weights: Path) -> None:
    (tmp_path / "file").write_text("")
    chosen = plan(tmp_path, tiny_weights)
    told: list[str] = []
    with pytest.raises(RunError, match="choose another folder with --output"):
        reproduce.run_plan(chosen, tmp_path / "file", HERE, told.append)
    with pytest.raises(RunError, match="choose another folder with --runs"):
        reproduce.run_plan(replace(chosen, runs=tmp_path / "file"), tmp_path / "out", HERE, told.append)
    assert told == [] and not list(chosen.runs.glob("*/recipe.yaml"))


def test_a_table_is_not_replaced_by_one_of_failures(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = plan(tmp_path, tiny_weights, "placement-ablation")
    done(chosen, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    lost = replace(chosen, changes=(*chosen.changes, "data.source=folder:nowhere"))
    (grid,) = done(lost, tmp_path / "out").values()
    assert any("nowhere" in warning for warning in grid.warnings)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_a_plan_of_which_nothing_can_be_run_ends_with_status_1(tmp_path: Path) -> None:
    words = ["reproduce", "query-ablation", "--scale", "tiny", "--dataset", "cifar100", "--dry-run", "--runs",
             str(tmp_path), "training.precision=bf16"]  # fmt: skip
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1 and "would be refused" in shown.output and "at a time" not in shown.output


def test_what_is_timed_is_not_divided_between_workers(tiny_weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "_images_per_second", lambda recipe: 10.0)
    timed = costs(Path(), tiny_weights).distinct.values()
    trained = plan(Path(), tiny_weights, "placement-ablation", seeds=(1, 2)).distinct.values()
    assert forecast(list(timed), 2).seconds == pytest.approx(forecast(list(timed)).seconds)
    one, two, both = (forecast(cells, workers).seconds for cells, workers in (
        (list(trained), 1), (list(trained), 2), ([*timed, *trained], 2)))  # fmt: skip
    assert two == pytest.approx(one / 2) and both == pytest.approx(two + forecast(list(timed)).seconds)


def test_tasks_in_which_nothing_moves_are_not_counted_as_training(tiny_recipe: Callable[..., Recipe]) -> None:
    def passes(name: str, *changes: str) -> float:
        return jobs.TRAIN.passes(tiny_recipe(name, *changes))

    once = passes("zofc/base", "optimize.peft.tasks=1", "optimize.head.tasks=1")
    still, all_tasks = passes("simplecil/base"), passes("zofc/base")
    assert once - still == pytest.approx((all_tasks - still) / 3)  # three tasks of one size
    assert passes("aper-fo/base") - still == pytest.approx((passes("adapter-fo/base") - still) / 3)


# -- what a step costs -----------------------------------------------------------------------------------------------


def costs(tmp_path: Path, tiny_weights: Path) -> reproduce.Plan:
    """Time and operations of first order, and of ZO-FC with one query."""
    few = of(get_study("runtime"), "FO", "ZO-FC, q = 1"), of(get_study("flops"), "FO", "ZO-FC early, q = 1",
                                                           "ZO-FC late, q = 1")  # fmt: skip
    return replace(plan(tmp_path, tiny_weights), studies=few)


def test_every_printed_number_of_the_cost_tables_has_a_line_and_a_phase_beside_it() -> None:
    for name, table in (("runtime", "runtime"), ("flops", "flops")):
        study = get_study(name)
        assert [line.printed for line in study.lines] == list(paper.tables()[table]["rows"])
        for line in study.lines:
            printed = paper.printed(table, line.printed or "", "batch48")
            assert study.printed(line, "cifar100-inc5") == printed
            assert set(printed) <= set(DISPLAYS[study.shows].columns)
            plans = load_recipe(f"{line.family}/cifar100-inc5", line.changes).optimize.values()
            queries = {plan.queries for plan in plans if plan.order == "zeroth"}
            assert queries == ({int(line.title[-1])} if "q =" in line.title else set())


def test_the_operations_are_those_that_cost_counts_and_its_formula_s(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = costs(tmp_path, tiny_weights)
    grid = done(chosen, tmp_path / "out")["flops"]
    table = {name: cells for name, *cells in grid.rows}
    assert list(table) == [f"{line}: {way}" for line in ("FO", "ZO-FC early, q = 1", "ZO-FC late, q = 1")
                           for way in ("executed", "formula")]  # fmt: skip
    first, hybrid, _ = chosen.cells(chosen.studies[1])
    (base,), both = measure_cost(first.recipe, 1).phases, measure_cost(hybrid.recipe, 1)
    assert base.formula is not None
    forward = both.batch_size * both.forward.backbone
    for line, phase in zip(("ZO-FC early, q = 1", "ZO-FC late, q = 1"), both.phases, strict=True):
        formula, spent = phase.formula, phase.executed
        assert formula is not None
        assert table[f"{line}: executed"] == [
            f"{(spent.total - spent.update) / forward:.4g}", f"{spent.total - spent.update:.4g}", f"{spent.update:.4g}",
            f"{spent.total:.4g}", f"{spent.total / base.executed.total:.4g}",
        ]  # fmt: skip
        ours = [formula.forwards, formula.total - formula.backward, formula.backward, formula.total,
                formula.total / base.formula.total]  # fmt: skip
        assert [cell.partition(" [")[0] for cell in table[f"{line}: formula"]] == [f"{value:.4g}" for value in ours]
        for part in phase.differences:
            assert any(part.why[1:] in note and line in note for note in grid.notes)
    assert table["FO: formula"][3].endswith(" [2.545e+12]") and table["FO: executed"][4] == "1"
    for said in ("FLOP, is one multiply–add", "A batch has 8 images", "Changed in every recipe: backbone.name="):
        assert any(said in note for note in grid.notes)


def test_peak_memory_is_measured_as_steps_are_executed_now(tmp_path: Path, tiny_weights: Path) -> None:
    study = of(get_study("peak-memory"), "Adapter + Learnable Cls., FO", "ZO-FC")
    assert len(study.lines) == 2
    chosen = replace(plan(tmp_path, tiny_weights), studies=(study,))
    grid = done(chosen, tmp_path / "out")["peak-memory"]
    rows = json.loads((tmp_path / "out" / "tiny" / "peak-memory" / "rows.json").read_text())["rows"]
    for row, (title, cell) in zip(rows, grid.rows, strict=True):
        most = max(phase["peak"] for phase in row["cost"]["phases"]) / 2**30
        assert title == row["line"] and cell.startswith(f"{most:.3f} [") and most > 0
    cut = replace(chosen, changes=(*chosen.changes, "training.recompute=true"))
    assert cut.distinct.keys().isdisjoint(chosen.distinct)  # it needs less, and is another measurement


def test_a_timing_once_measured_is_kept_and_shared_by_both_tables(
    tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = costs(tmp_path, tiny_weights)
    assert len(chosen.distinct) == 2 and chosen.standing() == "2 measurements, 0 finished"
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopping(stopped, "measure_cost", at=2)
        done(chosen, tmp_path / "stopped")
    assert chosen.standing() == "2 measurements, 1 finished"
    (kept,) = chosen.runs.glob("*.cost.json")
    before = kept.read_bytes()
    first = done(chosen, tmp_path / "out")
    monkeypatch.delattr(jobs, "measure_cost")  # nothing is measured again
    assert kept.read_bytes() == before and done(chosen, tmp_path / "again") == first
    for name in ("runtime", "flops"):
        for form in ("md", "csv", "tex"):
            one, other = (tmp_path / place / "tiny" / name / f"table.{form}" for place in ("out", "again"))
            assert one.read_bytes() == other.read_bytes()
    rows = json.loads((tmp_path / "out" / "tiny" / "runtime" / "rows.json").read_text())["rows"]
    phase = rows[1]["cost"]["phases"][0]
    assert phase["groups"] == ["head", "peft"] and not list(chosen.runs.glob("*/recipe.yaml"))
    shown = f"{phase['peak'] / 2**30:.3f} [0.7]", f"{phase['epoch_seconds']:.3f} [22.15]"
    assert first["runtime"].rows[1] == ("ZO-FC, q = 1", *shown)
    assert any("batches of 8, 1 steps an epoch" in note for note in first["runtime"].notes)


def test_how_a_step_is_executed_is_part_of_what_it_costs_and_what_is_kept_is_not(tiny_weights: Path) -> None:
    (cell, *_) = costs(Path(), tiny_weights).cells(get_study("runtime"))
    name = cell.name(Path())
    assert change_recipe(cell.recipe, ["training.threads=1"]) != cell.recipe
    for other, same in (("training.threads=1", False), ("training.recompute=true", False), ("seed=2", False),
                        ("training.keep_tasks=true", True), ("training.checkpoint_minutes=1", True)):  # fmt: skip
        assert (replace(cell, recipe=change_recipe(cell.recipe, [other])).name(Path()) == name) is same
    assert replace(cell, job=jobs.MeasureCost(7)).name(Path()) != name


def test_a_cost_that_cannot_be_measured_is_reported_and_the_others_are(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = costs(tmp_path, tiny_weights)
    first, *others = chosen.studies[0].lines
    broken = replace(first, changes=("training.memory=1kB",))
    grid = done(replace(chosen, studies=(replace(chosen.studies[0], lines=(broken, *others)),)), tmp_path / "out")
    assert [row[0] for row in grid["runtime"].rows] == ["FO", "ZO-FC, q = 1"]
    assert grid["runtime"].rows[0][1] == "— [4.35]" and grid["runtime"].rows[1][1] != "— [0.7]"
    (warning,) = grid["runtime"].warnings
    assert warning.startswith("FO, cifar100-inc5, seed 1 failed:") and "training.memory" in warning


# -- flatness --------------------------------------------------------------------------------------------------------


def curves(tmp_path: Path, tiny_weights: Path, *seeds: int) -> reproduce.Plan:
    """First order and ZO-FC, over three tasks."""
    chosen = plan(tmp_path, tiny_weights, seeds=seeds or (1,))
    few = of(get_study("flatness-curves"), "Adapter + Cls., FO", "ZO-FC")
    return replace(chosen, studies=(few,), changes=(*chosen.changes, "data.classes=6"))


def test_flatness_curves_that_were_stopped_give_the_same_table_and_have_named_axes(
    tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = curves(tmp_path / "a", tiny_weights, 1, 2)
    assert whole.standing() == "4 runs, 0 finished; 4 measurements, 0 finished"
    grid = done(whole, tmp_path / "out")["flatness-curves"]
    part = curves(tmp_path / "b", tiny_weights, 1, 2)
    shutil.copytree(whole.runs, part.runs, ignore=shutil.ignore_patterns("flatness.json"))  # trained, not yet measured
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopping(stopped, "measure_flatness", at=3)
        done(part, tmp_path / "later")
    assert part.standing() == "4 runs, 4 finished; 4 measurements, 2 finished"
    assert done(part, tmp_path / "later") == {"flatness-curves": grid}
    for form in ("md", "csv", "tex"):
        one, other = (tmp_path / place / "tiny" / "flatness-curves" / f"table.{form}" for place in ("out", "later"))
        assert one.read_bytes() == other.read_bytes()

    row = json.loads((tmp_path / "out" / "tiny" / "flatness-curves" / "rows.json").read_text())["rows"][0]
    measured = Run(whole.runs / row["run"]).measurement("flatness")
    for over in ("peft", "peft+head"):
        entries = measured["by_set"][over][1:]  # after the first task there are no old ones
        assert row["flatness"][over] == [[entry["task"], entry["old"]["score"]] for entry in entries]
        assert [entry["task"] for entry in entries] == [2, 3]
    assert measured["settings"]["rho"] == 0.005 and measured["settings"]["images"] == 2
    assert [name for name, *_ in grid.rows] == ["Adapter + Cls., FO", "ZO-FC"]
    assert all(" ± " in cell for _, *cells in grid.rows for cell in cells)
    for over, words in (("peft", "over the adapter alone"), ("peft-head", "over adapter and head")):
        for form in figures.FORMATS:
            assert (
                tmp_path / "out" / "tiny" / "flatness-curves" / f"cifar100-inc5-{over}.{form}"
            ).stat().st_size > 5000
        page = (tmp_path / "out" / "tiny" / "flatness-curves" / f"cifar100-inc5-{over}.html").read_text()
        assert "tasks learned" in page and "at \\u03c1 = 0.005 (1 \\u002f distance)" in page
        assert words in page.replace("\\u003cbr\\u003e", " ")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.0171, 0.0173), "0.0172 ± 0.0001"), ((1680.0, 1900.0), "1790 ± 156"), ((125.4,), "125"), ((0.0,), "0.00"),
        ((3.52e-4,), "0.000352"), ((-2.27e-11,), "-2.27e-11"), ((4e7,), "4.00e+07"),
    ],
)  # fmt: skip
def test_numbers_of_any_size_have_as_many_significant_digits(values: tuple[float, ...], shown: str) -> None:
    assert str(tables.Number("ZO-FC", "cifar100-inc5", "trace", values, len(values), 0, None)) == shown


def test_curvature_is_measured_after_some_tasks_and_told_with_what_forgetting_is_made_of(
    tmp_path: Path, tiny_weights: Path
) -> None:
    chosen = curves(tmp_path, tiny_weights)
    chosen = replace(chosen, studies=(of(get_study("curvature"), "Adapter + Cls., FO", "ZO-FC"), *chosen.studies))
    assert chosen.standing() == "2 runs, 0 finished; 4 measurements, 0 finished"  # of the same runs
    grid = done(chosen, tmp_path / "out")["curvature"]
    assert not chosen.open() and done(chosen, tmp_path / "out")["curvature"] == grid
    rows = json.loads((tmp_path / "out" / "tiny" / "curvature" / "rows.json").read_text())["rows"]
    for row, (title, *cells) in zip(rows, grid.rows, strict=True):
        assert title == row["line"]
        measured = Run(chosen.runs / row["run"]).measurement("curvature")
        (entry,) = measured["by_set"]["peft"]  # after the second of three tasks
        (state,) = row["curvature"]["peft"]
        over = entry["forgetting"]["over"]
        assert state["task"] == 2 and state["largest"] == entry["spectrum"]["largest"]
        assert state["forgetting"]["change"] == over["change"]
        shown = [entry["spectrum"]["largest"], entry["trace"]["mean"], over["change"], over["first"], over["second"],
                 over["bound"], over["bound"] - over["change"], 100 * over["first_share"]]  # fmt: skip
        assert state["converged"] == (entry["spectrum"]["converged"] and entry["forgetting"]["spectrum"]["converged"])
        assert [float(cell) for cell in cells] == pytest.approx(shown, rel=0.01)
    assert (tmp_path / "out" / "tiny" / "curvature" / "cifar100-inc5.png").stat().st_size > 5000
    assert any("after every 2 tasks" in note for note in grid.notes)


def test_other_studies_share_the_runs_that_keep_their_tasks(tmp_path: Path, tiny_weights: Path) -> None:
    both = plan(tmp_path, tiny_weights, "placement-ablation", "flatness-curves")
    runs = {name: cell for name, cell in both.distinct.items() if cell.job == jobs.TRAIN}
    assert len(runs) == 4  # ZO-FC is in both
    keeps = {cell.labels["line"]: cell.recipe.training.keep_tasks for cell in runs.values()}
    assert keeps == {"ZO-FC": True, "Adapter + Cls., FO": True, "Adapter + Cls., ZO": True,
                     "FO adapter + ZO Cls.": False}  # fmt: skip


def test_a_run_that_did_not_keep_its_tasks_is_trained_again_beside_itself(tmp_path: Path, tiny_weights: Path) -> None:
    chosen = curves(tmp_path, tiny_weights)
    line = of(chosen.studies[0], "ZO-FC")
    plain = replace(get_study("placement-ablation"), lines=(replace(line.lines[0], changes=(), printed="zofc"),))
    done(replace(chosen, studies=(plain,)), tmp_path / "plain")
    (before,) = chosen.runs.iterdir()
    both = replace(chosen, studies=(plain, line))
    assert both.standing() == "2 runs, 1 finished; 1 measurement, 0 finished"
    done(both, tmp_path / "out")
    assert not open_run(before).kept_tasks and not (before / "flatness.json").exists()
    again = chosen.runs / "kept" / before.name
    assert list(open_run(again).kept_tasks) == [1, 2, 3] and (again / "flatness.json").is_file()
    assert (again / "matrix.json").read_bytes() == (before / "matrix.json").read_bytes()
    assert not both.open()


def test_what_was_measured_otherwise_is_measured_again_and_what_goes_beyond_it_serves(
    tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = replace(curves(tmp_path, tiny_weights), studies=(of(get_study("flatness-curves"), "ZO-FC"),))
    grid = done(chosen, tmp_path / "out")
    (path,) = chosen.runs.glob("*/flatness.json")
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "settings": {**found["settings"], "products": 30, "batch": 4}}))
    assert not chosen.open()
    path.write_text(json.dumps({**found, "settings": {**found["settings"], "rho": 0.1}}))
    assert len(chosen.open()) == 1 and done(chosen, tmp_path / "again") == grid
    assert json.loads(path.read_text()) == found


def test_flatness_of_a_run_that_fails_fails_with_it_and_nothing_is_run_twice(
    tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = curves(tmp_path, tiny_weights)
    few = tuple(replace(line, changes=(*line.changes, "training.memory=1kB")) if line.title != "ZO-FC" else line
                for line in chosen.studies[0].lines)  # fmt: skip
    started: list[str] = []
    real = jobs.start_run

    def start_run(recipe: Any, runs: Path) -> Run:
        started.append(recipe.name)
        return real(recipe, runs)

    monkeypatch.setattr(jobs, "start_run", start_run)
    told: list[str] = []
    some = replace(chosen, studies=(replace(chosen.studies[0], lines=few),))
    grid = reproduce.run_plan(some, tmp_path / "out", HERE, told.append)["flatness-curves"]
    assert started == ["adapter-fo/cifar100-inc5", "zofc/cifar100-inc5"]
    assert [row[0] for row in grid.rows] == ["ZO-FC"] and len(told) == 4 and sum("failed" in line for line in told) == 2
    assert len(grid.warnings) == 1 and "training.memory" in grid.warnings[0]


def test_nothing_in_a_picture_lies_over_anything_else() -> None:
    rows = [{"line": title, "seed": seed, "flatness": {"peft": [(2, 0.1 * seed), (3, 0.2)]}}
            for title in ("Adapter + Cls., FO", "ZO-FC") for seed in (1, 2)]  # fmt: skip
    title = "Flatness of the old tasks' loss, first and zeroth order, over the adapter alone (imagenet-r-inc5, paper)"
    chart = replace(figures.flatness_chart(rows, "peft", 0.005), title=title)
    first = chart.curves[0]
    assert (first.label, first.x) == ("Adapter + Cls., FO", (2, 3))
    assert first.y == (pytest.approx(0.15), 0.2) and first.spread == (pytest.approx(0.1 / 2**0.5), 0.0)
    drawn = picture(chart)
    drawn.draw_without_rendering()
    (axes,), (legend,) = drawn.axes, drawn.legends
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, legend]
    boxes = [text.get_window_extent() for text in texts]
    for number, box in enumerate(boxes):
        assert drawn.bbox.containsx(box.x0) and drawn.bbox.containsx(box.x1)
        assert drawn.bbox.containsy(box.y0) and drawn.bbox.containsy(box.y1)
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])
    assert axes.get_xlabel() == "tasks learned" and axes.get_ylabel().startswith(
        "Φ of the old tasks' loss at ρ = 0.005"
    )


def test_a_method_has_one_colour_under_either_order_and_no_two_methods_look_alike() -> None:
    def looks(*lines: str) -> dict[str, tuple[str, str]]:
        chart = figures.accuracy_chart([{"line": line, "over_time": [80.0, 60.0]} for line in lines])
        for line, curve in zip(picture(chart).axes[0].get_lines(), chart.curves, strict=True):
            zeroth = curve.label.endswith(", ZO")
            assert (line.get_linestyle() == "--") == (line.get_markerfacecolor() == "white") == zeroth
        return {curve.label: (curve.style.colour, curve.style.marker) for curve in chart.curves}

    found = looks(*(line.title for line in STUDIES["tradeoff"].lines))
    for title, look in found.items():
        for other, same in found.items():
            methods = {name.removesuffix(", FO").removesuffix(", ZO") for name in (title, other)}
            assert (look == same) == (len(methods) == 1), (title, other)
    few = looks("EASE, ZO", "Prompt, FO", "ZO-FC")
    assert few["EASE, ZO"] == found["EASE, FO"] and few["ZO-FC"] == found["ZO-FC"] and len(set(few.values())) == 3


def test_a_title_is_cut_into_lines_of_about_the_same_length() -> None:
    title = "Peak memory of a step against accuracy (cifar100-inc5, scale small, fast)"
    assert wrap_title(title) == ["Peak memory of a step against accuracy", "(cifar100-inc5, scale small, fast)"]
    assert wrap_title("Short") == ["Short"] and wrap_title("") == []


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [(range(2, 6), [2, 3, 4, 5]), (range(1, 21), [1, 5, 10, 15, 20]), (range(2, 21), [2, 5, 10, 15, 20]),
     (range(1, 41), [1, 5, 10, 15, 20, 25, 30, 35, 40]), (range(1, 70), [1, 10, 20, 30, 40, 50, 60, 69])],
)  # fmt: skip
def test_the_first_and_the_last_task_have_a_tick(tasks: range, expected: list[int]) -> None:
    curve = Curve("one", tuple(tasks), (0.0,) * len(tasks), CurveStyle.of(0))
    assert Chart(Axis("tasks", whole=True), Axis("%"), (curve,)).ticks == expected


def test_what_trains_nothing_is_a_level_beside_the_points_of_the_trade_off() -> None:
    rows = [{"line": "SimpleCIL", "all_classes": 36.0, "steps": 0, "peak_memory": 1},
            {"line": "ZO-FC", "all_classes": 31.0, "steps": 9, "peak_memory": 2**30}]  # fmt: skip
    chart = figures.trade_off_chart(rows)
    level, point = chart.curves
    assert (point.label, point.x, point.y) == ("ZO-FC", (1.0,), (31.0,))
    assert level.level and (level.label, level.y) == ("SimpleCIL (no steps)", (36.0,))
    assert level.label in {text.get_text() for text in picture(chart).legends[0].get_texts()}
    assert level.label in own_page(chart)


def test_first_and_zeroth_order_are_drawn_apart_by_kind_of_classifier() -> None:
    study = get_study("fo-vs-zo-curves")
    rows = [{"line": line.title, "setting": "cifar100-inc5", "over_time": [80.0, 60.0]} for line in study.lines]
    found = dict(figures.draw_study(study, PAPER, rows, ["cifar100-inc5"]))
    assert {name: len(chart.curves) for name, chart in found.items()} == {
        "cifar100-inc5-prototypes": 5, "cifar100-inc5-learned": 12,
    }  # fmt: skip
    assert "class means" in found["cifar100-inc5-prototypes"].title


@pytest.mark.parametrize("name", ["runtime", "flops", "flatness-curves"])
def test_the_plan_of_measurements_is_shown_with_its_time(tmp_path: Path, tiny_weights: Path, name: str) -> None:
    words = ["reproduce", name, "--scale", "tiny", "--dataset", "cifar100", "--runs", str(tmp_path), "--dry-run",
             *plan(tmp_path, tiny_weights).changes]  # fmt: skip
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    counts = "3 runs, 0 finished; 3 measurements, 0 finished" if "flat" in name else "5 measurements, 0 finished"
    assert counts in shown.output and "about" in shown.output and "not estimated" not in shown.output
    assert not list(tmp_path.iterdir())

"""The generated documents: the page of results, its size, the tables, and the commands that write them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from zofc.errors import RunError
from zofc.evidence.__main__ import commands
from zofc.evidence.demo import DEMOS, demo_cells, demo_table, draw_demo
from zofc.evidence.estimators import estimator_cells, estimators_table
from zofc.evidence.flatness_table import watched_grid
from zofc.evidence.glyph_studies import (
    OPTIMIZER_LINES,
    SEARCH_SEEDS,
    SMOOTHING_LINES,
    best_optimizer_rates,
    optimizers_table,
    run_optimizers,
    smoothing_cells,
    smoothing_table,
)
from zofc.evidence.lines import LINES, PARTS
from zofc.evidence.page import LARGEST_PAGE, RESULTS_PAGE, VERDICTS_FILE, results_page
from zofc.evidence.plan import missing_lines, missing_searches, planned_cells
from zofc.evidence.rates import best_rates
from zofc.evidence.rows import accuracy_cells, read_evidence, result_rows
from zofc.evidence.tables import RESULTS, SHOWN_LINES, fill_tables, results_table, speed_table
from zofc.evidence.untested import UNTESTED_PAGE, untested_page
from zofc.evidence.verdicts import UNTESTED, effect_words, verdicts_text
from zofc.studies.cells import Cell

ROOT = Path(__file__).resolve().parents[1]


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_and_the_verdicts_are_what_the_result_files_give_and_the_page_is_short() -> None:
    text, verdicts = results_page(RESULTS, ROOT)
    assert (ROOT / RESULTS_PAGE).read_text("utf-8") == text
    assert (ROOT / RESULTS / VERDICTS_FILE).read_text("utf-8") == verdicts_text(verdicts)
    assert len(text.encode()) <= LARGEST_PAGE


def test_the_pages_have_every_claim_and_one_of_them_those_that_were_not_tested() -> None:
    text, verdicts = results_page(RESULTS, ROOT)
    untested = untested_page(RESULTS, ROOT, verdicts)
    assert (ROOT / UNTESTED_PAGE).read_text("utf-8") == untested
    flat, flat_untested = (" ".join(page.split()) for page in (text, untested))
    counts = re.search(
        r"Of (\d+) claims: (\d+) supported, (\d+) contradicted, (\d+) inconclusive, (\d+) untested", flat
    )
    assert counts is not None
    total, *by_word = map(int, counts.groups())
    assert total == sum(by_word) == len(verdicts)
    for verdict in verdicts.values():
        assert verdict.claim.says in (flat_untested if verdict.word == UNTESTED else flat)


def test_the_page_stays_short_when_the_parts_that_are_missing_have_run(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    line = LINES["zofc"].title
    like = [row for row in result_rows(ROOT / RESULTS / "b.json") if row["line"] == line and "inc10" in row["setting"]]
    for name in ("e", "e-released", "g"):
        part = PARTS[name]
        rows = [
            {**row, "line": LINES[each].title, "setting": part.label(part.settings[0]),
             "all_classes": row["all_classes"] + number % 7 - 3}
            for number, each in enumerate(part.lines) for row in like
        ]  # fmt: skip
        (tmp_path / RESULTS / f"{name}.json").write_text(json.dumps({"title": part.title, "changes": [], "rows": rows}))
    text, verdicts = results_page(RESULTS, tmp_path)
    assert sum(verdict.word == UNTESTED for verdict in verdicts.values()) < 15
    assert len(text.encode()) <= LARGEST_PAGE


def test_flatness_says_how_curvature_was_measured_and_what_the_bound_is_worth() -> None:
    text, verdicts = results_page(RESULTS, ROOT)
    flat = " ".join(text.split())
    assert "Curvature was measured in one state a run, after task 6, on 4 test images a class" in flat
    assert "trivially" in effect_words(verdicts["forgetting-below-bound"])
    grid = watched_grid(read_evidence(ROOT / RESULTS))
    assert [row[0] for row in grid.rows] == [LINES[name].title for name in PARTS["f"].lines]
    twin, matched, zofc = ([float(cell.partition(" ")[0]) for cell in row[1:]] for row in grid.rows)
    assert zofc[1] < twin[1] < matched[1] and zofc[-1] > 2 * twin[-1]  # Φ, and how far a task moves the adapter


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small one, with results of two lines."""
    rows = [
        {"line": line, "setting": "cifar100-inc5, 100 images a class", "seed": seed, "all_classes": accuracy + seed,
         "forgetting": 5.0, "final_average": accuracy, "over_time": [80.0, accuracy], "steps": 0}
        for line, accuracy in (("ZO-FC", 60.0), ("SimpleCIL", 50.0)) for seed in (1, 2, 3)
    ]  # fmt: skip
    about = {"title": PARTS["b"].title, "changes": ["data.per_class=100", "seed=1"]}
    (tmp_path / "docs").mkdir()
    (tmp_path / RESULTS).mkdir(parents=True)
    (tmp_path / RESULTS / "b.json").write_text(json.dumps({**about, "rows": rows}))
    (tmp_path / "README.md").write_text("<!-- results table -->\nold\n<!-- /results table -->\n")
    return tmp_path


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(commands, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


@pytest.mark.parametrize(("command", "file"), [("page", "docs/RESULTS.md"), ("tables", "README.md")])
def test_a_check_writes_nothing_and_ends_with_status_1_if_a_document_differs(
    repository: Path, command: str, file: str
) -> None:
    root, path = ["--root", str(repository)], repository / file
    before = path.read_text() if path.is_file() else None
    code, said = run(command, *root, "--check")
    assert code == 1 and f"{path} differs from the results" in said.replace("\n", "")
    assert (path.read_text() if path.is_file() else None) == before
    assert run(command, *root)[0] == 0 and run(command, *root, "--check") == (0, "")


def test_verdicts_are_printed_and_kept_beside_the_results(repository: Path) -> None:
    code, said = run("verdicts", "--root", str(repository))
    claims = json.loads((repository / RESULTS / VERDICTS_FILE).read_text("utf-8"))["claims"]
    (above,) = [claim for claim in claims if claim["id"] == "zofc-above-simplecil"]
    assert code == 0 and "supported" in said and above["verdict"] == "supported" and above["effect"]["mean"] == 10.0
    _, verdicts = results_page(RESULTS, repository)
    flat = " ".join(untested_page(RESULTS, repository, verdicts).replace("\\\n", "").split())
    rates, out = RESULTS / "rates.json", RESULTS / "b.json"
    assert f"python -m zofc.evidence grid --part b --rates {rates} --out {out} seed=1 ```" in flat


def printed_commands(heading: str) -> list[list[str]]:
    """The words after `python -m zofc.evidence` of every command below a heading."""
    text = (ROOT / UNTESTED_PAGE).read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = text.replace("\\\n", "").splitlines()
    return [shlex.split(line.partition("zofc.evidence ")[2]) for line in lines if "-m zofc.evidence" in line]


def given(words: list[str]) -> dict[str, Any]:
    """What a command is given; an unknown option is an error."""
    group: Any = typer.main.get_command(commands)
    values: dict[str, Any] = group.commands[words[0]].make_context(words[0], words[1:]).params
    return values


def test_the_printed_searches_make_every_row_of_the_committed_search() -> None:
    made = set()
    for words in printed_commands("How it was run"):
        values = given(words)
        if words[0] == "rates":
            for name in values["lines"].split(","):
                for rate in (
                    map(float, filter(None, values["rates"].split(","))) if values["rates"] else LINES[name].rates
                ):
                    made |= {(LINES[name].title, rate, int(seed)) for seed in values["seeds"].split(",")}
    assert made == {(row["line"], row["rate"], row["seed"]) for row in result_rows(ROOT / RESULTS / "rates.json")}


def test_what_is_still_to_run_is_searched_first_and_completes_every_part() -> None:
    known = best_rates(result_rows(ROOT / RESULTS / "rates.json"))
    missing = {(name, line) for name, part in PARTS.items()
               for line in missing_lines(part, part.lines, ROOT / RESULTS / f"{name}.json")}  # fmt: skip
    assert ("d", "zo-ridge") in missing and ("b", "zo-ridge") not in missing  # PACS, of an earlier recipe
    run_first = []
    for words in printed_commands("Still to run"):
        values = given(words)
        lines = [line for line in values["lines"].split(",") if line]
        if words[0] == "rates":
            known |= {LINES[line].title: {} for line in lines}
            continue
        for line in lines or PARTS[values["part"]].lines:
            assert not missing_searches(line, known)
            run_first.append((values["part"], line))
    assert set(run_first) == missing and len(run_first) == len(missing)
    assert run_first[:6] == [*(("e", f"{name}-fo") for name in ("lae", "l2p", "coda", "inflora")),
                             ("d", "zo-ridge"), ("d", "zo-ridge-64")]  # fmt: skip


def test_a_dry_run_trains_nothing_and_estimates_the_time_of_what_is_left(tmp_path: Path) -> None:
    small = ["data.source=glyphs", "data.classes=4", "data.increment=2", "data.per_class=3", "data.test_per_class=2",
             "backbone.name=embedded", "training.device=cpu"]  # fmt: skip
    out, runs = tmp_path / "x.json", tmp_path / "runs"
    common = ["--out", str(out), "--runs", str(runs), "--dry-run", "--speed", "1", *small]
    code, said = run("grid", "--part", "g", "--lines", "linear,zofc-lora", "--seeds", "1,2", *common)
    assert (
        code == 0 and "4 of 4 cells are left" in said and "Linear Cls., FO cifar100-inc10, 100 images a class 1" in said
    )
    (cell, *_) = planned_cells(PARTS["g"], ["linear"], [1], small, None)
    assert f"{cell.passes():.0f}" in said.split() and not runs.exists() and not out.exists()
    out.write_text(json.dumps({"rows": [{"run": cell.name(runs)}]}))
    assert (
        "3 of 4 cells are left"
        in run("grid", "--part", "g", "--lines", "linear,zofc-lora", "--seeds", "1,2", *common)[1]
    )
    out.unlink()
    code, said = run("rates", "--lines", "classifier", "--rates", "0.1,1", *common)
    assert code == 0 and "2 of 2 cells are left" in said
    code, said = run("rates", "--lines", "classifier", *common[:-2], "data.source=folder:nowhere")
    assert code == 0 and "nowhere" in said and "6 of 6 cells are left" in said


def test_help_names_every_part_and_photographs_need_no_option() -> None:
    words = set(re.findall(r"[\w-]+", run("grid", "--help")[1]))
    assert set(PARTS) <= words
    shown = {row["setting"].rpartition(", ")[2] for row in result_rows(ROOT / "results" / "photographs.json")}
    values = given(["photographs"])
    assert {Path(name).stem for name in values["backbones"].split(",")} == shown
    assert values["out"] == Path("results/photographs.json")


# -- the tables ------------------------------------------------------------------------------------------------------


def test_the_short_table_has_accuracy_and_forgetting_over_seeds(repository: Path) -> None:
    text = fill_tables((repository / "README.md").read_text(), repository)
    assert "| SimpleCIL: class means | 52.0 ± 1.0 | 5.0 ± 0.0 |" in text
    assert results_table({}).rows == ()


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(RunError, match="<!-- speedy table -->: no such table; did you mean 'speed table'"):
        fill_tables("<!-- speedy table -->\n<!-- /speedy table -->", ROOT)


def test_speed_is_beside_the_published_step() -> None:
    def step(name: str, milliseconds: float) -> dict[str, Any]:
        return {"name": name, "what": name, "milliseconds": milliseconds, "peak_bytes": 2**29}

    grid = speed_table({row["name"]: row for row in (step("published", 450.0), step("forward", 22.5))})
    assert grid.rows == (("published", "450.0", "0.500", "1.0"), ("forward", "22.5", "0.500", "20.0"))


def test_the_readme_compares_ridge_and_zo_ridge_at_the_same_width_and_the_default_is_among_them() -> None:
    titles = {title: line for line, title in SHOWN_LINES.items()}
    for width in ("64 MB", "8,192 wide"):
        assert sum(width in title for title in titles) >= 2
    assert titles["ZO-Ridge, 64 MB (default)"] == LINES["zo-ridge-64"].title and not LINES["zo-ridge-64"].changes
    assert len(results_table(read_evidence(ROOT / RESULTS)).rows) == len(titles) <= 9


def test_the_numbers_in_the_prose_of_the_readme_and_of_zo_ridge_are_those_of_the_results() -> None:
    readme, page = (ROOT / "README.md").read_text("utf-8"), (ROOT / "docs/explanation/zo-ridge.md").read_text("utf-8")
    table, (_, verdicts) = read_evidence(ROOT / RESULTS), results_page(RESULTS, ROOT)
    effect = verdicts["per-image-as-accurate"].effect
    assert effect is not None
    withdrawn = f"{effect.mean:.1f} ± {(effect.high - effect.low) / 2:.1f}".replace("-", "−")
    means = [accuracy_cells(table, LINES[name].title, "cifar100-inc10")[0].partition(" ")[0]
             for name in ("zo-ridge-64", "ridge-orthogonal")]  # fmt: skip
    for text in (" ".join(readme.split()), " ".join(page.split())):
        assert withdrawn in text and "withdrawn: not shown to be equal" in text
        assert all(mean in text for mean in means)


def test_the_table_of_optimizers_is_a_sentence_until_they_were_run(tmp_path: Path) -> None:
    page = "<!-- optimizers table -->\n<!-- /optimizers table -->"
    assert "It has not been run." in fill_tables(page, tmp_path)
    title, line = next(iter(OPTIMIZER_LINES.items()))
    scores = {"all_classes": 70.0, "last_task": 80.0, "forgetting": 5.0}
    rows = [{"line": title, "rate": line.rates[1], "seed": seed, **scores} for seed in (*SEARCH_SEEDS, 7, 8)]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "optimizers.json").write_text(json.dumps({"rows": rows}))
    assert f"| {title} | 70.0 ± 0.0 | 80.0 ± 0.0 | 5.0 ± 0.0 | {line.rates[1]:g} |" in fill_tables(page, tmp_path)


# -- estimators ------------------------------------------------------------------------------------------------------


def test_estimators_differ_in_estimator_and_length_alone() -> None:
    recipes = {cell.labels["way"]: cell.recipe for cell in estimator_cells([1], 10.0, 4, [])}
    assert {way for way, recipe in recipes.items() if recipe.optimize and recipe.optimize["head"].epochs != 4} == {
        "late_longer", "per_image_longer",
    }  # fmt: skip
    assert recipes["spsa"].optimize["peft"].lr == pytest.approx(0.1) and recipes["simplecil"].optimize == {}
    assert len(estimators_table(result_rows(ROOT / "results" / "estimators.json")).rows) == len(recipes)


# -- demonstrations --------------------------------------------------------------------------------------------------


def test_every_demonstration_is_a_recipe_and_has_a_row() -> None:
    cells = list(demo_cells([1, 2]))
    assert [cell.labels["demo"] for cell in cells] == [*DEMOS, *DEMOS]
    assert len(demo_table(result_rows(ROOT / "results" / "demo.json")).rows) == len(DEMOS)


def test_the_picture_is_of_the_demonstration_and_says_how_to_make_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, out = ROOT / "tests" / "fixtures" / "runs-0.1" / "finished", tmp_path / "demo.png"
    with pytest.raises(
        RunError, match="no finished run of demo/first-order, demo/zo-ridge with seed 1993; make them with `zofc run`"
    ):
        draw_demo([finished], 1993, out)
    monkeypatch.setattr("zofc.evidence.demo.PICTURED", ("demo/zofc",))
    assert run("picture", str(finished), "--out", str(out))[0] == 0
    with Image.open(out) as picture:
        assert picture.size == (1800, 600)


def test_lines_of_smoothing_differ_in_the_length_of_the_difference_alone() -> None:
    cells = smoothing_cells([5])
    assert [cell.labels["line"] for cell in cells] == list(SMOOTHING_LINES)
    plans = [cell.recipe.optimize["peft"] for cell in cells]
    assert [plan.epsilon for plan in plans[:5]] == [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
    same = {plan.model_copy(update={"epsilon": 0.0, "estimator": ""}) for plan in plans}
    assert len(same) == 1 and plans[-1].estimator == "forward_gradient"
    assert all(cell.recipe.training.keep_tasks for cell in cells)
    assert len(smoothing_table(result_rows(ROOT / "results" / "smoothing.json")).rows) == len(cells)


def test_rates_of_optimizers_are_chosen_with_seeds_that_the_table_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, float, int]] = []

    def collected(cells: list[Cell], *_: object) -> list[dict[str, object]]:
        rows = []
        for cell in cells:
            title, rate, seed = (cell.labels[key] for key in ("line", "rate", "seed"))
            assert cell.recipe.optimize["peft"].lr == rate and cell.recipe.seed == seed
            trained.append((title, rate, seed))
            score = 50.0 - abs(rate - 0.3) + (40.0 if seed not in SEARCH_SEEDS and rate == 1.0 else 0.0)
            rows.append({**cell.labels, "all_classes": score, "last_task": 1.0, "forgetting": 2.0})
        return rows

    monkeypatch.setattr("zofc.evidence.glyph_studies.collect", collected)
    table = run_optimizers([7, 8], tmp_path, tmp_path / "out.json")
    assert [row[0] for row in table.rows] == list(OPTIMIZER_LINES)
    best = {title: min(line.rates, key=lambda rate: abs(rate - 0.3)) for title, line in OPTIMIZER_LINES.items()}
    assert {(title, rate) for title, rate, seed in trained if seed in (7, 8)} == set(best.items())
    assert table.rows[0][-1] == "0.3" and table.rows[3][-1] == "0.1 (the edge)"
    failed = [
        {"line": title, "rate": rate, "seed": SEARCH_SEEDS[0], "failed": "diverged"} for title, rate in best.items()
    ]
    assert best_optimizer_rates(failed) == {} and optimizers_table(failed).rows == ()


def test_wrong_words_on_the_command_line_are_named() -> None:
    for words, wrong in (
        (["rates", "--out", "x.json", "--lines", "zofcc"], "--lines: unknown line 'zofcc'"),
        (["rates", "--out", "x.json", "--lines", "ridge"], "ridge has no learning rate"),
        (["rates", "--out", "x.json", "--rates", "fast"], "--rates: expected numbers"),
        (["grid", "--out", "x.json", "--part", "z"], "--part: unknown part 'z'"),
        (["grid", "--out", "x.json", "--part", "b", "--seeds", "one"], "--seeds: expected whole numbers"),
    ):
        error = CliRunner().invoke(commands, words).exception
        assert error is not None and wrong in str(error)

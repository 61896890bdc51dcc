"""Facts about reports, on run folders written by hand."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from zofc.errors import RunError
from zofc.recipe import Recipe
from zofc.report import figures, page, tables
from zofc.report.draw_matplotlib import encode, picture
from zofc.report.draw_plotly import page_figure
from zofc.report.drawing import COLOURS, DARK_COLOURS, CurveStyle
from zofc.report.grid import Grid
from zofc.report.labels import data_split, labels, placement
from zofc.report.seeds import over_seeds
from zofc.runfolder import Run, find_runs, open_run, read_runs
from zofc.units import format_signed

ZO = {"order": "zeroth", "queries": 4}
FO = {"order": "first"}
SHARED = {
    "data": {"source": "cifar100", "increment": 5},
    "backbone": {"name": "vit_base_patch16_224.augreg_in21k"},
}


def triangle(tasks: int, start: float = 90.0, drop: float = 1.5) -> list[list[float | None]]:
    """Accuracies that fall by `drop` with every later task."""
    return [[max(0.0, start - 2 * j - drop * (i - j)) for j in range(i + 1)] for i in range(tasks)]


def by_seed(base: Path, name: str, accuracies: Mapping[int, float], **recipe: Any) -> None:
    for seed, start in accuracies.items():
        write_run(base / f"{name}-{seed}", triangle(2, start), seed=seed, name=name, **recipe)


def write_run(
    folder: Path,
    rows: list[list[float | None]] | None,
    *,
    finished: bool = True,
    tasks: int | None = None,
    counts: list[int] | None = None,
    groups: list[list[str]] | None = None,
    **recipe: Any,
) -> Path:
    """A run folder as a run leaves it; without rows, one killed in its first task."""
    folder.mkdir(parents=True)
    settings = {"optimize": {"peft": ZO, "head": FO}, **SHARED, **recipe}
    resolved = Recipe.model_validate(settings).model_dump(mode="json")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), "utf-8")
    (folder / "environment.json").write_text(json.dumps({"zofc": "0.1.0", "device": "cpu", "git": "abc"}))
    total = tasks or len(rows or [])
    events: list[dict[str, Any]] = [{"time": 1.0, "event": "run_started", "name": resolved["name"], "tasks": total}]
    if rows:
        width = len(rows[-1])
        matrix = {
            "accuracy": rows,
            "counts": counts or [100] * width,
            "groups": groups or [[f"class {2 * j}", f"class {2 * j + 1}"] for j in range(width)],
        }
        metrics = {
            "finished": finished,
            "tasks": len(rows),
            "tasks_total": total,
            "trainable_parameters": {"peft": 42265, "head": 3840},
            "seconds": {"train": 125.0, "evaluate": 3.0},
            "steps": 10,
            "peak_memory": 512 * 2**20,
        }
        (folder / "matrix.json").write_text(json.dumps(matrix))
        (folder / "metrics.json").write_text(json.dumps(metrics))
        events += [{"time": 2.0, "event": "evaluated", "task": i, "row": row} for i, row in enumerate(rows)]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def printed(grid: Grid, width: int = 80) -> str:
    """What a plain terminal of this width shows."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False).print(grid)
    return file.getvalue()


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Finished, unfinished, joint, one task only, and killed before the first evaluation."""
    paper = {"table": "main", "row": "zofc", "column": "cifar100-inc5"}
    write_run(tmp_path / "a", triangle(20, drop=0.4), title="ZO-FC", name="zofc/cifar100-inc5", paper=paper)
    write_run(
        tmp_path / "b",
        triangle(3),
        finished=False,
        tasks=20,
        title="First order",
        optimize={"peft": FO, "head": FO},
    )
    write_run(tmp_path / "c", [[80.0, 70.0, 60.0]], title="Joint", data={**SHARED["data"], "joint": True})
    write_run(tmp_path / "d", [[88.0]], title="One task", optimize={}, method={"name": "simplecil"})
    write_run(tmp_path / "e", None, tasks=5, title="Just begun")
    return read_runs([tmp_path])


# -- run folders ---------------------------------------------------------------------------------------------


def test_a_finished_run_reads_back(runs: list[Run]) -> None:
    run = runs[0]
    assert (run.title, run.name, run.status) == ("ZO-FC", "zofc/cifar100-inc5", "finished")
    assert run.finished and run.tasks_done == run.tasks_total == 20
    assert run.scores["last_task"] == 52.0
    assert run.scores["forgetting"] == pytest.approx(0.4 * sum(range(1, 20)) / 19)
    assert (run.peak_memory, run.train_seconds) == (512 * 2**20, 125.0)
    assert run.trainable == {"peft": 42265, "head": 3840}
    assert run.environment["git"] == "abc"
    assert [event["event"] for event in run.events][:2] == ["run_started", "evaluated"]


def test_an_unfinished_run_tells_how_far_it_came(runs: list[Run]) -> None:
    assert runs[1].status == "unfinished: 3 of 20 tasks"
    assert runs[1].scores["last_task"] == 86.0  # so far
    assert runs[4].status == "unfinished: 0 of 5 tasks"
    assert set(runs[4].scores.values()) == {None}
    assert runs[4].matrix is None and runs[4].peak_memory is None and runs[4].trainable is None


def test_a_folder_with_nothing_but_a_recipe_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: bare\n")
    run = open_run(tmp_path)
    assert run.status == "unfinished: 0 of ? tasks"
    assert "bare" in printed(tables.summary_table([run]))


def test_a_half_written_last_event_is_left_out(runs: list[Run]) -> None:
    path = runs[0].path / "events.jsonl"
    whole, before = path.read_bytes(), runs[0].events
    for cut in ('{"time": 3.0, "event": "epo', '{"time": 3.0, "event": "notice", "text": "é'):
        path.write_bytes(whole + cut.encode()[:-1])
        assert runs[0].events == before
    path.write_bytes(whole + b'{"time": 3.0, "event": "notice"}')  # complete, only its newline is missing
    assert runs[0].events[-1]["event"] == "notice"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("matrix.json", "{", "matrix.json is not valid JSON (line 1, column 2"),
        (
            "matrix.json",
            '{"accuracy": [[120]], "counts": [1]}',
            "matrix.json is not an accuracy matrix: accuracy: row 1",
        ),
        ("metrics.json", "[1]", "metrics.json should hold names and values, got list"),
        ("environment.json", b"\xff{}", "environment.json is not valid UTF-8"),
        (
            "events.jsonl",
            '{"event": 1}\noops\n{"event": 2}\n',
            "events.jsonl is not valid JSON (line 2, column 1",
        ),
        ("recipe.yaml", "a: [", "recipe.yaml:1: not valid YAML"),
        ("recipe.yaml", "", "recipe.yaml should hold names and values, got nothing"),
    ],
)
def test_a_corrupt_file_is_named(runs: list[Run], file: str, content: str | bytes, message: str) -> None:
    folder = runs[0].path
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RunError) as caught:
        open_run(folder).check()
    assert str(folder) in str(caught.value) and message in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"empty: not a run folder, it has no recipe\.yaml"):
        open_run(tmp_path / "empty")
    with pytest.raises(RunError, match="does not exist"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match="nowhere: no such folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(RunError, match="file: a file, expected a run folder"):
        find_runs([tmp_path / "file"])
    with pytest.raises(RunError, match="empty: not a run folder and none below it"):
        find_runs([tmp_path / "empty"])


def test_runs_are_found_at_and_below_a_path_each_once(tmp_path: Path) -> None:
    one, two = (
        write_run(tmp_path / "study" / "b", [[1.0]]),
        write_run(tmp_path / "study" / "deep" / "a", [[1.0]]),
    )
    write_run(tmp_path / "study" / ".hidden", [[1.0]])
    write_run(one / "checkpoint", [[1.0]])  # nothing inside a run is a run
    assert find_runs([two, tmp_path]) == [two, one]
    assert find_runs([one]) == [one]


def test_links_to_runs_are_followed_and_one_that_leads_back_ends(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", [[1.0]])
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    (chosen / "link").symlink_to(run)
    (chosen / "back").symlink_to(chosen)
    assert find_runs([chosen]) == [chosen / "link"]


def test_costs_beside_runs_are_passed_over(tmp_path: Path) -> None:
    run, costs = write_run(tmp_path / "a", [[1.0]]), tmp_path / "a-1.cost.json"
    costs.write_text("{}")
    assert find_runs([run, costs]) == [run]
    with pytest.raises(RunError, match="no run folder was given"):
        find_runs([costs])


def test_runs_with_one_title_are_told_apart(tmp_path: Path) -> None:
    for folder, seed in (("x", 1), ("y", 2), ("z", 2)):
        write_run(tmp_path / folder, [[1.0]], title="T", seed=seed)
    write_run(tmp_path / "zz", [[1.0]], title="U")
    assert labels(read_runs([tmp_path])) == ["T, seed 1", "T, seed 2 (y)", "T, seed 2 (z)", "U"]


def test_runs_with_one_title_are_told_apart_by_what_differs_between_them(tmp_path: Path) -> None:
    domains = {"source": "domainnet", "by": "domain"}
    write_run(tmp_path / "1", [[1.0]], title="T", data=domains)
    write_run(tmp_path / "2", [[1.0]], title="T")
    write_run(tmp_path / "3", [[1.0]], title="T", optimize={"peft": {**ZO, "queries": 8}, "head": FO})
    write_run(tmp_path / "4", [[1.0]], title="U", data=domains)
    write_run(tmp_path / "again" / "4", [[1.0]], title="U", data=domains)
    records = read_runs([tmp_path])
    assert labels(records) == [
        "T, domainnet by domain",
        "T, cifar100-inc5, peft ZO ×4",
        "T, cifar100-inc5, peft ZO ×8",
        "U (4)",
        "U (again/4)",
    ]
    assert labels([records[0], records[0]]) == ["T #1", "T #2"]


# -- tables --------------------------------------------------------------------------------------------------


def test_placement_is_said_in_words(runs: list[Run], tmp_path: Path) -> None:
    assert placement(runs[0]) == "peft ZO ×4, head FO"
    assert placement(runs[1]) == "peft FO, head FO"
    assert placement(runs[3]) == "nothing trained"
    assert tables.method_label(runs[2]) == "adapter (joint)"
    forward = {"order": "zeroth", "queries": 8, "estimator": "forward_gradient"}
    path = write_run(tmp_path / "f", None, optimize={"peft": forward}, method={"mask": False, "prototypes": True})
    assert placement(open_run(path)) == "peft ZO ×8 forward gradient"
    assert tables.method_label(open_run(path)) == "adapter (old classes in the loss, prototypes)"


def test_searched_learning_rates_are_shown(tmp_path: Path) -> None:
    plans = {"peft": {"order": "zeroth", "lr": 0.01}, "head": {"lr": 0.03}}
    searched = open_run(write_run(tmp_path / "searched", None, optimize=plans, rates="searched"))
    usual = open_run(write_run(tmp_path / "usual", None, optimize=plans))
    (row,) = (row for row in tables.comparison_table([searched, usual]).rows if row[0] == "learning rates")
    assert row[1:] == ("peft 0.01, head 0.03 (searched)", "peft 0.01, head 0.03")
    assert "learning rates" not in [row[0] for row in tables.comparison_table([usual]).rows]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_keep_to_the_width_and_keep_every_number(runs: list[Run], width: int) -> None:
    for grid in (
        tables.summary_table(runs),
        tables.comparison_table(runs),
        tables.matrix_table(runs[0]),
        tables.settings_table(runs),
    ):
        shown = printed(grid, width)
        assert max(map(len, shown.splitlines())) <= width
        assert "…" not in shown
        numbers = {cell for row in grid.rows for cell in row if re.fullmatch(r"−?\d+\.\d+( \w+)?", cell)}
        assert numbers and all(number in shown for number in numbers)


def test_a_table_turned_has_a_row_for_each_column_and_the_same_notes(runs: list[Run]) -> None:
    grid = tables.comparison_table(runs)
    turned = grid.transposed("run")
    assert turned.headers == ("run", *(row[0] for row in grid.rows))
    assert turned.rows[0] == ("ZO-FC", *(row[1] for row in grid.rows)) and len(turned.rows) == len(runs)
    assert (turned.notes, turned.warnings) == (grid.notes, grid.warnings)
    assert max(map(len, printed(turned).splitlines())) <= 80


def test_words_in_a_column_are_not_piled_up() -> None:
    long = "peft ZO ×4 forward gradient, head ZO ×4 forward gradient"
    grid = Grid(("", *"abcdef"), (("placement", *[long] * 6), ("accuracy", *["12.34"] * 6)))
    for part in printed(grid).split("\n\n"):
        assert len(part.splitlines()) <= 2 + 4 + 1  # headings, the words in four lines, the numbers


def test_the_summary_shows_quality_and_cost_of_every_run(runs: list[Run]) -> None:
    rows = {row[0]: row[1:] for row in tables.summary_table(runs).rows}
    assert rows["ZO-FC"] == (
        "adapter: peft ZO ×4, head FO",
        "67.20",
        "4.00",
        "52.00",
        "512 MiB",
        "2.1 min",
        "46.1 k",
    )
    assert rows["Joint"][1:4] == ("70.00", "—", "—")
    assert rows["One task"][1:4] == ("88.00", "—", "88.00")
    assert set(rows["Just begun"][1:]) == {"—"}


def test_the_summary_names_the_data_where_they_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[1.0]], title="A")
    write_run(tmp_path / "b", [[1.0]], title="B", data={"source": "cifar100", "increment": 10})
    grid = tables.summary_table(read_runs([tmp_path]))
    assert grid.headers[:3] == ("run", "data", "method and placement") and grid.names == 3
    assert [row[1] for row in grid.rows] == ["cifar100-inc5", "cifar100-inc10"]
    assert "data" not in tables.summary_table(read_runs([tmp_path / "a"])).headers


def test_runs_on_other_backbones_or_sizes_are_told_apart(tmp_path: Path) -> None:
    base = SHARED["backbone"]["name"]
    write_run(tmp_path / "a", [[1.0]], title="T")
    write_run(tmp_path / "b", [[1.0]], title="T", backbone={"name": base, "image_size": 112})
    write_run(tmp_path / "c", [[1.0]], title="T", backbone={"name": "embedded"}, method={"name": "adapter"})
    write_run(tmp_path / "d", [[1.0]], title="U", backbone={"name": "embedded", "pretrained": False})
    names = [base, f"{base} at 112 px", "embedded", "embedded, random"]
    records = read_runs([tmp_path])
    assert labels(records) == [f"T, {name}" for name in names[:3]] + ["U"]
    grid = tables.summary_table(records)
    assert grid.headers[:3] == ("run", "backbone", "method and placement") and grid.names == 3
    assert [row[1] for row in grid.rows] == names
    assert ("backbone", *names) in tables.comparison_table(records).rows
    alike = tables.summary_table(records[:1] * 2)
    assert "backbone" not in alike.headers and "backbone" not in " ".join(labels(records[:1] * 2))


def test_a_ridge_readout_is_named_with_the_method(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[1.0]], method={"name": "adapter", "readout": "ridge"})
    write_run(tmp_path / "b", [[1.0]], method={"name": "adapter", "readout": "rows"})
    with_ridge, plain = (row[1] for row in tables.summary_table(read_runs([tmp_path])).rows)
    assert (with_ridge, plain) == ("adapter (ridge readout): peft ZO ×4, head FO", "adapter: peft ZO ×4, head FO")


def test_unfinished_runs_and_missing_test_images_are_pointed_out(runs: list[Run], tmp_path: Path) -> None:
    gone: list[list[float | None]] = [[90.0], [None, 80.0]]
    lost = open_run(write_run(tmp_path / "lost", gone, title="Lost"))
    assert tables.summary_table([*runs, lost]).warnings == (
        "First order is unfinished: 3 of 20 tasks. Its numbers cover those.",
        "Just begun is unfinished: 0 of 5 tasks.",
        "Lost has no final accuracy of task 1, which the means leave out.",
    )
    assert tables.matrix_table(lost).rows[-1] == ("2", "—", "—", "80.0")  # not the mean of what could be tested


def test_the_matrix_table_has_a_row_after_each_task(runs: list[Run]) -> None:
    grid = tables.matrix_table(runs[1])
    assert grid.headers == ("after task", "all classes", "task 1", "task 2", "task 3")
    assert grid.rows[1] == ("2", "88.2", "88.5", "88.0", "")
    assert tables.matrix_table(runs[2]).rows == (("joint", "70.0", "80.0", "70.0", "60.0"),)
    assert tables.matrix_table(runs[4]).rows == ()
    assert "unfinished" in printed(tables.matrix_table(runs[4]))


def test_ours_minus_the_papers_stands_under_the_papers_words(runs: list[Run]) -> None:
    grid = tables.comparison_table(runs[:2])
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["reproduces"] == ("main, zofc, cifar100-inc5", "")
    assert rows["paper's avg¹"] == ("88.39", "")
    assert rows["ours − paper's avg¹"] == ("−9.79", "")  # 78.60: our average incremental
    assert rows["ours − paper's last²"] == ("−16.14", "")  # 67.20: our all classes
    assert rows["ours − paper's fgt³"] == ("−1.26", "")
    assert "¹ avg as the paper's tables print it is our average incremental" in "\n".join(grid.notes)
    assert "² last as the paper's tables print it is our all classes" in "\n".join(grid.notes)
    assert "same in all: method adapter; data cifar100" in grid.notes[0]


def test_the_bare_words_of_the_paper_appear_nowhere_else(runs: list[Run]) -> None:
    bare = re.compile(r"\bavg\b|\blast\b(?! task)")
    for grid in (
        tables.summary_table(runs),
        tables.matrix_table(runs[0]),
        tables.settings_table(runs),
        tables.comparison_table(runs[1:]),
    ):
        words = "\n".join([*grid.headers, *(cell for row in grid.rows for cell in row), *grid.notes])
        assert not bare.search(words.replace("before last", ""))


PAPER = {"table": "main", "row": "zofc", "column": "cifar100-inc5"}


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (
            {"data": {"source": "cifar100", "increment": 5, "per_class": 50}},
            "only 50 training images per class",
        ),
        (
            {"data": {"source": "cifar100", "increment": 10}},
            "data split cifar100-inc10 instead of cifar100-inc5",
        ),
        ({"data": {"source": "glyphs", "increment": 5}}, "data split glyphs-inc5 instead of cifar100-inc5"),
        (
            {"backbone": {"name": "embedded"}},
            "backbone embedded instead of vit_base_patch16_224.augreg_in21k",
        ),
        ({"backbone": {"name": "w.npz"}}, "backbone weights from w.npz, not checked to be"),
        ({"backbone": {"name": SHARED["backbone"]["name"], "pretrained": False}}, "random backbone weights"),
    ],
)
def test_a_run_outside_the_papers_setting_is_marked(tmp_path: Path, change: Mapping[str, Any], warning: str) -> None:
    run = open_run(write_run(tmp_path / "r", triangle(2), title="Mine", paper=PAPER, **change))
    (found,) = tables.comparison_table([run]).warnings
    assert found.startswith("Mine is not in the paper's setting: ") and warning in found
    assert "not in the paper's setting" in printed(tables.comparison_table([run])).replace("\n", " ")


def test_in_the_papers_setting_there_is_no_warning(runs: list[Run]) -> None:
    assert tables.comparison_table(runs[:1]).warnings == ()


def test_an_unfinished_run_is_not_measured_against_the_paper(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "r", triangle(2), finished=False, tasks=20, paper=PAPER))
    rows = {row[0]: row[1] for row in tables.comparison_table([run]).rows}
    assert (rows["paper's avg¹"], rows["ours − paper's avg¹"]) == ("88.39", "—")


def test_numbers_the_paper_does_not_print_are_a_warning(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "r", triangle(2), paper={**PAPER, "row": "zofx"}))
    assert any("zofx" in warning for warning in tables.comparison_table([run]).warnings)


def test_settings_that_differ_are_listed_alone(runs: list[Run]) -> None:
    assert {row[0]: row[1:] for row in tables.settings_table(runs[:2]).rows} == {
        "optimize.peft.order": ("zeroth", "first")
    }


def test_words_from_a_recipe_stay_words(tmp_path: Path) -> None:
    title = "[red]a[/red] | <b>b</b> \x1b[31m"
    run = open_run(write_run(tmp_path / "r", triangle(2), title=title))
    shown = printed(tables.summary_table([run]), 200)
    assert "[red]a[/red] | <b>b</b>" in shown and "\x1b" not in shown
    first = tables.summary_table([run]).markdown().splitlines()[2]
    assert first.startswith(r"| \[red]a\[/red] \| \<b>b\</b>") and "\x1b" not in first


def test_markdown_has_a_line_per_run_and_its_warnings(runs: list[Run]) -> None:
    lines = tables.summary_table(runs).markdown().splitlines()
    assert lines[0].startswith("| run | method and placement | all classes (%) |")
    assert lines[1].startswith("| --- | --- | ---: |")
    assert len([line for line in lines if line.startswith("| ")]) == 2 + len(runs)
    assert "**Warning:** Just begun is unfinished: 0 of 5 tasks." in lines


# -- figures -------------------------------------------------------------------------------------------------


def test_a_run_has_one_colour_in_every_figure(runs: list[Run]) -> None:
    for chart, shown in ((figures.accuracy_over_tasks(runs), 4), (figures.forgetting_by_task(runs), 2)):
        colours = [COLOURS[curve.number] for curve in chart.curves]
        assert len(colours) == shown  # only two runs have more than one task
        assert [line.get_color() for line in picture(chart).axes[0].get_lines()] == colours
        assert [trace.line.color for trace in page_figure(chart).data] == colours


@pytest.mark.parametrize(("palette", "page_colour"), [(COLOURS, "#ffffff"), (DARK_COLOURS, "#14181d")])
def test_every_colour_stands_out_from_the_page(palette: tuple[str, ...], page_colour: str) -> None:
    def luminance(colour: str) -> float:  # WCAG 2.2
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert f"--page: {page_colour}".replace("#ffffff", "#fff") in page._read_asset("page.css")
    for colour in palette:
        low, high = sorted((luminance(colour), luminance(page_colour)))
        assert (high + 0.05) / (low + 0.05) >= 3


def test_runs_look_different_beyond_the_palette() -> None:
    assert len(COLOURS) == len(DARK_COLOURS)
    assert len({(CurveStyle.of(number).colour, CurveStyle.of(number).dash) for number in range(32)}) == 32


def test_lines_show_what_the_matrix_holds(runs: list[Run]) -> None:
    lines = {curve.label: curve for curve in figures.accuracy_over_tasks(runs).curves}
    assert lines["First order"].x == (1, 2, 3)
    assert lines["First order"].y == (90.0, 88.25, 86.5)
    assert lines["Joint"].level and lines["Joint"].x == (1, 20) and set(lines["Joint"].y) == {70.0}
    assert "Just begun" not in lines
    assert figures.forgetting_by_task(runs).curves[1].y == (3.0, 1.5)


def test_axes_have_names_and_units(runs: list[Run]) -> None:
    charts = figures.accuracy_over_tasks(runs), figures.forgetting_by_task(runs)
    accuracy, forgotten = (picture(chart).axes[0] for chart in charts)
    assert (accuracy.get_xlabel(), accuracy.get_ylabel()) == (
        "tasks learned (number)",
        "accuracy on all classes seen (%)",
    )
    assert (forgotten.get_xlabel(), forgotten.get_ylabel()) == ("task no.", "forgetting (percentage points)")
    heat = page_figure(figures.accuracy_heat_map(runs[1])).layout
    assert (heat.xaxis.title.text, heat.yaxis.title.text) == ("classes of task no.", "after task no.")


def test_pictures_are_the_same_each_time(runs: list[Run]) -> None:
    chart = figures.accuracy_over_tasks(runs)
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert encode(picture(chart), form).startswith(start)
    assert encode(picture(chart), "pdf") == encode(picture(chart), "pdf")


def test_titles_with_dollars_and_underscores_are_drawn_as_they_are(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "r", triangle(2), title="_cheap $5 $x^{"))
    drawn = picture(figures.accuracy_over_tasks([run]))
    assert b"<svg" in encode(drawn, "svg")
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["_cheap $5 $x^{"]


def test_a_run_without_a_matrix_has_no_heat_map(runs: list[Run]) -> None:
    with pytest.raises(ValueError, match="no task has been evaluated yet"):
        figures.accuracy_heat_map(runs[4])


def test_memory_stands_beside_accuracy_for_every_run_that_measured_both(runs: list[Run]) -> None:
    points = page_figure(figures.memory_and_accuracy(runs))
    assert points.layout.xaxis.title.text == "peak memory of a training step (MiB)"
    assert points.layout.yaxis.title.text == "accuracy on all classes (%)"
    found = {trace.meta["label"]: (trace.x[0], trace.y[0]) for trace in points.data}
    assert found["ZO-FC"] == (512, pytest.approx(67.2)) and "First order (unfinished)" in found
    assert len(found) == 4  # not the one that has just begun


def test_a_matrix_names_its_cells_and_writes_numbers_that_can_be_read_on_them(runs: list[Run]) -> None:
    heat = page_figure(figures.accuracy_heat_map(runs[2], 7)).data[0]
    assert heat.customdata[1] == "70.00 % all tasks at once, on the classes of task 2: class 2, class 3"
    assert heat.meta == {"run": 7}
    matrix = replace(runs[2].matrix, rows=((10.0, 90.0, None),))
    runs[2].write_matrix(matrix)
    cells, dark, light = page_figure(figures.accuracy_heat_map(runs[2])).data
    assert (cells.x, cells.marker.color) == (("1", "2"), (10.0, 90.0))  # none where nothing was measured
    assert (dark.text, dark.textfont.color) == (("10",), "#fff")
    assert (light.text, light.textfont.color) == (("90",), "#000")


# -- flatness ------------------------------------------------------------------------------------------------


ENTRY = {"task": 2, "old": {"score": 1.5}, "spectrum": {"largest": 3.0}, "trace": {"mean": 40.0}}


def test_flatness_is_drawn_by_the_parameters_it_is_about(runs: list[Run]) -> None:
    first = {"task": 1, "old": None, "spectrum": None, "trace": None}  # there are no old tasks yet
    content = {"settings": {"rho": 0.005}, "by_set": {"peft": [first, ENTRY], "peft+head": [{**ENTRY, "trace": None}]}}
    assert "Flatness" not in Parts(page.render(runs, "Not measured")).text
    run = runs[0]
    run.write_measurement("flatness", content)
    assert [(row.task, row.over, row.rho) for row in run.flatness] == [(2, "peft", 0.005), (2, "peft+head", 0.005)]
    assert run.flatness[0].values == {"phi": 1.5, "lambda_max": 3.0, "trace": 40.0}
    assert [chart.title for chart in figures.flatness_over_tasks([run, *runs[1:]])] == [
        "Score Φ, over peft",
        "Largest eigenvalue of the Hessian, over peft",
        "Trace of the Hessian, over peft",
        "Score Φ, over peft+head",
        "Largest eigenvalue of the Hessian, over peft+head",
    ]
    text = Parts(page.render([run, *runs[1:]], "Flat")).text
    assert "a step of length ρ = 0.005 up its gradient" in text


def test_flatness_over_decades_gets_a_logarithmic_axis(runs: list[Run]) -> None:
    def axis(*values: float) -> str | None:
        entries = [{"task": task, "old": {"score": value}} for task, value in enumerate(values, 1)]
        runs[0].write_measurement("flatness", {"by_set": {"peft": entries}})
        (chart,) = figures.flatness_over_tasks(runs[:1])
        assert picture(chart).axes[0].get_yscale() == ("log" if chart.y.log else "linear")
        kind: str | None = page_figure(chart).layout.yaxis.type
        return kind

    assert (axis(0.01, 2.0), axis(1.0, 2.0), axis(-1.0, 200.0)) == ("log", None, None)


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"by_set": [1]},
        {"by_set": {"peft": {"task": 1}}},
        {
            "by_set": {
                "peft": [3, None, {}, {"task": "x", "old": {"score": 1.0}}, {"task": 1, "old": {"score": "high"}}]
            }
        },
        {"something": [{"else": 1}]},
    ],
)
def test_flatness_in_other_words_does_not_break_the_page(runs: list[Run], content: object) -> None:
    (runs[0].path / "flatness.json").write_text(json.dumps(content))
    run = open_run(runs[0].path)
    assert run.flatness == ()
    assert "Flatness" not in Parts(page.render([run], "All runs")).text


# -- the page ------------------------------------------------------------------------------------------------


class Parts(HTMLParser):
    """What a browser would see: tags with their attributes, scripts, and the words outside them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.words.append(data)

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script draws."""
        return dict(json.loads(self.scripts[1]))

    @property
    def ids(self) -> list[str]:
        return [attrs["id"] or "" for _, attrs in self.tags if "id" in attrs]


def test_the_page_fetches_nothing(runs: list[Run], tmp_path: Path) -> None:
    page_text = page.write_report(runs, tmp_path / "report.html").read_text("utf-8")
    parts = Parts(page_text)
    assert not [tag for tag, _ in parts.tags if tag in ("link", "img", "iframe", "object", "embed", "base")]
    links = [value for _, attrs in parts.tags for name, value in attrs.items() if name in ("src", "href", "action")]
    assert links and all(str(link).startswith("#") for link in links)  # places on the page itself
    (policy,) = [attrs["content"] for _, attrs in parts.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy and policy.startswith("default-src 'none';") and "http" not in policy
    style = page_text[page_text.index("<style>") : page_text.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_the_page_has_a_place_for_every_figure_and_says_what_metrics_mean(runs: list[Run]) -> None:
    parts = Parts(page.render(runs, "All runs"))
    drawn = parts.data["figures"]
    assert set(drawn) == {"accuracy", "forgetting", "memory", "matrix-0", "matrix-1", "matrix-2", "matrix-3"}
    assert set(drawn) < set(parts.ids) and len(parts.ids) == len(set(parts.ids))
    assert [trace["meta"]["run"] for trace in drawn["accuracy"]["data"]] == [0, 1, 2, 3]
    for metric in ("all classes (%)", "forgetting before last (points)", "backward transfer (points)"):
        assert metric in parts.text
    assert "Lopez-Paz & Ranzato 2017, eq. 3" in parts.text
    for word in ("67.20", "512 MiB", "queries: 4", "abc", "88.39"):
        assert word in parts.text


def test_the_page_marks_unfinished_runs(runs: list[Run]) -> None:
    parts = Parts(page.render(runs, "All runs"))
    assert "First order unfinished: 3 of 20 tasks adapter: peft FO, head FO" in parts.text
    assert "Just begun unfinished: 0 of 5 tasks" in parts.text
    assert "ZO-FC unfinished" not in parts.text
    assert parts.text.count("First order is unfinished: 3 of 20 tasks.") == 1


def test_a_page_of_runs_that_have_nothing_to_show_yet(runs: list[Run]) -> None:
    parts = Parts(page.render(runs[4:], "Soon"))
    assert parts.text.count("No task has been evaluated yet.") == 2
    assert parts.data["figures"] == {}
    parts = Parts(page.render(runs[3:4], "One task"))
    assert "Forgetting is defined from the second task on" in parts.text
    assert set(parts.data["figures"]) == {"accuracy", "memory", "matrix-0"}


def test_a_page_is_small_enough_to_be_sent(runs: list[Run]) -> None:
    assert len(page.render(runs, "Runs").encode()) < 1_500_000
    used = {trace.type for run in runs if run.matrix for trace in page_figure(figures.accuracy_heat_map(run)).data}
    assert used <= {"bar", "scatter"}  # what plotly.js's basic bundle draws


def test_words_from_a_run_cannot_become_code(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    groups = [[evil, "owl & ‘mouse’"], ["\u2028", '"quoted"']]
    folder = write_run(tmp_path / "<i>r", triangle(2), groups=groups, title=evil, name=evil)
    (folder / "environment.json").write_text(json.dumps({"device_name": evil}))
    parts = Parts(page.render(read_runs([folder]), f"About {evil}"))
    assert len(parts.scripts) == 3  # plotly, the figures, ours
    assert not [tag for tag, attrs in parts.tags if tag in ("img", "i") and "style" not in attrs]
    assert not [name for _, attrs in parts.tags for name in attrs if name.startswith("on")]
    assert evil in parts.text
    cell = parts.data["figures"]["matrix-0"]["data"][0]["customdata"][0]
    assert evil in cell and "owl & ‘mouse’" in cell  # shown as text, never as tags
    assert parts.data["runs"][0]["label"] == evil
    assert "<" not in parts.scripts[1]


def test_pointing_at_a_run_tells_its_recipe_and_where_it_differs(runs: list[Run]) -> None:
    first, second = Parts(page.render(runs[:2], "Two")).data["runs"]
    assert (first["label"], second["label"]) == ("ZO-FC", "First order")
    assert ["method", "adapter: peft ZO ×4, head FO"] in first["recipe"]
    assert ["data", "cifar100-inc5, 20 tasks"] in first["recipe"]
    assert ["optimize.peft.order", "zeroth"] in first["recipe"] and ["optimize.peft.order", "first"] in second["recipe"]


def test_the_summary_says_what_its_columns_are_sorted_by(runs: list[Run]) -> None:
    grid = tables.summary_table(runs)
    assert grid.keys[0] == pytest.approx((67.2, 4.0, 52.0, 512 * 2**20, 125.0, 46105))
    assert set(grid.keys[4]) == {None}
    keys = [
        attrs["data-key"] for tag, attrs in Parts(page.render(runs, "")).tags if tag == "td" and "data-key" in attrs
    ]
    assert str(512 * 2**20 * 1.0) in keys and "125.0" in keys


def test_the_page_is_written_whole_or_not_at_all(runs: list[Run], tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    assert page.write_report(runs[:1], target) == target
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    with pytest.raises(RunError, match="new is a folder, expected the name of a file"):
        page.write_report(runs[:1], target.parent)
    with pytest.raises(RunError, match=r"cannot write .*report\.html: "):
        page.write_report(runs[:1], target / "report.html")
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    with pytest.raises(RunError, match="no runs"):
        page.write_report([], target)


# -- over seeds ----------------------------------------------------------------------------------------------


def test_runs_that_differ_in_the_seed_alone_become_a_mean_and_a_spread(tmp_path: Path) -> None:
    by_seed(tmp_path, "a", {1993: 80.0, 1994: 90.0})
    by_seed(tmp_path, "b", {1993: 70.0, 1994: 72.0, 1995: 74.0}, peft={"rank": 7})
    first, second = over_seeds(read_runs([tmp_path]))
    assert first.scores["all_classes"] == pytest.approx(83.25) and second.scores["all_classes"] == pytest.approx(70.25)
    assert first.spreads["all_classes"] == pytest.approx(50**0.5) and second.spreads["all_classes"] == pytest.approx(2)
    grid = tables.comparison_table([first, second])
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["all classes (%)"] == ("83.25 ± 7.07", "70.25 ± 2.00")
    assert rows["seeds"] == ("2: 1993, 1994", "3: 1993, 1994, 1995")
    assert any("mean ± standard deviation" in note for note in grid.notes)


def test_a_run_that_is_not_finished_and_a_second_one_with_a_seed_are_in_no_mean(tmp_path: Path) -> None:
    by_seed(tmp_path, "a", {1993: 80.0, 1994: 90.0})
    write_run(tmp_path / "a-1993-2", triangle(2, 60.0), seed=1993, name="a")
    write_run(tmp_path / "a-1995", triangle(1, 60.0), seed=1995, name="a", finished=False, tasks=2)
    found = over_seeds(read_runs([tmp_path]))
    assert [record.setting("seed") for record in found] == ["2: 1993, 1994", 1993, 1995]
    assert not found[1].spreads and not found[2].spreads


def test_means_over_seeds_stand_beside_the_papers_numbers(tmp_path: Path) -> None:
    paper = {"table": "main", "row": "zofc", "column": "cifar100-inc5"}
    by_seed(tmp_path, "a", {1993: 80.0, 1994: 90.0}, paper=paper)
    rows = {row[0]: row[1] for row in tables.comparison_table(over_seeds(read_runs([tmp_path]))).rows}
    printed = float(rows["paper's last²"])
    assert rows["ours − paper's last²"] == format_signed(83.25 - printed)


def seeds_apart(tmp_path: Path) -> Run:
    """Two seeds with other test images and other classes in a task, of which the flatness was measured."""
    for seed, rows, counts in ((1, [[80.0], [60.0, 90.0]], [100, 300]), (2, [[70.0], [50.0, 70.0]], [300, 100])):
        path = write_run(tmp_path / str(seed), rows, seed=seed, counts=counts, groups=[[f"{seed}a"], [f"{seed}b"]])
        sets = {"peft": [{"task": 2, "old": {"score": float(seed)}}], "head": [{"task": 2, "old": {"score": 5.0}}]}
        content = {"settings": {"rho": 0.05}, "by_set": dict(list(sets.items())[: 3 - seed])}
        (path / "flatness.json").write_text(json.dumps(content))
    (record,) = over_seeds(read_runs([tmp_path]))
    return record


def test_what_is_drawn_of_several_seeds_are_means_of_each_runs_own_numbers(tmp_path: Path) -> None:
    record = seeds_apart(tmp_path)
    assert record.accuracies.values == pytest.approx((75.0, (82.5 + 55.0) / 2))  # not of the mean matrix
    assert record.accuracies.spreads == pytest.approx((50**0.5, 27.5 / 2**0.5))
    assert record.drops.values == pytest.approx((20.0,)) and record.drops.spreads == pytest.approx((0.0,))
    assert record.matrix is not None and record.matrix.rows == ((75.0,), (55.0, 80.0))
    assert record.matrix.counts == (400, 400) and record.matrix.groups == ()  # classes of a task differ
    assert tables.matrix_table(record).rows[1][1] == "68.8"
    assert tables.summary_table([record]).rows[0][2] == "68.75 ± 19.45"
    over = {row.over: row for row in record.flatness}
    assert over["peft"].values == {"phi": 1.5} and over["peft"].spreads == pytest.approx({"phi": 0.5**0.5})
    assert over["head"].values == {"phi": 5.0} and over["head"].spreads == {"phi": None}


def test_only_runs_with_the_same_numbers_measured_are_put_together(tmp_path: Path) -> None:
    write_run(tmp_path / "1", [[80.0], [60.0, 90.0]], seed=1, title="A, seed 1")
    write_run(tmp_path / "2", [[80.0], [60.0, None]], seed=2)  # a mean over other tasks
    write_run(tmp_path / "3", [[80.0], [60.0, 70.0]], seed=3, finished=False, tasks=3)
    write_run(tmp_path / "4", None, seed=4)
    assert [len(record.paths) for record in over_seeds(read_runs([tmp_path]))] == [1, 1, 1, 1]
    path = write_run(tmp_path / "5", [[80.0], [60.0, 70.0]], seed=5, title="A, seed 5")
    first = over_seeds(read_runs([tmp_path]))[0]
    assert first.paths == (tmp_path / "1", path) and first.title == first.name  # not that of one of them
    for folder in first.paths:
        content = json.loads((folder / "metrics.json").read_text())
        (folder / "metrics.json").write_text(json.dumps({**content, "saved": True}))
    records = [open_run(folder) for folder in first.paths]
    assert len(over_seeds(records)) == 2  # each has classes of its own


def test_time_of_several_seeds_is_their_mean_memory_the_most_and_a_radius_is_one(tmp_path: Path) -> None:
    for seed, cost, rho in ((1, 10.0, 0.05), (2, 30.0, 0.1)):
        path = write_run(tmp_path / str(seed), triangle(2), seed=seed)
        content = json.loads((path / "metrics.json").read_text())
        seconds = {"train": cost, "evaluate": 2 * cost}
        (path / "metrics.json").write_text(json.dumps({**content, "seconds": seconds, "peak_memory": cost * 2**20}))
        measured = {"settings": {"rho": rho}, "by_set": {"peft": [{"task": 2, "old": {"score": cost}}]}}
        (path / "flatness.json").write_text(json.dumps(measured))
    (record,) = over_seeds(read_runs([tmp_path]))
    assert (record.train_seconds, record.evaluate_seconds, record.peak_memory) == (20.0, 40.0, 30 * 2**20)
    assert [(row.values, row.rho) for row in record.flatness] == [({"phi": 10.0}, 0.05)]


def test_figures_of_several_seeds_have_bars_and_those_of_one_run_none(tmp_path: Path) -> None:
    record = seeds_apart(tmp_path)
    for chart in (figures.accuracy_over_tasks, figures.forgetting_by_task, figures.memory_and_accuracy):
        (trace,) = page_figure(chart([record])).data
        assert len(trace.error_y.array) == len(trace.y) and "±" in trace.customdata[0]
        (trace,) = page_figure(chart([open_run(tmp_path / "1")])).data
        assert trace.error_y.array is None and "±" not in trace.customdata[0]
    by_heading = {chart.title: page_figure(chart).data[0] for chart in figures.flatness_over_tasks([record])}
    assert by_heading["Score Φ, over peft"].error_y.array == pytest.approx((0.5**0.5,))
    assert by_heading["Score Φ, over head"].error_y.array is None
    assert picture(figures.accuracy_over_tasks([record])).axes[0].containers  # error bars


def test_the_page_says_of_how_many_runs_its_lines_are_and_where_they_lie(tmp_path: Path) -> None:
    record = seeds_apart(tmp_path)
    write_run(tmp_path / "other", triangle(2), title="Other")
    text = page.render([record, open_run(tmp_path / "other")], "")
    assert "3 runs as 2: those that differ in the seed alone are one" in text
    assert all(f'<p class="folder">{tmp_path / name}</p>' in text for name in ("1", "2", "other"))
    alone = page.render([open_run(tmp_path / "other")], "")
    assert "1 run. " in alone and "over seeds" not in alone


def test_a_damaged_run_is_left_out_with_a_warning_unless_it_was_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, triangle(3), title=name)
    (tmp_path / "b" / "metrics.json").write_text("{")
    said: list[str] = []
    assert [record.title for record in read_runs([tmp_path], said.append)] == ["a"]
    (text,) = said
    assert text.startswith(f"left out: {tmp_path / 'b'}") and "metrics.json" in text
    for paths in ([tmp_path / "b"], [tmp_path / "a", tmp_path / "b"]):
        with pytest.raises(RunError, match=r"metrics\.json"):
            read_runs(paths, said.append)
    with pytest.raises(RunError, match=r"metrics\.json"):
        read_runs([tmp_path])


def test_a_run_that_learned_more_later_is_told_by_that_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", triangle(3), data={**SHARED["data"], "then": ("folder:new",)})
    (record,) = read_runs([tmp_path])
    assert data_split(record).endswith(" + folder:new")

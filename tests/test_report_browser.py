"""Facts about the report page as a person meets it: opened from disk in a real Chromium, without a window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import PROGRAM, Chromium
from test_report import FO, SHARED, triangle, write_run
from zofc.report import over_seeds, write_report
from zofc.runfolder import read_runs

OFF, ON = "false", "true"
FIGURES = ("accuracy", "forgetting", "memory", "flatness-0", "flatness-1", "flatness-2")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium: on Debian, apt-get install chromium")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    browser = Chromium(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


TITLES = (
    "ZO-FC",
    "First order",
    "A run whose title says a great deal more than any figure has room for",
    "<b>Bold</b> & </script> sharp",
    "Joint",
    "Slow",
    "Just begun",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven runs: long names, names with tags, crowded points, flatness in two, one without any result."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "0", triangle(10, drop=0.4), title=TITLES[0])
    write_run(folder / "1", triangle(10), title=TITLES[1], optimize={"peft": FO, "head": FO})
    write_run(folder / "2", triangle(9, 80.0), title=TITLES[2], finished=False, tasks=10)
    write_run(folder / "3", triangle(10, 84.0), title=TITLES[3], method={"name": "simplecil"}, optimize={})
    write_run(folder / "4", [[80.0, 70.0, 60.0]], title=TITLES[4], data={**SHARED["data"], "joint": True})
    write_run(folder / "5", triangle(10, 88.0, 0.9), title=TITLES[5], seed=7)
    write_run(folder / "6", None, tasks=10, title=TITLES[6])
    costs = {
        "0": (500, 60.0),
        "1": (2100, 35.5),
        "2": (510, 61.0),
        "3": (505, 4.0),
        "4": (2100, 48.0),
        "5": (640, 4000),
    }
    for name, (mib, seconds) in costs.items():
        path = folder / name / "metrics.json"
        path.write_text(
            json.dumps(
                json.loads(path.read_text())
                | {"peak_memory": mib * 2**20, "seconds": {"train": seconds, "evaluate": 3.0}}
            )
        )
    for name, sharp in (("0", 1.0), ("1", 3.0)):
        entries = [
            {"task": task, "old": {"score": sharp / task}, "spectrum": {"largest": sharp * task},
             "trace": {"mean": 40 * sharp * task}}
            for task in range(1, 11)
        ]  # fmt: skip
        content = {"settings": {"rho": 0.05}, "by_set": {"peft": entries}}
        (folder / name / "flatness.json").write_text(json.dumps(content))
    return write_report(read_runs([folder]), folder / "report.html")


@pytest.fixture(scope="module")
def means(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three kinds of runs with two seeds each."""
    folder = tmp_path_factory.mktemp("means")
    for number, start in enumerate((90.0, 84.0, 60.0)):
        for seed in (1, 2):
            rows = triangle(5, start + 3 * seed, 0.5 * seed)
            write_run(folder / f"{number}-{seed}", rows, title=TITLES[number], seed=seed, peft={"rank": 4 + number})
    return write_report(over_seeds(read_runs([folder])), folder / "report.html")


def column(chromium: Chromium, number: int) -> list[str]:
    return list(
        chromium.run(f"[...document.querySelectorAll('#summary tbody tr')].map(r => r.cells[{number}].innerText)")
    )


def lines(chromium: Chromium, figure: str) -> list[int]:
    """Which runs a figure holds, once one looks at it."""
    chromium.run(f"document.getElementById({figure!r}).scrollIntoView()")
    chromium.settle()
    return list(chromium.run(f"document.getElementById({figure!r}).data.map(trace => trace.meta.run)"))


def shown(chromium: Chromium, selector: str) -> list[int]:
    """The runs of the elements that can be seen."""
    script = f"[...document.querySelectorAll({selector!r})].filter(e => !e.hidden).map(e => Number(e.dataset.run))"
    return list(chromium.run(script))


# -- facts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_opens_without_a_complaint_and_fetches_nothing(chromium: Chromium, report: Path, width: int) -> None:
    chromium.open(report, width)
    chromium.prefer(dark=True)
    assert chromium.complaints == []
    assert chromium.run("document.querySelectorAll('.figure:not(.empty) .main-svg').length") >= len(FIGURES)


def test_a_click_on_a_heading_sorts_the_summary_and_another_turns_it_round(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    assert column(chromium, 0) == list(TITLES)
    memory = "#summary th:nth-child(6)"
    chromium.click(f"{memory} button")
    assert column(chromium, 5) == ["500 MiB", "505 MiB", "510 MiB", "640 MiB", "2.05 GiB", "2.05 GiB", "—"]
    assert chromium.run(f"document.querySelector('{memory}').ariaSort") == "ascending"
    chromium.click(f"{memory} button")
    assert column(chromium, 5)[:3] == ["2.05 GiB", "2.05 GiB", "640 MiB"]
    assert column(chromium, 5)[-1] == "—"  # what is missing stays last
    chromium.click("#summary th:nth-child(7) button")
    assert column(chromium, 6) == ["4 s", "35.5 s", "48 s", "1.0 min", "1.0 min", "1.1 h", "—"]
    assert chromium.run("document.querySelectorAll('[aria-sort]').length") == 1
    chromium.click("#summary th:nth-child(1) button")
    assert column(chromium, 0)[1:3] == [TITLES[2], "First order"]
    assert chromium.complaints == []


def test_a_run_switched_off_leaves_every_figure_and_table(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    places = (".card", ".bars .row", "#summary tr[data-run]", "#compare thead th[data-run]", "section")
    for figure in FIGURES:
        assert 1 in lines(chromium, figure)
    assert all(1 in shown(chromium, place) for place in places)
    chromium.click(".key [data-run='1']")
    assert chromium.run("document.querySelector('.key [data-run=\"1\"]').ariaPressed") == OFF
    for figure in FIGURES:
        assert 1 not in lines(chromium, figure) and 0 in lines(chromium, figure)
    assert all(1 not in shown(chromium, place) and 0 in shown(chromium, place) for place in places)
    assert "First order" not in chromium.run("document.getElementById('memory').textContent")
    chromium.click(".key [data-run='1']")
    assert chromium.run("document.querySelector('.key [data-run=\"1\"]').ariaPressed") == ON
    assert all(1 in lines(chromium, figure) for figure in FIGURES)
    assert chromium.complaints == []


def test_the_field_keeps_the_runs_with_those_words(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    chromium.type("#only", "SEED: 7")
    assert shown(chromium, ".bars .row") == [5] and lines(chromium, "accuracy") == [5]
    assert shown(chromium, ".key button") == [5]  # the only ones to look up in the key
    chromium.click("#none")
    assert shown(chromium, ".bars .row") == [] and shown(chromium, ".key button") == list(range(7))
    assert chromium.run("document.querySelectorAll('.figure.empty').length") == len(FIGURES) + 6  # and six matrices
    chromium.click("#all")
    assert shown(chromium, ".bars .row") == list(range(7))
    assert chromium.run("document.querySelectorAll('.figure.empty').length") == 0
    assert chromium.complaints == []


def test_the_field_takes_several_words_with_commas_between(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    chromium.type("#only", "adapter, method: adapter: peft ZO")
    assert shown(chromium, ".bars .row") == [0, 2, 5, 6]  # not the joint run: adapter (joint)
    chromium.ask("Input.insertText", text=", seed: 7,")
    assert shown(chromium, ".bars .row") == [5]


def test_bars_of_time_are_drawn_against_the_longest_that_is_shown(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    bar = "document.querySelector('.row[data-run=\"2\"] i').getBoundingClientRect().width"
    before = chromium.run(bar)
    chromium.click(".key [data-run='5']")
    assert chromium.run(bar) > 10 * before


def test_the_tasks_of_a_figure_are_those_of_the_runs_shown(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    axis = "(f => [f.layout.xaxis.range.map(Math.round), f.layout.xaxis.dtick, f.data.at(-1).x.at(-1)])"
    assert chromium.run(f"{axis}(document.getElementById('accuracy'))") == [[1, 10], 1, 10]
    chromium.click("#none")
    chromium.click(".key [data-run='2']")
    chromium.click(".key [data-run='4']")  # the joint run, a level
    assert lines(chromium, "accuracy") == [2, 4]
    assert chromium.run(f"{axis}(document.getElementById('accuracy'))") == [[1, 9], 1, 9]


@pytest.mark.parametrize(
    "place", [".key [data-run='5']", "#summary [data-run='5'] th", "#memory .trace:nth-child(6) path"]
)
def test_pointing_at_a_run_shows_its_recipe(chromium: Chromium, report: Path, place: str) -> None:
    chromium.open(report)
    assert chromium.run("document.getElementById('tip').hidden")
    chromium.point(place)
    words = chromium.run("document.getElementById('tip').innerText")
    assert words.startswith("Slow") and "adapter: peft ZO ×4, head FO" in words and "vit_base_patch16_224" in words
    chromium.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    chromium.until("document.getElementById('tip').hidden")


def test_the_keyboard_reaches_a_run_and_its_recipe(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    chromium.click("#none")
    chromium.press("Tab")
    assert chromium.run("document.activeElement.dataset.run") == "0"
    assert chromium.run("document.getElementById('tip').innerText").startswith(TITLES[0])
    chromium.press("Escape")
    assert chromium.run("document.getElementById('tip').hidden")
    chromium.press("Tab")
    assert chromium.run("document.getElementById('tip').innerText").startswith(TITLES[1])


def test_the_lines_of_the_run_pointed_at_stand_out(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    chromium.click("#summary th:nth-child(6) button")  # in whatever order its rows are
    faint = (
        "(f => [...f.querySelectorAll('.trace')].map((e, n) => [f.data[n].meta.run, getComputedStyle(e).opacity < 1])"
        ".filter(([, faint]) => faint).map(([run]) => run))(document.getElementById('accuracy'))"
    )
    assert chromium.run(faint) == []
    chromium.point("#summary [data-run='3'] th")
    assert chromium.run(faint) == [0, 1, 2, 4, 5]
    chromium.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert chromium.run(faint) == []


def test_pointing_at_a_cell_of_a_matrix_names_its_classes(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    chromium.point("#matrix-4 .barlayer .point:nth-child(2)")  # the joint run: three cells, the middle one
    words = chromium.run("document.getElementById('tip').innerText")
    assert "70.00 % all tasks at once, on the classes of task 2: class 2, class 3" in words


def test_names_with_tags_stay_words(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    assert chromium.run("document.querySelectorAll('body b:not(.bar b)').length") == 0
    assert TITLES[3] in chromium.run("document.querySelector('#summary').innerText")
    drawn = chromium.run("[...document.querySelectorAll('#memory .annotation-text')].map(e => e.textContent)")
    assert TITLES[3].replace(" ", "") in [text.replace(" ", "") for text in drawn]


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_nothing_is_wider_than_the_screen(chromium: Chromium, report: Path, width: int) -> None:
    chromium.open(report, width, 844)
    chromium.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert chromium.run("document.documentElement.scrollWidth") == width
    wide = chromium.run(
        "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.wide, .key, pre, svg, [hidden]')).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


def test_on_a_phone_accuracies_are_seen_without_moving_the_table(chromium: Chromium, report: Path) -> None:
    chromium.open(report, 390, 844)
    right = "(name => document.querySelector(`#summary tbody ${name}`).getBoundingClientRect().right)"
    assert 0 < chromium.run(f"{right}('td:not(.name)')") < 390
    chromium.click("#summary th:nth-child(3) button")
    assert column(chromium, 2) == sorted(column(chromium, 2))
    assert "adapter: peft ZO ×4, head FO; cifar100-inc5" in chromium.run("document.querySelector('section').innerText")


OVERLAPS = """
(() => {
  const found = [];
  for (const figure of document.querySelectorAll('.figure')) {
    const outer = figure.getBoundingClientRect();
    const boxes = [...figure.querySelectorAll('svg text')].map(e => [e.textContent, e.getBoundingClientRect()])
      .filter(([text, box]) => text.trim() && box.width);
    boxes.forEach(([text, a], number) => {
      if (a.left < outer.left - 1 || a.right > outer.right + 1 || a.top < outer.top - 1 || a.bottom > outer.bottom + 1)
        found.push(`${figure.id}: ${text} is cut`);
      for (const [other, b] of boxes.slice(number + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
          found.push(`${figure.id}: ${text} on ${other}`);
    });
  }
  return found;
})()
"""


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_no_words_of_a_figure_overlap_or_are_cut(chromium: Chromium, report: Path, width: int) -> None:
    chromium.open(report, width)
    assert chromium.run(OVERLAPS) == []
    named = chromium.run("document.querySelectorAll('#memory .annotation-text').length")
    assert named == 6  # every run that was measured


@pytest.mark.parametrize("width", [1280, 390])
def test_means_over_seeds_have_bars_that_are_seen_and_overlap_no_words(
    chromium: Chromium, means: Path, width: int
) -> None:
    chromium.open(means, width)
    assert chromium.complaints == [] and chromium.run(OVERLAPS) == []
    for figure in ("accuracy", "forgetting", "memory"):
        assert lines(chromium, figure) == [0, 1, 2]
        bars = f"[...document.querySelectorAll('#{figure} .errorbar')].map(bar => bar.getBoundingClientRect().height)"
        assert chromium.run(f"{bars}.filter(height => height > 1).length") >= 3, figure
    assert all("±" in cell for cell in column(chromium, 2))


def test_every_axis_has_a_name_and_a_unit(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    names = chromium.run(
        "[...document.querySelectorAll('.figure')].map(e => [e.id,"
        " ...['.xtitle', '.ytitle'].map(axis => e.querySelector(axis).textContent)])"
    )
    assert len(names) == len(FIGURES) + 6
    for figure, x, y in names:
        for name in (x, y):
            assert name.endswith(("(number)", " no.", "(%)", "(MiB)", "points)", "parameter²)", "ρ)")), (figure, name)
    assert chromium.run("document.querySelector('.scale').innerText").startswith("accuracy (%)")


def test_the_parts_of_the_page_are_a_click_away(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    targets = chromium.run("[...document.querySelectorAll('nav a')].map(e => e.getAttribute('href'))")
    assert len(targets) == len(chromium.run("[...document.querySelectorAll('h2')].map(e => e.innerText)")) - 1
    for target in targets:
        chromium.run(f"document.querySelector('nav a[href=\"{target}\"]').click()")
        chromium.settle()
        heading = f"document.querySelector('h2{target}').getBoundingClientRect()"
        assert chromium.run(f"{heading}.top > document.querySelector('.key').getBoundingClientRect().bottom"), target
        assert chromium.run(f"{heading}.bottom < innerHeight"), target


def test_on_paper_every_figure_is_drawn_light_and_no_wider_than_the_sheet(chromium: Chromium, report: Path) -> None:
    chromium.open(report, dark=True)
    chromium.click(".key [data-run='1']")  # a change that figures out of sight have not followed yet
    chromium.run(
        "addEventListener('beforeprint', () => { printed = [...document.querySelectorAll('.figure')]"
        ".filter(e => e.clientWidth)"
        ".map(e => [e.data.every(t => t.meta.run !== 1), e.layout.width, e.layout.font.color]); }); var printed"
    )
    chromium.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
    printed = chromium.run("printed")
    assert len(printed) == len(FIGURES) + 5  # one matrix is switched off
    assert all(right and width <= 704 and colour == "#1b1f24" for right, width, colour in printed)
    assert chromium.run("document.getElementById('accuracy').layout.width") > 1000  # as before, on the screen
    assert chromium.complaints == []


def test_figures_shrink_with_the_window(chromium: Chromium, report: Path) -> None:
    chromium.open(report, 700)
    chromium.ask("Emulation.setDeviceMetricsOverride", width=390, height=900, deviceScaleFactor=1, mobile=False)
    chromium.settle()
    chromium.run("document.getElementById('matrix-0').scrollIntoView()")
    chromium.settle()
    assert chromium.run("document.querySelector('#matrix-0 .main-svg').getBoundingClientRect().right") <= 390
    assert chromium.run("document.querySelector('#accuracy .main-svg').getBoundingClientRect().right") <= 390


def test_the_page_follows_the_width_and_the_mode_it_is_shown_in(chromium: Chromium, report: Path) -> None:
    chromium.open(report)
    light = chromium.picture("report.png")
    chromium.prefer(dark=True)
    dark = chromium.picture("report-dark.png")
    assert light[:8] == dark[:8] == b"\x89PNG\r\n\x1a\n" and light != dark
    grounds = "[getComputedStyle(document.body).backgroundColor, document.querySelector('#accuracy text').style.fill]"
    assert chromium.run(grounds) == ["rgb(20, 24, 29)", "rgb(227, 232, 238)"]
    chromium.prefer(dark=False)
    assert chromium.run(grounds) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
    assert chromium.picture() == light
    chromium.open(report, 390, 844)
    assert chromium.run("document.querySelector('#accuracy .main-svg').getBoundingClientRect().width") <= 390
    chromium.picture("report-phone.png")

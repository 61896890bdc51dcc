"""Facts about the page of results: when a claim holds, and that the page is what the result files give."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))

import results_page  # noqa: E402
from claims import CLAIMS, FORGETTING, Claim, first, trade_off  # noqa: E402
from measures import LEARNED, LOST, MEMORY, SECONDS  # noqa: E402
from verdicts import Runs, at_most, every, judged, less, more, pair, times, turns, within  # noqa: E402

from zofc.metrics import METRICS, AccuracyMatrix, all_classes_over_time  # noqa: E402
from zofc.studies.catalogue import STUDIES  # noqa: E402
from zofc.studies.scale import get_scale  # noqa: E402
from zofc.studies.settings import SETTINGS  # noqa: E402

DATA = {"cifar100": "sha256:" + "d" * 64}
ENVIRONMENT = {"python": "3.12.3", "torch": "2.11.0", "timm": "1.0.29", "device_name": "NVIDIA H200"}
ONE, OTHER = Runs("one", ("main-table",)), Runs("other", ("main-table",))
REFUSED = "this method needs tasks with new classes"


def trained(line: str, setting: str = "cifar100-inc5", seed: int = 1993, **numbers: Any) -> dict[str, Any]:
    """A made-up row of a trained run."""
    usual = {
        "all_classes": 50.0, "average_incremental": 60.0, "final_average": 50.0, "last_task": 55.0, "forgetting": 10.0,
        "over_time": [80.0, 60.0, 50.0], "peak_memory": 2**30, "steps": 9, "seconds": {"train": 1.0},
        "environment": ENVIRONMENT, "backbone": "b" * 64, "data": DATA, "run": f"{line}-{setting}-{seed}",
        "flatness": {"peft": [[2, 0.3], [3, 0.2]], "peft+head": [[2, 0.5], [3, 0.4]]},
    }  # fmt: skip
    return {"line": line, "setting": setting, "seed": seed, **usual, **numbers}


def measured(line: str, groups: Sequence[str], seconds: float) -> dict[str, Any]:
    """A made-up row of what a step costs."""
    phase = {
        "groups": list(groups), "peak": 2**30, "epoch_seconds": seconds, "executed": {"total": 30, "update": 10},
        "formula": {"forwards": 3.0, "total": 60, "backward": 20}, "differences": [],
    }  # fmt: skip
    cost = {
        "device": "cuda", "precision": "fp32", "batch_size": 48, "steps_per_epoch": 10, "steps": 5,
        "forward": {"backbone": 1}, "phases": [phase], "conventions": [],
    }  # fmt: skip
    row = {"line": line, "setting": "cifar100-inc5", "seed": 1993, "environment": ENVIRONMENT}
    return {**row, "cost": cost, "result": f"{line}.cost.json"}


def two(ones: Sequence[float], others: Sequence[float], **kinds: str) -> dict[str, list[dict[str, Any]]]:
    """Two lines whose forgetting is given for each seed."""
    rows = [trained("one", seed=seed, forgetting=value, **kinds) for seed, value in enumerate(ones)]
    return {"main-table": rows + [trained("other", seed=seed, forgetting=value) for seed, value in enumerate(others)]}


def everything(settings: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows for every line of every study in these settings."""
    found: dict[str, list[dict[str, Any]]] = {}
    for study in STUDIES.values():
        if study.shows in ("runtime", "operations"):
            found[study.name] = [measured(line.title, line.moving, 1.0) for line in study.lines]
        else:
            found[study.name] = [trained(line.title, name) for name in settings if name in study.settings
                                 for line in study.lines]  # fmt: skip
    return found


def claim(begins: str) -> Claim:
    (found,) = [claim for some in CLAIMS.values() for claim in some if claim.text.startswith(begins)]
    return found


# -- when a difference counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ones", "others", "word"),
    [
        ([5.0, 6.0, 5.5], [9.0, 9.5, 10.0], "holds"),
        ([9.0, 9.5, 10.0], [5.0, 6.0, 5.5], "does not hold"),
        ([5.0, 9.0, 6.0], [6.0, 7.0, 7.0], "within the spread of seeds"),  # less in two of three
        ([5.0, 50.0, 8.0], [6.0, 51.0, 9.0], "holds"),  # paired: seeds differ by more than lines do
        ([5.0], [9.0], "holds (one seed)"),
        ([9.0], [5.0], "does not hold (one seed)"),
        ([5.0], [5.0], "no difference (one seed)"),
        ([5.0, 4.0], [9.0], "holds (one seed)"),  # the other seed has nothing beside it
        ([], [5.0], "not measured"),
    ],
)
def test_a_difference_counts_beyond_the_spread_of_seeds(ones: list[float], others: list[float], word: str) -> None:
    found = judged(pair(ONE, OTHER, FORGETTING, less))(two(ones, others))
    assert found.word == word
    turned = {"holds": "does not hold", "does not hold": "holds"}
    expected = turned.get(word.partition(" (")[0], word.partition(" (")[0])
    assert judged(pair(ONE, OTHER, FORGETTING, more))(two(ones, others)).word.partition(" (")[0] == expected


def test_a_verdict_names_the_numbers_that_it_rests_on() -> None:
    found = judged(pair(ONE, OTHER, FORGETTING, less))(two([5.0, 6.0], [9.0, 11.0]))
    assert found.because == "Forgetting, points: cifar100-inc5 one 5.50 beside other 10.00 (−4.50 ± 0.50)."


def test_a_claim_that_holds_in_some_settings_says_in_how_many_and_where_it_does_not() -> None:
    settings = ("cifar100-inc5", "caltech101-inc10", "pacs-styles", "pacs-pooled")
    rows = [trained("other", setting, forgetting=8.0) for setting in settings]
    rows += [trained("one", setting, forgetting=14.0 if "pooled" in setting else 5.0) for setting in settings]
    found = judged(pair(ONE, OTHER, FORGETTING, less))({"main-table": rows})
    assert found.word == "holds in 3 of 4 (one seed)"
    assert "pacs-pooled +6.00" in found.because and "Against the claim: pacs-pooled." in found.because


def test_failed_cells_are_in_no_comparison() -> None:
    rows = two([5.0], [9.0])
    rows["main-table"][0] = {"line": "one", "setting": "cifar100-inc5", "seed": 0, "failed": REFUSED}
    assert judged(pair(ONE, OTHER, FORGETTING, less))(rows).word == "not measured"


def test_streams_whose_tasks_bring_no_new_classes_are_told_apart_and_not_counted() -> None:
    rows = [trained(line, setting, forgetting=value) for line, setting, value in (
        ("one", "pacs-styles", 5.0), ("other", "pacs-styles", 6.0),
        ("one", "pacs-domains", 9.0), ("other", "pacs-domains", 2.0))]  # fmt: skip
    found = judged(pair(ONE, OTHER, FORGETTING, less))({"main-table": rows})
    assert found.word == "holds (one seed)"
    assert "Not counted, since tasks bring no new classes: pacs-domains 0 of 1 (+7.00)." in found.because


@pytest.mark.parametrize(
    ("difference", "word"),
    [([0.1, 0.2, 0.3], "holds"), ([2.0, 2.1, 2.2], "does not hold"), ([0.2, 1.6, 0.6], "within the spread of seeds")],
)
def test_close_means_within_the_margin_by_the_same_rule(difference: list[float], word: str) -> None:
    rows = two([5 + value for value in difference], [5.0] * 3)
    assert judged(pair(ONE, OTHER, FORGETTING, within(1.0)))(rows).word == word
    assert judged(pair(OTHER, ONE, FORGETTING, within(1.0)))(rows).word == word
    assert judged(pair(ONE, OTHER, FORGETTING, at_most(1.0)))(rows).word == word


def test_exact_costs_say_nothing_of_seeds() -> None:
    rows = {"main-table": [trained("one", peak_memory=2**29), trained("other")]}
    found = judged(times(ONE, OTHER, MEMORY, at_most(1)))(rows)
    assert found.word == "holds" and "one 0.500 beside other 1.000 (0.50×)" in found.because


def test_what_both_rises_and_falls_turns() -> None:
    def steps(values: Sequence[float]) -> str:
        runs = [Runs(f"step {number}", ("main-table",)) for number in range(len(values))]
        rows = [trained(one.line, forgetting=value) for one, value in zip(runs, values, strict=True)]
        asked = [pair(b, a, FORGETTING, more) for a, b in pairwise(runs)]
        return judged(turns(asked))({"main-table": rows}).word

    assert steps([1, 2, 3, 2]) == "holds (one seed)"
    assert steps([1, 2, 3, 4]) == "does not hold (one seed)"
    assert steps([1, 1, 1, 1]) == "no difference (one seed)"


def test_a_trade_off_is_lost_to_what_is_more_accurate_with_no_more_memory() -> None:
    def beside(**numbers: Any) -> str:
        rows = [trained("ZO-FC"), trained("EASE, FO", **numbers), trained("L2P, FO", all_classes=1.0)]
        return judged(every([trade_off(first("EASE")), trade_off(first("L2P"))]))({"main-table": rows}).word

    assert beside(all_classes=60.0, peak_memory=2**31) == "holds (one seed)"
    assert beside(all_classes=40.0, peak_memory=2**29) == "holds (one seed)"
    assert beside(all_classes=60.0, peak_memory=2**30) == "does not hold (one seed)"
    assert beside(all_classes=50.0, peak_memory=2**29) == "no difference (one seed)"


def test_what_was_learned_is_the_mean_over_tasks_of_the_best_accuracy() -> None:
    matrix = AccuracyMatrix(((90.0,), (85.0, 70.0), (60.0, 75.0, 80.0)), (10, 10, 10))
    names = ("final_average", "forgetting")
    row = {name: METRICS[name].compute(matrix) for name in names} | {"over_time": all_classes_over_time(matrix)}
    assert LEARNED.of(row) == pytest.approx((90 + 75 + 80) / 3)
    assert LOST.of(row) == pytest.approx(100 * 30 / (90 + 75 + 80))


# -- the claims ------------------------------------------------------------------------------------------------------


def test_every_claim_finds_its_lines_in_the_studies_that_it_names() -> None:
    rows = everything(list(SETTINGS))
    for one in (one for some in CLAIMS.values() for one in some):
        assert set(one.studies) <= set(STUDIES)
        word = one.verdict({name: rows[name] for name in one.studies}).word
        assert word == "cannot be tested here" if not one.studies else word not in ("not measured", "")
        absent = one.verdict({})
        assert absent.word in ("not measured", "cannot be tested here") and absent.because


def test_claims_about_data_that_were_not_run_cannot_be_tested() -> None:
    here = everything(["cifar100-inc5", "cifar100-inc10", "pacs-styles"])
    found = claim("On ImageNet-R accuracy rises").verdict(here)
    assert found.word == "cannot be tested here" and "ImageNet-R" in found.because
    assert claim("On DomainNet").verdict(here).word == "cannot be tested here"
    assert claim("On DomainNet").verdict(everything(list(SETTINGS))).word != "cannot be tested here"


def test_the_papers_own_numbers_are_counted_by_the_same_rule() -> None:
    assert claim("ZO-FC is more accurate than every").verdict({}).because.endswith("own numbers: 24 of 24.")
    forgets = claim("A method forgets less").verdict({}).because
    assert forgets == "No rows of main-table, inc10-table. In the paper's own numbers: 16 of 24."
    assert "3.17 points" in claim("It is comparable").text  # ImageNet-R in tasks of ten: 73.27 − 70.10


def test_verdicts_follow_the_rows() -> None:
    better = [trained("ZO-FC", "cifar100-inc10", all_classes=51.0, forgetting=6.0)]
    worse = [trained("ZO-FC", "cifar100-inc10", all_classes=30.0, forgetting=26.0)]
    others = [trained(f"{name}, {order}", "cifar100-inc10") for order in ("FO", "ZO") for name in
              ("Learnable Cls.", "Adapter + Cls.", "LAE Adapter", "L2P", "EASE")]  # fmt: skip
    for text in ("ZO-FC is more accurate than every", "It is comparable in", "Its zeroth-order adapter adds",
                 "It forgets less than every", "With ten classes a task", "Its forgetting is the"):  # fmt: skip
        assert claim(text).verdict({"inc10-table": better + others}).word == "holds (one seed)", text
        assert claim(text).verdict({"inc10-table": worse + others}).word == "does not hold (one seed)", text


def test_time_is_compared_in_the_epochs_that_a_line_is_about() -> None:
    rows = {"runtime": [measured("FO", ("head", "peft"), 2.0), measured("ZO, q = 1", ("head", "peft"), 1.5)]}
    found = claim("With one query").verdict(rows)
    assert found.word == "holds (one seed)" and "ZO, q = 1 1.500 beside FO 2.000 (0.75×)" in found.because
    assert SECONDS.of(measured("FO", ("peft",), 2.0)) is None


# -- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with result files for a handful of studies."""
    rows = everything(["cifar100-inc5", "cifar100-inc10", "pacs-styles", "pacs-domains"])
    for row in rows["main-table"]:
        if row["setting"] == "pacs-domains" and row["line"].startswith("EASE"):
            row["failed"] = REFUSED
    again = [{**row, "seed": 1994, "all_classes": 52.0} for row in rows["main-table"]]
    rows["main-table"] += again
    folder = tmp_path / results_page.RESULTS
    folder.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (folder / results_page.NOTES).write_text("The last third of the images.\n", "utf-8")
    for name in ("main-table", "inc10-table", "tradeoff", "flatness-curves", "runtime", "flops"):
        scale = get_scale("small") if name in ("runtime", "flops") else get_scale("small").faster()
        told = {"study": name, "scale": "small", "says": scale.says, "changes": ["backbone.name=b.safetensors"]}
        (folder / f"{name}.json").write_text(json.dumps({**told, "rows": rows[name]}), "utf-8")
    monkeypatch.setattr(results_page, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["results_page.py"])
    return tmp_path


def test_the_page_has_what_was_run_the_claims_the_studies_and_what_is_open(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results_page.main()
    text = (here / results_page.PAGE).read_text("utf-8")
    assert "docs/RESULTS.md written" in capsys.readouterr().out
    flat = " ".join(text.split())
    assert get_scale("small").says in flat and get_scale("small").faster().says in flat
    assert "NVIDIA H200, Python 3.12.3, torch 2.11.0, timm 1.0.29." in flat
    assert "sha256 bbbbbbbbbbbb…" in flat and "Seeds 1993 and 1994 (main-table)," in flat
    assert "files: cifar100 dddddddddddd…." in flat and "- The last third of the images.\n" in text
    assert 'CHANGES="backbone.name=b.safetensors"\n' in text
    command = "zofc reproduce main-table --scale small --dataset cifar100 --dataset pacs --fast --seeds 2 $CHANGES\n"
    assert command in text and "zofc reproduce runtime --scale small --dataset cifar100 $CHANGES\n" in text
    assert "imagenet-r-inc5, imagenet-r-inc10 and domainnet-inc69 were not run" in flat

    for claim in (claim for some in CLAIMS.values() for claim in some):
        assert f"| {claim.text} | {claim.where} | " in text
    assert "main-table and inc10-table were run with `--fast`" in flat
    assert "| SimpleCIL | 60.00 ± 0.00 \\[87.57] | 51.00 ± 1.41 \\[81.26] |" in text
    assert f"No numbers on pacs-domains for EASE, FO; EASE, ZO. {REFUSED}" in text
    assert text.count("## What could not be tested here") == 1 and "`query-ablation`" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "!", "zofc"))) <= 120


def test_a_check_writes_nothing_and_says_whether_the_page_differs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results_page.main()
    monkeypatch.setattr(sys, "argv", ["results_page.py", "--check"])
    capsys.readouterr()
    results_page.main()
    assert capsys.readouterr().out == "docs/RESULTS.md is as the results are\n"
    page = here / results_page.PAGE
    page.write_text(page.read_text("utf-8") + "by hand\n", "utf-8")
    results_page.main()
    assert capsys.readouterr().out == "docs/RESULTS.md differs from the results\n"
    assert page.read_text("utf-8").endswith("by hand\n")


def test_figures_are_the_same_each_time_and_those_of_no_study_go(here: Path) -> None:
    results_page.main()
    folder = here / results_page.FIGURES
    first_time = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(first_time) == {"tradeoff-cifar100-inc5.png", "flatness-curves-cifar100-inc5-peft.png",
                               "flatness-curves-cifar100-inc5-peft-head.png"}  # fmt: skip
    (folder / "old.png").write_bytes(b"")
    results_page.main()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first_time
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (here / results_page.PAGE).read_text("utf-8"))
    assert {Path(link).name for link in links} == set(first_time)


def test_without_results_nothing_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (here / results_page.RESULTS).iterdir():
        path.unlink()
    results_page.main()
    assert capsys.readouterr().out == "no results in results/small: nothing written\n"
    assert not (here / results_page.PAGE).exists() and not (here / results_page.FIGURES).exists()


@pytest.mark.skipif(not any((ROOT / results_page.RESULTS).glob("*.json")), reason="no results at small scale")
def test_the_page_is_what_the_result_files_give() -> None:
    results = results_page.load(ROOT / results_page.RESULTS)
    assert (ROOT / results_page.PAGE).read_text("utf-8") == results_page.page(results)
    pictures = {name for result in results for name, _ in results_page.drawn(result)}
    assert {path.name for path in (ROOT / results_page.FIGURES).iterdir()} == pictures

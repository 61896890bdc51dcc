"""Facts about the page of results: what it says first, and that it is what the result files give."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import results_page
from claims import CLAIMS
from claims.verdicts import RULE
from made_rows import everything, trained
from page import files, setup, training
from zofc.studies.scale import get_scale

ROOT = Path(__file__).resolve().parents[1]
REFUSED = "this method needs tasks with new classes"
STUDIES = ("main-table", "inc10-table", "tradeoff", "flatness-curves", "runtime", "flops")


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
    (folder / setup.NOTES).write_text("The last third of the images.\n", "utf-8")
    for name in STUDIES:
        write(folder, name, rows[name], fast=name not in ("runtime", "flops"))
    monkeypatch.setattr(results_page, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["results_page.py"])
    return tmp_path


def write(folder: Path, name: str, rows: list[dict[str, Any]], fast: bool, **more: Any) -> None:
    scale = get_scale("small").faster() if fast else get_scale("small")
    about = {"study": name, "scale": "small", "says": scale.says, "fast": fast, **more}
    told = {**about, "changes": ["backbone.name=b.safetensors"], "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(told), "utf-8")


def written(root: Path) -> str:
    results_page.main()
    return (root / results_page.PAGE).read_text("utf-8")


# -- what the page says ----------------------------------------------------------------------------------------------


def test_findings_come_first_then_claims_studies_and_how_it_was_run(here: Path) -> None:
    text = written(here)
    heads = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert heads == ["Findings", "Which of the paper's claims hold here", "The studies", "How it was run"]
    flat = " ".join(text.split())
    ours = sum(claim.ours for some in CLAIMS.values() for claim in some)
    theirs = sum(map(len, CLAIMS.values())) - ours
    assert f"Of the paper's {theirs} claims, " in flat and f"Of the {ours} that we add, " in flat
    assert "by zeroth order (ZO-FC) it learns 0.00, forgets 0.00 and ends 0.00 (in the paper it ends +2.97 to" in flat
    assert "On cifar100-inc5, pacs-styles and cifar100-inc10 not even first order is shown to learn more." in flat
    assert "| cifar100-inc5 | 51.00 | 51.00 (Learnable Cls.) | 51.00 | 51.00 | 51.00 | 51.00 |" in text
    assert "Tasks of pacs-domains bring no new classes; it is in no count." in flat
    assert "on cifar100-inc5 0 (ZO-FC: 0.2 beside Adapter + Cls., FO: 0.2), too close to tell." in flat
    assert (
        "than in the paper (on cifar100-inc5: Learnable Cls. 1.00, there 0.56; Adapter + Cls. 1.00, there 0.84;" in flat
    )


def test_where_the_adapter_learns_the_findings_say_how_much(here: Path) -> None:
    rows = everything(["cifar100-inc5"])["main-table"]
    for row in rows:
        row["final_average"] = 40.0 if row["line"] == "Learnable Cls., FO" else 50.0
    folder = here / results_page.RESULTS
    (folder / "inc10-table.json").unlink()
    write(folder, "main-table", rows, fast=True)
    flat = " ".join(written(here).split())
    assert "by first order it learns +10.00, forgets 0.00" in flat and "not even first order" not in flat


def test_lines_whose_training_did_harm_are_named(here: Path) -> None:
    assert "Training that did harm" not in written(here)
    rows = everything(["cifar100-inc5"])["main-table"]
    for row in rows:
        row["all_classes"] -= 20 * (row["line"] == "EASE, ZO")
    write(here / results_page.RESULTS, "main-table", rows, fast=True)
    flat = " ".join(written(here).split())
    assert "in points: EASE, ZO beside SimpleCIL on cifar100-inc5 (−20.00). Their learning rates" in flat


def test_every_claim_is_in_a_table_with_its_verdict_and_the_rule_is_there(here: Path) -> None:
    text = written(here)
    flat = " ".join(text.split())
    assert all(rule in flat for rule in RULE)
    for claim in (claim for some in CLAIMS.values() for claim in some):
        assert text.count(f"| {claim.text} ") == 1
    assert "main-table and inc10-table were run with `--fast`" in flat
    assert "in part one seed |" in text and "Where a verdict rests on one seed, it says so." in text
    longest = max(len(line.split(" | ")[2].split()) for line in text.splitlines() if line.startswith("| On "))
    assert longest < 40  # what a verdict rests on is folded below


def test_the_studies_have_their_tables_and_what_they_lack(here: Path) -> None:
    text = written(here)
    assert "| SimpleCIL | 60.00 ± 0.00 \\[87.57] | 51.00 ± 1.41 \\[81.26] |" in text
    assert f"No numbers on pacs-domains for EASE, FO; EASE, ZO. {REFUSED}" in text
    assert "In tables and figures ± is a standard deviation over seeds." in " ".join(text.split())
    assert "| Norms are left out. | +30.00 | +30.00 |" in text and "(FO: +3e+10" not in text


def test_how_it_was_run_comes_last_with_the_commands(here: Path) -> None:
    text = written(here)
    flat = " ".join(text.split())
    assert get_scale("small").faster().says in flat
    assert "Scale small (runtime, flops): the same, without `--fast`." in flat
    assert "NVIDIA H200, Python 3.12.3, torch 2.11.0, timm 1.0.29." in flat
    assert "sha256 bbbbbbbbbbbb…" in flat and "Seeds 1993 and 1994 (main-table)," in flat
    assert "files: cifar100 dddddddddddd…." in flat and "- The last third of the images.\n" in text
    assert 'CHANGES="backbone.name=b.safetensors"\n' in text
    command = "zofc reproduce main-table --scale small --dataset cifar100 --dataset pacs --fast --seeds 2 $CHANGES\n"
    assert command in text and "zofc reproduce runtime --scale small --dataset cifar100 $CHANGES\n" in text
    assert "Of the paper's settings: imagenet-r-inc5, imagenet-r-inc10 and domainnet-inc69." in flat
    assert "`query-ablation`" in text.rpartition("### What was not run")[2]
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "!", "zofc"))) <= 120


def test_with_every_study_none_is_said_to_be_missing(here: Path) -> None:
    rows, folder = everything(["cifar100-inc5", "cifar100-inc10"]), here / results_page.RESULTS
    for name in set(rows) - set(STUDIES):
        write(folder, name, rows[name], fast=False)
    text = written(here)
    missing = text.rpartition("### What was not run")[2]
    assert "Of the paper's settings: " in missing and "Of its studies" not in missing
    assert "no rows of" not in text.replace("no rows of step", "")  # every claim was asked


# -- training beside the paper's -------------------------------------------------------------------------------------


def test_steps_of_a_task_are_counted_from_the_recipes(here: Path) -> None:
    # 96 images of each of five classes in batches of 48, where CIFAR-100 has 500
    assert re.search(
        r"\| ZO-FC \| classifier 3, module 5 \| 50 \| classifier 10, module 20 \| 1060 \| \S+", written(here)
    )


def test_every_heading_of_the_contents_is_there(here: Path) -> None:
    text = written(here)
    heads = {results_page.anchor(head) for head in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]+)\)", text.partition("## Findings")[0])
    assert "which-of-the-papers-claims-hold-here" in links and set(links) <= heads


def test_streams_are_told_with_their_steps(here: Path) -> None:
    assert f"| pacs-styles | 3 | {trained('')['tested']} | 9 | 9 |" in written(here)


def tried(family: str, head: float, module: float, accuracy: float, round_: str = "short", **other: Any) -> Any:
    about = {"round": round_, "family": family, "head": head, "module": module, "seed": 1}
    usual = {"final_average": accuracy, "forgetting": 8.0, "over_time": [0, 0], "tested": 100}
    return {**about, **usual, "all_classes": accuracy, **other}


def test_what_the_search_found_for_the_adapter_is_shown_by_rate() -> None:
    rows = [tried("adapter-fo", 10, 1000, 50.0), tried("adapter-fo", 10, 1000, 52.0, seed=2)]
    rows += [tried("zofc", 10, 10, 40.0, "long"), tried("adapter-zo", 1, 1, 9.0)]
    rows.append({**tried("adapter-fo", 10, 10000, 0.0), "failed": "nan"})
    table, _ = training.swept(rows)
    assert table.splitlines()[2:] == [
        "| 20 | 10 | 1000 | – | – | – | 51.0 | 55.0 | 8.0 | – | – | – |",
        "| 50 | 10 | 10 | – | – | – | – | – | – | 40.0 | 44.0 | 8.0 |",
    ]
    assert training.swept([]) == []


def test_a_learning_rate_at_the_end_of_the_search_is_told() -> None:
    rows = [tried("l2p-fo", factor, factor, value) for factor, value in ((1, 50), (10, 60), (100, 40))]
    rows += [tried("l2p-fo", 10, module, 60 + module) for module in (30, 300)]
    rows += [tried("l2p-zo", factor, factor, factor) for factor in (1, 10, 100)]
    rows += [tried("zofc", factor, factor, 9 - factor) for factor in (1, 10, 100)]
    rows.append(tried("l2p-fo", 100, 1000, 40))  # of another rate of the classifier
    assert training.searched(rows) == {
        "l2p-fo": "module largest tried", "l2p-zo": "largest tried", "zofc": "smallest tried"
    }  # fmt: skip
    rows.append(tried("l2p-zo", 10, 10, 1, "long"))  # which decides
    assert "l2p-zo" not in training.searched(rows) and training.searched([]) == {}


def test_the_search_is_told_with_its_runs_and_seeds() -> None:
    rows = [tried("zofc", 10, 10, 1.0), tried("zofc", 10, 10, 1.0, seed=2), tried("zofc", 1, 1, 1.0)]
    assert training.told_of_search(rows) == []  # one round of two
    long = [tried("zofc", 10, 10, 30.0, "long")]
    (text,) = training.told_of_search([*rows, tried("l2p-fo", 1, 1, 1.0), *long])
    assert (
        "4 runs on 20 classes in tasks of ten, 2 seeds for 1 family and 1 seed for 1 family (fewer of zofc (1, 1))"
        in text
    )
    assert "again, 1 run on 50 classes in tasks of five, 1 seed for 1 family" in text
    assert "For 0 of 1 families the best lead the second by less" in text
    failed = {**tried("zofc", 1, 1, 0.0, "long"), "failed": "nan"}
    for key in ("all_classes", "tested"):
        failed.pop(key)
    for second, close in ((29.0, 1), (20.0, 0)):  # an accuracy of 30 % of 100 images is known to 4.6 points
        (text,) = training.told_of_search([*rows, *long, failed, tried("zofc", 10, 100, second, "long")])
        assert f"For {close} of 1 families the best lead" in text


# -- what is read ----------------------------------------------------------------------------------------------------


def test_a_result_file_says_itself_whether_it_is_fast(here: Path) -> None:
    folder = here / results_page.RESULTS
    for fast in (True, False):
        write(folder, "main-table", [trained("ZO-FC")], fast, says="in other words")
        assert [result.scale.fast for result in files.load(folder) if result.study.name == "main-table"] == [fast]


# -- writing and checking --------------------------------------------------------------------------------------------


def checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """The status and words of a check."""
    capsys.readouterr()
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(sys, "argv", ["results_page.py", "--check"])
        results_page.main()
    return ended.value.code, capsys.readouterr().out


def test_a_check_writes_nothing_and_ends_with_status_1_if_page_or_figures_differ(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results_page.main()
    assert "docs/RESULTS.md written" in capsys.readouterr().out
    assert checked(monkeypatch, capsys) == (0, "docs/RESULTS.md is as the results are\n")
    page = here / results_page.PAGE
    page.write_text(page.read_text("utf-8") + "by hand\n", "utf-8")
    assert checked(monkeypatch, capsys) == (1, "docs/RESULTS.md differs from the results\n")
    assert page.read_text("utf-8").endswith("by hand\n")

    results_page.main()
    picture = here / results_page.FIGURES / "tradeoff-cifar100-inc5.png"
    other = here / results_page.FIGURES / "flatness-curves-cifar100-inc5-peft.png"
    picture.write_bytes(other.read_bytes())
    assert checked(monkeypatch, capsys) == (1, "docs/figures/tradeoff-cifar100-inc5.png differs from the results\n")
    picture.unlink()
    assert checked(monkeypatch, capsys)[0] == 1


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
    results = files.load(ROOT / results_page.RESULTS)
    assert results_page.differing(results_page.page(results), results_page.pictures(results)) == []

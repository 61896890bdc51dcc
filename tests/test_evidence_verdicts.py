"""Verdicts on claims: the rule, what is compared, and the claims of the paper as data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from zofc.evidence.claims import Claim, all_claims
from zofc.evidence.coverage import coverage_of
from zofc.evidence.lines import LINES
from zofc.evidence.rows import EARLIER, ROW_NUMBERS, RowTable, accuracy_cells, add_rows, read_evidence
from zofc.evidence.verdicts import (
    CONTRADICTED,
    INCONCLUSIVE,
    SUPPORTED,
    UNTESTED,
    Verdict,
    compare_lines,
    effect_words,
    interval_of,
    judge,
    judge_claims,
    verdicts_text,
)
from zofc.studies.catalogue import STUDIES

SETTINGS = ("cifar100-inc5", "cifar100-inc10", "caltech101-inc10")


def trained(line: str, setting: str, seed: int, **numbers: Any) -> dict[str, Any]:
    usual = {"all_classes": 50.0, "forgetting": 10.0, "final_average": 50.0, "over_time": [80.0, 50.0], "steps": 9,
             "peak_memory": 2**30}  # fmt: skip
    return {"line": line, "setting": setting, "seed": seed, **usual, **numbers}


def evidence(differences: Sequence[Sequence[float]], settings: Sequence[str] = SETTINGS) -> RowTable:
    """Two lines whose accuracies differ by so much: for each setting, for each seed."""
    table: RowTable = {}
    for setting, by_seed in zip(settings, differences, strict=False):
        for seed, difference in enumerate(by_seed):
            add_rows(table, [trained("one", setting, seed, all_classes=50 + difference)])
            add_rows(table, [trained("other", setting, seed)])
    return table


def claim(**fields: Any) -> Claim:
    return Claim.model_validate({"id": "it", "says": "It is.", "compare": [{"lines": ["one", "other"]}], **fields})


def judged(table: RowTable, **fields: Any) -> Verdict:
    return judge(claim(**fields), table, {})


# -- one comparison --------------------------------------------------------------------------------------------------


def test_an_interval_is_students_of_the_mean_over_seeds() -> None:
    interval = interval_of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0 and interval.high - 2.0 == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert interval_of([2.0, 2.0]).low == 2.0
    assert math.isinf(interval_of([1.0]).high)
    assert interval_of([2.0], relative_error=0.03).high == pytest.approx(2.06)


@pytest.mark.parametrize(
    ("expect", "values", "side"),
    [
        ({"above": 0}, (1.0, 1.1, 1.2), 1),
        ({"above": 0}, (-1.0, -1.1, -1.2), -1),
        ({"above": 0}, (-1.0, 1.1, 1.2), 0),
        ({"above": 0}, (0.0, 0.0, 0.0), 0),  # no difference is on no side
        ({"above": 0}, (5.0,), 0),  # one seed has no interval
        ({"below": 2}, (1.0, 1.1, 1.2), 1),
        ({"within": 1.5}, (1.0, 1.1, 1.2), 1),
        ({"within": 0.5}, (-1.0, -1.1, -1.2), -1),
        ({"within": 1.1}, (1.0, 1.1, 1.2), 0),
        ({"within": 0.2, "of": 1}, (1.0, 1.1, 1.05), 1),
    ],
)
def test_a_comparison_is_on_the_side_that_holds_its_whole_interval(
    expect: dict[str, float], values: tuple[float, ...], side: int
) -> None:
    (comparison,) = compare_lines(claim(expect=expect), evidence([values]))
    assert comparison.side == side


# -- the verdict -----------------------------------------------------------------------------------------------------


def test_a_claim_is_supported_if_the_effect_lies_on_its_side_though_comparisons_are_open() -> None:
    verdict = judged(evidence([(-1.0, 4.0, 3.0), (4.0, -1.0, 3.5), (3.0, 3.0, 0.0)]))
    assert verdict.word == SUPPORTED and verdict.counts == (0, 0, 3)
    assert verdict.effect is not None and verdict.effect.mean == pytest.approx(18.5 / 9)


def test_two_counterexamples_contradict_a_claim_whatever_its_mean_and_one_leaves_it_open() -> None:
    against, strongly = (-1.0, -1.1, -1.2), (40.0, 41.0, 42.0)
    assert judged(evidence([strongly, against, against])).word == CONTRADICTED
    verdict = judged(evidence([strongly, strongly, against]))
    assert verdict.word == INCONCLUSIVE and verdict.counts == (2, 1, 0)
    assert effect_words(verdict).endswith("2/1/0; settings disagree")


def test_one_counterexample_in_twenty_is_taken_for_chance() -> None:
    names = [f"cifar100-inc10, slice {number}" for number in range(20)]
    strongly = [(40.0, 41.0, 42.0)] * 19
    assert judged(evidence([*strongly, (-1.0, -1.1, -1.2)], names)).word == SUPPORTED
    assert judged(evidence([*strongly[1:], (-1.0, -1.1, -1.2), (-1.0, -1.1, -1.2)], names)).word == CONTRADICTED


def test_an_inconclusive_claim_says_its_interval_and_how_many_seeds_would_decide_it() -> None:
    verdict = judged(evidence([(-0.5, 1.0, 1.0)]))
    assert verdict.word == INCONCLUSIVE and verdict.seeds_needed == 14
    assert effect_words(verdict) == "+0.50 [−1.65, +2.65]; 14 seeds would decide"
    assert effect_words(judged(evidence([(0.5,)]))) == "+0.50, one seed; needs 3 seeds or more"
    assert "over 1000 seeds" in effect_words(judged(evidence([(-1.0, 1.0, 0.0)])))


def test_what_has_no_rows_is_untested_and_says_why() -> None:
    assert effect_words(judged({}, untested="ImageNet-R was not run")) == "ImageNet-R was not run"
    assert judged(evidence([(1.0, 1.1)]), settings="imagenet-r-*").word == UNTESTED


def test_a_claim_counts_where_its_premise_is_borne_out_and_nowhere_else() -> None:
    table = evidence([(1.0, 1.1, 1.2), (-1.0, 1.1, 1.2)])
    premise, other = claim(id="premise", says="One is better."), claim(given="premise", expect={"within": 2})
    verdicts = judge_claims([premise, other], table)
    assert [one.setting for one in verdicts["it"].comparisons] == ["cifar100-inc5"]
    nowhere = judge_claims([claim(id="premise", expect={"above": 9}), other], table)["it"]
    assert nowhere.word == UNTESTED and nowhere.why.startswith("its premise is not borne out here")


def test_comparisons_with_fewer_seeds_are_counted_and_left_out_of_the_effect() -> None:
    verdict = judged(evidence([(1.0, 1.1, 1.2), (9.0,)]))
    assert verdict.effect is not None and verdict.effect.mean == pytest.approx(1.1) and verdict.counts == (1, 0, 1)


def several(measured: int) -> Verdict:
    """A claim about eight methods, of which the first ones were measured and are all on its side."""
    table: RowTable = {}
    for seed, difference in enumerate((1.0, 1.1, 1.2)):
        add_rows(table, [trained("other", SETTINGS[0], seed)])
        for number in range(measured):
            add_rows(table, [trained(f"method {number}", SETTINGS[0], seed, all_classes=50 + difference)])
    methods = [str(number) for number in range(8)]
    return judged(table, compare=[{"lines": ["method {m}", "other"], "each": {"m": methods}}])


def test_a_claim_about_several_methods_is_open_while_most_were_not_measured_and_says_how_many_were() -> None:
    few, half, all_of_them = (several(number) for number in (3, 4, 8))
    assert (few.word, half.word, all_of_them.word) == (INCONCLUSIVE, SUPPORTED, SUPPORTED)
    assert effect_words(few) == "+1.10 [+0.85, +1.35]; 3/0/0; 3 of 8 measured" and few.seeds_needed is None
    assert effect_words(half).endswith("; 4 of 8 measured") and effect_words(all_of_them).endswith("; 8/0/0")
    (told,) = json.loads(verdicts_text({"it": few}))["claims"]
    assert told["measured"] == [3, 8]


def test_of_a_line_against_the_best_of_others_those_that_were_trained_there_are_counted() -> None:
    table = evidence([(1.0, 1.1, 1.2)])
    add_rows(table, [trained("elsewhere", "cifar100-inc10", 0)])
    rivals = claim(compare=[{"lines": ["one", "other", "elsewhere", "never"], "formula": "best_other"}])
    verdict = judge(rivals, table, {})
    assert verdict.word == INCONCLUSIVE and verdict.measured.counts == (1, 3)
    formulas = claim(compare=[{"lines": ["one", "other"]}, {"lines": ["one", "never"]}])
    assert coverage_of(formulas, [(("one", "other"), SETTINGS[0])], table).words == "1 of 2 measured"


# -- what is compared ------------------------------------------------------------------------------------------------


def test_failed_runs_shared_classes_and_what_learned_nothing_are_not_compared() -> None:
    table = evidence([(1.0, 1.1), (1.0, 1.1)], ["cifar100-inc5", "pacs-domains"])
    add_rows(table, [{"line": "one", "setting": "cifar100-inc10", "seed": 1, "failed": "nan"}])
    assert [one.setting for one in compare_lines(claim(), table)] == ["cifar100-inc5"]
    forgets = claim(compare=[{"lines": ["one", "other"], "metric": "forgetting"}])
    assert len(compare_lines(forgets, table)) == 1
    for seed in (0, 1):
        table["one", "cifar100-inc5", seed]["all_classes"] = 1.5  # of 100 classes
    assert compare_lines(forgets, table) == [] and len(compare_lines(claim(), table)) == 1


def test_rows_of_an_earlier_recipe_are_not_compared_and_give_way_to_later_ones() -> None:
    table = evidence([(1.0, 1.1, 1.2)])
    old = trained("one", SETTINGS[0], 0, all_classes=99.0, **{EARLIER: "it was longer"})
    add_rows(table, [old])
    assert ROW_NUMBERS["accuracy"](table["one", SETTINGS[0], 0]) == 51.0 and len(table) == 6
    table["one", SETTINGS[0], 0] = old
    (comparison,) = compare_lines(claim(), table)
    assert set(comparison.by_seed) == {1, 2}
    assert accuracy_cells(table, "one", SETTINGS[0])[1].endswith(" †")
    add_rows(table, [trained("one", SETTINGS[0], 0, all_classes=52.0)])
    assert table["one", SETTINGS[0], 0]["all_classes"] == 52.0 and EARLIER not in table["one", SETTINGS[0], 0]


def test_what_files_measured_of_the_same_run_is_one_row(tmp_path: Path) -> None:
    measured = {"line": "one", "setting": "cifar100-inc5", "seed": 1, "flatness": {"peft": [[2, 0.3], [3, 0.1]]}}
    for name, found in (("a", trained("one", "cifar100-inc5", 1)), ("b", measured)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": [found]}))
    (row,) = read_evidence(tmp_path).values()
    assert ROW_NUMBERS["accuracy"](row) == 50.0 and ROW_NUMBERS["phi"](row) == pytest.approx(0.2)
    assert ROW_NUMBERS["phi_last"](row) == 0.1 and ROW_NUMBERS["phi_head"](row) is None


def test_shares_of_what_was_learned_come_from_the_matrix() -> None:
    row = trained("one", "cifar100-inc5", 1, final_average=50.0, forgetting=10.0, over_time=[80.0, 60.0, None])
    assert ROW_NUMBERS["learned"](row) == pytest.approx(50 + 10 * 2 / 3)
    assert ROW_NUMBERS["lost"](row) == pytest.approx(100 * (20 / 3) / (50 + 20 / 3))
    assert ROW_NUMBERS["fall"](row) is None and ROW_NUMBERS["fall"](trained("", "", 1)) == 30.0


def formula_value(name: str, *rows: dict[str, Any], metric: str = "accuracy") -> float | None:
    table: RowTable = {}
    lines = [f"line {number}" for number in range(len(rows))]
    add_rows(table, [trained(line, "cifar100-inc5", 1, **row) for line, row in zip(lines, rows, strict=True)])
    wanted = [*lines, "absent"] if name in ("best_other", "cheaper_rival") else lines
    found = compare_lines(claim(compare=[{"lines": wanted, "formula": name, "metric": metric}]), table)
    return found[0].interval.mean if found else None


def test_the_formulas_of_comparisons() -> None:
    assert formula_value("ratio", {"all_classes": 60.0}, {"all_classes": 40.0}) == 1.5
    assert formula_value("range", *({"all_classes": value} for value in (3.0, 9.0, 5.0))) == 6.0
    assert formula_value("slowing", *({"all_classes": value} for value in (1.0, 5.0, 6.0))) == 3.0
    assert formula_value("best_other", *({"all_classes": value} for value in (50.0, 60.0, 40.0))) == -10.0
    curves = [{"flatness": {"peft": [[task, value] for task, value in enumerate(values, 2)]}, "forgetting": lost}
              for values, lost in (((1.0, 1.0), 5.0), ((3.0, 2.0), 6.0), ((5.0, 5.0), 9.0))]  # fmt: skip
    assert formula_value("narrowing", *curves[:2]) == 1.0
    assert formula_value("flatness_correlation", *curves) == pytest.approx(0.9905, abs=1e-4)
    assert formula_value("flatness_correlation", *curves[:2]) is None


def test_a_rival_in_the_trade_off_is_as_cheap_and_what_trains_nothing_is_cheapest() -> None:
    dear = {"all_classes": 90.0, "peak_memory": 2**31}
    cheap = {"all_classes": 45.0, "peak_memory": 2**29}
    assert formula_value("cheaper_rival", {}, dear, cheap) == 5.0
    assert formula_value("cheaper_rival", {}, dear, {"all_classes": 70.0, "steps": 0}) == -20.0
    assert formula_value("cheaper_rival", {}, dear) is None


# -- the claims ------------------------------------------------------------------------------------------------------


def test_the_lines_of_every_claim_are_lines_of_studies_grids_or_the_step_benchmark() -> None:
    known = {line.title for study in STUDIES.values() for line in study.lines} | {line.title for line in LINES.values()}
    for one in all_claims():
        for formula in one.compare:
            for line in (line for lines in formula.expanded() for line in lines):
                assert line in known or line.startswith("step ") or one.untested, f"{one.id}: {line}"


def test_claims_have_ids_of_their_own_premises_that_exist_and_a_way_to_test_them_or_a_reason() -> None:
    claims = all_claims()
    ids = [one.id for one in claims]
    assert len(set(ids)) == len(ids) and {one.given for one in claims} - {""} <= set(ids)
    assert all(one.compare or one.untested for one in claims)
    assert sum(bool(one.where) for one in claims) == 66  # of the paper, those on Φ and the Hessian once for each metric


def test_a_mistake_in_a_claim_is_refused() -> None:
    two = [{"lines": ["a", "b"], "metric": metric} for metric in ("trace", "largest_eigenvalue")]
    for wrong in ({"expect": {"above": 0, "below": 1}}, {"compare": [{"lines": ["a", "b"], "metric": "luck"}]},
                  {"margin": 2}, {"compare": two}):  # fmt: skip
        with pytest.raises(ValidationError):
            claim(**wrong)


def test_verdicts_are_written_with_every_comparison() -> None:
    verdicts = judge_claims([claim(), claim(id="unknown", settings="x")], evidence([(1.0, 1.1), (2.0,)]))
    told, unknown = json.loads(verdicts_text(verdicts))["claims"]
    assert told["verdict"] == SUPPORTED and told["for_against_open"] == [1, 0, 1]
    assert [one["low"] is None for one in told["comparisons"]] == [False, True]
    assert unknown == {"id": "unknown", "says": "It is.", "where": "", "verdict": UNTESTED, "why": "not measured"}

"""Facts about claims of the paper: when a difference counts, when a claim holds, and what each is read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from claims import CLAIMS, Claim
from claims.comparisons import (
    Comparison,
    Runs,
    at_least,
    at_most,
    beside_best,
    less,
    more,
    pair,
    propagated,
    times,
    within,
)
from claims.costs import trade_off
from claims.lines import SIMPLE, first, zeroth
from claims.measures import ACCURACY, FORGETTING, LEARNED, LOST, MEMORY, SECONDS, chance
from claims.parts import rises
from claims.verdicts import Verdict, band, judged
from made_rows import curved, everything, measured, trained, two
from zofc.metrics import METRICS, AccuracyMatrix, all_classes_over_time
from zofc.studies.catalogue import STUDIES
from zofc.studies.settings import SETTINGS

ONE, OTHER = Runs("one", ("main-table",)), Runs("other", ("main-table",))
BENCHMARK = [
    {"line": line, "setting": "ViT-B/16", "seed": 0, "peak_bytes": size * 2**30}
    for line, size in (("published", 1), ("published-first", 5))
]
LEARNS = [trained("Learnable Cls., FO", final_average=40.0), trained("Adapter + Cls., FO", final_average=48.0)]
IDLES = [trained("Learnable Cls., FO"), trained("Adapter + Cls., FO")]


def claim(begins: str) -> Claim:
    (found,) = [claim for some in CLAIMS.values() for claim in some if claim.text.startswith(begins)]
    return found


# -- when a difference counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ones", "others", "word"),
    [
        ([5.0, 6.0, 5.5], [9.0, 9.5, 10.0], "holds"),
        ([9.0, 9.5, 10.0], [5.0, 6.0, 5.5], "does not hold"),
        ([5.0, 9.0, 6.0], [6.0, 7.0, 7.0], "undecided"),  # less in two of three
        ([5.0, 50.0, 8.0], [6.0, 51.0, 9.0], "holds"),  # paired: seeds differ by more than lines do
        ([5.0, 5.0, 5.0], [6.0, 6.5, 7.0], "holds"),  # 5.2 standard errors, where Student asks for 4.3 of three
        ([5.0, 5.0, 5.0], [6.0, 7.0, 8.0], "undecided"),  # 3.5
        ([5.0, 5.0], [6.0, 6.5], "holds"),  # of two he says nothing; test images are many
        ([5.0], [9.0], "holds"),
        ([9.0], [5.0], "does not hold"),
        ([5.0], [5.0], "undecided"),
        ([5.0, 4.0], [9.0], "holds"),  # the other seed has nothing beside it
        ([], [5.0], "not measured"),
    ],
)
def test_a_difference_counts_beyond_the_spread_of_seeds(ones: list[float], others: list[float], word: str) -> None:
    assert judged(pair(ONE, OTHER, FORGETTING, less))(two(ones, others)).word == word
    turned = {"holds": "does not hold", "does not hold": "holds"}
    assert judged(pair(ONE, OTHER, FORGETTING, more))(two(ones, others)).word == turned.get(word, word)


@pytest.mark.parametrize(
    ("images", "difference", "word"),
    [(5000, 1.9, "undecided"), (5000, 2.1, "holds"), (350, 7.0, "undecided"), (350, 8.0, "holds")],
)
def test_with_one_seed_an_accuracy_is_as_sure_as_its_test_images_are_many(
    images: int, difference: float, word: str
) -> None:
    rows = two([50 + difference], [50.0], "all_classes", tested=images)
    assert judged(pair(ONE, OTHER, ACCURACY, more))(rows).word == word


@pytest.mark.parametrize(("images", "word"), [(1000, "undecided"), (4000, "holds")])
def test_seeds_that_agree_say_no_more_than_a_test_image(images: int, word: str) -> None:
    for measure, name in ((ACCURACY, "all_classes"), (FORGETTING, "forgetting")):
        rows = two([50.1] * 3, [50.0] * 3, name, tested=images)  # one image of a thousand, with every seed
        assert judged(pair(ONE, OTHER, measure, more))(rows).word == word


def test_the_chance_of_an_accuracy_is_binomial() -> None:
    assert chance(33.0, 5000) == pytest.approx(0.665, abs=0.001)
    assert chance(36.0, 350) == pytest.approx(2.57, abs=0.01)
    assert chance(50.0, None) is None and chance(100.0, 10) == 0


def test_errors_of_several_numbers_add_up_as_squares() -> None:
    assert propagated(lambda a, b: a - b, [7.0, 5.0], [3.0, 4.0]) == pytest.approx(5)
    assert propagated(lambda a, b: 2 * a, [7.0, 5.0], [3.0, 4.0]) == pytest.approx(6)
    assert propagated(lambda a, b: a - b, [7.0, 5.0], [None, None]) is None


def test_forgetting_of_one_seed_is_less_sure_than_accuracy() -> None:
    row = trained("one", tested=5000)
    assert (FORGETTING.error_of(row) or 0) > (ACCURACY.error_of(row) or 0) > 0
    few = two([10.0], [8.5], tested=5000)
    assert judged(pair(ONE, OTHER, FORGETTING, more))(few).word == "undecided"


@pytest.mark.parametrize(("factor", "word"), [(0.98, "undecided"), (0.96, "holds"), (1.04, "does not hold")])
def test_costs_within_a_few_percent_are_too_close(factor: float, word: str) -> None:
    for seeds in ((1993,), (1993, 1994)):
        rows = [trained("one", seed=seed, peak_memory=factor * 2**30) for seed in seeds]
        rows += [trained("other", seed=seed) for seed in seeds]
        assert judged(times(ONE, OTHER, MEMORY, at_most(1)))({"main-table": rows}).word == word


@pytest.mark.parametrize(
    ("difference", "word"),
    [([0.1, 0.2, 0.3], "holds"), ([2.0, 2.1, 2.2], "does not hold"), ([0.2, 2.6, 0.8], "undecided")],
)
def test_close_means_within_the_margin_and_against_it_only_what_is_clearly_outside(
    difference: list[float], word: str
) -> None:
    rows = two([5 + value for value in difference], [5.0] * 3)
    assert judged(pair(ONE, OTHER, FORGETTING, within(1.0)))(rows).word == word
    assert judged(pair(OTHER, ONE, FORGETTING, within(1.0)))(rows).word == word
    assert judged(pair(ONE, OTHER, FORGETTING, at_most(1.0)))(rows).word == word


def test_a_bound_that_is_no_margin_must_be_passed_clearly() -> None:
    rows = two([62.5], [50.0], "all_classes", tested=5000)
    assert judged(pair(ONE, OTHER, ACCURACY, at_least(12)))(rows).word == "undecided"


# -- what a verdict says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sides", "word"),
    [
        ((1, 1, 1, 1), "holds"),
        ((1, 1, 1, -1), "mostly holds"),
        ((1, 1, 1, 0), "mostly holds"),
        ((1, 1, -1, -1), "mixed"),
        ((1, 1, 1, -1, -1), "mixed"),
        ((1, -1, -1, -1), "mostly does not hold"),
        ((-1, -1, 0), "mostly does not hold"),
        ((-1, -1), "does not hold"),
        ((1, 0), "mostly holds"),
        ((1, 0, 0), "holds in part"),
        ((1, 0, 0, 0), "holds in part"),
        ((-1, -1, 0, 0, 0), "does not hold in part"),
        ((1, -1, 0, 0, 0), "mixed"),
        ((1, 1, 1, 1, 0, 0, 0, 0), "mostly holds"),
        ((1, 1, 1, 1, -1, 0, 0, 0, 0), "holds in part"),  # one against makes it no better
        ((1, 0, 0, 0, 0), "undecided"),
        ((0,), "undecided"),
    ],
)
def test_a_verdict_is_a_band_of_the_share_that_speaks_for_a_claim(sides: tuple[int, ...], word: str) -> None:
    found = [Comparison("cifar100-inc5", (), ACCURACY, "points", 0.0, None, 1, side, "", "") for side in sides]
    assert band(found) == word


def test_a_verdict_has_its_numbers_in_short_and_in_full() -> None:
    found = judged(pair(ONE, OTHER, FORGETTING, less))(two([5.0, 6.0], [9.0, 11.0]))
    assert found.here == "−4.50 points" and found.seeds == ""
    expected = "Forgetting, points: cifar100-inc5 −4.50, standard error 0.50 (one: 5.50 beside other: 10.00)."
    assert found.details == expected
    assert judged(pair(ONE, OTHER, FORGETTING, less))(two([5.0], [9.0])).seeds == "one seed"


def test_a_claim_that_holds_in_some_settings_says_in_how_many_and_where_it_does_not() -> None:
    settings = ("cifar100-inc5", "caltech101-inc10", "pacs-styles", "pacs-pooled")
    rows = [trained("other", setting, forgetting=8.0) for setting in settings]
    rows += [trained("one", setting, forgetting=14.0 if "pooled" in setting else 5.0) for setting in settings]
    found = judged(pair(ONE, OTHER, FORGETTING, less))({"main-table": rows})
    assert (found.word, found.here) == ("mostly holds", "3 of 4; median −3.00 points")
    assert "pacs-pooled +6.00" in found.details and "Against the claim: pacs-pooled." in found.details


def test_failed_cells_are_in_no_comparison() -> None:
    rows = two([5.0], [9.0])
    rows["main-table"][0] = {"line": "one", "setting": "cifar100-inc5", "seed": 0, "failed": "no memory"}
    assert judged(pair(ONE, OTHER, FORGETTING, less))(rows).word == "not measured"


def test_streams_whose_tasks_bring_no_new_classes_are_told_apart_and_not_counted() -> None:
    rows = [trained(line, setting, forgetting=value) for line, setting, value in (
        ("one", "pacs-styles", 5.0), ("other", "pacs-styles", 6.0),
        ("one", "pacs-domains", 9.0), ("other", "pacs-domains", 2.0))]  # fmt: skip
    found = judged(pair(ONE, OTHER, FORGETTING, less))({"main-table": rows})
    assert (found.word, found.here) == ("holds", "−1.00 points")
    assert "Not counted, since tasks bring no new classes: pacs-domains 0/1/0 (+7.00)." in found.details


# -- what a claim takes for granted ----------------------------------------------------------------------------------


def beside_the_twin(others: Sequence[dict[str, Any]]) -> Verdict:
    return claim("It is comparable in accuracy to its").verdict(
        {"main-table": [trained("ZO-FC", all_classes=40.0), *others]}
    )


def test_what_rests_on_an_adapter_that_learns_nothing_cannot_be_told() -> None:
    found = beside_the_twin(IDLES)
    why = "since the first-order adapter is not shown to learn more than the classifier alone"
    assert (found.word, found.here) == ("cannot be told", f"{why} (0/1/0 for/against/too close)")
    assert f"Not counted, {why}: cifar100-inc5 −10.00." in found.details
    assert beside_the_twin(LEARNS).word == "does not hold"  # 8 points behind, where the margin is the paper's


def test_it_is_told_in_the_settings_where_the_adapter_learns() -> None:
    idle = [{**row, "setting": "pacs-styles"} for row in IDLES]
    zofc = [trained("ZO-FC", name, all_classes=47.5) for name in ("cifar100-inc5", "pacs-styles")]
    found = claim("It is comparable in accuracy to its").verdict({"main-table": [*LEARNS, *idle, *zofc]})
    assert found.word == "holds" and "; 1 not counted" in found.here and "since the first-order adapter" in found.here


@pytest.mark.parametrize(
    "begins",
    [
        "Its forgetting is the",
        "Of the modules",
        "On CIFAR-100 the number of queries",
        "More queries help",
        "Forgetting rises",
        "With class means it is near",
    ],
)
def test_claims_about_the_steps_of_its_adapter_rest_on_what_they_add(begins: str) -> None:
    rows = everything(["cifar100-inc5"])
    assert claim(begins).verdict(rows).word == "cannot be told"  # made-up lines are all alike
    for row in rows["main-table"]:
        row["all_classes"] -= 10 * (row["line"] == "Learnable Cls., FO")
    assert claim(begins).verdict(rows).word != "cannot be told"


def test_forgetting_is_not_counted_of_what_has_learned_nothing() -> None:
    rows = [trained("L2P, FO"), trained("L2P, ZO", all_classes=1.9, forgetting=2.0)]  # of a hundred classes
    rows += [trained("LAE Adapter, FO"), trained("LAE Adapter, ZO", all_classes=2.1, forgetting=2.0)]
    found = claim("A method forgets less").verdict({"main-table": rows})
    why = "since a line ends below twice chance"
    assert found.here == f"−8.00 points; 1 not counted (1/0/0 for/against/too close), {why}"
    assert claim("It learns new tasks").verdict({"main-table": rows}).here.startswith("2 of 2")
    assert claim("A method forgets less").verdict({"main-table": rows[:2]}).word == "cannot be told"


# -- flatness --------------------------------------------------------------------------------------------------------


def flat(line: str, *scores: float, **numbers: Any) -> dict[str, Any]:
    """A row with Φ over the adapter after the second task and those that follow."""
    return trained(line, flatness={"peft": [[task, value] for task, value in enumerate(scores, 2)]}, **numbers)


def test_flatness_is_compared_on_average_and_at_the_end_not_point_by_point() -> None:
    rows = [flat("ZO-FC", 0.1, 0.2, 0.3, 0.4), flat("Adapter + Cls., FO", 0.5, 0.5, 0.4, 0.1)]
    found = claim("The old tasks' loss").verdict({"flatness-curves": rows})
    assert (found.word, found.here) == ("mixed", "1 of 2")
    assert "mean over tasks: cifar100-inc5 −0.125 (ZO-FC: 0.25 beside Adapter + Cls., FO: 0.375)" in found.details
    assert "after the last task: cifar100-inc5 +0.3 (ZO-FC: 0.4 beside Adapter + Cls., FO: 0.1)" in found.details


def test_forgetting_is_held_against_its_bound_and_its_first_term() -> None:
    rows = [trained("ZO-FC", curvature={"peft": [curved(2, largest=3.0, trace=5.0, change=0.6, bound=0.5)]})]
    rows += [trained("Adapter + Cls., FO", curvature={"peft": [curved(2, first_share=0.05), curved(4)]})]
    evidence = {"curvature": rows}
    assert claim("The Hessian of the old").verdict(evidence).here == "2 of 2"
    assert claim("What the next task makes").verdict(evidence).here == "1 of 2; −0.1, +0.4 nats"
    found = claim("The first-order term").verdict(evidence)
    assert (found.word, found.here) == ("does not hold", "0 of 2; +25, +15 %")


def test_a_bound_is_broken_by_one_step_and_what_did_not_move_is_no_step() -> None:
    steps = [curved(2, change=0.6), curved(4, bound=9.0), curved(6, distance=0.0, change=7.0, first_share=0.0)]
    evidence = {"curvature": [trained("ZO-FC", curvature={"peft": steps})]}
    found = claim("What the next task makes").verdict(evidence)
    assert (found.word, found.here) == ("does not hold", "−0.1 nats")
    assert claim("The first-order term").verdict(evidence).here == "+25 %"


def test_a_hessian_is_smaller_only_beyond_what_is_known_of_it() -> None:
    def beside(**near: float) -> str:
        states = [curved(2, **near), {**curved(3, **near), "forgetting": None}]
        rows = [trained("ZO-FC", curvature={"peft": states}), trained("Adapter + Cls., FO")]
        return claim("The Hessian of the old").verdict({"curvature": rows}).word

    assert beside(largest=3.9, trace=8.9) == "undecided"
    assert beside(largest=3.7, trace=7.0) == "holds"  # twice the error of the difference is 0.2, and 1.0
    assert beside(largest=3.7, largest_error=0.6, trace=7.0, trace_error=3.0) == "undecided"


def test_a_bound_is_broken_only_beyond_what_is_known_of_its_eigenvalue() -> None:
    for error, word in ((0.01, "does not hold"), (0.2, "undecided")):
        steps = [curved(2, change=0.6, bound_error=error), curved(4, bound=9.0, bound_error=5.0)]
        evidence = {"curvature": [trained("ZO-FC", curvature={"peft": steps})]}
        assert claim("What the next task makes").verdict(evidence).word == word


def test_the_first_terms_share_is_the_median_of_its_steps() -> None:
    steps = [curved(task, first_share=share) for task, share in ((2, 0.05), (4, 0.06), (6, 0.9))]
    evidence = {"curvature": [trained("ZO-FC", curvature={"peft": steps})]}
    assert claim("The first-order term").verdict(evidence).details.startswith("|gᵀΔθ| of both terms, median")
    assert claim("The first-order term").verdict(evidence).here == "+6 %"


def test_curves_that_cross_are_not_close() -> None:
    apart, crossed = [0.5, 0.5, 0.5, 0.5], [0.4, 0.4, 0.3, 0.7]  # the mean over the second half is the same
    rows = [flat("Adapter + Cls., FO", *apart), flat("ZO-FC", *crossed)]
    found = claim("The curves of ZO-FC").verdict({"flatness-curves": rows})
    assert (found.word, found.here) == ("does not hold", "−0.1 in Φ")


def test_flatter_on_average_and_at_the_end_are_two_questions() -> None:
    rows = [flat("ZO-FC", 0.1, 0.4, forgetting=5.0), flat("Adapter + Cls., FO", 0.9, 0.2, forgetting=9.0)]
    assert claim("Flatter").verdict({"flatness-curves": rows}).word == "mixed"


def test_zeroth_order_that_has_learned_nothing_is_not_called_flat() -> None:
    rows = {"flatness-curves": [flat("Adapter + Cls., ZO", 0.1), flat("Adapter + Cls., FO", 0.2)]}
    assert claim("It is flatter after zeroth").verdict(rows).word == "holds"
    rows["main-table"] = [trained("Adapter + Cls., ZO"), trained("Learnable Cls., ZO")]
    assert claim("It is flatter after zeroth").verdict(rows).word == "cannot be told"
    rows["flatness-curves"].append(flat("ZO-FC", 0.1, forgetting=5.0))
    found = claim("Flatter").verdict(rows)
    assert found.word == "holds" and "4 not counted" in found.here and "since the zeroth-order adapter" in found.here


# -- single questions ------------------------------------------------------------------------------------------------


def test_the_best_of_several_lines_is_picked_in_each_setting() -> None:
    rows = [trained("one", all_classes=50.0), trained("other", all_classes=53.0), trained("third", all_classes=52.0)]
    others = [OTHER, Runs("third", ("main-table",)), Runs("absent", ("main-table",))]
    (found,) = beside_best(ONE, others, ACCURACY, more)({"main-table": rows})
    assert found.lines == ("one", "other") and found.value == -3


def test_a_rise_that_turns_into_a_fall_says_so() -> None:
    def asked(*values: float) -> Comparison:
        lines = [
            trained(f"ZO-FC, Q = {count}", all_classes=value) for count, value in zip((1, 4, 64), values, strict=True)
        ]
        (found,) = rises(ACCURACY, 1, 4, 64)({"query-ablation": lines})
        return found

    assert asked(50, 52, 51).told == "+2.00 from 1 to 4, −1.00 from 4 to 64: it falls from 4 on"
    assert asked(50, 52, 53).told == "+2.00 from 1 to 4, +1.00 from 4 to 64"
    assert asked(50, 52, 51).side == asked(50, 52, 53).side == 1 and asked(50, 52, 56).side == -1


def test_a_trade_off_is_lost_to_what_is_more_accurate_with_no_more_memory() -> None:
    def beside(**numbers: Any) -> Verdict:
        rows = [trained("ZO-FC"), trained("EASE, FO", **numbers), trained("L2P, ZO", all_classes=1.0)]
        return judged(trade_off([first("EASE"), zeroth("L2P")]))({"main-table": rows})

    assert beside(all_classes=60.0, peak_memory=2**31).word == "holds"
    assert beside(all_classes=40.0, peak_memory=2**29).word == "holds"
    assert beside(all_classes=60.0, peak_memory=2**30).word == "does not hold"
    assert beside(all_classes=50.0, peak_memory=2**29).word == "undecided"
    nearest = beside(all_classes=60.0, peak_memory=2**31).here
    assert "nearest with no less accuracy EASE, FO (+10.00 points, 2.00× its memory)" in nearest
    assert "nearest with no more memory L2P, ZO (−49.00 points, 1.00× its memory)" in nearest


def test_what_trains_nothing_makes_no_step_so_its_accuracy_decides_the_trade_off() -> None:
    for accuracy, word in ((40.0, "holds"), (60.0, "does not hold")):
        rows = [trained("ZO-FC"), trained("SimpleCIL", steps=0, peak_memory=2**40, all_classes=accuracy)]
        assert judged(trade_off([], [SIMPLE]))({"main-table": rows}).word == word


def test_what_was_learned_is_the_mean_over_tasks_of_the_best_accuracy() -> None:
    matrix = AccuracyMatrix(((90.0,), (85.0, 70.0), (60.0, 75.0, 80.0)), (10, 10, 10))
    names = ("final_average", "forgetting")
    row = {name: METRICS[name].compute(matrix) for name in names} | {"over_time": all_classes_over_time(matrix)}
    assert LEARNED.of(row) == pytest.approx((90 + 75 + 80) / 3)
    assert LOST.of(row) == pytest.approx(100 * 30 / (90 + 75 + 80))


def test_time_is_compared_in_the_epochs_that_a_line_is_about() -> None:
    rows = {"runtime": [measured("FO", ("head", "peft"), 2.0), measured("ZO, q = 1", ("head", "peft"), 1.5)]}
    found = claim("With one query").verdict(rows)
    assert found.word == "holds" and "0.75× (ZO, q = 1: 1.500 beside FO: 2.000)" in found.details
    assert SECONDS.of(measured("FO", ("peft",), 2.0)) is None


# -- the claims ------------------------------------------------------------------------------------------------------


def test_every_claim_finds_its_lines_in_the_studies_that_it_names() -> None:
    rows = everything(list(SETTINGS)) | {"step": BENCHMARK}
    for one in (one for some in CLAIMS.values() for one in some):
        assert set(one.studies) <= {*STUDIES, "step"}
        word = one.verdict({name: rows[name] for name in one.studies}).word
        assert word == "cannot be tested here" if not one.studies else word not in ("not measured", "")
        absent = one.verdict({})
        assert absent.word in ("not measured", "cannot be tested here") and absent.here


def test_memory_on_the_papers_backbone_is_that_of_the_step_benchmark() -> None:
    found = claim("ZO-FC needs six times").verdict({"step": BENCHMARK})
    assert (found.word, found.here, found.paper) == ("does not hold", "5.00×", "6.21×")
    saved = [{**BENCHMARK[0]}, {**BENCHMARK[1], "peak_bytes": 6.3 * 2**30}]
    assert claim("ZO-FC needs six times").verdict({"step": saved}).word == "holds"


def test_claims_about_data_that_were_not_run_cannot_be_tested() -> None:
    here = everything(["cifar100-inc5", "cifar100-inc10", "pacs-styles"])
    found = claim("On ImageNet-R accuracy rises").verdict(here)
    assert found.word == "cannot be tested here" and "ImageNet-R" in found.here
    assert claim("On DomainNet").verdict(here).word == "cannot be tested here"
    assert claim("On DomainNet").verdict(everything(list(SETTINGS))).word != "cannot be tested here"


def test_the_papers_own_numbers_are_counted_by_the_same_rule() -> None:
    assert claim("It is more accurate than every").verdict({}).paper == "24 of 24"
    assert claim("A method forgets less").verdict({}).paper == "16 of 24"
    assert claim("A first-order adapter is more accurate").verdict({}).paper == "5 of 5"
    assert claim("It is more accurate than SimpleCIL").verdict({}).paper == "5 of 5"
    assert claim("Forgetting rises").verdict({}).paper == "2 of 2"


def test_margins_are_the_widest_gaps_in_the_papers_tables() -> None:
    assert "5.30 points" in claim("ZO-FC is comparable").text  # ImageNet-R in tasks of five: EASE 71.93 − 66.63
    assert "3.17 points" in claim("It is comparable in accuracy to its").text  # in tasks of ten: 73.27 − 70.10
    assert claim("ZO-FC is comparable").verdict({}).paper == "set the margin"


def test_verdicts_follow_the_rows() -> None:
    better = [trained("ZO-FC", "cifar100-inc10", all_classes=51.0, forgetting=6.0)]
    worse = [trained("ZO-FC", "cifar100-inc10", all_classes=30.0, forgetting=26.0)]
    forgets = [trained("ZO-FC", "cifar100-inc10", all_classes=51.0, forgetting=26.0)]
    others = [trained(f"{name}, {order}", "cifar100-inc10") for order in ("FO", "ZO") for name in
              ("Adapter + Cls.", "LAE Adapter", "L2P", "EASE")] + [trained("SimpleCIL", "cifar100-inc10")]  # fmt: skip
    alone = {"all_classes": 49.0, "final_average": 49.0}
    others += [trained(f"Learnable Cls., {order}", "cifar100-inc10", **alone) for order in ("FO", "ZO")]
    for text in ("It is more accurate than every", "It is comparable in", "Its zeroth-order adapter adds",
                 "ZO-FC is comparable", "It is more accurate than SimpleCIL", "Its forgetting is low"):  # fmt: skip
        assert claim(text).verdict({"inc10-table": better + others}).word == "holds", text
        assert claim(text).verdict({"inc10-table": worse + others}).word == "does not hold", text
    for text in ("It forgets less than every", "It loses a smaller share", "With ten classes a task"):
        assert claim(text).verdict({"inc10-table": better + others}).word == "holds", text
        assert claim(text).verdict({"inc10-table": forgets + others}).word == "does not hold", text
    assert claim("Its forgetting is the").verdict({"inc10-table": worse + others}).word == "cannot be told"


def test_ten_classes_a_task_are_those_of_other_data_too() -> None:
    rows = [trained("ZO-FC", "caltech101-inc10", all_classes=52.0), trained("Learnable Cls., FO", "caltech101-inc10")]
    assert claim("With ten classes a task").verdict({"main-table": rows}).word == "undecided"

"""What the paper says of flatness: section 3, section 5.3, figure 5."""

from __future__ import annotations

import statistics
from dataclasses import replace

from claims.comparisons import (
    Compared,
    Comparison,
    Evidence,
    Measure,
    Question,
    Row,
    Runs,
    at_most,
    joined,
    less,
    more,
    pair,
)
from claims.lines import Claim, of, zeroth
from claims.measures import (
    FIRST_SHARE,
    FORGETTING,
    LARGEST,
    LEARNED,
    LOST,
    PHI,
    PHI_HEAD,
    PHI_HEAD_LAST,
    PHI_LAST,
    SLACK,
    TRACE,
)
from claims.verdicts import cannot, judged, shown
from zofc.analysis.run_flatness import DROPPED

STUDY = ("flatness-curves",)
FLAT_FO, FLAT_ZO = (of(*STUDY, f"Adapter + Cls., {order}") for order in ("FO", "ZO"))
FLAT_ZOFC = of(*STUDY, "ZO-FC")
OVER = {PHI: "peft", PHI_HEAD: "peft+head"}
APART = replace(PHI, words="distance in Φ over the adapter alone, point by point, first half of the tasks less second")
CURVED = ("curvature",)
BOTH = (of(*CURVED, "ZO-FC"), of(*CURVED, "Adapter + Cls., FO"))
WITH_ZO_ADAPTER = shown(
    pair(zeroth("Adapter + Cls."), zeroth("Learnable Cls."), LEARNED, more),
    "since the zeroth-order adapter is not shown to learn more than the zeroth-order classifier alone",
    (FLAT_ZO.line,),
)
PAIRS = ((FLAT_ZOFC, FLAT_FO), (FLAT_ZO, FLAT_FO), (FLAT_ZOFC, FLAT_ZO))


def after(task: int, of: Measure) -> Measure:
    """Φ after one task, in place of the mean over tasks."""
    return replace(of, read=lambda row: dict(map(tuple, scores(row, of))).get(task))


def flatter(one: Runs, other: Runs) -> list[Question]:
    """Whether one line's old tasks are flatter than the other's: mean over tasks, and at the end."""
    return [pair(one, other, measure, less) for measure in (PHI, PHI_LAST, PHI_HEAD, PHI_HEAD_LAST)]


def tasks(runs: Runs, measure: Measure, evidence: Evidence) -> list[int]:
    return sorted({task for row in runs.found(evidence).values() for task, _ in scores(row, measure)})


def scores(row: Row, measure: Measure) -> list[list[float]]:
    found: list[list[float]] = row["flatness"].get(OVER[measure]) or []
    return found


def narrowing(one: Runs, other: Runs) -> Question:
    """How far two curves are apart, point by point: mean over the first half of the tasks less that over the second."""

    def ask(evidence: Evidence) -> list[Comparison]:
        known = tasks(one, PHI, evidence)
        half = len(known) // 2

        def less_apart(*values: float) -> float:
            apart = [abs(a - b) for a, b in zip(values[::2], values[1::2], strict=True)]
            return statistics.fmean(apart[:half]) - statistics.fmean(apart[half:])

        numbers = [(runs, after(task, PHI)) for task in known for runs in (one, other)]
        found = Compared(numbers, less_apart, more)(evidence) if half else []
        return [replace(each, lines=(one.line, other.line), measure=APART, shown=each.told) for each in found]

    return ask


def agreeing(one: Runs, other: Runs, measure: Measure, forgotten: Measure) -> Question:
    """Whether the flatter of two forgets less."""
    return joined(pair(one, other, measure, less), pair(one, other, forgotten, less), lambda flat, kept: flat * kept)


def agreements(forgotten: Measure) -> list[Question]:
    return [agreeing(*lines, measure, forgotten) for measure in (PHI, PHI_LAST) for lines in PAIRS]


CLAIMS = (
    Claim(
        "The old tasks' loss is flatter (Φ is lower, mean over tasks and after the last) after ZO-FC than after first "
        "order.",
        "section 5.3, figure 5", STUDY,
        judged(*flatter(FLAT_ZOFC, FLAT_FO)),
    ),
    Claim(
        "It is flatter after zeroth order throughout than after first order.",
        "section 3, figure 5", STUDY,
        judged(*flatter(FLAT_ZO, FLAT_FO), rests=WITH_ZO_ADAPTER),
    ),
    Claim(
        "Flatter (mean over tasks, and after the last) goes with less forgetting.",
        "section 3, section 5.3", STUDY,
        judged(*agreements(FORGETTING), rests=WITH_ZO_ADAPTER),
    ),
    Claim(
        "It goes with a smaller share lost of what was learned.",
        "–", STUDY,
        judged(*agreements(LOST), rests=WITH_ZO_ADAPTER), ours=True,
    ),
    Claim(
        "The curves of ZO-FC and first order come closer in later tasks.",
        "section 5.3, figure 5", STUDY,
        judged(narrowing(FLAT_FO, FLAT_ZOFC)),
    ),
    Claim(
        "The Hessian of the old tasks' loss is smaller (its largest eigenvalue, its trace) after zeroth-order steps of "
        "the adapter than after first-order ones.",
        "section 3, appendix C", CURVED,
        judged(*(pair(*BOTH, measure, less) for measure in (LARGEST, TRACE))),
    ),
    Claim(
        "What the next task makes the old ones forget, in loss, is below ½λ‖Δθ‖², of the largest eigenvalue λ.",
        "section 3", CURVED,
        judged(*(Compared([(runs, SLACK)], lambda slack: slack, more) for runs in BOTH)),
    ),
    Claim(
        "The first-order term gᵀΔθ of what is forgotten may be left out (less than "
        f"{100 * DROPPED:g} % of both terms).",
        "section 3", CURVED,
        judged(*(Compared([(runs, FIRST_SHARE)], lambda share: share, at_most(100 * DROPPED)) for runs in BOTH)),
    ),
    Claim(
        "Zeroth-order steps converge to minima with the least trace of the Hessian.",
        "section 3, appendix C", (),
        cannot("It is proved for many steps on convex losses."),
    ),
)  # fmt: skip

"""What the paper says of flatness: section 3, section 5.3, figure 5."""

from __future__ import annotations

from claims.comparisons import Compared, Measure, Question, Runs, joined, less, more, pair
from claims.lines import Claim, of
from claims.measures import EARLY, FORGETTING, LATE, PHI, PHI_HEAD
from claims.verdicts import cannot, judged

STUDY = ("flatness-curves",)
FLAT_FO, FLAT_ZO = (of(*STUDY, f"Adapter + Cls., {order}") for order in ("FO", "ZO"))
FLAT_ZOFC = of(*STUDY, "ZO-FC")
PAIRS = ((FLAT_ZOFC, FLAT_FO), (FLAT_ZO, FLAT_FO), (FLAT_ZOFC, FLAT_ZO))


def narrowing(early_one: float, early_other: float, late_one: float, late_other: float) -> float:
    return abs(early_one - early_other) - abs(late_one - late_other)


def agreeing(one: Runs, other: Runs, measure: Measure) -> Question:
    """Whether the flatter of two forgets less."""
    return joined(pair(one, other, measure, less), pair(one, other, FORGETTING, less), lambda flat, kept: flat * kept)


CLAIMS = (
    Claim(
        "The old tasks' loss is flatter (Φ is lower) after ZO-FC than after first order.",
        "section 5.3, figure 5", STUDY,
        judged(*(pair(FLAT_ZOFC, FLAT_FO, measure, less) for measure in (PHI, PHI_HEAD))),
    ),
    Claim(
        "It is flatter after zeroth order throughout than after first order.",
        "section 3, figure 5", STUDY,
        judged(*(pair(FLAT_ZO, FLAT_FO, measure, less) for measure in (PHI, PHI_HEAD))),
    ),
    Claim(
        "Flatter goes with less forgetting.",
        "section 3, section 5.3", STUDY,
        judged(*(agreeing(one, other, PHI) for one, other in PAIRS)),
    ),
    Claim(
        "The curves of ZO-FC and first order come closer in later tasks.",
        "section 5.3, figure 5", STUDY,
        judged(
            Compared([(FLAT_FO, EARLY), (FLAT_ZOFC, EARLY), (FLAT_FO, LATE), (FLAT_ZOFC, LATE)], narrowing, more)
        ),
    ),
    Claim(
        "Zeroth-order steps converge to minima with the least trace of the Hessian, and its largest eigenvalue "
        "bounds forgetting.",
        "section 3, appendices C and D", (),
        cannot(
            "It is proved for many steps on convex losses. zofc flatness measures the terms for a run; no study of "
            "the paper has numbers of them."
        ),
    ),
)  # fmt: skip

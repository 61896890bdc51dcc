"""What the paper says of the parts of ZO-FC: classifier, placement, augmentation, queries and module (section 5.3,
table 4, appendices E and F)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from claims.comparisons import Compared, Measure, Question, Runs, at_least, at_most, less, more, number, pair, within
from claims.lines import CLOSE, MAIN, NO_R, WITH_ADAPTER, WITH_ZOFC, ZOFC_GAINS, Claim, gap, kinds, of
from claims.measures import ACCURACY, FORGETTING
from claims.verdicts import MARGIN, judged, shown

QUERIES = (1, 2, 4, 8, 16, 32, 64)
AUGMENTED, PLAIN = (of("augmentation-ablation", f"ZO-FC {how} aug") for how in ("w", "w/o"))
HYBRID, SWAPPED = (of("placement-ablation", line) for line in ("ZO-FC", "FO adapter + ZO Cls."))
KINDS = kinds("classifier-ablation")
COSINE, LINEAR, PROTOTYPES = (KINDS[line] for line in ("ZO-FC (Cosine)", "ZO-FC (Linear)", "ZO Adapter + Prototype"))
HEADS = ((KINDS["Cosine Cls., FO"], KINDS["Linear Cls., FO"]), (COSINE, LINEAR))


def queries(count: int) -> Runs:
    return of("query-ablation", f"ZO-FC, Q = {count}")


def heads(margin: float) -> Question:
    return pair(KINDS["Adapter + Cosine Cls., FO"], KINDS["Adapter + Linear Cls., FO"], ACCURACY, within(margin))


def augmented(margin: float) -> Question:
    return pair(PLAIN, AUGMENTED, ACCURACY, within(margin))


def spread(margin: float) -> Question:
    """Of the accuracy over all numbers of queries."""
    numbers = [(queries(count), ACCURACY) for count in QUERIES]
    return Compared(numbers, lambda *found: max(found) - min(found), at_most(margin))


def rises(measure: Measure, low: int, middle: int, high: int) -> Question:
    """Whether a number rises less from the middle on than before, and how far it does either."""

    def tell(one: float, other: float, last: float) -> str:
        words = [
            f"{number(rise, measure, measure.unit)} from {a} to {b}"
            for rise, a, b in ((other - one, low, middle), (last - other, middle, high))
        ]
        return ", ".join(words) + f": it falls from {middle} on" * (last < other)

    numbers = [(queries(count), measure) for count in (low, middle, high)]
    return Compared(numbers, lambda one, other, last: (other - one) - (last - other), more, tell=tell)


APART, ALIKE = (gap(question(0)) for question in (heads, augmented))
SPREAD = gap(spread(0), "cifar100-*")
WITH_ROOM = shown(  # else the queries had nothing to change
    replace(ZOFC_GAINS, gain=at_least(SPREAD)), "since ZO-FC's adapter is not shown to add more than that in all"
)

CLAIMS = (
    Claim(
        "The classifier is what needs gradients: with the orders swapped, accuracy is lower.",
        "appendix E, table 6", ("placement-ablation",),
        judged(pair(SWAPPED, HYBRID, ACCURACY, less)),
    ),
    Claim(
        "With the orders swapped, forgetting is higher.",
        "table 6", ("placement-ablation",),
        judged(pair(SWAPPED, HYBRID, FORGETTING, more)),
    ),
    Claim(
        "Alone and in ZO-FC, a cosine classifier is more accurate than a linear one.",
        "appendix E, table 5", ("classifier-ablation",),
        judged(*(pair(one, other, ACCURACY, more) for one, other in HEADS)),
    ),
    Claim(
        "Alone and in ZO-FC, a cosine classifier forgets less than a linear one.",
        "appendix E, table 5", ("classifier-ablation",),
        judged(*(pair(one, other, FORGETTING, less) for one, other in HEADS)),
    ),
    Claim(
        "With a first-order adapter the two are close in accuracy (no further apart than anywhere in the paper, "
        f"{APART:.2f} points).",
        "appendix E, table 5", ("classifier-ablation", *MAIN),
        judged(heads(APART), own=MARGIN, rests=WITH_ADAPTER),
    ),
    Claim(
        "With class means as its final classifier ZO-FC is less accurate.",
        "appendix E, table 5", ("classifier-ablation",),
        judged(pair(PROTOTYPES, COSINE, ACCURACY, less)),
    ),
    Claim(
        "With class means it forgets more.",
        "appendix E, table 5", ("classifier-ablation",),
        judged(pair(PROTOTYPES, COSINE, FORGETTING, more)),
    ),
    Claim(
        f"With class means it is near SimpleCIL (within {CLOSE:g} point).",
        "appendix E, table 5", ("classifier-ablation", *MAIN),
        judged(pair(PROTOTYPES, Runs("SimpleCIL", MAIN), ACCURACY, within(CLOSE)), rests=WITH_ZOFC),
    ),
    Claim(
        "Without augmentation the accuracy of ZO-FC is similar (no further apart than anywhere in the paper, "
        f"{ALIKE:.2f} points).",
        "appendix F, table 7", ("augmentation-ablation",),
        judged(augmented(ALIKE), own=MARGIN),
    ),
    Claim(
        "Without augmentation it forgets more.",
        "appendix F, table 7", ("augmentation-ablation",),
        judged(pair(PLAIN, AUGMENTED, FORGETTING, more)),
    ),
    Claim(
        "On CIFAR-100 the number of queries changes accuracy little (highest less lowest, no more than the paper's "
        f"{SPREAD:.2f} points).",
        "section 5.3, table 4", ("query-ablation", *MAIN),
        judged(spread(SPREAD), on="cifar100-*", own=MARGIN, rests=WITH_ROOM),
    ),
    Claim(
        "On ImageNet-R accuracy rises with the number of queries.",
        "section 5.3, table 4", ("query-ablation",),
        judged(
            *(pair(queries(b), queries(a), ACCURACY, more) for a, b in pairwise(QUERIES)),
            on="imagenet-r-*", otherwise=NO_R,
        ),
    ),
    Claim(
        "More queries help less and less: from 1 to 4 more than from 4 to 64.",
        "section 5.3 (of ImageNet-R), table 4", ("query-ablation", *MAIN),
        judged(rises(ACCURACY, 1, 4, 64), rests=WITH_ZOFC),
    ),
    Claim(
        "Forgetting rises with few queries, then levels off or drops: less from 16 to 64 than from 1 to 16.",
        "section 5.3, table 4", ("query-ablation", *MAIN),
        judged(rises(FORGETTING, 1, 16, 64), rests=WITH_ZOFC),
    ),
    Claim(
        "Of the modules, the adapter is the best (here beside LoRA and prefixes, in the paper beside prompts).",
        "section 4.2", ("peft-choice", *MAIN),
        judged(
            *(
                pair(of("peft-choice", "ZO-FC, adapter"), of("peft-choice", f"ZO-FC, {other}"), ACCURACY, more)
                for other in ("LoRA", "prefix")
            ),
            rests=WITH_ZOFC,
        ),
    ),
)  # fmt: skip

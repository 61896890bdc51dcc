"""What the paper says of ZO-FC beside other methods: section 5.2, tables 2 and 3, appendix I."""

from __future__ import annotations

from claims.comparisons import Question, Runs, at_least, at_most, beside_best, less, more, pair
from claims.lines import (
    ADAPTER,
    ADAPTER_LEARNS,
    CLASSIFIER,
    CLOSE,
    MAIN,
    METHODS,
    MODULES,
    NO_DOMAINNET,
    NO_R,
    SIMPLE,
    TABLES,
    WITH_ADAPTER,
    WITH_LEARNING,
    WITH_ZOFC,
    ZOFC,
    ZOFC_GAINS,
    Claim,
    first,
    gap,
    zeroth,
)
from claims.measures import ACCURACY, FALLEN, FORGETTING, LOST
from claims.verdicts import MARGIN, judged

OTHERS = tuple(name for name in METHODS if name not in ("Adapter + Cls.", "EASE"))


def behind_best(margin: float) -> Question:
    return beside_best(ZOFC, [first(name) for name in METHODS], ACCURACY, at_least(-margin))


def behind_twin(margin: float) -> Question:
    return pair(ZOFC, ADAPTER, ACCURACY, at_least(-margin))


BEST, TWIN = (gap(question(0)) for question in (behind_best, behind_twin))

CLAIMS = (
    Claim(
        "A first-order adapter learns tasks better than the classifier alone, which claims about the adapter's steps "
        "rest on.",
        "–", TABLES,
        judged(ADAPTER_LEARNS), ours=True,
    ),
    Claim(
        "A first-order adapter forgets more than the classifier alone.",
        "– (tables 2 and 3)", TABLES,
        judged(pair(ADAPTER, CLASSIFIER, FORGETTING, more)), ours=True,
    ),
    Claim(
        "A first-order adapter is more accurate at the end than the classifier alone.",
        "– (tables 2 and 3)", TABLES,
        judged(pair(ADAPTER, CLASSIFIER, ACCURACY, more)), ours=True,
    ),
    Claim(
        "ZO-FC is comparable in accuracy to the best first-order methods (as we read it, behind the best by no more "
        f"than anywhere in the paper, {BEST:.2f} points).",
        "section 1, section 6, tables 2 and 3", TABLES,
        judged(behind_best(BEST), own=MARGIN),
    ),
    Claim(
        "It is comparable in accuracy to its first-order twin, adapter and classifier (behind by no more than anywhere "
        f"in the paper, {TWIN:.2f} points).",
        "– (tables 2 and 3)", TABLES,
        judged(behind_twin(TWIN), own=MARGIN, rests=WITH_ADAPTER), ours=True,
    ),
    Claim(
        "It is more accurate than SimpleCIL, which trains nothing.",
        "section 4.1, appendix E, tables 2 and 3", TABLES,
        judged(pair(ZOFC, SIMPLE, ACCURACY, more)),
    ),
    Claim(
        "It is more accurate than every method under zeroth order.",
        "section 5.2, table 2", TABLES,
        judged(*(pair(ZOFC, zeroth(name), ACCURACY, more) for name in METHODS)),
    ),
    Claim(
        "Its forgetting is low beside that of the methods under zeroth order.",
        "section 5.2, table 2", TABLES,
        judged(*(pair(ZOFC, zeroth(name), FORGETTING, less) for name in METHODS), rests=WITH_LEARNING),
    ),
    Claim(
        "On ImageNet-R it is over twelve points more accurate than EASE under zeroth order.",
        "section 5.2, table 2", MAIN,
        judged(pair(ZOFC, zeroth("EASE"), ACCURACY, at_least(12)), on="imagenet-r-inc5", otherwise=NO_R),
    ),
    Claim(
        "It is more accurate than the first-order methods but for the adapter and EASE (on DomainNet, than five).",
        "section 5.2, section 5.3, table 2", MAIN,
        judged(*(pair(Runs("ZO-FC", MAIN), first(name, MAIN), ACCURACY, more) for name in OTHERS)),
    ),
    Claim(
        "Its zeroth-order adapter adds accuracy to what the first-order classifier reaches alone.",
        "section 4.1, tables 2 and 3", TABLES,
        judged(ZOFC_GAINS),
    ),
    Claim(
        "It forgets less than every first-order method that trains more than a classifier.",
        "section 5.2, tables 2 and 3", TABLES,
        judged(*(pair(ZOFC, first(name), FORGETTING, less) for name in MODULES)),
    ),
    Claim(
        "It loses a smaller share of what it had learned than they do.",
        "–", TABLES,
        judged(*(pair(ZOFC, first(name), LOST, less) for name in MODULES)), ours=True,
    ),
    Claim(
        "The first-order classifier alone forgets less than every one that trains more, in points.",
        "– (tables 2 and 3)", TABLES,
        judged(*(pair(CLASSIFIER, first(name), FORGETTING, less) for name in MODULES)), ours=True,
    ),
    Claim(
        "With ten classes a task it forgets less even than the first-order classifier alone.",
        "section 5.2, table 3", TABLES,
        judged(pair(ZOFC, CLASSIFIER, FORGETTING, less), on="*-inc10"),
    ),
    Claim(
        f"Its forgetting is the classifier's: the adapter adds hardly any (at most {CLOSE:g} point).",
        "section 5.2", TABLES,
        judged(pair(ZOFC, CLASSIFIER, FORGETTING, at_most(CLOSE)), rests=WITH_ZOFC),
    ),
    Claim(
        "One adapter for all tasks is a strong first-order baseline (as we read it, better than all but EASE).",
        "section 4.2, table 2", TABLES,
        judged(*(pair(ADAPTER, first(name), ACCURACY, more) for name in OTHERS)),
    ),
    Claim(
        "ZO-FC is stable over the whole stream (as we read the curves, from the first task to the last it loses less "
        "accuracy than first-order methods that train more than a classifier).",
        "appendix I, figures 8 to 11", TABLES,
        judged(*(pair(ZOFC, first(name), FALLEN, less) for name in MODULES)),
    ),
    Claim(
        "On DomainNet it forgets less than every first-order method but the classifier alone.",
        "section 5.2, table 2", MAIN,
        judged(
            *(pair(ZOFC, first(name), FORGETTING, less) for name in MODULES), on="domainnet-*", otherwise=NO_DOMAINNET
        ),
    ),
)  # fmt: skip

"""What the paper says of zeroth order in place of first order: sections 3 and 4.1, figure 2, appendix G."""

from __future__ import annotations

from claims.comparisons import Compared, Gain, Measure, Question, Runs, less, more, pair, within
from claims.lines import (
    CLOSE,
    MAIN,
    MEANS,
    METHODS,
    NO_R,
    SIMPLE,
    STEADY,
    TABLES,
    UNSTABLE,
    WITH_LEARNING,
    Claim,
    first,
    gap,
    of,
    zeroth,
)
from claims.measures import ACCURACY, FORGETTING, LEARNED, LOST
from claims.verdicts import MARGIN, judged

CIFAR_CHANCE = 1.0  # percent, with 100 classes


def orders(name: str, measure: Measure, gain: Gain) -> Question:
    """A method under zeroth order beside itself under first order."""
    return pair(zeroth(name), first(name), measure, gain)


def above_chance(name: str) -> Question:
    return Compared([(zeroth(name), ACCURACY)], lambda found: found - CIFAR_CHANCE, less)


ALIKE = max(gap(orders(name, ACCURACY, less), "cifar100-*") for name in MEANS)

CLAIMS = (
    Claim(
        "A method forgets less if zeroth order moves what it trains.",
        "abstract, section 3, figure 1", TABLES,
        judged(*(orders(name, FORGETTING, less) for name in METHODS), rests=WITH_LEARNING),
    ),
    Claim(
        "The same as a share of what had been learned, since what learns little has little to forget.",
        "–", TABLES,
        judged(*(orders(name, LOST, less) for name in METHODS), rests=WITH_LEARNING), ours=True,
    ),
    Claim(
        "It learns new tasks less well.",
        "abstract, section 3, figure 1", TABLES,
        judged(*(orders(name, LEARNED, less) for name in METHODS)),
    ),
    Claim(
        "Methods that learn their classifier become less accurate.",
        "section 4.1, figure 2 (c, d), table 2", TABLES,
        judged(*(orders(name, ACCURACY, less) for name in (*STEADY, *UNSTABLE))),
    ),
    Claim(
        "L2P, CODA-Prompt and InfLoRA end below random guessing on CIFAR-100.",
        "section 4.1", TABLES,
        judged(*map(above_chance, UNSTABLE), on="cifar100-*"),
    ),
    Claim(
        "L2P, CODA-Prompt and InfLoRA end below the classifier alone, the adapter and LAE.",
        "section 4.1, figure 2 (c, d), table 2", TABLES,
        judged(*(pair(zeroth(one), zeroth(other), ACCURACY, less) for one in UNSTABLE for other in STEADY)),
    ),
    Claim(
        "Prompt methods that are trained several times as long still end below the adapter and below ZO-FC.",
        "appendix G, table 8", ("prompt-epochs", *MAIN),
        judged(
            *(
                pair(of("prompt-epochs", f"{name}, ZO, long"), other, ACCURACY, less)
                for name in UNSTABLE[:2]
                for other in (zeroth("Adapter + Cls.", MAIN), Runs("ZO-FC", MAIN))
            )
        ),
    ),
    Claim(
        f"APER and EASE become as accurate as SimpleCIL, which trains nothing (within {CLOSE:g} point).",
        "section 4.1, figure 2 (a, b)", TABLES,
        judged(*(pair(zeroth(name), SIMPLE, ACCURACY, within(CLOSE)) for name in MEANS)),
    ),
    Claim(
        "On CIFAR-100 APER and EASE stay comparable to themselves under first order (no further apart than in the "
        f"paper, {ALIKE:.2f} points).",
        "section 4.1, figure 2 (a)", TABLES,
        judged(*(orders(name, ACCURACY, within(ALIKE)) for name in MEANS), on="cifar100-*", own=MARGIN),
    ),
    Claim(
        "On harder images (ImageNet-R) APER and EASE lose much accuracy by it.",
        "section 4.1, figure 2 (b)", TABLES,
        judged(*(orders(name, ACCURACY, less) for name in MEANS), on="imagenet-r-*", otherwise=NO_R),
    ),
    Claim(
        "Beside a zeroth-order classifier, a zeroth-order adapter helps.",
        "section 4.1, figure 2 (c, d)", TABLES,
        judged(pair(zeroth("Adapter + Cls."), zeroth("Learnable Cls."), ACCURACY, more)),
    ),
)  # fmt: skip

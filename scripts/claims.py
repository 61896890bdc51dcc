"""The claims of the paper in our words, each with the place that makes it and the judge of our rows.

The order is the paper's argument: what zeroth order does to methods, what ZO-FC makes of it, what it consists of, why
it should forget less, what it costs. Sections, tables and figures are numbered as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from measures import (
    ACCURACY,
    EARLY,
    FALLEN,
    FORGETTING,
    LATE,
    LEARNED,
    LOST,
    MEMORY,
    OPERATIONS,
    PHI,
    PHI_HEAD,
    SECONDS,
)
from verdicts import (
    Evidence,
    Gain,
    Judge,
    Measure,
    Question,
    Runs,
    Verdict,
    at_least,
    at_most,
    compared,
    every,
    in_the_paper,
    joined,
    judged,
    less,
    more,
    pair,
    times,
    turns,
    within,
)

from zofc.studies.catalogue import STUDIES


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, the studies that can tell, and how."""

    text: str
    where: str
    studies: tuple[str, ...]
    judge: Judge

    def verdict(self, evidence: Evidence) -> Verdict:
        """As judged; with no row of its studies, not measured, unless it could not be."""
        found = self.judge(evidence)
        if found.word != "not measured":
            return found
        absent = [study for study in self.studies if not evidence.get(study)]
        why = f"No rows of {', '.join(absent)}." if absent else "Its lines are not there, or failed."
        return Verdict(found.word, f"{why} {found.because}".strip())


# -- lines -----------------------------------------------------------------------------------------------------------

MAIN, INC10 = ("main-table",), ("inc10-table",)
TABLES = MAIN + INC10
STEADY = ("Learnable Cls.", "Adapter + Cls.", "LAE Adapter")
UNSTABLE = ("L2P", "CODA-Prompt", "InfLoRA")
MEANS = ("APER Adapter", "EASE")  # which answer by class means
METHODS = (*STEADY, *UNSTABLE, *MEANS)
MODULES = METHODS[1:]  # those that train more than a classifier
MEASURED = ("Adapter + Learnable Cls.", "LAE", "APER", "EASE", "InfLoRA")  # their memory, under either order
QUERIES = (1, 2, 4, 8, 16, 32, 64)
ZOFC, SIMPLE = Runs("ZO-FC", TABLES), Runs("SimpleCIL", TABLES)


def first(method: str, studies: tuple[str, ...] = TABLES) -> Runs:
    return Runs(f"{method}, FO", studies)


def zeroth(method: str, studies: tuple[str, ...] = TABLES) -> Runs:
    return Runs(f"{method}, ZO", studies)


def of(study: str, line: str) -> Runs:
    return Runs(line, (study,))


def queries(number: int) -> Runs:
    return of("query-ablation", f"ZO-FC, Q = {number}")


CLASSIFIER, ADAPTER = first("Learnable Cls."), first("Adapter + Cls.")
FLAT_FO, FLAT_ZO = (of("flatness-curves", f"Adapter + classifier, {order}") for order in ("FO", "ZO"))
FLAT_ZOFC = of("flatness-curves", "ZO-FC")
AUGMENTED, PLAIN = (of("augmentation-ablation", f"ZO-FC {how} aug") for how in ("w", "w/o"))
HYBRID, SWAPPED = (of("placement-ablation", line) for line in ("ZO-FC", "FO adapter + ZO Cls."))
KINDS = {line.title: of("classifier-ablation", line.title) for line in STUDIES["classifier-ablation"].lines}
COSINE, LINEAR, PROTOTYPES = (KINDS[line] for line in ("ZO-FC (Cosine)", "ZO-FC (Linear)", "ZO Adapter + Prototype"))

# -- margins ---------------------------------------------------------------------------------------------------------

CLOSE = 1.0  # points, where the paper says "closely" or "minimal"
SHARE = 0.05  # of a cost that is to be the same
CIFAR_CHANCE = 1.0  # percent, with 100 classes


def gap(question: Question, on: str = "") -> float:
    """The widest in the paper's own numbers, for what it calls comparable, close or similar."""
    return max(abs(value) for value in in_the_paper(question, on))


def behind(margin: float) -> Question:
    return pair(ZOFC, ADAPTER, ACCURACY, at_least(-margin))


def heads(margin: float) -> Question:
    return pair(KINDS["Adapter + Cosine Cls., FO"], KINDS["Adapter + Linear Cls., FO"], ACCURACY, within(margin))


def augmented(margin: float) -> Question:
    return pair(AUGMENTED, PLAIN, ACCURACY, within(margin))


def spread(margin: float) -> Question:
    numbers = [(queries(number), ACCURACY) for number in QUERIES]
    return compared(numbers, lambda *found: max(found) - min(found), at_most(margin))


BEHIND, HEADS, ALIKE = (gap(question(0)) for question in (behind, heads, augmented))
SPREAD = gap(spread(0), "cifar100")


def undominated(accuracy: int, memory: int) -> int:
    """Against a claim of the best trade-off is a line that is more accurate and needs no more memory."""
    return 1 if max(accuracy, memory) > 0 else accuracy


def trade_off(other: Runs) -> Question:
    accuracy = pair(ZOFC, other, ACCURACY, more)
    return joined(accuracy, times(ZOFC, other, MEMORY, at_most(1)), undominated)


def narrowing(early_gap: float, early_other: float, late_gap: float, late_other: float) -> float:
    return abs(early_gap - early_other) - abs(late_gap - late_other)


def agreeing(one: Runs, other: Runs, measure: Measure) -> Question:
    """Whether the flatter of two forgets less."""
    return joined(pair(one, other, measure, less), pair(one, other, FORGETTING, less), lambda flat, kept: flat * kept)


def timed(one: str, other: str, gain: Gain) -> Question:
    return times(of("runtime", one), of("runtime", other), SECONDS, gain)


def counted(one: str, other: str, wanted: float) -> Question:
    return times(of("flops", one), of("flops", other), OPERATIONS, within(SHARE * wanted, wanted))


def cannot(why: str) -> Judge:
    return lambda evidence: Verdict("cannot be tested here", why)


NO_R, NO_DOMAINNET = "It is about ImageNet-R, which was not run.", "It is about DomainNet, which was not run."

# -- the claims ------------------------------------------------------------------------------------------------------

CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "Zeroth order in place of first order": (
        Claim(
            "A method forgets less if zeroth order moves what it trains.",
            "abstract, section 3, figure 1", TABLES,
            judged(*(pair(zeroth(name), first(name), FORGETTING, less) for name in METHODS)),
        ),
        Claim(
            "The same as a share of what had been learned. (Our addition: what learns little has little to forget.)",
            "–", TABLES,
            judged(*(pair(zeroth(name), first(name), LOST, less) for name in METHODS)),
        ),
        Claim(
            "It learns new tasks less well.",
            "abstract, section 3, figure 1", TABLES,
            judged(*(pair(zeroth(name), first(name), LEARNED, less) for name in METHODS)),
        ),
        Claim(
            "Methods that learn their classifier become less accurate.",
            "section 4.1, figure 2 (c, d), table 2", TABLES,
            judged(*(pair(zeroth(name), first(name), ACCURACY, less) for name in (*STEADY, *UNSTABLE))),
        ),
        Claim(
            "L2P, CODA-Prompt and InfLoRA end below random guessing on CIFAR-100.",
            "section 4.1", TABLES,
            judged(
                *(
                    compared([(zeroth(name), ACCURACY)], lambda found: found - CIFAR_CHANCE, less)
                    for name in UNSTABLE
                ),
                on="cifar100",
            ),
        ),
        Claim(
            "L2P, CODA-Prompt and InfLoRA do not converge, and end below the classifier alone, the adapter and LAE.",
            "section 4.1", TABLES,
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
            "On harder images (ImageNet-R) APER and EASE lose much accuracy by it.",
            "section 4.1, figure 2 (b)", TABLES,
            judged(
                *(pair(zeroth(name), first(name), ACCURACY, less) for name in MEANS), on="imagenet-r", otherwise=NO_R
            ),
        ),
        Claim(
            "Beside a zeroth-order classifier, a zeroth-order adapter helps.",
            "section 4.1, figure 2 (c, d)", TABLES,
            judged(pair(zeroth("Adapter + Cls."), zeroth("Learnable Cls."), ACCURACY, more)),
        ),
    ),
    "ZO-FC": (
        Claim(
            "ZO-FC is more accurate than every method under zeroth order.",
            "section 5.2, table 2", TABLES,
            judged(*(pair(ZOFC, zeroth(name), ACCURACY, more) for name in METHODS)),
        ),
        Claim(
            "On ImageNet-R it is twelve points more accurate than EASE under zeroth order.",
            "section 5.2, table 2", MAIN,
            judged(pair(ZOFC, zeroth("EASE"), ACCURACY, at_least(12)), on="imagenet-r-inc5", otherwise=NO_R),
        ),
        Claim(
            "It is more accurate than the first-order methods but for the adapter and EASE (on DomainNet, than five).",
            "section 5.2, table 2", MAIN,
            judged(
                *(
                    pair(Runs("ZO-FC", MAIN), first(name, MAIN), ACCURACY, more)
                    for name in METHODS
                    if name not in ("Adapter + Cls.", "EASE")
                )
            ),
        ),
        Claim(
            "It is comparable in accuracy to its first-order twin (behind by no more than anywhere in the paper, "
            f"{BEHIND:.2f} points).",
            "abstract, section 5.2, tables 2 and 3", TABLES,
            judged(behind(BEHIND), own=False),
        ),
        Claim(
            "Its zeroth-order adapter adds accuracy to what the first-order classifier reaches alone.",
            "section 4.1, tables 2 and 3", TABLES,
            judged(pair(ZOFC, CLASSIFIER, ACCURACY, more)),
        ),
        Claim(
            "It forgets less than every first-order method that trains more than a classifier.",
            "section 5.2, tables 2 and 3", TABLES,
            judged(*(pair(ZOFC, first(name), FORGETTING, less) for name in MODULES)),
        ),
        Claim(
            "With ten classes a task it forgets less even than the first-order classifier alone.",
            "section 5.2, table 3", INC10,
            judged(pair(Runs("ZO-FC", INC10), first("Learnable Cls.", INC10), FORGETTING, less)),
        ),
        Claim(
            f"Its forgetting is the classifier's: the adapter adds hardly any (at most {CLOSE:g} point).",
            "section 5.2", TABLES,
            judged(pair(ZOFC, CLASSIFIER, FORGETTING, at_most(CLOSE))),
        ),
        Claim(
            "One adapter for all tasks is a strong first-order baseline: better than the others, EASE apart.",
            "section 4.2, table 2", TABLES,
            judged(*(pair(ADAPTER, first(name), ACCURACY, more) for name in METHODS if name not in (
                "Adapter + Cls.", "EASE"))),
        ),
        Claim(
            "ZO-FC is stable over the whole stream. (Our reading of the curves: its accuracy falls less from the first "
            "task to the last than that of first-order methods that train more than a classifier.)",
            "appendix I, figures 8 to 11", TABLES,
            judged(*(pair(ZOFC, first(name), FALLEN, less) for name in MODULES)),
        ),
        Claim(
            "On DomainNet it forgets less than every first-order method but the classifier alone.",
            "section 5.2, table 2", MAIN,
            judged(
                *(pair(ZOFC, first(name), FORGETTING, less) for name in MODULES),
                on="domainnet", otherwise=NO_DOMAINNET,
            ),
        ),
    ),
    "What ZO-FC is made of": (
        Claim(
            "The classifier is what needs gradients: with the orders swapped, accuracy is lower and forgetting higher.",
            "appendix E, table 6", ("placement-ablation",),
            judged(pair(HYBRID, SWAPPED, ACCURACY, more), pair(HYBRID, SWAPPED, FORGETTING, less)),
        ),
        Claim(
            "Alone and in ZO-FC, a cosine classifier is more accurate than a linear one and forgets less.",
            "appendix E, table 5", ("classifier-ablation",),
            judged(
                *(
                    pair(one, other, measure, gain)
                    for one, other in ((KINDS["Cosine Cls., FO"], KINDS["Linear Cls., FO"]), (COSINE, LINEAR))
                    for measure, gain in ((ACCURACY, more), (FORGETTING, less))
                )
            ),
        ),
        Claim(
            "With a first-order adapter the two are close (no further apart than anywhere in the paper, "
            f"{HEADS:.2f} points).",
            "appendix E, table 5", ("classifier-ablation",),
            judged(heads(HEADS), own=False),
        ),
        Claim(
            "With class means as the final classifier it is less accurate than ZO-FC, and forgets more.",
            "appendix E, table 5", ("classifier-ablation",),
            judged(pair(PROTOTYPES, COSINE, ACCURACY, less), pair(PROTOTYPES, COSINE, FORGETTING, more)),
        ),
        Claim(
            f"It is then near SimpleCIL (within {CLOSE:g} point).",
            "appendix E, table 5", ("classifier-ablation", *MAIN),
            judged(pair(PROTOTYPES, Runs("SimpleCIL", MAIN), ACCURACY, within(CLOSE))),
        ),
        Claim(
            "Without augmentation the accuracy of ZO-FC is similar (no further apart than anywhere in the paper, "
            f"{ALIKE:.2f} points).",
            "appendix F, table 7", ("augmentation-ablation",),
            judged(augmented(ALIKE), own=False),
        ),
        Claim(
            "Without augmentation it forgets more.",
            "appendix F, table 7", ("augmentation-ablation",),
            judged(pair(PLAIN, AUGMENTED, FORGETTING, more)),
        ),
        Claim(
            "On CIFAR-100 the number of queries changes accuracy little (highest less lowest, in the paper "
            f"{SPREAD:.2f} points).",
            "section 5.3, table 4", ("query-ablation",),
            judged(spread(SPREAD), on="cifar100", own=False),
        ),
        Claim(
            "On ImageNet-R accuracy rises with the number of queries.",
            "section 5.3, table 4", ("query-ablation",),
            judged(
                *(pair(queries(b), queries(a), ACCURACY, more) for a, b in pairwise(QUERIES)),
                on="imagenet-r", otherwise=NO_R,
            ),
        ),
        Claim(
            "More queries help less and less: from 1 to 4 more than from 4 to 64.",
            "section 5.3, table 4", ("query-ablation",),
            judged(
                compared(
                    [(queries(number), ACCURACY) for number in (1, 4, 64)],
                    lambda one, four, many: (four - one) - (many - four), more,
                )
            ),
        ),
        Claim(
            "Forgetting is not monotone in the number of queries.",
            "section 5.3, table 4", ("query-ablation",),
            judged(
                turns(
                    [pair(queries(b), queries(a), FORGETTING, more) for a, b in pairwise(QUERIES)]
                )
            ),
        ),
        Claim(
            "Of the modules, the adapter is the best.",
            "section 4.2", ("peft-choice",),
            judged(
                *(
                    pair(of("peft-choice", "ZO-FC, adapter"), of("peft-choice", f"ZO-FC, {other}"), ACCURACY, more)
                    for other in ("LoRA", "prefix")
                )
            ),
        ),
    ),
    "Flatness": (
        Claim(
            "The old tasks' loss is flatter (Φ is lower) after ZO-FC than after first order.",
            "section 5.3, figure 5", ("flatness-curves",),
            judged(*(pair(FLAT_ZOFC, FLAT_FO, measure, less) for measure in (PHI, PHI_HEAD))),
        ),
        Claim(
            "It is flatter after zeroth order throughout than after first order.",
            "section 3, figure 5", ("flatness-curves",),
            judged(*(pair(FLAT_ZO, FLAT_FO, measure, less) for measure in (PHI, PHI_HEAD))),
        ),
        Claim(
            "Flatter goes with less forgetting.",
            "section 3, section 5.3", ("flatness-curves",),
            judged(
                *(
                    agreeing(one, other, PHI)
                    for one, other in ((FLAT_ZOFC, FLAT_FO), (FLAT_ZO, FLAT_FO), (FLAT_ZOFC, FLAT_ZO))
                )
            ),
        ),
        Claim(
            "The curves of ZO-FC and first order come closer in later tasks.",
            "section 5.3, figure 5", ("flatness-curves",),
            judged(
                compared(
                    [(FLAT_FO, EARLY), (FLAT_ZOFC, EARLY), (FLAT_FO, LATE), (FLAT_ZOFC, LATE)], narrowing, more,
                )
            ),
        ),
        Claim(
            "Zeroth-order steps converge to minima with the least trace of the Hessian, and its largest eigenvalue "
            "bounds forgetting.",
            "section 3, appendices C and D", (),
            cannot(
                "It is proved for many steps on convex losses. zofc flatness measures the terms for a run; no "
                "study of the paper has numbers of them."
            ),
        ),
    ),
    "Cost": (
        Claim(
            "A method needs less memory under zeroth order.",
            "appendix H, table 9", ("peak-memory",),
            judged(
                *(
                    times(zeroth(name, ("peak-memory",)), first(name, ("peak-memory",)), MEMORY, at_most(1))
                    for name in MEASURED
                )
            ),
        ),
        Claim(
            "First order needs six times the memory of ZO-FC.",
            "section 1, section 5.2, figure 4, table 9", ("peak-memory",),
            judged(
                times(first(MEASURED[0], ("peak-memory",)), of("peak-memory", "ZO-FC"), MEMORY, at_least(6))
            ),
        ),
        Claim(
            "The first-order classifier costs ZO-FC hardly any memory (at most "
            f"{100 * SHARE:g} % more than zeroth order throughout).",
            "section 4.2, appendix H, table 9", ("peak-memory",),
            judged(
                times(of("peak-memory", "ZO-FC"), zeroth(MEASURED[0], ("peak-memory",)), MEMORY, at_most(1 + SHARE))
            ),
        ),
        Claim(
            "ZO-FC has the better trade-off: no other method is more accurate with no more memory.",
            "section 5.2, figures 4, 6 and 7", TABLES,
            judged(every([trade_off(runs) for name in METHODS for runs in (first(name), zeroth(name))])),
        ),
        Claim(
            "With one query, an epoch of zeroth order takes less time than one of first order.",
            "appendix H, table 10", ("runtime",),
            judged(timed("ZO, q = 1", "FO", at_most(1))),
        ),
        Claim(
            "With four queries it takes longer, and so does ZO-FC.",
            "appendix H, table 10", ("runtime",),
            judged(timed("ZO, q = 4", "FO", at_least(1)), timed("ZO-FC, q = 4", "FO", at_least(1))),
        ),
        Claim(
            "ZO-FC takes somewhat longer than zeroth order throughout.",
            "appendix H, table 10", ("runtime",),
            judged(*(timed(f"ZO-FC, q = {number}", f"ZO, q = {number}", at_least(1)) for number in (1, 4))),
        ),
        Claim(
            f"In operations, one query costs as much as first order, and four cost three times as much (within "
            f"{100 * SHARE:g} %, as executed).",
            "appendix H, table 11", ("flops",),
            judged(counted("ZO, q = 1", "FO", 1), counted("ZO, q = 4", "FO", 3)),
        ),
        Claim(
            f"ZO-FC takes as many operations as zeroth order throughout (within {100 * SHARE:g} %, as executed).",
            "appendix H, table 11", ("flops",),
            judged(
                *(
                    counted(f"ZO-FC {when}, q = {number}", f"ZO, q = {number}", 1)
                    for when in ("early", "late")
                    for number in (1, 4)
                )
            ),
        ),
        Claim(
            "ZO-FC trains in 0.7 GB, and is practical on a small device.",
            "section 5.2, appendix H, tables 9 and 10", (),
            cannot(
                "It is about ViT-B/16 at 224 px on the authors' device, which was not run; ratios of memory and time "
                "are judged above."
            ),
        ),
        Claim(
            "The accuracies themselves, as printed.",
            "tables 2 to 8", (),
            cannot(
                "They belong to ViT-B/16 with ImageNet-21k weights, all training images and all epochs. The tables "
                "below have them in brackets, for orientation."
            ),
        ),
    ),
}  # fmt: skip

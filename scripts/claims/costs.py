"""What the paper says of cost: section 5.2, figures 4, 6 and 7, appendix H."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from claims.comparisons import (
    Comparison,
    Evidence,
    Gain,
    Question,
    Runs,
    at_least,
    at_most,
    grouped,
    joined,
    more,
    number,
    pair,
    times,
    within,
)
from claims.lines import METHODS, SHARE, SIMPLE, TABLES, ZOFC, Claim, first, of, zeroth
from claims.measures import ACCURACY, MEMORY, OPERATIONS, SECONDS
from claims.verdicts import NO_NUMBERS, cannot, in_the_paper, judged

MEASURED = ("Adapter + Learnable Cls.", "LAE", "APER", "EASE", "InfLoRA")  # their memory, under either order
STEP = ("peak-memory",)
HYBRID, CLASSIFIER = of(*STEP, "ZO-FC"), first("Learnable Cls.", STEP)
PUBLISHED = ("step",)  # the step benchmark, on the paper's backbone
(SAVED,) = in_the_paper(times(first(MEASURED[0], STEP), HYBRID, MEMORY, at_least(6)))
SMALLER = times(first(MEASURED[0], STEP), HYBRID, MEMORY, more)  # on the backbone of the studies
SAME = f"within {100 * SHARE:g} %"


def timed(one: str, other: str, gain: Gain) -> Question:
    return times(of("runtime", one), of("runtime", other), SECONDS, gain)


def counted(one: str, other: str, wanted: float) -> Question:
    return times(of("flops", one), of("flops", other), OPERATIONS, within(SHARE * wanted, wanted))


# -- the trade-off ---------------------------------------------------------------------------------------------------


def undominated(accuracy: int, memory: int) -> int:
    """Against a claim of the best trade-off is a line that is more accurate and needs no more memory."""
    return 1 if max(accuracy, memory) > 0 else accuracy


def beside(other: Runs) -> Question:
    """ZO-FC beside a line that trains."""
    return joined(pair(ZOFC, other, ACCURACY, more), times(ZOFC, other, MEMORY, at_most(1)), undominated)


def trade_off(others: Sequence[Runs], untrained: Sequence[Runs] = ()) -> Question:
    """One comparison for each setting, which speaks for ZO-FC only if all lines do. What trains nothing makes no step:
    it needs a forward pass, which is part of every step, so its accuracy alone decides."""
    questions = [*(pair(ZOFC, other, ACCURACY, more) for other in untrained), *map(beside, others)]
    memory = [times(other, ZOFC, MEMORY, at_most(1)) for other in others]

    def ask(evidence: Evidence) -> list[Comparison]:
        ratios = {(one.setting, one.lines[0]): one.value for question in memory for one in question(evidence)}
        return [answer(found, ratios) for found in grouped(questions, evidence)]

    def answer(found: list[Comparison], ratios: dict[tuple[str, str], float]) -> Comparison:
        parts = []
        for side, words in ((-1, "beaten by"), (0, "too close to")):
            names = [_told(one, ratios) for one in found if one.side == side]
            parts += [f"{words} {' and '.join(names)}"] * bool(names)
        parts += [] if untrained else _nearest(found, ratios)
        side, told = min(one.side for one in found), ", ".join(parts)
        measure = replace(ACCURACY, words="accuracy at the end, and peak memory of a step")
        return replace(found[0], lines=(ZOFC.line,), measure=measure, unit="", side=side, told=told, shown=told)

    return ask


def _nearest(found: list[Comparison], ratios: dict[tuple[str, str], float]) -> list[str]:
    """The most accurate with no more memory, and the one with the least memory that is as accurate, unless they
    are told of already."""
    known = [(one, ratios[one.setting, one.lines[1]]) for one in found]
    cheaper = [(one.value, one) for one, ratio in known if ratio <= 1]
    better = [(ratio, one) for one, ratio in known if one.value <= 0]
    words = []
    for which, some in (("nearest with no more memory", cheaper), ("nearest with no less accuracy", better)):
        nearest = [min(some, key=lambda pair: pair[0])[1]] if some else []
        words += [f"{which} {_told(one, ratios)}" for one in nearest if one.side > 0]
    return words


def _told(one: Comparison, ratios: dict[tuple[str, str], float]) -> str:
    ratio = ratios.get((one.setting, one.lines[1]))
    needs = "no step at all" if ratio is None else f"{ratio:.2f}× its memory"
    return f"{one.lines[1]} ({number(-one.value, ACCURACY, ACCURACY.unit)} points, {needs})"


TRAINED = tuple(runs for name in METHODS for runs in (first(name), zeroth(name)))

CLAIMS = (
    Claim(
        "A method needs less memory under zeroth order.",
        "appendix H, table 9", STEP,
        judged(*(times(zeroth(name, STEP), first(name, STEP), MEMORY, at_most(1)) for name in MEASURED)),
    ),
    Claim(
        "ZO-FC needs six times less memory than first order (in section 5.2, up to six; judged by the published steps "
        "on ViT-B/16, of results/step.json).",
        "section 1, section 5.2, figure 4, table 9", PUBLISHED,
        judged(
            times(of(*PUBLISHED, "published-first"), of(*PUBLISHED, "published"), MEMORY, at_least(6)),
            own=f"{SAVED:.2f}×",
        ),
    ),
    Claim(
        f"The first-order classifier costs ZO-FC hardly any memory (at most {100 * SHARE:g} % more than zeroth order "
        "throughout).",
        "section 4.2, appendix H, table 9", STEP,
        judged(times(HYBRID, zeroth(MEASURED[0], STEP), MEMORY, at_most(1 + SHARE))),
    ),
    Claim(
        f"ZO-FC needs as little memory as the first-order classifier alone (at most {100 * SHARE:g} % more).",
        "appendix H, table 9", STEP,
        judged(times(HYBRID, CLASSIFIER, MEMORY, at_most(1 + SHARE))),
    ),
    Claim(
        "ZO-FC has the better trade-off: no other method that trains is more accurate with no more memory (as we read "
        "it).",
        "section 5.2, figures 4, 6 and 7", TABLES,
        judged(trade_off(TRAINED), own=NO_NUMBERS),
    ),
    Claim(
        "The same with SimpleCIL, which makes no step, among them.",
        "–", TABLES,
        judged(trade_off(TRAINED, [SIMPLE]), own=NO_NUMBERS), ours=True,
    ),
    Claim(
        "With one query, an epoch of zeroth order takes less time than one of first order.",
        "appendix H, table 10", ("runtime",),
        judged(timed("ZO, q = 1", "FO", at_most(1))),
    ),
    Claim(
        "With four queries zeroth order and ZO-FC take longer than first order.",
        "appendix H, table 10", ("runtime",),
        judged(timed("ZO, q = 4", "FO", at_least(1)), timed("ZO-FC, q = 4", "FO", at_least(1))),
    ),
    Claim(
        "ZO-FC takes somewhat longer than zeroth order throughout.",
        "appendix H, table 10", ("runtime",),
        judged(*(timed(f"ZO-FC, q = {count}", f"ZO, q = {count}", at_least(1)) for count in (1, 4))),
    ),
    Claim(
        f"One query of zeroth order costs as many operations as first order ({SAME}, as executed).",
        "appendix H, table 11", ("flops",),
        judged(counted("ZO, q = 1", "FO", 1)),
    ),
    Claim(
        f"Four queries cost three times as many ({SAME}, as executed).",
        "appendix H, table 11", ("flops",),
        judged(counted("ZO, q = 4", "FO", 3)),
    ),
    Claim(
        f"ZO-FC takes as many operations as zeroth order throughout ({SAME}, as executed).",
        "appendix H, table 11", ("flops",),
        judged(
            *(
                counted(f"ZO-FC {when}, q = {count}", f"ZO, q = {count}", 1)
                for when in ("early", "late")
                for count in (1, 4)
            )
        ),
    ),
    Claim(
        "ZO-FC trains in 0.7 GB, and is practical on a small device.",
        "section 5.2, appendix H, tables 9 and 10", (),
        cannot(
            "No small device was at hand. What the published step needs on a large one, written anew, is in "
            "benchmarks/README.md."
        ),
    ),
    Claim(
        "The accuracies themselves, as printed.",
        "tables 2 to 8", (),
        cannot(
            "They belong to ViT-B/16 with ImageNet-21k weights, all training images and all epochs. The studies' "
            "tables have them in brackets, for orientation."
        ),
    ),
)  # fmt: skip

"""What a reader should know first: how many claims hold, which method is the best, and how ZO-FC stands."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from claims import CLAIMS, Claim
from claims.comparisons import Comparison, Evidence, Measure, Question, Runs, less, more, number, pair, times
from claims.costs import SMALLER
from claims.flatness import FLAT_FO, FLAT_ZOFC
from claims.hybrid import behind_best, behind_twin
from claims.lines import (
    ADAPTER,
    ADAPTER_LEARNS,
    CLASSIFIER,
    MEANS,
    METHODS,
    RIDGE,
    SIMPLE,
    STEADY,
    TABLES,
    ZOFC,
    at_chance,
    first,
    zeroth,
)
from claims.measures import ACCURACY, FORGETTING, LEARNED, PHI_LAST
from claims.orders import orders
from claims.verdicts import (
    HOLDS,
    MIXED,
    MOSTLY,
    MOSTLY_NOT,
    NOT,
    PARTLY,
    PARTLY_NOT,
    TOO_CLOSE,
    UNMEASURED,
    WORDS,
    Verdict,
    class_incremental,
    in_the_paper,
    printed,
)
from page.files import Result
from page.training import SHOWN, steps_a_task
from page.words import bullets, listed, prose, table
from zofc.recipe import PAPER_BACKBONE
from zofc.studies.catalogue import MAIN_LINES

Verdicts = Mapping[str, Verdict]  # by the text of a claim
LINES = (*(line.title for line in MAIN_LINES), RIDGE)
SHORT = {RIDGE: "ridge regression"}
SEVERAL = {  # a verdict, said of several claims
    HOLDS: "hold", MOSTLY: "mostly hold", PARTLY: "hold in part", MIXED: "are mixed",
    PARTLY_NOT: "do not hold in part", MOSTLY_NOT: "mostly do not hold", NOT: "do not hold",
    TOO_CLOSE: "are undecided", UNMEASURED: "were not measured",
}  # fmt: skip
SINGLE = {MIXED: "is mixed", TOO_CLOSE: "is undecided", UNMEASURED: "was not measured"}


def findings(results: Sequence[Result], evidence: Evidence, verdicts: Verdicts) -> str:
    said = [_what_this_is(results, evidence), *_which_estimator(results), _tally(verdicts), *_adapter(evidence)]
    said += [*_accuracy(evidence), *_harmed(evidence)]
    return "\n\n".join(
        ["## Findings", bullets([*said, *_core(evidence, verdicts)]), *_by_group(verdicts), *_beside(evidence)]
    )


def _what_this_is(results: Sequence[Result], evidence: Evidence) -> str:
    fewest, most = (pick(len(result.seeds) for result in results) for pick in (min, max))
    how_many = "one seed" if most == 1 else f"{fewest} to {most} seeds" if fewest < most else f"{most} seeds"
    steps = steps_a_task(ZOFC.line, results)
    fewer = f"steps ({steps[0]} a task of {SHOWN} for ZO-FC, where the paper has {steps[1]})" if steps else "steps"
    return (
        f"This is no repetition of the paper's numbers: a smaller backbone than its {PAPER_BACKBONE}, fewer images, "
        f"fewer {fewer}, and {how_many}. What can be compared is how lines stand to each other"
        f"{_across_orders(evidence)}."
    )


def _across_orders(evidence: Evidence) -> str:
    """What few steps do to zeroth order, as its accuracy in units of first order's, here and in the paper."""
    told = []
    for name in STEADY:
        question = times(zeroth(name), first(name), ACCURACY, more)
        ours, theirs = ([one.value for one in question(rows) if one.setting == SHOWN] for rows in (evidence, printed()))
        told += [f"{name} {ours[0]:.2f}, there {theirs[0]:.2f}"] if ours and theirs else []
    if not told:
        return ""
    return (
        ", and across orders with care: zeroth order reaches another share of first order's accuracy here than in the "
        f"paper (on {SHOWN}: {'; '.join(told)})"
    )


def _which_estimator(results: Sequence[Result]) -> list[str]:
    """What zeroth order means where differences were not taken."""
    if not any(result.scale.fast for result in results):
        return []
    return [
        "Zeroth order here is, but for the costs, a step along random directions by the exact derivative along them "
        "(`--fast`), which is what the paper's differences become as their ε goes to zero. So there is no smoothing "
        "over ε in it, which section 3 of the paper argues from. At the paper's ε of 0.001 the two were not told apart "
        "for ZO-FC: [the README](../README.md#speed-and-memory) has them side by side."
    ]


def _by_group(verdicts: Verdicts) -> list[str]:
    """How many of the paper's claims came to what, by what they are about."""
    found = {group: Counter(verdicts[one.text].word for one in some if not one.ours) for group, some in CLAIMS.items()}
    words = [word for word in WORDS if any(counts[word] for counts in found.values())]
    rows = [(group, *(str(counts[word] or "") for word in words)) for group, counts in found.items()]
    return [table(("the paper's claims about", *words), rows)]


def _tally(verdicts: Verdicts) -> str:
    """The paper's claims by verdict, then ours."""
    found = [f"Of the paper's {len(_claims(False))} claims, {_counts(_claims(False), verdicts)}."]
    if _claims(True):
        found.append(f"Of the {len(_claims(True))} that we add, {_counts(_claims(True), verdicts)}.")
    return " ".join(found)


def _claims(ours: bool) -> list[Claim]:
    return [claim for some in CLAIMS.values() for claim in some if claim.ours is ours]


def _counts(claims: Sequence[Claim], verdicts: Verdicts) -> str:
    counts = Counter(verdicts[claim.text].word for claim in claims)
    said = {word: (SINGLE if counts[word] == 1 else SEVERAL).get(word, word) for word in WORDS}
    return listed([f"{counts[word]} {said[word]}" for word in WORDS if counts[word]])


# -- accuracy --------------------------------------------------------------------------------------------------------


def mean(evidence: Evidence, line: str, setting: str, measure: Measure = ACCURACY) -> float | None:
    """A number of a line, mean over seeds."""
    rows = Runs(line, TABLES).found(evidence)
    found = [measure.of(row) for (where, _), row in rows.items() if where == setting]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known else None


def highest(evidence: Evidence, lines: Sequence[str], setting: str) -> tuple[str, float] | None:
    known = [(line, value) for line in lines if (value := mean(evidence, line, setting)) is not None]
    return max(known, key=lambda one: one[1]) if known else None


def _settings(evidence: Evidence) -> list[str]:
    """Those in which ZO-FC was run."""
    return list(dict.fromkeys(setting for setting, _ in ZOFC.found(evidence)))


def _accuracy(evidence: Evidence) -> list[str]:
    """Which line is the best, and how far ZO-FC is from what it should be measured by."""
    where: dict[str, list[str]] = {}
    for setting in filter(class_incremental, _settings(evidence)):
        if best := highest(evidence, LINES, setting):
            where.setdefault(SHORT.get(best[0], best[0]), []).append(setting)
    named = "; ".join(f"{line} on {listed(some)}" for line, some in where.items())
    idle = [one.setting for one in _counted(ADAPTER_LEARNS, evidence) if one.side < 1]
    parts = [f"{words} {told}" for words, question in BESIDE.items() if (told := _distance(question, evidence))]
    if told := _distance(behind_twin(0), evidence, idle):
        parts.append(f"its first-order twin, where that is shown to learn more than the classifier alone, {told}")
    if not named or not parts:
        return []
    told = f"The highest means are those of {named}. ZO-FC less each of these, in points: {'; '.join(parts)}."
    return [f"**Accuracy.** {told}"]


BESIDE: Mapping[str, Question] = {
    "the best first-order method": behind_best(0),
    "SimpleCIL, which trains nothing,": pair(ZOFC, SIMPLE, ACCURACY, more),
    "ridge regression": pair(ZOFC, Runs(RIDGE, TABLES), ACCURACY, more),
}


CONTAINED = (  # a line, and what it would be if its module were left alone
    (ADAPTER, CLASSIFIER),
    (ZOFC, CLASSIFIER),
    (zeroth("Adapter + Cls."), zeroth("Learnable Cls.")),
    *((order(name), SIMPLE) for name in MEANS for order in (first, zeroth)),
)


def _harmed(evidence: Evidence) -> list[str]:
    """Lines whose training did harm: of such, the learning rates are to be doubted first."""
    found: dict[str, list[Comparison]] = {}
    for one, contained in CONTAINED:
        for beside in _counted(pair(one, contained, ACCURACY, more), evidence):
            if beside.side < 0:
                found.setdefault(f"{one.line} beside {contained.line}", []).append(beside)
    if not found:
        return []
    told = [f"{lines} on {listed([one.setting for one in some])} ({_range([one.value for one in some])})"
            for lines, some in found.items()]  # fmt: skip
    return [
        "**Training that did harm.** Less accurate than what they would be with their module left alone, in points: "
        f"{'; '.join(told)}. Their learning rates suit these tasks badly, and what is said of them is said of these "
        "rates."
    ]


def _distance(question: Question, evidence: Evidence, but: Sequence[str] = ()) -> str:
    """From the lowest to the highest, here (`but` in some settings) and in the paper."""
    values = [one.value for one in _counted(question, evidence) if one.setting not in but]
    theirs = in_the_paper(question)
    return _range(values) + (f" (in the paper {_range(theirs)})" if theirs else "") if values else ""


def _beside(evidence: Evidence) -> list[str]:
    """ZO-FC and what it should be measured by, in every setting."""
    heads = ("accuracy on all classes at the end, %", "ZO-FC", "best first-order method", "first-order twin",
             "classifier alone", "SimpleCIL", "ridge regression")  # fmt: skip
    rows = []
    for setting in _settings(evidence):
        best = highest(evidence, [first(name).line for name in METHODS], setting)
        lines = [mean(evidence, line, setting) for line in (ADAPTER.line, CLASSIFIER.line, SIMPLE.line, RIDGE)]
        cells = [f"{value:.2f}" if value is not None else "—" for value in (mean(evidence, ZOFC.line, setting), *lines)]
        shown = f"{best[1]:.2f} ({best[0].removesuffix(', FO')})" if best else "—"
        rows.append((setting, cells[0], shown, *cells[1:]))
    after = "Mean over seeds. The twin trains adapter and classifier by first order. Ridge regression on the frozen "
    after += "features is not in the paper."
    if apart := [name for name in _settings(evidence) if not class_incremental(name)]:
        after += f" Tasks of {listed(apart)} bring no new classes; it is in no count."
    return [table(heads, rows), prose(after)] if rows else []


# -- the adapter, and the core of the paper --------------------------------------------------------------------------


def _adapter(evidence: Evidence) -> list[str]:
    """What an adapter adds to the classifier alone, by either order."""
    parts = []
    for whose, line in (("by first order", ADAPTER), ("by zeroth order (ZO-FC)", ZOFC)):
        found = {m: _counted(pair(line, CLASSIFIER, m, more), evidence) for m in (LEARNED, FORGETTING, ACCURACY)}
        if all(found.values()):
            learned, forgotten, end = (_range([one.value for one in some]) for some in found.values())
            parts.append(f"{whose} it learns {learned}, forgets {forgotten} and ends {end}")
    if not parts:
        return []
    theirs = (
        in_the_paper(pair(ADAPTER, CLASSIFIER, ACCURACY, more)),
        in_the_paper(pair(ZOFC, CLASSIFIER, ACCURACY, more)),
    )
    told = f"**The adapter.** Beside the classifier alone, in points: {'; '.join(parts)}"
    told += f" (in the paper it ends {_range(theirs[0])} and {_range(theirs[1])}). What it learns "
    told += "and forgets at other rates: [What the learning rates do](#what-the-learning-rates-do)."
    idle = [one.setting for one in _counted(ADAPTER_LEARNS, evidence) if one.side < 1]
    told += f" On {listed(idle)} not even first order is shown to learn more." if idle else ""
    return [told]


def _counted(question: Question, evidence: Evidence) -> list[Comparison]:
    return [one for one in question(evidence) if class_incremental(one.setting)]


def _range(values: Sequence[float]) -> str:
    ends = dict.fromkeys(number(value, ACCURACY, ACCURACY.unit) for value in (min(values), max(values)))
    return " to ".join(ends)


def _at_the_end(evidence: Evidence) -> str:
    found = pair(FLAT_ZOFC, FLAT_FO, PHI_LAST, less)(evidence)
    told = [f"on {one.setting} {one.shown}{', too close to tell' * (not one.side)}" for one in found]
    return f" After the last task the difference in Φ over the adapter is {listed(told)}." if told else ""


def _floor(evidence: Evidence) -> str:
    """Of the comparisons that say so, how many could not have said otherwise."""
    idle, found, poor = 0, 0, at_chance(evidence)
    for name in METHODS:
        low, high = zeroth(name).line, first(name).line
        for one in _counted(orders(name, FORGETTING, less), evidence):
            if one.side > 0 and (one.setting, (low,)) not in poor:
                learned, lost = mean(evidence, low, one.setting, LEARNED), mean(evidence, high, one.setting, FORGETTING)
                found, idle = found + 1, idle + (learned is not None and lost is not None and learned < lost)
    return f"; in {idle} of the {found} zeroth order had learned less than first order forgot" if idle else ""


def _smaller(evidence: Evidence) -> str:
    found = [one.told for one in SMALLER(evidence)]
    return f", and {found[0]} on the smaller one of these studies" if found else ""


def _core(evidence: Evidence, verdicts: Verdicts) -> list[str]:
    """What came of the claims that the paper is about, as comparisons for and against each."""

    def told(begins: str) -> str:
        (found,) = [verdict for text, verdict in verdicts.items() if text.startswith(begins)]
        return f"*{found.word}* ({'; '.join(filter(None, (found.here, found.seeds)))})"

    return [
        f"**Forgetting.** Methods forget less under zeroth order: {told('A method forgets less')}{_floor(evidence)}. "
        f"As a share of what they had learned: {told('The same as a share')}. ZO-FC forgets less than first-order "
        f"methods with a module: {told('It forgets less than every')}; as a share, {told('It loses a smaller share')}. "
        f"So does the classifier alone: {told('The first-order classifier alone')}.",
        f"**Learning.** Methods learn less under zeroth order: {told('It learns new tasks')}. In the end ZO-FC is more "
        f"accurate than any of them: {told('It is more accurate than every')}.",
        "**Flatness.** The old tasks' loss is flatter (Φ, its relative rise a small step up its gradient, is lower) "
        f"after ZO-FC than after first order: {told('The old tasks')}. Flatter goes with less forgetting: "
        f"{told('Flatter (mean')}.{_at_the_end(evidence)} How far the adapters had moved was not held equal.",
        f"**Memory.** ZO-FC needs six times less: {told('ZO-FC needs six')} on ViT-B/16{_smaller(evidence)}. Its "
        f"first-order classifier costs hardly any: {told('The first-order classifier costs')}.",
    ]

"""From the rows of studies to verdicts on claims: what is set side by side, and when a difference counts.

Runs are compared that share setting and seed. A question is a pure function from the rows of all studies to
comparisons, at most one for each setting; a judge counts these and says what came of it. The numbers that the paper
prints are read by the same questions, as if they were rows of one seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from zofc.studies.catalogue import STUDIES
from zofc.studies.settings import SETTINGS

Row = Mapping[str, Any]
Evidence = Mapping[str, Sequence[Row]]  # rows by the name of their study
Gain = Callable[[float], float]  # how far a number speaks for a claim; below zero, against it
ERRORS = 2.0  # a difference counts beyond so many of its standard errors
FEW = 3  # comparisons that are written out one by one
RULE = (
    "Two lines are compared in one setting and with the same seeds. With several seeds a difference counts only if its "
    f"mean is more than {ERRORS:g} times its standard error over seeds; else it is within the spread of seeds. Of "
    "differences that are chance alone, three in ten pass this rule with two seeds, and one in five with three. With "
    "one seed there is no spread: the sign alone decides, and the verdict says *one seed*. Where something is to be "
    "close, the mean must lie within the margin that the claim names, by the same rule. Counts are of comparisons: so "
    "many pairs of lines, each in so many settings; a line that is not there, or failed, is not among them. Given are "
    "differences, the line that a claim is about less the other, or with × the one in units of the other; what stands "
    "behind ± is the standard error. The paper's own numbers, of one seed, are counted in the same way."
)


@dataclass(frozen=True)
class Verdict:
    """What came of a claim, and the numbers that it rests on."""

    word: str
    because: str


Judge = Callable[[Evidence], Verdict]


@dataclass(frozen=True)
class Measure:
    """A number of a row. `key` is what the paper's tables know it by; an exact one is the same with every seed."""

    words: str
    key: str
    read: Callable[[Row], float | None]
    form: str = ".2f"
    exact: bool = False

    def of(self, row: Row) -> float | None:
        if "printed" in row:
            found: float | None = row["printed"].get(self.key)
            return found
        return self.read(row)


@dataclass(frozen=True)
class Runs:
    """The runs of a line, wherever one of the studies has them."""

    line: str
    studies: tuple[str, ...]

    def found(self, evidence: Evidence) -> dict[tuple[str, int], Row]:
        rows = [row for study in self.studies for row in evidence.get(study, ()) if row["line"] == self.line]
        return {(row["setting"], row["seed"]): row for row in rows if "failed" not in row}


@dataclass(frozen=True)
class Comparison:
    """Lines side by side in one setting: a number that they give, mean over seeds, and what it says of a claim."""

    setting: str
    lines: tuple[str, ...]
    measure: Measure
    value: float
    error: float | None  # None with one seed
    side: int  # 1 for the claim, −1 against it, 0 within the spread
    bare: str  # the value in words; empty where it is no number
    given: str  # with its error
    shown: str  # with the numbers that it comes from


Question = Callable[[Evidence], list[Comparison]]


# -- what speaks for a claim -----------------------------------------------------------------------------------------


def more(value: float) -> float:
    return value


def less(value: float) -> float:
    return -value


def at_least(bound: float) -> Gain:
    return lambda value: value - bound


def at_most(bound: float) -> Gain:
    return lambda value: bound - value


def within(margin: float, of: float = 0.0) -> Gain:
    return lambda value: margin - abs(value - of)


def side(gain: float, error: float | None) -> int:
    """Whether a mean speaks for a claim (1), against it (−1), or for neither."""
    bound = ERRORS * (error or 0.0) + 1e-9
    return int(gain > bound) - int(gain < -bound)


# -- questions -------------------------------------------------------------------------------------------------------


def compared(
    numbers: Sequence[tuple[Runs, Measure]], formula: Callable[..., float], gain: Gain, unit: str = ""
) -> Question:
    """What a formula makes of numbers with the same seed, in every setting that has them all."""
    measure = numbers[0][1]
    names = tuple(runs.line for runs, _ in numbers)

    def ask(evidence: Evidence) -> list[Comparison]:
        found = [runs.found(evidence) for runs, _ in numbers]
        by_setting: dict[str, list[list[float]]] = {}
        for key in found[0]:
            rows = [one.get(key) for one in found]
            values = [None if row is None else one.of(row) for row, (_, one) in zip(rows, numbers, strict=True)]
            known = [value for value in values if value is not None]
            if len(known) == len(numbers):
                by_setting.setdefault(key[0], []).append(known)
        return [answer(setting, seeds) for setting, seeds in by_setting.items()]

    def answer(setting: str, seeds: Sequence[Sequence[float]]) -> Comparison:
        values = [formula(*known) for known in seeds]
        mean, means = statistics.fmean(values), [statistics.fmean(column) for column in zip(*seeds, strict=True)]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        bare = _number(mean, measure, unit)
        given = bare if error is None or measure.exact else f"{bare} ± {_number(error, measure, unit, signed=False)}"
        lines = [f"{name} {value:{measure.form}}" for name, value in zip(names, means, strict=True)]
        shown = f"{' beside '.join(lines)} ({given})" if len(lines) == 2 else given
        return Comparison(setting, names, measure, mean, error, side(gain(mean), error), bare, given, shown)

    return ask


def pair(first: Runs, second: Runs, measure: Measure, gain: Gain) -> Question:
    """The first line less the second."""
    numbers = [(first, measure), (second, measure)]
    return compared(numbers, lambda one, other: one - other, gain)


def times(first: Runs, second: Runs, measure: Measure, gain: Gain) -> Question:
    """The first line in units of the second."""
    numbers = [(first, measure), (second, measure)]
    return compared(numbers, lambda one, other: one / other, gain, "×")


def joined(first: Question, second: Question, rule: Callable[[int, int], int]) -> Question:
    """One comparison out of two in the same setting, whose sides a rule puts together."""

    def ask(evidence: Evidence) -> list[Comparison]:
        others = {one.setting: one for one in second(evidence)}
        return [answer(one, others[one.setting]) for one in first(evidence) if one.setting in others]

    def answer(one: Comparison, other: Comparison) -> Comparison:
        measure = replace(one.measure, words=f"{one.measure.words}, and {other.measure.words}")
        given = f"{one.given}, and {other.given}"
        shown = f"{' beside '.join(one.lines)} ({given})"
        return replace(one, measure=measure, side=rule(one.side, other.side), bare="", given=given, shown=shown)

    return ask


def every(questions: Sequence[Question]) -> Question:
    """One comparison for each setting, which speaks for a claim only if all do."""

    def answer(found: Sequence[Comparison]) -> Comparison:
        others = [one for one in found if one.side < 1]
        names = ", ".join(f"{one.lines[-1]} ({one.given})" for one in others)
        told = _share(found) + f", not beside {names}" * bool(others)
        return replace(found[0], side=min(one.side for one in found), bare="", given=told, shown=told)

    return lambda evidence: [answer(found) for found in _grouped(questions, evidence)]


def turns(steps: Sequence[Question]) -> Question:
    """Whether a number both rises and falls along steps, each of which asks whether it rises."""

    def answer(found: Sequence[Comparison]) -> Comparison:
        rises, falls = (sum(one.side == sign for one in found) for sign in (1, -1))
        both = 1 if rises and falls else -1 if rises or falls else 0
        told = f"rises in {rises} of {len(found)} steps, falls in {falls}"
        return replace(found[0], side=both, bare="", given=told, shown=told)

    return lambda evidence: [answer(found) for found in _grouped(steps, evidence)]


def _grouped(questions: Sequence[Question], evidence: Evidence) -> list[list[Comparison]]:
    """All comparisons of a setting together."""
    found: dict[str, list[Comparison]] = {}
    for one in (one for question in questions for one in question(evidence)):
        found.setdefault(one.setting, []).append(one)
    return list(found.values())


# -- judges ----------------------------------------------------------------------------------------------------------


def judged(*questions: Question, on: str = "", otherwise: str = "", own: bool = True) -> Judge:
    """A claim that every comparison should bear out: `on` the settings whose names begin so; `otherwise` says why it
    cannot be tested where there are none. Its `own` numbers are judged too, unless its margin comes from them."""

    def judge(evidence: Evidence) -> Verdict:
        found = _asked(questions, evidence, on)
        counted = [one for one in found if class_incremental(one.setting)]
        apart = [one for one in found if not class_incremental(one.setting)]
        because = [_told(counted)] if counted else [otherwise] if otherwise else []
        for setting in dict.fromkeys(one.setting for one in apart):
            mine = [one for one in apart if one.setting == setting]
            because.append(f"Not counted, since tasks bring no new classes: {setting} {_share(mine)}{_span(mine)}.")
        if own and (theirs := _asked(questions, printed(), on)):
            because.append(f"In the paper's own numbers: {_share(theirs)}.")
        word = _word(counted) or ("cannot be tested here" if otherwise else "not measured")
        return Verdict(word, " ".join(because))

    return judge


def class_incremental(setting: str) -> bool:
    """Whether tasks bring new classes, as all of the paper's do."""
    return "data.by=domain" not in SETTINGS[setting].changes


@cache
def printed() -> Evidence:
    """The paper's tables as rows."""
    return {
        study.name: [
            {"line": line.title, "setting": setting, "seed": 0, "printed": values}
            for line in study.lines
            for setting in study.settings
            if (values := study.printed(line, setting))
        ]
        for study in STUDIES.values()
    }


def in_the_paper(question: Question, on: str = "") -> list[float]:
    """What a question gives for the paper's own numbers."""
    return [one.value for one in _asked([question], printed(), on)]


# -- words -----------------------------------------------------------------------------------------------------------


def _asked(questions: Sequence[Question], evidence: Evidence, on: str) -> list[Comparison]:
    return [one for question in questions for one in question(evidence) if one.setting.startswith(on)]


def _word(found: Sequence[Comparison]) -> str:
    """Nothing if nothing was found."""
    sides = [one.side for one in found]
    if not sides:
        return ""
    alone = [one.error is None for one in found if not one.measure.exact]
    word = "holds" if min(sides) > 0 else f"holds in {_share(found)}"
    if max(sides) < 1:
        word = "does not hold" if min(sides) < 0 else "no difference" if all(alone) else "within the spread of seeds"
    return word + (" (one seed)" if alone and all(alone) else " (in part one seed)" if any(alone) else "")


def _share(found: Sequence[Comparison]) -> str:
    return f"{sum(one.side > 0 for one in found)} of {len(found)}"


def _told(found: Sequence[Comparison]) -> str:
    """The numbers, by measure: each where they are few, else their ranges; and which speak against the claim."""
    words = []
    for measure in dict.fromkeys(one.measure for one in found):
        mine = [one for one in found if one.measure == measure]
        parts = [f"{one.setting} {one.shown}" for one in mine] if len(found) <= FEW else _by_setting(mine)
        words.append(f"{measure.words[0].upper()}{measure.words[1:]}: {'; '.join(parts)}.")
        against, undecided = ([one for one in mine if one.side == sign] for sign in (-1, 0))
        alike = len({one.lines for one in mine}) == 1
        if against and not (alike and len(against) == len(mine)):
            named = ", ".join(one.setting for one in against) if alike else _named(against, mine)
            words.append(f"Against the claim: {named}.")
        if undecided and len(undecided) < len(mine):
            equal = sum(one.error is None for one in undecided)
            words += [f"Equal: {equal}."] * bool(equal)
            words += [f"Within the spread: {len(undecided) - equal}."] * (len(undecided) > equal)
    return " ".join(words)


def _by_setting(found: Sequence[Comparison]) -> list[str]:
    parts = []
    for setting in dict.fromkeys(one.setting for one in found):
        mine = [one for one in found if one.setting == setting]
        parts.append(f"{setting} {_share(mine)}{_span(mine)}" if len(mine) > 1 else f"{setting} {mine[0].given}")
    return parts


def _span(found: Sequence[Comparison]) -> str:
    """Their values, from the lowest to the highest."""
    ordered = sorted(found, key=lambda one: one.value)
    ends = dict.fromkeys((ordered[0].bare, ordered[-1].bare))
    return f" ({' to '.join(ends)})" if ordered[0].bare else ""


def _named(some: Sequence[Comparison], among: Sequence[Comparison]) -> str:
    """Comparisons by their lines, each with in how many of its settings."""
    parts = []
    for lines in dict.fromkeys(one.lines for one in some):
        mine, all_ = ([one for one in group if one.lines == lines] for group in (some, among))
        parts.append(f"{_name(lines, among)} in {len(mine)} of {len(all_)}{_span(mine)}")
    return "; ".join(parts)


def _name(lines: tuple[str, ...], among: Sequence[Comparison]) -> str:
    """Of two lines, what sets them apart from the others: one of them, or their method."""
    pairs = {one.lines for one in among}
    if len(lines) != 2:
        return ", ".join(lines)
    for number in (0, 1):
        if len({pair[number] for pair in pairs}) == 1:
            return lines[1 - number]
    methods = {line.removesuffix(", FO").removesuffix(", ZO") for line in lines}
    return methods.pop() if len(methods) == 1 else " beside ".join(lines)


def _number(value: float, measure: Measure, unit: str = "", signed: bool = True) -> str:
    form = ".2f" if unit else measure.form
    if float(f"{value:{form}}") == 0:
        return f"{0:{form}}{unit}"
    sign = "+" if signed and not unit else ""
    return f"{value:{sign}{form}}".replace("-", "−") + unit

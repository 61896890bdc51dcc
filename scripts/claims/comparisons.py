"""What is set side by side for a claim, and when a difference counts.

Runs are compared that share setting and seed. A question is a pure function from the rows of all studies to
comparisons, at most one for each setting. The numbers that the paper prints are read by the same questions, as if they
were rows of one seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Row = Mapping[str, Any]
Evidence = Mapping[str, Sequence[Row]]  # rows by the name of their study
ERRORS = 2.0  # a difference counts beyond so many of its errors, where these are known
STUDENT = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}  # of errors over seeds
FEWEST = min(STUDENT)  # seeds whose spread says something
ROUNDING = 1e-9


# -- numbers and runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A number of a row. `key` is what the paper's tables know it by; `error` is what is known of its chance from a
    single row, and with more seeds no less if it is lasting; `step` is what a single test image makes of it; an exact
    one is the same with every seed."""

    words: str
    key: str
    read: Callable[[Row], float | None]
    unit: str = "points"
    form: str = ".2f"
    exact: bool = False
    error: Callable[[Row], float | None] = lambda row: None
    lasting: bool = False
    step: Callable[[Row], float | None] = lambda row: None

    def of(self, row: Row) -> float | None:
        if "printed" in row:
            found: float | None = row["printed"].get(self.key)
            return found
        return self.read(row)

    def error_of(self, row: Row) -> float | None:
        return None if "printed" in row else self.error(row)


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
    unit: str  # of the value; empty where it is no number
    value: float
    error: float | None
    seeds: int
    side: int  # 1 for the claim, −1 against it, 0 too close to tell
    told: str  # the value in words, with its error if that comes of seeds
    shown: str  # with the numbers that it comes from


Question = Callable[[Evidence], list[Comparison]]


# -- what speaks for a claim -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """How far a number speaks for a claim; below zero, against it."""

    of: Callable[[float], float]

    def side(self, value: float, doubt: float) -> int:
        """Whether a number speaks for a claim (1), against it (−1), or is too close to tell."""
        gain, bound = self.of(value), doubt + ROUNDING
        return int(gain > bound) - int(gain < -bound)


more, less = Gain(lambda value: value), Gain(lambda value: -value)


def at_least(bound: float) -> Gain:
    return Gain(lambda value: value - bound)


def at_most(bound: float) -> Gain:
    return Gain(lambda value: bound - value)


def within(margin: float, of: float = 0.0) -> Gain:
    return Gain(lambda value: margin - abs(value - of))


# -- questions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """What a formula makes of numbers with the same seed, in every setting that has them all; `tell` says in words what
    it comes from."""

    numbers: Sequence[tuple[Runs, Measure]]
    formula: Callable[..., float]
    gain: Gain
    unit: str = ""  # unless it is that of the first number
    tell: Callable[..., str] | None = None

    def __call__(self, evidence: Evidence) -> list[Comparison]:
        found = [runs.found(evidence) for runs, _ in self.numbers]
        by_setting: dict[str, list[list[Row]]] = {}
        for key in found[0]:
            rows = [one[key] for one in found if key in one]
            if len(rows) == len(found) and None not in self._read(rows):
                by_setting.setdefault(key[0], []).append(rows)
        return [self._answer(setting, seeds) for setting, seeds in by_setting.items()]

    def _read(self, rows: Sequence[Row]) -> list[float | None]:
        return [measure.of(row) for row, (_, measure) in zip(rows, self.numbers, strict=True)]

    def _answer(self, setting: str, seeds: Sequence[Sequence[Row]]) -> Comparison:
        known = [[value for value in self._read(rows) if value is not None] for rows in seeds]
        mean, error = statistics.fmean(self.formula(*values) for values in known), self._error(seeds, known)
        names, measure = tuple(runs.line for runs, _ in self.numbers), self.numbers[0][1]
        unit = self.unit or measure.unit
        told = number(mean, measure, unit)
        if len(seeds) > 1 and error is not None and not measure.exact:
            told += f", standard error {number(error, measure, unit, signed=False)}"
        means, shown = [statistics.fmean(same) for same in zip(*known, strict=True)], told
        if self.tell is not None:
            unit, told, shown = "", self.tell(*means), f"{told} ({self.tell(*means)})"
        elif len(names) == 2:
            lines = [f"{name}: {value:{measure.form}}" for name, value in zip(names, means, strict=True)]
            shown = f"{told} ({' beside '.join(lines)})"
        side = self.gain.side(mean, self._doubt(seeds, known))
        return Comparison(setting, names, measure, unit, mean, error, len(seeds), side, told, shown)

    def _error(self, seeds: Sequence[Sequence[Row]], known: Sequence[Sequence[float]]) -> float | None:
        """The standard error over seeds; of one, what is known of the numbers themselves."""
        if len(seeds) > 1:
            return float(statistics.stdev(self.formula(*values) for values in known) / len(known) ** 0.5)
        errors = [measure.error_of(row) for row, (_, measure) in zip(seeds[0], self.numbers, strict=True)]
        return propagated(self.formula, known[0], errors)

    def _doubt(self, seeds: Sequence[Sequence[Row]], known: Sequence[Sequence[float]]) -> float:
        """What a difference must exceed: an interval of 95 % over seeds, and what does not shrink with more of them; of
        few seeds, what is known of the numbers of one. Seeds that agree by chance say no more than a test image can."""
        own = ERRORS * (self._error(seeds[:1], known[:1]) or 0.0)
        if len(seeds) < FEWEST:
            return own
        over_seeds = STUDENT.get(len(seeds), ERRORS) * (self._error(seeds, known) or 0.0)
        steps = [
            measure.step(row) or 0.0 for rows in seeds for row, (_, measure) in zip(rows, self.numbers, strict=True)
        ]
        return max(over_seeds, *steps, own if self.numbers[0][1].lasting else 0.0)


def propagated(formula: Callable[..., float], values: Sequence[float], errors: Sequence[float | None]) -> float | None:
    """The error of what a formula makes of values with independent errors; None if none of these is known."""
    if all(error is None for error in errors):
        return None
    center, squares = formula(*values), 0.0
    for place, error in enumerate(errors):
        moved = [value + (error or 0.0) * (place == other) for other, value in enumerate(values)]
        squares += (formula(*moved) - center) ** 2
    return float(squares**0.5)


def pair(first: Runs, second: Runs, measure: Measure, gain: Gain) -> Compared:
    """The first line less the second."""
    return Compared([(first, measure), (second, measure)], lambda one, other: one - other, gain)


def times(first: Runs, second: Runs, measure: Measure, gain: Gain) -> Question:
    """The first line in units of the second."""
    return Compared([(first, measure), (second, measure)], lambda one, other: one / other, gain, "×")


def beside_best(one: Runs, others: Sequence[Runs], measure: Measure, gain: Gain) -> Question:
    """The line less whichever of the others has the highest mean in a setting."""

    def ask(evidence: Evidence) -> list[Comparison]:
        found: dict[str, Comparison] = {}
        for other in others:
            for beside in pair(one, other, measure, gain)(evidence):
                lowest = found.setdefault(beside.setting, beside)
                found[beside.setting] = min(lowest, beside, key=lambda one: one.value)
        return list(found.values())

    return ask


def joined(first: Question, second: Question, rule: Callable[[int, int], int]) -> Question:
    """One comparison out of two in the same setting, whose sides a rule puts together."""

    def ask(evidence: Evidence) -> list[Comparison]:
        others = {one.setting: one for one in second(evidence)}
        return [answer(one, others[one.setting]) for one in first(evidence) if one.setting in others]

    def answer(one: Comparison, other: Comparison) -> Comparison:
        measure = replace(one.measure, words=f"{one.measure.words}, and {other.measure.words}")
        told = f"{one.told}, and {other.told}"
        shown = f"{told} ({' beside '.join(one.lines)})"
        side = rule(one.side, other.side)
        return replace(one, measure=measure, unit="", side=side, told=told, shown=shown)

    return ask


def grouped(questions: Sequence[Question], evidence: Evidence) -> list[list[Comparison]]:
    """All comparisons of a setting together."""
    found: dict[str, list[Comparison]] = {}
    for one in (one for question in questions for one in question(evidence)):
        found.setdefault(one.setting, []).append(one)
    return list(found.values())


def number(value: float, measure: Measure, unit: str, signed: bool = True) -> str:
    """A value in its form; a difference with its sign, a ratio with ×."""
    ratio = unit == "×"
    form = ".2f" if ratio else measure.form
    after = "×" if ratio else ""
    if float(f"{value:{form}}") == 0:
        return f"{0:{form}}{after}"
    return f"{value:{'+' * (signed and not ratio)}{form}}".replace("-", "−") + after

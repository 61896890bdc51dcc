"""The rule by which a claim gets its verdict, stated here once.

A **comparison** is one number made of lines in one setting: usually the difference of two lines on a metric. It is
computed for every seed that all its lines have; its interval is the 95 % interval of the mean by Student's t. It is
*for* the claim if the whole interval lies on the claimed side of the margin, *against* it if the whole interval lies on
the other side, else *open*; a comparison with one seed is open. Ratios of measured time or memory are known to 3 %,
counted operations exactly, with any number of seeds.

The **effect** of a claim is the mean of its comparisons, taken for each seed and then over seeds, with its 95 %
interval; comparisons with fewer seeds than the others are left out of it. The verdict is

- *contradicted* if the effect's interval lies wholly on the other side of the margin, or if two or more comparisons,
  and more than one in twenty, are against it: a claim is about all of its comparisons;
- *supported* if the effect's interval lies wholly on the claimed side and at most one in twenty comparisons is against;
- *inconclusive* if neither holds; with the mean and spread of now, so many seeds would put the interval on one side;
- *untested* if there is no comparison, or its premise (another claim) is not borne out in any setting.

A claim about several methods is *inconclusive* as long as most of them were not measured, whatever the others say; how
many were is told beside the effect. All comparisons of a claim are on one metric.

Not compared are failed runs, rows of an earlier recipe, settings whose tasks bring no new classes, and forgetting of
lines that end below twice chance (mean over seeds). Each comparison is judged by itself: of a hundred in which nothing
differs, about five are not open.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from typing import Any

from zofc.evidence.claims import Claim, ClaimFormula, Expectation
from zofc.evidence.coverage import ALL_MEASURED, Coverage, coverage_of
from zofc.evidence.rows import EARLIER, MEASURED, RowTable, adds_classes, learned_anything

SUPPORTED, CONTRADICTED, INCONCLUSIVE, UNTESTED = "supported", "contradicted", "inconclusive", "untested"
VERDICTS = (SUPPORTED, CONTRADICTED, INCONCLUSIVE, UNTESTED)
TOLERATED = 1 / 20  # share of comparisons against a claim that it is still supported with
# 97.5 % quantiles of Student's t by degrees of freedom; beyond, the last is close enough
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
OF_LEARNED = ("forgetting", "lost")  # metrics that say nothing of a line that has learned nothing
UNITS = {  # of formulas and of metrics; points, which are not written, of all others
    "narrowing": " in Φ", "flatness_correlation": "", "bound_slack": " nats", "lost": " %", "first_order_share": " %",
}  # fmt: skip
MOST_SEEDS = 1000  # what is not decided with so many is not worth deciding


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float
    seeds: int

    def side(self, expect: Expectation) -> int:
        """1 if all of it is on the claimed side, −1 if all of it is on the other, else 0."""
        if self.seeds < 2 and self.low == -math.inf:
            return 0
        low, high = expect.bounds
        return int(low < self.low and self.high < high) - int(self.high < low or high < self.low)


@dataclass(frozen=True)
class Comparison:
    """One number of a claim in one setting, for every seed, and whether it is for (1) or against (−1) it."""

    lines: tuple[str, ...]
    metric: str
    setting: str
    by_seed: Mapping[int, float]
    interval: Interval
    side: int


@dataclass(frozen=True)
class Verdict:
    """What came of a claim."""

    claim: Claim
    word: str
    comparisons: tuple[Comparison, ...] = ()
    effect: Interval | None = None
    seeds_needed: int | None = None  # of an inconclusive claim
    measured: Coverage = ALL_MEASURED
    why: str = ""  # it is untested

    @property
    def counts(self) -> tuple[int, int, int]:
        """Comparisons for, against and open."""
        sides = Counter(comparison.side for comparison in self.comparisons)
        return sides[1], sides[-1], sides[0]


def judge_claims(claims: Sequence[Claim], table: RowTable) -> dict[str, Verdict]:
    """The verdict on every claim, by its id."""
    by_id = {claim.id: claim for claim in claims}
    return {claim.id: judge(claim, table, by_id) for claim in claims}


def judge(claim: Claim, table: RowTable, by_id: Mapping[str, Claim]) -> Verdict:
    """The verdict on one claim; `by_id` has the claims that it may rest on."""
    comparisons = compare_lines(claim, table)
    if claim.given and comparisons:
        premise = by_id[claim.given]
        borne_out = {one.setting for one in compare_lines(premise, table) if one.side > 0}
        comparisons = [one for one in comparisons if one.setting in borne_out]
        if not comparisons:
            return Verdict(claim, UNTESTED, why=f"its premise is not borne out here: {premise.says}")
    if not comparisons:
        return Verdict(claim, UNTESTED, why=claim.untested or "not measured")
    effect = interval_of(*_pooled(comparisons))
    measured = coverage_of(claim, [(one.lines, one.setting) for one in comparisons], table)
    word = INCONCLUSIVE if measured.too_little else _word(comparisons, effect.side(claim.expect))
    needed = None if word != INCONCLUSIVE or measured.too_little else seeds_needed(comparisons, claim.expect)
    return Verdict(claim, word, tuple(comparisons), effect, needed, measured)


def _word(comparisons: Sequence[Comparison], side: int) -> str:
    against = sum(comparison.side < 0 for comparison in comparisons)
    many = against > TOLERATED * len(comparisons)
    if side < 0 or (many and against > 1):
        return CONTRADICTED
    return SUPPORTED if side > 0 and not many else INCONCLUSIVE


def compare_lines(claim: Claim, table: RowTable) -> list[Comparison]:
    """Every comparison of a claim that the rows allow."""
    settings = [name for name in dict.fromkeys(setting for _, setting, _ in table)
                if fnmatch(name, claim.settings) and adds_classes(name)]  # fmt: skip
    found = []
    for formula in claim.compare:
        for lines, setting in product(formula.expanded(), settings):
            by_seed = _by_seed(formula, lines, setting, table)
            learned = formula.metric not in OF_LEARNED or all(learned_anything(line, setting, table) for line in lines)
            if by_seed and learned:
                interval = interval_of(list(by_seed.values()), MEASURED.get(formula.metric))
                side = interval.side(claim.expect)
                found.append(Comparison(lines, formula.metric, setting, by_seed, interval, side))
    return found


def _by_seed(formula: ClaimFormula, lines: tuple[str, ...], setting: str, table: RowTable) -> dict[int, float]:
    seeds = sorted({seed for line, where, seed in table if (line, where) == (lines[0], setting)})
    values = {}
    for seed in seeds:
        rows = [table.get((line, setting, seed)) for line in lines]
        if any(EARLIER in row for row in rows if row is not None):
            continue
        value = formula.value([row for row in rows if row is not None]) if formula.enough(rows) else None
        if value is not None and math.isfinite(value):
            values[seed] = value
    return values


# -- intervals -------------------------------------------------------------------------------------------------------


def interval_of(values: Sequence[float], relative_error: float | None = None) -> Interval:
    """The 95 % interval of a mean over seeds; without bounds from one seed, unless its error is known."""
    mean, count = statistics.fmean(values), len(values)
    if relative_error is not None:
        half = abs(mean) * relative_error
    elif count == 1:
        half = math.inf
    else:
        half = student(count) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def student(count: int) -> float:
    """By how many standard errors a 95 % interval extends to either side of a mean of so many values."""
    return STUDENT[min(count - 1, len(STUDENT)) - 1]


def _pooled(comparisons: Sequence[Comparison]) -> tuple[list[float], float | None]:
    """The mean over comparisons for each seed that all those with the most seeds have, and its relative error."""
    most = max(len(comparison.by_seed) for comparison in comparisons)
    full = [comparison for comparison in comparisons if len(comparison.by_seed) == most]
    seeds = set.intersection(*(set(comparison.by_seed) for comparison in full))
    if not seeds:  # a mean, and no interval
        return [statistics.fmean(comparison.interval.mean for comparison in full)], None
    errors = [MEASURED.get(comparison.metric) for comparison in full]
    values = [statistics.fmean(comparison.by_seed[seed] for comparison in full) for seed in sorted(seeds)]
    return values, max((error for error in errors if error is not None), default=None)


def seeds_needed(comparisons: Sequence[Comparison], expect: Expectation) -> int | None:
    """With the present mean and standard deviation, how many seeds put the effect's interval on one side; None where
    the spread is not known, or more seeds would not help."""
    values, error = _pooled(comparisons)
    if len(values) < 2 or error is not None:
        return None
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    distance = min(abs(mean - bound) for bound in expect.bounds)
    for count in range(2, MOST_SEEDS + 1):
        if student(count) * deviation / math.sqrt(count) < distance:
            return count if count > len(values) else None
    return MOST_SEEDS


# -- in words and as JSON --------------------------------------------------------------------------------------------


def effect_words(verdict: Verdict) -> str:
    """`−3.66 [−4.78, −2.55] points; 3 for, 0 against, 2 open`, and how many seeds would decide."""
    if verdict.effect is None:
        return verdict.why
    effect, ratio = verdict.effect, any(formula.formula == "ratio" for formula in verdict.claim.compare)
    first = verdict.claim.compare[0]
    unit = "×" if ratio else UNITS.get(first.formula, UNITS.get(first.metric, ""))
    sign, values = "" if ratio else "+", (effect.mean, effect.low, effect.high)
    mean, low, high = (f"{value:{sign}.2f}".replace("-", "−") for value in values)
    shown = f"{mean}{unit}, one seed" if math.isinf(effect.low) else f"{mean} [{low}, {high}]{unit}"
    if len(verdict.comparisons) > 1:
        shown += "; {}/{}/{}".format(*verdict.counts)
    shown += "".join(f"; {text}" for text in (verdict.measured.words, verdict.claim.note) if text)
    if verdict.word != INCONCLUSIVE or verdict.measured.too_little:
        return shown
    if verdict.seeds_needed is None:
        exact = any(formula.metric in MEASURED for formula in verdict.claim.compare)
        why = "within the error of measurement" if exact else "settings disagree"
        return f"{shown}; {'needs 3 seeds or more' if math.isinf(effect.low) else why}"
    most = verdict.seeds_needed >= MOST_SEEDS
    return f"{shown}; {'over ' * most}{verdict.seeds_needed} seeds would decide"


def verdicts_text(verdicts: Mapping[str, Verdict]) -> str:
    """Everything that the verdicts rest on as JSON, a claim on each line; an unknown bound is null."""
    claims = [json.dumps(_claim_json(verdict), ensure_ascii=False) for verdict in verdicts.values()]
    return '{"claims": [\n' + ",\n".join(claims) + "\n]}\n"


def _claim_json(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    about = {"id": claim.id, "says": claim.says, "where": claim.where, "verdict": verdict.word}
    if verdict.effect is None:
        return {**about, "why": verdict.why}
    return {
        **about,
        "expect": claim.expect.model_dump(exclude_none=True),
        "effect": _interval_json(verdict.effect),
        "for_against_open": verdict.counts,
        "measured": verdict.measured.counts,
        "seeds_needed": verdict.seeds_needed,
        "comparisons": [
            {"lines": one.lines, "metric": one.metric, "setting": one.setting, "side": one.side,
             **_interval_json(one.interval)}
            for one in verdict.comparisons
        ],
    }  # fmt: skip


def _interval_json(interval: Interval) -> dict[str, float | int | None]:
    low, high = (None if math.isinf(bound) else round(bound, 4) for bound in (interval.low, interval.high))
    return {"mean": round(interval.mean, 4), "low": low, "high": high, "seeds": interval.seeds}

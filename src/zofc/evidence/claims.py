"""The claims, read from `claims.yaml`: what is said, where, and the comparisons that would bear it out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import product
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from zofc.evidence.rows import ROW_NUMBERS, ResultRow, phi_curve

Combine = Callable[[Sequence[float]], float]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Expectation(_Strict):
    """Where the number should lie: above or below a bound, or within a margin `of` a value."""

    above: float | None = None
    below: float | None = None
    within: float | None = None
    of: float = 0.0

    @model_validator(mode="after")
    def _one_bound(self) -> Expectation:
        if sum(bound is not None for bound in (self.above, self.below, self.within)) != 1:
            raise ValueError("expected exactly one of above, below and within")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The numbers between which the claim holds."""
        if self.within is not None:
            return self.of - self.within, self.of + self.within
        return -math.inf if self.above is None else self.above, math.inf if self.below is None else self.below


class ClaimFormula(_Strict):
    """A number made of lines with the same setting and seed. A `{name}` in a line stands for each entry of that list in
    `each`: every combination is a comparison of its own."""

    lines: tuple[str, ...]
    metric: str = "accuracy"
    formula: str = "difference"
    each: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> ClaimFormula:
        if self.metric not in ROW_NUMBERS or self.formula not in (*NUMBER_FORMULAS, *ROW_FORMULAS):
            raise ValueError(f"unknown metric or formula: {self.metric}, {self.formula}")
        return self

    def expanded(self) -> Iterator[tuple[str, ...]]:
        """The lines of each comparison."""
        for values in product(*self.each.values()):
            names = dict(zip(self.each, values, strict=True))
            yield tuple(line.format(**names) for line in self.lines)

    def enough(self, rows: Sequence[ResultRow | None]) -> bool:
        """Whether all rows are there; of the others that the first is measured against, one will do."""
        if self.formula in AGAINST_ANY:
            trained = [row is not None and "all_classes" in row for row in rows]
            return trained[0] and any(trained[1:])
        return None not in rows

    def value(self, rows: Sequence[ResultRow]) -> float | None:
        """The number, or None where a row lacks what it is made of."""
        if self.formula in ROW_FORMULAS:
            any_of = self.formula in AGAINST_ANY
            return ROW_FORMULAS[self.formula]([row for row in rows if not any_of or "all_classes" in row])
        numbers = [ROW_NUMBERS[self.metric](row) for row in rows]
        known = [number for number in numbers if number is not None]
        return NUMBER_FORMULAS[self.formula](known) if len(known) == len(numbers) else None


class Claim(_Strict):
    """What is said and where; `given` is a claim that must be borne out in a setting for this one to count there."""

    id: str
    says: str
    where: str = ""
    compare: tuple[ClaimFormula, ...] = ()
    expect: Expectation = Expectation(above=0)
    settings: str = "*"
    given: str = ""
    note: str = ""  # what must be known of the effect
    untested: str = ""  # why, where there is no comparison

    @model_validator(mode="after")
    def _one_metric(self) -> Claim:
        """The effect is a mean over comparisons, and a mean of different metrics would be of nothing."""
        if len({formula.metric for formula in self.compare}) > 1:
            raise ValueError(f"{self.id}: expected comparisons on one metric; make a claim of each")
        return self


class ClaimGroup(_Strict):
    """Claims about one subject."""

    title: str
    claims: tuple[Claim, ...]


@cache
def claim_groups() -> tuple[ClaimGroup, ...]:
    """All claims, in the order of the paper's argument; ours last."""
    text = resources.files("zofc.evidence").joinpath("claims.yaml").read_text("utf-8")
    whole: dict[str, Any] = yaml.safe_load(text)
    return tuple(ClaimGroup.model_validate(group) for group in whole["groups"])


def all_claims() -> list[Claim]:
    """The claims of all groups."""
    return [claim for group in claim_groups() for claim in group.claims]


# -- formulas --------------------------------------------------------------------------------------------------------


def _narrowing(rows: Sequence[ResultRow]) -> float | None:
    """How far two curves of Φ are apart: mean over the first half of the tasks less mean over the second."""
    apart = [abs(one - other) for one, other in zip(phi_curve(rows[0]), phi_curve(rows[1]), strict=False)]
    half = len(apart) // 2
    return statistics.fmean(apart[:half]) - statistics.fmean(apart[half:]) if half else None


def _flatness_correlation(rows: Sequence[ResultRow]) -> float | None:
    """Correlation over lines of Φ (mean over tasks) with forgetting."""
    pairs = [(ROW_NUMBERS["phi"](row), row.get("forgetting")) for row in rows]
    known = [(phi, lost) for phi, lost in pairs if phi is not None and lost is not None]
    if len(known) < 3 or any(len(set(values)) < 2 for values in zip(*known, strict=True)):
        return None
    return statistics.correlation(*zip(*known, strict=True))


def _cheaper_rival(rows: Sequence[ResultRow]) -> float | None:
    """Accuracy of the first line less that of the most accurate other whose steps need no more memory."""
    need = ROW_NUMBERS["trained_memory"](rows[0])
    rivals = [row["all_classes"] for row in rows[1:] if (ROW_NUMBERS["trained_memory"](row) or 0.0) <= (need or 0.0)]
    return rows[0]["all_classes"] - max(rivals) if rivals else None


NUMBER_FORMULAS: dict[str, Combine] = {
    "value": lambda numbers: numbers[0],
    "difference": lambda numbers: numbers[0] - numbers[1],
    "ratio": lambda numbers: numbers[0] / numbers[1],
    "range": lambda numbers: max(numbers) - min(numbers),
    "slowing": lambda numbers: (numbers[1] - numbers[0]) - (numbers[2] - numbers[1]),  # first rise less the second
}
ROW_FORMULAS: dict[str, Callable[[Sequence[ResultRow]], float | None]] = {
    "narrowing": _narrowing,
    "flatness_correlation": _flatness_correlation,
    "cheaper_rival": _cheaper_rival,
    "best_other": lambda rows: rows[0]["all_classes"] - max(row["all_classes"] for row in rows[1:]),
}
AGAINST_ANY = ("cheaper_rival", "best_other")

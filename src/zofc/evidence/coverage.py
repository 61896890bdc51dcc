"""How much of a claim was measured: of the methods it names, or of its comparisons, how many have any result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from zofc.evidence.claims import AGAINST_ANY, Claim, ClaimFormula
from zofc.evidence.rows import RowTable

Compared = Sequence[tuple[tuple[str, ...], str]]  # lines and setting of each comparison


@dataclass(frozen=True)
class Coverage:
    """So many of so many, in the list of which the smallest share was measured."""

    measured: int
    named: int

    @property
    def share(self) -> float:
        """Of what is named."""
        return self.measured / self.named

    @property
    def too_little(self) -> bool:
        """Whether most is missing."""
        return 2 * self.measured < self.named

    @property
    def words(self) -> str:
        """`1 of 8 measured`, or nothing if all was."""
        return "" if self.measured == self.named else f"{self.measured} of {self.named} measured"

    @property
    def counts(self) -> tuple[int, int]:
        """For a file."""
        return self.measured, self.named


ALL_MEASURED = Coverage(1, 1)


def coverage_of(claim: Claim, compared: Compared, table: RowTable) -> Coverage:
    """The least covered list of a claim: its formulas, the entries of each of their lists, the rivals of a line."""
    found = [_covered([any(lines in formula.expanded() for lines, _ in compared) for formula in claim.compare])]
    for formula in claim.compare:
        if formula.formula in AGAINST_ANY:
            found.append(_rivals(formula, compared, table))
        found += _lists(formula, {lines for lines, _ in compared})
    return min(found, key=lambda coverage: coverage.share)


def _lists(formula: ClaimFormula, compared: set[tuple[str, ...]]) -> list[Coverage]:
    """An entry is measured if any comparison has it."""
    chosen = [values for values, lines in zip(product(*formula.each.values()), formula.expanded(), strict=True)
              if lines in compared]  # fmt: skip
    return [
        _covered([any(values[place] == entry for values in chosen) for entry in entries])
        for place, entries in enumerate(formula.each.values())
    ]


def _rivals(formula: ClaimFormula, compared: Compared, table: RowTable) -> Coverage:
    """Of the lines that the first is measured against, those trained in a setting that was compared."""
    settings = {setting for lines, setting in compared if lines in formula.expanded()}
    trained = {line for (line, setting, _), row in table.items() if setting in settings and "all_classes" in row}
    return _covered([rival in trained for lines in formula.expanded() for rival in lines[1:]])


def _covered(measured: Sequence[bool]) -> Coverage:
    return Coverage(sum(measured), len(measured))

"""The lines of studies that claims are about, and what several groups of claims ask of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from claims.comparisons import Evidence, Measure, Question, Row, Runs, more, pair
from claims.measures import ACCURACY, FORGETTING, LEARNED
from claims.verdicts import UNMEASURED, Failing, Judge, Premise, Verdict, in_the_paper, shown
from zofc.studies.catalogue import STUDIES

MAIN, INC10 = ("main-table",), ("inc10-table",)
TABLES = MAIN + INC10
STEADY = ("Learnable Cls.", "Adapter + Cls.", "LAE Adapter")
UNSTABLE = ("L2P", "CODA-Prompt", "InfLoRA")
MEANS = ("APER Adapter", "EASE")  # which answer by class means
METHODS = (*STEADY, *UNSTABLE, *MEANS)
MODULES = METHODS[1:]  # those that train more than a classifier
RIDGE = "Ridge regression (not in the paper)"
ZOFC, SIMPLE = Runs("ZO-FC", TABLES), Runs("SimpleCIL", TABLES)
CLASSES = {"cifar100-inc5": 100, "cifar100-inc10": 100, "caltech101-inc10": 101, "pacs-styles": 28, "pacs-pooled": 7}
CLOSE = 1.0  # points, where the paper says "closely", "near" or "minimal"
SHARE = 0.05  # of a cost that is to be the same
NO_R, NO_DOMAINNET = "It is about ImageNet-R, which was not run.", "It is about DomainNet, which was not run."


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, the studies that can tell, and how. Ours are no claims of the paper."""

    text: str
    where: str
    studies: tuple[str, ...]
    judge: Judge
    ours: bool = False

    def verdict(self, evidence: Evidence) -> Verdict:
        """As judged; of what was not measured, why."""
        found = self.judge(evidence)
        if found.word != UNMEASURED:
            return found
        absent = [study for study in self.studies if not evidence.get(study)]
        why = f"no rows of {', '.join(absent)}" if absent else "its lines are not there, or failed"
        return replace(found, here=why)


Group = Mapping[str, tuple[Claim, ...]]


def first(method: str, studies: tuple[str, ...] = TABLES) -> Runs:
    return Runs(f"{method}, FO", studies)


def zeroth(method: str, studies: tuple[str, ...] = TABLES) -> Runs:
    return Runs(f"{method}, ZO", studies)


def of(study: str, line: str) -> Runs:
    return Runs(line, (study,))


def kinds(study: str) -> dict[str, Runs]:
    """The lines of a study by their titles."""
    return {line.title: of(study, line.title) for line in STUDIES[study].lines}


def gap(question: Question, on: str = "*") -> float:
    """The widest in the paper's own numbers, for what it calls comparable, close or similar."""
    return max(abs(value) for value in in_the_paper(question, on))


CLASSIFIER, ADAPTER = first("Learnable Cls."), first("Adapter + Cls.")
ADAPTER_LEARNS = pair(ADAPTER, CLASSIFIER, LEARNED, more)
ZOFC_GAINS = pair(ZOFC, CLASSIFIER, ACCURACY, more)
WITH_ADAPTER = shown(
    ADAPTER_LEARNS, "since the first-order adapter is not shown to learn more than the classifier alone"
)
WITH_ZOFC = shown(ZOFC_GAINS, "since ZO-FC's adapter is not shown to add to the classifier alone")


def little_learned(evidence: Evidence) -> set[Failing]:
    """Of the main tables, lines that end below twice chance, and pairs of which one could not have forgotten as much as
    the other, since it had not learned as much."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for study in TABLES:
        for row in evidence.get(study, ()):
            if "failed" not in row and row["setting"] in CLASSES:
                rows.setdefault((row["setting"], row["line"]), []).append(row)
    end, best, lost = ({key: _mean(some, of) for key, some in rows.items()} for of in (ACCURACY, LEARNED, FORGETTING))
    poor: set[Failing] = {(key[0], (key[1],)) for key in rows if end[key] < 2 * 100 / CLASSES[key[0]]}
    for one, other in permutations(rows, 2):
        if one[0] == other[0] and best[one] < lost[other]:
            poor |= {(one[0], (one[1], other[1])), (one[0], (other[1], one[1]))}
    return poor


def _mean(rows: Sequence[Row], measure: Measure) -> float:
    """Over seeds; of what has none, no number that is less or more than another."""
    known = [value for row in rows if (value := measure.of(row)) is not None]
    return statistics.fmean(known) if known else math.nan


WITH_LEARNING = Premise(
    "since a line ends below twice chance or had learned less than the other forgot", little_learned
)

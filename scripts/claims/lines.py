"""The lines of studies that claims are about, and what several groups of claims ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from claims.comparisons import Evidence, Question, Runs, more, pair
from claims.measures import LEARNED
from claims.verdicts import UNMEASURED, Judge, Verdict, in_the_paper
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
ADAPTER_LEARNS = pair(ADAPTER, CLASSIFIER, LEARNED, more)  # without which claims about the adapter's steps say nothing

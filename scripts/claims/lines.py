"""The lines of studies that claims are about, and what several groups of claims ask of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from claims.comparisons import Evidence, Question, Runs, more, pair
from claims.measures import ACCURACY, LEARNED
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


def at_chance(evidence: Evidence) -> set[Failing]:
    """Lines of the main tables that end below twice chance, with their settings."""
    accuracies: dict[tuple[str, str], list[float]] = {}
    for study in TABLES:
        for row in evidence.get(study, ()):
            if row.get("all_classes") is not None and row["setting"] in CLASSES:
                accuracies.setdefault((row["setting"], row["line"]), []).append(row["all_classes"])
    means = {key: statistics.fmean(found) for key, found in accuracies.items()}
    return {(setting, (line,)) for (setting, line), mean in means.items() if mean < 2 * 100 / CLASSES[setting]}


WITH_LEARNING = Premise("since a line ends below twice chance", at_chance)

"""The paper's tables and figures as grids of recipes: what is run for each, and what the paper prints beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from zofc import paper
from zofc.errors import RecipeError, nearest
from zofc.methods import method_class
from zofc.recipe import Recipe, change_recipe, load_recipe, recipe_names
from zofc.studies.cells import Cell
from zofc.studies.jobs import TRAIN, Job, MeasureCost, MeasureCurvature, MeasureFlatness
from zofc.studies.scale import Scale
from zofc.studies.settings import OUR_SETTINGS, SETTINGS

BATCH = "batch48"  # the column of the paper's tables that name no data


@dataclass(frozen=True)
class StudyLine:
    """One row of a table: a family of recipes, with changes; `printed` is its row in the paper's table. Of what a step
    costs it shows the epochs in which these groups move."""

    title: str
    family: str
    changes: tuple[str, ...] = ()
    printed: str | None = None
    moving: tuple[str, ...] = ("head", "peft")


@dataclass(frozen=True)
class StudyPanel:
    """Some of a study's lines, drawn by themselves."""

    name: str
    says: str
    lines: tuple[StudyLine, ...]


FIXED_KEYS = ("name", "title", "method.name", "peft.kind", "head.kind")  # stated by the title of a line


@dataclass(frozen=True)
class Study:
    """A question, and the runs that answer it."""

    name: str
    title: str
    shows: str  # accuracy | memory | curves | trade-off | runtime | operations | flatness | curvature
    settings: tuple[str, ...]  # the columns: data and classes per task
    lines: tuple[StudyLine, ...]
    table: str | None = None  # of the paper
    panels: tuple[StudyPanel, ...] = ()  # of its figure; else all lines are in one

    def cells(self, scale: Scale, seeds: Sequence[int], datasets: Sequence[str], changes: Sequence[str]) -> list[Cell]:
        """Every recipe of the study, for these seeds and data sets."""
        self._check(changes)
        cells = []
        for seed, name, line in product(seeds, self.columns(datasets), self.lines):
            if self._refusal(line, name) is None:
                setting = SETTINGS[name]
                recipe = _shipped(f"{line.family}/{setting.recipes}", (*setting.changes, *line.changes))
                recipe = change_recipe(scale.apply(recipe.model_copy(update={"seed": seed})), changes)
                cells.append(Cell({"line": line.title, "setting": name, "seed": seed}, recipe, self.job(scale)))
        return cells

    def _check(self, changes: Sequence[str]) -> None:
        """Refuse changes that contradict the title of a line."""
        own = {change.partition("=")[0] for line in self.lines for change in line.changes}
        for key in (change.partition("=")[0] for change in changes):
            if key == "seed":
                raise RecipeError("seed: a study has seeds of its own; say how many with --seeds")
            if key in own or key in FIXED_KEYS or key.endswith(".order"):
                raise RecipeError(f"{key}: the lines of {self.name} set it themselves, so it cannot be changed")

    def left_out(self, setting: str) -> dict[str, list[str]]:
        """The lines that a setting cannot have, by reason."""
        reasons: dict[str, list[str]] = {}
        for line in self.lines:
            if why := self._refusal(line, setting):
                reasons.setdefault(why, []).append(line.title)
        return reasons

    def job(self, scale: Scale) -> Job:
        """The job that is done with each of its recipes."""
        if self.shows in ("memory", "runtime", "operations"):
            return MeasureCost(scale.timed_steps)
        if self.shows == "flatness":
            return MeasureFlatness(scale.flatness)
        if self.shows == "curvature":
            return MeasureCurvature(scale.curvature)
        return TRAIN

    def columns(self, datasets: Sequence[str]) -> list[str]:
        """The settings of the study that use these data sets."""
        return [name for name in self.settings if SETTINGS[name].dataset in datasets]

    def _refusal(self, line: StudyLine, setting: str) -> str | None:
        """Why a line has no cell in a setting; empty where the paper has none either."""
        there = SETTINGS[setting]
        if f"{line.family}/{there.recipes}" not in recipe_names():
            return ""
        recipe = _shipped(f"{line.family}/{there.recipes}", there.changes)
        return method_class(recipe).refuses_domains if recipe.data.by == "domain" else None

    def printed(self, line: StudyLine, setting: str) -> dict[str, float]:
        """What the paper prints there, by our metrics' names; nothing where it prints nothing."""
        if self.table is None or line.printed is None:
            return {}
        row = paper.tables()[self.table]["rows"].get(line.printed, {})
        names = paper.metric_names()
        found = row.get(setting, row.get(BATCH, {}))
        return {names.get(metric, metric): value for metric, value in found.items()}


@cache
def _shipped(name: str, changes: tuple[str, ...]) -> Recipe:
    """A shipped recipe, which many cells share."""
    return load_recipe(name, changes)


def _printed_lines(table: str) -> tuple[StudyLine, ...]:
    lines, endings = [], {"-fo": ", FO", "-zo": ", ZO"}
    for row in paper.tables()[table]["rows"]:
        label = paper.tables()[table]["labels"][row].removesuffix(" (Ours)")
        title = label + endings.get(row[-3:], "")
        lines.append(StudyLine(title, row.replace("coda-prompt", "coda"), printed=row))
    return tuple(lines)


INC5 = ("cifar100-inc5", "imagenet-r-inc5")
MAIN = (*INC5, "domainnet-inc69")
INC10 = ("cifar100-inc10", "imagenet-r-inc10")
RIDGE = StudyLine("Ridge regression (not in the paper)", "ridge")
QUERY_LINES = tuple(
    StudyLine(f"ZO-FC, Q = {q}", "zofc", (f"optimize.peft.queries={q}",), f"Q={q}") for q in (1, 2, 4, 8, 16, 32, 64)
)
LONG = tuple(
    StudyLine(f"{title}, long", f"{family}-zo-long", printed=row)
    for title, family, row in (("L2P, ZO", "l2p", "l2p-zo"), ("CODA-Prompt, ZO", "coda", "coda-prompt-zo"))
)
MODULES = (
    StudyLine("ZO-FC, adapter", "zofc"),
    StudyLine("ZO-FC, LoRA", "zofc-lora"),
    StudyLine("ZO-FC, prefix", "zofc-prefix"),
)


def _zeroth(queries: int) -> StudyLine:
    changes = tuple(f"optimize.{group}.queries={queries}" for group in ("peft", "head"))
    return StudyLine(f"ZO, q = {queries}", "adapter-zo", changes, f"zo-q{queries}")


def _hybrid(queries: int, when: str = "") -> StudyLine:
    title, row = (f"ZO-FC {when}", f"zofc-{when}") if when else ("ZO-FC", "zofc")
    moving = ("peft",) if when == "late" else ("head", "peft")
    return StudyLine(
        f"{title}, q = {queries}", "zofc", (f"optimize.peft.queries={queries}",), f"{row}-q{queries}", moving
    )


FO = StudyLine("FO", "adapter-fo", printed="fo")
RUNTIME_LINES = (FO, *map(_zeroth, (1, 4)), *map(_hybrid, (1, 4)))
OPERATION_LINES = (FO, *map(_zeroth, (1, 4)), *(_hybrid(q, when) for q in (1, 4) for when in ("early", "late")))
KEEP_TASKS = ("training.keep_tasks=true",)
FLATNESS_LINES = (
    StudyLine("Adapter + Cls., FO", "adapter-fo", KEEP_TASKS),
    StudyLine("Adapter + Cls., ZO", "adapter-zo", KEEP_TASKS),
    StudyLine("ZO-FC", "zofc", KEEP_TASKS),
)

MAIN_LINES = _printed_lines("main")
PROTOTYPES = ("simplecil", "aper-fo", "aper-zo", "ease-fo", "ease-zo")
BY_CLASSIFIER = (
    StudyPanel("prototypes", "class means", tuple(line for line in MAIN_LINES if line.family in PROTOTYPES)),
    StudyPanel("learned", "learned classifiers",
          tuple(line for line in MAIN_LINES if line.family not in (*PROTOTYPES, "zofc"))),
)  # fmt: skip
INC10_LINES = tuple(  # the paper prints first order and ZO-FC there
    line if line.printed in paper.tables()["inc10"]["rows"] else replace(line, printed=None) for line in MAIN_LINES
)
STUDIES = {
    study.name: study
    for study in (
        Study(
            "main-table", "First-order methods, their zeroth-order counterparts, and ZO-FC",
            "accuracy", (*MAIN, *OUR_SETTINGS), (*MAIN_LINES, RIDGE), "main",
        ),
        Study("inc10-table", "Ten classes per task", "accuracy", INC10, (*INC10_LINES, RIDGE), "inc10"),
        Study("query-ablation", "ZO-FC with Q queries per step", "accuracy", INC5, QUERY_LINES, "queries"),
        Study(
            "classifier-ablation", "Kinds of classifier",
            "accuracy", INC5, _printed_lines("classifiers"), "classifiers",
        ),
        Study(
            "placement-ablation", "Which group is moved by which order",
            "accuracy", INC5, _printed_lines("placement"), "placement",
        ),
        Study(
            "augmentation-ablation", "ZO-FC with and without augmentation",
            "accuracy", INC5, _printed_lines("augmentation"), "augmentation",
        ),
        Study(
            "prompt-epochs", "Prompt methods, zeroth order, five or ten times as long",
            "accuracy", INC5, LONG, "prompt-epochs",
        ),
        Study(
            "peft-choice", "ZO-FC with other modules than the adapter (the paper prints no numbers)",
            "accuracy", INC5, MODULES,
        ),
        Study(
            "peak-memory", "Peak memory of a training step",
            "memory", ("cifar100-inc5",), _printed_lines("memory"), "memory",
        ),
        Study(
            "runtime", "Peak memory of a step, and the time of an epoch's steps",
            "runtime", ("cifar100-inc5",), RUNTIME_LINES, "runtime",
        ),
        Study(
            "flops", "Operations of a step: as executed, and by the paper's formulas",
            "operations", ("cifar100-inc5",), OPERATION_LINES, "flops",
        ),
        Study("tradeoff", "Peak memory of a step against accuracy", "trade-off", MAIN, MAIN_LINES),
        Study(
            "fo-vs-zo-curves", "Accuracy on all classes seen, first and zeroth order",
            "curves", INC5, tuple(line for panel in BY_CLASSIFIER for line in panel.lines), panels=BY_CLASSIFIER,
        ),
        Study(
            "flatness-curves", "Flatness of the old tasks' loss, first and zeroth order",
            "flatness", INC5, FLATNESS_LINES,
        ),
        Study(
            "curvature", "Curvature of the old tasks' loss, and what forgetting is made of",
            "curvature", INC5, FLATNESS_LINES,
        ),
        Study(
            "accuracy-trends", "Accuracy on all classes seen, ZO-FC and first order",
            "curves", (*INC5, *INC10), tuple(line for line in MAIN_LINES if not line.family.endswith("-zo")),
        ),
    )
}  # fmt: skip


def get_study(name: str) -> Study:
    """The study of this name."""
    if name not in STUDIES:
        raise RecipeError(f"unknown study '{name}'{nearest(name, [*STUDIES, 'all'])}")
    return STUDIES[name]

"""The learners that the grids train, as data: a recipe family with changes, and which learning rates are searched.

Every line is trained in bf16, zeroth-order groups by forward gradients (what `zofc reproduce --fast` does). Rates are
absolute: they belong to a backbone and come from `python -m zofc.evidence rates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zofc.errors import RecipeError, nearest
from zofc.recipe import Recipe, change_recipe, load_recipe, recipe_names
from zofc.studies.catalogue import StudyLine
from zofc.studies.jobs import TRAIN, Job, MeasureCurvature, MeasureFlatness
from zofc.studies.scale import get_scale
from zofc.studies.settings import SETTINGS

RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
HIGHER = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of classifiers on normalised features
LOWER = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)  # of Adam
BOTH = ("peft", "head")
WIDE = ("ridge.projection=8192", "ridge.budget=null")
READOUT = ("method.readout=ridge", *WIDE)  # closed form, in place of the trained classifier
PER_IMAGE = ("optimize.peft.per=image", "optimize.peft.queries=1")


@dataclass(frozen=True)
class GridLine(StudyLine):
    """A line of a grid. The groups in `scan` share one searched rate; a line that scans none takes the rates of
    `rates_of`. A classifier that is not scanned has the rate that did best for the line `head_of`; in a hybrid it is
    trained as that line's altogether."""

    scan: tuple[str, ...] = ()
    rates: tuple[float, ...] = RATES
    rates_of: str = ""
    head_of: str = ""
    hybrid: bool = False


def _orders(name: str, title: str, first: tuple[float, ...] = RATES) -> dict[str, GridLine]:
    """A method under both orders, titled as in the studies; `first` are the rates of its first-order row."""
    return {
        f"{name}-fo": GridLine(f"{title}, FO", f"{name}-fo", scan=BOTH, rates=first),
        f"{name}-zo": GridLine(f"{title}, ZO", f"{name}-zo", scan=BOTH),
    }


def _placements(name: str, title: str) -> dict[str, GridLine]:
    """A method that is trained with Adam, under both orders and with ZO-FC's placement."""
    mixed = f"{title}, ZO module + FO Cls."
    return {
        **_orders(name, title, LOWER),
        f"{name}-hybrid": GridLine(mixed, f"{name}-zo", scan=("peft",), head_of=f"{name}-fo", hybrid=True),
    }


LINES: dict[str, GridLine] = {
    "simplecil": GridLine("SimpleCIL", "simplecil"),
    "ridge": GridLine("Ridge regression (not in the paper)", "ridge"),
    "ridge-orthogonal": GridLine(
        "Ridge on an orthogonal projection of 8192 (not in the paper)", "ridge", (*WIDE, "ridge.orthogonal=true")
    ),
    "ridge-64": GridLine(
        "Ridge on an orthogonal projection within 64 MB (not in the paper)",
        "ridge",
        ("ridge.projection=8192", "ridge.orthogonal=true"),
    ),
    "ridge-wide": GridLine("Ridge on a random projection of 8192 (not in the paper)", "ridge", WIDE),
    "classifier": GridLine("Learnable Cls., FO", "classifier-fo", scan=("head",), rates=HIGHER),
    "adapter-fo": GridLine("Adapter + Cls., FO", "adapter-fo", scan=("peft",), head_of="classifier"),
    "zofc": GridLine("ZO-FC", "zofc", scan=("peft",), head_of="classifier"),
    "adapter-fo-matched": GridLine(
        "Adapter + Cls., FO, steps as long as ZO-FC's",
        "zofc",
        ("optimize.peft.order=first", "optimize.peft.length=zeroth"),
        rates_of="zofc",
    ),
    "zofc-image": GridLine("ZO-FC, one direction per image", "zofc", PER_IMAGE, scan=("peft",), head_of="classifier"),
    **_orders("aper", "APER Adapter"),
    **_orders("ease", "EASE"),
    "zofc-wide": GridLine("ZO-FC + ridge on 8192", "zofc", READOUT, rates_of="zofc"),
    "zofc-image-wide": GridLine(
        "ZO-FC, one direction per image + ridge on 8192", "zofc", (*PER_IMAGE, *READOUT), rates_of="zofc-image"
    ),
    "aper-zo-wide": GridLine("APER Adapter, ZO + ridge on 8192", "aper-zo", READOUT, rates_of="aper-zo"),
    "ranpac": GridLine("RanPAC's recipe: APER Adapter, FO + ridge on 8192", "aper-fo", READOUT, rates_of="aper-fo"),
    "zo-ridge": GridLine(
        "ZO-Ridge, 8192 wide (not in the paper)",
        "zo-ridge",
        ("ridge.budget=null",),
        scan=("peft",),
        head_of="classifier",
    ),
    "zo-ridge-64": GridLine("ZO-Ridge (not in the paper)", "zo-ridge", rates_of="zo-ridge"),
    "zofc-q1": GridLine("ZO-FC, Q = 1", "zofc", ("optimize.peft.queries=1",), rates_of="zofc"),
    "zofc-q16": GridLine("ZO-FC, Q = 16", "zofc", ("optimize.peft.queries=16",), rates_of="zofc"),
    "zofc-q64": GridLine("ZO-FC, Q = 64", "zofc", ("optimize.peft.queries=64",), rates_of="zofc"),
    "zofc-noaug": GridLine("ZO-FC w/o aug", "zofc-noaug", rates_of="zofc"),
    "prototypes": GridLine("ZO Adapter + Prototype", "prototypes", rates_of="zofc"),
    "zofc-lora": GridLine("ZO-FC, LoRA", "zofc-lora", scan=("peft",), head_of="classifier"),
    "zofc-prefix": GridLine("ZO-FC, prefix", "zofc-prefix", scan=("peft",), head_of="classifier"),
    "swapped": GridLine("FO adapter + ZO Cls.", "swapped", scan=BOTH),
    "adapter-zo": GridLine("Adapter + Cls., ZO", "adapter-zo", scan=BOTH),
    "classifier-zo": GridLine("Learnable Cls., ZO", "classifier-zo", scan=("head",)),
    "linear": GridLine("Linear Cls., FO", "classifier-linear-fo", scan=("head",), rates=HIGHER),
    "adapter-linear": GridLine("Adapter + Linear Cls., FO", "adapter-linear-fo", scan=("peft",), head_of="linear"),
    "zofc-linear": GridLine("ZO-FC (Linear)", "zofc-linear", scan=("peft",), head_of="linear"),
    **_placements("lae", "LAE Adapter"),
    **_placements("l2p", "L2P"),
    **_placements("coda", "CODA-Prompt"),
    **_placements("inflora", "InfLoRA"),
}
RELEASED = ("lae-fo", "lae-zo", "lae-hybrid", "l2p-fo", "l2p-zo", "inflora-zo", "inflora-hybrid", "ease-zo")
LINES |= {  # where the released code is not the authors' method; their rates are searched by themselves
    f"{name}-released": replace(
        line := LINES[name], title=f"{line.title}, as released", changes=("method.variant=zofc",),
        head_of=f"{line.head_of}-released" if line.head_of in RELEASED else line.head_of,
    )
    for name in RELEASED
}  # fmt: skip


@dataclass(frozen=True)
class GridPart:
    """One part of the evidence: lines in settings, with changes to every recipe, which `images` says in a label."""

    title: str
    lines: tuple[str, ...]
    settings: tuple[str, ...]
    changes: tuple[str, ...] = ()
    images: str = ""
    work: Job = TRAIN

    def label(self, setting: str) -> str:
        """What result files call a setting of this part."""
        return f"{setting}, {self.images}" if self.images else setting


_COMPARED = (
    "simplecil", "ridge", "ridge-wide", "classifier", "adapter-fo", "zofc", "zofc-image", "aper-fo", "aper-zo",
    "ease-fo", "zofc-wide", "zofc-image-wide", "aper-zo-wide", "ranpac", "adapter-fo-matched", "ridge-orthogonal",
    "ridge-64", "zo-ridge", "zo-ridge-64",
)  # fmt: skip
_HUNDRED = ("data.per_class=100",), "100 images a class"
_WATCHED = ("adapter-fo", "adapter-fo-matched", "zofc")
_KEPT_TASKS = ("cifar100-inc10",), ("data.per_class=100", "training.keep_tasks=true"), "100 images a class"
_SMALL = get_scale("small")
PARTS: dict[str, GridPart] = {
    "b": GridPart(
        "CIFAR-100, 100 images a class", _COMPARED, ("cifar100-inc10", "cifar100-inc5"), *_HUNDRED
    ),
    "c": GridPart(
        "CIFAR-100, all images", tuple(name for name in _COMPARED if name != "ease-fo"), ("cifar100-inc10",)
    ),
    "d": GridPart("Caltech-101, and PACS by styles", _COMPARED, ("caltech101-inc10", "pacs-styles")),
    "e": GridPart(
        "Other methods under both orders and the hybrid placement",
        (*(f"{name}-{order}" for name in ("lae", "l2p", "coda", "inflora") for order in ("fo", "zo", "hybrid")),
         "ease-zo"),
        ("cifar100-inc10",), *_HUNDRED,
    ),
    "e-released": GridPart(
        "Other methods as released; not CODA-Prompt, whose released code also moves the whole ViT",
        tuple(f"{name}-released" for name in RELEASED), ("cifar100-inc10",), *_HUNDRED,
    ),
    "f": GridPart("Flatness along the stream", _WATCHED, *_KEPT_TASKS, work=MeasureFlatness(_SMALL.flatness)),
    "f-curvature": GridPart("Curvature after the sixth of ten tasks", _WATCHED, *_KEPT_TASKS,
                            work=MeasureCurvature(_SMALL.curvature)),
    "g": GridPart(
        "What ZO-FC is made of",
        ("zofc-q1", "zofc-q16", "zofc-q64", "linear", "adapter-linear", "zofc-linear", "prototypes", "swapped",
         "zofc-noaug", "zofc-lora", "zofc-prefix", "adapter-zo", "classifier-zo"),
        ("cifar100-inc10",), *_HUNDRED,
    ),
}  # fmt: skip


def get_line(name: str) -> GridLine:
    """The line of that name on the command line."""
    if name not in LINES:
        raise RecipeError(f"--lines: unknown line '{name}'{nearest(name, LINES)}")
    return LINES[name]


def get_part(name: str) -> GridPart:
    """The part of that letter."""
    if name not in PARTS:
        raise RecipeError(f"--part: unknown part '{name}'{nearest(name, PARTS)}")
    return PARTS[name]


def line_recipe(
    line: GridLine, setting: str, seed: int, rates: Mapping[str, float] | None = None, changes: Sequence[str] = ()
) -> Recipe:
    """A line's recipe in a setting with these learning rates of groups; `changes` win over everything."""
    column = SETTINGS[setting]
    name, own = f"{line.family}/{column.recipes}", []
    if name not in recipe_names():  # ablations have tasks of five alone
        name, own = f"{line.family}/cifar100-inc5", [f"data.increment={column.recipes.rpartition('inc')[2]}"]
    recipe = load_recipe(name, [*own, *column.changes, *line.changes])
    plans = dict(recipe.optimize)
    if line.hybrid:
        plans["head"] = load_recipe(f"{LINES[line.head_of].family}/{column.recipes}").optimize["head"]
    for group, rate in (rates or {}).items():
        if plan := plans.get(group):  # a schedule falls to the same share of the rate as before
            plans[group] = plan.model_copy(update={"lr": rate, "min_lr": plan.min_lr / plan.lr * rate})
    recipe = recipe.model_copy(update={"seed": seed, "optimize": plans, "title": line.title, "paper": None})
    return change_recipe(get_scale("paper").faster().apply(recipe), changes)

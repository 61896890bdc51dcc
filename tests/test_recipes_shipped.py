"""The shipped recipes hold the settings of the paper (appendices A, E, F) and load in all their presets."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from zofc.methods import check_placement, complete_recipe, get_method
from zofc.paper import printed
from zofc.recipe import Group, Recipe, dump_recipe, files, load_recipe, recipe_names, recipe_presets
from zofc.runfolder import open_run
from zofc.runfolder.identity import recipe_digest
from zofc.studies.jobs import MeasureCost
from zofc.training.resolve import check_recipe
from zofc.training.runs import start_run, train

SETTINGS = ("cifar100-inc5", "cifar100-inc10", "imagenet-r-inc5", "imagenet-r-inc10", "domainnet-inc69")
INC5 = ("cifar100-inc5", "imagenet-r-inc5")
INC10 = ("cifar100-inc10", "imagenet-r-inc10")

FIRST = Group(order="first", lr=0.01, momentum=0.9, schedule="cosine", min_lr=1e-5)
ZEROTH = Group(order="zeroth", queries=4, epsilon=1e-3, clip=1.0, lr=0.01, momentum=0.9, schedule="constant")

# Which order moves which group, and what else sets a row apart.
ROWS: dict[str, tuple[str, dict[str, Group]]] = {
    "simplecil": ("simplecil", {}),
    "classifier-fo": ("classifier", {"head": FIRST}),
    "classifier-zo": ("classifier", {"head": ZEROTH}),
    "adapter-fo": ("adapter", {"peft": FIRST, "head": FIRST}),
    "adapter-zo": ("adapter", {"peft": ZEROTH, "head": ZEROTH}),
    "zofc": ("adapter", {"peft": ZEROTH, "head": FIRST}),
    "classifier-linear-fo": ("classifier", {"head": FIRST}),
    "adapter-linear-fo": ("adapter", {"peft": FIRST, "head": FIRST}),
    "zofc-linear": ("adapter", {"peft": ZEROTH, "head": FIRST}),
    "prototypes": ("adapter", {"peft": ZEROTH, "head": FIRST}),
    "swapped": ("adapter", {"peft": FIRST, "head": ZEROTH}),
    "zofc-noaug": ("adapter", {"peft": ZEROTH, "head": FIRST}),
    "joint": ("adapter", {"peft": FIRST, "head": FIRST}),
    "finetune": ("adapter", {"peft": FIRST, "head": FIRST}),
}
EPOCHS = {"cifar100": (10, 20), "imagenet-r": (20, 40), "domainnet": (20, 40)}  # first order, zeroth order
SPECIAL: dict[str, dict[str, object]] = {
    "classifier-linear-fo": {"head.kind": "linear"},
    "adapter-linear-fo": {"head.kind": "linear"},
    "zofc-linear": {"head.kind": "linear"},
    "prototypes": {"method.prototypes": True},
    "zofc-noaug": {"views.augment": "none"},
    "joint": {"data.joint": True},
    "finetune": {"method.mask": False},
}
COSINE_SINCE = [
    f"{name}-{order}/base" for name in ("lae", "l2p", "coda") for order in ("fo", "zo")
]  # since version 0.1
USUAL = {
    "head.kind": "cosine",
    "method.prototypes": False,
    "method.mask": True,
    "data.joint": False,
    "views.augment": "crop-flip",
}

# Epochs and queries of each group, for the rows whose settings files were released.
RELEASED = {
    ("simplecil", "cifar100-inc5"): {},
    ("simplecil", "imagenet-r-inc10"): {},
    ("simplecil", "domainnet-inc69"): {},
    ("classifier-zo", "cifar100-inc5"): {"head": (10, 4)},
    ("classifier-zo", "imagenet-r-inc5"): {"head": (20, 4)},
    ("classifier-zo", "domainnet-inc69"): {"head": (40, 4)},
    ("adapter-fo", "cifar100-inc5"): {"peft": (20, None), "head": (20, None)},
    ("adapter-fo", "cifar100-inc10"): {"peft": (10, None), "head": (10, None)},
    ("adapter-fo", "imagenet-r-inc5"): {"peft": (5, None), "head": (5, None)},
    ("adapter-fo", "imagenet-r-inc10"): {"peft": (20, None), "head": (20, None)},
    ("adapter-fo", "domainnet-inc69"): {"peft": (20, None), "head": (20, None)},
    ("adapter-zo", "cifar100-inc5"): {"peft": (10, 4), "head": (10, 4)},
    ("adapter-zo", "imagenet-r-inc5"): {"peft": (20, 4), "head": (20, 4)},
    ("adapter-zo", "domainnet-inc69"): {"peft": (40, 4), "head": (40, 4)},
    ("zofc", "cifar100-inc5"): {"peft": (20, 1), "head": (10, None)},
    ("zofc", "cifar100-inc10"): {"peft": (20, 4), "head": (10, None)},
    ("zofc", "imagenet-r-inc5"): {"peft": (40, 32), "head": (20, None)},
    ("zofc", "imagenet-r-inc10"): {"peft": (40, 4), "head": (20, None)},
    ("zofc", "domainnet-inc69"): {"peft": (40, 4), "head": (20, None)},
}

# Where the paper prints a row.
PRINTED = (
    {(row, c): "main" for row in list(ROWS)[:6] for c in (*INC5, "domainnet-inc69")}
    | {(row, c): "inc10" for row in ("simplecil", "classifier-fo", "adapter-fo", "zofc") for c in INC10}
    | {(row, c): "classifiers" for row in list(ROWS)[6:10] for c in INC5}
    | {("swapped", c): "placement" for c in INC5}
    | {("zofc-noaug", c): "augmentation" for c in INC5}
)

# The methods of others, by group: (epochs, optimizer, rate, schedule, weight decay, start); one where both are alike.
# `file` is what differs in the released file, if there is one: (epochs, rate, weight decay, batch).
Plan = tuple[int, str, float, str, float, int]


@dataclass(frozen=True)
class Other:
    peft: Plan
    head: Plan | None = None
    rank: int | None = None
    file: tuple[int, float, float, int] | Literal["same"] | None = None
    threshold: float = 0.95


def adam(epochs: int, lr: float, start: int = 0, schedule: str = "constant") -> Plan:
    return (epochs, "adam", lr, schedule, 0.0, start)


def sgd(epochs: int, lr: float, schedule: str = "constant", weight_decay: float = 0.0) -> Plan:
    return (epochs, "sgd", lr, schedule, weight_decay, 0)


def lae(epochs: int, start: int, lr: float, file: tuple[int, float, float, int] | Literal["same"] | None) -> Other:
    return Other(adam(epochs, lr, start), adam(epochs, lr), 5, file)


C5, C10, R5, R10, D69 = SETTINGS
ZO20, MEMORY = sgd(20, 0.01), (2, 0.01, 0.0, 48)
EASE_ZO = sgd(20, 0.01, "constant", 5e-4)
SGD_COSINE = sgd(20, 0.01, "cosine", 5e-4)
APER_R = sgd(10, 0.05, "cosine", 5e-4)
OTHERS: dict[tuple[str, str], Other] = {
    ("lae-fo", C5): lae(5, 3, 0.00105, (5, 0.0028125, 0.0, 128)),
    ("lae-fo", C10): lae(5, 3, 0.00105, "same"),
    ("lae-fo", R5): lae(50, 30, 0.00105, (50, 0.0028125, 0.0, 128)),
    ("lae-fo", R10): lae(50, 30, 0.00105, "same"),
    ("lae-fo", D69): lae(50, 30, 0.0009375, None),
    ("lae-zo", C5): Other(ZO20, rank=5, file=MEMORY),
    ("lae-zo", C10): Other(ZO20, rank=5),
    ("lae-zo", R5): Other(ZO20, rank=5, file="same"),
    ("lae-zo", R10): Other(ZO20, rank=5),
    ("lae-zo", D69): Other(ZO20, rank=5, file="same"),
    ("lae-hybrid", C5): Other(sgd(20, 0.01), adam(5, 0.01), 5, "same"),
    ("lae-hybrid", R5): Other(sgd(40, 0.01), adam(10, 0.01), 5, "same"),
    ("l2p-fo", C5): Other(adam(5, 0.003248), file=(2, 0.003248, 0.0, 48)),
    ("l2p-fo", C10): Other(adam(5, 0.005625), file="same"),
    ("l2p-fo", R5): Other(adam(10, 0.0028125), file=(10, 0.001875, 0.0, 32)),
    ("l2p-fo", R10): Other(adam(10, 0.0028125), file="same"),
    ("l2p-fo", D69): Other(adam(10, 0.0028125), file=(10, 0.001875, 0.0, 32)),
    ("l2p-zo", C5): Other(ZO20, file=MEMORY),
    ("l2p-zo", C10): Other(ZO20),
    ("l2p-zo", R5): Other(ZO20, file="same"),
    ("l2p-zo", R10): Other(ZO20),
    ("l2p-zo", D69): Other(ZO20, file="same"),
    ("l2p-zo-long", C5): Other(sgd(100, 0.01)),
    ("l2p-zo-long", R5): Other(sgd(200, 0.01)),
    ("coda-fo", C5): Other(adam(20, 3.75e-4, 0, "cosine99"), file=(2, 3.75e-4, 0.0, 48)),
    ("coda-fo", C10): Other(adam(20, 3.75e-4, 0, "cosine99"), file="same"),
    ("coda-fo", R5): Other(adam(50, 3.75e-4, 0, "cosine99"), file="same"),
    ("coda-fo", R10): Other(adam(50, 3.75e-4, 0, "cosine99"), file="same"),
    ("coda-fo", D69): Other(adam(5, 3.75e-4, 0, "cosine99"), file=(5, 1e-3, 0.0, 128)),
    ("coda-zo", C5): Other(ZO20, file=MEMORY),
    ("coda-zo", C10): Other(ZO20),
    ("coda-zo", R5): Other(ZO20, file=(200, 0.01, 0.0, 48)),
    ("coda-zo", R10): Other(ZO20),
    ("coda-zo", D69): Other(ZO20, file="same"),
    ("coda-zo-long", C5): Other(sgd(100, 0.01)),
    ("coda-zo-long", R5): Other(sgd(200, 0.01), file="same"),
    ("aper-fo", C5): Other(SGD_COSINE, rank=16, file="same"),
    ("aper-fo", C10): Other(SGD_COSINE, rank=16, file="same"),
    ("aper-fo", R5): Other(APER_R, rank=64),
    ("aper-fo", R10): Other(APER_R, rank=64, file="same"),
    ("aper-fo", D69): Other(SGD_COSINE, rank=16, file="same"),
    ("aper-zo", C5): Other(ZO20, rank=64, file=MEMORY),
    ("aper-zo", C10): Other(ZO20, rank=64),
    ("aper-zo", R5): Other(ZO20, rank=5, file="same"),
    ("aper-zo", R10): Other(ZO20, rank=5),
    ("aper-zo", D69): Other(sgd(20, 0.05), rank=64, file=(20, 0.05, 0.0, 16)),
    ("aper-hybrid", C5): Other(sgd(40, 0.01, "cosine"), sgd(20, 0.01, "cosine"), 64, "same"),
    ("aper-hybrid", R5): Other(sgd(80, 0.01, "cosine"), sgd(20, 0.01, "cosine"), 64, "same"),
    ("ease-fo", C5): Other(SGD_COSINE, rank=16, file="same"),
    ("ease-fo", C10): Other(sgd(20, 0.025, "cosine", 5e-4), rank=64, file="same"),
    ("ease-fo", R5): Other(sgd(20, 0.025, "cosine", 5e-4), rank=64, file=(20, 0.05, 5e-3, 16)),
    ("ease-fo", R10): Other(sgd(20, 0.15, "cosine", 5e-3), rank=64, file="same"),
    ("ease-fo", D69): Other(SGD_COSINE, rank=16),
    ("ease-zo", C5): Other(EASE_ZO, rank=16, file="same"),
    ("ease-zo", C10): Other(EASE_ZO, rank=16),
    ("ease-zo", R5): Other(EASE_ZO, rank=16, file=(2, 0.01, 5e-4, 48)),
    ("ease-zo", R10): Other(EASE_ZO, rank=16),
    ("ease-zo", D69): Other(EASE_ZO, rank=16, file="same"),
    ("inflora-fo", C5): Other(adam(20, 1.875e-4, 0, "cosine99"), rank=10),
    ("inflora-fo", C10): Other(adam(20, 1.875e-4, 0, "cosine99"), rank=10),
    ("inflora-fo", R5): Other(adam(50, 1.875e-4, 0, "cosine99"), rank=10, threshold=0.98),
    ("inflora-fo", R10): Other(adam(50, 1.875e-4, 0, "cosine99"), rank=10, threshold=0.98),
    ("inflora-fo", D69): Other(sgd(5, 0.001875, "cosine"), sgd(5, 0.00375, "cosine"), 30),
    ("inflora-zo", C5): Other(sgd(20, 0.01, "cosine"), rank=10),
    ("inflora-zo", C10): Other(sgd(20, 0.01, "cosine"), rank=10),
    ("inflora-zo", R5): Other(sgd(50, 0.01, "cosine"), rank=10),
    ("inflora-zo", R10): Other(sgd(50, 0.01, "cosine"), rank=10),
    ("inflora-zo", D69): Other(sgd(20, 0.01, "cosine"), rank=30),
    ("inflora-hybrid", C5): Other(sgd(20, 0.01, "cosine"), sgd(10, 0.01, "cosine"), 10, "same"),
    ("inflora-hybrid", R5): Other(sgd(50, 0.01, "cosine"), sgd(20, 0.01, "cosine"), 10, "same"),
}
# ZO-FC with another module: whether a file was released.
ZOFC_WITH = {("zofc-lora", c): False for c in INC5} | {("zofc-prefix", c): True for c in INC5}
HEADS = {"lae": "linear", "l2p": "linear", "coda": "linear", "inflora": "linear", "aper": "cosine", "ease": "cosine"}
ORDERS = {"fo": ("first", "first"), "zo": ("zeroth", "zeroth"), "hybrid": ("zeroth", "first")}

each_other = pytest.mark.parametrize(("row", "setting"), OTHERS)
each_row = pytest.mark.parametrize("row", ROWS)
each_setting = pytest.mark.parametrize("setting", SETTINGS)


@cache
def loaded(name: str, preset: str = "paper") -> Recipe:
    return complete_recipe(load_recipe(name, [f"preset={preset}"]))


def as_shipped(row: str, setting: str) -> Recipe:
    return loaded(f"{row}/{setting}")


def epochs(setting: str) -> tuple[int, int]:
    return EPOCHS[setting.rsplit("-", 1)[0]]


def reached(recipe: Recipe, key: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(recipe, section), name)


def dotted(tree: object, key: str = "") -> dict[str, object]:
    """Values under their dotted keys."""
    if not isinstance(tree, dict) or not tree:
        return {key: tree}
    parts = (dotted(value, f"{key}.{name}" if key else name) for name, value in tree.items())
    return {name: value for part in parts for name, value in part.items()}


def test_every_row_is_shipped_for_every_setting() -> None:
    rows = {f"{row}/{setting}" for row in ROWS for setting in SETTINGS}
    own = set(OWN)
    shown = ("zofc", "first-order", "zo-ridge", "classifier", "simplecil", "ridge", "joint", "finetune")
    demos = {f"demo/{row}" for row in shown}
    others = {f"{row}/{setting}" for row, setting in [*OTHERS, *ZOFC_WITH]}
    ours = {f"{row}/{setting}" for row in ("ridge", "zo-ridge") for setting in SETTINGS} | {"zo-ridge/base"}
    assert set(recipe_names()) == rows | own | demos | others | ours


@pytest.mark.no_cover  # some hundred times the same lines; tracing makes it three times slower
@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_loads_in_every_preset_it_declares_and_survives_writing(name: str, tmp_path: Path) -> None:
    for preset in recipe_presets(name):
        recipe = loaded(name, preset)
        assert (recipe.name, recipe.preset) == (name, preset)
        assert recipe.title
        path = tmp_path / "recipe.yaml"
        path.write_text(dump_recipe(recipe), encoding="utf-8")
        assert load_recipe(str(path)) == recipe


def test_every_recipe_resolves_to_the_values_of_version_0_1() -> None:
    """Under keys that version 0.1 had, but for the budget of a projection, the interval of checkpoints and some
    classifiers; a digest for each recipe and preset."""
    baseline = json.loads((Path(__file__).parent / "baseline" / "recipes.json").read_text("utf-8"))
    known = set(baseline["keys"])
    digests = {}
    for name in recipe_names():
        if "zo-ridge" in name:  # younger
            continue
        for preset in recipe_presets(name):
            values = dotted(json.loads(loaded(name, preset).model_dump_json()))
            assert (values["ridge.projection"], values["ridge.budget"]) == (0, 64_000_000)  # limits nothing
            assert values["training.checkpoint_minutes"] is None  # half a minute, or more
            values |= {"ridge.budget": None, "training.checkpoint_minutes": 10.0}
            if name in COSINE_SINCE:
                assert values["head.kind"] == "cosine"
                values["head.kind"] = "linear"
            kept = {k: v for k, v in values.items() if re.sub(r"^optimize\.[^.]+\.", "optimize.<group>.", k) in known}
            text = json.dumps(kept, sort_keys=True)
            digests[f"{name} {preset}"] = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert digests == baseline["digests"]


@pytest.mark.parametrize(
    ("name", "digest", "start"),
    [
        ("zofc/cifar100-inc5", "5600567b", ()),
        ("lae-fo/base", "5e6bbbf4", ("head.kind=linear", "head.init=auto", "head.scale=1")),
        ("l2p-zo/base", "6c9c82a9", ("head.kind=linear", "head.init=uniform", "head.scale=1")),
        ("coda-zo/base", "48555062", ("head.kind=linear", "head.init=uniform", "head.scale=1")),
        ("inflora-fo/base", "b0756288", ("head.init=uniform", "head.scale=1", "inflora.view=test")),
        ("ridge/domainnet-inc69", "78457b17", ()),
    ],
)
def test_a_recipe_finds_the_results_that_version_0_1_made_of_it(name: str, digest: str, start: tuple[str, ...]) -> None:
    """Run folders and timings are called by a digest of the recipe; one that starts otherwise since has another."""
    assert recipe_digest(complete_recipe(load_recipe(name, start))) == digest
    assert (recipe_digest(loaded(name)) == digest) is not bool(start)
    if name == "zofc/cifar100-inc5":
        assert MeasureCost().name(loaded(name), Path()) == "zofc-cifar100-inc5-81344267.cost.json"


def test_recipes_are_a_few_tables() -> None:
    """Their rows, found without parsing, are those a parser finds."""
    folder = Path(files.__file__).parents[1] / "recipes"
    assert len(list(folder.rglob("*.yaml"))) <= 90
    for name in files.shipped_tables():
        assert list(files.row_names(name)) == sorted(files.read_table(f"{name}.yaml").part("rows").values)


@each_row
@each_setting
def test_a_row_has_the_settings_of_the_paper(row: str, setting: str) -> None:
    recipe = as_shipped(row, setting)
    first, zeroth = epochs(setting)
    method, groups = ROWS[row]
    assert recipe.method.name == method
    assert recipe.optimize == {
        name: group.model_copy(update={"epochs": first if group.order == "first" else zeroth})
        for name, group in groups.items()
    }
    assert (recipe.peft.kind, recipe.peft.rank, recipe.peft.blocks, recipe.peft.scale) == (
        "adapter",
        5,
        "first 5",
        0.1,
    )
    assert (recipe.seed, recipe.training.batch_size) == (1993, 48)
    assert recipe.backbone.name == "vit_base_patch16_224.augreg_in21k"
    for key, usual in USUAL.items():
        assert reached(recipe, key) == SPECIAL.get(row, {}).get(key, usual), key


@each_row
@each_setting
def test_images_are_seen_as_in_appendix_f(row: str, setting: str) -> None:
    recipe = as_shipped(row, setting)
    domainnet = setting == "domainnet-inc69"
    source, increment = setting.rsplit("-inc", 1)
    assert (recipe.data.source, recipe.data.increment) == (source, int(increment))
    assert recipe.views.scale == ((0.08, 1.0) if domainnet else (0.05, 1.0))
    assert recipe.views.ratio == (3 / 4, 4 / 3)
    assert recipe.views.test_interpolation == ("bilinear" if domainnet else "bicubic")
    assert (recipe.views.flip, recipe.views.normalize) == (0.5, "paper")


@each_setting
def test_controlled_rows_differ_in_the_order_alone(setting: str) -> None:
    """Same rank, weight decay, batch, epochs and schedule for whatever group, first or zeroth order."""
    seen = set()
    for row in ROWS:
        recipe = loaded(f"{row}/{setting}", "controlled")
        for group in recipe.optimize.values():
            budget = (
                group.epochs,
                group.schedule,
                group.lr,
                group.min_lr,
                group.momentum,
                group.weight_decay,
            )
            seen.add((*budget, group.optimizer, recipe.peft, recipe.training))
    assert len(seen) == 1
    assert next(iter(seen))[:2] == (epochs(setting)[1], "cosine")


@each_setting
def test_in_the_zeroth_order_row_both_groups_move_as_one(setting: str) -> None:
    for preset in recipe_presets(f"adapter-zo/{setting}"):
        groups = loaded(f"adapter-zo/{setting}", preset).optimize
        assert groups["peft"] == groups["head"]


@each_row
@each_setting
def test_released_values_are_those_of_the_released_files(row: str, setting: str) -> None:
    name = f"{row}/{setting}"
    assert ("released" in recipe_presets(name)) == ((row, setting) in RELEASED)
    if (row, setting) in RELEASED:
        groups = loaded(name, "released").optimize
        found = {g: (p.epochs, p.queries if p.order == "zeroth" else None) for g, p in groups.items()}
        assert found == RELEASED[row, setting]


def test_one_released_file_still_uses_adam() -> None:
    recipe = loaded("adapter-fo/imagenet-r-inc5", "released")
    assert recipe.training.batch_size == 128
    for group in recipe.optimize.values():
        assert (group.optimizer, group.lr, group.schedule) == ("adam", 0.0028125, "constant")


@each_row
@each_setting
def test_a_recipe_points_at_its_printed_numbers(row: str, setting: str) -> None:
    recipe = as_shipped(row, setting)
    if (row, setting) not in PRINTED:
        assert recipe.paper is None
        return
    assert recipe.paper is not None
    assert (recipe.paper.table, recipe.paper.row, recipe.paper.column) == (
        PRINTED[row, setting],
        row,
        setting,
    )
    assert set(printed(recipe.paper.table, recipe.paper.row, recipe.paper.column)) == {"avg", "last", "fgt"}


@pytest.mark.parametrize(("setting", "queries"), [("cifar100-inc5", 1), ("imagenet-r-inc5", 32)])
def test_the_released_query_counts_point_at_the_query_study(setting: str, queries: int) -> None:
    paper = loaded(f"zofc/{setting}", "released").paper
    assert paper is not None
    assert (paper.table, paper.row, paper.column) == ("queries", f"Q={queries}", setting)


def test_recipes_for_own_images_normalise_as_the_backbone_was_trained() -> None:
    overrides = ["data.source=folder:my_images", "data.increment=10", "backbone.name=vit_small_patch16_224"]
    for row in ("zofc", "adapter-fo", "classifier-fo", "simplecil"):
        recipe = load_recipe(f"{row}/base", overrides)
        assert recipe.views.normalize == "backbone"
        assert (recipe.data.source, recipe.paper) == ("folder:my_images", None)
        assert set(recipe.optimize) == set(ROWS[row][1])


def test_the_demonstration_pair_differs_in_how_it_learns_alone() -> None:
    zofc, twin = load_recipe("demo/zofc"), load_recipe("demo/first-order")
    assert (zofc.optimize["peft"].order, zofc.optimize["head"].order) == ("zeroth", "first")
    assert {group.order for group in twin.optimize.values()} == {"first"}
    assert (zofc.backbone.name, zofc.data.source) == ("embedded", "glyphs")
    assert (zofc.data.classes, zofc.data.increment, zofc.views.flip) == (20, 4, 0.0)
    same = {"name", "title", "optimize"}
    assert zofc.model_dump(exclude=same) == twin.model_dump(exclude=same)


def plan(group: Group) -> Plan:
    return (group.epochs, group.optimizer, group.lr, group.schedule, group.weight_decay, group.start)


@each_other
def test_other_methods_have_the_settings_of_their_files_or_authors(row: str, setting: str) -> None:
    recipe, expected = as_shipped(row, setting), OTHERS[row, setting]
    method, placement = row.split("-")[:2]
    peft, head = recipe.optimize["peft"], recipe.optimize["head"]
    assert (recipe.method.name, recipe.method.variant, recipe.head.kind) == (method, "official", HEADS[method])
    assert (peft.order, head.order) == ORDERS[placement]
    assert (plan(peft), plan(head)) == (expected.peft, expected.head or expected.peft)
    for group in recipe.optimize.values():
        assert (group.momentum, group.min_lr) == (0.9, 0.0)
        if group.order == "zeroth":
            assert (group.queries, group.epsilon, group.directions) == (4, 1e-3, "rademacher")
            assert group.clip == (5.0 if row == "aper-hybrid" else 1.0)
        else:
            assert group.clip is None
    assert (recipe.seed, recipe.training.batch_size) == (1993, 48)  # appendix A: "All runs use a batch size of 48"
    assert expected.rank in (None, recipe.peft.rank)
    assert recipe.sections["inflora"]["threshold"] == expected.threshold


@each_other
def test_other_methods_have_their_own_modules(row: str, setting: str) -> None:
    recipe = as_shipped(row, setting)
    peft = (recipe.peft.kind, recipe.peft.blocks, recipe.peft.scale)
    match recipe.method.name:
        case "lae":
            assert (*peft, recipe.peft.beside) == ("adapter", "first 5", "learned", "attention")
            assert recipe.sections["lae"] == {"decay": 0.9999, "frozen": None}
        case "aper" | "ease":
            assert (*peft, recipe.peft.dropout) == ("adaptformer", "all", 0.1, 0.1)
            assert recipe.sections["ease"] == {"alpha": 0.1}
        case "inflora":
            assert peft == ("lora", "all", 1.0)
            assert recipe.sections["inflora"]["threshold_end"] == 1.0
            assert recipe.sections["inflora"]["view"] == "training"
        case "l2p":
            assert recipe.sections["l2p"] == {"pool": 10, "length": 5, "top": 5, "pull": 0.1, "init": "port"}
        case "coda":
            ours = {"pool": 100, "per_task": None, "length": 8, "blocks": "first 5", "orthogonality": 0.0}
            assert recipe.sections["coda"] == ours


@each_other
def test_methods_that_share_something_out_among_the_tasks_know_their_number(row: str, setting: str) -> None:
    data = as_shipped(row, setting).data
    classes = {"cifar100": 100, "imagenet-r": 200, "domainnet": 345}[data.source]
    assert data.classes == (classes if row.startswith(("coda", "inflora")) else None)


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_places_the_groups_that_its_method_has(name: str) -> None:
    for preset in recipe_presets(name):
        recipe = loaded(name, preset)
        check_placement(recipe, recipe.optimize)
        assert set(recipe.optimize) == set(get_method(recipe.method.name).group_names)


OWN = [name for name in recipe_names() if name.endswith("/base")]


def test_every_row_of_the_main_table_has_a_recipe_for_ones_own_images() -> None:
    rows = {
        name.partition("/")[0] for name in recipe_names() if (paper := loaded(name).paper) and paper.table == "main"
    }
    assert {f"{row}/base" for row in rows | {"ridge", "zo-ridge"}} == set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_own_images_are_learned_with_the_settings_of_cifar100(name: str) -> None:
    for preset in recipe_presets(name):
        own, cifar = loaded(name, preset), loaded(name.replace("base", C10), preset)
        assert own.optimize == cifar.optimize and own.peft == cifar.peft
        rows = own.optimize and own.method.readout == "rows"  # which start at class means
        kind = "linear" if own.method.name == "inflora" else "cosine"
        at_means = {"kind": kind, "init": "means", "scale": 10.0}
        assert own.head == (cifar.head.model_copy(update=at_means) if rows else cifar.head)
        assert own.views.normalize == "backbone" and own.paper is None and own.data.classes is None
        get_method(own.method.name).check(own, [10, 10])  # however many classes there are


@pytest.mark.parametrize("name", OWN)
def test_own_images_are_learned_on_the_bundled_backbone(name: str, tmp_path: Path) -> None:
    few = ["backbone.name=embedded", "data.source=glyphs", "data.increment=2", "data.per_class=4",
           "data.test_per_class=2", "training.device=cpu"]  # fmt: skip
    epochs = [f"optimize.{group}.{change}" for group in loaded(name).optimize for change in ("epochs=1", "start=0")]
    recipe = load_recipe(name, [*few, *epochs, "data.classes=4"])
    folder = start_run(recipe, tmp_path)
    train(folder)
    found = open_run(folder.path)
    assert found.finished and found.tasks_done == 2


@each_setting
def test_ridge_regression_trains_nothing(setting: str) -> None:
    recipe = as_shipped("ridge", setting)
    assert (recipe.method.name, recipe.optimize, recipe.paper) == ("ridge", {}, None)
    assert recipe.sections["ridge"] == {
        "projection": 0,
        "orthogonal": False,
        "budget": 64_000_000,
        "fallback": False,
        "strength_from": "all",
        "keep_features": 256_000_000,
    }
    assert recipe_presets(f"ridge/{setting}") == ["paper", "controlled"]


@each_other
def test_coda_alone_sees_images_through_the_defaults_of_torchvision(row: str, setting: str) -> None:
    views = as_shipped(row, setting).views
    coda, domainnet = row.startswith("coda"), setting == D69
    assert views.scale == ((0.08, 1.0) if coda or domainnet else (0.05, 1.0))
    assert views.test_interpolation == ("bilinear" if coda or domainnet else "bicubic")
    assert views.resize == (1.0 if coda and setting in (C5, C10) else 256 / 224)


@each_other
def test_released_settings_of_other_methods(row: str, setting: str) -> None:
    name, expected = f"{row}/{setting}", OTHERS[row, setting]
    assert ("released" in recipe_presets(name)) == (expected.file is not None)
    if expected.file is None:
        return
    released = loaded(name, "released")
    if expected.file == "same":
        assert released.model_dump(exclude={"preset"}) == as_shipped(row, setting).model_dump(exclude={"preset"})
        return
    for group in released.optimize.values():
        found = (group.epochs, group.lr, group.weight_decay, released.training.batch_size)
        assert found == expected.file
    assert (released.paper is None) == (expected.file[0] == 2)  # two epochs are a memory run, not the printed one


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", HEADS)
def test_controlled_rows_of_a_method_differ_in_the_order_alone(method: str, setting: str) -> None:
    """Same rank, weight decay, batch, epochs and schedule; the optimizer and its rate belong to the order."""
    placements = [p for p in ORDERS if (f"{method}-{p}", setting) in OTHERS]
    recipes = {p: loaded(f"{method}-{p}/{setting}", "controlled") for p in placements}
    seen = {
        (group.epochs, group.start, group.schedule, group.min_lr, group.momentum, group.weight_decay)
        for recipe in recipes.values()
        for group in recipe.optimize.values()
    }
    assert len(seen) == 1
    rest = {"name", "title", "preset", "optimize", "paper"}
    assert len({recipe.model_copy(update=dict.fromkeys(rest)) for recipe in recipes.values()}) == 1
    budget = [OTHERS[f"{method}-{p}", setting].peft[0] for p in ("fo", "zo")]
    assert next(iter(seen))[0] == max(budget)
    assert recipes["zo"].optimize["peft"] == recipes["zo"].optimize["head"]
    if "hybrid" in recipes:
        mixed = recipes["hybrid"].optimize
        assert mixed["peft"] == recipes["zo"].optimize["peft"]
        assert plan(mixed["head"]) == plan(recipes["fo"].optimize["head"])


@each_other
def test_other_methods_point_at_their_printed_numbers(row: str, setting: str) -> None:
    paper, placement = as_shipped(row, setting).paper, row.split("-")[1]
    if placement == "hybrid" or (placement == "zo" and setting in INC10):
        assert paper is None
        return
    table = "prompt-epochs" if row.endswith("-long") else "inc10" if setting in INC10 else "main"
    label = row.removesuffix("-long").replace("coda", "coda-prompt")
    assert paper is not None
    assert (paper.table, paper.row, paper.column) == (table, label, setting)
    assert set(printed(table, label, setting)) == {"avg", "last", "fgt"}


@pytest.mark.parametrize(("row", "setting"), ZOFC_WITH)
def test_zofc_with_another_module_is_zofc_otherwise(row: str, setting: str) -> None:
    for preset in ("paper", "controlled"):
        ours = loaded(f"{row}/{setting}", preset)
        plain = loaded(f"zofc/{setting}", preset)
        differing = {"name", "title", "peft", "paper"}
        assert ours.model_dump(exclude=differing) == plain.model_dump(exclude=differing)
        assert (ours.peft.kind, ours.peft.blocks, ours.peft.length) == (row.removeprefix("zofc-"), "first 5", 10)
    assert ("released" in recipe_presets(f"{row}/{setting}")) == ZOFC_WITH[row, setting]


@pytest.mark.parametrize("name", [name for name in recipe_names() if "fast" in recipe_presets(name)])
def test_the_fast_preset_changes_how_a_step_is_made_and_nothing_else(name: str) -> None:
    """Derivatives in place of differences, in 16 bits; the same groups, rates, clips, directions and epochs."""
    fast, plain = loaded(name, "fast"), loaded(name)
    assert fast.training.precision == "bf16" and plain.training.precision == "fp32"
    for group, plan in fast.optimize.items():
        if plan.order == "zeroth":
            assert plan.estimator == "forward_gradient"
        before = plain.optimize[group]
        assert plan.model_copy(update={"estimator": before.estimator, "chunk": before.chunk}) == before
    rest = {"preset", "optimize", "training"}
    assert fast.model_dump(exclude=rest) == plain.model_dump(exclude=rest)
    check_recipe(fast)


@pytest.mark.parametrize("name", [name for name in recipe_names() if "fast" not in recipe_presets(name)])
def test_the_fast_preset_of_other_recipes_changes_nothing(name: str) -> None:
    assert loaded(name, "fast").model_dump(exclude={"preset"}) == loaded(name).model_dump(exclude={"preset"})


def test_every_row_whose_module_moves_by_differences_has_a_fast_preset() -> None:
    for name in recipe_names():
        plan = loaded(name).optimize.get("peft")
        if plan is not None and plan.order == "zeroth" and not name.startswith("demo/"):
            assert "fast" in recipe_presets(name), name

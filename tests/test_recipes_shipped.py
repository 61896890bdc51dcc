"""The shipped recipes hold the settings of the paper (appendices A, E, F) and load in all their presets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from zofc.paper import printed
from zofc.recipe import Group, Recipe, dump_recipe, load_recipe, recipe_names, recipe_presets

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
SPECIAL = {
    "classifier-linear-fo": {"head.kind": "linear"},
    "adapter-linear-fo": {"head.kind": "linear"},
    "zofc-linear": {"head.kind": "linear"},
    "prototypes": {"method.prototypes": True},
    "zofc-noaug": {"views.augment": "none"},
    "joint": {"data.joint": True},
    "finetune": {"method.mask": False},
}
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

each_row = pytest.mark.parametrize("row", ROWS)
each_setting = pytest.mark.parametrize("setting", SETTINGS)


@cache
def as_shipped(row: str, setting: str) -> Recipe:
    return load_recipe(f"{row}/{setting}")


def epochs(setting: str) -> tuple[int, int]:
    return EPOCHS[setting.rsplit("-", 1)[0]]


def reached(recipe: Recipe, key: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(recipe, section), name)


def test_every_row_is_shipped_for_every_setting() -> None:
    rows = {f"{row}/{setting}" for row in ROWS for setting in SETTINGS}
    own = {f"{row}/base" for row in ("zofc", "adapter-fo", "classifier-fo", "simplecil")}
    demos = {f"demo/{row}" for row in ("zofc", "first-order", "classifier", "simplecil", "joint", "finetune")}
    assert set(recipe_names()) == rows | own | demos


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_loads_in_every_preset_it_declares_and_survives_writing(name: str, tmp_path: Path) -> None:
    for preset in recipe_presets(name):
        recipe = load_recipe(name, [f"preset={preset}"])
        assert (recipe.name, recipe.preset) == (name, preset)
        assert recipe.title
        path = tmp_path / "recipe.yaml"
        path.write_text(dump_recipe(recipe), encoding="utf-8")
        assert load_recipe(str(path)) == recipe


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
        recipe = load_recipe(f"{row}/{setting}", ["preset=controlled"])
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
        groups = load_recipe(f"adapter-zo/{setting}", [f"preset={preset}"]).optimize
        assert groups["peft"] == groups["head"]


@each_row
@each_setting
def test_released_values_are_those_of_the_released_files(row: str, setting: str) -> None:
    name = f"{row}/{setting}"
    assert ("released" in recipe_presets(name)) == ((row, setting) in RELEASED)
    if (row, setting) in RELEASED:
        groups = load_recipe(name, ["preset=released"]).optimize
        found = {g: (p.epochs, p.queries if p.order == "zeroth" else None) for g, p in groups.items()}
        assert found == RELEASED[row, setting]


def test_one_released_file_still_uses_adam() -> None:
    recipe = load_recipe("adapter-fo/imagenet-r-inc5", ["preset=released"])
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
    paper = load_recipe(f"zofc/{setting}", ["preset=released"]).paper
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

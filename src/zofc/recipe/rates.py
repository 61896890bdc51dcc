"""Learning rates that were searched on a backbone (`rates=searched`), from the table `recipes/_rates.yaml`.

The table has the rates of each group by backbone and by family of recipes. Like a preset they lie over the files and
below the command line, and a schedule falls to the same share of its rate as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import PurePath

from zofc.recipe.files import find_file, read_extended, read_table, shipped_tables
from zofc.recipe.layers import Key, Layer, Origin, Problem, Value, merge
from zofc.recipe.schema import BackboneSettings, Group, is_weights_path

RATES_FILE = "_rates.yaml"
SEARCH_COMMAND = "python -m zofc.evidence rates --out rates.json"
PER_IMAGE_ENTRY = "{}-image"  # of a family whose groups have a direction for each image
SAME_AS_SEARCHED = ("order", "optimizer")  # with another one, a rate means something else


def weights_name(backbone: str) -> str:
    """What the table calls a backbone: its timm name, or the name of its weight file or folder."""
    return PurePath(backbone).stem if is_weights_path(backbone) else backbone


def searched_rates(recipe: Layer, given: Layer) -> Layer:
    """The searched rates of a recipe's groups as a layer. Groups whose rate is `given` on the command line keep it."""
    plans = {name: plan for name, plan in recipe.part("optimize").values.items() if isinstance(plan, dict)}
    rest = {name for name in plans if "lr" not in given.part("optimize", name).values}
    if not rest:
        return Layer(RATES_FILE)
    family, backbone = _family(recipe), _backbone(recipe)
    entry = PER_IMAGE_ENTRY.format(family) if any(plan.get("per") == "image" for plan in plans.values()) else family
    rates = read_table(RATES_FILE).part(backbone or "", entry)
    problems = [*_missing(recipe, backbone, family, entry), *_differences(recipe, family, rest & {*rates.values})]
    if problems:
        return Layer(RATES_FILE, problems=tuple(problems[:1]))
    values: dict[str, Value] = {}
    origins: dict[Key, Origin] = {}
    for name in sorted(rest & {*rates.values}):
        rate, plan = rates.values[name], {**_defaults("lr", "min_lr"), **plans[name]}
        lr, low = plan["lr"], plan["min_lr"]
        if isinstance(rate, (int, float)) and isinstance(lr, (int, float)) and isinstance(low, (int, float)):
            values[name] = {"lr": rate, "min_lr": low / lr * rate if lr else 0.0}
            origins |= {("optimize", name, key): rates.origin((name,)) for key in ("lr", "min_lr")}
    return Layer(RATES_FILE, {"optimize": values}, origins)


def _family(recipe: Layer) -> str:
    """The shipped table that a recipe builds on, which files hand down; a complete recipe is called by it."""
    return str(recipe.values.get("family") or str(recipe.values.get("name")).partition("/")[0])


def _backbone(recipe: Layer) -> str | None:
    """The entry of the table for a recipe's backbone; one without timm's tag is for the name with any tag."""
    settings = merge(BackboneSettings().model_dump(), recipe.part("backbone").values)
    name = f"{weights_name(str(settings['name']))}."
    return next((known for known in _backbones() if name.startswith(f"{known}.") and settings["pretrained"]), None)


def _backbones() -> list[str]:
    return list(read_table(RATES_FILE).values)


def _defaults(*keys: str) -> dict[str, Value]:
    return {key: Group.model_fields[key].default for key in keys}


def _missing(recipe: Layer, backbone: str | None, family: str, entry: str) -> Iterator[Problem]:
    """Why there are no rates for this recipe on its backbone, if there are none."""
    name = recipe.part("backbone").values.get("name", BackboneSettings().name)
    remedy = f"search them with `{SEARCH_COMMAND} backbone.name={name}`, or give them as optimize.<group>.lr"
    if backbone is None:
        yield recipe.problem(("rates",), f"none were searched on the backbone '{name}', only on: "
                             f"{', '.join(_backbones())}; {remedy}")  # fmt: skip
    elif family not in shipped_tables():
        yield recipe.problem(
            ("rates",),
            "the recipe builds on no shipped family; name the one whose rates it takes, such as `family: zofc`, "
            "in its file",
        )
    elif entry not in (known := read_table(RATES_FILE).part(backbone).values):
        yield recipe.problem(("rates",), f"none were searched on {backbone} for {entry}, only for: "
                             f"{', '.join(known)}; {remedy}")  # fmt: skip


def _differences(recipe: Layer, family: str, groups: set[str]) -> Iterator[Problem]:
    """Settings without which the rates of a family are not those of the recipe."""
    if family not in shipped_tables():
        return
    searched, defaults = read_extended(find_file(family, None), (), count(1)), _defaults(*SAME_AS_SEARCHED)
    for name in sorted(groups):
        ours, theirs = ({**defaults, **layer.part("optimize", name).values} for layer in (recipe, searched))
        for key in SAME_AS_SEARCHED:
            if ours[key] != theirs[key]:
                text = f"the rates of {family} were searched with {theirs[key]}; give optimize.{name}.lr yourself"
                yield recipe.problem(("optimize", name, key), text)

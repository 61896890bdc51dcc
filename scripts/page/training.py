"""How the methods were trained here beside the paper's recipes: epochs, steps, learning rates, modules."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from claims.lines import MAIN
from page.files import Result
from page.words import listed, table
from zofc.recipe import Recipe, load_recipe
from zofc.studies.catalogue import Line
from zofc.studies.scale import Scale
from zofc.studies.settings import SETTINGS

RATES = Path("results/small_rates.json")
SHOWN, IMAGES = "cifar100-inc5", 500  # the setting of the table, and CIFAR-100's training images a class
PLACEMENTS = {"fo": "FO", "zo": "ZO"}
NAMED = {"FO": "first order", "ZO": "zeroth order", "hybrid": "ZO-FC"}  # placements
SWEPT = {"adapter-fo": "first order", "zofc": "ZO-FC"}  # families of recipes
MODULE = ("kind", "rank", "blocks", "length")  # of a recipe's peft


def steps_a_task(line: str, results: Sequence[Result]) -> tuple[int, int] | None:
    """Of a line, here and with the paper's recipe."""
    for result in _shown(results):
        (family,) = [one.family for one in result.study.lines if one.title == line]
        theirs = load_recipe(f"{family}/{SHOWN}", [])
        return _steps(result.scale.apply(theirs), result.scale.per_class or IMAGES), _steps(theirs, IMAGES)
    return None


def _shown(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if (result.study.name,) == MAIN and SHOWN in result.settings]


def training(results: Sequence[Result], root: Path) -> list[str]:
    """A table, and what must be known beside it."""
    if not (found := _shown(results)):
        return []
    (result,) = found
    edges = searched(root / RATES)
    lines = [line for line in result.study.lines if load_recipe(f"{line.family}/{SHOWN}", []).optimize]
    rows = [_row(line, result.scale, edges) for line in lines]
    heads = (f"a task of {SHOWN}", "epochs here", "steps here", "the paper's epochs", "its steps", "learning rates ×")
    told = [
        f"A step is a batch; CIFAR-100 has {IMAGES} training images a class, of which the paper takes all.",
        *_search(root / RATES),
        *_at_the_edge(rows),
        *_modules(lines, result),
    ]
    return [table(heads, rows), *told]


def _row(line: Line, scale: Scale, edges: Mapping[str, str]) -> tuple[str, ...]:
    theirs = load_recipe(f"{line.family}/{SHOWN}", line.changes)
    ours = scale.apply(theirs)
    factors = {name: plan.lr / theirs.optimize[name].lr for name, plan in ours.optimize.items()}
    edge = f" ({edges[line.family]})" if line.family in edges else ""
    cells = [_by_group(factors) + edge]
    for recipe, images in ((theirs, IMAGES), (ours, scale.per_class or IMAGES)):
        epochs = {name: plan.epochs for name, plan in recipe.optimize.items()}
        cells = [_by_group(epochs), str(_steps(recipe, images)), *cells]
    return (line.title, *cells)


def _by_group(values: Mapping[str, float]) -> str:
    """One value if all groups have the same."""
    shown = {name: f"{value:g}" for name, value in values.items()}
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _steps(recipe: Recipe, images: int) -> int:
    """Of one task, for the group that moves longest."""
    batches = math.ceil(recipe.data.increment * min(images, IMAGES) / recipe.training.batch_size)
    return batches * max(plan.epochs for plan in recipe.optimize.values())


# -- learning rates --------------------------------------------------------------------------------------------------


def searched(path: Path) -> dict[str, str]:
    """By family of recipes: whether the best factor on the learning rates, of the classifier or of the module, was the
    largest or smallest of several."""
    if not path.is_file():
        return {}
    tried: dict[str, dict[tuple[float, float], list[float]]] = {}
    for row in json.loads(path.read_text("utf-8"))["rows"]:
        if "failed" not in row and (family := _family(row)):
            factors = row["factor"], row["factor"] * row.get("module", 1.0)
            tried.setdefault(family, {}).setdefault(factors, []).append(row["all_classes"])
    found = {}
    for family, by_factors in tried.items():
        best = max(by_factors, key=lambda factors: statistics.fmean(by_factors[factors]))
        head, module = (_edge(value, values) for value, values in zip(best, zip(*by_factors, strict=True), strict=True))
        parts = {head} if head == module else {f"head {head}" * bool(head), f"module {module}" * bool(module)}
        if told := ", ".join(sorted(filter(None, parts))):
            found[family] = told
    return found


def _edge(value: float, tried: Sequence[float]) -> str:
    if len(set(tried)) == 1:
        return ""
    return {max(tried): "largest tried", min(tried): "smallest tried"}.get(value, "")


def _family(row: Mapping[str, Any]) -> str | None:
    """The recipes that a row of the search stands for."""
    if (row.get("variant", "official"), row.get("readout", "rows")) != ("official", "rows"):
        return None
    if (row["method"], row["placement"]) == ("adapter", "hybrid"):
        return "zofc"
    orders = {name: order for order, name in PLACEMENTS.items()}
    return f"{row['method']}-{orders[row['placement']]}" if row["placement"] in orders else None


def _at_the_edge(rows: Sequence[tuple[str, ...]]) -> list[str]:
    at = [row[0] for row in rows if row[-1].endswith("tried)")]
    if not at:
        return []
    return [
        f"For {len(at)} of {len(rows)} lines the best factor was the largest or the smallest tried, so a better one "
        "may lie beyond."
    ]


def _search(path: Path) -> list[str]:
    """How the factors were found."""
    if not path.is_file():
        return []
    told = json.loads(path.read_text("utf-8"))
    rows = [row for row in told["rows"] if "failed" not in row]
    seeds, tested = len({row["seed"] for row in rows}), max(row.get("tested") or 0 for row in rows)
    parts = [f"`{one}`" for one in told["settings"] if one.startswith("data.") and not one.startswith("data.source")]
    parts.append("the studies' own recipes" if "scale" in told else f"{told['epochs']} epochs, preset `controlled`")
    parts += [f"{seeds} seed{'s' * (seeds > 1)}", f"{tested} test images"]
    apart = dict.fromkeys(NAMED[row["placement"]] for row in rows if row.get("module", 1.0) != 1)
    return [
        "The learning rates are the recipe's times the factor that gave the highest accuracy on all classes in a "
        f"search ([{RATES}](../{RATES})): CIFAR-100 in tasks of ten, trained and tested on training images that are in "
        f"no table; {', '.join(parts)}."
        + f" The module's factor was searched by itself for {listed(list(apart))}; else it is the classifier's."
        * bool(apart)
    ]


def swept(path: Path) -> list[str]:
    """What the search found for the adapter as its rate rises, by either order: a table, and what it is."""
    if not path.is_file():
        return []
    found: dict[tuple[float, float], dict[str, list[Mapping[str, Any]]]] = {}
    for row in json.loads(path.read_text("utf-8"))["rows"]:
        if (family := _family(row)) in SWEPT and "failed" not in row:
            factors = row["factor"], row["factor"] * row.get("module", 1.0)
            found.setdefault(factors, {}).setdefault(family, []).append(row)
    heads = ["classifier ×", "adapter ×"]
    for title in SWEPT.values():
        heads += [f"{title}: all classes %", f"{title}: forgetting"]
    rows = []
    for (head, module), by_family in sorted(found.items()):
        cells = [_mean(by_family.get(family, ()), key) for family in SWEPT for key in ("all_classes", "forgetting")]
        rows.append((f"{head:g}", f"{module:g}", *cells))
    after = (
        "How accuracy and forgetting depend on the rates, in the search. What first order forgets more than ZO-FC is a "
    )
    after += "matter of how far its adapter is moved: compare them at equal accuracy."
    return [table(heads, rows), after] if rows else []


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    known = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.fmean(known):.1f}" if known else "–"


# -- modules ---------------------------------------------------------------------------------------------------------


def _modules(lines: Sequence[Line], result: Result) -> list[str]:
    """Methods whose module is another under zeroth order than under first, by the recipes."""
    families = {line.family: line.title for line in lines}
    recipes = dict.fromkeys(SETTINGS[name].recipes for name in result.settings)
    found: dict[str, list[str]] = {}
    for family, title in families.items():
        other = family.removesuffix("-fo") + "-zo"
        if family.endswith("-fo") and other in families:
            for setting in recipes:
                if told := _differing(family, other, setting):
                    found.setdefault(f"{title.removesuffix(', FO')} has {told}", []).append(setting)
    if not found:
        return []
    told = "; ".join(f"{what} (recipes of {listed(where)})" for what, where in found.items())
    return [f"Not all methods have the same module under both orders: {told}. Their orders differ by that as well."]


def _differing(one: str, other: str, setting: str) -> str:
    first, second = (load_recipe(f"{family}/{setting}", []).peft for family in (one, other))
    if first is None or second is None:
        return ""
    parts = [
        f"{key} {getattr(first, key)} under first order and {getattr(second, key)} under zeroth"
        for key in MODULE
        if getattr(first, key) != getattr(second, key)
    ]
    return ", ".join(parts)

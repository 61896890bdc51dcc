"""How the methods were trained here beside the paper's recipes: epochs, steps, learning rates, modules."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from claims.comparisons import Measure
from claims.lines import MAIN
from claims.measures import ACCURACY, FORGETTING, LEARNED, chance
from page.files import Result
from page.words import listed, table
from rate_search import FACTORS, MODULES, REPEATED, ROUNDS, chosen, ranked, rows_of
from zofc.recipe import Recipe, load_recipe
from zofc.studies.catalogue import Line
from zofc.studies.scale import LIKE, Scale
from zofc.studies.settings import SETTINGS

RATES = Path("results/small_rates.json")
SHOWN, IMAGES = "cifar100-inc5", 500  # the setting of the table, and CIFAR-100's training images a class
SWEPT = {"classifier-fo": "classifier alone", "adapter-fo": "first order", "zofc": "ZO-FC"}  # families of recipes
GROUPS = {"head": "classifier", "peft": "module"}
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


def rates_of(root: Path) -> list[dict[str, Any]]:
    """The rows of the search."""
    return rows_of(root / RATES) if (root / RATES).is_file() else []


def training(results: Sequence[Result], root: Path) -> list[str]:
    """A table, and what must be known beside it."""
    if not (found := _shown(results)):
        return []
    (result,) = found
    rates = rates_of(root)
    edges = searched(rates)
    lines = [line for line in _lines(results) if load_recipe(f"{line.family}/{SHOWN}", []).optimize]
    rows = [_row(line, result.scale, edges) for line in lines]
    heads = (f"a task of {SHOWN}", "epochs here", "steps here", "the paper's epochs", "its steps", "learning rates ×")
    told = [
        f"A step is a batch; CIFAR-100 has {IMAGES} training images a class, of which the paper takes all.",
        *told_of_search(rates),
        *_at_the_edge(rows),
        *_modules(lines, result),
    ]
    return [table(heads, rows), *told]


def _lines(results: Sequence[Result]) -> list[Line]:
    """Of the studies that train, the first with a recipe's rates; those of the main table first."""
    ordered = sorted(results, key=lambda result: (result.study.name,) != MAIN)
    trained = [line for result in ordered if any("run" in row for row in result.good) for line in result.study.lines]
    found: dict[str, Line] = {}
    for line in trained:
        found.setdefault(LIKE.get(line.family, line.family), line)
    return list(found.values())


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
    shown = {GROUPS[name]: f"{value:g}" for name, value in values.items()}
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _steps(recipe: Recipe, images: int) -> int:
    """Of one task, for the group that moves longest."""
    batches = math.ceil(recipe.data.increment * min(images, IMAGES) / recipe.training.batch_size)
    return batches * max(plan.epochs for plan in recipe.optimize.values())


# -- learning rates --------------------------------------------------------------------------------------------------


def searched(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By family of recipes: whether the factor that was chosen, on the rates of the classifier or of the module, was
    the largest or smallest of several."""
    found = {}
    for family, best in chosen(rows).items():
        tried = {(row["head"], row["module"]) for row in rows if row["family"] == family and "failed" not in row}
        head = _edge(best[0], [head for head, _ in tried])
        modules = {module for head, module in tried if head == best[0]}
        module = _edge(best[1], list(modules)) if len(modules) > 1 else head  # it went with the classifier's
        parts = {head} if head == module else {f"classifier {head}" * bool(head), f"module {module}" * bool(module)}
        if told := ", ".join(sorted(filter(None, parts))):
            found[family] = told
    return found


def _edge(value: float, tried: Sequence[float]) -> str:
    if len(set(tried)) == 1:
        return ""
    return {max(tried): "largest tried", min(tried): "smallest tried"}.get(value, "")


def _at_the_edge(rows: Sequence[tuple[str, ...]]) -> list[str]:
    at = [row[0] for row in rows if row[-1].endswith("tried)")]
    if not at:
        return []
    return [
        f"For {len(at)} of {len(rows)} lines the best factor was the largest or the smallest tried, so a better one "
        "may lie beyond."
    ]


def told_of_search(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the factors were found."""
    rounds = {name: [row for row in rows if row["round"] == name] for name in ROUNDS}
    if not all(rounds.values()):
        return []
    classes = {name: f"{ROUNDS[name].classes} classes in tasks of {_number(ROUNDS[name].increment)}" for name in rounds}
    runs = {name: _count(len(some), "run") for name, some in rounds.items()}
    factors, modules = (", ".join(f"{value:g}" for value in some) for some in (FACTORS, MODULES))
    return [
        f"The learning rates are the recipe's times factors from a search ([{RATES}](../{RATES})) with the recipes of "
        "the studies, trained and tested on training images of CIFAR-100 that are in no table. All rates were "
        f"multiplied by the same factor ({factors}), then, with the best of these, the module's once more ({modules}): "
        f"{runs['short']} on {classes['short']}, {_seeds(rounds['short'])}. The {_number(REPEATED)} best of every "
        f"family were run again, {runs['long']} on {classes['long']}, {_seeds(rounds['long'])}, and "
        "those with the highest accuracy on all classes were taken, for all data. What is trained for longer or "
        f"without augmentation has the same rates. {_within_noise(rounds['long'])}"
    ]


def _within_noise(rows: Sequence[Mapping[str, Any]]) -> str:
    """For how many families the best factors lead the second by less than their chance."""
    sound = [row for row in rows if "failed" not in row]
    close, order = 0, ranked(sound, "long")
    for family, pairs in order.items():
        by_pair = [
            {row["seed"]: row for row in sound if row["family"] == family and (row["head"], row["module"]) == pair}
            for pair in pairs[:2]
        ]
        shared = set.intersection(*map(set, by_pair))
        means = [statistics.fmean(some[seed]["all_classes"] for seed in shared) for some in by_pair]
        tested = sum(by_pair[0][seed]["tested"] for seed in shared)
        close += len(pairs) > 1 and means[0] - means[-1] < 2**0.5 * (chance(means[0], tested) or 0.0)
    return (
        f"For {close} of {len(order)} families the best lead the second by less than the binomial error of the "
        "difference, so another search may choose otherwise."
    )


def _seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many runs the factors of a round had, for how many families, and where some are missing."""
    by_pair = Counter((row["family"], row["head"], row["module"]) for row in rows if "failed" not in row)
    most = {family: max(n for key, n in by_pair.items() if key[0] == family) for family, _, _ in by_pair}
    told = [
        f"{_count(n, 'seed')} for {_count(list(most.values()).count(n), 'family')}" for n in sorted({*most.values()})
    ]
    apart = {(family, head) for family, head, module in by_pair if head != module}
    due = {*by_pair, *((family, head, head * more) for family, head in apart for more in MODULES)}
    due = due if any(row["round"] == "short" for row in rows) else {*by_pair}
    short = [f"{family} ({head:g}, {module:g})" for family, head, module in sorted(due)
             if by_pair[family, head, module] < most[family]]  # fmt: skip
    return listed(told[::-1]) + (f" (fewer of {listed(short)})" if short else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what if number == 1 else 'families' if what == 'family' else what + 's'}"


def _number(value: int) -> str:
    return {3: "three", 5: "five", 10: "ten"}.get(value, str(value))


def swept(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the search found for the adapter as its rate rises, by either order, and for the classifier alone: a table,
    and what it is."""
    found: dict[tuple[int, float, float], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["family"] in SWEPT and "failed" not in row:
            key = ROUNDS[row["round"]].classes, row["head"], row["module"]
            found.setdefault(key, {}).setdefault(row["family"], []).append(row)
    heads = ["classes", "classifier ×", "adapter ×"]
    for title in SWEPT.values():
        heads += [f"{title}: all classes %", "learned", "forgotten"]
    shown = []
    for key, by_family in sorted(found.items()):
        cells = [_mean(by_family.get(family, ()), of) for family in SWEPT for of in (ACCURACY, LEARNED, FORGETTING)]
        shown.append((*(f"{value:g}" for value in key), *cells))
    after = (
        "In the search, mean over seeds: accuracy on all classes at the end, best accuracy on each task, and "
        "forgetting, in points. Of the classifier alone both factors are its own."
    )
    return [table(heads, shown), after] if shown else []


def _mean(rows: Sequence[Mapping[str, Any]], measure: Measure) -> str:
    known = [value for row in rows if (value := measure.of(row)) is not None]
    return f"{statistics.fmean(known):.1f}" if known else "–"


# -- modules ---------------------------------------------------------------------------------------------------------


def _modules(lines: Sequence[Line], result: Result) -> list[str]:
    """Methods whose module is another under zeroth order than under first, by the recipes."""
    families = {line.family: line.title for line in lines}
    found: dict[str, list[str]] = {}
    for family, title in families.items():
        other = family.removesuffix("-fo") + "-zo"
        if family.endswith("-fo") and other in families:
            for setting in result.settings:
                if told := _differing(family, other, SETTINGS[setting].recipes):
                    found.setdefault(f"{title.removesuffix(', FO')} has {told}", []).append(setting)
    if not found:
        return []
    told = "; ".join(f"{what} (on {listed(where)})" for what, where in found.items())
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

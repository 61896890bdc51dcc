"""From files, presets and overrides to a validated recipe, and back to a file.

A preset is an overlay (`presets: {NAME: ...}`) chosen with `preset=NAME`. It lies over everything the files say,
searched learning rates (`rates=searched`) lie over it, and the command line lies over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zofc.errors import RecipeError, nearest
from zofc.recipe.check import validate
from zofc.recipe.earlier import values_of_0_1
from zofc.recipe.files import read_files, shipped_names
from zofc.recipe.layers import Layer, Problem, Value, merge, quote
from zofc.recipe.parse import FILE_KEYS, read_overrides, write_yaml
from zofc.recipe.rates import searched_rates
from zofc.recipe.schema import METHOD_SECTIONS, PRESETS, MethodSettings, Recipe

MOST_PROBLEMS = 50  # that an error lists


def recipe_names() -> list[str]:
    """The shipped recipes; building blocks are left out."""
    return shipped_names()


def recipe_presets(name_or_path: str) -> list[str]:
    """The presets a recipe has values for."""
    return _available(read_files(name_or_path))


def load_recipe(name_or_path: str, overrides: str | Sequence[str] = ()) -> Recipe:
    """A shipped recipe by name or a file by path, with `dotted.key=value` overrides, whole and validated. In a complete
    file of version 0.1, such as that of a run folder, keys that it did not have get the values it stood for."""
    written = read_files(name_or_path)
    return _built(_completed(written) if "resolved" in written.values else written, read_overrides(overrides))


def _completed(written: Layer) -> Layer:
    method, head = written.part("method").values, written.part("head").values
    added = values_of_0_1(method.get("name"), method.get("variant"), head.get("kind"))
    values: dict[str, Value] = {section: keys for section, keys in added.items() if section in written.values}
    return replace(written, values=merge(values, written.values))


def change_recipe(recipe: Recipe, overrides: str | Sequence[str]) -> Recipe:
    """A recipe with overrides over it, checked as those of a file are."""
    if not overrides:
        return recipe
    values = {**recipe.model_dump(), "resolved": recipe.preset}
    return _built(Layer(recipe.name, values, recipe.origins), read_overrides(overrides))


def _built(written: Layer, changes: Layer) -> Recipe:
    problems = [*written.problems, *changes.problems, *_overlay_problems(written)]
    problems += _choice_problems(written, changes)
    chosen = (written | changes).values.get("preset", "paper")
    rates = _rates(written, str(chosen), changes)
    problems += rates.problems
    recipe, mistakes = _validated(_overlaid(written, str(chosen), rates | changes))
    problems += [problem for problem in mistakes if problem.key != ("preset",)]
    for preset in PRESETS:  # a mistake in an overlay should not wait until somebody chooses it
        if preset != chosen and preset in written.part("presets").values:
            problems += _mistakes(written, preset, changes)
    if problems or recipe is None:
        problems.sort(key=lambda problem: (problem.file, problem.line or 0))
        lines = [*dict.fromkeys(map(str, problems))]
        if len(lines) > MOST_PROBLEMS:
            lines[MOST_PROBLEMS:] = [f"and {len(lines) - MOST_PROBLEMS} more"]
        raise RecipeError("\n".join(lines))
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Every value, defaults included, as a file that loads to the same recipe."""
    text = write_yaml(recipe.model_dump())
    return f"{text}resolved: {recipe.preset}  # the preset whose values are written above\n"


def _validated(layer: Layer) -> tuple[Recipe | None, list[Problem]]:
    """The layer as a recipe, or everything that is wrong with it. A key that the schema does not know must hold the
    settings of the recipe's method, or of one that every recipe may speak of."""
    method = layer.part("method").values.get("name", MethodSettings().name)
    known = {*Recipe.model_fields, *METHOD_SECTIONS, str(method)}
    unknown = [name for name in layer.values if name not in known]
    recipe, problems = validate(Recipe, layer.without(*unknown))
    for name in unknown:
        problems.append(layer.problem((name,), f"unknown key{nearest(name, {*known, *FILE_KEYS[:2]})}"))
    return recipe and recipe.written_at(layer.origins), problems


def _overlaid(written: Layer, preset: str, changes: Layer) -> Layer:
    return written.without(*FILE_KEYS) | _overlay(written, preset) | changes


def _rates(written: Layer, preset: str, changes: Layer) -> Layer:
    """The searched learning rates, where the recipe asks for them. A complete file holds them already, unless it is to
    have another backbone."""
    recipe = written | _overlay(written, preset) | changes
    complete = "resolved" in written.values and not {"rates", "backbone"} & {*changes.values}
    asked = recipe.values.get("rates") == "searched"
    return searched_rates(recipe, changes) if asked and not complete else Layer(changes.file)


def _overlay(written: Layer, preset: str) -> Layer:
    return written.part("presets", preset).without("preset", *FILE_KEYS)


def _mistakes(written: Layer, preset: str, changes: Layer) -> Iterator[Problem]:
    """What is wrong in an overlay whatever lies below it: one that is not chosen need not fit the user's values."""
    alone = {problem.key for problem in _validated(_overlay(written, preset))[1]}
    for problem in _validated(_overlaid(written, preset, changes))[1]:
        if problem.key in alone and problem.key[:1] == ("presets",):
            yield problem


def _available(written: Layer) -> list[str]:
    plain = written.values.get("resolved", "paper")  # what the file holds without any overlay
    return [name for name in PRESETS if name == plain or name in written.part("presets").values]


def _overlay_problems(written: Layer) -> Iterator[Problem]:
    """What is wrong with the shape of `presets`; what the overlays hold is checked with the rest."""
    presets = written.values.get("presets")
    if presets is None:
        return
    if not isinstance(presets, dict):
        yield written.problem(("presets",), f"expected names of presets with overlays, got {quote(presets)}")
        return
    for name, overlay in presets.items():
        if name not in PRESETS:
            yield written.problem(("presets", name), f"unknown preset{nearest(name, PRESETS)}")
        elif overlay is not None and not isinstance(overlay, dict):
            yield written.problem(("presets", name), f"expected keys with values, got {quote(overlay)}")
        else:
            for key in ("preset", *FILE_KEYS):
                if key in (overlay or {}):
                    yield written.problem(("presets", name, key), "belongs at the top level of a file")


def _choice_problems(written: Layer, changes: Layer) -> Iterator[Problem]:
    """A preset must be one the recipe has an overlay for, or the one whose values it holds without any. `fast` is for
    every recipe: those without an overlay for it know no quicker step."""
    both = written | changes
    chosen, plain = both.values.get("preset", "paper"), written.values.get("resolved", "paper")
    available = _available(written)
    if "resolved" not in written.values and "fast" not in available:
        available.append("fast")
    if plain not in PRESETS:
        yield written.problem(("resolved",), f"expected one of {', '.join(PRESETS)}, got {quote(plain)}")
    elif chosen not in PRESETS:
        yield both.problem(("preset",), f"unknown preset {quote(chosen)}{nearest(str(chosen), PRESETS)}")
    elif chosen not in available:
        name = written.values.get("name")
        yield both.problem(("preset",), f"'{name}' has no preset '{chosen}', only: {', '.join(available)}")
    replaced = [layer.values.get("rates") for layer in (written, both)] == ["searched", "recipe"]
    if "resolved" in written.values and replaced:
        yield both.problem(("rates",), "the file holds searched rates; load the recipe that it was made of instead")

"""The same overrides over several recipes: each is applied to the recipes that have its key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zofc.methods import method_class
from zofc.recipe import METHOD_SECTIONS, Recipe, load_recipe


def load_recipes(names: Sequence[str], overrides: Sequence[str], notice: Callable[[str], None]) -> list[Recipe]:
    """The recipes with the overrides over them."""
    divided = divide_overrides(names, overrides, notice)
    return [load_recipe(name, mine) for name, mine in zip(names, divided, strict=True)]


def divide_overrides(
    names: Sequence[str], overrides: Sequence[str], notice: Callable[[str], None], titles: Sequence[str] = ()
) -> list[list[str]]:
    """The overrides of each recipe. A group of parameters or a section of settings that some of their methods lack is
    left out there, with a notice, which calls the recipes by their titles; one that all lack is left to be an error, as
    it is for a single recipe."""
    titles = titles or names
    of_methods = [text for text in overrides if text.startswith("method.")]
    plain = [load_recipe(name, of_methods) for name in names]
    chosen: list[list[str]] = [[] for _ in names]
    for text in overrides:
        fits = [_has_key(recipe, text.partition("=")[0]) for recipe in plain]
        for title, fit, mine in zip(titles, fits, chosen, strict=True):
            if fit or not any(fits):
                mine.append(text)
            else:
                others = ", ".join(other for other, applies in zip(titles, fits, strict=True) if applies)
                notice(f"{title} has no such setting and runs without {text}, which is applied to {others}")
    return chosen


def _has_key(recipe: Recipe, key: str) -> bool:
    """Whether a recipe has the group or the section of a dotted key; what is inside them is checked elsewhere."""
    section, *inside = key.strip().split(".")
    if section == "optimize" and inside:
        return inside[0] in method_class(recipe).group_names
    return section in (*Recipe.model_fields, *METHOD_SECTIONS, recipe.method.name)

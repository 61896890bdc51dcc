"""`zofc list`: recipes, methods, data sets, backbones, studies and settings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from zofc.cli.application import PluginFiles, app, note, out
from zofc.errors import RecipeError, nearest

if TYPE_CHECKING:
    from zofc.model.catalog import CatalogEntry
    from zofc.recipe import Group

Listing = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]  # headers and rows


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="recipes, methods, datasets, backbones, studies, or the settings of a recipe")
    ] = "recipes",
    pattern: Annotated[
        str, typer.Argument(help="Show only names (of settings: also descriptions) that contain this.")
    ] = "",
    plugin: PluginFiles = None,
) -> None:
    """List recipes, methods, data sets, backbones, studies or settings."""
    listings: dict[str, Callable[[], Listing]] = {
        "recipes": _recipes,
        "methods": _methods,
        "datasets": _datasets,
        "backbones": lambda: _backbones(pattern),
        "studies": _studies,
    }
    if what == "settings":
        _print_settings(pattern)
        return
    if what not in listings:
        raise RecipeError(f"cannot list '{what}'{nearest(what, [*listings, 'settings'])}")
    headers, rows = listings[what]()
    rows = tuple(row for row in rows if pattern.casefold() in row[0].casefold())
    if not rows:
        raise RecipeError(f"none of the {what} has '{pattern}' in its name; without it, all are listed")
    from zofc.report.grid import Grid

    out.print(Grid(headers, rows, names=len(headers)))


def _print_settings(pattern: str) -> None:
    """A setting a paragraph: name, values and default on its first line, what it means below."""
    from zofc.methods import METHODS, SECTIONS
    from zofc.recipe.settings import list_settings

    METHODS.load_all()
    chosen = [setting for setting in list_settings(SECTIONS) if setting.matches(pattern)]
    if not chosen:
        raise RecipeError(f"no setting has '{pattern}' in its name or description; without it, all are listed")
    for setting in chosen:
        values = f"{setting.values}; default {setting.default}"
        out.print(Text.assemble((setting.key, "bold"), f"  {values}"))
        below = textwrap.fill(setting.description, out.width, initial_indent=" " * 4, subsequent_indent=" " * 4)
        out.print(below, highlight=False, soft_wrap=True)


def _recipes() -> Listing:
    from zofc.recipe import load_recipe, recipe_names

    rows = []
    for name in recipe_names():
        recipe = load_recipe(name)
        table = recipe.paper.table if recipe.paper else ""
        rows.append((name, _plan(recipe.optimize.get("peft")), _plan(recipe.optimize.get("head")), table))
    return ("recipe", "adapter, prompts: lr ×epochs", "classifier", "paper's table"), rows


def _plan(group: Group | None) -> str:
    """How a group is trained, in short: `ZO 0.01 ×20`."""
    if group is None:
        return ""
    optimizer = "" if group.optimizer == "sgd" else f"{group.optimizer} "
    return f"{'ZO' if group.order == 'zeroth' else 'FO'} {optimizer}{group.lr:.4g} ×{group.epochs}"


def _methods() -> Listing:
    from zofc.methods import METHODS

    METHODS.load_all()
    rows = [
        (name, ", ".join(cls.group_names) or "none", (cls.__doc__ or "").splitlines()[0])
        for name, cls in sorted(METHODS.items())
    ]
    return ("method", "groups", "description"), rows


def _datasets() -> Listing:
    from zofc.data import describe_sources

    return ("data.source", "description"), sorted(describe_sources().items())


def _backbones(pattern: str) -> Listing:
    """All whose names have the pattern in them; without one, a few with advice."""
    heads = "backbone.name", "px", "tokens", "width", "parameters", "weights"
    if pattern:
        from zofc.model.catalog import backbones

        return heads, [_describe(entry) for entry in backbones(pattern)]
    from zofc.advice.choice import recommended_backbones

    rows = [(*_describe(entry), advice) for entry, advice in recommended_backbones()]
    note("a few of several hundred; all whose names contain a text: zofc list backbones vit (or deit, dinov2, clip)")
    return (*heads, "advice"), rows


def _describe(entry: CatalogEntry) -> tuple[str, ...]:
    from zofc.units import NONE, format_count

    vit = entry.backbone
    numbers = (vit.image_size, vit.tokens, vit.width, format_count(vit.parameters)) if vit else (NONE,) * 4
    return entry.name, *map(str, numbers), entry.weights


def _studies() -> Listing:
    from zofc.studies.catalogue import STUDIES

    rows = [(study.name, study.title, ", ".join(study.settings)) for study in STUDIES.values()]
    return ("study", "what it shows", "data"), rows

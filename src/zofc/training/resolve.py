"""From a recipe to what it names. Everything a registry knows is checked here, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zofc.data import Source, SourceOptions, Stream, open_source
from zofc.data.source import SOURCES
from zofc.errors import RecipeError, nearest
from zofc.methods import check_placement, get_method
from zofc.model.peft import PEFTS
from zofc.optim.estimators import get_estimator
from zofc.recipe import Recipe
from zofc.training.device import pick_device
from zofc.training.loggers import check_loggers


def check_recipe(recipe: Recipe) -> None:
    """What can be said without opening data or weights."""
    get_method(recipe.method.name)
    check_placement(recipe, recipe.optimize)
    for name, group in recipe.optimize.items():
        if group.order == "zeroth":
            try:
                get_estimator(group.estimator)
            except RecipeError as error:
                raise RecipeError(f"{recipe.name}: optimize.{name}.estimator: {error}") from error
    kind = recipe.data.source.partition(":")[0]
    if kind not in SOURCES:
        raise RecipeError(f"{recipe.name}: data.source: unknown source '{kind}'{nearest(kind, SOURCES)}")
    if recipe.peft.kind not in PEFTS:
        raise RecipeError(
            f"{recipe.name}: peft.kind: unknown module '{recipe.peft.kind}'{nearest(recipe.peft.kind, PEFTS)}"
        )
    check_loggers(recipe)
    pick_device(recipe.training.device)


def open_data(recipe: Recipe, spec: str, notice: Callable[[str], None]) -> Source:
    data = recipe.data
    options = SourceOptions(
        root=Path(data.root).expanduser() if data.root else None,
        seed=recipe.seed,
        per_class=data.per_class,
        test_per_class=data.test_per_class,
        test_fraction=data.test_fraction,
        skip_broken=data.skip_broken,
        notice=notice,
    )
    return open_source(spec, options)


def order_seed(recipe: Recipe) -> int:
    return recipe.seed if recipe.data.order_seed is None else recipe.data.order_seed


def open_stream(recipe: Recipe, notice: Callable[[str], None]) -> Stream:
    """The recipe's tasks, checked against what its method can do."""
    data = recipe.data
    stream = Stream.build(
        open_data(recipe, data.source, notice),
        order_seed=order_seed(recipe),
        increment=data.increment,
        first=data.first,
        classes=data.classes,
        joint=data.joint,
        then=[open_data(recipe, spec, notice) for spec in data.then],
    )
    get_method(recipe.method.name).check(recipe, [len(task.classes) for task in stream.tasks])
    return stream

"""The validated description of a run: its schema, the layers it is made of, the files they come from."""

from zofc.recipe.load import change_recipe, dump_recipe, load_recipe, recipe_names, recipe_presets
from zofc.recipe.schema import (
    METHOD_SECTIONS,
    PAPER_BACKBONE,
    BackboneSettings,
    DataSettings,
    Group,
    HeadSettings,
    MethodSettings,
    PaperCell,
    PeftSettings,
    Positive,
    Recipe,
    Strict,
    TrainingSettings,
    ViewSettings,
    values_of_0_1,
)

__all__ = [
    "METHOD_SECTIONS",
    "PAPER_BACKBONE",
    "BackboneSettings",
    "DataSettings",
    "Group",
    "HeadSettings",
    "MethodSettings",
    "PaperCell",
    "PeftSettings",
    "Positive",
    "Recipe",
    "Strict",
    "TrainingSettings",
    "ViewSettings",
    "change_recipe",
    "dump_recipe",
    "load_recipe",
    "recipe_names",
    "recipe_presets",
    "values_of_0_1",
]

"""The validated description of a run: its schema, the layers it is made of, the files they come from."""

from zofc.recipe.bounds import Positive, Weight
from zofc.recipe.earlier import ADDED_TO_GROUPS, values_of_0_1
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
    Recipe,
    Strict,
    TrainingSettings,
    ViewSettings,
    is_weights_path,
)

__all__ = [
    "ADDED_TO_GROUPS",
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
    "Weight",
    "change_recipe",
    "dump_recipe",
    "is_weights_path",
    "load_recipe",
    "recipe_names",
    "recipe_presets",
    "values_of_0_1",
]

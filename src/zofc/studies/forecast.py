"""Before cells are run: which of them would be refused, and how long the others will take on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from zofc.data.source import remembered_sources
from zofc.errors import ZofcError
from zofc.model.backbone import PRECISIONS, load_backbone
from zofc.recipe import Recipe
from zofc.studies.cells import Cell
from zofc.training.device import pick_device
from zofc.training.resolve import check_recipe

Reasons = dict[str, list[str]]  # cells by why


@dataclass
class Forecast:
    """The expected time of cells, and those that have none."""

    seconds: float = 0.0
    refused: Reasons = field(default_factory=dict)
    unknown: Reasons = field(default_factory=dict)  # whose time could not be estimated


def forecast(cells: Sequence[Cell], workers: int = 1) -> Forecast:
    """From the passes of each cell and the speed of a forward pass here; cells that run alone are not shared."""
    found, speeds = Forecast(), dict[tuple[str, ...], float | ZofcError]()
    shared, alone = [0.0], 0.0
    with remembered_sources():
        for cell in cells:
            reasons = found.refused
            try:
                check_recipe(cell.recipe)
                reasons = found.unknown
                seconds = cell.job.passes(cell.recipe) / _speed(cell.recipe, speeds)
            except ZofcError as error:
                reasons.setdefault(str(error), []).append(str(cell))
                continue
            if cell.job.alone:
                alone += seconds
            else:
                shared.append(seconds)
    found.seconds = max(max(shared), sum(shared) / workers) + alone
    return found


def _speed(recipe: Recipe, known: dict[tuple[str, ...], float | ZofcError]) -> float:
    """Images a second, or why it is not known; measured once for each backbone."""
    key = recipe.backbone.model_dump_json(), recipe.training.precision, recipe.training.device
    if key not in known:
        try:
            known[key] = _images_per_second(recipe)
        except ZofcError as error:
            known[key] = error
    found = known[key]
    if isinstance(found, ZofcError):
        raise found
    return found


def _images_per_second(recipe: Recipe, batch: int = 16) -> float:
    device, precision = pick_device(recipe.training.device), PRECISIONS[recipe.training.precision]
    backbone = load_backbone(recipe.backbone, recipe.seed, device, precision)
    images = torch.zeros(batch, 3, backbone.image_size, backbone.image_size, device=device)
    seconds = []
    with torch.no_grad():
        for _ in range(4):
            clock = time.perf_counter()
            float(backbone.features(images).sum())
            seconds.append(time.perf_counter() - clock)
    return batch / min(seconds)

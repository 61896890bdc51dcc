"""What a user gets by default on folders of photographs, beside what else they might have tried.

The folders are made of PACS's photographs and of Caltech-101, with few or many training images a class, and learned as
a user would: `zofc run FOLDER` beside what trains nothing (class means, ridge regression, and ridge regression on a
projection, which is the default without its adapter) and beside `classifier-fo/base` and `adapter-fo/base`, with the
same backbone and tasks.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from zofc.advice.choice import PROJECTED, choose_recipe
from zofc.data.selection import select_per_class
from zofc.errors import DataError, RecipeError
from zofc.evidence.rows import ResultRow, spread
from zofc.evidence.verdicts import interval_of
from zofc.recipe import Recipe, load_recipe
from zofc.report.grid import Grid
from zofc.runfolder import write_atomic
from zofc.seeds import stream
from zofc.studies.cells import Cell
from zofc.units import NONE

IMAGES = (10, 25, 100)  # training images a class
DEFAULT = "default"
PLAIN_RIDGE, NO_ADAPTER = "ridge/base", "projection"
LINES: dict[str, tuple[str, Sequence[str]]] = {  # a recipe and its settings; what is chosen has none
    DEFAULT: ("", ()),
    "simplecil/base": ("simplecil/base", ()),
    PLAIN_RIDGE: (PLAIN_RIDGE, ()),
    NO_ADAPTER: (PLAIN_RIDGE, PROJECTED),
    "classifier-fo/base": ("classifier-fo/base", ()),
    "adapter-fo/base": ("adapter-fo/base", ()),
}


@dataclass(frozen=True)
class Album:
    """A data set of photographs under $ZOFC_DATA, in Parquet files, and how it is cut into tasks."""

    name: str
    increment: int
    domain: str | None = None  # those of one domain alone


ALBUMS = {"PACS photographs": Album("pacs", 2, "photo"), "Caltech-101": Album("caltech101", 5)}


def write_album(album: Album, per_class: int, folder: Path) -> Path:
    """A folder of image files, one for each class, with training and test images apart; made once."""
    whole = folder / f"{album.name}-{per_class}"
    if (whole / "complete").exists():
        return whole
    root = os.environ.get("ZOFC_DATA")
    if not root or not Path(root, album.name).is_dir():
        raise DataError(f"ZOFC_DATA: no folder {album.name} with Parquet files below it")
    for split, most in (("train", per_class), ("test", None)):
        files = sorted(Path(root, album.name).glob(f"{split}-*.parquet"))
        for number, (name, image) in enumerate(_images(files, album.domain, most)):
            path = whole / split / name / f"{number}.{_suffix(image)}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)  # the folder counts only when it is complete
    write_atomic(whole / "complete", "")
    return whole


def _images(files: Sequence[Path], domain: str | None, most: int | None) -> Iterator[tuple[str, bytes]]:
    """Class names and encoded images, at most so many of a class."""
    tables = [pq.read_table(file) for file in files]
    features: dict[str, Any] = json.loads(tables[0].schema.metadata[b"huggingface"])["info"]["features"]
    rows = [row for table in tables for row in table.to_pylist()]
    if domain is not None:
        number = features["domain"]["names"].index(domain)
        rows = [row for row in rows if row["domain"] == number]
    labels = np.array([row["label"] for row in rows], np.int64)
    for index in select_per_class(labels, most, stream(1993, "photographs")):
        yield features["label"]["names"][labels[index]], rows[index]["image"]["bytes"]


def _suffix(image: bytes) -> str:
    return "png" if image[:4] == b"\x89PNG" else "webp" if image[:4] == b"RIFF" else "jpg"


def photograph_cells(
    backbones: Sequence[str],
    images: Sequence[int],
    seeds: Sequence[int],
    changes: Sequence[str],
    folder: Path,
    lines: Sequence[str] = (),
) -> Iterator[Cell]:
    """A cell for each seed, data set, number of images, backbone and line, all lines by default."""
    if unknown := [line for line in lines if line not in LINES]:
        raise RecipeError(f"--lines: {unknown[0]} is none of {', '.join(LINES)}")
    for seed in seeds:
        for title, album in ALBUMS.items():
            for per_class in images:
                source = f"folder:{write_album(album, per_class, folder)}"
                for backbone in backbones:
                    setting = f"{title}, {per_class} images a class, {Path(backbone).stem}"
                    for line in lines or LINES:
                        given = [f"backbone.name={backbone}", f"data.increment={album.increment}", f"seed={seed}"]
                        recipe = _recipe(line, source, [*given, *changes])
                        yield Cell({"line": line, "setting": setting, "seed": seed}, recipe)


def _recipe(line: str, source: str, given: Sequence[str]) -> Recipe:
    """What `zofc run` makes of a source, or of a recipe's name with the backbone as it would be chosen for it."""
    chosen = choose_recipe(source, given).recipe
    if line == DEFAULT:
        return chosen
    shared = {"backbone": chosen.backbone, "data": chosen.data, "seed": chosen.seed}
    name, settings = LINES[line]
    named = load_recipe(name, [f"data.source={source}", *settings, *given]).model_copy(update=shared)
    precision = {"precision": chosen.training.precision, "deterministic": chosen.training.deterministic}
    return named.model_copy(update={"training": named.training.model_copy(update=precision)})


def photographs_table(rows: Sequence[ResultRow]) -> Grid:
    """Accuracy on all classes of each line in each setting, and by how much the default is above ridge, with its 95 %
    interval."""
    table = {(row["line"], row["setting"], row["seed"]): row["all_classes"] for row in rows if "failed" not in row}
    tested = {row["setting"]: row["tested"] for row in rows if "failed" not in row}
    body = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        cells = [spread([value for key, value in table.items() if key[:2] == (line, setting)]) for line in LINES]
        gains = [value - table[PLAIN_RIDGE, setting, seed] for (line, where, seed), value in table.items()
                 if (line, where) == (DEFAULT, setting) and (PLAIN_RIDGE, setting, seed) in table]  # fmt: skip
        body.append((*setting.split(", "), *cells, _gain(gains, tested.get(setting, 0))))
    heads = ("Photographs", "Training images", "Backbone", "zofc run FOLDER", *[*LINES][1:])
    return Grid((*heads, "Above ridge"), tuple(body))


def _gain(gains: Sequence[float], tested: int) -> str:
    if len(gains) < 2:
        return f"{gains[0]:+.1f}" if gains else NONE
    mean, half = gain_interval(gains, tested)
    return f"{mean:+.1f} ± {half:.1f}"


def gain_interval(gains: Sequence[float], tested: int) -> tuple[float, float]:
    """The mean over seeds and half its 95 % interval, which is no narrower than the test images allow: learners that
    differ by a share g differ on at least g n of n images, so that g has a standard error of at least √(g (1 − g) / n).
    """
    interval = interval_of(gains)
    share = abs(interval.mean) / 100
    least = 196 * math.sqrt(share * (1 - share) / tested) if tested else 0.0
    return interval.mean, max(interval.high - interval.mean, least)

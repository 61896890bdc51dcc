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
from collections.abc import Iterator, Mapping, Sequence
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


def write_album(album: Album, per_class: int, draw: int, folder: Path) -> Path:
    """A folder of image files, one for each class, with training and test images apart; made once. `draw` is the seed
    by which training images are chosen."""
    whole = folder / f"{album.name}-{per_class}-{draw}"
    if (whole / "complete").exists():
        return whole
    root = os.environ.get("ZOFC_DATA")
    if not root or not Path(root, album.name).is_dir():
        raise DataError(f"ZOFC_DATA: no folder {album.name} with Parquet files below it")
    for split, most in (("train", per_class), ("test", None)):
        files = sorted(Path(root, album.name).glob(f"{split}-*.parquet"))
        for number, (name, image) in enumerate(_images(files, album.domain, most, draw)):
            path = whole / split / name / f"{number}.{_suffix(image)}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)  # the folder counts only when it is complete
    write_atomic(whole / "complete", "")
    return whole


def _images(files: Sequence[Path], domain: str | None, most: int | None, draw: int) -> Iterator[tuple[str, bytes]]:
    """Class names and encoded images, at most so many of a class."""
    tables = [pq.read_table(file) for file in files]
    features: dict[str, Any] = json.loads(tables[0].schema.metadata[b"huggingface"])["info"]["features"]
    rows = [row for table in tables for row in table.to_pylist()]
    if domain is not None:
        number = features["domain"]["names"].index(domain)
        rows = [row for row in rows if row["domain"] == number]
    labels = np.array([row["label"] for row in rows], np.int64)
    for index in select_per_class(labels, most, stream(draw, "photographs")):
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
    albums: Sequence[str] = (),
) -> Iterator[Cell]:
    """A cell for each seed, data set, number of images, backbone and line; all data sets and lines by default."""
    for option, names, known in (("--lines", lines, list(LINES)), ("--albums", albums, _album_names())):
        if unknown := [name for name in names if name not in known]:
            raise RecipeError(f"{option}: {unknown[0]} is none of {', '.join(known)}")
    for seed in seeds:
        for title, album in ALBUMS.items():
            for per_class in images if album.name in (albums or _album_names()) else ():
                source = f"folder:{write_album(album, per_class, seed, folder)}"
                for backbone in backbones:
                    setting = f"{title}, {per_class} images a class, {Path(backbone).stem}"
                    for line in lines or LINES:
                        given = [f"backbone.name={backbone}", f"data.increment={album.increment}", f"seed={seed}"]
                        recipe = _recipe(line, source, [*given, *changes])
                        yield Cell({"line": line, "setting": setting, "seed": seed, "draw": seed}, recipe)


def _album_names() -> list[str]:
    return [album.name for album in ALBUMS.values()]


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


def comparable_rows(rows: Sequence[ResultRow]) -> dict[tuple[str, str, int], ResultRow]:
    """Rows by line, setting and seed: where a line was measured on several draws of a setting, those whose draw is that
    of the seed; else those of its one draw."""
    measured = [row for row in rows if "failed" not in row]
    several = {
        (row["line"], row["setting"]) for row in measured for other in measured
        if (row["line"], row["setting"]) == (other["line"], other["setting"]) and row["draw"] != other["draw"]
    }  # fmt: skip
    table: dict[tuple[str, str, int], ResultRow] = {}
    for row in measured:
        if row["draw"] == row["seed"] or (row["line"], row["setting"]) not in several:
            table.setdefault((row["line"], row["setting"], row["seed"]), row)
    return table


def gains_over(line: str, setting: str, table: Mapping[tuple[str, str, int], ResultRow]) -> list[float]:
    """How far the default is above a line, for each seed with the same images."""
    own = {key[2]: row for key, row in table.items() if key[:2] == (DEFAULT, setting)}
    pairs = [(row, table.get((line, setting, seed))) for seed, row in own.items()]
    return [row["all_classes"] - other["all_classes"] for row, other in pairs
            if other is not None and other["draw"] == row["draw"]]  # fmt: skip


def photographs_table(rows: Sequence[ResultRow]) -> Grid:
    """Accuracy on all classes of each line in each setting, with the number of draws of its training images (a line of
    fewer draws than the default is marked), and by how much the default is above ridge, with its 95 % interval."""
    table = comparable_rows(rows)
    body = []
    for setting in sorted({row["setting"] for row in rows}, key=_place):
        draws = {line: {row["draw"] for key, row in table.items() if key[:2] == (line, setting)} for line in LINES}
        cells = []
        for line in LINES:
            cell = spread([row["all_classes"] for key, row in table.items() if key[:2] == (line, setting)])
            cells.append(cell + " †" * (0 < len(draws[line]) < len(draws[DEFAULT])))
        tested = next((row["tested"] for key, row in table.items() if key[1] == setting), 0)
        gain = _gain(gains_over(PLAIN_RIDGE, setting, table), tested)
        body.append((*setting.split(", "), str(len(draws[DEFAULT]) or NONE), *cells, gain))
    heads = ("Photographs", "Training images", "Backbone", "Draws", "zofc run FOLDER", *[*LINES][1:])
    return Grid((*heads, "Above ridge"), tuple(body))


def _place(setting: str) -> tuple[str, str, int]:
    """Where a setting stands in the table."""
    photographs, images, backbone = setting.split(", ")
    return backbone, photographs, int(images.partition(" ")[0])


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

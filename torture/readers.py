"""Independent readers: what is in a folder, a table or a weight file, read without any code of zofc."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TEST_FOLDERS = ("test", "val", "validation")
LABELS = ("label", "fine_label", "labels", "target")  # what a column of labels may be called
NOT_DECODED = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}


@dataclass(frozen=True)
class Counts:
    """Images of each class, training and test set together."""

    classes: Mapping[str, int]

    @property
    def images(self) -> int:
        """All images."""
        return sum(self.classes.values())


def suffixes() -> frozenset[str]:
    """Suffixes of the image formats that Pillow decodes and zofc reads."""
    Image.init()
    with contextlib.suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
    known = {name: kind for name, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    return frozenset(name for name, kind in known.items() if kind not in NOT_DECODED)


def is_image(data: bytes | Path) -> bool:
    """Whether Pillow decodes it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
                image.load()
    except Exception:
        return False
    return True


def count_folder(root: Path) -> Counts:
    """Every regular image file in class folders, each directory counted once however many links lead to it."""
    inside = _folders(root)
    test = next((name for name in TEST_FOLDERS if name in inside), None)
    bases = [root / "train", root / test] if "train" in inside and test else [root]
    if inside == ["train"]:
        bases = [root / "train"]
    counts: dict[str, int] = {}
    for base in bases:
        for name in _folders(base):
            counts[name] = counts.get(name, 0) + sum(1 for _ in _images(base / name))
    return Counts(counts)


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> Iterator[Path]:
    """The image files below a folder, links to folders followed, no folder twice and none that lies above."""
    wanted, todo = suffixes(), [folder]
    seen = {(state.st_dev, state.st_ino) for state in (path.stat() for path in folder.resolve().parents)}
    while todo:
        here = todo.pop()
        state = here.stat()
        if (state.st_dev, state.st_ino) in seen:
            continue
        seen.add((state.st_dev, state.st_ino))
        for entry in os.scandir(here):
            path = Path(entry.path)
            if path.is_dir():  # False for links that lead to themselves
                todo.append(path)
            elif not entry.name.startswith(".") and path.suffix.lower() in wanted and is_regular(path):
                yield path


def is_regular(path: Path) -> bool:
    """Whether a path is, or leads to, an ordinary file."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def broken_images(root: Path) -> list[Path]:
    """The image files in class folders that Pillow cannot decode."""
    return [path for base in _folders(root) for path in _images(root / base) if not is_image(path)]


def count_table(files: list[Path]) -> Counts | None:
    """The rows of parquet files by label, None where they are not a table of images and whole-number labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    for file in files:
        try:
            table = pq.read_table(file)
            column = _label_column(table.schema)
            labels = table.column(column).to_pylist()
        except Exception:  # of every kind, for files that are damaged in every way
            return None
        if not any(map(pa.types.is_struct, table.schema.types)) or any(not isinstance(label, int) for label in labels):
            return None
        names = _class_names(table.schema, column)
        for label in labels:
            named = names is not None and 0 <= label < len(names)
            name = str(names[label]) if names is not None and named else f"class {label}"
            counts[name] = counts.get(name, 0) + 1
    return Counts(counts)


def _label_column(schema: Any) -> str:
    """The column of the labels by its name, else the only one of whole numbers."""
    import pyarrow as pa

    whole = [name for name, kind in zip(schema.names, schema.types, strict=True) if pa.types.is_integer(kind)]
    named = [name for name in LABELS if name in whole]
    return str((named or [name for name in whole if name != "domain"])[0])


def _class_names(schema: Any, column: str) -> list[Any] | None:
    try:
        label = json.loads(schema.metadata[b"huggingface"])["info"]["features"][column]
        names = label["names"]  # whatever type it states: names that are there are the class names
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return names if isinstance(names, list) and names else None


def finite_tensors(file: Path) -> bool | None:
    """Whether all numbers of a weight file are finite; None where it cannot be read."""
    from safetensors.numpy import load_file

    try:
        tensors = load_file(file)
    except Exception:
        return None
    return all(bool(np.isfinite(value).all()) for value in tensors.values() if value.dtype.kind == "f")


def strict_json(text: str) -> Any:
    """A JSON value without NaN and infinities, which JSON does not have."""

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def finite(tree: Any) -> bool:
    """Whether all numbers in a tree are finite."""
    if isinstance(tree, dict):
        return all(map(finite, tree.values()))
    if isinstance(tree, list):
        return all(map(finite, tree))
    return not isinstance(tree, float) or math.isfinite(tree)

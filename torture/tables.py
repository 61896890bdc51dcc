"""Parquet tables: columns, types, labels, metadata and bytes mutated, against an independent reader."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torture.folders import compare, counted, read_source
from torture.images import encode, hostile_image, pixels
from torture.kinds import Case, kind
from torture.mutate import hostile_value, mutate_bytes, mutate_tree
from torture.readers import count_table
from torture.verdicts import ACCEPTED, Verdict, judge

COLUMN_NAMES = (
    "label",
    "fine_label",
    "image",
    "img",
    "target",
    "domain",
    "",
    "bytes",
    "x" * 300,
    "a.b",
    "\x1b[2J",
    "label ",
)


@kind("parquet", "parquet tables: columns, types, labels, metadata, local paths and bytes mutated")
def attempt_table(case: Case) -> Verdict:
    """A mutated table, opened as a source; counts must agree with the reader's."""
    draw = case.random
    path = case.folder / "table"
    path.mkdir()
    names = draw.choice(
        [["train-0.parquet"], ["train-0.parquet", "test-0.parquet"], ["a.parquet", "b.parquet"], ["x.parquet"]]
    )
    files = [path / name for name in names]
    for file in files:
        write_table(draw, file)
    if draw.random() < 0.35:
        file = draw.choice(files)
        file.write_bytes(mutate_bytes(draw, file.read_bytes()))
    spec = f"parquet:{files[0] if len(files) == 1 and draw.random() < 0.5 else path}"
    skip = draw.random() < 0.3
    if draw.random() < 0.1:
        settings = [
            word for word in case.stage.settings() if not word.startswith(("data.per", "data.test", "data.classes"))
        ]
        return case.judge("run", "simplecil/base", *settings, f"data.source={spec}", "-q")
    outcome = case.call(read_source(spec, skip_broken=skip), f"open_source({spec!r}, skip_broken={skip})")
    verdict = judge(outcome)
    if verdict.word != ACCEPTED:
        return verdict
    found, expected = counted(outcome.text), count_table(files)
    if found is None or expected is None:
        return Verdict("wrong", f"accepted as {found}, but the reader has no table of images and labels")
    wrong = compare(found, expected, expected.images if skip else 0)
    return Verdict("wrong", wrong) if wrong else verdict


def write_table(draw: random.Random, file: Path) -> None:
    """A table of a few images, valid or with one mutation of its columns."""
    count = draw.choice([4, 6, 9])
    images: list[Any] = [{"bytes": encode(pixels(draw, 6, 6), "PNG"), "path": f"{i}.png"} for i in range(count)]
    labels: list[Any] = [i % 3 for i in range(count)]
    features: Any = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["ant", "bee", "cow"]}}
    if draw.random() < 0.3:
        features.pop("label")
    arrays: dict[str, Any] = {}
    match draw.randrange(12):
        case 0:
            images = _hostile_images(draw, count)
        case 1:
            labels = _hostile_labels(draw, count)
        case 2 | 3:
            features = mutate_tree(draw, features, draw.choice([1, 2]))
        case 4:
            images = [{"bytes": draw.choice(["/etc/passwd", "0.png", str(file)]), "path": None} for _ in range(count)]
        case 5:
            images = [draw.choice([b"x", "x", 5, None]) for _ in range(1)] * count
        case 6:
            images[0] = {"bytes": None, "path": "/etc/passwd"}
        case 7:
            arrays[draw.choice(COLUMN_NAMES)] = pa.array(
                draw.choice([labels, ["x"] * count, [None] * count, [[1]] * count])
            )
    try:
        columns = {"image": pa.array(images), "label": pa.array(labels), **arrays}
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        columns = {"image": pa.array([str(one) for one in images]), "label": pa.array([str(one) for one in labels])}
    _write(draw, file, columns, features)


def _write(draw: random.Random, file: Path, columns: dict[str, Any], features: Any) -> None:
    pairs = [(name, array) for name, array in columns.items() if draw.random() > 0.02]
    if pairs and draw.random() < 0.06:
        pairs.append((draw.choice(["label", "image"]), pairs[-1][1]))  # a name twice
    if draw.random() < 0.05:
        pairs = [(draw.choice(COLUMN_NAMES), array) for _, array in pairs]
    table = pa.Table.from_arrays([array for _, array in pairs], names=[name for name, _ in pairs])
    text = json.dumps({"info": {"features": features}})
    if draw.random() < 0.1:
        text = draw.choice(
            ["", "{}", "[]", "null", "{", "[" * 5000, json.dumps({"info": hostile_value(draw)}, default=str)]
        )
    if draw.random() < 0.8:
        table = table.replace_schema_metadata({"huggingface": text})
    if draw.random() < 0.05:
        table = table.slice(0, 0)
    pq.write_table(
        table, file, row_group_size=draw.choice([1, 3, 100]), compression=draw.choice(["snappy", "none", "zstd"])
    )


def _hostile_images(draw: random.Random, count: int) -> list[Any]:
    return [{"bytes": hostile_image(draw)[0], "path": f"{number}"} for number in range(count)]


def _hostile_labels(draw: random.Random, count: int) -> list[Any]:
    return draw.choice([
        [-1] * count, [500_000_000 * (i % 2) for i in range(count)], [2**62] * count, [None, *[1] * (count - 1)],
        [1.5] * count,
        ["ant"] * count, [[1, 2]] * count, [True, False] * (count // 2) + [True] * (count % 2), [0] * count,
        [None] * count,
        list(range(count)), [2**31 * i for i in range(count)], [b"x"] * count, [{"a": 1}] * count, [3] * count,
    ])  # fmt: skip

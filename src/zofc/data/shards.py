"""Parquet shards in the Hugging Face layout: an image column with encoded bytes, an integer label column.

Which is which, and the class names, stand in the schema's `huggingface` metadata. Labels are read first, so
only the chosen images are decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from zofc.data.decode_cache import SAMPLE, CachePart, cache_key, open_stores
from zofc.data.decoding import IN_MEMORY, collect_warnings, report_broken, settle
from zofc.data.selection import check_trainable, hold_out, select_split
from zofc.data.source import EncodedImages, ImageSet, Source, SourceOptions
from zofc.data.stored import Store, StoredImages
from zofc.errors import DataError
from zofc.limits import CLASSES, ROW_GROUP_BYTES, TABLE_ROWS
from zofc.paths import parse_json, why_unreadable
from zofc.units import format_bytes

LABEL_NAMES = ("label", "fine_label", "labels", "target")  # which of several label columns is meant
TEST_PREFIXES = ("test", "val")
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError)  # what pyarrow raises on bad files


def read_parquet(name: str, path: Path, options: SourceOptions) -> Source:
    """The shards at a path, with their own test split or one held out of each class."""
    train_files, test_files = find_shards(name, path)
    train = read_rows(train_files)
    test = read_rows(test_files, like=train.columns) if test_files else None
    classes, present = _classes(train, test)
    if len(present) < len(classes):
        options.notice(f"{name}: {len(classes) - len(present)} of {len(classes)} named classes have no images")
    names = tuple(classes[label] for label in present)
    train = train.renumber(present)
    if test is None:
        kept, held = hold_out(train.labels, names, options.test_fraction, options.seed, name)
        train, test = train.take(kept), train.take(held)
    else:
        test = test.renumber(present)
    check_trainable(names, train.labels, test.labels, name)
    train, test = (
        rows.take(select_split(rows.labels, split, options, rows.domains))
        for split, rows in (("train", train), ("test", test))
    )
    digests = {file: _sha256(file) for file in train_files + test_files}
    stores = _open_stores(name, digests, train.columns, len(train.labels) + len(test.labels), options)
    with collect_warnings(options.notice, name):
        (train_set, broken), (test_set, broken_tests) = (_read_set(rows, stores) for rows in (train, test))
    skipped = {**broken, **broken_tests}
    report_broken(name, skipped, len(train.labels) + len(test.labels), options)
    check_trainable(names, train_set.labels, test_set.labels, name)  # broken ones may have been left out
    lines = "".join(f"{file.name}\t{digest}\n" for file, digest in digests.items())
    checksum = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    return Source(name, names, train_set, test_set, checksum, train.columns.domains, skipped)


def find_shards(name: str, path: Path) -> tuple[list[Path], list[Path]]:
    """The training and the test shards; without any named train-*, all shards are for training."""
    if path.is_file():
        return [path], []
    shards = sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet"))
    if not shards:
        raise DataError(f"{name}: no *.parquet files in {path}")
    train = [s for s in shards if s.name.startswith("train")]
    tests = ([s for s in shards if s.name.startswith(prefix)] for prefix in TEST_PREFIXES)
    test = next(filter(None, tests), [])
    if test and not train:
        raise DataError(f"{name}: {path} has test shards but no train-*.parquet")
    return (train, test) if train else (shards, [])


@dataclass(frozen=True)
class Columns:
    """Which column is what, and what the labels mean (None: unnamed)."""

    image: str
    label: str
    domain: str | None
    classes: tuple[str, ...] | None
    domains: tuple[str, ...]


@dataclass(frozen=True)
class ShardRows:
    """Rows of several shards: all but the images."""

    files: Sequence[Path]
    columns: Columns
    places: NDArray[np.int64]  # (n, 2): which file, which row of it
    labels: NDArray[np.int64]  # (n,)
    domains: NDArray[np.int64] | None  # (n,)

    def take(self, indices: NDArray[np.int64]) -> ShardRows:
        """The rows at these indices."""
        domains = None if self.domains is None else self.domains[indices]
        return replace(self, places=self.places[indices], labels=self.labels[indices], domains=domains)

    def renumber(self, present: NDArray[np.int64]) -> ShardRows:
        """The same rows with labels that count only the classes present."""
        return replace(self, labels=np.searchsorted(present, self.labels))


def find_columns(schema: Any, file: Path) -> Columns:
    """The image and label columns by their declared type, else by their Arrow type."""
    try:
        features = parse_json(schema.metadata[b"huggingface"])["info"]["features"]
        features = {name: about for name, about in features.items() if isinstance(about, dict) and name in schema.names}
        declared = {name: str(about.get("_type")) for name, about in features.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        features, declared = {}, {}

    def of_type(kind: str, fits: Any) -> list[str]:
        named = [name for name, declared_kind in declared.items() if declared_kind == kind]
        return named or [f.name for f in schema if f.name != "domain" and fits(f.type)]

    def fits(column: str, kind: Any) -> bool:
        own = _only(schema, column, file)
        return bool(kind(own) or pa.types.is_null(own))  # a table without rows may have no types

    images = [name for name in of_type("Image", _holds_bytes) if fits(name, _holds_bytes)]
    labels = [name for name in of_type("ClassLabel", pa.types.is_integer) if name != "domain"]
    labels = [name for name in labels if fits(name, pa.types.is_integer)]
    preferred = [name for name in LABEL_NAMES if name in labels]
    if not images or not (preferred or len(labels) == 1):
        raise DataError(
            f"{file}: expected an image column (a struct with binary `bytes`) and one integer label column, "
            f"got the columns {', '.join(schema.names)}"
        )
    label = (preferred or labels)[0]

    def names(column: str) -> tuple[str, ...]:
        listed = features[column].get("names") or ()
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise DataError(f"{file}: the class names of column {column} are no list of names: {str(listed)[:100]}")
        return tuple(listed)

    domain = "domain" if declared.get("domain") == "ClassLabel" else None
    classes = names(label) if label in features else ()
    return Columns(images[0], label, domain, classes or None, names(domain) if domain else ())


def _holds_bytes(kind: Any) -> bool:
    """Whether a column holds encoded images. Text would be taken for paths, and a table may not name local files."""
    if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    inner = kind.field("bytes").type
    return bool(pa.types.is_binary(inner) or pa.types.is_large_binary(inner))


def _only(schema: Any, column: str, file: Path) -> Any:
    """The type of a column, of which there may be only one by that name."""
    if len(places := schema.get_all_field_indices(column)) > 1:
        raise DataError(f"{file}: there are {len(places)} columns '{column}'; keep one of them")
    return schema.field(column).type


def read_rows(files: Sequence[Path], like: Columns | None = None) -> ShardRows:
    """Labels and domains of every row of these shards, which must agree on columns and names."""
    places, labels, domains = [], [], []
    for number, file in enumerate(files):
        schema = _open(file).schema_arrow
        columns = find_columns(schema, file)
        like = like or columns
        if columns != like:
            raise DataError(f"{file}: its columns or class names differ from those of the other shards")
        labels.append(_integers(file, columns.label, like.classes))
        if columns.domain:
            domains.append(_integers(file, columns.domain, like.domains))
        places.append(np.stack([np.full(len(labels[-1]), number), np.arange(len(labels[-1]))], 1))
    assert like is not None
    joined = np.concatenate(domains) if domains else None
    return ShardRows(files, like, np.concatenate(places), np.concatenate(labels), joined)


def _integers(file: Path, column: str, names: Sequence[str] | None) -> NDArray[np.int64]:
    values = read_columns(file, column, lambda shard: shard.read([column]))
    if values.null_count:
        raise DataError(f"{file}: column {column} has {values.null_count} rows without a value")
    numbers: NDArray[np.int64] = values.to_numpy().astype(np.int64)
    most = len(names) if names is not None else CLASSES
    if len(wrong := np.flatnonzero((numbers < 0) | (numbers >= most))):
        what = "a named class" if names is not None else f"a class, 0 to {CLASSES - 1:,} (the limit)"
        raise DataError(f"{file} row {wrong[0]}: {column} {numbers[wrong[0]]} is not the number of {what}")
    return numbers


def _classes(train: ShardRows, test: ShardRows | None) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """All class names, and the labels that occur."""
    labels = train.labels if test is None else np.concatenate([train.labels, test.labels])
    if not len(train.labels):
        raise DataError(f"{train.files[0]}: no rows")
    names = train.columns.classes or tuple(f"class {i}" for i in range(int(labels.max()) + 1))
    return names, np.unique(labels)


def _open_stores(
    name: str, digests: Mapping[Path, str], columns: Columns, asked: int, options: SourceOptions
) -> Mapping[Path, Store] | None:
    """The decode cache's entry of each shard."""
    if options.cache == "off":
        return None
    parts = []
    for file, digest in digests.items():
        key, count = cache_key("shard", columns.image, digest), _open(file).metadata.num_rows
        read, sample = (partial(_encoded, file, columns.image, number) for number in (count, min(count, SAMPLE)))
        parts.append(CachePart(key, f"{name} ({file.name})", count, read, sample))
    stores = open_stores(parts, asked, options)
    return None if stores is None else dict(zip(digests, stores, strict=True))


def _encoded(file: Path, column: str, count: int) -> EncodedImages:
    """The first images of a shard."""
    return EncodedImages(_shard_bytes(file, column, np.arange(count)), RowNames(file, count))


@dataclass(frozen=True)
class RowNames(Sequence[str]):
    """What the images of a shard are called in messages."""

    file: Path
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: Any) -> Any:
        return f"{self.file} row {row}"


def _read_set(chosen: ShardRows, stores: Mapping[Path, Store] | None) -> tuple[ImageSet, dict[str, str]]:
    """The images of these rows, and those that cannot be decoded, with the reasons."""
    if stores is not None:
        shards = [stores[file] for file in chosen.files]
        rows = [RowNames(file, len(stores[file])) for file in chosen.files]
        stored = StoredImages.choose(shards, rows, chosen.places, IN_MEMORY)
        if stored is not None:
            return ImageSet(stored, chosen.labels, chosen.domains), {}
    names = [f"{chosen.files[shard]} row {row}" for shard, row in chosen.places]
    encoded: list[bytes] = []
    for shard in np.unique(chosen.places[:, 0]):
        inside = chosen.places[chosen.places[:, 0] == shard, 1]
        encoded += _shard_bytes(chosen.files[shard], chosen.columns.image, inside)
    images, keep, broken = settle(EncodedImages(encoded, names))
    chosen = chosen.take(keep)
    return ImageSet(images, chosen.labels, chosen.domains), broken


def _shard_bytes(file: Path, column: str, wanted: NDArray[np.int64]) -> list[bytes]:
    """The encoded images of ascending rows of a shard, touching only the row groups that hold them."""
    encoded: list[bytes] = []
    shard = _open(file)
    start = 0
    for group in range(shard.num_row_groups):
        count = shard.metadata.row_group(group).num_rows
        inside = wanted[(wanted >= start) & (wanted < start + count)] - start
        start += count
        if len(inside):
            images = read_columns(file, column, partial(_row_group, group, column))
            if pa.types.is_null(images.type):
                raise DataError(f"{file}: column {column} holds no images")
            items = pc.struct_field(images.take(pa.array(inside)), "bytes").to_pylist()
            encoded.extend(data or b"" for data in items)  # no bytes: found broken when it is decoded
    return encoded


def _open(file: Path) -> Any:
    if reason := why_unreadable(file):
        raise DataError(f"cannot read {file}: {reason}")
    try:
        shard = pq.ParquetFile(file)
        groups = [shard.metadata.row_group(number) for number in range(shard.num_row_groups)]
    except DAMAGE as error:
        raise DataError(f"cannot read {file}: {_first_line(error)}") from error
    rows, size = sum(group.num_rows for group in groups), max((group.total_byte_size for group in groups), default=0)
    if rows > TABLE_ROWS or shard.metadata.num_rows != rows:
        raise DataError(f"cannot read {file}: it states {rows:,} rows; the limit is {TABLE_ROWS:,}")
    if size > ROW_GROUP_BYTES:
        limit = f"the limit is {format_bytes(ROW_GROUP_BYTES)}; write it with smaller row groups"
        raise DataError(f"cannot read {file}: a row group of {format_bytes(size)}; {limit}")
    return shard


def read_columns(file: Path, column: str, read: Callable[[Any], Any]) -> Any:
    """What `read` takes of a shard's column; damaged pages are an error that names the file."""
    shard = _open(file)
    try:
        return read(shard)[column]
    except DAMAGE as error:
        raise DataError(f"cannot read {file}, column {column}: {_first_line(error)}") from error


def _row_group(group: int, column: str, shard: Any) -> Any:
    return shard.read_row_group(group, [column])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

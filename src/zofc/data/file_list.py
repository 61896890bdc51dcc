"""From a list of image files to a source: choose, decode every chosen file once, take the checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zofc.data.decode_cache import SAMPLE, CachePart, cache_key, is_small, open_stores
from zofc.data.decoding import IN_MEMORY, collect_warnings, report_broken, settle
from zofc.data.selection import check_trainable, select_split
from zofc.data.source import EncodedImages, ImageSet, Source, SourceOptions
from zofc.data.stored import StoredImages
from zofc.errors import DataError
from zofc.limits import LIST_BYTES
from zofc.paths import why_unreadable


@dataclass(frozen=True)
class FileList:
    """Image files, relative to a root, with their labels."""

    root: Path
    files: Sequence[str]
    labels: NDArray[np.int64]  # (n,)
    domains: NDArray[np.int64] | None = None  # (n,)

    def take(self, indices: NDArray[np.int64]) -> FileList:
        """The files at these indices."""
        domains = None if self.domains is None else self.domains[indices]
        return FileList(self.root, [self.files[i] for i in indices], self.labels[indices], domains)


def open_file_lists(
    name: str,
    classes: Sequence[str],
    train: FileList,
    test: FileList,
    options: SourceOptions,
    domain_names: Sequence[str] = (),
) -> Source:
    """The source made of two listings."""
    check_trainable(classes, train.labels, test.labels, name)
    chosen = {
        split: files.take(select_split(files.labels, split, options, files.domains))
        for split, files in (("train", train), ("test", test))
    }
    store = _open_store(name, train, test, sum(len(part.files) for part in chosen.values()), options)
    with collect_warnings(options.notice, name):
        (train_set, broken), (test_set, broken_tests) = (_read(part, store) for part in chosen.values())
    skipped = {**broken, **broken_tests}
    report_broken(name, skipped, sum(len(part.files) for part in chosen.values()), options)
    check_trainable(classes, train_set.labels, test_set.labels, name)  # broken ones may have been left out
    checksum = files_checksum(train, test)
    return Source(name, tuple(classes), train_set, test_set, checksum, tuple(domain_names), skipped)


Stored = Callable[[FileList], StoredImages | None]  # the cached images of some files; None if one of them is broken


def _open_store(name: str, train: FileList, test: FileList, asked: int, options: SourceOptions) -> Stored | None:
    """The decode cache's entry of a source, with the files of both splits. They are known by path, size and times,
    since reading them all takes as long as decoding many of them."""
    files = sorted({*train.files, *test.files})
    root = train.root
    spread = files[:: max(1, len(files) // SAMPLE)]
    if options.cache == "off" or (options.cache == "auto" and not is_small(_encoded(root, spread), len(files))):
        return None
    key = cache_key(f"files in {root.resolve()}", *(" ".join(map(str, (file, *_state(root / file)))) for file in files))
    part = CachePart(key, name, len(files), lambda: _encoded(root, files), lambda: _encoded(root, spread))
    stores = open_stores([part], asked, options)
    if stores is None:
        return None
    names, rows = [str(root / file) for file in files], {file: row for row, file in enumerate(files)}

    def images(chosen: FileList) -> StoredImages | None:
        places = np.array([(0, rows[file]) for file in chosen.files], np.int64).reshape(-1, 2)
        return StoredImages.choose(stores, [names], places, IN_MEMORY)

    return images


def _encoded(root: Path, files: Sequence[str]) -> EncodedImages:
    paths = [root / file for file in files]
    return EncodedImages(paths, [str(path) for path in paths])


def _read(chosen: FileList, store: Stored | None) -> tuple[ImageSet, dict[str, str]]:
    """The images of these files, and those that cannot be decoded, with the reasons."""
    if store is not None and (stored := store(chosen)) is not None:
        return ImageSet(stored, chosen.labels, chosen.domains), {}
    images, keep, broken = settle(_encoded(chosen.root, chosen.files))
    chosen = chosen.take(keep)
    return ImageSet(images, chosen.labels, chosen.domains), broken


def _state(file: Path) -> tuple[int, int, int]:
    """Size and times; a file that is listed and not there is found broken when it is decoded."""
    try:
        status = file.stat()
    except OSError:
        return -1, 0, 0
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def files_checksum(train: FileList, test: FileList) -> str:
    """SHA-256 over split, path and size of every file listed: quick, and it notices a different copy."""
    digest = hashlib.sha256()
    for split, listing in (("train", train), ("test", test)):
        for file in listing.files:
            size = _state(listing.root / file)[0]
            digest.update(f"{split}\t{file}\t{size}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def read_lines(file: Path) -> list[tuple[int, str]]:
    """The lines of a list file that say something, numbered from 1."""
    if reason := why_unreadable(file, LIST_BYTES):
        raise DataError(f"cannot read the list {file}: {reason}")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the list {file}: {error}") from error
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def expect_classes(name: str, count: int, published: int, notice: Callable[[str], None]) -> None:
    """A partial copy is allowed, but not silently."""
    if count != published:
        notice(f"{name}: found {count} classes, the published data set has {published}")

"""From a list of image files to a source: choose, decode every chosen file once, take the checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zofc.data.decoding import settle
from zofc.data.selection import check_trainable, select_split
from zofc.data.source import EncodedImages, ImageSet, Source, SourceOptions
from zofc.errors import DataError


@dataclass(frozen=True)
class Listing:
    """Image files, relative to a root, with their labels."""

    root: Path
    files: Sequence[str]
    labels: NDArray[np.int64]  # (n,)
    domains: NDArray[np.int64] | None = None  # (n,)

    def take(self, indices: NDArray[np.int64]) -> Listing:
        domains = None if self.domains is None else self.domains[indices]
        return Listing(self.root, [self.files[i] for i in indices], self.labels[indices], domains)


def open_listings(
    name: str,
    classes: Sequence[str],
    train: Listing,
    test: Listing,
    options: SourceOptions,
    domain_names: Sequence[str] = (),
) -> Source:
    """The source made of two listings."""
    check_trainable(classes, train.labels, test.labels, name)
    sets = {
        "train": _read(train, "train", options.per_class, options),
        "test": _read(test, "test", options.test_per_class, options),
    }
    check_trainable(classes, sets["train"].labels, sets["test"].labels, name)  # broken ones may have been left out
    return Source(name, tuple(classes), **sets, checksum=checksum(train, test), domain_names=tuple(domain_names))


def _read(listing: Listing, split: str, per_class: int | None, options: SourceOptions) -> ImageSet:
    domains = listing.domains if options.per_domain else None
    chosen = listing.take(select_split(listing.labels, split, per_class, options.seed, domains))
    paths = [chosen.root / file for file in chosen.files]
    images, keep = settle(EncodedImages(paths, [str(p) for p in paths]), options.skip_broken, options.notice)
    chosen = chosen.take(keep)
    return ImageSet(images, chosen.labels, chosen.domains)


def checksum(train: Listing, test: Listing) -> str:
    """SHA-256 over split, path and size of every file listed: quick, and it notices a different copy."""
    digest = hashlib.sha256()
    for split, listing in (("train", train), ("test", test)):
        for file in listing.files:
            digest.update(f"{split}\t{file}\t{_size(listing.root / file)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1  # listed, but not there: found broken when it is decoded


def read_lines(file: Path) -> list[tuple[int, str]]:
    """The lines of a list file that say something, numbered from 1."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the list {file}: {error}") from error
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def expect_classes(name: str, found: int, published: int, notice: Callable[[str], None]) -> None:
    """A partial copy is allowed, but not silently."""
    if found != published:
        notice(f"{name}: found {found} classes, the published data set has {published}")

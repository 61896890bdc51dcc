"""Images that are memory-mapped from an entry of the decode cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PIXELS, INDEX, ENTRY = "pixels.bin", "index.npz", "entry.json"  # the files of an entry


@dataclass(frozen=True, eq=False)
class Store:
    """The decoded images of an entry, one after the other; a broken image has none."""

    path: Path
    sizes: NDArray[np.int64]  # (n, 2): height and width, 0 of a broken image
    pixels: NDArray[np.uint8]  # (bytes,), memory-mapped
    handle: IO[bytes] | None = None  # keeps the entry from being evicted while it is open

    @classmethod
    def open(cls, path: Path, handle: IO[bytes] | None = None) -> Store:
        """Map the files of a store into memory."""
        with np.load(path / INDEX, allow_pickle=False) as index:
            sizes = index["sizes"]
        total = int((3 * sizes.prod(1)).sum())
        file = path / PIXELS
        if file.stat().st_size != total:
            raise ValueError(f"{file} has {file.stat().st_size} bytes, expected {total}")
        pixels = np.memmap(file, np.uint8, "r", shape=(total,)) if total else np.empty(0, np.uint8)
        return cls(path, sizes, pixels, handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store.open, (self.path,)  # another process maps the same file

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each image starts among the pixels."""
        return np.concatenate([[0], np.cumsum(3 * self.sizes.prod(1))])  # (n + 1,)

    @cached_property
    def array(self) -> NDArray[np.uint8] | None:
        """All images as (n, height, width, 3), where they share one size."""
        if not len(self) or not (self.sizes == self.sizes[0]).all():
            return None
        return self.pixels.reshape(len(self), *self.sizes[0], 3)

    def broken(self, rows: NDArray[np.int64]) -> bool:
        """Whether some of these images could not be decoded."""
        return not self.sizes[rows].all()

    def image(self, row: int) -> NDArray[np.uint8]:
        """(height, width, 3)"""
        return self.pixels[self.offsets[row] : self.offsets[row + 1]].reshape(*self.sizes[row], 3)

    def images(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Images of one size in memory, (rows, height, width, 3)."""
        return self.array[rows] if self.array is not None else np.stack([self.image(int(row)) for row in rows])


@dataclass(frozen=True)
class StoredImages:
    """Some images of several stores."""

    stores: Sequence[Store]
    names: Sequence[Sequence[str]]  # where the images of each store came from
    places: NDArray[np.int64]  # (n, 2): which store, which image of it
    shape: tuple[int, int] | None  # height and width, if of one size and few enough to be served from memory

    @classmethod
    def choose(
        cls, stores: Sequence[Store], names: Sequence[Sequence[str]], places: NDArray[np.int64], limit: int
    ) -> StoredImages | None:
        """The images at these places; None if one of them is broken."""
        if any(store.broken(places[places[:, 0] == number, 1]) for number, store in enumerate(stores)):
            return None
        images = cls(stores, names, places, None)
        sizes = images.sizes
        if not len(sizes) or (sizes != sizes[0]).any() or 3 * sizes.prod(1).sum() > limit:
            return images
        return replace(images, shape=(int(sizes[0, 0]), int(sizes[0, 1])))

    def __len__(self) -> int:
        return len(self.places)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of every image, (n, 2)."""
        sizes = np.empty((len(self), 2), np.int64)
        for number, store in enumerate(self.stores):
            here = self.places[:, 0] == number
            sizes[here] = store.sizes[self.places[here, 1]]
        return sizes

    def name(self, index: int) -> str:
        number, row = self.places[index]
        return self.names[int(number)][int(row)]

    def load(self, index: int) -> Image.Image:
        number, row = self.places[index]
        return Image.fromarray(self.stores[int(number)].image(int(row)))

    def take(self, indices: NDArray[np.int64]) -> StoredImages:
        return replace(self, places=self.places[indices])

    @property
    def array(self) -> NDArray[np.uint8] | None:
        if self.shape is None:
            return None
        array = np.empty((len(self), *self.shape, 3), np.uint8)
        for number, store in enumerate(self.stores):
            here = self.places[:, 0] == number
            if here.any():
                array[here] = store.images(self.places[here, 1])
        return array

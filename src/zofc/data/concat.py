"""Sets of images from several sources as one set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zofc.data.source import ArrayImages, EncodedImages, Images, ImageSet

EMPTY = ImageSet(EncodedImages([], []), np.empty(0, np.int64))


@dataclass(frozen=True)
class JoinedImages:
    """Images of several kinds or sizes, one part after the other."""

    parts: Sequence[Images]
    places: NDArray[np.int64]  # (n, 2): which part, which image of it
    array: None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.places)

    def _at(self, index: int) -> tuple[Images, int]:
        part, inside = self.places[index]
        return self.parts[int(part)], int(inside)

    def name(self, index: int) -> str:
        images, inside = self._at(index)
        return images.name(inside)

    def load(self, index: int) -> Image.Image:
        images, inside = self._at(index)
        return images.load(inside)

    def take(self, indices: NDArray[np.int64]) -> JoinedImages:
        return JoinedImages(self.parts, self.places[indices])


def join(sets: Sequence[ImageSet]) -> ImageSet:
    """Several sets as one: in memory if all are and their sizes agree; domains kept if all have them."""
    sets = [s for s in sets if len(s)]
    if len(sets) < 2:
        return sets[0] if sets else EMPTY
    domains = [s.domains for s in sets if s.domains is not None]
    arrays = [s.images.array for s in sets if s.images.array is not None]
    images: Images
    if len(arrays) == len(sets) and len({a.shape[1:] for a in arrays}) == 1:
        names = [s.images.name(i) for s in sets for i in range(len(s))]
        images = ArrayImages(np.concatenate(arrays), names=names)
    else:
        places = np.concatenate([np.stack([np.full(len(s), k), np.arange(len(s))], 1) for k, s in enumerate(sets)])
        images = JoinedImages([s.images for s in sets], places)
    labels = np.concatenate([s.labels for s in sets])
    return ImageSet(images, labels, np.concatenate(domains) if len(domains) == len(sets) else None)

"""Images that a program hands over, as an image set: Pillow images, arrays and paths."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zofc.data import EncodedImages
from zofc.data.rgb import as_rgb
from zofc.errors import DataError

AnyImage = Image.Image | NDArray[Any] | str | Path  # arrays of 8 or 16 bits, or of floats from 0 to 1
OneOrMore = AnyImage | Sequence[AnyImage]  # a lone path, picture or array of a picture is a list of one


@dataclass(frozen=True)
class GivenImages:
    """Images handed over from Python, in any of the forms that users have them in."""

    items: Sequence[AnyImage]
    array: None = None

    def __post_init__(self) -> None:
        """What Image.open has not read yet is read here: processes that load images would share the open file."""
        for item in self.items:
            if isinstance(item, Image.Image):
                with suppress(OSError):  # said when it is wanted
                    item.load()

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        """The path of an image, or its index."""
        item = self.items[index]
        return str(item) if isinstance(item, str | Path) else f"image {index}"

    def load(self, index: int) -> Image.Image:
        """Image `index` as RGB."""
        item = self.items[index]
        if isinstance(item, str | Path):
            return EncodedImages([Path(item)], [str(item)]).load(0)
        try:
            return as_rgb(item if isinstance(item, Image.Image) else np.asarray(item), self.name(index))
        except (TypeError, ValueError) as error:
            text = f"image {index} is neither a PIL image, an (h, w) or (h, w, 3) array nor a path: {error}"
            raise DataError(text) from error
        except OSError as error:
            raise DataError(f"image {index} cannot be read: {error}") from error

    def take(self, indices: NDArray[np.int64]) -> GivenImages:
        """The images at these indices."""
        return GivenImages([self.items[int(i)] for i in indices])


def list_images(images: OneOrMore) -> list[AnyImage]:
    """The images as a list, a lone one as a list of one."""
    alone = isinstance(images, str | Path | Image.Image) or getattr(images, "ndim", 0) in (2, 3)
    return [cast(AnyImage, images)] if alone else list(cast(Sequence[AnyImage], images))

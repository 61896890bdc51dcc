"""Images that a program hands over, as an image set: Pillow images, arrays, tensors, encoded bytes, files and paths."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from zofc.data import EncodedImages
from zofc.data.rgb import as_rgb
from zofc.errors import DataError

# Arrays (h, w) or (h, w, 3) and tensors (3, h, w) hold 8 or 16 bits, or floats from 0 to 1; bytes and files hold an
# encoded image.
AnyImage = Image.Image | NDArray[Any] | Tensor | bytes | bytearray | memoryview | IO[bytes] | str | Path
OneOrMore = AnyImage | Sequence[AnyImage]  # a lone image in any of these forms is a list of one
ENCODED = (bytes, bytearray, memoryview)


@dataclass(frozen=True)
class GivenImages:
    """Images handed over from Python, in any of the forms that users have them in."""

    items: Sequence[AnyImage]
    array: None = None
    locks: ClassVar[tuple[Lock, ...]] = tuple(Lock() for _ in range(64))  # an image has one by its identity

    def __post_init__(self) -> None:
        """Read what Image.open has not read yet: processes that load images would share the open file, and so would
        threads that are given the same image."""
        for item in self.items:
            if isinstance(item, Image.Image):
                with self.locks[id(item) // 64 % 64], suppress(Exception):  # reported when the image is loaded
                    item.load()

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        """The path of an image, or its index."""
        item = self.items[index]
        return str(item) if isinstance(item, str | Path) else f"image {index}"

    def load(self, index: int) -> Image.Image:
        """Image `index` as RGB."""
        item, name = self.items[index], self.name(index)
        if isinstance(item, str | Path):
            return EncodedImages([Path(item)], [name]).load(0)
        if isinstance(item, ENCODED):
            return EncodedImages([bytes(item)], [str(index)]).load(0)
        try:
            return as_rgb(item if isinstance(item, Image.Image) else _pixels(item), str(index))
        except DataError:
            raise
        except (TypeError, ValueError) as error:
            forms = "a PIL image, an (h, w) or (h, w, 3) array, a (3, h, w) tensor, encoded bytes, a file nor a path"
            raise DataError(f"{name} is neither {forms}: {error}") from error
        except Exception as error:  # on damaged images Pillow raises exceptions of every kind
            raise DataError(f"{name} cannot be read: {error}") from error

    def take(self, indices: NDArray[np.int64]) -> GivenImages:
        """The images at these indices."""
        return GivenImages([self.items[int(i)] for i in indices])


def list_images(images: OneOrMore) -> list[AnyImage]:
    """The images as a list, a lone one as a list of one; open files are read, from their beginning."""
    lone = isinstance(images, (str, Path, Image.Image, *ENCODED)) or hasattr(images, "read")
    lone = lone or getattr(images, "ndim", 0) in (2, 3)
    listed = [cast(AnyImage, images)] if lone else list(cast(Sequence[AnyImage], images))
    return [_contents(item) if hasattr(item, "read") else item for item in listed]


def _contents(file: Any) -> bytes:
    """All bytes of an open file; a stream that cannot be rewound is read from where it stands."""
    try:
        with suppress(AttributeError, io.UnsupportedOperation):
            file.seek(0)
        data = file.read()
    except (OSError, ValueError) as error:  # of a closed file, too
        raise DataError(f"{getattr(file, 'name', file)} cannot be read: {error}") from error
    if not isinstance(data, bytes):
        raise DataError(f"{getattr(file, 'name', file)} was opened as text; open images with mode 'rb'")
    return data


def _pixels(item: object) -> NDArray[Any]:
    """An array (h, w) or (h, w, channels); tensors have their channels first."""
    if not isinstance(item, Tensor):
        return np.asarray(item)
    values = item.detach().cpu()
    values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    return values.movedim(0, -1).squeeze(-1).numpy() if values.ndim == 3 else values.numpy()

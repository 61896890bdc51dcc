"""Images in any form that users have them in, upright and in 8-bit RGB; folders with a sub-folder for each class."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from zofc_device.bundle import DeviceError

AnyImage = Image.Image | NDArray[Any] | bytes | IO[bytes] | str | Path  # arrays are (h, w) or (h, w, 3)
OneOrMore = AnyImage | Sequence[AnyImage]
MOST_PIXELS, MOST_ASPECT = 150_000_000, 100
UNWANTED = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}  # formats that run programs, or are of other data
TEST_FOLDERS = ("test", "val", "validation")


class ImageError(DeviceError):
    """Images or labels that cannot be used."""


@cache
def image_formats() -> dict[str, str]:
    """What Pillow can decode, by suffix."""
    Image.init()
    known = Image.registered_extensions()
    return {suffix: kind for suffix, kind in known.items() if kind in Image.OPEN and kind not in UNWANTED}


def list_images(images: OneOrMore) -> list[AnyImage]:
    """The images as a list, a lone one as a list of one; open files are read."""
    lone = isinstance(images, str | Path | Image.Image | bytes) or hasattr(images, "read")
    lone = lone or getattr(images, "ndim", 0) in (2, 3)
    listed = [cast(AnyImage, images)] if lone else list(cast(Sequence[AnyImage], images))
    return [cast(IO[bytes], item).read() if hasattr(item, "read") else item for item in listed]


class Images:
    """Images that are decoded one at a time."""

    def __init__(self, items: Iterable[AnyImage]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def load(self, index: int) -> Image.Image:
        """Image `index` as RGB, upright; an error that names it if it cannot be read."""
        item = self.items[index]
        try:
            if isinstance(item, str | Path | bytes):
                if not isinstance(item, bytes) and not Path(item).is_file():
                    raise FileNotFoundError(2, "there is no such file")
                file = io.BytesIO(item) if isinstance(item, bytes) else item
                with Image.open(file, formats=sorted(set(image_formats().values()))) as image:
                    return _as_rgb(image)
            return _as_rgb(item if isinstance(item, Image.Image) else Image.fromarray(_to_8_bits(np.asarray(item))))
        except Exception as error:  # on damaged files Pillow's plug-ins raise exceptions of every kind
            unknown = isinstance(error, UnidentifiedImageError)
            reason = "not an image of a known format" if unknown else getattr(error, "strerror", None) or error
            name = item if isinstance(item, str | Path) else f"number {index}"
            raise ImageError(f"cannot read image {name}: {reason}. Replace or remove it.") from error

    def inspect(self) -> tuple[NDArray[np.int64], list[str]]:
        """Height and width (n, 2) and a digest of the pixels of every image, each of which is decoded once."""
        sizes, digests = np.zeros((len(self), 2), np.int64), []
        for index in range(len(self)):
            image = self.load(index)
            sizes[index] = image.height, image.width
            digests.append(hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest())
        return sizes, digests


def _as_rgb(image: Image.Image) -> Image.Image:
    low, high = sorted(image.size)
    if low * high > MOST_PIXELS or high > MOST_ASPECT * low:
        raise ValueError(f"{image.width} × {image.height} pixels; the limits are {MOST_PIXELS:,} pixels and 100 : 1")
    image.load()
    with suppress(Exception):  # damaged metadata is no reason to refuse the picture
        image = ImageOps.exif_transpose(image)
    if image.mode[0] not in "IF":
        return image.convert("RGB")
    values = np.asarray(image)  # more than 8 bits, which Pillow would cut off; its integers are 8 or 16 bits wide
    if image.mode == "I" and values.size and values.min() >= 0 and values.max() <= 65535:
        values = values.astype(np.uint8 if values.max() <= 255 else np.uint16)
    return Image.fromarray(_to_8_bits(values)).convert("RGB")


def _to_8_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.uint16:
        return np.rint(values.astype(np.float64) / 257).astype(np.uint8)
    if values.dtype.kind == "f" and values.size and values.min() >= 0 and values.max() <= 1:
        return np.rint(values.astype(np.float64) * 255).astype(np.uint8)
    raise ValueError(f"values of type {values.dtype} have no known scale; give 8 or 16 unsigned bits, or floats in 0…1")


def image_files(folder: Path) -> list[Path]:
    """The image files at any depth below a folder, in the order of their paths; hidden ones are passed over."""
    files = (path for path in folder.rglob("[!.]*") if path.suffix.lower() in image_formats() and path.is_file())
    return sorted(files, key=Path.as_posix)


def read_folder(folder: str | Path, test: bool = False) -> dict[str, list[AnyImage]]:
    """The image files of each class: FOLDER/class/image.jpg at any depth, or FOLDER/train and FOLDER/test of such."""
    root = Path(folder)
    split = next((name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if split is not None and (root / "train").is_dir():
        root = root / (split if test else "train")
    inside = sorted(path for path in root.glob("[!.]*") if path.is_dir())
    classes: dict[str, list[AnyImage]] = {path.name: [*image_files(path)] for path in inside}
    if not classes or not all(classes.values()):
        empty = next((root / name for name, files in classes.items() if not files), root)
        raise ImageError(f"{empty}: no images; expected {root}/CLASS/image.jpg, one sub-folder for each class")
    return classes


def open_images(
    given: str | Mapping[str, OneOrMore], test: bool = False
) -> tuple[list[str], Images, NDArray[np.int64]]:
    """Class names, images and labels of `folder:PATH` or of images by class name."""
    if isinstance(given, str) and not given.startswith("folder:"):
        raise ImageError(f"{given}: expected folder:PATH, or images by class name")
    if isinstance(given, str):
        lists = read_folder(given.removeprefix("folder:"), test)
    else:
        lists = {name: list_images(images) for name, images in given.items()}
    if not lists or not all(lists.values()):
        raise ImageError(f"no images for {next((name for name, items in lists.items() if not items), 'any class')}")
    labels = np.repeat(np.arange(len(lists)), [len(items) for items in lists.values()])
    return list(lists), Images(item for items in lists.values() for item in items), labels

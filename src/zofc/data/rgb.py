"""Whatever a picture is kept as, upright and in 8-bit RGB."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from zofc.errors import UnreadableImage
from zofc.limits import IMAGE_ASPECT, IMAGE_PIXELS

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation


def as_rgb(image: Image.Image | NDArray[Any], name: str) -> Image.Image:
    """A picture, or its pixels (height, width[, channels]), as 8-bit RGB; values of no known scale are refused."""
    if not isinstance(image, Image.Image):
        if image.ndim > 1:  # else fromarray says what is wrong with it
            check_extent(image.shape[0], image.shape[1], name)
        return Image.fromarray(_to_8_bits(image, name)).convert("RGB")
    check_extent(image.height, image.width, name)
    turn = TURNS.get(orientation(image))  # asked first, as for the size: what comes after the pixels is not seen
    # the pixels of some formats are larger than their header says
    rgb = (Image.fromarray(_to_8_bits(_values(image), name)) if is_deep(image) else image).convert("RGB")
    check_extent(rgb.height, rgb.width, name)
    return rgb if turn is None else rgb.transpose(turn)


def check_extent(height: int, width: int, name: str) -> None:
    """Refuse a picture that takes too much memory: by itself, or once its short side has the size that models want."""
    low, high = sorted((height, width))
    extent = f"it is {width:,} × {height:,} pixels"
    if low * high > IMAGE_PIXELS:
        raise UnreadableImage(name, f"{extent}, more than the limit of {IMAGE_PIXELS:,}", "Scale it down.")
    if high > IMAGE_ASPECT * low:
        limit = f"one side is more than {IMAGE_ASPECT} times as long as the other, which is the limit"
        raise UnreadableImage(name, f"{extent}: {limit}", "Crop it.")


def is_deep(image: Image.Image) -> bool:
    """Whether its values are more than 8 bits, which Pillow would cut off rather than scale."""
    return image.mode[0] in "IF"


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width once it is upright, from the header."""
    return (image.width, image.height) if orientation(image) >= 5 else (image.height, image.width)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation that the header names, 1 to 8; Pillow turns TIFF by itself."""
    if image.format == "TIFF":
        return 1
    try:
        turn = Image.Image.getexif(image).get(ExifTags.Base.Orientation)  # PNG's own would decode the image
    except Exception:  # damaged metadata is no reason to refuse the picture
        return 1
    return turn if turn in TURNS else 1


def _values(image: Image.Image) -> NDArray[Any]:
    """Pillow's 32-bit integers are 8 or 16 bits wide in truth."""
    values = np.asarray(image)
    if image.mode == "I" and values.size and values.min() >= 0 and values.max() <= 65535:
        return values.astype(np.uint8 if values.max() <= 255 else np.uint16)
    return values


def _to_8_bits(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    kind, size = values.dtype.kind, values.dtype.itemsize
    if (kind, size) == ("u", 1):
        return values
    if (kind, size) == ("u", 2):
        return _scaled(values, 1 / 257)
    span = f" from {values.min():g} to {values.max():g}" if values.size and kind in "iuf" else ""
    if kind == "f" and values.size and values.min() >= 0 and values.max() <= 1:
        return _scaled(values, 255)
    remedy = "give it 8 or 16 unsigned bits, or floats from 0 to 1"
    raise UnreadableImage(name, f"values of type {values.dtype}{span} have no known scale; {remedy}", "")


def _scaled(values: NDArray[Any], factor: float) -> NDArray[np.uint8]:
    """Values times a factor, rounded; some rows at a time, since float64 takes eight times as much."""
    scaled = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), 256):
        rows = slice(start, start + 256)
        scaled[rows] = np.rint(values[rows].astype(np.float64) * factor)
    return scaled

"""Images in any form that users have them in, upright and in 8-bit RGB; folders with a sub-folder for each class."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError, features

from zofc_device.bundle import DeviceError

AnyImage = Image.Image | NDArray[Any] | bytes | IO[bytes] | str | Path  # arrays are (h, w) or (h, w, 3)
OneOrMore = AnyImage | Sequence[AnyImage]
Inspected = tuple[NDArray[np.int64], list[str]]
Say = Callable[[str], None]
Reserve = Callable[[int, str], None]  # refuses what needs so many more bytes than there are
MOST_PIXELS, MOST_ASPECT = 150_000_000, 100
STREAMED, STREAMED_BYTES, OTHER_BYTES = ("JPEG", "MPO", "PNG", "BMP", "GIF", None), 9, 20  # per pixel, with a copy
SMALL = 2**20  # bytes up to which nothing is reserved
ROWS = 256  # of an image at a time
T = Image.Transpose
TURNS: dict[Any, Image.Transpose] = {
    2: T.FLIP_LEFT_RIGHT, 3: T.ROTATE_180, 4: T.FLIP_TOP_BOTTOM, 5: T.TRANSPOSE, 6: T.ROTATE_270, 7: T.TRANSVERSE,
    8: T.ROTATE_90,
}  # fmt: skip # by EXIF orientation
UNWANTED = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}  # formats that run programs, or are of other data
REMEDIES = {  # formats that not every installation decodes, by suffix
    **dict.fromkeys((".heic", ".heif", ".hif"), "pip install pillow-heif"), ".avif": "pip install --upgrade pillow",
}  # fmt: skip
TEST_FOLDERS = ("test", "val", "validation")


class ImageError(DeviceError):
    """Images or labels that cannot be used."""


@cache
def image_formats() -> dict[str, str]:
    """What Pillow can decode, by suffix; HEIC where pillow-heif is installed."""
    Image.init()
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
    readable = Image.OPEN.keys() - UNWANTED - (set() if features.check("avif") else {"AVIF"})
    return {suffix: kind for suffix, kind in Image.registered_extensions().items() if kind in readable}


def list_images(images: OneOrMore) -> list[AnyImage]:
    """The images as a list, a lone one as a list of one; open files are read."""
    lone = isinstance(images, str | Path | Image.Image | bytes) or hasattr(images, "read")
    lone = lone or getattr(images, "ndim", 0) in (2, 3)
    listed = [cast(AnyImage, images)] if lone else list(cast(Sequence[AnyImage], images))
    return [cast(IO[bytes], item).read() if hasattr(item, "read") else item for item in listed]


class Images:
    """Images that are decoded one at a time, each with what it needs reserved before."""

    def __init__(self, items: Iterable[AnyImage], reserve: Reserve = lambda *_: None) -> None:
        self.items, self.reserve = list(items), reserve

    def __len__(self) -> int:
        return len(self.items)

    def load(self, index: int) -> Image.Image:
        """Image `index` as RGB, upright; an error that names it if it cannot be read."""
        item = self.items[index]
        name = str(item) if isinstance(item, str | Path) else f"number {index}"
        try:
            if isinstance(item, str | Path | bytes):
                if not isinstance(item, bytes) and not Path(item).is_file():
                    raise FileNotFoundError(2, "there is no such file")
                file = io.BytesIO(item) if isinstance(item, bytes) else item
                with Image.open(file, formats=sorted(set(image_formats().values()))) as image:
                    return self._as_rgb(image, name)
            known = item if isinstance(item, Image.Image) else Image.fromarray(_to_8_bits(np.asarray(item)))
            return self._as_rgb(known, name)
        except DeviceError:
            raise
        except Exception as error:  # on damaged files Pillow's plug-ins raise exceptions of every kind
            reason, remedy = getattr(error, "strerror", None) or error, "Replace or remove it."
            if isinstance(error, UnidentifiedImageError):
                install = REMEDIES.get(Path(name).suffix.lower())
                reason, remedy = "not an image of a known format", f"To read it: {install}" if install else remedy
            raise ImageError(f"cannot read image {name}: {reason}. {remedy}") from error

    def _as_rgb(self, image: Image.Image, name: str) -> Image.Image:
        low, high = sorted(image.size)
        if low * high > MOST_PIXELS or high > MOST_ASPECT * low:
            limits = f"the limits are {MOST_PIXELS:,} pixels and 100 : 1"
            raise ValueError(f"{image.width} × {image.height} pixels; {limits}")
        streamed = image.format in STREAMED and image.mode in ("RGB", "L", "P") and "progressive" not in image.info
        size = image.width * image.height * (STREAMED_BYTES if streamed else OTHER_BYTES)
        if size > SMALL:
            self.reserve(size, f"image {name} of {image.width} × {image.height} pixels")
        return _upright_rgb(image)

    def inspect(self, seen: dict[str, Any] | None = None, save: Callable[[], None] = lambda: None) -> Inspected:
        """Height and width (n, 2) and a digest of the pixels of every image, each of which is decoded once. Files that
        were `seen` before, by path, time and size, are not decoded again; `save` is called after others."""
        known, found = {} if seen is None else seen, []
        for index, item in enumerate(self.items):
            key = _file_key(item)
            entry = known.get(key)
            if entry is None:
                entry = _inspect(self.load(index))
                if key:
                    known[key] = entry
                    save()
            found.append(entry)
        return np.array([entry[:2] for entry in found], np.int64).reshape(-1, 2), [entry[2] for entry in found]


def _file_key(item: AnyImage) -> str:
    """What tells a file from others, and from itself after a change; nothing for images that are no files."""
    if not isinstance(item, str | Path) or not Path(item).is_file():
        return ""
    about = Path(item).stat()
    return f"{about.st_mtime_ns} {about.st_size} {Path(item).absolute()}"


def _inspect(image: Image.Image) -> list[Any]:
    """Height, width, and a digest of the size and all pixels, some rows at a time."""
    code = hashlib.sha256(f"{image.size}".encode())
    for top in range(0, image.height, ROWS):
        code.update(image.crop((0, top, image.width, min(top + ROWS, image.height))).tobytes())
    return [image.height, image.width, code.hexdigest()]


def _upright_rgb(image: Image.Image) -> Image.Image:
    turn = None
    with suppress(Exception):  # damaged metadata is no reason to refuse the picture
        if image.format != "TIFF":  # which Pillow turns by itself
            turn = TURNS.get(Image.Image.getexif(image).get(ExifTags.Base.Orientation))  # of the header, as zofc does
    image.load()
    rgb = image if image.mode == "RGB" else _to_rgb(image)
    return rgb if turn is None else rgb.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode[0] not in "IF":
        return image.convert("RGB")
    values = np.asarray(image)  # more than 8 bits, which Pillow would cut off; its integers are 8 or 16 bits wide
    if image.mode == "I" and values.size and values.min() >= 0 and values.max() <= 65535:
        values = values.astype(np.uint8 if values.max() <= 255 else np.uint16)
    return Image.fromarray(_to_8_bits(values)).convert("RGB")


def _to_8_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return values
    unit = values.dtype.kind == "f" and values.size and values.min() >= 0 and values.max() <= 1
    if not unit and values.dtype != np.uint16:
        known = "give 8 or 16 unsigned bits, or floats in 0…1"
        raise ValueError(f"values of type {values.dtype} have no known scale; {known}")
    parts = np.array_split(values, max(len(values) // ROWS, 1))  # float64 takes eight times as much
    return np.concatenate([np.rint(part * np.float64(255 if unit else 1 / 257)).astype(np.uint8) for part in parts])


def image_files(folder: Path) -> list[Path]:
    """The image files at any depth below a folder, in the order of their paths; hidden ones are passed over."""
    files = (path for path in folder.rglob("[!.]*") if path.suffix.lower() in image_formats() and path.is_file())
    return sorted(files, key=Path.as_posix)


def undecodable(folder: Path) -> str:
    """What is said of the images below a folder in formats that cannot be decoded here; nothing if there are none."""
    suffixes = Counter(path.suffix.lower() for path in folder.rglob("[!.]*"))
    found = [
        (count, suffix) for suffix, count in suffixes.items() if suffix in REMEDIES.keys() - image_formats().keys()
    ]
    return "; ".join(f"ignored {count} {suffix} image(s); to read them: {REMEDIES[suffix]}" for count, suffix in found)


def read_folder(folder: str | Path, test: bool = False, say: Say = lambda _: None) -> dict[str, list[AnyImage]]:
    """The image files of each class: FOLDER/class/image.jpg at any depth, or FOLDER/train and FOLDER/test of such."""
    root = Path(folder)
    split = next((name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if split is not None and (root / "train").is_dir():
        root = root / (split if test else "train")
    inside = sorted(path for path in root.glob("[!.]*") if path.is_dir())
    classes: dict[str, list[AnyImage]] = {path.name: [*image_files(path)] for path in inside}
    ignored = undecodable(root)
    if not classes or not all(classes.values()):
        empty = next((root / name for name, files in classes.items() if not files), root)
        expected = f"expected {root}/CLASS/image.jpg, one sub-folder for each class"
        raise ImageError("; ".join([f"{empty}: no images", expected, *([ignored] if ignored else [])]))
    if ignored:
        say(f"{root}: {ignored}")
    return classes


def open_images(
    given: str | Mapping[str, OneOrMore], reserve: Reserve, say: Say, test: bool = False
) -> tuple[list[str], Images, NDArray[np.int64]]:
    """Class names, images and labels of `folder:PATH` or of images by class name."""
    if isinstance(given, str) and not given.startswith("folder:"):
        raise ImageError(f"{given}: expected folder:PATH, or images by class name")
    if isinstance(given, str):
        lists = read_folder(given.removeprefix("folder:"), test, say)
    else:
        lists = {name: list_images(images) for name, images in given.items()}
    if not lists or not all(lists.values()):
        raise ImageError(f"no images for {next((name for name, items in lists.items() if not items), 'any class')}")
    labels = np.repeat(np.arange(len(lists)), [len(items) for items in lists.values()])
    return list(lists), Images((item for items in lists.values() for item in items), reserve), labels

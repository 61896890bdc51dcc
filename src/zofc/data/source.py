"""What a source of images is: class names, a training and a test set, and a checksum of what was read.

A new source is one file with one function under `@source("name")`; it is reached as `data.source: name` or
`data.source: name:ARGUMENT`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from zofc.data.formats import image_formats, missing_format
from zofc.data.rgb import as_rgb, check_extent, upright_size
from zofc.errors import DataError, UnreadableImage
from zofc.limits import IMAGE_PIXELS
from zofc.paths import expand, explain_os_error, path_kind, why_unreadable
from zofc.plugins import Registry

CacheMode = Literal["auto", "on", "off"]


class Images(Protocol):
    """Images in whatever form they are kept; `load` gives one as RGB."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Where image `index` comes from, for error messages."""
        ...

    def load(self, index: int) -> Image.Image:
        """Image `index`."""

    def take(self, indices: NDArray[np.int64]) -> Images:
        """The images at these indices, in this order."""

    @property
    def array(self) -> NDArray[np.uint8] | None:
        """All images as (n, height, width, 3) where they share one size and are in memory, else None."""
        ...


@dataclass(frozen=True)
class ArrayImages:
    """Images of one size, decoded, in memory."""

    array: NDArray[np.uint8]  # (n, height, width, 3)
    origin: str = "memory"
    names: Sequence[str] | None = None  # where each came from, if from files

    def __len__(self) -> int:
        return len(self.array)

    def name(self, index: int) -> str:
        """The file of an image, or its index."""
        return f"{self.origin}[{index}]" if self.names is None else self.names[index]

    def load(self, index: int) -> Image.Image:
        """Image `index`."""
        return Image.fromarray(self.array[index])

    def take(self, indices: NDArray[np.int64]) -> ArrayImages:
        """The images at these indices."""
        names = None if self.names is None else [self.names[i] for i in indices]
        return ArrayImages(self.array[indices], self.origin, names)


@contextmanager
def open_encoded(data: bytes | Path, name: str) -> Iterator[Image.Image]:
    """An encoded image, header read; what goes wrong then or inside is an error that names it."""
    if isinstance(data, Path) and (reason := why_unreadable(data)):
        raise UnreadableImage(name, reason, "")
    try:
        file = io.BytesIO(data) if isinstance(data, bytes) else data
        with Image.open(file, formats=image_formats()) as image:
            check_extent(image.height, image.width, name)
            yield image
    except UnreadableImage:
        raise
    except Exception as error:  # on damaged files Pillow's plugins raise exceptions of every kind
        raise _unreadable(error, data, name) from error


def _unreadable(error: Exception, data: bytes | Path, name: str) -> UnreadableImage:
    match error:
        case Image.DecompressionBombError():
            return UnreadableImage(name, f"it has more pixels than the limit of {IMAGE_PIXELS:,}", "Scale it down.")
        case UnidentifiedImageError():
            if (missing := missing_format(data[:12] if isinstance(data, bytes) else _head(data))) is not None:
                return UnreadableImage(name, f"{missing[0]} is not supported here; to read it: {missing[1]}", "")
            return UnreadableImage(name, "not an image of a known format")
        case MemoryError():
            return UnreadableImage(name, "there is not enough memory to decode it", "Scale it down.")
        case OSError():
            return UnreadableImage(name, explain_os_error(error))
    return UnreadableImage(name, str(error) or f"it is damaged ({type(error).__name__})")


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as content:
            return content.read(12)
    except OSError:
        return b""


def decode(data: bytes | Path, name: str) -> Image.Image:
    """An encoded image as RGB, upright; a broken one is an error that names it."""
    with open_encoded(data, name) as image:
        return as_rgb(image, name)


@dataclass(frozen=True)
class EncodedImages:
    """Images as files or as encoded bytes, decoded when asked for."""

    items: Sequence[bytes | Path]
    names: Sequence[str]
    array: None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        """The file of an image."""
        return self.names[index]

    def load(self, index: int) -> Image.Image:
        """Image `index`, decoded."""
        return decode(self.items[index], self.names[index])

    def size(self, index: int) -> tuple[int, int]:
        """Height and width, from the header."""
        with open_encoded(self.items[index], self.names[index]) as image:
            return upright_size(image)

    def take(self, indices: NDArray[np.int64]) -> EncodedImages:
        """The images at these indices."""
        return EncodedImages([self.items[i] for i in indices], [self.names[i] for i in indices])


@dataclass(frozen=True)
class ImageSet:
    """Images with their labels (and the domain of each, where the source has domains)."""

    images: Images
    labels: NDArray[np.int64]  # (n,)
    domains: NDArray[np.int64] | None = None  # (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> ImageSet:
        """The images and labels at these indices."""
        domains = None if self.domains is None else self.domains[indices]
        return ImageSet(self.images.take(indices), self.labels[indices], domains)

    def relabel(self, labels: NDArray[np.int64]) -> ImageSet:
        """The same images with other labels."""
        return replace(self, labels=labels)


@dataclass(frozen=True)
class Source:
    """A data set: `labels` index `classes`, `domains` index `domain_names`."""

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    checksum: str
    domain_names: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)  # images that were left out, with the reasons

    def paired(self) -> Source:
        """Each pair of domain and class that has images as a class of its own, such as `sketch/dog`."""
        count = len(self.classes)

        def numbered(images: ImageSet) -> NDArray[np.int64]:
            assert images.domains is not None
            return images.domains * count + images.labels

        train, test = numbered(self.train), numbered(self.test)
        pairs = np.unique(np.concatenate([train, test]))
        names = tuple(pair_name(self.domain_names[pair // count], self.classes[pair % count]) for pair in pairs)
        train, test = np.searchsorted(pairs, train), np.searchsorted(pairs, test)
        return replace(self, classes=names, train=self.train.relabel(train), test=self.test.relabel(test))


def pair_name(domain: str, name: str) -> str:
    """What a class is called where each domain has its own."""
    return f"{domain}/{name}"


@dataclass(frozen=True)
class SourceOptions:
    """What a recipe may ask of any source."""

    root: Path | None = None  # where the data set lies; else $ZOFC_DATA/<name>
    seed: int = 1993  # for splits and generated images
    per_class: int | None = None  # training images per class, all if None
    test_per_class: int | None = None
    per_domain: bool = False  # those counts are for each class in each domain, not over all domains
    test_fraction: float = 0.2  # for sources without a test set of their own; 0 holds nothing out
    skip_broken: bool = False  # leave out images that cannot be decoded, with a notice
    cache: CacheMode = "auto"  # keep decoded images for later runs: small sources, all, or none
    notice: Callable[[str], None] = print  # receives messages, such as what was left out


Opener = Callable[[str, SourceOptions], Source]
SOURCES: Registry[Opener] = Registry("source", "data.source", "zofc.sources")


def source(name: str) -> Callable[[Opener], Opener]:
    """Register an opener: it receives the argument after the colon ('' if none) and the options."""
    return SOURCES.add(name)


def open_source(spec: str, options: SourceOptions) -> Source:
    """The source named by `name` or `name:argument`."""
    name, _, argument = spec.partition(":")
    if not SOURCES.knows(name):
        raise DataError(f"data.source: {unknown_source(spec)}")
    memory = _remembered.get()
    if memory is None:
        return SOURCES[name](argument, options)
    key = (spec, replace(options, notice=print))
    if key not in memory:
        while len(memory) >= REMEMBERED:
            memory.pop(next(iter(memory)))
        notices: list[str] = []
        memory[key] = SOURCES[name](argument, replace(options, notice=notices.append)), notices
    memory[key] = memory.pop(key)  # the last used is the last to go
    data, notices = memory[key]
    for text in notices:
        options.notice(text)
    return data


def unknown_source(spec: str) -> str:
    """What to say of a source that has no known name: perhaps it is a path."""
    name = spec.partition(":")[0]
    kind = kind_of(expand(spec)) if spec else None
    return f"unknown source '{name}'; did you mean {kind}:{spec}?" if kind else SOURCES.suggest(name)


def kind_of(path: Path) -> str | None:
    """The name of the source that reads a path, if it looks like one."""
    try:
        kind = path_kind(path)
        if kind == "folder":
            return "parquet" if any(path.glob("*.parquet")) else "folder"
    except OSError:  # a name that no file can have, or a folder that may not be entered
        return None
    return "parquet" if kind == "file" and path.suffix == ".parquet" else None


REMEMBERED = 2
SourceMemory = dict[tuple[str, SourceOptions], tuple[Source, list[str]]]
_remembered: ContextVar[SourceMemory | None] = ContextVar("remembered", default=None)


@contextmanager
def remembered_sources() -> Iterator[None]:
    """Keep the last two sources opened in the block, for runs on the same images; changes of their files go unseen."""
    before = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(before)


def refuse_argument(name: str, argument: str) -> None:
    """For sources that are one data set and nothing else."""
    if argument:
        raise DataError(f"data.source: {name} takes nothing after the colon, got '{argument}'")


def describe_sources() -> dict[str, str]:
    """Every source's name with the first line of its file."""
    SOURCES.load_all()
    files = {name: sys.modules[opener.__module__] for name, opener in sorted(SOURCES.items())}
    return {name: (file.__doc__ or "").partition("\n")[0] for name, file in files.items()}

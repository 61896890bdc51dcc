"""Decoding many images at once: to find the broken ones before any work, to read sizes, to keep small sets.

Pillow lets go of the interpreter while it decodes, so threads are enough.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from zofc.data.concat import JoinedImages
from zofc.data.rgb import as_rgb, check_extent, is_deep
from zofc.data.source import ArrayImages, EncodedImages, Images, SourceOptions, open_encoded
from zofc.data.stored import StoredImages
from zofc.errors import BrokenImages, UnreadableImage
from zofc.units import format_names

IN_MEMORY = 2 * 2**30  # bytes of decoded images that a set may keep
MOST_NAMED = 20  # images that an error lists
T = TypeVar("T")


def in_threads(work: Callable[[int], T], n: int, chunk: int = 64) -> Iterator[T]:
    """`work(0), …, work(n − 1)` in order, computed by several threads."""
    pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
    try:
        spans = [range(start, min(start + chunk, n)) for start in range(0, n, chunk)]
        for results in pool.map(lambda span: [work(i) for i in span], spans):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


def image_sizes(images: Images) -> NDArray[np.int64]:
    """Height and width of every image, (n, 2), from headers alone where there are any."""
    if isinstance(images, StoredImages):
        return images.sizes
    if isinstance(images, EncodedImages):
        return np.array(list(in_threads(images.size, len(images))), np.int64).reshape(-1, 2)
    if isinstance(images, JoinedImages):
        sizes = [image_sizes(part) for part in images.parts]
        return np.array([sizes[part][inside] for part, inside in images.places], np.int64).reshape(-1, 2)
    if (array := images.array) is not None:
        return np.tile(np.array(array.shape[1:3], np.int64), (len(images), 1))
    decoded = (images.load(index) for index in range(len(images)))
    return np.array([(image.height, image.width) for image in decoded], np.int64).reshape(-1, 2)


@contextmanager
def collect_warnings(notice: Callable[[str], None], what: str) -> Iterator[None]:
    """Turn what Pillow and NumPy warn of inside the block, such as damaged metadata, into one notice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    counts = Counter(str(warning.message).strip().rstrip(".") for warning in caught)
    if counts:
        remarks = format_names([f"{text} ({count})" for text, count in counts.most_common()], 3)
        notice(f"{what}: unusual images, which are used as they could be read: {remarks}")


def find_faults(images: EncodedImages) -> list[UnreadableImage | None]:
    """What keeps each image from being decoded, if anything."""

    def fault(index: int) -> UnreadableImage | None:
        try:
            with open_encoded(images.items[index], images.names[index]) as image:
                image.draft(None, (1, 1))  # JPEG: an eighth of the resolution, but all of the file is read
                image.load()
                check_extent(image.height, image.width, images.names[index])  # as loaded
                if is_deep(image):
                    as_rgb(image, images.names[index])
        except UnreadableImage as error:
            return error
        return None

    return list(in_threads(fault, len(images)))


def settle(images: EncodedImages, limit: int = IN_MEMORY) -> tuple[Images, NDArray[np.int64], dict[str, str]]:
    """The images that can be decoded, in memory if they share one size and fit; their indices; the other images by
    name, with the reasons."""
    array, faults = _decode_alike(images, limit)
    if array is None:
        faults = find_faults(images)
    keep = np.array([i for i, fault in enumerate(faults) if fault is None], np.int64)
    broken = {images.name(i): fault.reason for i, fault in enumerate(faults) if fault is not None}
    kept: Images = images if array is None else ArrayImages(array, names=images.names)
    return kept if not broken else kept.take(keep), keep, broken


def report_broken(name: str, broken: Mapping[str, str], total: int, options: SourceOptions) -> None:
    """Refuse a source with images that cannot be decoded, naming them all at once (of many the first), unless they may
    be left out, which is then a notice."""
    if not broken:
        return
    count = f"{len(broken)} of {total} images"
    if options.skip_broken:
        options.notice(f"{name}: left out {count}, which cannot be read: {format_names(list(broken))}")
        return
    lines = [f"{image}: {reason}" for image, reason in broken.items()]
    if len(lines) > MOST_NAMED:
        lines[MOST_NAMED:] = [f"and {len(lines) - MOST_NAMED} more"]
    text = "\n  ".join([f"{name}: {count} cannot be read:", *lines])
    raise BrokenImages(f"{text}\nReplace or remove {'them' if len(broken) > 1 else 'it'}.", broken)


def _decode_alike(images: EncodedImages, limit: int) -> tuple[NDArray[np.uint8] | None, list[UnreadableImage | None]]:
    """All images as (n, height, width, 3) with what was wrong with each, or None at the first odd size."""
    first = None
    with suppress(UnreadableImage):
        first = images.size(0) if len(images) else None
    if first is None or len(images) * first[0] * first[1] * 3 > limit:
        return None, []
    array = np.zeros((len(images), *first, 3), np.uint8)

    def decode(index: int) -> UnreadableImage | bool | None:
        try:
            pixels = np.asarray(images.load(index))
        except UnreadableImage as error:
            return error
        if pixels.shape != array.shape[1:]:
            return False
        array[index] = pixels
        return None

    faults: list[UnreadableImage | None] = []
    for result in in_threads(decode, len(images)):
        if result is False:
            return None, []
        faults.append(result if isinstance(result, UnreadableImage) else None)
    return array, faults

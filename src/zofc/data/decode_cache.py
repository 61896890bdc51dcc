"""Decoded images, kept between runs under the user's cache folder: each source is decoded once.

An entry is a folder named by what was decoded: the contents of a shard, or a list of files with their sizes and times,
and the versions of the decoders. It is written beside its place and renamed, under a lock, so that of several processes
one decodes and the others read what it made. Entries are memory-mapped; those used longest ago go first when the cache
reaches its limit. A cache that cannot be used is never an error: images are then decoded by each run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import PIL
from filelock import FileLock, Timeout
from PIL import features

from zofc.data.decoding import in_threads
from zofc.data.source import EncodedImages, SourceOptions
from zofc.data.stored import ENTRY, INDEX, PIXELS, Store
from zofc.errors import DataError
from zofc.paths import expand
from zofc.units import format_bytes, parse_bytes

try:
    import fcntl
except ImportError:  # where there is none, a file that is mapped cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

FORMAT = 1  # raise it when `rgb.as_rgb` or the files of an entry change
DEFAULT_LIMIT = 10 * 10**9
AUTO_BYTES = 2 * 10**9  # decoded, of a source that is kept without being asked
AUTO_IMAGES = 1000  # fewer are decoded in no time
AUTO_PART = 0.1  # of a source that a run must use, or it decodes only what it uses
SAMPLE = 64  # images whose headers tell the size of all
LOCK_SECONDS = 1800.0  # seconds that a run waits for another one's decoding
BLOCK = 1 << 24


@dataclass(frozen=True)
class CachePart:
    """A set of images that is decoded as one entry."""

    key: str  # from `cache_key`
    label: str  # what it is, for the user
    count: int
    read: Callable[[], EncodedImages]
    sample: Callable[[], EncodedImages]  # a few of them


@dataclass(frozen=True)
class CacheEntry:
    """What `zofc cache` shows of an entry."""

    key: str
    label: str
    images: int
    bytes: int
    used: float  # when last, in seconds since 1970
    in_use: bool


def cache_folder() -> Path:
    """$ZOFC_CACHE, else zofc in $XDG_CACHE_HOME or ~/.cache; decoded images have a folder of their own in it."""
    own = os.environ.get("ZOFC_CACHE")
    base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "zofc")
    return expand(base) / "decoded"


def cache_limit() -> int:
    """Bytes that all entries may take together: $ZOFC_CACHE_LIMIT, such as 20GB."""
    text = os.environ.get("ZOFC_CACHE_LIMIT")
    if not text:
        return DEFAULT_LIMIT
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise DataError(f"ZOFC_CACHE_LIMIT: expected a size such as 500MB or 10GB, got '{text}'") from error


def cache_key(*content: str) -> str:
    """The name of what decoding `content` gives with the decoders at hand."""
    decoders = [f"{name} {features.version(name)}" for name in ("jpg", "webp", "libtiff", "jpg_2000", "avif")]
    parts = (f"format {FORMAT}", f"pillow {PIL.__version__}", *decoders, *content)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def open_stores(parts: Sequence[CachePart], asked: int, options: SourceOptions) -> list[Store] | None:
    """The decoded images of every part, decoded now if they were not before; None: there is to be no cache, or it
    cannot be used. `asked` is how many of the images this run uses."""
    total = sum(part.count for part in parts)
    if options.cache == "off" or not asked or (options.cache == "auto" and total < AUTO_IMAGES):
        return None
    cache = DecodeCache(cache_folder(), cache_limit(), options.notice)
    try:
        stores = [cache.find(part.key) for part in parts]
        if any(store is None for store in stores):
            if options.cache == "auto" and asked < AUTO_PART * total:
                return None
            size = decoded_bytes([part.sample() for part in parts], total)
            if options.cache == "auto" and size > min(AUTO_BYTES, cache.limit):
                return None
            missing = sum(part.count for part, store in zip(parts, stores, strict=True) if store is None)
            if not cache.make_room(size * missing // total):
                return None
            options.notice(f"decoding {missing} images once, also for later runs (see zofc cache)")
            stores = [store or cache.build(part) for part, store in zip(parts, stores, strict=True)]
    except OSError as error:
        options.notice(
            f"the decode cache {cache.folder} cannot be used ({error}), so images are decoded by each run; "
            "give another folder as ZOFC_CACHE, or training.cache=off"
        )
        return None
    return [store for store in stores if store is not None] if all(stores) else None


def is_small(sample: EncodedImages, total: int) -> bool:
    """Whether a source is kept without being asked: enough images to be worth it, and not too many bytes."""
    return total >= AUTO_IMAGES and decoded_bytes([sample], total) <= AUTO_BYTES


def decoded_bytes(samples: Sequence[EncodedImages], total: int) -> int:
    """What `total` images take, estimated from the headers of some."""
    sizes = []
    for images in samples:
        for index in range(len(images)):
            with suppress(DataError):
                height, width = images.size(index)
                sizes.append(3 * height * width)
    return int(np.mean(sizes) * total) if sizes else 0


class DecodeCache:
    """The entries in a folder."""

    def __init__(self, folder: Path, limit: int, notice: Callable[[str], None] = print) -> None:
        self.folder, self.limit, self.notice = folder, limit, notice

    def find(self, key: str) -> Store | None:
        """An entry, marked as used now; a damaged one is removed."""
        path = self.folder / key
        try:
            handle = (path / ENTRY).open("rb")
        except FileNotFoundError:
            return None
        try:
            _hold(handle)
            about = json.loads(handle.read())
            store = Store.open(path, handle)
            sound = len(store) == about["images"] and crc32(store.pixels) == about["checksum"]
        except (FileNotFoundError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
            sound = False
        if not sound:
            handle.close()
            if path.exists():  # else another process has removed it meanwhile
                self.notice(f"the decode cache entry {path} was damaged, so its images are decoded again")
                _remove(path)
            return None
        with suppress(OSError):  # read-only: then it cannot be evicted either
            os.utime(path / ENTRY)
        return store

    def build(self, part: CachePart) -> Store | None:
        """Decode a part, unless another process does: then wait for it and read what it made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / f"{part.key}.lock")
        try:
            lock.acquire(timeout=1)
        except Timeout:
            self.notice("another run is decoding the same images; waiting for it")
            try:
                lock.acquire(timeout=LOCK_SECONDS)
            except Timeout:
                return None
        try:
            store = self.find(part.key)
            return self._decode(part) if store is None else store
        finally:
            lock.release()

    def _decode(self, part: CachePart) -> Store | None:
        self._remove_leftovers(part.key)
        draft = Path(tempfile.mkdtemp(prefix=f"{part.key}.part-", dir=self.folder))
        try:
            _decode_into(draft, part)
            with suppress(OSError):  # another process was first, where there are no locks
                draft.rename(self.folder / part.key)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return self.find(part.key)

    def entries(self) -> list[CacheEntry]:
        """All entries, the one used last first."""
        entries = []
        for file in self.folder.glob(f"*/{ENTRY}"):
            if ".part-" in file.parent.name:
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):
                about = json.loads(file.read_text())
                size = sum(member.stat().st_size for member in file.parent.iterdir())
                used = file.stat().st_mtime
                in_use = not _is_free(file)
                entries.append(CacheEntry(file.parent.name, about["label"], about["images"], size, used, in_use))
        return sorted(entries, key=lambda entry: -entry.used)

    def make_room(self, size: int) -> bool:
        """Evict entries, those used longest ago first and none that is in use, until `size` more bytes fit."""
        self._sweep()
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        for entry in reversed(entries):
            if total + size <= self.limit:
                break
            if not entry.in_use and self.remove(entry.key):
                total -= entry.bytes
        if total + size <= self.limit:
            return True
        self.notice(
            f"the decode cache {self.folder} has no room for {format_bytes(size)} within its limit of "
            f"{format_bytes(self.limit)} (ZOFC_CACHE_LIMIT), so images are decoded by each run"
        )
        return False

    def remove(self, key: str) -> bool:
        """Remove an entry that no process uses."""
        path = self.folder / key
        if not _is_free(path / ENTRY):
            return False
        _remove(path)
        return not path.exists()

    def clear(self) -> tuple[int, int]:
        """Remove all entries; how many were removed, and how many are in use and stay."""
        entries = self.entries()
        removed = sum(self.remove(entry.key) for entry in entries)
        self._sweep()
        return removed, len(entries) - removed

    def _sweep(self) -> None:
        """Remove what killed processes left behind, unless another process is at it."""
        for key in {leftover.name.partition(".")[0] for leftover in self.folder.glob("*.part-*")}:
            with suppress(Timeout, OSError), FileLock(self.folder / f"{key}.lock").acquire(timeout=0):
                self._remove_leftovers(key)

    def _remove_leftovers(self, key: str) -> None:
        """What a killed process left behind; the lock of `key` is ours, so no other is at it."""
        for leftover in self.folder.glob(f"{key}.part-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _decode_into(folder: Path, part: CachePart) -> None:
    images = part.read()

    def decode(index: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        try:
            return np.asarray(images.load(index))
        except DataError:
            return None  # broken: who uses it will meet the error

    sizes = np.zeros((len(images), 2), np.int64)
    code = 0
    with (folder / PIXELS).open("wb") as file:
        for index, pixels in enumerate(in_threads(decode, len(images))):
            if pixels is not None:
                sizes[index] = pixels.shape[:2]
                data = pixels.tobytes()
                code = zlib.crc32(data, code)
                file.write(data)
    np.savez(folder / INDEX, sizes=sizes)
    about = {"label": part.label, "images": len(images), "checksum": code, "made": time.strftime("%Y-%m-%d %H:%M:%S")}
    (folder / ENTRY).write_text(json.dumps(about))


def crc32(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """CRC-32 of an array's bytes."""
    code = 0
    for start in range(0, len(pixels), BLOCK):
        code = zlib.crc32(pixels[start : start + BLOCK].data, code)
    return code


def _hold(handle: IO[bytes]) -> None:
    """Keep an entry from being evicted for as long as its file is open."""
    if fcntl is not None:
        with suppress(OSError):  # file systems without locks: nothing is evicted there
            fcntl.flock(handle, fcntl.LOCK_SH)


def _is_free(file: Path) -> bool:
    """Whether no process has an entry open."""
    if fcntl is None:
        return True
    try:
        with file.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    """Remove a folder in one step for everyone who looks."""
    aside = path.with_name(f"{path.name}.part-removed-{os.getpid()}")
    with suppress(OSError):
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

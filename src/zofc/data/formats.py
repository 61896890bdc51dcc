"""Image formats: those that can be decoded here, and what to install for those of phones that cannot."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import PurePath

from PIL import Image, features

HEIC_REMEDY = 'pip install "zofc[heic]"'
AVIF_REMEDY = "pip install --upgrade pillow"  # its wheels decode AVIF since 11.3
REMEDIES = {  # formats that not every installation decodes, by suffix
    ".heic": ("HEIC", HEIC_REMEDY),
    ".heif": ("HEIC", HEIC_REMEDY),
    ".hif": ("HEIC", HEIC_REMEDY),
    ".avif": ("AVIF", AVIF_REMEDY),
}
BRANDS = {b"avif": ".avif", b"avis": ".avif", b"heic": ".heic", b"heix": ".heic", b"hevc": ".heic", b"mif1": ".heic"}


@functools.cache
def image_formats() -> tuple[str, ...]:
    """What Pillow can decode, usual ones first, and HEIC where pillow-heif is installed; not EPS, which would run
    Ghostscript."""
    Image.init()
    warnings.filterwarnings("ignore", module=r"PIL\.")  # in every batch again; `collect_warnings` reports them once
    usual = ("JPEG", "PNG", "WEBP")
    unwanted = {*usual, "EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}
    if not features.check("avif"):  # the plug-in is there, the library is not
        unwanted.add("AVIF")
    try:
        import_module("pillow_heif").register_heif_opener()
    except ImportError:
        unwanted.add("HEIF")
    return (*(f for f in usual if f in Image.OPEN), *(f for f in Image.OPEN if f not in unwanted))


def image_suffixes() -> frozenset[str]:
    """File suffixes of the image formats that can be decoded."""
    formats = set(image_formats())
    return frozenset(suffix for suffix, kind in Image.registered_extensions().items() if kind in formats)


def missing_formats(files: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The files in formats that cannot be decoded here but elsewhere, by format and remedy."""
    readable = image_suffixes()
    found: dict[tuple[str, str], list[str]] = {}
    for file in files:
        suffix = PurePath(file).suffix.lower()
        if suffix in REMEDIES and suffix not in readable:
            found.setdefault(REMEDIES[suffix], []).append(file)
    return found


def missing_format(head: bytes) -> tuple[str, str] | None:
    """The format and the remedy of an image that cannot be decoded here, by the first bytes of its content."""
    suffix = BRANDS.get(head[8:12]) if head[4:8] == b"ftyp" else None
    return None if suffix is None or suffix in image_suffixes() else REMEDIES[suffix]

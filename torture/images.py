"""Image files: valid ones of many formats mutated, and crafted ones: bombs, odd modes, links, pipes, hostile names."""

from __future__ import annotations

import functools
import io
import os
import random
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from torture.kinds import Case, kind
from torture.mutate import ESCAPES, mutate_bytes
from torture.readers import finite, is_image, is_regular, strict_json
from torture.verdicts import GOOD, Verdict, judge

FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "PPM",
    "ICO",
    "TGA",
    "PCX",
    "SGI",
    "DDS",
    "JPEG2000",
    "AVIF",
    "MPO",
)
MODES = {"GIF": ("P", "L"), "PPM": ("RGB", "L", "I"), "PNG": ("RGB", "RGBA", "P", "L", "LA", "1", "I;16", "I"),
         "TIFF": ("RGB", "CMYK", "LAB", "F", "I;16", "L", "1", "RGBA"), "JPEG": ("RGB", "CMYK", "L")}  # fmt: skip
SUFFIX = {"JPEG2000": "jp2", "JPEG": "jpg", "TIFF": "tif", "MPO": "mpo"}
PER_TRY = 5
NAMES = ("a b", "-x", "--help", "[bold]", "naïve", "名", "%s", "a'b", 'a"b', "a;b", "x" * 240, "🙂", *ESCAPES)


def pixels(draw: random.Random, width: int, height: int) -> Image.Image:
    """A random image."""
    return Image.fromarray(
        np.random.default_rng(draw.randrange(2**32)).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    """An image as a file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@functools.cache
def available_formats() -> tuple[str, ...]:
    """The formats that Pillow writes here."""
    Image.init()
    return tuple(form for form in FORMATS if form in Image.SAVE)


def valid_image(draw: random.Random) -> tuple[bytes, str]:
    """A valid file of some format, mode and size, and its suffix."""
    form = draw.choice(available_formats())
    image = pixels(draw, draw.choice([1, 3, 16, 33]), draw.choice([1, 2, 16, 40]))
    mode = draw.choice(MODES.get(form, ("RGB",)))
    try:
        data = encode(image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode), form)
    except (OSError, ValueError, KeyError):
        data = encode(image, form)
    return data, SUFFIX.get(form, form.lower())


def png_chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width: int, height: int, body: bytes | None = None, depth: int = 8, colour: int = 2, extra: bytes = b""
) -> bytes:
    """A PNG file that states a size; its pixels are zeros unless given."""
    if body is None:
        channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 1)
        stride = 1 + (width * channels * depth + 7) // 8
        body = zlib.compress(bytes(stride * height), 9) if stride * height < 2**26 else zlib.compress(bytes(1000))
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + extra + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")


def _sizes(draw: random.Random) -> tuple[bytes, str]:
    sizes = (0, 1, 2, 250_000, 1_000_000, 65_535, 20_000, 2**31 - 1, 2**32 - 1, 9_000)
    width, height = draw.choice(sizes), draw.choice([1, 1, 1, 2, draw.choice(sizes)])
    if draw.random() < 0.5:
        width, height = height, width
    return png(width, height, None if width * height < 2**25 else b"x"), "png"


def _zeros(draw: random.Random) -> tuple[bytes, str]:
    side = draw.choice([4000, 8000, 13_000])
    row = bytes(1 + 3 * side)
    packer = zlib.compressobj(1)
    body = b"".join([*(packer.compress(row) for _ in range(min(side, 4000))), packer.flush()])
    return png(side, side, body), "png"


def _chunks(draw: random.Random) -> tuple[bytes, str]:
    extra = b"".join(
        png_chunk(name, draw.choice([b"", b"\x00" * 50, draw.randbytes(40),
                  b"x\x00\x00" + zlib.compress(bytes(2**22))]))
        for name in draw.sample([b"iCCP", b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"gAMA", b"tRNS", b"PLTE", b"pHYs",
                                b"acTL", b"fcTL",
                                 b"cHRM", b"sRGB", b"abCD"], 3)
    )  # fmt: skip
    return png(8, 8, depth=draw.choice([1, 8, 16, 3]), colour=draw.choice([0, 2, 3, 4, 6, 7]), extra=extra), "png"


def _animated(draw: random.Random) -> tuple[bytes, str]:
    frames = [pixels(draw, 9, 7) for _ in range(draw.choice([2, 30]))]
    form = draw.choice(["GIF", "WEBP", "PNG", "TIFF"])
    return encode(frames[0], form, save_all=True, append_images=frames[1:]), form.lower()


def _exif(draw: random.Random) -> tuple[bytes, str]:
    exif = Image.Exif()
    exif[0x0112] = draw.choice([0, 3, 6, 8, 9, 65535])
    if draw.random() < 0.5:
        exif[0x010E] = draw.choice(ESCAPES)
    data = encode(pixels(draw, 9, 14), "JPEG", exif=exif.tobytes()[: draw.choice([None, 20, 14, 8])])
    return data, "jpg"


def _other(draw: random.Random) -> tuple[bytes, str]:
    texts = (b"", b"text", b"<svg xmlns='http://www.w3.org/2000/svg'/>",
             b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
             b"%PDF-1.4", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"II*\x00",
             b"RIFF\xff\xff\xff\xffWEBPVP8 ",
             b"P6 999999999 999999999 255\n", b"P5 3 3 65536\n", b"P1 1 1\n7", b"P6\n#" + b"x" * 10**6, b"\x00" * 5000,
             b"/* XPM */\nstatic char *x[] = {\n\"9 9 1 1\",",
             b"#define x_width 99999\n#define x_height 99999\nstatic char x[]={",
             b"SIMPLE  =                    T", b"8BPS\x00\x01" + b"\xff" * 30, b"icns\xff\xff\xff\xff",
             b"qoif\xff\xff\xff\xff\xff\xff\xff\xff\x04\x00",
             b"\x00\x00\x00\x1cftypheic" + b"\x00" * 16)  # fmt: skip
    data = draw.choice(texts)
    return data, draw.choice(
        ["png", "jpg", "gif", "webp", "tif", "ppm", "eps", "svg", "heic", "xpm", "ico", "txt", "pdf", "psd"]
    )


CRAFTED: tuple[Callable[[random.Random], tuple[bytes, str]], ...] = (
    _sizes,
    _sizes,
    _zeros,
    _chunks,
    _animated,
    _exif,
    _other,
    _other,
)


def hostile_image(draw: random.Random) -> tuple[bytes, str]:
    """The content of a hostile image file, and its suffix."""
    match draw.randrange(10):
        case 0 | 1 | 2 | 3 | 4:
            data, suffix = valid_image(draw)
            return mutate_bytes(draw, data), suffix
        case 5:
            data, suffix = valid_image(draw)
            return data, draw.choice(["png", "jpg", "webp", "gif", "tif", "heic", "bmp"])
    return draw.choice(CRAFTED)(draw)


def place_image(draw: random.Random, folder: Path, number: int) -> Path:
    """A hostile file in a folder; seldom a link, a pipe, a socket or a folder."""
    data, suffix = hostile_image(draw)
    stem = draw.choice(NAMES) if draw.random() < 0.1 else f"image{number}"
    path = folder / f"{stem}.{suffix}".lstrip("/")
    match draw.randrange(60):
        case 0:
            path.symlink_to(
                draw.choice(["/dev/zero", "/dev/random", "nowhere.png", path.name, "/etc/passwd", "/proc/self/mem"])
            )
        case 1:
            os.mkfifo(path)
        case 2:
            path.mkdir()
        case 3 if len(os.fsencode(path)) < 100:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        case 4:
            return path.with_name(f"absent{number}.png")
        case 5:
            path.write_bytes(data)
            path.chmod(0)
        case _:
            path.write_bytes(data)
    return path


@kind("images", "image files: bytes mutated, bombs, odd formats and modes, pipes, links, names", share=600)
def attempt_images(case: Case) -> Verdict:
    """Several hostile images through `predict`; each must have an answer or a reason."""
    draw = case.random
    files: list[Path] = []
    for number in range(PER_TRY):
        path = place_image(draw, case.folder, number)
        if path not in files:
            files.append(path)
    run = draw.choice([case.stage.trained, case.stage.closed])
    as_json = draw.random() < 0.7
    words = ["predict", str(run), *(["--json"] if as_json else []), "--", *(path.name for path in files)]
    outcome = case.run(*words)
    verdict = judge(outcome).counting(inputs=len(files))
    if verdict.word in GOOD and as_json and (wrong := _wrong_answers(outcome.text, files)):
        verdict = Verdict("wrong", wrong, verdict.counts)
    return verdict


def _wrong_answers(text: str, files: list[Path]) -> str:
    """What is wrong with the answers: one that no decoder could give, none without a reason, or no number."""
    rows = {}
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                row = strict_json(line)
            except ValueError as error:
                return f"{error}: {line[:100]}"
            if not finite(row):
                return f"not finite: {line[:100]}"
            rows[row["image"]] = row
    if not rows:
        return ""  # all refused before the first answer
    for path in files:
        row = rows.get(path.name)
        inside = [name for name in rows if name.startswith(f"{path.name}/")]
        if row is None and not inside and not path.is_dir():
            return f"{path.name!r} has neither an answer nor a reason"
        if row is not None and "error" not in row and not (is_regular(path) and is_image(path)):
            return f"{path.name!r} has an answer, but Pillow cannot decode it"
    return ""

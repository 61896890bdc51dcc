"""`glyphs`: characters of several scripts as 64-pixel colour images, drawn from a seed when asked for.

    glyphs                     the benchmark's style      glyphs:face=DejaVuSerif    one face of it
    glyphs:ink, glyphs:ink@0.5 another, or half of it     glyphs:domains=ink+neon    each image in one

Image i of a character is a function of (seed, split, style, character, i) and of the versions of the packages
that draw it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, features

from zofc import seeds
from zofc.data.glyph_alphabet import FACES, Character, benchmark_characters, silhouette
from zofc.data.glyph_styles import DEFAULT, Frequencies, Range, Style, style
from zofc.data.source import ImageSet, Source, SourceOptions, source
from zofc.errors import DataError, nearest

SIDE = 64
STENCIL = 56  # the longer side of a character before it is fitted into an image
PER_CLASS, TEST_PER_CLASS = 60, 20
RENDERER = 1  # raised with every change of what is drawn

Colour = tuple[int, int, int]
AXIS = np.linspace(-0.5, 0.5, SIDE, dtype=np.float32)


@lru_cache(maxsize=16384)
def stencil(character: str, face: str) -> Image.Image:
    """The character in the middle of a frame, its longer side STENCIL."""
    ink = silhouette(character, face, 128)
    if ink is None:
        raise DataError(f"{face} draws nothing for U+{ord(character):04X}")
    scale = STENCIL / max(ink.size)
    width, height = (max(1, round(side * scale)) for side in ink.size)
    frame = Image.new("L", (SIDE, SIDE))
    frame.paste(
        ink.resize((width, height), Image.Resampling.BILINEAR), ((SIDE - width) // 2, (SIDE - height) // 2)
    )
    return frame


def pick(frequencies: Frequencies, chance: float) -> str:
    for choice, frequency in frequencies:
        chance -= frequency
        if chance < 0:
            return choice
    return frequencies[-1][0]


def within(span: Range, chance: float) -> float:
    return span[0] + (span[1] - span[0]) * chance


def about(limit: float, chance: float) -> float:
    """From -limit to limit."""
    return limit * (2 * chance - 1)


def count(expected: float, chance: float, rounding: float) -> int:
    """A whole number between 0 and about twice the expected."""
    return int(2 * expected * chance + rounding)


def place(mask: Image.Image, centre: tuple[float, float], scale: float, angle: float, shear: float = 0.0,
          stretch: float = 0.0, tilt: tuple[float, float] = (0.0, 0.0)) -> Image.Image:  # fmt: skip
    """The mask, moved from the middle of its frame to `centre`: stretched, sheared, turned and tilted.

    PIL asks for the inverse map: pixel p comes from A (p - centre) / (1 + tilt . (p - centre)) + middle.
    """
    cos, sin = math.cos(angle), math.sin(angle)
    wide, high = scale * math.exp(stretch / 2), scale * math.exp(-stretch / 2)
    a, b = (cos + shear * sin) / wide, (sin - shear * cos) / wide
    c, d = -sin / high, cos / high
    (x, y), (g, h) = centre, tilt
    middle = SIDE / 2
    unit = 1 - g * x - h * y  # the constant of the denominator, which PIL wants to be 1
    rows = [
        (a + middle * g, b + middle * h, middle * unit - a * x - b * y),
        (c + middle * g, d + middle * h, middle * unit - c * x - d * y),
    ]
    data = [value / unit for row in rows for value in row] + [g / unit, h / unit]
    return mask.transform((SIDE, SIDE), Image.Transform.PERSPECTIVE, data, Image.Resampling.BILINEAR)


def ink(mask: Image.Image, weight: float, hollow: bool, loss: float, rng: np.random.Generator) -> Image.Image:
    """The mask with strokes made bolder or thinner, or only their outline, and grains of it missing."""
    soft = np.asarray(mask.filter(ImageFilter.BoxBlur(1)), np.float32) / np.float32(255)
    level = 0.45 - 0.25 * weight  # where the blurred edge is cut
    inked = np.clip((soft - level) * 4 + 0.5, 0, 1)
    if hollow:
        inked = inked - np.clip((soft - 0.85) * 6 + 0.5, 0, 1)
    if loss > 0:
        grain = rng.random((SIDE // 2, SIDE // 2), np.float32)
        inked = inked * np.clip((enlarged(grain) - loss) * 6 + 1, 0, 1)
    return Image.fromarray((inked * 255).astype(np.uint8))


def enlarged(small: NDArray[np.float32]) -> NDArray[np.float32]:
    """A small picture of values in 0 to 1, smoothly at full size."""
    image = Image.fromarray((small * 255).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.asarray(image, np.float32) / np.float32(255)


def pattern(kind: str, rng: np.random.Generator) -> NDArray[np.float32]:
    """What varies over a background: (SIDE, SIDE), from -1 to 1."""
    if kind == "flat":
        return np.zeros((SIDE, SIDE), np.float32)
    if kind == "noise":
        cells = int(rng.integers(4, 17))
        return np.float32(2) * enlarged(rng.random((cells, cells), np.float32)) - np.float32(1)
    turn, pitch, phase = rng.random(3).tolist()
    angle = math.tau * turn
    along: NDArray[np.float32] = AXIS[:, None] * np.float32(math.sin(angle)) + AXIS * np.float32(
        math.cos(angle)
    )
    if kind == "gradient":
        return along * np.float32(math.sqrt(2))
    wave = np.abs((along * np.float32(3 + 7 * pitch) + np.float32(phase)) % np.float32(1) - np.float32(0.5))
    stripes: NDArray[np.float32] = np.clip(24 * (wave - np.float32(0.25)), -1, 1)
    return stripes


def tint(luminance: float, chroma: float, hue: float) -> NDArray[np.float32]:
    """A colour (3,) of about the given luminance, in 0 to 255."""
    waves = [math.cos(math.tau * (hue - third / 3)) for third in range(3)]
    level = 0.3 * waves[0] + 0.59 * waves[1] + 0.11 * waves[2]
    return np.array([255 * (luminance + chroma * 0.6 * (wave - level)) for wave in waves], np.float32)


def solid(colour: NDArray[np.float32]) -> Colour:
    red, green, blue = (int(value) for value in np.clip(colour, 0, 255))
    return red, green, blue


@dataclass(frozen=True)
class Palette:
    """The colours of one image: of its background, its character and, by draws, of its clutter."""

    style: Style
    ground: float  # luminance
    contrast: float  # signed: the character's luminance less the background's
    hues: tuple[float, float]

    @classmethod
    def drawn(cls, style: Style, u: Sequence[float]) -> Palette:
        ground, contrast = within(style.ground, u[0]), -within(style.contrast, u[1])
        if u[2] < style.inverted:
            ground, contrast = 1 - ground, -contrast
        if not 0 <= ground + contrast <= 1:  # no room on this side: take what is left on the roomier one
            contrast = math.copysign(min(abs(contrast), max(ground, 1 - ground)), 0.5 - ground)
        return cls(style, ground, contrast, (u[3], u[4]))

    def background(self, chance: float) -> NDArray[np.float32]:
        return tint(self.ground, within(self.style.chroma, chance), self.hues[0])

    def character(self, chance: float) -> Colour:
        return solid(tint(self.ground + self.contrast, within(self.style.chroma, chance), self.hues[1]))

    def clutter(self, rng: np.random.Generator) -> Colour:
        u = rng.random(4).tolist()
        offset = math.copysign(within(self.style.clutter, u[0]) * abs(self.contrast), u[1] - 0.5)
        return solid(tint(self.ground + offset, within(self.style.chroma, u[2]), u[3]))


def add_clutter(image: Image.Image, style: Style, palette: Palette, others: Sequence[str],
                rng: np.random.Generator) -> None:  # fmt: skip
    """Blobs, lines and parts of other characters, behind the character."""
    u = rng.random(6).tolist()
    canvas = ImageDraw.Draw(image)
    for _ in range(count(style.blobs, u[0], u[1])):
        x, y, wide, high = (rng.random(4) * (SIDE, SIDE, 12, 12)).tolist()
        canvas.ellipse((x - wide - 2, y - high - 2, x + wide + 2, y + high + 2), fill=palette.clutter(rng))
    for _ in range(count(style.lines, u[2], u[3])):
        add_line(canvas, palette.clutter(rng), 1 + int(rng.integers(3)), rng)
    for _ in range(count(style.fragments, u[4], u[5]) if others else 0):
        other, face = others[int(rng.integers(len(others)))], pick(style.faces, rng.random())
        along, beyond, which, scale, angle = rng.random(5).tolist()
        edge = SIDE * (-0.08 * beyond if which % 0.5 < 0.25 else 1 + 0.08 * beyond)
        centre = (SIDE * along, edge) if which < 0.5 else (edge, SIDE * along)
        mask = place(stencil(other, face), centre, 0.4 + 0.3 * scale, about(0.6, angle))
        image.paste(palette.clutter(rng), (0, 0), mask)


def add_line(canvas: ImageDraw.ImageDraw, colour: Colour, width: int, rng: np.random.Generator) -> None:
    """A stroke from edge to edge."""
    start, end = (rng.random(2) * SIDE).tolist()
    ends = [(0.0, start), (SIDE - 1.0, end)] if rng.random() < 0.5 else [(start, 0.0), (end, SIDE - 1.0)]
    canvas.line(ends, fill=colour, width=width)


def draw(
    character: str, style: Style, rng: np.random.Generator, others: Sequence[str] = ()
) -> NDArray[np.uint8]:
    """One image of a character, (SIDE, SIDE, 3); `others` are those whose fragments may be seen beside it."""
    u = rng.random(25).tolist()  # one chance per property: changing one range leaves the others alone
    palette = Palette.drawn(style, u[0:5])
    texture = within(style.texture, u[7]) * pattern(pick(style.backgrounds, u[8]), rng)
    ground = palette.background(u[5]) + 255 * texture[..., None]
    image = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
    add_clutter(image, style, palette, others, rng)

    size = within(style.size, u[9])
    room = style.shift * (1 - size) / 2
    mask = place(
        stencil(character, pick(style.faces, u[10])),
        centre=(SIDE * (0.5 + about(room, u[11])), SIDE * (0.5 + about(room, u[12]))),
        scale=size * SIDE / STENCIL,
        angle=math.radians(about(style.rotation, u[13])),
        shear=about(style.shear, u[14]),
        stretch=about(style.stretch, u[15]),
        tilt=(about(style.tilt / SIDE, u[16]), about(style.tilt / SIDE, u[17])),
    )
    mask = ink(mask, within(style.weight, u[18]), u[19] < style.hollow, within(style.speckle, u[20]), rng)
    glow = within(style.glow, u[21])
    if glow > 0:
        halo = mask.filter(ImageFilter.GaussianBlur(4)).point(
            [int(min(255, 1.5 * glow * v)) for v in range(256)]
        )
        image.paste(palette.character(1.0), (0, 0), halo)
    image.paste(palette.character(u[6]), (0, 0), mask)
    for _ in range(count(style.scratches, u[22], u[23])):
        add_line(ImageDraw.Draw(image), palette.clutter(rng), 1, rng)
    return photograph(image, style, u[24], rng)


def photograph(
    image: Image.Image, style: Style, chance: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """The image as a camera of this style sees it: coarser, blurred, with noise."""
    u = rng.random(2).tolist()
    coarse, blur, noise = within(style.coarse, chance), within(style.blur, u[0]), within(style.noise, u[1])
    if coarse > 1.05:
        small = image.resize((round(SIDE / coarse), round(SIDE / coarse)), Image.Resampling.BILINEAR)
        image = small.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if blur > 0.05:
        image = image.filter(ImageFilter.GaussianBlur(blur))
    if noise == 0:
        return np.asarray(image)
    grain = rng.standard_normal((SIDE, SIDE, 1), np.float32) * np.float32(255 * noise)
    noisy: NDArray[np.float32] = np.asarray(image) + grain
    return np.clip(noisy, 0, 255).astype(np.uint8)


def draw_numbered(character: Character, style: Style, number: int, split: str, seed: int,
                  others: Sequence[str] = ()) -> NDArray[np.uint8]:  # fmt: skip
    """Image `number` of a character, whatever else is asked for."""
    return draw(
        character.text, style, seeds.stream(seed, "glyphs", split, style.name, character.code, number), others
    )


class Sheet:
    """Images that may be asked for: what each shows, and the pixels of those that were.

    Each is drawn once, whichever subsets it is in.
    """

    def __init__(
        self, characters: Sequence[Character], styles: Sequence[Style], split: str, seed: int, per_class: int
    ):
        self.characters, self.styles, self.split, self.seed = characters, styles, split, seed
        self.labels = np.repeat(np.arange(len(characters)), per_class)  # (n,)
        order = np.tile(np.arange(per_class), len(characters))
        self.domains, self.numbers = order % len(styles), order // len(styles)  # (n,) each
        self.others = [character.text for character in characters]
        self._pixels = np.zeros((len(self.labels), SIDE, SIDE, 3), np.uint8)  # touched when drawn, not before
        self._drawn = np.zeros(len(self.labels), bool)

    @property
    def drawn(self) -> int:
        return int(self._drawn.sum())

    def pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(rows, SIDE, SIDE, 3)"""
        for row in np.unique(rows[~self._drawn[rows]]):
            look, number = self.styles[self.domains[row]], int(self.numbers[row])
            character = self.characters[self.labels[row]]
            self._pixels[row] = draw_numbered(character, look, number, self.split, self.seed, self.others)
            self._drawn[row] = True
        return self._pixels[rows]


@dataclass(frozen=True)
class GlyphImages:
    """Some images of a sheet, drawn on first sight."""

    sheet: Sheet
    rows: NDArray[np.int64]  # (n,)

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        row = self.rows[index]
        character, look = (
            self.sheet.characters[self.sheet.labels[row]],
            self.sheet.styles[self.sheet.domains[row]],
        )
        return f"glyphs:{look.name}/{self.sheet.split}/{character.name}[{self.sheet.numbers[row]}]"

    def load(self, index: int) -> Image.Image:
        return Image.fromarray(self.sheet.pixels(self.rows[index : index + 1])[0])

    def size(self, index: int) -> tuple[int, int]:
        return SIDE, SIDE

    def take(self, indices: NDArray[np.int64]) -> GlyphImages:
        return GlyphImages(self.sheet, self.rows[indices])

    @property
    def array(self) -> NDArray[np.uint8]:
        return self.sheet.pixels(self.rows)


def checksum(sheets: Iterable[Sheet]) -> str:
    """Of all that the images follow from, and of a few of them."""
    versions = [str(RENDERER), np.__version__, PIL.__version__, str(features.version("freetype2"))]
    digest = hashlib.sha256("\x1f".join(versions).encode())
    for sheet in sheets:
        told = (sheet.seed, sheet.split, len(sheet.labels), *sheet.styles, *sheet.characters)
        digest.update("\x1f".join(map(str, told)).encode())
        for character, look in itertools.product(sheet.characters[::50], sheet.styles):
            digest.update(draw_numbered(character, look, 0, sheet.split, sheet.seed, sheet.others).tobytes())
    return digest.hexdigest()


def parse(argument: str) -> tuple[tuple[str, ...], bool]:
    """The styles an argument asks for, and whether each is a domain."""
    key, equals, value = argument.partition("=")
    if not equals:
        return (argument or DEFAULT,), False
    if key == "face":
        if value.partition("@")[0] not in FACES:
            raise DataError(f"data.source: glyphs:{argument}: unknown face '{value}'{nearest(value, FACES)}")
        return (value,), False
    if key != "domains":
        raise DataError(
            f"data.source: glyphs:{argument}: unknown key '{key}'{nearest(key, ['domains', 'face'])}"
        )
    specs = tuple(value.split("+"))
    if len(set(specs)) < len(specs):
        raise DataError(f"data.source: glyphs:{argument}: the same domain twice")
    return specs, True


@source("glyphs")
def glyphs(argument: str, options: SourceOptions) -> Source:
    """Characters drawn from a seed; glyphs:STYLE, glyphs:STYLE@STRENGTH, glyphs:face=FACE, glyphs:domains=A+B

    Counts are per class, over all domains: of three domains, each has every third image.
    """
    specs, domains = parse(argument)
    styles = tuple(style(spec) for spec in specs)
    characters = benchmark_characters()
    sheets = {
        split: Sheet(characters, styles, split, options.seed, per_class)
        for split, per_class in (
            ("train", PER_CLASS if options.per_class is None else options.per_class),
            ("test", TEST_PER_CLASS if options.test_per_class is None else options.test_per_class),
        )
    }
    train, test = (
        ImageSet(
            GlyphImages(sheet, np.arange(len(sheet.labels))), sheet.labels, sheet.domains if domains else None
        )
        for sheet in sheets.values()
    )
    return Source(
        name=f"glyphs:{argument}" if argument else "glyphs",
        classes=tuple(character.name for character in characters),
        train=train,
        test=test,
        checksum=checksum(sheets.values()),
        domain_names=specs if domains else (),
    )

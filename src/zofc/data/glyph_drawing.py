"""How one image of a character is drawn: background, clutter, the character in its place, and the camera.

Every step takes its chances from the generator it is given, and nothing else: no image depends on another.
Arithmetic on arrays is plain (no sine, no power), so that processors do not differ in a last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from zofc.data.glyph_alphabet import silhouette
from zofc.data.glyph_styles import Frequencies, Range, Style
from zofc.errors import DataError

SIDE = 64
STENCIL = 56  # the longer side of a character before it is fitted into an image
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
    fitted = ink.resize((width, height), Image.Resampling.BILINEAR)
    frame.paste(fitted, ((SIDE - width) // 2, (SIDE - height) // 2))
    return frame


def pick(frequencies: Frequencies, chance: float) -> str:
    """The choice that a number between 0 and 1 falls on."""
    for choice, frequency in frequencies:
        chance -= frequency
        if chance < 0:
            return choice
    return frequencies[-1][0]


def within(span: Range, chance: float) -> float:
    """The number at a fraction of a range."""
    return span[0] + (span[1] - span[0]) * chance


def about(limit: float, chance: float) -> float:
    """From -limit to limit."""
    return limit * (2 * chance - 1)


def count(expected: float, chance: float, rounding: float) -> int:
    """A whole number between 0 and about twice the expected."""
    return int(2 * expected * chance + rounding)


def place_mask(mask: Image.Image, center: tuple[float, float], scale: float, angle: float, shear: float = 0.0,
               stretch: float = 0.0, tilt: tuple[float, float] = (0.0, 0.0)) -> Image.Image:  # fmt: skip
    """The mask, moved from the middle of its frame to `center`: stretched, sheared, turned and tilted.

    PIL asks for the inverse map: pixel p comes from A (p - center) / (1 + tilt . (p - center)) + middle.
    """
    cos, sin = math.cos(angle), math.sin(angle)
    wide, high = scale * math.exp(stretch / 2), scale * math.exp(-stretch / 2)
    a, b = (cos + shear * sin) / wide, (sin - shear * cos) / wide
    c, d = -sin / high, cos / high
    (x, y), (g, h) = center, tilt
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
    down, across = AXIS[:, None] * np.float32(math.sin(angle)), AXIS * np.float32(math.cos(angle))
    along: NDArray[np.float32] = down + across
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
    """A colour as integers."""
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
        """Colours for one image, from five numbers between 0 and 1."""
        ground, contrast = within(style.ground, u[0]), -within(style.contrast, u[1])
        if u[2] < style.inverted:
            ground, contrast = 1 - ground, -contrast
        if not 0 <= ground + contrast <= 1:  # no room on this side: take what is left on the roomier one
            contrast = math.copysign(min(abs(contrast), max(ground, 1 - ground)), 0.5 - ground)
        return cls(style, ground, contrast, (u[3], u[4]))

    def background(self, chance: float) -> NDArray[np.float32]:
        """The colour of the background."""
        return tint(self.ground, within(self.style.chroma, chance), self.hues[0])

    def character(self, chance: float) -> Colour:
        """The colour of the character."""
        return solid(tint(self.ground + self.contrast, within(self.style.chroma, chance), self.hues[1]))

    def clutter(self, rng: np.random.Generator) -> Colour:
        """The colour of a piece of clutter, on either side of the background's."""
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
        center = (SIDE * along, edge) if which < 0.5 else (edge, SIDE * along)
        mask = place_mask(stencil(other, face), center, 0.4 + 0.3 * scale, about(0.6, angle))
        image.paste(palette.clutter(rng), (0, 0), mask)


def add_line(canvas: ImageDraw.ImageDraw, colour: Colour, width: int, rng: np.random.Generator) -> None:
    """A stroke from edge to edge."""
    start, end = (rng.random(2) * SIDE).tolist()
    ends = [(0.0, start), (SIDE - 1.0, end)] if rng.random() < 0.5 else [(start, 0.0), (end, SIDE - 1.0)]
    canvas.line(ends, fill=colour, width=width)


def draw_character(
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
    mask = place_mask(
        stencil(character, pick(style.faces, u[10])),
        center=(SIDE * (0.5 + about(room, u[11])), SIDE * (0.5 + about(room, u[12]))),
        scale=size * SIDE / STENCIL,
        angle=math.radians(about(style.rotation, u[13])),
        shear=about(style.shear, u[14]),
        stretch=about(style.stretch, u[15]),
        tilt=(about(style.tilt / SIDE, u[16]), about(style.tilt / SIDE, u[17])),
    )
    mask = ink(mask, within(style.weight, u[18]), u[19] < style.hollow, within(style.speckle, u[20]), rng)
    glow = within(style.glow, u[21])
    if glow > 0:
        brightness = [int(min(255, 1.5 * glow * value)) for value in range(256)]
        halo = mask.filter(ImageFilter.GaussianBlur(4)).point(brightness)
        image.paste(palette.character(1.0), (0, 0), halo)
    image.paste(palette.character(u[6]), (0, 0), mask)
    for _ in range(count(style.scratches, u[22], u[23])):
        add_line(ImageDraw.Draw(image), palette.clutter(rng), 1, rng)
    return photograph(image, style, u[24], rng)


def photograph(image: Image.Image, style: Style, chance: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The image as a camera of this style sees it: coarser, blurred, with noise."""
    u = rng.random(2).tolist()
    coarse, blur, noise = within(style.coarse, chance), within(style.blur, u[0]), within(style.noise, u[1])
    if coarse > 1.05:
        small = image.resize((round(SIDE / coarse), round(SIDE / coarse)), Image.Resampling.BILINEAR)
        image = small.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    if blur > 0.05:
        image = image.filter(ImageFilter.GaussianBlur(blur))
    grain = rng.standard_normal((SIDE, SIDE, 1), np.float32) * np.float32(255 * noise)
    noisy: NDArray[np.float32] = np.asarray(image) + grain
    return np.clip(noisy, 0, 255).astype(np.uint8)

"""`glyphs`: characters of several scripts as 64-pixel colour images, drawn from a seed when asked for.

    glyphs                     the benchmark's style      glyphs:face=DejaVuSerif    one face of it
    glyphs:ink, glyphs:ink@0.5 another, or half of it     glyphs:domains=ink+neon    each image in one

Image i of a character is a function of (seed, split, style, character, i) and of the versions of the packages
that draw it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, features

from zofc import seeds
from zofc.data.glyph_alphabet import FACES, Character, benchmark_characters
from zofc.data.glyph_drawing import RENDERER, SIDE, draw_character
from zofc.data.glyph_styles import DEFAULT, Style, style
from zofc.data.source import ImageSet, Source, SourceOptions, source
from zofc.errors import DataError, nearest
from zofc.limits import GENERATED_PER_CLASS

PER_CLASS = {"train": 60, "test": 20}


def draw_numbered(character: Character, style: Style, number: int, split: str, seed: int,
                  others: Sequence[str] = ()) -> NDArray[np.uint8]:  # fmt: skip
    """Image `number` of a character, whatever else is asked for."""
    rng = seeds.stream(seed, "glyphs", split, style.name, character.code, number)
    return draw_character(character.text, style, rng, others)


class Sheet:
    """Images that may be asked for: what each shows, and the pixels of those that were.

    Each is drawn once, whichever subsets it is in.
    """

    def __init__(self, characters: Sequence[Character], styles: Sequence[Style], split: str, seed: int, per_class: int):
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

    def name(self, row: int) -> str:
        character, look = self.characters[self.labels[row]], self.styles[self.domains[row]]
        return f"glyphs:{look.name}/{self.split}/{character.name}[{self.numbers[row]}]"

    def pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(rows, SIDE, SIDE, 3)"""
        for row in np.unique(rows[~self._drawn[rows]]):
            look, number = self.styles[self.domains[row]], int(self.numbers[row])
            character = self.characters[self.labels[row]]
            self._pixels[row] = draw_numbered(character, look, number, self.split, self.seed, self.others)
            self._drawn[row] = True
        return self._pixels[rows]

    def image_set(self, domains: bool) -> ImageSet:
        images = GlyphImages(self, np.arange(len(self.labels)))
        return ImageSet(images, self.labels, self.domains if domains else None)


@dataclass(frozen=True)
class GlyphImages:
    """Some images of a sheet, drawn on first sight."""

    sheet: Sheet
    rows: NDArray[np.int64]  # (n,)

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.sheet.name(self.rows[index])

    def load(self, index: int) -> Image.Image:
        return Image.fromarray(self.sheet.pixels(self.rows[index : index + 1])[0])

    def take(self, indices: NDArray[np.int64]) -> GlyphImages:
        return GlyphImages(self.sheet, self.rows[indices])

    @property
    def array(self) -> NDArray[np.uint8]:
        return self.sheet.pixels(self.rows)


def glyph_checksum(sheets: Iterable[Sheet]) -> str:
    """Of all that the images follow from, and of a few of them."""
    versions = [str(RENDERER), np.__version__, PIL.__version__, str(features.version("freetype2"))]
    digest = hashlib.sha256("\x1f".join(versions).encode())
    for sheet in sheets:
        origin = (sheet.seed, sheet.split, len(sheet.labels), *sheet.styles, *sheet.characters)
        digest.update("\x1f".join(map(str, origin)).encode())
        for character, look in itertools.product(sheet.characters[::50], sheet.styles):
            digest.update(draw_numbered(character, look, 0, sheet.split, sheet.seed, sheet.others).tobytes())
    return digest.hexdigest()


def parse(argument: str) -> tuple[tuple[str, ...], bool]:
    """The styles that an argument names, and whether each is a domain."""
    key, equals, value = argument.partition("=")
    if not equals:
        return (argument or DEFAULT,), False
    if key == "face":
        if value.partition("@")[0] not in FACES:
            raise DataError(f"data.source: glyphs:{argument}: unknown face '{value}'{nearest(value, FACES)}")
        return (value,), False
    if key != "domains":
        hint = nearest(key, ["domains", "face"])
        raise DataError(f"data.source: glyphs:{argument}: unknown key '{key}'{hint}")
    specs = tuple(value.split("+"))
    if len(set(specs)) < len(specs):
        raise DataError(f"data.source: glyphs:{argument}: the same domain twice")
    return specs, True


@source("glyphs")
def glyphs(argument: str, options: SourceOptions) -> Source:
    """Characters drawn from a seed; glyphs:STYLE, glyphs:STYLE@STRENGTH, glyphs:face=FACE, glyphs:domains=A+B

    Counts are per class: of three domains, each has every third image. With `per_domain` each has so many.
    """
    specs, domains = parse(argument)
    styles = tuple(style(spec) for spec in specs)
    characters = benchmark_characters()
    times, sheets = len(styles) if options.per_domain else 1, []
    for split, count in (("train", options.per_class), ("test", options.test_per_class)):
        per_class = PER_CLASS[split] if count is None else count
        if times * per_class > GENERATED_PER_CLASS:
            raise DataError(
                f"{'data.per_class' if split == 'train' else 'data.test_per_class'}: glyphs draws at most "
                f"{GENERATED_PER_CLASS:,} images of a class, got {times * per_class:,}"
            )
        sheets.append(Sheet(characters, styles, split, options.seed, times * per_class))
    train, test = (sheet.image_set(domains) for sheet in sheets)
    name, classes = f"glyphs:{argument}" if argument else "glyphs", tuple(character.name for character in characters)
    return Source(name, classes, train, test, glyph_checksum(sheets), specs if domains else ())

"""The characters that `glyphs` draws: which look different from each other, and who may see which.

The alphabet is committed (`glyph_alphabet.txt`), so that no version of FreeType can change what a class is;
`python scripts/make_glyph_alphabet.py` chooses it anew. It has two disjoint parts: the characters of the
benchmark, and those on which the embedded backbone is pre-trained. A character that resembles one of the
benchmark's, or is one of them with an accent, is in neither.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from zofc import seeds

SLANTS = {"Sans": "Oblique", "SansMono": "Oblique", "Serif": "Italic"}  # what each family calls its slanted faces
FACES = tuple(
    f"DejaVu{family}{variant}"
    for family, slant in SLANTS.items()
    for variant in ("", "-Bold", f"-{slant}", f"-Bold{slant}")
)
FILE = Path(__file__).with_name("glyph_alphabet.txt")

# How the alphabet was chosen. Distances are 1 - correlation of two shapes in the face where they are closest.
DESIGNS = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic")  # faces that are compared
DISTINCT = 0.06  # two plain characters this close are one shape (O and o, Latin A and Cyrillic А)
DISTINCT_COMPOSED = 0.12  # the same for é, ½, ≠: small marks that a distortion may hide
CLEAR = 0.25  # two characters of the benchmark differ at least this much
KIN = 0.15  # closer than this to one of the benchmark's, a character is not for pre-training either
SLENDER = 3.5  # longer than this times its width, a character is a stroke without a shape
BENCHMARK_SIZE = 120
ALPHABET_SEED = 1993

DRAWN = {"Lu", "Ll", "Lt", "Lo", "Nd", "No", "Sm", "Sc", "So", "Po", "Ps", "Pe"}  # Unicode categories drawn
NAMED = {"Lu", "Ll", "Lo", "Nd", "Sc", "Sm", "So"}  # the benchmark's: letters, digits and signs, not punctuation
FAMILIAR = (  # the benchmark's characters come from here: what people meet in print
    range(0x21, 0x100),  # ASCII and Latin-1
    range(0x391, 0x3F0),  # Greek
    range(0x402, 0x460),  # Cyrillic
    range(0x531, 0x588),  # Armenian
    range(0x10D0, 0x10F1),  # Georgian
    range(0x20A0, 0x20C0),  # currency
    range(0x2200, 0x2230),  # mathematics
    range(0x2600, 0x2670),  # astronomy, cards, music
)
TWO_FORMS = {"ჯ"}  # different drawings in different faces
BOXES = range(0x2500, 0x25A0)  # box drawing and blocks: fragments of lines and areas
SPECIALS = 0xFFF0
GRID, INNER, RASTER = 48, 42, 72  # a shape: its grid, the box it is fitted to, the type size it is drawn at


@dataclass(frozen=True, order=True)
class Character:
    """A character and its name."""

    code: int
    name: str  # as shown to people: "Ω greek capital omega"

    @property
    def text(self) -> str:
        """The character itself."""
        return chr(self.code)


@cache
def _read() -> dict[str, tuple[Character, ...]]:
    rows = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    parts: dict[str, list[Character]] = {"benchmark": [], "pretraining": []}
    for code, part, name in rows:
        parts[part].append(Character(int(code[2:], 16), name))
    return {part: tuple(characters) for part, characters in parts.items()}


def benchmark_characters() -> tuple[Character, ...]:
    """The classes of the source `glyphs`, in code-point order. No backbone of ours was trained on them."""
    return _read()["benchmark"]


def pretraining_characters() -> tuple[Character, ...]:
    """What the embedded backbone learns, in code-point order; none of them is in the benchmark."""
    return _read()["pretraining"]


def font_file(face: str) -> str:
    """The path of a font face, which matplotlib brings along."""
    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf"))


@cache
def font(face: str, size: int) -> ImageFont.FreeTypeFont:
    """A font face at a size in pixels."""
    return ImageFont.truetype(font_file(face), size, layout_engine=ImageFont.Layout.BASIC)


def silhouette(character: str, face: str, size: int) -> Image.Image | None:
    """The ink of a character, cut to its edges; None if it has none."""
    type_ = font(face, size)
    left, top, right, bottom = (int(edge) for edge in type_.getbbox(character))
    canvas = Image.new("L", (max(right - left, 1) + 4, max(bottom - top, 1) + 4))
    ImageDraw.Draw(canvas).text((2 - left, 2 - top), character, fill=255, font=type_)
    box = canvas.getbbox()
    return canvas.crop(box) if box else None


def _shape(ink: Image.Image) -> NDArray[np.float32]:
    """Size-normalised, slightly blurred, with mean 0 and length 1: a dot product is a correlation."""
    scale = INNER / max(ink.size)
    width, height = (max(1, round(side * scale)) for side in ink.size)
    canvas = Image.new("L", (GRID, GRID))
    canvas.paste(ink.resize((width, height), Image.Resampling.BOX), ((GRID - width) // 2, (GRID - height) // 2))
    values = np.asarray(canvas.filter(ImageFilter.GaussianBlur(1)), np.float32).ravel()
    values = values - values.mean()
    return values / np.linalg.norm(values)  # type: ignore[no-any-return]


def distances(characters: Iterable[str]) -> NDArray[np.float32]:
    """How different each pair looks, in the face where it looks most alike: 0 the same, 1 unrelated."""
    characters = tuple(characters)
    closest = np.full((len(characters), len(characters)), -1.0, np.float32)
    for face in DESIGNS:
        inks = [silhouette(character, face, RASTER) for character in characters]
        shapes = np.stack([_shape(ink) for ink in inks if ink])  # (characters, GRID * GRID)
        np.maximum(closest, shapes @ shapes.T, out=closest)
    return 1 - closest


def composed(character: str) -> bool:
    """Whether it is made of others: é, ½, ™."""
    return unicodedata.normalize("NFKD", character) != character


def drawable() -> list[str]:
    """Characters that every face draws, and draws as more than a stroke, in code-point order."""
    from matplotlib.ft2font import FT2Font

    shared = set.intersection(*(set(FT2Font(font_file(face)).get_charmap()) for face in FACES))
    texts = [chr(code) for code in sorted(shared) if code not in BOXES and code < SPECIALS]
    texts = [text for text in texts if unicodedata.category(text) in DRAWN]
    inks = {text: silhouette(text, "DejaVuSans", RASTER) for text in texts}
    return [text for text, ink in inks.items() if ink and max(ink.size) <= SLENDER * min(ink.size)]


def distinct(characters: Sequence[str], apart: NDArray[np.float32]) -> list[int]:
    """Indices of characters that look different from all before them; plain characters come first."""
    kept: list[int] = []
    for threshold, want_composed in ((DISTINCT, False), (DISTINCT_COMPOSED, True)):
        for index, text in enumerate(characters):
            if composed(text) == want_composed and (not kept or apart[index, kept].min() >= threshold):
                kept.append(index)
    return kept


def familiar(character: str) -> bool:
    """Whether it may be a class of the benchmark."""
    named = unicodedata.category(character) in NAMED and not composed(character) and character not in TWO_FORMS
    return named and any(ord(character) in block for block in FAMILIAR)


def split_alphabet(characters: Sequence[str], apart: NDArray[np.float32], size: int) -> tuple[list[int], list[int]]:
    """Indices of `size` benchmark characters, drawn by ALPHABET_SEED, and of those left for pre-training."""
    benchmark: list[int] = []
    pool = [index for index, text in enumerate(characters) if familiar(text)]
    for index in map(int, seeds.stream(ALPHABET_SEED, "glyphs", "alphabet").permutation(pool)):
        if len(benchmark) < size and (not benchmark or apart[index, benchmark].min() >= CLEAR):
            benchmark.append(index)
    shown = {characters[index] for index in benchmark}
    rest = [
        index
        for index, text in enumerate(characters)
        if apart[index, benchmark].min() >= KIN and shown.isdisjoint(unicodedata.normalize("NFKD", text))
    ]
    return sorted(benchmark), rest


def readable(character: str) -> str:
    """`Ω greek capital omega` for GREEK CAPITAL LETTER OMEGA."""
    words = unicodedata.name(character).lower().split()
    return f"{character} {' '.join(word for word in words if word not in ('letter', 'digit', 'sign', 'with'))}"


def alphabet() -> list[str]:
    """The lines of `glyph_alphabet.txt`: code point, part, name."""
    texts = drawable()
    apart = distances(texts)
    kept = sorted(distinct(texts, apart))
    texts, apart = [texts[index] for index in kept], apart[np.ix_(kept, kept)]
    benchmark, pretraining = split_alphabet(texts, apart, BENCHMARK_SIZE)
    parts = dict.fromkeys(benchmark, "benchmark") | dict.fromkeys(pretraining, "pretraining")
    header = "# Made by scripts/make_glyph_alphabet.py: code point, part, name."
    return [header] + [f"U+{ord(texts[i]):04X}\t{parts[i]}\t{readable(texts[i])}" for i in sorted(parts)]

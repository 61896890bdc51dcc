"""How `glyphs` may look: a style is the ranges that an image of a character is drawn from.

`clean` is what the embedded backbone is pre-trained on. Every other style is reached from it by degrees:
`street@0.6` lies at 0.6 of the way from `clean` to `street`, in every range and every frequency. All are in
`glyph_styles.toml`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from zofc.data.glyph_alphabet import FACES
from zofc.errors import DataError, nearest

Range = tuple[float, float]
Frequencies = tuple[tuple[str, float], ...]  # of one choice among several; they sum to 1
CHOICES = ("faces", "backgrounds")  # the properties that are choices


def evenly(*choices: str) -> Frequencies:
    """Choices of equal frequency."""
    return tuple((choice, 1 / len(choices)) for choice in choices)


@dataclass(frozen=True)
class Style:
    """Ranges are uniform; lengths are in pixels of the 64, luminance and chroma in 0 to 1."""

    name: str
    faces: Frequencies
    size: Range = (0.55, 0.75)  # the character's longer side, as a share of the frame
    shift: float = 0.6  # off the center, as a share of the room left
    rotation: float = 8.0  # degrees, either way
    shear: float = 0.1
    stretch: float = 0.08  # log of width over height, either way
    tilt: float = 0.0  # perspective: relative change of scale across the frame, either way
    weight: Range = (-0.3, 0.5)  # strokes thinner (-1) or bolder (1) than the face's own
    hollow: float = 0.0  # how often only the outline is drawn
    speckle: Range = (0.0, 0.0)  # share of the ink that is missing, in grains
    glow: Range = (0.0, 0.0)  # light around the strokes
    ground: Range = (0.75, 1.0)  # luminance of the background
    contrast: Range = (0.55, 0.8)  # luminance of the character below (or, inverted, above) the background
    inverted: float = 0.0  # how often the character is lighter than its background
    chroma: Range = (0.0, 0.15)  # strength of both colours
    backgrounds: Frequencies = (("flat", 0.7), ("gradient", 0.3))
    texture: Range = (0.0, 0.1)  # luminance of the background's pattern, either way
    lines: float = 0.0  # how many stray lines are expected behind the character,
    scratches: float = 0.0  # ... and thin ones across it,
    blobs: float = 0.0
    fragments: float = 0.0  # parts of other characters, at the edge
    clutter: Range = (0.3, 0.6)  # contrast of all these, relative to the character's
    coarse: Range = (1.0, 1.0)  # pixels seen as one
    blur: Range = (0.0, 0.4)
    noise: Range = (0.0, 0.02)

    def at(self, strength: float) -> Style:
        """This style by degrees: `clean` at 0, itself at 1."""
        mixed: dict[str, float | Range | Frequencies] = {}
        for field in fields(self):
            near, far = getattr(CLEAN, field.name), getattr(self, field.name)
            if field.name in CHOICES:
                mixed[field.name] = _mix_frequencies(near, far, strength)
            elif isinstance(far, tuple):
                mixed[field.name] = (_mix(near[0], far[0], strength), _mix(near[1], far[1], strength))
            elif field.name != "name":
                mixed[field.name] = _mix(near, far, strength)
        return replace(self, **mixed)  # type: ignore[arg-type]


def _mix(near: float, far: float, strength: float) -> float:
    return near + (far - near) * strength


def _mix_frequencies(near: Frequencies, far: Frequencies, strength: float) -> Frequencies:
    mixed: dict[str, float] = {}
    for frequencies, share in ((near, 1 - strength), (far, strength)):
        for choice, frequency in frequencies:
            mixed[choice] = mixed.get(choice, 0.0) + share * frequency
    return tuple((choice, frequency) for choice, frequency in mixed.items() if frequency > 0)


def read_styles(text: str) -> dict[str, Style]:
    """Styles by name; of the choices that one lists, each is equally frequent."""

    def parsed(key: str, value: Any) -> Any:
        if key in CHOICES:
            return evenly(*value)
        return tuple(value) if isinstance(value, list) else value

    tables = tomllib.loads(text).items()
    return {name: Style(name, **{key: parsed(key, value) for key, value in own.items()}) for name, own in tables}


STYLES = read_styles(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CLEAN = STYLES["clean"]
DEFAULT = "street@0.5"  # what the benchmark shows


def style(spec: str) -> Style:
    """`NAME` or `NAME@STRENGTH`, where NAME is a style, or a face: the benchmark's style in that face."""
    name, _, degree = spec.partition("@")
    if name not in STYLES and name not in FACES:
        raise DataError(f"data.source: unknown style of glyphs '{name}'{nearest(name, [*STYLES, *FACES])}")
    try:
        strength = float(degree or 1)
    except ValueError:
        strength = -1.0
    if not 0 <= strength <= 1:
        raise DataError(f"data.source: '{spec}': the strength of a style is from 0 (clean) to 1, not '{degree}'")
    if name in STYLES:
        return STYLES[name].at(strength)
    base = STYLES[DEFAULT.partition("@")[0]].at(strength) if degree else style(DEFAULT)
    return replace(base, name=name, faces=evenly(name))

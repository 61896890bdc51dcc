"""How quantities and text are written and read, everywhere: bytes in binary units, durations, counts, percentages,
names, and what may not reach a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

NONE = "—"  # a value that there is not
MIB, GIB = 2**20, 2**30
# what a terminal obeys instead of showing it: control characters, and those that reverse the direction of text; and
# halves of characters, which no encoding has. Tab and line feed are layout.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")


def format_bytes(size: float | None) -> str:
    """Bytes in the largest binary unit that leaves a number above one: `1.5 MiB`."""
    if size is None:
        return NONE
    power = next((power for power in (3, 2, 1) if size >= 1024**power), 0)
    value, unit = size / 1024**power, ("B", "KiB", "MiB", "GiB")[power]
    return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def parse_bytes(text: str) -> int:
    """`400MB` is 400·10⁶ bytes, `1.5GiB` is 1.5·2³⁰; ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b", text.strip().lower())
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** (1 + "kmgt".index(found[2]))) if found else 0
    if not size:
        raise ValueError(f"expected a size such as 400MB or 1.5GiB, or auto, got '{text}'")
    return size


def format_duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them: `12.3 ms`, `2.34 s`, `2.1 min`, `2.0 h`."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def format_count(count: int | None) -> str:
    """How many of something, shortened from ten thousand on: `3,840`, `42.3 k`, `3.84 M`."""
    if count is None:
        return NONE
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1e3:.1f} k" if count < 1e6 else f"{count / 1e6:.2f} M"


def format_percent(value: float | None, digits: int = 2) -> str:
    """A number of percent or of percentage points, without its unit."""
    return NONE if value is None else f"{value:.{digits}f}".replace("-", "−")


def format_signed(value: float | None) -> str:
    """A difference of percentages, with its sign."""
    return NONE if value is None else f"{value:+.2f}".replace("-", "−")


def format_names(names: Sequence[str], most: int = 5) -> str:
    """The first names and how many more there are: `a, b, c and 37 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def printable(text: str) -> str:
    """Text that only shows: what a terminal would obey is written as an escape, such as \\x1b."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)

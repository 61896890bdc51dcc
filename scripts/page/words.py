"""Prose and lists of a page in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from zofc.report.grid import Grid


def prose(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {prose(line, '  ')}" for line in lines)


def listed(words: Sequence[object]) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> str:
    return Grid(tuple(headers), tuple(map(tuple, rows)), names=names).markdown().strip()


def folded(summary: str, text: str) -> str:
    """What is shown when asked for."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"

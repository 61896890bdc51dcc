"""The one table of the project: a grid of words, laid out for the terminal (rich), for Markdown or by the page.

`console.print(grid)` fits it into the width there is, splitting it into several parts rather than cutting a number
short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from zofc.units import printable


@dataclass(frozen=True)
class Grid:
    """A table of words, whose first columns name the row. Warnings and notes stand below it."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    names: int = 1  # how many columns are names, set to the left
    keys: tuple[tuple[float | None, ...], ...] = ()  # what rows are sorted by, a number for each further column

    def transposed(self, corner: str) -> Grid:
        """The same with its rows as columns; `corner` is what the first then holds."""
        (_, *headers), *rows = zip(self.headers, *self.rows, strict=True)
        return replace(self, headers=(corner, *headers), rows=tuple(rows))

    def markdown(self) -> str:
        """The table in Markdown."""
        marks = tuple("---" if number < self.names else "---:" for number in range(len(self.headers)))
        lines = (self.headers, marks, *self.rows)
        table = "\n".join("| " + " | ".join(_markdown(cell) for cell in line) + " |" for line in lines)
        below = [f"**Warning:** {_markdown(text)}" for text in self.warnings] + [_markdown(text) for text in self.notes]
        return "\n\n".join([f"### {_markdown(self.title)}"] * bool(self.title) + [table, *below]) + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(printable(self.title), style="bold")
        for number, (part, widths) in enumerate(self._parts(options.max_width)):
            if number:
                yield ""
            yield part._table(widths)
        for text in self.warnings:
            yield Text(f"Warning: {printable(text)}", style="yellow")
        for text in self.notes:
            yield Text(printable(text), style="dim")

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), show_header=any(self.headers)
        )
        for number, (header, width) in enumerate(zip(self.headers, widths, strict=True)):
            side: JustifyMethod = "left" if number < self.names else "right"
            table.add_column(Text(printable(header)), width=width, overflow="fold", justify=side)
        for row in self.rows:
            table.add_row(*[Text(printable(cell)) for cell in row])
        return table

    def _parts(self, width: int, gap: int = 2) -> Iterator[tuple[Grid, list[int]]]:
        """Pieces with as many columns as fit, the first column repeated, without rows that are empty in a piece."""
        columns = list(zip(self.headers, *self.rows, strict=True))
        narrow = [_narrowest(column, 18 if number else width // 3) for number, column in enumerate(columns)]
        taken: list[list[int]] = [[]]
        for number in range(1, len(columns)):
            if taken[-1] and sum(narrow[n] + gap for n in (*taken[-1], number)) + narrow[0] > width:
                taken.append([])
            taken[-1].append(number)
        for numbers in taken if len(columns) > 1 else ():
            keep = [0, *numbers]
            rows = [tuple(row[n] for n in keep) for row in self.rows]
            rows = [row for row in rows if any(row[1:])] if len(taken) > 1 else rows
            names = sum(number < self.names for number in keep)
            part = Grid(tuple(self.headers[n] for n in keep), tuple(rows), names=names)
            room = width - gap * (len(keep) - 1)
            lines = [[line for cell in columns[n] for line in (cell or " ").split("\n")] for n in keep]
            yield part, _widths([narrow[n] for n in keep], [max(map(cell_len, some)) for some in lines], room, names)


def _markdown(text: str) -> str:
    for sign in "\\|<*`[":
        text = text.replace(sign, f"\\{sign}")
    return printable(text).replace("\n", "<br>")


def _narrowest(column: Sequence[str], limit: int) -> int:
    """The smallest width that breaks no word and no short cell and stacks no cell, at most `limit`."""
    lines = [line for cell in column[1:] for line in cell.split("\n")]
    whole = [cell_len(line) if cell_len(line) <= 12 else cell_len(line) // 3 for line in lines]
    words = [cell_len(word) for cell in column for word in cell.split()]
    return min(limit, max((*whole, *words), default=1))


def _widths(narrow: Sequence[int], wide: Sequence[int], room: int, names: int) -> list[int]:
    """Widths between the two: the room left over goes to the names first, then to the narrowest that lacks some."""
    widths = list(narrow)
    while sum(widths) > room and max(widths) > 1:  # only where a single column is wider than the terminal
        widths[widths.index(max(widths))] -= 1
    for some in (range(names), range(len(widths))):
        for _ in range(room - sum(widths)):
            lacking = [number for number in some if widths[number] < wide[number]]
            if lacking:
                widths[min(lacking, key=widths.__getitem__)] += 1
    return widths

"""Mutations: of bytes, of trees of values (YAML, JSON), and hostile values to put in the place of ordinary ones."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

Tree = Any  # mappings, lists and scalars
Path_ = tuple[Any, ...]

ESCAPES = ("\x1b]0;owned\x07", "\x1b[2J\x1b[H", "a\rb", "\x9b31m", "\u202egnp.exe")
TEXTS = (
    "", " ", "a" * 300, "a" * 5000, "nul\x00byte", "../../etc/passwd", "/etc/passwd", "~", "~nosuchuser/x", "~root",
    "/dev/zero", "/dev/stdin", ".", "..", "/", "name with spaces", "ünïcödé", "\udcff", "💣", "%s%n", "{0}", "${HOME}",
    "$(id)", "[bold]x[/]", "[/]", "<script>alert(1)</script>", "'", '"', "\\", "\n", "a\nb", "\t", "null", "true", "-1",
    "0x10", "1e999", "nan", "inf", "-inf", "folder:", "folder:/", "folder:.", "parquet:/etc/passwd", "glyphs:",
    "glyphs:x=y",
    "folder:/dev", "first 0", "first -1", "first 99999999999", "last 1e9", "all all", "cuda:99", "cpu:7", "meta", "1PB",
    "0B", "-1GB", "1e30GB", "NaNMB", *ESCAPES,
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**9, 10**12, 10**21, 10**400, -(10**9),
    -(2**63), 0.0, -0.0, 0.5, 1.5, -0.5, 1e-300, 5e-324, 1e300, 1e308, -1e308, float("inf"), float("-inf"),
      float("nan"),
    1e-9, 1 - 1e-16, 1000, 100_000, 1_000_000,
)  # fmt: skip


def hostile_value(draw: random.Random, depth: int = 2) -> Tree:
    """A value that a setting seldom has; lists and mappings nest only so deep."""
    match draw.randrange(10 if depth else 8):
        case 0 | 1 | 2 | 3:
            return draw.choice(NUMBERS)
        case 4 | 5 | 6:
            return draw.choice(TEXTS)
        case 7:
            return draw.choice([None, True, False])
        case 8:
            return [hostile_value(draw, depth - 1) for _ in range(draw.choice([0, 1, 2, 3, 50]))]
    return {
        draw.choice((*TEXTS[:12], "a", "lr", "name")): hostile_value(draw, depth - 1)
        for _ in range(draw.choice([0, 1, 2]))
    }


def hostile_text(draw: random.Random) -> str:
    """A hostile value as it would stand on a command line."""
    value = hostile_value(draw)
    return value if isinstance(value, str) else repr(value).replace("True", "true").replace("None", "null")


def like(draw: random.Random, value: Tree) -> Tree:
    """A hostile value of the same type, or nearly."""
    if isinstance(value, bool) or value is None:
        return hostile_value(draw)
    if isinstance(value, int):
        return draw.choice([number for number in NUMBERS if isinstance(number, int)])
    if isinstance(value, float):
        return float(draw.choice([number for number in NUMBERS if isinstance(number, float) or number < 10**300]))
    return draw.choice(TEXTS) if isinstance(value, str) else hostile_value(draw)


def nearby_number(draw: random.Random, value: float) -> float:
    """A number derived from an ordinary one, or from one that is itself hostile."""
    value = value if abs(value) < 10**300 else 1e300
    return draw.choice([-value, value + 1, value - 1, value * 10**6, value * 1e-6, value * 1e300, value / 3, value * 2])


# -- trees -----------------------------------------------------------------------------------------------------------


def places(tree: Tree, path: Path_ = ()) -> Iterator[Path_]:
    """The path of every value below the top."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def at(tree: Tree, path: Path_) -> Tree:
    """The value at a path."""
    for key in path:
        tree = tree[key]
    return tree


def mutate_tree(draw: random.Random, tree: Tree, times: int = 1) -> Tree:
    """A copy with so many changes: values replaced, keys renamed, dropped or moved, values wrapped or nested."""
    tree = copy.deepcopy(tree)
    for _ in range(times):
        paths = list(places(tree))
        if not paths:
            return hostile_value(draw)
        path = draw.choice(paths)
        holder, key = at(tree, path[:-1]), path[-1]
        _change(draw, tree, holder, key, paths)
    return tree


def _change(draw: random.Random, tree: Tree, holder: Tree, key: Any, paths: Sequence[Path_]) -> None:
    """Change one entry of a mapping or list."""
    value = holder[key]
    match draw.randrange(12):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw.choice([str(key).upper(), f"{key}x", "", hostile_value(draw)][:3])] = holder.pop(key)
        case 2:
            holder[key] = copy.deepcopy(at(tree, draw.choice(list(paths))))
        case 3:
            holder[key] = [copy.deepcopy(value)]
        case 4:
            holder[key] = {"value": copy.deepcopy(value)}
        case 5:
            holder[key] = nested(draw.choice([3, 60]), value)
        case 6 | 7 if isinstance(value, int | float) and not isinstance(value, bool):
            holder[key] = nearby_number(draw, value)
        case 6 | 7 if isinstance(value, str):
            holder[key] = mutate_text(draw, value)
        case 9 | 10:
            holder[key] = like(draw, value)
        case 8 if isinstance(value, list):
            holder[key] = value * draw.choice([0, 2, 100])
        case _:
            holder[key] = hostile_value(draw)


def nested(depth: int, value: Tree) -> Tree:
    """A value in so many lists."""
    for _ in range(depth):
        value = [value]
    return value


def mutate_text(draw: random.Random, text: str) -> str:
    """A text with something added, repeated or left out."""
    place = draw.randrange(len(text) + 1)
    return draw.choice([
        text[:place] + draw.choice(TEXTS) + text[place:], text[:place], text * 50, text.swapcase(),
        text[:place] + draw.choice(ESCAPES) + text[place:],
    ])  # fmt: skip


# -- bytes -----------------------------------------------------------------------------------------------------------


def mutate_bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes changed, inserted, left out, repeated or cut off; sometimes all of them."""
    content = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        size = len(content)
        place = draw.randrange(size + 1)
        count = draw.choice([1, 2, 4, 8, 64, 1000])
        match draw.randrange(9):
            case 0 | 1 if size:
                content[place % size] ^= 1 << draw.randrange(8)
            case 2:
                content[place : place + count] = draw.randbytes(count)
            case 3:
                content[place:place] = draw.randbytes(count)
            case 4:
                del content[place : place + count]
            case 5:
                content[place:place] = content[place : place + count]
            case 6:
                del content[place:]
            case 7:
                content[place : place + 4] = draw.choice(
                    [b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"]
                )
            case _ if draw.random() < 0.2:
                content[:] = draw.choice([b"", b"\x00" * 1000, draw.randbytes(500), b"\xff\xfe", bytes(content[::-1])])
    return bytes(content)

"""Finding recipe files, shipped or the user's, and following `extends` depth first.

A shipped file is a table: settings that a family of recipes shares and, under `rows`, what sets each recipe apart.
The recipe `zofc/cifar100-inc5` is the row `cifar100-inc5` of `zofc.yaml`: what the row extends, the shared settings
over it, the row's own on top. `extends: zofc` takes the shared settings alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import count
from pathlib import Path

from zofc.errors import RecipeError, nearest
from zofc.limits import RECIPE_BYTES, RECIPE_FILES
from zofc.paths import explain_os_error, path_kind, why_unreadable
from zofc.recipe.layers import Layer, Value, quote
from zofc.recipe.parse import read_text
from zofc.units import printable

ROW = re.compile(r"^  ([\w.-]+):", re.MULTILINE)


@dataclass(frozen=True)
class RecipeFile:
    """A recipe file, or a row of a shipped table. A shipped one is known by name, a user's by path."""

    label: str
    name: str
    content: Traversable
    folder: Path | None  # where relative `extends` start; None for a shipped file
    row: str | None = None

    def layer(self) -> Layer:
        """The keys it holds itself."""
        if self.folder is not None:
            return read_text(file_text(self.content, self.label), self.label)
        table = read_table(self.label)
        if self.row is not None:
            return table.part("rows", self.row)
        name = self.label.removesuffix(".yaml")
        family: dict[str, Value] = {} if name.startswith("_") else {"family": name}  # searched rates are listed by it
        return replace(table, values={**family, **table.without("rows").values})

    def __str__(self) -> str:
        return self.label if self.row is None else self.name


def file_text(content: Traversable, label: str) -> str:
    """The text of a file, which must be UTF-8."""
    if isinstance(content, Path) and (reason := why_unreadable(content, RECIPE_BYTES)):
        raise RecipeError(f"{label}: cannot be read: {reason}")
    try:
        return content.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{label}: not UTF-8 text ({error.reason}, byte {error.start})") from error
    except OSError as error:
        raise RecipeError(f"{label}: cannot be read ({explain_os_error(error)})") from error


@cache
def shipped_tables() -> dict[str, Traversable]:
    """Every file under `recipes/` by its name."""
    files = sorted((resources.files("zofc") / "recipes").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


@cache
def read_table(label: str) -> Layer:
    """A shipped table, read once."""
    return read_text(file_text(shipped_tables()[label.removesuffix(".yaml")], label), label)


@cache
def row_names(table: str) -> tuple[str, ...]:
    """The rows of a shipped table, found without parsing it."""
    text = shipped_tables()[table].read_text("utf-8").partition("\nrows:\n")[2]
    return tuple(sorted(ROW.findall(text)))


def shipped_names() -> list[str]:
    """The shipped recipes; building blocks, whose names begin with `_`, are left out."""
    return [f"{table}/{row}" for table in shipped_tables() if not table.startswith("_") for row in row_names(table)]


def find_file(reference: str, folder: Path | None) -> RecipeFile:
    """A shipped recipe or table by name, else a file by path, relative to `folder`."""
    tables, (table, _, row) = shipped_tables(), reference.partition("/")
    if reference in tables or (table in tables and row in row_names(table)):
        return RecipeFile(f"{table}.yaml", reference, tables[table], None, row or None)
    if folder is not None and _is_there(path := folder / reference):
        return RecipeFile(str(path), path.stem, path.resolve(), path.parent)
    if (name := reference.removesuffix(".yaml")) in shipped_names():
        raise RecipeError(f"no file '{reference}'; the shipped recipe is called '{name}'")
    raise RecipeError(f"no recipe or file '{reference}'{suggest(name)}")


def _is_there(path: Path) -> bool:
    """Whether there is a file to read; a pipe or a device is one that is refused when it is read."""
    try:
        return path_kind(path) in ("file", "special")
    except OSError as error:
        raise RecipeError(f"recipe {printable(str(path))[:300]}: {explain_os_error(error)}") from error


def suggest(name: str) -> str:
    """The nearest recipe, of the same family if there is such a family."""
    recipes = shipped_names()
    same = [recipe for recipe in recipes if recipe.startswith(f"{name.partition('/')[0]}/")]
    hint = nearest(name, same or recipes)
    if hint.startswith("; known") and (folders := nearest(name, _folders_beside(name))).startswith("; did"):
        return folders
    return "; `zofc list recipes` shows those there are" if hint.startswith("; known") else hint


def _folders_beside(name: str) -> list[str]:
    """Folders where `name` would be, as they are written: perhaps it is one of images, mistyped."""
    path = Path(name)
    try:
        return [str(path.parent / entry.name) for entry in path.parent.iterdir() if entry.is_dir()]
    except (OSError, ValueError):
        return []


def read_files(reference: str) -> Layer:
    """A recipe over everything it extends; `name` is what the file gives, or what it is called."""
    file = find_file(reference, Path())
    if file.folder is None and file.name.startswith("_"):
        raise RecipeError(f"{file} is a building block for `extends`, not a recipe of its own")
    if file.folder is None and file.row is None:
        names = ", ".join(f"{file.name}/{row}" for row in row_names(file.name))
        raise RecipeError(f"'{file.name}' is a family of recipes: {names}")
    layer = read_extended(file, (), count(1))
    return replace(layer, values={"name": file.name, **layer.values})


def read_extended(file: RecipeFile, chain: tuple[RecipeFile, ...], reads: Iterator[int]) -> Layer:
    """The file over everything it extends; `name` is not inherited. `reads` counts the files."""
    if next(reads) > RECIPE_FILES:
        raise RecipeError(f"{file}: it extends more than {RECIPE_FILES} files, the limit of a recipe")
    own = file.layer()
    chain = (*chain, file)
    problems = list(own.problems)
    below = Layer(file.label)
    parents = own.values.get("extends", ())
    for reference in parents if isinstance(parents, tuple) else (parents,):
        try:
            if not isinstance(reference, str):
                raise RecipeError(f"expected a name or a path, got {quote(reference)}")
            parent = find_file(reference, file.folder)
            circle = [link for link in chain if (link.content, link.row) == (parent.content, parent.row)]
            if circle:
                circle = [*chain[chain.index(circle[0]) :], parent]
                raise RecipeError(f"goes in a circle: {' -> '.join(map(str, circle))}")
        except RecipeError as error:
            problems.append(own.problem(("extends",), str(error)))
        else:
            below |= read_extended(parent, chain, reads).without("name")
    if file.row is not None:
        below |= read_extended(replace(file, row=None), chain, reads)
    return below | replace(own.without("extends"), problems=tuple(problems))

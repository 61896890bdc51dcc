"""Finding recipe files, shipped or the user's, and following `extends` depth first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from zofc.errors import RecipeError, nearest
from zofc.recipe.layers import Layer, Value, quote
from zofc.recipe.parse import read_text


@dataclass(frozen=True)
class File:
    """A recipe file: a shipped one is known by name, a user's by path."""

    label: str
    name: str
    content: Traversable
    folder: Path | None  # where relative `extends` start; None for a shipped file

    def text(self) -> str:
        try:
            return self.content.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise RecipeError(f"{self.label}: not UTF-8 text ({error.reason}, byte {error.start})") from error
        except OSError as error:
            raise RecipeError(f"{self.label}: cannot be read ({error.strerror})") from error


@cache
def shipped_files() -> dict[str, Traversable]:
    """Every file under `recipes/` by its name, building blocks included."""

    def walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".yaml"):
                yield prefix + entry.name.removesuffix(".yaml"), entry

    return dict(walk(resources.files("zofc") / "recipes", ""))


def is_block(name: str) -> bool:
    """Building blocks have a `_` before their name or their folder's."""
    return any(part.startswith("_") for part in name.split("/"))


def find_file(reference: str, folder: Path | None) -> File:
    """A shipped recipe by name, else a file by path, relative to `folder`."""
    known = shipped_files()
    if reference in known:
        return File(f"{reference}.yaml", reference, known[reference], None)
    if folder is not None and (path := folder / reference).is_file():
        return File(str(path), path.stem, path.resolve(), path.parent)
    if (name := reference.removesuffix(".yaml")) in known:
        raise RecipeError(f"no file '{reference}'; the shipped recipe is called '{name}'")
    raise RecipeError(f"no recipe or file '{reference}'{suggestion(name)}")


def suggestion(name: str) -> str:
    """The nearest recipe, of the same method if there is such a method."""
    recipes = [recipe for recipe in shipped_files() if not is_block(recipe)]
    same = [recipe for recipe in recipes if recipe.startswith(f"{name.partition('/')[0]}/")]
    hint = nearest(name, same or recipes)
    return "; `zofc list recipes` shows those there are" if hint.startswith("; known") else hint


def read_files(reference: str) -> Layer:
    """A recipe over all that it extends; `name` is what the file gives, or what it is called."""
    file = find_file(reference, Path())
    if file.folder is None and is_block(file.name):
        raise RecipeError(f"{file.label} is a building block for `extends`, not a recipe of its own")
    layer = read_extended(file, ())
    return replace(layer, values={"name": file.name, **layer.values})


def read_extended(file: File, chain: tuple[File, ...]) -> Layer:
    """The file over all that it extends; `name` is not inherited."""
    own = read_text(file.text(), file.label)
    chain = (*chain, file)
    problems = list(own.problems)
    below = Layer(file.label)
    for parent in parent_references(own):
        try:
            if not isinstance(parent, str):
                raise RecipeError(f"expected a name or a path, got {quote(parent)}")
            found = refuse_circle(find_file(parent, file.folder), chain)
        except RecipeError as error:
            problems.append(own.problem(("extends",), str(error)))
        else:
            below |= read_extended(found, chain).without("name")
    return below | replace(own.without("extends"), problems=tuple(problems))


def parent_references(layer: Layer) -> tuple[Value, ...]:
    value = layer.values.get("extends", ())
    return value if isinstance(value, tuple) else (value,)


def refuse_circle(file: File, chain: tuple[File, ...]) -> File:
    for number, link in enumerate(chain):
        if link.content == file.content:
            circle = " -> ".join(one.label for one in (*chain[number:], file))
            raise RecipeError(f"goes in a circle: {circle}")
    return file

"""Recipe files as layers: plain values, each remembering the file and line in which it was written.

Files are YAML with the scalars of YAML 1.2 (`1e-3` is a number, `yes` is text, `010` is ten); lists become
tuples. `extends` is followed depth first and later layers win: mappings are merged key by key, all else is
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from zofc.errors import RecipeError, nearest

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | dict[str, Value] | None"
Key: TypeAlias = tuple[str | int, ...]

COMMAND_LINE = "command line"
FILE_KEYS = ("extends", "presets", "resolved")  # they shape a file and are no part of the recipe itself


@dataclass(frozen=True)
class Problem:
    """One thing to mend, and where."""

    file: str
    line: int | None
    key: Key
    text: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join([where, *([dotted(self.key)] if self.key else []), self.text])


@dataclass(frozen=True)
class Origin:
    """Where a key was written; `key` is how that file spells it (overlays: `presets.NAME.…`)."""

    file: str
    line: int | None
    key: Key


@dataclass(frozen=True)
class Layer:
    """Values of a recipe, complete or not, with the origin of every key."""

    file: str
    values: dict[str, Value] = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def __or__(self, top: Layer) -> Layer:
        """This layer with another one over it."""
        origins = {**self.origins, **top.origins}
        return Layer(self.file, merged(self.values, top.values), origins, self.problems + top.problems)

    def without(self, *names: str) -> Layer:
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})

    def part(self, *prefix: str) -> Layer:
        """The mapping under `prefix` as a layer of its own; empty where there is none."""
        value: Value = self.values
        for name in prefix:
            value = value.get(name) if isinstance(value, dict) else None
        depth = len(prefix)
        origins = {key[depth:]: origin for key, origin in self.origins.items() if key[:depth] == prefix}
        return Layer(self.file, value if isinstance(value, dict) else {}, origins)

    def origin(self, key: Key) -> Origin:
        """Where `key` came from; for what was never written, where the mapping around it came from."""
        for length in range(len(key), 0, -1):
            if found := self.origins.get(key[:length]):
                return replace(found, key=found.key + key[length:])
        return Origin(self.file, None, key)

    def problem(self, key: Key, text: str) -> Problem:
        origin = self.origin(key)
        return Problem(origin.file, origin.line, origin.key, text)


def merged(base: dict[str, Value], top: dict[str, Value]) -> dict[str, Value]:
    both = dict(base)
    for name, value in top.items():
        below = both.get(name)
        both[name] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both


def dotted(key: Key) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def shown(value: Value) -> str:
    """A value as a message quotes it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return f"the keys {', '.join(value)}" if value else "an empty mapping"
    text = f"[{', '.join(map(shown, value))}]" if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# YAML

TAG = "tag:yaml.org,2002:"
DIGITS = list("-+.0123456789")
PLAIN = {  # what an unquoted scalar is taken for, and the characters it may start with
    "null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "int": (re.compile(r"[-+]?[0-9]+\Z"), DIGITS),
    "float": (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"), DIGITS),
}


class Reader(yaml.SafeLoader):
    """PyYAML's safe reader with the scalars of YAML 1.2 in place of those of 1.1."""


class Writer(yaml.SafeDumper):
    """Lists on one line, no aliases; text that either version of YAML takes for a number is quoted."""

    def ignore_aliases(self, data: object) -> bool:
        return True


Reader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first) in PLAIN.items():
    Reader.add_implicit_resolver(TAG + _kind, _pattern, _first)
Writer.add_implicit_resolver(TAG + "float", PLAIN["float"][0], DIGITS)
Writer.add_representer(tuple, lambda writer, items: writer.represent_sequence(TAG + "seq", items, True))
Writer.add_representer(  # PyYAML loses unusual line breaks outside double quotes
    str,
    lambda writer, text: writer.represent_scalar(TAG + "str", text, None if text.isprintable() else '"'),
)


def write_yaml(values: dict[str, Any]) -> str:
    return yaml.dump(values, Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)


class NotYamlError(ValueError):
    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(f"not valid YAML: {reason}")
        self.line = line


def compose(text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=Reader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYamlError(error.problem or "cannot be read", mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:
        raise NotYamlError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise NotYamlError("nested too deeply") from error
    return node


def scalar(text: str, kind: str | None = None) -> Value:
    """One unquoted scalar, or one whose kind is already known."""
    kind = kind or next((name for name, (pattern, _) in PLAIN.items() if pattern.match(text)), "str")
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "str":
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ValueError(f"{text!r} is not valid Unicode text")
            return text
    raise ValueError(f"the tag '{kind}' has no meaning in a recipe")


class Document:
    """Turns YAML nodes into values, noting where each key stands and what cannot be read."""

    def __init__(self, file: str, lines: bool = True) -> None:
        self.file, self.lines = file, lines
        self.origins: dict[Key, Origin] = {}
        self.problems: list[Problem] = []
        self._around: list[yaml.Node] = []  # the collections that hold the current node

    def value(self, node: yaml.Node, key: Key) -> Value:
        try:
            return self._value(node, key)
        except ValueError as error:
            self._complain(node, key, str(error))
            return None

    def _value(self, node: yaml.Node, key: Key) -> Value:
        kind = node.tag.removeprefix(TAG)
        if isinstance(node, yaml.ScalarNode):
            return scalar(node.value, kind)
        if any(node is outer for outer in self._around):
            raise ValueError("an alias to a value that contains it")
        self._around.append(node)
        try:
            if isinstance(node, yaml.MappingNode) and kind == "map":
                return dict(self._items(node, key))
            if isinstance(node, yaml.SequenceNode) and kind == "seq":
                return tuple(self.value(item, (*key, number)) for number, item in enumerate(node.value))
        finally:
            self._around.pop()
        raise ValueError(f"the tag '{kind}' has no meaning in a recipe")

    def _items(self, node: yaml.MappingNode, key: Key) -> Iterator[tuple[str, Value]]:
        lines: dict[str, int] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                self._complain(name_node, key, "a key must be a plain word")
                continue
            name = str(name_node.value)
            here = (*key, name)
            if name in lines:
                first = f", first on line {lines[name]}" if self.lines else ""
                self._complain(name_node, here, f"given twice{first}; keep one of them")
                continue
            lines[name] = name_node.start_mark.line + 1
            self.origins[here] = Origin(self.file, self._line(name_node), here)
            yield name, self.value(value_node, here)

    def _complain(self, node: yaml.Node, key: Key, text: str) -> None:
        self.problems.append(Problem(self.file, self._line(node), key, text))

    def _line(self, node: yaml.Node) -> int | None:
        return node.start_mark.line + 1 if self.lines else None


def read_text(text: str, file: str) -> Layer:
    """One file's own keys."""
    try:
        node = compose(text)
    except NotYamlError as error:
        raise RecipeError(str(Problem(file, error.line, (), str(error)))) from error
    document = Document(file)
    values = {} if node is None else document.value(node, ())
    if not isinstance(values, dict):
        raise RecipeError(f"{file}: expected keys with values, such as `seed: 1993`, got {shown(values)}")
    return Layer(file, values, document.origins, tuple(document.problems))


# The command line


def read_overrides(overrides: str | Sequence[str]) -> Layer:
    """`dotted.key=value` each, later ones over earlier ones."""
    texts = [overrides] if isinstance(overrides, str) else overrides
    return reduce(Layer.__or__, map(read_override, texts), Layer(COMMAND_LINE))


def read_override(text: str) -> Layer:
    """A value that opens with a bracket or a quote is YAML, any other is one scalar as it stands."""
    name, equals, raw = text.partition("=")
    key = tuple(name.strip().split("."))
    document = Document(COMMAND_LINE, lines=False)

    def refused(reason: str, key: Key = key) -> Layer:
        return Layer(COMMAND_LINE, problems=(Problem(COMMAND_LINE, None, key, reason),))

    if not equals or not all(key):
        return refused(f"{text!r} is not of the form key=value, such as data.increment=10", ())
    if key[0] in FILE_KEYS:
        return refused("belongs in a file; on the command line, preset=NAME chooses a preset")
    raw = raw.strip()
    try:
        node = compose(raw) if raw.startswith(("[", "{", '"', "'")) else None
        value = scalar(raw) if node is None else document.value(node, key)
    except ValueError as error:
        return refused(str(error))
    values: dict[str, Value] = {key[-1]: value}
    for part in reversed(key[:-1]):
        values = {part: values}
    steps: dict[Key, Origin] = {
        key[:length]: Origin(COMMAND_LINE, None, key[:length]) for length in range(1, len(key) + 1)
    }
    return Layer(COMMAND_LINE, values, {**steps, **document.origins}, tuple(document.problems))


# Files


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
def shipped() -> dict[str, Traversable]:
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


def find(reference: str, folder: Path | None) -> File:
    """A shipped recipe by name, else a file by path, relative to `folder`."""
    known = shipped()
    if reference in known:
        return File(f"{reference}.yaml", reference, known[reference], None)
    if folder is not None and (path := folder / reference).is_file():
        return File(str(path), path.stem, path.resolve(), path.parent)
    if (name := reference.removesuffix(".yaml")) in known:
        raise RecipeError(f"no file '{reference}'; the shipped recipe is called '{name}'")
    raise RecipeError(f"no recipe or file '{reference}'{suggestion(name)}")


def suggestion(name: str) -> str:
    """The nearest recipe, of the same method if there is such a method."""
    recipes = [recipe for recipe in shipped() if not is_block(recipe)]
    same = [recipe for recipe in recipes if recipe.startswith(f"{name.partition('/')[0]}/")]
    hint = nearest(name, same or recipes)
    return "; `zofc list recipes` shows those there are" if hint.startswith("; known") else hint


def read_files(reference: str) -> Layer:
    """A recipe over all that it extends; `name` is what the file gives, or what it is called."""
    file = find(reference, Path())
    if file.folder is None and is_block(file.name):
        raise RecipeError(f"{file.label} is a building block for `extends`, not a recipe of its own")
    layer = gather(file, ())
    return replace(layer, values={"name": file.name, **layer.values})


def gather(file: File, chain: tuple[File, ...]) -> Layer:
    """The file over all that it extends; `name` is not inherited."""
    own = read_text(file.text(), file.label)
    chain = (*chain, file)
    problems = list(own.problems)
    below = Layer(file.label)
    for parent in parents(own):
        try:
            if not isinstance(parent, str):
                raise RecipeError(f"expected a name or a path, got {shown(parent)}")
            found = acyclic(find(parent, file.folder), chain)
        except RecipeError as error:
            problems.append(own.problem(("extends",), str(error)))
        else:
            below |= gather(found, chain).without("name")
    return below | replace(own.without("extends"), problems=tuple(problems))


def parents(layer: Layer) -> tuple[Value, ...]:
    value = layer.values.get("extends", ())
    return value if isinstance(value, tuple) else (value,)


def acyclic(file: File, chain: tuple[File, ...]) -> File:
    for number, link in enumerate(chain):
        if link.content == file.content:
            circle = " -> ".join(one.label for one in (*chain[number:], file))
            raise RecipeError(f"goes in a circle: {circle}")
    return file

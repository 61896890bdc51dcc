"""From text to layers: YAML with the scalars of YAML 1.2 (`1e-3` is a number, `yes` is text, `010` is ten), lists as
tuples; and `dotted.key=value` from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import yaml

from zofc.errors import RecipeError
from zofc.limits import RECIPE_BYTES, RECIPE_DEPTH, RECIPE_VALUES
from zofc.recipe.layers import Key, Layer, Origin, Problem, Value, quote

COMMAND_LINE = "command line"
FILE_KEYS = ("extends", "presets", "resolved", "family")  # they shape a file and are no part of the recipe itself


TAG = "tag:yaml.org,2002:"
NUMBER_STARTS = list("-+.0123456789")
PLAIN = {  # what an unquoted scalar is taken for, and the characters it may start with
    "null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "int": (re.compile(r"[-+]?[0-9]+\Z"), NUMBER_STARTS),
    "float": (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"), NUMBER_STARTS),
}


class Reader(yaml.SafeLoader):
    """PyYAML's safe reader with the scalars of YAML 1.2 in place of those of 1.1."""


class Writer(yaml.SafeDumper):
    """Lists on one line, no aliases; text that either version of YAML takes for a number is quoted."""

    def ignore_aliases(self, _data: object) -> bool:
        """Write repeated values out."""
        return True


Reader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first) in PLAIN.items():
    Reader.add_implicit_resolver(TAG + _kind, _pattern, _first)
Writer.add_implicit_resolver(TAG + "float", PLAIN["float"][0], NUMBER_STARTS)
Writer.add_representer(tuple, lambda writer, items: writer.represent_sequence(TAG + "seq", items, True))
Writer.add_representer(  # PyYAML loses unusual line breaks outside double quotes
    str,
    lambda writer, text: writer.represent_scalar(TAG + "str", text, None if text.isprintable() else '"'),
)


def write_yaml(values: dict[str, Any]) -> str:
    """Values as YAML text, in their order."""
    return yaml.dump(values, Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)


class NotYamlError(ValueError):
    """Text that is not YAML, with the line if it is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(f"not valid YAML: {reason}")
        self.line = line


def parse_yaml(text: str) -> yaml.Node | None:
    """The syntax tree of a text, which knows its lines."""
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


def parse_scalar(text: str, kind: str | None = None) -> Value:
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
        self._values = 0  # how many were made

    def value(self, node: yaml.Node, key: Key) -> Value:
        """The value of a node; what is wrong with it is collected."""
        try:
            return self._value(node, key)
        except ValueError as error:
            self._complain(node, key, str(error))
            return None

    def _value(self, node: yaml.Node, key: Key) -> Value:
        kind = node.tag.removeprefix(TAG)
        self._values += 1
        if self._values > RECIPE_VALUES:  # aliases of aliases multiply
            raise RecipeError(f"{self.file}: more than {RECIPE_VALUES:,} values, the limit of a recipe")
        if len(key) > RECIPE_DEPTH:
            raise RecipeError(f"{self.file}: keys nested more than {RECIPE_DEPTH} deep, the limit of a recipe")
        if isinstance(node, yaml.ScalarNode):
            return parse_scalar(node.value, kind)
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
        node = parse_yaml(text)
    except NotYamlError as error:
        raise RecipeError(str(Problem(file, error.line, (), str(error)))) from error
    document = Document(file)
    values = {} if node is None else document.value(node, ())
    if not isinstance(values, dict):
        raise RecipeError(f"{file}: expected keys with values, such as `seed: 1993`, got {quote(values)}")
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
    if len(key) > RECIPE_DEPTH:
        return refused(f"keys nested more than {RECIPE_DEPTH} deep, the limit of a recipe", key[:3])
    if len(raw) > RECIPE_BYTES:
        return refused(f"a value of more than {RECIPE_BYTES:,} letters, the limit of a recipe")
    if key[0] in FILE_KEYS:
        return refused("belongs in a file; on the command line, preset=NAME chooses a preset")
    raw = raw.strip()
    try:
        node = parse_yaml(raw) if raw.startswith(("[", "{", '"', "'")) else None
        value = parse_scalar(raw) if node is None else document.value(node, key)
    except (ValueError, RecipeError) as error:
        return refused(str(error))
    values: dict[str, Value] = {key[-1]: value}
    for part in reversed(key[:-1]):
        values = {part: values}
    steps: dict[Key, Origin] = {
        key[:length]: Origin(COMMAND_LINE, None, key[:length]) for length in range(1, len(key) + 1)
    }
    return Layer(COMMAND_LINE, values, {**steps, **document.origins}, tuple(document.problems))

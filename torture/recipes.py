"""Recipe files and overrides: valid ones mutated as trees, as text and as bytes, and hostile values for every key."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import yaml

from torture.kinds import Case, kind
from torture.mutate import Tree, hostile_text, hostile_value, like, mutate_bytes, mutate_tree, nearby_number
from torture.verdicts import ACCEPTED, Verdict, judge

FAMILIES = ("zofc", "simplecil", "ridge", "adapter-fo", "adapter-zo", "classifier-fo", "aper-fo", "ease-fo", "l2p-fo",
            "lae-fo",
            "coda-fo", "inflora-fo", "zo-ridge", "aper-zo", "lae-zo")  # fmt: skip
SHAPING = {"extends", "presets", "preset", "rates", "resolved", "family", "name"}  # keys that change others
SECTION_FAMILIES = {"lae": "lae-fo", "l2p": "l2p-fo", "coda": "coda-fo", "ease": "ease-fo", "inflora": "inflora-fo",
                    "ridge": "ridge"}  # fmt: skip


def tiny_recipe(case: Case, family: str) -> dict[str, Any]:
    """A valid recipe of a family that trains within a second."""
    tree: dict[str, Any] = {"extends": f"{family}/base", "seed": 7}
    for word in case.stage.settings():
        key, _, value = word.partition("=")
        holder, names = tree, key.split(".")
        for name in names[:-1]:
            holder = holder.setdefault(name, {})
        holder[names[-1]] = int(value) if value.isdecimal() else value
    if family in ("zofc", "adapter-fo", "adapter-zo"):
        tree |= {"peft": {"rank": 2, "blocks": "first 2"}, "optimize": {"peft": {"epochs": 1}, "head": {"epochs": 1}}}
    return tree


@functools.cache
def shipped_texts() -> tuple[str, ...]:
    """The text of every shipped recipe file."""
    files = sorted((resources.files("zofc") / "recipes").iterdir(), key=lambda file: file.name)
    return tuple(file.read_text("utf-8") for file in files if file.name.endswith(".yaml"))


@kind("recipes", "recipe files: values, keys, aliases, tags, nesting and bytes mutated", share=1500)
def attempt_recipe(case: Case) -> Verdict:
    """A mutated recipe file, printed or run."""
    draw = case.random
    path = case.folder / "recipe.yaml"
    tree: Tree = None
    match draw.randrange(10):
        case 0 | 1 | 2 | 3 | 4:
            tree = mutate_tree(draw, _valid_tree(case), draw.choice([1, 1, 1, 2, 5]))
            path.write_bytes(as_yaml(tree))
        case 5 | 6:
            path.write_bytes(mutate_bytes(draw, as_yaml(_valid_tree(case))))
        case 7:
            path.write_bytes(mutate_bytes(draw, draw.choice(shipped_texts()).encode()))
        case _:
            text = draw.choice(TRICKS)(draw, as_yaml(_valid_tree(case)).decode("utf-8", "replace"))
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
    if draw.random() < 0.5:
        outcome = case.run("run", str(path), "--print")
        verdict = judge(outcome)
        if verdict.word == ACCEPTED and isinstance(tree, dict) and (wrong := _difference(tree, outcome.text)):
            return Verdict("wrong", wrong)
        return verdict
    return case.judge("run", str(path), "-q")


def _valid_tree(case: Case) -> Tree:
    draw = case.random
    if draw.random() < 0.3:
        run = draw.choice(case.stage.runs)
        return yaml.safe_load((run / "recipe.yaml").read_text("utf-8"))
    return tiny_recipe(case, draw.choice(FAMILIES))


def as_yaml(tree: Tree) -> bytes:
    """A tree as YAML text; what YAML cannot express is left to the reader as it is."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def _difference(tree: dict[Any, Any], printed: str) -> str:
    """A setting that was accepted and is not what the file says; empty if there is none."""
    if SHAPING & set(tree) - {"extends", "name"}:
        return ""
    shown = dict(leaves(yaml.safe_load(printed)))
    for path, value in leaves(tree):
        if path[0] not in SHAPING and path in shown and not _same(value, shown[path]):
            return f"{'.'.join(map(str, path))}: {value!r} was printed as {shown[path]!r}"
    return ""


def _same(value: Any, shown: Any) -> bool:
    if isinstance(shown, str) and isinstance(value, float):  # YAML 1.1 takes 1e-3 for text
        shown = float(shown.replace(".inf", "inf").replace(".nan", "nan"))
    return value == shown or (value in (None, [], {}) and shown in (None, [], {}))


def leaves(tree: Tree, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every scalar of nested mappings with its path."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif not isinstance(tree, list | dict):
        yield path, tree


# -- text that is YAML, or nearly ------------------------------------------------------------------------------------

Trick = Callable[[random.Random, str], str]


def _alias_bomb(draw: random.Random, text: str) -> str:
    levels, width = draw.choice([3, 9, 20, 30]), draw.choice([2, 9])
    mapping = draw.random() < 0.5
    lines = ["a0: &a0 [x]" if not mapping else "a0: &a0 {k: v}"]
    for level in range(1, levels):
        names = [f"*a{level - 1}"] * width
        inner = (
            f"[{', '.join(names)}]" if not mapping else "{" + ", ".join(f"k{i}: {n}" for i, n in enumerate(names)) + "}"
        )
        lines.append(f"a{level}: &a{level} {inner}")
    return text + "\n".join(lines) + "\n"


def _deep(draw: random.Random, text: str) -> str:
    depth = draw.choice([50, 500, 5000, 100_000])
    left, right = draw.choice([("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")])
    return f"{text}\nseed: {left * depth}1{right * depth}\n"


def _large(draw: random.Random, text: str) -> str:
    filler = draw.choice(["# comment\n", "k{}: 1\n", "- 1\n", "x", " "])
    count = draw.choice([10_000, 300_000, 2_000_000])
    body = "".join(filler.format(i) for i in range(min(count, 300_000))) if "{}" in filler else filler * count
    return text + "\n" + body


def _tag(draw: random.Random, text: str) -> str:
    tag = draw.choice([
        "!!python/object/apply:os.system ['touch owned']", "!!python/name:os.system", "!!binary aGk=", "!!set {a, b}",
        "!!timestamp 2001-01-01", "!!omap [a: 1]", "!!merge x", "!!float nine", "!!int 0b11", "!!int zero",
        "!!float 1_0",
        "!!bool maybe", "!local 3", "!!str 3", "!!null x", "!!seq {}", "!!map []", "!!int ''", "!!float ''", "!<x> 1",
    ])  # fmt: skip
    return f"{text}\n{draw.choice(['seed', 'title', 'data', 'extra', 'peft'])}: {tag}\n"


def _line(draw: random.Random, text: str) -> str:
    lines = text.splitlines()
    place = draw.randrange(len(lines) + 1)
    added = draw.choice([
        "seed: 1", "seed: 2\nseed: 3", "<<: {seed: 1}", "<<: *nothing", "&x seed: *x", "x: &x [*x]", "---", "...",
        "--- !x",
        "%YAML 9.9", "%TAG ! x", "\tseed: 1", "? [1, 2]\n: 3", "? {a: 1}\n: 2", "'unfinished", '"\\xZZ": 1',
        "seed: |", "- 1",
        "extends: recipe.yaml", "extends: [recipe.yaml, recipe.yaml]", "extends: /dev/zero", "extends: .",
        "extends: ''",
        "extends: /etc/passwd", "extends: {a: 1}", "extends: 5", "extends: [[x]]", "extends: ../recipe.yaml",
        "extends: _base",
        "extends: ~nosuch", "presets: {paper: {seed: 1}}", "presets: 5", "presets: {x: {}}", "presets: {paper: 3}",
        "presets: {paper: {extends: x}}", "preset: 7", "resolved: true", "family: []", "rows: {a: {seed: 1}}", "1: 2",
        "null: 2", "true: 1", ": 1", "a.b: 1", "data.classes: 4", "optimize: {x: {lr: 1}}", "optimize: {'': {}}",
        "optimize: []",
        "optimize: {head: null}", "paper: {table: main, row: x, column: y}",
        "paper: {table: nosuch, row: [], column: {}}",
    ])  # fmt: skip
    return "\n".join([*lines[:place], added, *lines[place:]]) + "\n"


def _encoded(draw: random.Random, text: str) -> str:
    return draw.choice([
        "\ufeff" + text, "\ufeff\ufeff" + text, text.replace("\n", "\r"), text.replace("\n", "\u2028"), "\x00" + text,
        text.replace(":", "："), text.replace(" ", "\u00a0"), text.encode("utf-16").decode("latin1"), "\udcff" + text,
        text.replace("\n", "\x85"), "", "\n", "null", "[]", "5", "text", "- a\n- b", "{}", "~",
    ])  # fmt: skip


TRICKS: tuple[Trick, ...] = (_alias_bomb, _deep, _large, _tag, _tag, _line, _line, _line, _line, _encoded)


BRACKETS = ("[", "{", "'", '"', "[1, 2", "{a: 1}", "[[[[", "'x'", '"\\ud800"', "[" * 5000, "&a [*a]", "{a: *b}")


# -- overrides -------------------------------------------------------------------------------------------------------


@functools.cache
def keys() -> dict[str, str]:
    """Every key of a recipe that the command line takes, with what it may be, in words."""
    from zofc.methods import SECTIONS
    from zofc.recipe.settings import list_settings

    found = {setting.key: setting.values for setting in list_settings(SECTIONS)}
    names = [(name.replace("<group>", group), words) for name, words in found.items() for group in ("peft", "head")]
    return dict(names)


@kind("overrides", "KEY=VALUE with hostile values, for every key", share=1500)
def attempt_override(case: Case) -> Verdict:
    """A tiny run with one or two hostile overrides; the keys are taken in turn."""
    draw = case.random
    known = [*keys()]
    names = [known[case.number % len(known)], *([draw.choice(known)] if draw.random() < 0.2 else [])]
    family = SECTION_FAMILIES.get(names[0].partition(".")[0]) or draw.choice(
        ["zofc", "zofc", "adapter-fo", "simplecil"]
    )
    words = [f"{family}/base", *case.stage.settings()]
    if family == "zofc":
        words += ["peft.blocks=first 2", "optimize.peft.epochs=1", "optimize.head.epochs=1"]
    hostile = [f"{name}={_value(draw, keys()[name])}" for name in names]
    if draw.random() < 0.05:
        hostile = [draw.choice([f"{names[0]}", f"{names[0]}=", f"={names[0]}", f".{names[0]}=1", f"{names[0]}.x.y=1",
                               "=", "==",
                                f"{names[0].upper()}=1", f"{names[0]} = 1", f"{hostile_text(draw)}=1"])]  # fmt: skip
    clean = [word.replace("\x00", "\\0") if draw.random() < 0.5 else word for word in hostile]
    return case.judge("run", *words, *clean, "-q")


def _value(draw: random.Random, words: str) -> str:
    """A hostile value for a key that takes what `words` say; mostly of the right type."""
    if draw.random() < 0.6 and ("integer" in words or "number" in words):
        value = like(draw, 1 if "integer" in words else 1.0)
        return f"[{value}, {like(draw, value)}]" if words.startswith("list") else str(value)
    if draw.random() < 0.6 and "text" in words:
        return json.dumps(like(draw, "")) if draw.random() < 0.5 else like(draw, "")
    match draw.randrange(8):
        case 0:
            return str(nearby_number(draw, draw.choice([1, 5, 48, 0.01, 1993])))
        case 1:
            return draw.choice(BRACKETS)
        case 2:
            return as_yaml(hostile_value(draw)).decode("utf-8", "replace").strip().removesuffix("\n...")
    return hostile_text(draw)

"""Counts that keep the code readable: sizes of files and functions, names with one meaning, recipes in few files."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = [*SOURCES, *sorted((ROOT / "scripts").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
KERNELS = ROOT / "src" / "zofc" / "optim" / "kernels.py"  # GPU kernels, which are long by nature


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def top_level_names(path: Path) -> Iterator[str]:
    """The public functions, classes and constants that a module defines."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            targets = [node.name]
        elif isinstance(node, ast.Assign):
            targets = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            targets = [node.target.id]
        else:
            continue
        yield from (name for name in targets if not name.startswith("_"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_source_file_is_longer_than_400_lines(path: Path) -> None:
    assert lines(path) <= (250 if "cli" in path.parts else 400)


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in CODE
        if path != KERNELS
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert not long


def test_few_names_are_defined_in_several_modules() -> None:
    modules: dict[str, set[Path]] = defaultdict(set)
    for path in CODE:
        for name in top_level_names(path):
            modules[name].add(path.relative_to(ROOT))
    several = sorted(name for name, where in modules.items() if len(where) > 1)
    assert len(several) <= 40, several


def test_recipes_are_few_files() -> None:
    assert len(list((ROOT / "src" / "zofc" / "recipes").rglob("*.yaml"))) <= 90


def test_little_is_written_twice() -> None:
    """Under 1 % of lines belong to runs of six that stand in several places (blank lines, comments, imports aside)."""
    seen: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    total = 0
    for path in CODE:
        code = [line.strip() for line in path.read_text("utf-8").splitlines()]
        code = [line for line in code if len(line) > 3 and not line.startswith(("#", "import ", "from ", '"""'))]
        total += len(code)
        for start in range(len(code) - 5):
            seen[tuple(code[start : start + 6])].append((path, start))
    shared = {(path, at + i) for where in seen.values() if len(where) > 1 for path, at in where for i in range(6)}
    assert len(shared) < 0.01 * total, f"{len(shared)} of {total} lines"

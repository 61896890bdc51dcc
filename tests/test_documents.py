"""What the documents say is so: tables come from result files, commands parse, examples run, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import typer
import yaml
from PIL import Image

import zofc
from zofc import cli
from zofc.advice import choice
from zofc.evidence.tables import MARKED, fill_tables, marked_documents
from zofc.methods import METHODS, SECTIONS
from zofc.recipe import Recipe, load_recipe, recipe_names
from zofc.training.events import Events
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import check_recipe, open_stream
from zofc.training.task import TaskTraining

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "zofc"
CARD = PACKAGE / "model" / "weights" / "README.md"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    CARD,
]
README = DOCUMENTS[0].read_text("utf-8")
EXTENDING = (ROOT / "docs" / "guides" / "extending.md").read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    names = "(?:sh|bash)" if language == "sh" else language
    return re.findall(rf"^```{names}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def imported(path: Path, name: str) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", marked_documents(ROOT), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tables_of_the_documents_are_what_the_results_and_the_recipe_give(path: Path) -> None:
    text = path.read_text("utf-8")
    emptied = MARKED.sub(r"<!-- \1 -->\n<!-- /\1 -->", text)
    assert emptied != text and fill_tables(emptied, ROOT) == fill_tables(text, ROOT) == text


def test_the_model_cards_numbers_are_those_measured() -> None:
    measured = json.loads(CARD.with_name("embedded.json").read_text())
    card = CARD.read_text("utf-8")
    rows = re.findall(r"^\| `([\w@.]+)`[^|]*\| ([\d.]+) \| ([\d.]+) \|$", card, re.MULTILINE)
    assert {style: (twenty, hundred) for style, twenty, hundred in rows} == {
        style: tuple(f"{100 * accuracy:.1f}" for accuracy in row.values())
        for style, row in measured["class_mean_accuracy"].items()
    }
    assert f"{measured['parameters']:,} parameters, fp16, {measured['bytes'] / 1e6:.2f} MB" in card
    assert f"{100 * measured['held_out_accuracy']:.1f} %" in card
    assert f"{measured['seconds']:.0f} s in all" in card
    assert measured["bytes"] == CARD.with_name("embedded.safetensors").stat().st_size


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert str(citation["version"]) == zofc.__version__
    assert citation["preferred-citation"]["title"] == json.loads((PACKAGE / "paper.json").read_text())["source"]


# -- commands --------------------------------------------------------------------------------------------------------


def commands(program: str) -> list[str]:
    """Every command line of one program, without comments; not those of scripts, which have variables."""
    lines = [line for document in DOCUMENTS for block in blocks(document.read_text("utf-8"), "sh")
             for line in block.replace("\\\n", " ").splitlines()]  # fmt: skip
    words = [shlex.split(line, comments=True) for line in lines if line.startswith(f"{program} ") and "$" not in line]
    return list(dict.fromkeys(map(shlex.join, words)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the examples, and the recipe files and the method that the documents print."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "smooth.py").write_text(next(block for block in blocks(README, "python") if "@method" in block))
    for name in ("smooth", "first-session"):  # so that the registry is as before, afterwards
        monkeypatch.setitem(METHODS, name, METHODS["adapter"])
    for block in (block for document in DOCUMENTS for block in blocks(document.read_text("utf-8"), "yaml")):
        (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("line", commands("zofc"))
def test_every_zofc_command_of_the_documents_is_one(line: str, folder: Path) -> None:
    _, name, *words = shlex.split(line)
    group: Any = typer.main.get_command(cli.app)
    given = group.commands[name].make_context(name, words).params  # refuses unknown options and missing words
    if name == "run":
        named = [word for word in given["words"] or () if not cli.is_override(word)]
        recipes = [choice.CLOSED_FORM if choice.source_of(word) else word for word in named]
        changes = [word for word in given["words"] or () if cli.is_override(word)]
        for recipe in recipes:
            loaded = load_recipe(recipe, changes)
            check_recipe(loaded)
    elif name == "list":
        cli.catalog.list_(given["what"], given["pattern"])
        assert given["what"] != "recipes" or any(given["pattern"] in recipe for recipe in recipe_names())


def test_the_make_targets_and_scripts_named_in_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in commands("make"):
        assert f"\n{line.split()[1]}:" in makefile
    for document in DOCUMENTS:
        for script in re.findall(r"python (scripts/\w+\.py)", document.read_text("utf-8")):
            assert (ROOT / script).is_file()


# -- examples --------------------------------------------------------------------------------------------------------


def imports_of_ours(code: str) -> list[str]:
    return [line for line in code.splitlines() if re.match(r"(from|import) zofc", line)]


def test_the_readme_is_short_and_its_method_trains_under_either_order(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(README.encode()) <= 9000
    (code,) = [block for block in blocks(README, "python") if "@method" in block]
    assert len(imports_of_ours(code)) <= 3
    path = tmp_path / "smooth.py"
    path.write_text(code, encoding="utf-8")
    monkeypatch.setitem(METHODS, "smooth", None)  # so that the registry is as before, afterwards
    imported(path, "smooth")
    for name in ("zofc/base", "adapter-fo/base"):
        model = zofc.Learner(tiny_recipe(name, "method.name=smooth", "training.workers=0")).model
        model.extend(["a", "b"])
        method: Any = model.method
        features, labels = torch.randn(6, 24), torch.tensor([0, 1, 0, 1, 1, 0])
        logits = method.logits({}, features)
        expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
        torch.testing.assert_close(method.loss({}, features, labels), expected)


@pytest.mark.parametrize("name", ["zofc/base", "adapter-fo/base"])
def test_the_example_of_a_method_learns_two_tasks_under_either_order(
    name: str, tiny_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "examples" / "own_method.py"
    code, _ = blocks(EXTENDING, "python")
    assert code == path.read_text("utf-8")  # the guide shows the example
    assert len(imports_of_ours(code)) <= 3
    monkeypatch.setitem(METHODS, "first-session", None)  # so that the registry is as before, afterwards
    imported(path, "first_session")

    recipe = tiny_recipe(name, "method.name=first-session", "data.classes=4", "optimize.peft.lr=0.5")
    check_recipe(recipe)
    stream, model = open_stream(recipe, print), IncrementalModel(recipe, torch.device("cpu"))
    method: Any = model.method
    fresh = {key: value.clone() for key, value in method.peft.named_parameters()}
    adapters = []
    for task in stream.tasks:
        model.extend(task.names)
        loader = model.loader(stream.train_set(task))
        training = TaskTraining(model, loader, Events([]), len(stream.tasks))
        training.begin()
        steps = len(list(training.run()))
        training.end()
        adapters.append({key: value.clone() for key, value in method.peft.named_parameters()})
        assert steps == (training.total_steps if len(adapters) == 1 else 0)
    assert any(not torch.equal(fresh[key], adapters[0][key]) for key in fresh)
    assert all(torch.equal(adapters[0][key], adapters[1][key]) for key in fresh)

    images, labels = next(iter(model.plain_batches(model.loader(stream.train_set(stream.tasks[1])))))
    features = method.extract(images)
    means = torch.stack([features[labels == c].mean(0) for c in (2, 3)])
    torch.testing.assert_close(method.head.rows[1].detach(), means)
    assert model.scores(images).shape == (len(labels), 4)


def test_the_example_of_a_methods_settings_reads_them_from_a_recipe(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gentle.py"
    path.write_text(blocks(EXTENDING, "python")[1], encoding="utf-8")
    for registry in (METHODS, SECTIONS):
        monkeypatch.setitem(registry, "gentle", None)  # so that the registry is as before, afterwards
    imported(path, "gentle")
    recipe = tiny_recipe("zofc/base", "method.name=gentle", "gentle.pull=0.2", "training.workers=0")
    method: Any = zofc.Learner(recipe).model.method
    assert method.settings.pull == 0.2


@pytest.mark.parametrize("document", ["README.md", "docs/guides/own-images.md"])
def test_the_python_api_is_used_as_the_documents_show(
    document: str, folder: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    names = ["owl1", "owl2", "wolf1", "wolf2", "photo"]
    names += [f"{place}/{name}/{i}" for place in ("my_images", "photos") for name in ("fox", "hare") for i in range(3)]
    for name in names:
        path = folder / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 20, 3), np.uint8)).save(path)

    def small(name: str, overrides: list[str]) -> Recipe:
        """What is chosen, for an epoch."""
        changes = ["peft.blocks=first 2", "optimize.peft.epochs=1", "optimize.head.epochs=1"]
        return load_recipe(name, [*overrides, *changes * (name == choice.TRAINED), "training.workers=0"])

    monkeypatch.setattr(choice, "load_recipe", small)
    monkeypatch.setattr(choice, "_pick_backbone", lambda _source: (str(tiny_weights), "a tiny one"))
    text = (ROOT / document).read_text("utf-8")
    (code,) = [block for block in blocks(text, "python") if "zofc.Learner" in block]
    found: dict[str, Any] = {}
    exec(compile(code, document, "exec"), found)
    assert found["learner"].classes == ("fox", "hare", "owl", "wolf")
    assert found["best"][0].name in capsys.readouterr().out
    assert len(found["best"]) == 3
    assert (folder / "my_model" / "recipe.yaml").is_file()


# -- links and rooms -------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """What GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), link


SHARED = {"errors", "limits", "paths", "plugins", "ranks", "seeds", "units"}  # used anywhere


def test_rooms_import_what_the_architecture_says() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## The rooms")[2]
    rooms = re.findall(r"^\| (`[^|]*) \| [^|]* \| ([^|]*) \|$", table.partition("\n## ")[0], re.MULTILINE)
    allowed: dict[str, set[str]] = {}
    for names, imports in rooms:
        members = {name.strip("`/") for name in re.findall(r"`[^`]*`", names)}
        allowed |= {name: members | {word.strip("`") for word in imports.split(", ")} for name in members}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in {"__init__", "__main__", *SHARED} or "everything" in allowed[room]:
            continue
        used = {module.split(".")[1] for module in _modules(file) if module.startswith("zofc.")}
        beyond = used - allowed[room] - SHARED
        assert not beyond, f"{file.relative_to(ROOT)} imports {beyond}"


def _modules(file: Path) -> set[str]:
    """Every module that a file imports, `from zofc import seeds` being one of `zofc.seeds`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"zofc.{alias.name}" for alias in node.names} if node.module == "zofc" else {node.module}
    return found

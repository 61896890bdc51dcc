"""Plug-ins: files that the user names and packages that are installed; nothing else is ever loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import zofc as package
from zofc.data.source import SOURCES
from zofc.errors import PluginError, RecipeError, RunError
from zofc.methods import METHODS, SECTIONS, get_method
from zofc.model.peft import PEFTS
from zofc.optim import ESTIMATORS
from zofc.plugins import Registry, load_plugin
from zofc.recipe import Recipe, dump_recipe
from zofc.runfolder import open_run
from zofc.training import check_recipe
from zofc.training.resolve import plugins_used, require_plugins

Call = Callable[..., tuple[int, str]]
Make = Callable[..., Recipe]
REGISTRIES: tuple[Registry[object], ...] = (METHODS, SOURCES, PEFTS, ESTIMATORS)  # type: ignore[assignment]

MEANS = '''
"""Class means by another name."""
from pydantic import Field
from zofc.methods import SimpleCIL, method
from zofc.recipe import Recipe, Strict


class MineSettings(Strict):
    """Means of one's own."""

    depth: int = Field(3, description="how deep")


@method("mine", settings=MineSettings)
class Mine(SimpleCIL):
    """Class means, again."""
'''
OTHERS = '''
"""One of each."""
from zofc.data import open_source
from zofc.data.source import source
from zofc.model.peft import PEFTS, peft
from zofc.optim import Estimator, estimator

source("more-glyphs")(lambda argument, options: open_source("glyphs:clean", options))
peft("bottleneck")(lambda *given: PEFTS["adapter"](*given))
estimator("far")(lambda: Estimator(lengths=(2.0,), weights=(0.5,), base=-0.5))
'''


@pytest.fixture(autouse=True)
def forget() -> Iterator[Callable[[], None]]:
    """Forgets every plug-in, as a new process would; so that the registries are as before, afterwards."""
    before = [(dict(one), dict(one.modules)) for one in REGISTRIES], dict(SECTIONS), set(sys.modules)

    def restore() -> None:
        for registry, (entries, modules) in zip(REGISTRIES, before[0], strict=True):
            for own, kept in ((registry, entries), (registry.modules, modules)):
                own.clear()  # type: ignore[attr-defined]
                own.update(kept)  # type: ignore[attr-defined]
        SECTIONS.clear()
        SECTIONS.update(before[1])
        for name in {name for name in sys.modules if name.startswith(("zofc_plugin_", "outside"))} - before[2]:
            del sys.modules[name]

    yield restore
    restore()


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def run(zofc: Call, tiny_recipe: Make, tmp_path: Path) -> Path:
    """A run of a method that a file adds."""
    file = write(tmp_path / "mine.py", MEANS)
    recipe = dump_recipe(tiny_recipe("simplecil/base", "data.classes=4")).replace("simplecil", "mine")
    write(tmp_path / "mine.yaml", f"{recipe}\nmine: {{depth: 2}}\n")
    code, text = zofc("run", "mine.yaml", "--plugin", file, "-q")
    assert code == 0, text
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    return folder


def test_a_method_from_a_file_runs_and_answers_from_the_command_line(
    zofc: Call, run: Path, tmp_path: Path, forget: Callable[[], None]
) -> None:
    (record,) = json.loads((run / "environment.json").read_text("utf-8"))["plugins"]
    assert record["provides"] == "method.name=mine" and record["file"] == str(tmp_path / "mine.py")
    assert len(record["sha256"]) == 64
    forget()
    picture = write_picture(tmp_path / "a.png")
    missing = "this run needs the plug-in mine.py, which provides method.name=mine; give it with --plugin FILE.py"
    for words in (("predict", str(run), picture), ("learn", str(run), "glyphs"), ("run", "--resume", str(run))):
        code, text = zofc(*words)
        assert code == 2 and missing in text, text
    assert "mine" not in METHODS  # the path in the run folder was not loaded
    assert zofc("show", str(run))[0] == 0  # what needs no method still works

    code, text = zofc("predict", str(run), picture, "--plugin", "mine.py")
    assert code == 0 and text.startswith(f"{picture}: "), text


def write_picture(path: Path) -> str:
    Image.new("RGB", (16, 16), "red").save(path)
    return str(path)


def test_from_python_the_file_is_named_or_its_module_imported_first(
    run: Path, tmp_path: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    with pytest.raises(PluginError, match=r"needs the plug-in mine\.py"):
        package.load(run)
    assert package.load(run, plugins=[tmp_path / "mine.py"]).recipe.sections["mine"] == {"depth": 2}
    forget()
    write(tmp_path / "outside_means.py", MEANS)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("outside_means")
    assert package.load(run).recipe.method.name == "mine"


def test_a_plug_in_that_has_changed_is_told_about(run: Path, tmp_path: Path, forget: Callable[[], None]) -> None:
    assert require_plugins(open_run(run)) == []
    forget()
    load_plugin(write(tmp_path / "mine.py", MEANS + "\n# a comment\n"))
    notice = "the plug-in that provides method.name=mine has changed since (its checksum differs)"
    assert require_plugins(open_run(run)) == [notice]


@pytest.mark.parametrize("record", ["mine", {}, {"provides": "nothing=mine"}])
def test_a_damaged_record_is_refused(run: Path, record: object) -> None:
    made_with = json.loads((run / "environment.json").read_text("utf-8"))
    (run / "environment.json").write_text(json.dumps({**made_with, "plugins": [record]}))
    with pytest.raises(
        RunError,
        match=r"environment\.json(: its record of plug-ins is damaged| has a value at 'plugins' that makes no sense)",
    ):
        package.load(run)


def test_settings_of_a_plug_in_are_checked_and_listed(zofc: Call, tmp_path: Path, tiny_recipe: Make) -> None:
    file = write(tmp_path / "mine.py", MEANS)
    code, text = zofc("list", "settings", "mine", "--plugin", file)
    assert code == 0 and "mine.depth" in text and "how deep" in text
    code, text = zofc("run", "simplecil/base", "method.name=mine", "mine.dept=2", "--plugin", file)
    assert code == 2 and "command line: mine.dept: unknown key; did you mean 'depth'?" in text
    code, text = zofc("list", "methods", "--plugin", file)
    assert "Class means, again." in text


def test_a_file_adds_sources_modules_and_estimators(tmp_path: Path, tiny_recipe: Make) -> None:
    load_plugin(write(tmp_path / "others.py", OTHERS))
    changes = ("data.source=more-glyphs", "peft.kind=bottleneck", "optimize.peft.estimator=far")
    recipe = check_recipe(tiny_recipe("zofc/base", *changes))
    provided = [record["provides"] for record in plugins_used(recipe)["plugins"]]
    assert provided == ["peft.kind=bottleneck", "data.source=more-glyphs", "estimator=far"]
    learner = package.Learner(recipe)
    learner.learn("more-glyphs")
    learner.save(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "environment.json").read_text("utf-8"))
    assert [record["provides"] for record in saved["plugins"]] == provided
    assert plugins_used(check_recipe(tiny_recipe("zofc/base"))) == {}


# Entry points


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that announces a method and two that are broken."""
    home = tmp_path / "site"
    write(home / "outside_means.py", MEANS)
    write(home / "outside_broken.py", "import no_such_module\n")
    write(home / "outside_empty.py", "")
    points = "mine = outside_means:Mine\nbroken = outside_broken\nempty = outside_empty"
    write(home / "outside-1.2.dist-info" / "entry_points.txt", f"[zofc.methods]\n{points}\n")
    write(home / "outside-1.2.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: outside\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(str(home))
    return home


def test_an_entry_point_is_loaded_when_its_name_is_asked_for(
    installed: Path, tiny_recipe: Make, tmp_path: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecipeError, match="unknown method 'nobody'"):
        get_method("nobody")
    assert "outside_means" not in sys.modules
    recipe = check_recipe(tiny_recipe("simplecil/base", "method.name=mine", "data.classes=4"))
    (record,) = plugins_used(recipe)["plugins"]
    assert (record["provides"], record["package"]) == ("method.name=mine", "outside 1.2")
    learner = package.Learner(recipe)
    learner.learn("glyphs")
    learner.save(tmp_path / "saved")

    forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])
    with pytest.raises(PluginError, match=r"needs the package outside 1\.2, which provides method\.name=mine; install"):
        package.load(tmp_path / "saved")


def test_broken_entry_points_say_whose_they_are(installed: Path, zofc: Call) -> None:
    with pytest.raises(PluginError, match="'broken' of the package outside cannot be loaded: ModuleNotFoundError"):
        get_method("broken")
    with pytest.raises(PluginError, match="the package outside announces method 'empty' but does not register it"):
        get_method("empty")
    for name in ("broken", "empty"):
        points = installed / "outside-1.2.dist-info" / "entry_points.txt"
        points.write_text(
            "\n".join(line for line in points.read_text("utf-8").splitlines() if not line.startswith(name))
        )
    code, text = zofc("list", "methods")
    assert code == 0 and "Class means, again." in text


# Mistakes


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.py", None, "--plugin: no file '"),
        ("notes.txt", "", "is not a Python file (.py)"),
        ("wrong.py", "x = 1\ny = x / 0\n", "cannot be loaded: ZeroDivisionError: division by zero (line 2 of "),
        ("typo.py", "def f(:\n", "cannot be loaded: SyntaxError: "),
        ("taken.py", MEANS.replace('"mine"', '"adapter"'), "method 'adapter' is part of zofc; give yours another name"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_explained(
    zofc: Call, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    path = tmp_path / name
    if text is not None:
        write(path, text)
    code, said = zofc("run", "demo/simplecil", "--plugin", str(path))
    assert code == 2 and message in said, said
    assert get_method("adapter").__module__ == "zofc.methods.adapter" and "adapter" not in SECTIONS


def test_a_file_given_twice_is_run_once(tmp_path: Path) -> None:
    counting = f"with open({str(tmp_path / 'n')!r}, 'a') as file:\n    file.write('.')\n"
    file = write(tmp_path / "count.py", counting)
    load_plugin(file)
    load_plugin(Path(file))
    assert (tmp_path / "n").read_text() == "."


def test_a_name_that_nothing_is_near_to_may_be_a_plug_ins() -> None:
    with pytest.raises(RecipeError, match=r"unknown method '§§'; known: .*; one of your own is loaded with --plugin"):
        get_method("§§")

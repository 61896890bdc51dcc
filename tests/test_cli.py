"""Facts about the command line, as a user meets it."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from zofc import cli
from zofc.cli import application
from zofc.learner import Learner
from zofc.recipe import Recipe, dump_recipe, load_recipe
from zofc.report import write_report
from zofc.report.progress import Display
from zofc.runfolder import read_runs
from zofc.training import trainer
from zofc.training.events import StepStatus
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def recipe_file(tiny_recipe: Make, tmp_path: Path) -> Callable[..., str]:
    def write(name: str, *overrides: str) -> str:
        path = tmp_path / f"{name.replace('/', '-')}.yaml"
        path.write_text(dump_recipe(tiny_recipe(name, *overrides)))
        return str(path)

    return write


@pytest.fixture(scope="module")
def trained(tiny_recipe: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run and its report, as `zofc run` leaves them in `runs`."""
    runs = tmp_path_factory.mktemp("trained")
    train(start_run(tiny_recipe("zofc/base"), runs))
    write_report(read_runs([runs]), runs / "report.html")
    return runs


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """A copy of that run, which a test may change."""
    runs = shutil.copytree(trained, tmp_path / "runs")
    return next(path.parent for path in runs.glob("*/recipe.yaml"))


def test_run_without_a_recipe_is_the_demonstration(zofc: Run, tiny_weights: Path, tmp_path: Path) -> None:
    small = [
        "data.classes=4",
        "data.increment=2",
        "data.per_class=4",
        "data.test_per_class=2",
        "optimize.peft.epochs=1",
        "optimize.head.epochs=1",
    ]
    code, said = zofc("run", *small, f"backbone.name={tiny_weights}", "peft.blocks=all", "training.device=cpu")
    assert code == 0, said
    recipes = sorted((tmp_path / "runs").glob("*/recipe.yaml"))
    trained = sorted(
        (loaded.optimize["peft"].order, loaded.method.readout) for loaded in map(load_recipe, map(str, recipes))
    )
    assert trained == [("first", "rows"), ("zeroth", "ridge"), ("zeroth", "rows")]
    assert (tmp_path / "runs" / "report.html").stat().st_size > 10_000
    titles = [load_recipe(str(path)).title for path in recipes]
    assert all(title and title in said for title in titles) and "report: runs/report.html" in said
    assert all(f"run: {path.parent.relative_to(tmp_path)}\n" in said for path in recipes)
    code, said = zofc("run", *small, f"backbone.name={tiny_weights}", "peft.blocks=all", "training.device=cpu")
    assert code == 0 and said.count("finished already") == 3 and "changed" not in said


def test_run_prints_the_resolved_recipe_and_does_nothing(zofc: Run, tmp_path: Path) -> None:
    code, said = zofc("run", "zofc/cifar100-inc5", "optimize.peft.queries=8", "--print")
    assert code == 0 and not (tmp_path / "runs").exists()
    (tmp_path / "shown.yaml").write_text(said)
    shown, meant = (
        load_recipe(str(tmp_path / "shown.yaml")),
        load_recipe("zofc/cifar100-inc5", ["optimize.peft.queries=8"]),
    )
    assert shown == meant


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["zofc/cifar100-inc6"], "zofc/cifar100-inc5"),
        (
            ["zofc/base", "optimize.peft.querys=3"],
            "optimize.peft.querys: unknown key; did you mean 'queries'",
        ),
        (["zofc/base", "optimize.peft.queries=0"], "optimize.peft.queries"),
        (["zofc/base", "optimize.peft.epsilon=0"], "optimize.peft.epsilon"),
        (["zofc/base", "optimize.pfet.lr=0.1"], "did you mean 'peft'"),
        (["demo/zofc", "data.first=500"], "data.first"),
        (["zofc/base", "data.source=folder:absent"], "absent"),
        (["zofc/base", "data.source=."], "did you mean folder:.?"),
        (["demo/zofc", "peft.blocks=first 99"], "peft.blocks: 'first 99', but the backbone has 6 blocks"),
        (["demo/zofc", "backbone.name=vit_nope"], "backbone.name"),
        (["demo/zofc", "backbone.checksum=abc"], "backbone.checksum"),
        (["demo/zofc", "backbone.pretrained=false"], "backbone.pretrained"),
        (["demo/simplecil", "head.kind=linear"], "head.kind"),
        (["demo/zofc", "data.then=[fodler:x]"], "did you mean 'folder'"),
        (
            [
                "coda-fo/base",
                "backbone.name=embedded",
                "data.source=glyphs",
                "data.classes=40",
                "data.increment=2",
                "data.per_class=1",
                "data.test_per_class=1",
            ],
            "coda.per_task: 10 components in each of 20 tasks cannot all be orthogonal in the backbone's width, 192",
        ),
        (["--resume", "nowhere"], "not a run folder"),
        (["demo/zofc", "--resume", "nowhere", "--again"], "--again"),
    ],
)
def test_mistakes_are_told_without_a_trace(zofc: Run, tmp_path: Path, words: list[str], expected: str) -> None:
    code, said = zofc("run", *words)
    assert code == 2 and expected in said and "Traceback" not in said
    assert not (tmp_path / "runs").exists()  # refused before any work: nothing is left of it


def test_a_resumed_run_may_run_elsewhere_but_keeps_its_recipe(zofc: Run, finished: Path) -> None:
    (finished / "metrics.json").unlink()
    code, said = zofc("run", "--resume", str(finished), "seed=1")
    assert code == 2 and "another recipe (seed: 1993 there, 1 here)" in said
    code, said = zofc("run", "--resume", str(finished), "training.threads=1", "training.workers=0")
    assert code == 0, said
    assert load_recipe(str(finished / "recipe.yaml")).training.threads == 1
    assert (finished / "report.html").exists()
    code, said = zofc("run", "--resume", str(finished), "--print")
    assert code == 0 and "threads: 1" in said


def test_an_override_is_applied_to_the_recipes_that_have_its_key(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path
) -> None:
    trained, still = recipe_file("zofc/base"), recipe_file("ridge/base")
    code, said = zofc("run", trained, still, "optimize.peft.epochs=3", "data.per_class=3", "--print")
    assert code == 0, said
    without = f"{still} has no such setting and runs without optimize.peft.epochs=3, which is applied to {trained}"
    assert said.count("note: ") == 1 and f"note: {without}" in said
    first, second = said.split("name: ridge/base")
    assert "epochs: 3" in first and "optimize: {}" in second and all("per_class: 3" in text for text in (first, second))
    code, said = zofc("run", still, "optimize.peft.epochs=3")
    assert code == 2 and "method 'ridge' has no group 'peft'" in said
    for wrong, expected in (
        ("optimize.peft.epohcs=3", "did you mean 'epochs'"),
        ("optimize.pfet.epochs=3", "has no group 'pfet'; did you mean 'peft'"),
        ("dtaa.per_class=3", "did you mean 'data'"),
        ("optimize.peft.epochs=none", "optimize.peft.epochs: expected an integer"),
    ):
        code, said = zofc("run", trained, still, wrong)
        assert code == 2 and expected in said, said
    assert not (tmp_path / "runs").exists()
    assert "An override is applied to every recipe that has its key" in " ".join(zofc("run", "--help")[1].split())


def test_an_interruption_prints_the_command_that_continues_all_runs(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [recipe_file(name) for name in ("simplecil/base", "ridge/base", "classifier-fo/base")]
    evaluate = trainer.Trainer._evaluate
    tasks: list[int] = []

    def evaluate_then_ask(self: trainer.Trainer, *args: Any) -> None:
        evaluate(self, *args)
        tasks.append(1)
        if len(tasks) == 4:  # the first task of the second run
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer.Trainer, "_evaluate", evaluate_then_ask)
    code, said = zofc("run", *files, "-q")
    assert code == 130
    _, _, command = said.partition("stopped and saved; continue with: zofc ")
    words = command.split()
    assert words[:2] == ["run", "--resume"] and [Path(word).name.partition("-")[0] for word in words[2:]] == [
        "ridge", "classifier",
    ]  # fmt: skip
    code, said = zofc(*words, "-q")
    assert code == 0 and "report: runs/report.html" in said, said
    assert all(run.finished for run in read_runs([tmp_path / "runs"]))
    code, said = zofc(*words, files[0])
    assert code == 2 and "--resume continues runs as they are" in said


def test_an_interruption_after_a_run_continues_the_next(
    zofc: Run, recipe_file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [recipe_file(name, "data.classes=2") for name in ("simplecil/base", "ridge/base")]
    write = trainer.Trainer._write_results

    def write_then_ask(self: trainer.Trainer, *args: Any) -> None:
        write(self, *args)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer.Trainer, "_write_results", write_then_ask)
    code, said = zofc("run", *files, "-q")
    assert (
        code == 130 and "is finished; stopped before the next run; continue with: zofc run --resume runs/ridge" in said
    )
    assert "runs/simplecil-base" not in said.partition("continue with")[2]


def test_images_that_were_left_out_are_listed_in_the_run_folder(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path
) -> None:
    photos(tmp_path / "photos", "fox", "hare")
    (tmp_path / "photos" / "fox" / "bad.png").write_bytes(b"not an image")
    recipe = recipe_file("simplecil/base", "data.source=folder:photos", "data.classes=null")
    code, said = zofc("run", recipe, "data.skip_broken=true")
    assert code == 0 and "images, which cannot be read: photos/fox/bad.png" in said, said
    (run,) = read_runs([tmp_path / "runs"])
    assert json.loads((run.path / "skipped.json").read_text()) == {
        "photos/fox/bad.png": "not an image of a known format"
    }


def test_more_classes_per_task_than_there_are_make_one_task(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path
) -> None:
    photos(tmp_path / "photos", "fox", "hare", "owl", "wolf")
    words = ("data.source=folder:photos", "data.classes=null", "data.increment=10")
    code, said = zofc("run", recipe_file("simplecil/base", *words))
    assert code == 0, said
    assert "data.increment: 10 classes per task, but there are only 4 in folder:photos: all are one task" in said
    assert "For more tasks: data.increment=2\n" in said and "4 classes in 1 task;" in said
    paper = recipe_file("simplecil/base", *words, "paper={table: main, row: simplecil, column: cifar100-inc5}")
    code, said = zofc("run", paper)
    assert code == 2 and "there are only 4 in folder:photos; a row of the paper needs its data" in said


def test_show_compare_report(zofc: Run, finished: Path, recipe_file: Callable[..., str], tmp_path: Path) -> None:
    code, said = zofc("show", str(finished))
    assert code == 0 and "after task" in said and "forgetting" in said.lower()
    assert zofc("run", recipe_file("simplecil/base"), "-q")[0] == 0
    code, said = zofc("compare", "runs", "--settings")
    assert code == 0 and "simplecil" in said and "adapter" in said
    code, said = zofc("compare", "runs", "--markdown")
    assert code == 0 and said.count("|") > 10 and "| all classes (%) |" in said
    code, said = zofc("compare", "runs", "--over", "seed")
    assert code == 2 and "no two of these runs" in said
    assert zofc("run", recipe_file("simplecil/base", "seed=1994"), "-q")[0] == 0
    code, said = zofc("compare", "runs", "--over", "seed", "--markdown")
    assert code == 0 and "2: 1993, 1994" in said and " ± " in said
    assert zofc("compare", "runs", "--over", "method")[0] == 2
    code, said = zofc("report", "runs", "-o", "all.html")
    assert code == 0 and "--over seed shows them as one" in said
    code, said = zofc("report", "runs", "-o", "means.html", "--over", "seed")
    assert code == 0 and "--over seed" not in said
    assert "3 runs as 2" in (tmp_path / "means.html").read_text()
    for copy in range(6):  # more than there is room for side by side
        shutil.copytree(finished, tmp_path / "runs" / f"copy-{copy}")
    code, said = zofc("compare", "runs", "--markdown")
    assert code == 0 and said.startswith("| run |") and "(copy-5) |" in said
    code, said = zofc("report", "runs", "-o", "page.html")
    assert code == 0 and (tmp_path / "page.html").exists()
    code, said = zofc("show", "absent")
    assert code == 2 and "absent: no such folder" in said


def test_a_saved_model_is_shown_by_its_classes_and_not_waited_for(zofc: Run, tiny_recipe: Make, tmp_path: Path) -> None:
    model = Learner(tiny_recipe("simplecil/base", "training.workers=0"))
    model.learn({name: [Image.new("RGB", (20, 20), name)] * 2 for name in ("red", "blue")})
    model.learn({"green": [Image.new("RGB", (20, 20), "green")]})
    model.save(tmp_path / "models" / "mine")
    code, said = zofc("show", "models/mine")
    assert code == 0 and "a saved model" in said and "of 3 classes" in said and "red, blue" in said and "green" in said
    assert "glyphs" not in said and "after task" not in said
    for words in (["models/mine"], ["models/mine", "--once"]):
        code, said = zofc("watch", *words)
        assert code == 0 and "models/mine is a saved model" in said
    code, said = zofc("watch", "models", "--once")  # a run may still begin there
    assert code == 2 and "no run folder" in said


def test_predict_names_classes_of_image_files(zofc: Run, finished: Path, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), "red").save(tmp_path / "a.png")
    code, said = zofc("predict", str(finished), "a.png", "--top", "2")
    assert code == 0 and said.startswith("a.png: ") and said.count("%") == 2
    code, said = zofc("predict", str(finished), "a.png", "a.png", "--json")
    lines = [json.loads(line) for line in said.splitlines()]
    assert len(lines) == 2 and lines[0]["image"] == "a.png" and len(lines[0]["classes"]) == 3


def test_predict_answers_for_what_it_can_read_and_names_the_rest(zofc: Run, finished: Path, tmp_path: Path) -> None:
    for name in ("a.png", "more/b.png", "more/deep/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), "red").save(tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"not an image")
    code, said = zofc("predict", str(finished), "absent.png", "a.png", "broken.png", "empty", "more")
    assert code == 2 and "skip_broken" not in said
    assert [line.partition(":")[0] for line in said.splitlines() if "%" in line] == [
        "a.png", "more/b.png", "more/deep/c.png",
    ]  # fmt: skip
    for reason in (
        "absent.png: there is no such file",
        "broken.png: not an image of a known format",
        "empty: no images in",
    ):
        assert reason in said
    code, said = zofc("predict", str(finished), "absent.png")
    assert code == 2 and said.count("\n") == 1


def test_answers_are_rows_of_csv_or_json_with_errors_among_them(zofc: Run, finished: Path, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), "red").save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_bytes(b"not an image")
    code, said = zofc("predict", str(finished), "a.png", "broken.png", "--csv", "-o", "answers.csv", "--top", "2")
    assert code == 2 and "broken.png: not an image" in said
    broken, answer = csv.DictReader((tmp_path / "answers.csv").read_text().splitlines())
    assert list(answer) == ["image", "class", "probability", "class_2", "probability_2", "error"]
    assert answer["image"] == "a.png" and float(answer["probability"]) >= float(answer["probability_2"]) > 0
    assert "not an image" in broken["error"] and not broken["class"] and not answer["error"]
    code, said = zofc("predict", str(finished), "a.png", "broken.png", "--json", "--output", "answers.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert code == 2 and [set(row) for row in rows] == [{"image", "error"}, {"image", "classes"}]
    code, said = zofc("predict", str(finished), "a.png", "--csv", "--json")
    assert code == 2 and "choose one of" in said


def test_an_image_may_be_none_of_the_classes(zofc: Run, finished: Path, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), "red").save(tmp_path / "a.png")
    for share in ("5%", "0.05"):
        code, said = zofc("predict", str(finished), "a.png", "--json", "--reject", share)
        row = json.loads(said)
        assert code == 0 and row["none_of_these"] == (not row["classes"])
    code, said = zofc("predict", str(finished), "a.png", "--reject", "99.9%")
    assert code == 0 and said == "a.png: none of these\n"
    for wrong in ("5", "0", "half"):
        code, said = zofc("predict", str(finished), "a.png", "--reject", wrong)
        assert code == 2 and "expected a share such as 5%" in said


def test_only_a_command_that_takes_a_setting_advises_it(zofc: Run, finished: Path, tmp_path: Path) -> None:
    for name in ("0.png", "1.png", "2.png"):
        (tmp_path / "photos" / "fox").mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "fox" / name).write_bytes(b"not an image")
    for words in (["evaluate", str(finished)],):
        code, said = zofc(*words, "folder:photos")
        assert code == 2 and "3 of 3 images cannot be read" in said and "skip_broken" not in said
        code, said = zofc(*words, "photos")
        assert code == 2 and "did you mean folder:photos?" in said
    for images in (["demo/zofc", "data.source=folder:photos"], ["folder:photos", "backbone.name=embedded"]):
        code, said = zofc("run", *images, "training.device=cpu")
        assert code == 2 and said.count("not an image of a known format") == 3 and "With data.skip_broken=true" in said
    assert "With data.skip_broken=true" in zofc("recommend", "folder:photos", "embedded")[1]


def test_learn_then_evaluate(zofc: Run, finished: Path, tmp_path: Path) -> None:
    for name, colour in (("fox", "red"), ("hare", "blue")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (20 + i, 20), colour).save(tmp_path / "photos" / name / f"{i}.png")
    code, said = zofc("learn", str(finished), "folder:photos", "-o", "more")
    assert code == 0 and "extended run: more" in said
    code, said = zofc("evaluate", "more", "folder:photos", "-o", "result.json")
    assert code == 0 and "all images" in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result["per_class"]) == {"fox", "hare"} and sum(map(sum, result["confusion"])) == 10
    assert ("→" in said) == (result["accuracy"] < 100)
    shutil.copytree(tmp_path / "photos" / "fox", tmp_path / "new" / "fox")
    shutil.copytree(tmp_path / "photos" / "fox", tmp_path / "new" / "wolf")
    code, said = zofc("evaluate", "more", "folder:new")
    assert code == 2 and "folder:new: never learned: wolf" in said and "--learned-only" in said
    code, said = zofc("evaluate", "more", "folder:new", "--learned-only")
    assert code == 0 and "left out, never learned: wolf" in said
    before = {path.name for path in tmp_path.iterdir()}
    for words, expected in ((("more", "folder:photos"), "fox"), ((str(finished), "folder:typo"), "typo")):
        code, said = zofc("learn", *words)
        assert code == 2 and expected in said
    assert {path.name for path in tmp_path.iterdir()} == before  # nothing half-made is left behind
    assert len(list((tmp_path / "runs").glob("*/recipe.yaml"))) == 1


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("recipes", ["zofc/cifar100-inc5", "simplecil/domainnet-inc69"]),
        ("methods", ["simplecil", "classifier", "adapter"]),
        ("datasets", ["glyphs", "cifar100", "imagenet-r", "domainnet", "folder", "parquet"]),
        ("backbones", ["embedded", "vit_base_patch16_224.augreg_in21k"]),
    ],
)
def test_list_shows_what_there_is(zofc: Run, what: str, names: list[str]) -> None:
    code, said = zofc("list", what)
    assert code == 0 and all(name in said for name in names)
    code, said = zofc("list", what, names[0].upper())
    assert code == 0 and names[0] in said and (names[-1] not in said or names[0] in names[-1])
    code, said = zofc("list", what, "nosuch")
    assert code == 2 and f"none of the {what} has 'nosuch'" in said


def test_settings_are_listed_with_values_default_and_meaning(zofc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application.out, "width", 80)
    code, said = zofc("list", "settings")
    assert code == 0 and "optimize.<group>.lr  number ≥ 0, ≤ 1e+38; default 0.01\n    learning rate" in said
    assert max(map(len, said.splitlines())) <= 80
    code, said = zofc("list", "settings", "CODA")
    assert code == 0 and "coda.per_task" in said and "schedule" in said  # by its name, by its description
    assert "seed" not in said
    code, said = zofc("list", "settings", "nosuch")
    assert code == 2 and "no setting has 'nosuch'" in said


def test_list_of_something_else_is_refused(zofc: Run) -> None:
    code, said = zofc("list", "recepes")
    assert code == 2 and "did you mean 'recipes'" in said
    code, said = zofc("list", "nothing")
    assert code == 2 and "known: backbones, datasets, methods, recipes, settings, studies" in said


def test_version_and_help(zofc: Run) -> None:
    import zofc as package

    assert zofc("--version") == (0, package.__version__ + "\n")
    code, said = zofc("run", "--help")
    assert code == 0 and "--resume" in said


def photos(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(5):
            Image.new("RGB", (20 + i, 20), (60 * number, 0, 0)).save(folder / name / f"{i}.png")
    return folder


def test_a_finished_run_says_that_its_data_have_changed(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path
) -> None:
    images = photos(tmp_path / "photos", "ant", "bee", "cat", "dog")
    changes = (f"data.source=folder:{images}", "data.classes=null", "data.per_class=3", "data.test_per_class=1")
    recipe = recipe_file("simplecil/base", *changes)
    assert zofc("run", recipe)[0] == 0
    code, said = zofc("run", recipe)
    assert code == 0 and "finished already" in said and "have changed" not in said
    Image.new("RGB", (9, 9)).save(images / "ant" / "another.png")
    code, said = zofc("run", recipe, "-q")
    assert code == 0 and "have changed since they were learned" in said and "--again trains anew" in said
    shutil.rmtree(images)
    code, said = zofc("run", recipe)
    assert code == 0 and "cannot be compared" in said  # and the run is shown all the same


def test_learning_more_never_writes_into_a_folder_of_other_things(zofc: Run, finished: Path, tmp_path: Path) -> None:
    photos(tmp_path / "photos", "fox", "hare")
    page = (tmp_path / "runs" / "report.html").read_bytes()
    code, said = zofc("learn", str(finished), "folder:photos", "-o", "runs")
    assert code == 2 and "runs is not empty" in said
    assert (tmp_path / "runs" / "report.html").read_bytes() == page and not (tmp_path / "runs/recipe.yaml").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "RECIPE", "--json"),
        ("cost", "RECIPE", "--json"),
        ("evaluate", "RUN", "glyphs", "-o"),
        ("flatness", "RUN", "--landscape"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_any_work(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    named = {"RECIPE": recipe_file("zofc/base"), "RUN": "absent"}
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    code, said = zofc(*(named.get(word, word) for word in words), "folder")
    assert code == 2 and "folder is a folder, expected the name of a file to write" in said
    code, said = zofc(*(named.get(word, word) for word in words), "file/x.json")
    assert code == 2 and "cannot write file/x.json: " in said and "gone" not in said


def test_folders_above_a_result_are_made(zofc: Run, recipe_file: Callable[..., str], tmp_path: Path) -> None:
    code, said = zofc("cost", recipe_file("zofc/base"), "--steps", "1", "--json", "a/b/cost.json")
    assert code == 0 and json.loads((tmp_path / "a" / "b" / "cost.json").read_text())["phases"], said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder in which nothing can be made")
def test_runs_that_can_be_nowhere_are_not_said_to_be_gone(zofc: Run, recipe_file: Callable[..., str]) -> None:
    code, said = zofc("run", recipe_file("simplecil/base"), "--runs", "/proc/foo")
    assert code == 2 and "cannot write /proc/foo/" in said and "gone" not in said


def test_an_output_without_these_letters_stops_nothing(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    code, _ = zofc("run", recipe_file("simplecil/base", "title=Grün :new:"))
    sys.stdout.flush()
    assert code == 0 and b"Gr?n :new:: simplecil on" in written.getvalue()


def test_words_between_colons_stay_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for voice in (cli.out, cli.err):
        monkeypatch.setattr(voice, "quiet", False)
        with voice.capture() as said:
            voice.print("folder:new:")
        assert said.get() == "folder:new:\n"


def test_a_run_whose_reader_has_gone_is_finished_in_silence(
    zofc: Run, recipe_file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(cli.out, "quiet", False)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        code, said = zofc("run", recipe_file("simplecil/base"))
    assert code == 0 and not said and (tmp_path / "runs" / "report.html").is_file()


def test_a_display_that_cannot_be_written_stops_no_training(tiny_recipe: Make, tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "full")

    for number, terminal in enumerate((False, True)):
        console = Console(file=Full(), force_terminal=terminal)
        recipe = tiny_recipe("zofc/base", f"seed={number}", "data.classes=4", "optimize.peft.epochs=1")
        assert train(start_run(recipe, tmp_path), [Display(console)])["finished"]


@pytest.mark.parametrize("width", [30, 45, 60, 80, 120])
def test_the_display_shows_every_step_at_any_width(width: int) -> None:
    screen = io.StringIO()
    display = Display(Console(file=screen, force_terminal=True, width=width, height=20, color_system=None))
    started = {"name": "one", "method": "adapter", "device": "cpu", "classes": 40, "tasks": 20}
    display.event({"time": 0.0, "event": "run_started", **started})
    display.event({"time": 0.0, "event": "task_started", "task": 11, "epochs": 20, "steps": 4000, "step": 0})
    display.shown_at = 0.0
    display.step(StepStatus(11, 20, 3, 20, 1234, 4000, 0.1234, 78.9))
    display.close()
    drawn = screen.getvalue().rpartition("\x1b[2K")[2]
    for word in ("12/20", "7/20", "1234/4000", "0.1234", "78.9 %", "━"):
        assert word in drawn
    assert "…" not in drawn and ("steps/s" in drawn) == (width > 50) and max(map(len, drawn.splitlines())) <= width


def test_the_display_leaves_its_picture_in_the_terminal(tiny_recipe: Make, tmp_path: Path) -> None:
    screen = io.StringIO()
    train(
        start_run(tiny_recipe("zofc/base", "optimize.peft.epochs=1"), tmp_path),
        [Display(Console(file=screen, force_terminal=True, width=120, height=30, color_system=None))],
    )
    drawn = screen.getvalue().rpartition("\x1b[2K")[2]
    assert "; finished" in drawn and "loss" in drawn and "after 1" in drawn and "after 3" in drawn


def test_the_display_shows_text_as_it_is() -> None:
    screen = io.StringIO()
    display = Display(Console(file=screen, width=120))
    display.event({"time": 0.0, "event": "notice", "text": "ignored /data/[old] pics/[/x].png"})
    assert "ignored /data/[old] pics/[/x].png" in screen.getvalue()


def test_command_files_are_short() -> None:
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in Path(cli.__file__).parent.glob("*.py")}
    assert "run.py" in lengths and max(lengths.values()) <= 250, lengths

"""Run folders that version 0.1 wrote stay readable and can be continued, whatever settings were added since."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from zofc.recipe import change_recipe
from zofc.runfolder import open_run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.identity import settings_digest

Zofc = Callable[..., tuple[int, str]]
RUNS = Path(__file__).parent / "fixtures" / "runs-0.1"


@pytest.fixture
def old_run(tmp_path: Path) -> Callable[[str], Path]:
    """A run of version 0.1 as it would lie in a user's folder."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(RUNS / name, tmp_path / "runs" / name))

    return copy


def call(zofc: Zofc, *words: object) -> tuple[int, str]:
    return zofc(*map(str, words))


def draw_classes(folder: Path, *names: str) -> Path:
    """A folder of images, plain colours."""
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for image in range(5):
            Image.new("RGB", (40, 40), (60 * number, 20 * image, 90)).save(folder / name / f"{image}.png")
    return folder


def test_a_finished_run_is_shown_compared_and_watched(zofc: Zofc, old_run: Callable[[str], Path]) -> None:
    run = old_run("finished")
    matrix = json.loads((run / "matrix.json").read_text())
    code, shown = call(zofc, "show", run)
    assert code == 0 and "ZO-FC" in shown and f"{matrix['accuracy'][-1][-1]:.2f}" in shown
    old_run("interrupted")
    code, shown = call(zofc, "compare", run.parent)
    assert code == 0 and "unfinished: 1 of 3 tasks" in shown
    code, shown = call(zofc, "watch", run, "--once")
    assert code == 0 and "finished" in shown
    code, shown = call(zofc, "watch", run.parent / "interrupted", "--once")
    assert code == 0 and "interrupted" in shown


def test_the_page_about_old_runs_is_written(zofc: Zofc, old_run: Callable[[str], Path], tmp_path: Path) -> None:
    code, said = call(zofc, "report", old_run("finished"), old_run("interrupted"), "--output", tmp_path / "page.html")
    assert code == 0, said
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "ZO-FC" in page and "unfinished: 1 of 3 tasks" in page


def test_a_finished_run_predicts_and_learns(zofc: Zofc, old_run: Callable[[str], Path], tmp_path: Path) -> None:
    run = old_run("finished")
    photos = draw_classes(tmp_path / "photos", "red", "blue")
    names = [name for group in json.loads((run / "matrix.json").read_text())["groups"] for name in group]
    code, said = call(zofc, "predict", run, photos / "red" / "0.png", "--json", "--top", 6)
    assert code == 0 and {one["name"] for one in json.loads(said)["classes"]} == set(names)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, said = call(zofc, "learn", run, f"folder:{photos}", "--output", tmp_path / "more", "--quiet")
    assert code == 0, said
    more = json.loads((tmp_path / "more" / "matrix.json").read_text())
    assert len(more["accuracy"]) == 4 and set(more["groups"][-1]) == {"red", "blue"}
    assert more["accuracy"][:3] == json.loads((run / "matrix.json").read_text())["accuracy"]
    assert {path: path.read_bytes() for path in before} == before


def test_an_interrupted_run_resumes_to_the_matrix_that_0_1_ended_with(
    zofc: Zofc, old_run: Callable[[str], Path]
) -> None:
    run = old_run("interrupted")
    for _ in range(2):  # a finished run is only shown
        code, said = call(zofc, "run", "--resume", run, "training.checkpoint_minutes=9", "--quiet")
        assert code == 0, said
    expected = json.loads((RUNS / "interrupted-expected.json").read_text())
    assert json.loads((run / "matrix.json").read_text()) == expected
    assert "run_resumed" in (run / "events.jsonl").read_text()


def test_an_old_run_is_not_continued_with_another_recipe(zofc: Zofc, old_run: Callable[[str], Path]) -> None:
    run = old_run("interrupted")
    code, said = call(zofc, "run", "--resume", run, "seed=5")
    assert code == 2 and re.search(r"seed: 1993 there,\s+5 here", said)
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("rank: 5", "rank: 4"))
    code, said = call(zofc, "run", "--resume", run, "--quiet")
    assert code == 2 and "was changed since this run began" in " ".join(said.split())


def test_a_checkpoint_knows_its_recipe_whatever_was_added_to_recipes_since(old_run: Callable[[str], Path]) -> None:
    run = open_run(old_run("interrupted"))
    checkpoint = load_checkpoint(run)
    assert checkpoint is not None and checkpoint.progress.recipe == run.digest
    assert settings_digest(run.recipe.model_dump(mode="json")) != run.digest  # this version has more settings
    run.execution = change_recipe(run.recipe, ["training.threads=3"])
    run.apply_execution()
    assert run.setting("training.threads") == run.recipe.training.threads == 3
    run.check_recipe_unchanged(checkpoint.progress.recipe)
    run.recipe_file.write_text(f"# a note\n{run.recipe_file.read_text()}")
    run.check_recipe_unchanged(checkpoint.progress.recipe)


def test_the_kept_tasks_of_an_old_run_are_measured(zofc: Zofc, old_run: Callable[[str], Path]) -> None:
    run = old_run("finished")
    few = "--images", 2, "--directions", 1, "--probes", 1, "--products", 2, "--over", "head", "--every", 3
    code, said = call(zofc, "flatness", run, *few)
    assert code == 0, said
    assert [row.task for row in open_run(run).flatness] == [3]

"""Facts about run folders: who knows the names of their files, and what a reader sees while one is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import zofc
from zofc.errors import RunError
from zofc.recipe import Recipe
from zofc.runfolder import create_run, find_runs, new_run, open_run
from zofc.runfolder.create import is_free
from zofc.runfolder.find import cost_file, study_run
from zofc.runfolder.identity import folder_for
from zofc.runfolder.run import Run

PACKAGE = Path(zofc.__file__).parent
Make = Callable[..., Recipe]
FILE_NAMES = re.compile(
    r"(recipe\.yaml|(matrix|metrics|environment|state|flatness|curvature|\.cost)\.json|events\.jsonl|report\.html"
    r"|checkpoint/|tasks/|tensors-|\"\.lock\"|\"kept\")"
)


def test_names_of_files_in_a_run_are_spelled_in_one_room() -> None:
    spelled = {
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".j2", ".js", ".css") and PACKAGE / "runfolder" not in path.parents
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if FILE_NAMES.search(line)
    }
    assert spelled == set()


def test_a_file_is_parsed_once_and_again_when_it_has_changed(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "run", tiny_recipe())
    assert run.metrics == {} and not run.finished and run.matrix is None and run.events == ()
    run.write_metrics({"finished": True, "tasks": 3})
    assert run.finished and run.tasks_done == 3
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", lambda text: pytest.fail("read again"))
        assert run.finished
    (run.path / "metrics.json").unlink()
    assert not run.finished


def test_a_folder_is_a_run_once_its_recipe_is_written_which_is_last(tiny_recipe: Make, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run"
    with pytest.raises(ZeroDivisionError), new_run(path, tiny_recipe()) as run:
        run.write_environment({"data": {}})
        assert not run.exists
        raise ZeroDivisionError
    assert is_free(path) and not Run(path).exists
    with pytest.raises(RunError, match="not a run folder"):
        open_run(path)
    assert create_run(path, tiny_recipe()).recipe == tiny_recipe()
    assert not is_free(path) and find_runs([tmp_path]) == [path]
    run.discard_if_empty()
    assert not path.parent.exists()


def test_checksums_of_data_and_weights_are_compared_with_those_recorded(tiny_recipe: Make, tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", tiny_recipe())
    run.write_environment({"data": {"glyphs": "a"}, "backbone": {"checksum": "w"}})
    run.check_weights("w")
    with pytest.raises(RunError, match="weights changed since"):
        run.check_weights("v")
    assert run.changed_data({"glyphs": "a", "never learned": "b"}) == []
    (change,) = run.changed_data({"glyphs": "b"})
    assert "'glyphs' changed since it was learned" in change


def test_a_study_finds_results_by_what_was_asked(tiny_recipe: Make, tmp_path: Path) -> None:
    recipe, keeping = tiny_recipe(), tiny_recipe("zofc/base", "training.keep_tasks=true")
    assert study_run(recipe, tmp_path) == study_run(keeping, tmp_path) == folder_for(recipe, tmp_path)
    run = create_run(folder_for(recipe, tmp_path), recipe)
    run.write_metrics({"finished": True, "tasks": 2})
    assert study_run(recipe, tmp_path) == run.path  # and one that kept no tasks does not do for a flatness
    assert study_run(keeping, tmp_path) == tmp_path / "kept" / run.path.name
    assert cost_file(recipe, tmp_path, {"steps": 5}) != cost_file(recipe, tmp_path, {"steps": 6})

"""The programs under examples/ run, with less to do than by default."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zofc.methods import METHODS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ONE_EPOCH = ["optimize.peft.epochs=1", "optimize.head.epochs=1", "training.device=cpu"]


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_images_learns_from_a_folder_and_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = load_example("own_images")
    example.draw_images(tmp_path, per_class=4)
    example.main(tmp_path, ["backbone.name=embedded", "peft.blocks=first 2", *ONE_EPOCH])
    printed = capsys.readouterr().out
    assert "all classes: blue disc, blue square, red disc, red square" in printed
    assert "accuracy on held-out pictures" in printed


def test_compare_orders_trains_one_run_per_order(capsys: pytest.CaptureFixture[str]) -> None:
    example = load_example("compare_orders")
    example.main(["data.classes=4", "data.per_class=4", "data.test_per_class=2", "peft.blocks=first 2", *ONE_EPOCH])
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["ZO-FC (head", "First order (head"]
    assert "peft: zeroth order" in printed[0] and "peft: first order" in printed[1]


def test_own_method_runs_from_the_command_line_and_predicts_in_another_process(
    zofc: Callable[..., tuple[int, str]], tmp_path: Path, tiny_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_example("own_images").draw_images(tmp_path / "images", per_class=4)
    settings = [f"data.source=folder:{tmp_path / 'images'}", f"backbone.name={tiny_weights}", "data.increment=2"]
    settings += ["method.name=first-session", "peft.blocks=first 2", "training.workers=0", *ONE_EPOCH]
    plugin = ["--plugin", str(EXAMPLES / "own_method.py")]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zofc", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = call("run", "zofc/base", *settings, *plugin, "--quiet")
    assert done.returncode == 0, done.stderr
    (run,) = (path.parent for path in tmp_path.glob("runs/*/matrix.json"))
    image = str(tmp_path / "images" / "red disc" / "0.png")
    assert "%" in call("predict", str(run), image, *plugin).stdout
    monkeypatch.delitem(METHODS, "first-session", raising=False)  # as in a process that has not loaded the file
    code, said = zofc("predict", str(run), image)
    assert code == 2 and "own_method.py" in said

"""The programs under examples/ run, with less to do than by default."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

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

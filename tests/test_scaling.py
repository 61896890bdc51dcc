"""Facts about the model of training on many machines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from zofc.evidence.scaling import (
    BACKBONES,
    BATCH,
    DATA_CENTRE,
    INTERNET,
    MACHINES,
    StepKind,
    captured,
    measured_kinds,
    speed_up_table,
)

ROOT = Path(__file__).parent.parent
BASE = BACKBONES[0]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    files = (ROOT / "results" / name for name in ("step.json", "step_memory.json"))
    return [row for file in files for row in json.loads(file.read_text("utf-8"))["rows"]]


@pytest.fixture(scope="module")
def kinds(rows: list[dict[str, object]]) -> dict[str, StepKind]:
    return measured_kinds(rows)


def test_one_machine_takes_the_measured_time(kinds: dict[str, StepKind], rows: list[dict[str, object]]) -> None:
    measured = {row["name"]: row["milliseconds"] for row in rows}
    for name, row in (("first", "first"), ("shared", "forward"), ("image", "image")):
        assert 1e3 * kinds[name].step_seconds(BASE, INTERNET, 1) == pytest.approx(measured[row])
        assert kinds[name].fixed > 0 and kinds[name].per_image > 0
    assert 1e3 * (BATCH / 24) * kinds["image"].seconds(BASE, 24) == pytest.approx(measured["image-24"])


def test_bytes_are_those_of_coefficients_and_gradients(kinds: dict[str, StepKind]) -> None:
    adapter, rows = 5 * (2 * 5 * 768 + 5 + 768), 10 * 768 + 1
    assert kinds["first"].summed_bytes(BASE) == 4 * (adapter + rows)
    assert kinds["shared"].summed_bytes(BASE) == 4 * (4 + rows)
    assert (kinds["image"].summed_bytes(BASE), kinds["image"].gathered_bytes()) == (4 * rows, 4 * BATCH)
    assert {kinds["throughout"].summed_bytes(backbone) for backbone in BACKBONES} == {16}


@pytest.mark.parametrize("network", [DATA_CENTRE, INTERNET])
def test_speed_up_is_at_most_ideal_and_larger_models_hide_the_network(
    kinds: dict[str, StepKind], network: object
) -> None:
    for kind in kinds.values():
        for machines in MACHINES:
            small, large = (kind.speed_up(backbone, network, machines) for backbone in (BASE, BACKBONES[-1]))  # type: ignore[arg-type]
            assert small <= large <= machines
    assert len(speed_up_table(kinds, network).rows) == 2 * len(kinds)  # type: ignore[arg-type]


def test_many_small_sums_take_a_tree_and_few_large_ones_a_ring() -> None:
    assert INTERNET.sum_seconds(16, 1024) == pytest.approx(20 * (0.03 + 16 / 2.5e6))
    assert INTERNET.sum_seconds(1e9, 4) == pytest.approx(6 * (0.03 + 1e9 / 4 / 2.5e6))
    assert INTERNET.sum_seconds(1e9, 1) == INTERNET.gather_seconds(1e9, 1) == 0


@pytest.mark.parametrize("directions", [1, 8, 64])
def test_directions_capture_their_share_of_a_gradient(directions: int) -> None:
    size, rng, shares = 50, np.random.default_rng(0), []
    for _ in range(2000):
        gradient, signs = rng.standard_normal(size), rng.choice([-1.0, 1.0], (directions, size))
        estimate = signs.T @ (signs @ gradient)
        shares.append((estimate @ gradient) ** 2 / (estimate @ estimate) / (gradient @ gradient))
    assert np.mean(shares) == pytest.approx(captured(directions, size), rel=0.1)


def test_machines_are_worth_steps_while_directions_are_few(kinds: dict[str, StepKind]) -> None:
    assert kinds["shared"].progress(BASE, 64) == pytest.approx(64, rel=0.01)
    assert kinds["image"].progress(BASE, 1024) < 1024 / 2
    assert kinds["first"].progress(BASE, 64) == 1

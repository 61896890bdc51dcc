"""scripts/method_results.py: which learning rates a search picks."""

from __future__ import annotations

from typing import Any

from method_results import best_factors


def row(factor: float, accuracy: float | None, seed: int = 1, **other: str) -> dict[str, Any]:
    about = {"method": "lae", "placement": "FO", "variant": "official", "readout": "rows", "seed": seed, **other}
    found = {"failed": "the loss became nan"} if accuracy is None else {"all_classes": accuracy}
    return {**about, "factor": factor, **found}


def test_the_best_on_average_over_seeds_is_picked_not_the_luckiest() -> None:
    rows = [row(1, 50.0), row(1, 52.0, seed=2), row(10, 56.0), row(10, 44.0, seed=2)]
    assert best_factors(rows) == {("lae", "FO"): [1]}
    assert best_factors(rows[:1] + rows[2:3]) == {("lae", "FO"): [10]}


def test_of_equals_the_smaller_step_is_picked() -> None:
    assert best_factors([row(100, 50.0), row(10, 50.0), row(1, 49.0)]) == {("lae", "FO"): [10]}


def test_what_failed_with_a_seed_is_not_picked() -> None:
    assert best_factors([row(1, 40.0), row(10, 60.0), row(10, None, seed=2)]) == {("lae", "FO"): [1]}


def test_variants_and_readouts_pick_nothing() -> None:
    rows = [row(1, 40.0), row(10, 90.0, variant="zofc"), row(100, 90.0, readout="ridge"), row(1, 9.0, placement="ZO")]
    assert best_factors(rows) == {("lae", "FO"): [1], ("lae", "ZO"): [1]}

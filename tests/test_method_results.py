"""scripts/method_results.py: which learning rates a search picks."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from method_results import best_factors, grid
from zofc.studies.catalogue import get_study
from zofc.studies.scale import get_scale


def row(factor: float, accuracy: float | None, module: float = 1.0, seed: int = 1, **other: str) -> dict[str, Any]:
    about = {"method": "lae", "placement": "FO", "variant": "official", "readout": "rows", "seed": seed, **other}
    found = {"failed": "the loss became nan"} if accuracy is None else {"all_classes": accuracy}
    return {**about, "factor": factor, "module": module, **found}


def test_the_best_on_average_over_seeds_is_picked_not_the_luckiest() -> None:
    rows = [row(1, 50.0), row(1, 52.0, seed=2), row(10, 56.0), row(10, 44.0, seed=2)]
    assert best_factors(rows) == {("lae", "FO"): [(1, 1.0)]}
    assert best_factors(rows[:1] + rows[2:3]) == {("lae", "FO"): [(10, 1.0)]}


def test_of_equals_the_smaller_step_is_picked() -> None:
    assert best_factors([row(10, 50.0, 100), row(10, 50.0, 10), row(100, 50.0)]) == {("lae", "FO"): [(10, 10)]}


def test_what_failed_with_a_seed_is_not_picked() -> None:
    assert best_factors([row(1, 40.0), row(10, 60.0), row(10, None, seed=2)]) == {("lae", "FO"): [(1, 1.0)]}


def test_variants_and_readouts_pick_nothing() -> None:
    rows = [row(1, 40.0), row(10, 90.0, variant="zofc"), row(100, 90.0, readout="ridge"), row(1, 9.0, placement="ZO")]
    assert best_factors(rows) == {("lae", "FO"): [(1, 1.0)], ("lae", "ZO"): [(1, 1.0)]}


# -- a search with the recipes of the studies ------------------------------------------------------------------------


def searched(method: str, factor: float, module: float) -> dict[str, Any]:
    """The recipes of a search at small scale, by placement."""
    options = Namespace(
        seeds=[7], methods=[method], placements=["none", "FO", "ZO", "hybrid"], factors=[factor, 5.0], modules=[module],
        scale="small", fast=True, settings=["data.classes=20", "data.source=parquet:held-out"],
    )  # fmt: skip
    pairs = [(method, placement) for placement in ("FO", "ZO", "hybrid")]
    cells = list(grid(options, {key: [(factor, module)] for key in pairs}))
    return {str(cell.labels["placement"]): cell.recipe for cell in cells}


@pytest.mark.parametrize(("method", "lines"), [("adapter", {"FO": "Adapter + Cls., FO", "hybrid": "ZO-FC"}),
                                               ("l2p", {"FO": "L2P, FO", "ZO": "L2P, ZO"})])  # fmt: skip
def test_a_search_at_a_scale_runs_what_the_studies_run_at_other_rates(method: str, lines: dict[str, str]) -> None:
    found, scale = searched(method, 10.0, 100.0), get_scale("small").faster()
    for placement, line in lines.items():
        cells = get_study("inc10-table").cells(scale, [7], ["cifar100"], [])
        (theirs,) = [cell.recipe for cell in cells if cell.labels["line"] == line]
        recipe = found[placement]
        assert recipe.seed == 7 and recipe.data.classes == 20 and recipe.data.per_class == theirs.data.per_class
        family = theirs.name.partition("/")[0]
        for name, plan in recipe.optimize.items():
            own = theirs.optimize[name]
            chosen = scale.own_rates[family][0 if name == "head" else 1]
            assert plan.lr == pytest.approx(own.lr / chosen * (10 if name == "head" else 1000))
            assert plan.model_copy(update={"lr": own.lr, "min_lr": own.min_lr}) == own


def test_what_the_studies_do_not_train_is_in_no_search_at_a_scale() -> None:
    assert searched("simplecil", 1.0, 1.0) == {} and set(searched("lae", 1.0, 1.0)) == {"FO", "ZO"}

"""The paper's printed numbers, as read from its tables, and the names its metrics have here."""

from __future__ import annotations

import math

import pytest

from zofc.errors import RecipeError
from zofc.paper import metric_names, printed, tables

CELLS = [
    ("main", "simplecil", "domainnet-inc69", (65.76, 59.91, 7.02)),
    ("main", "classifier-fo", "imagenet-r-inc5", (60.60, 52.12, 3.98)),
    ("main", "adapter-fo", "cifar100-inc5", (88.41, 83.64, 9.58)),
    ("main", "inflora-fo", "domainnet-inc69", (79.70, 74.05, 7.43)),
    ("main", "classifier-zo", "cifar100-inc5", (62.85, 43.55, 3.99)),
    ("main", "adapter-zo", "imagenet-r-inc5", (34.87, 27.33, 6.36)),
    ("main", "l2p-zo", "cifar100-inc5", (15.05, 2.36, 14.02)),
    ("main", "zofc", "cifar100-inc5", (88.39, 83.34, 5.26)),
    ("main", "zofc", "imagenet-r-inc5", (72.01, 66.63, 4.40)),
    ("main", "zofc", "domainnet-inc69", (77.17, 71.05, 4.19)),
    ("inc10", "coda-prompt-fo", "cifar100-inc10", (90.76, 85.7, 4.23)),
    ("inc10", "zofc", "imagenet-r-inc10", (75.80, 70.10, 3.64)),
    ("queries", "Q=1", "imagenet-r-inc5", (65.31, 60.27, 3.0)),
    ("queries", "Q=64", "cifar100-inc5", (88.79, 84.11, 6.08)),
    ("classifiers", "classifier-linear-fo", "imagenet-r-inc5", (61.19, 44.42, 17.63)),
    ("classifiers", "zofc-linear", "cifar100-inc5", (85.94, 79.61, 5.92)),
    ("classifiers", "prototypes", "imagenet-r-inc5", (67.06, 62.98, 16.39)),
    ("placement", "swapped", "cifar100-inc5", (62.45, 53.22, 25.65)),
    ("augmentation", "zofc-noaug", "imagenet-r-inc5", (73.04, 67.35, 5.19)),
    ("prompt-epochs", "coda-prompt-zo", "imagenet-r-inc5", (6.47, 1.21, 5.83)),
]


@pytest.mark.parametrize(("table", "row", "column", "numbers"), CELLS)
def test_accuracies_are_as_printed(table: str, row: str, column: str, numbers: tuple[float, ...]) -> None:
    assert printed(table, row, column) == dict(zip(("avg", "last", "fgt"), numbers, strict=True))


def test_costs_are_as_printed() -> None:
    assert printed("memory", "coda-prompt-fo", "batch48") == {"gigabytes": 7.21}
    assert printed("memory", "zofc", "batch48") == {"gigabytes": 0.70}
    assert printed("runtime", "zofc-q4", "batch48") == {"gigabytes": 0.70, "seconds": 59.36}
    assert printed("flops", "zofc-early-q4", "batch48")["backward_flops"] == 2.06e6
    assert printed("flops", "zo-q1", "batch48")["total_flops"] == printed("flops", "fo", "batch48")["total_flops"]


def test_every_table_is_whole() -> None:
    sizes = {name: len(table["rows"]) for name, table in tables().items()}
    assert sizes == {
        "main": 18,
        "inc10": 10,
        "queries": 7,
        "classifiers": 7,
        "placement": 2,
        "augmentation": 2,
        "prompt-epochs": 2,
        "memory": 15,
        "runtime": 5,
        "flops": 7,
    }
    for table in tables().values():
        assert list(table["labels"]) == list(table["rows"])
        columns = {tuple(row) for row in table["rows"].values()}
        assert len(columns) == 1, "every row has every column"
        for row in table["rows"].values():
            for cell in row.values():
                assert list(cell) == table["metrics"]
                assert all(math.isfinite(number) and number >= 0 for number in cell.values())


def test_rows_that_appear_twice_agree() -> None:
    for column in ("cifar100-inc5", "imagenet-r-inc5"):
        expected = printed("main", "zofc", column)
        again = [("queries", "Q=4"), ("classifiers", "zofc"), ("placement", "zofc"), ("augmentation", "zofc")]
        assert all(printed(table, row, column) == expected for table, row in again)
        for row in ("classifier-fo", "adapter-fo"):
            assert printed("classifiers", row, column) == printed("main", row, column)
    assert printed("memory", "zofc", "batch48")["gigabytes"] == printed("runtime", "zofc-q4", "batch48")["gigabytes"]


def test_the_printed_last_is_not_that_of_the_last_task() -> None:
    """SimpleCIL's accuracy over all classes does not depend on the split; that on the last task does."""
    five, ten = printed("main", "simplecil", "cifar100-inc5"), printed("inc10", "simplecil", "cifar100-inc10")
    assert five["last"] == ten["last"]
    assert five["avg"] - five["last"] > 5, "nor is the printed avg the mean over tasks of equal size"


def test_metric_names_come_in_both_meanings() -> None:
    assert metric_names() == {"avg": "average_incremental", "last": "all_classes", "fgt": "forgetting"}
    assert metric_names("formal") == {"avg": "final_average", "last": "last_task", "fgt": "forgetting"}


def test_printed_gives_a_copy() -> None:
    printed("main", "zofc", "cifar100-inc5")["avg"] = 0.0
    assert printed("main", "zofc", "cifar100-inc5")["avg"] == 88.39


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (("mian", "zofc", "cifar100-inc5"), "paper: table 'mian' is not printed; did you mean 'main'?"),
        (
            ("main", "zo-fc", "cifar100-inc5"),
            "paper: table 'main': row 'zo-fc' is not printed; did you mean 'zofc'?",
        ),
        (
            ("main", "zofc", "cifar-inc5"),
            "paper: table 'main', row 'zofc': column 'cifar-inc5' is not printed",
        ),
    ],
)
def test_unknown_cells_get_the_nearest_name(where: tuple[str, str, str], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        printed(*where)
    assert str(caught.value).startswith(message)

"""Facts about the metrics: the check values, and what must hold for every accuracy matrix."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zofc import metrics
from zofc.metrics import AccuracyMatrix, Row

TWO_TASKS = AccuracyMatrix(((90.0,), (80.0, 70.0)), (100, 300), (("cat", "dog"), ("owl",)))
JOINT = AccuracyMatrix(((80.0, 70.0, 60.0),), (100, 100, 200))

percent = st.floats(0, 100, allow_nan=False)


@st.composite
def matrices(draw: st.DrawFn, *, gaps: bool = False, tasks: int = 6) -> AccuracyMatrix:
    """Triangular matrices; with `gaps`, some entries were not measured and some groups have no images."""
    k = draw(st.integers(1, tasks))
    counts = tuple(draw(st.lists(st.integers(0 if gaps else 1, 500), min_size=k, max_size=k)))
    entry: st.SearchStrategy[float | None] = st.none() | percent if gaps else percent
    rows = tuple(tuple(draw(entry) if counts[j] else None for j in range(i + 1)) for i in range(k))
    return AccuracyMatrix(rows, counts)


def close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def test_check_values() -> None:
    assert metrics.summary(TWO_TASKS) == {
        "all_classes": 72.5,
        "final_average": 75.0,
        "average_incremental": 81.25,
        "last_task": 70.0,
        "forgetting": 10.0,
        "forgetting_before_last": 10.0,
        "backward_transfer": -10.0,
    }
    assert metrics.all_classes_over_time(TWO_TASKS) == (90.0, 72.5)
    assert metrics.forgetting_by_group(TWO_TASKS) == (10.0,)


def test_the_two_forgettings_differ_when_the_last_task_helps_an_old_one() -> None:
    matrix = AccuracyMatrix(((60.0,), (50.0, 90.0), (75.0, 80.0, 70.0)), (10, 10, 10))
    assert metrics.forgetting(matrix) == 5.0  # 0 and 10
    assert metrics.forgetting_before_last(matrix) == -2.5  # -15 and 10
    assert metrics.backward_transfer(matrix) == 2.5  # +15 and -10


def test_one_task_has_nothing_to_forget() -> None:
    found = metrics.summary(AccuracyMatrix(((90.0,),), (7,)))
    assert {name for name, value in found.items() if value is None} == {
        "forgetting",
        "forgetting_before_last",
        "backward_transfer",
    }
    assert {value for value in found.values() if value is not None} == {90.0}


def test_a_joint_run_has_final_accuracies_and_no_time() -> None:
    assert JOINT.joint
    assert metrics.all_classes(JOINT) == 67.5
    assert metrics.final_average(JOINT) == 70.0
    assert all(
        value is None for name, value in metrics.summary(JOINT).items() if name not in ("all_classes", "final_average")
    )


def test_a_task_learned_after_a_joint_start_is_the_only_new_one() -> None:
    matrix = AccuracyMatrix(((80.0, 60.0), (70.0, 60.0, 90.0)), (1, 1, 1))
    assert metrics.last_task(matrix) == 90.0
    assert metrics.forgetting(matrix) == 5.0


def test_nothing_is_defined_before_the_first_task_is_measured() -> None:
    assert set(metrics.summary(AccuracyMatrix((), (10, 10))).values()) == {None}


def test_groups_without_test_images_are_left_out_of_means_and_no_accuracy_is_of_all_classes() -> None:
    # Group 2 was never measured; group 1 lost its images before task 3 but keeps its count.
    matrix = AccuracyMatrix(((90.0,), (80.0, None), (None, None, 60.0)), (100, 0, 50))
    assert matrix.unmeasured == (0, 1)
    assert metrics.final_average(matrix) == metrics.last_task(matrix) == 60.0
    assert metrics.all_classes(matrix) is None
    assert metrics.average_incremental(matrix) == 90.0  # after the first task alone all classes were measured
    assert metrics.forgetting(matrix) is None  # no old group has a final accuracy
    assert metrics.backward_transfer(matrix) is None


def test_an_unmeasured_row_is_skipped_in_the_mean_over_time() -> None:
    matrix = AccuracyMatrix(((None,), (60.0, 80.0), (60.0, 60.0, 100.0)), (100, 100, 100))
    assert metrics.average_incremental(matrix) == pytest.approx((70 + 220 / 3) / 2)
    assert metrics.forgetting(matrix) == 10.0


def test_backward_transfer_needs_the_accuracy_right_after_learning() -> None:
    matrix = AccuracyMatrix(((None,), (80.0, 90.0), (70.0, 85.0, 60.0)), (5, 5, 5))
    assert metrics.backward_transfer(matrix) == -5.0
    assert metrics.forgetting(matrix) == 7.5


@given(matrices(gaps=True))
def test_json_keeps_every_bit(matrix: AccuracyMatrix) -> None:
    assert AccuracyMatrix.from_json(json.loads(json.dumps(matrix.to_json()))) == matrix


def test_json_has_the_keys_of_the_run_folder() -> None:
    assert TWO_TASKS.to_json() == {
        "accuracy": [[90.0], [80.0, 70.0]],
        "counts": [100, 300],
        "groups": [["cat", "dog"], ["owl"]],
    }


@given(matrices(gaps=True))
def test_accuracies_stay_in_percent_and_forgetting_is_never_negative(matrix: AccuracyMatrix) -> None:
    found = metrics.summary(matrix)
    for name in ("all_classes", "final_average", "average_incremental", "last_task", "forgetting"):
        value = found[name]
        assert value is None or -1e-9 <= value <= 100 + 1e-9
    assert all(drop is None or drop >= 0 for drop in metrics.forgetting_by_group(matrix))


@given(matrices(gaps=True))
def test_seeking_the_best_among_more_tasks_never_lowers_forgetting(matrix: AccuracyMatrix) -> None:
    wide, narrow = metrics.forgetting(matrix), metrics.forgetting_before_last(matrix)
    if not any(accuracy is None for row in matrix.rows for accuracy in row) and wide is not None:
        assert narrow is not None
        assert wide >= narrow - 1e-9


@given(matrices())
def test_forgetting_is_negative_backward_transfer_where_accuracy_only_falls(matrix: AccuracyMatrix) -> None:
    k = len(matrix.rows)
    columns = [sorted(matrix.history(j), key=lambda value: -(value or 0)) for j in range(k)]
    falling = replace(matrix, rows=tuple(tuple(columns[j][i - j] for j in range(i + 1)) for i in range(k)))
    drop, transfer = metrics.forgetting(falling), metrics.backward_transfer(falling)
    assert close(drop, None if transfer is None else -transfer)


@given(matrices(), st.integers(1, 1000))
def test_equal_counts_make_all_classes_the_final_average(matrix: AccuracyMatrix, count: int) -> None:
    equal = replace(matrix, counts=(count,) * len(matrix.counts))
    assert close(metrics.all_classes(equal), metrics.final_average(equal))


@given(matrices(gaps=True), st.integers(1, 50))
def test_only_the_ratio_of_counts_matters(matrix: AccuracyMatrix, factor: int) -> None:
    scaled = replace(matrix, counts=tuple(factor * count for count in matrix.counts))
    before, after = metrics.summary(matrix), metrics.summary(scaled)
    assert all(close(before[name], after[name]) for name in before)


@given(matrices(), st.randoms(use_true_random=False))
def test_the_order_of_groups_within_the_last_row_does_not_matter(matrix: AccuracyMatrix, random: object) -> None:
    order = list(range(len(matrix.counts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    last = AccuracyMatrix((matrix.last_row,), matrix.counts)
    shuffled = AccuracyMatrix((tuple(matrix.last_row[j] for j in order),), tuple(matrix.counts[j] for j in order))
    assert close(metrics.all_classes(last), metrics.all_classes(shuffled))
    assert close(metrics.final_average(last), metrics.final_average(shuffled))


@given(matrices(), st.floats(0, 1))
def test_scaling_every_accuracy_scales_every_metric(matrix: AccuracyMatrix, factor: float) -> None:
    rows: tuple[Row, ...] = tuple(tuple(factor * (value or 0) for value in row) for row in matrix.rows)
    before, after = metrics.summary(matrix), metrics.summary(replace(matrix, rows=rows))
    for name, value in before.items():
        assert close(None if value is None else factor * value, after[name])


@given(matrices())
def test_a_group_still_to_come_changes_nothing(matrix: AccuracyMatrix) -> None:
    assert metrics.summary(replace(matrix, counts=(*matrix.counts, 17))) == metrics.summary(matrix)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "expected an object"),
        ({"counts": [1]}, "accuracy: expected a list, got nothing"),
        ({"accuracy": [[90.0]], "counts": 3}, "counts: expected a list, got 3"),
        ({"accuracy": [["90"]], "counts": [1]}, "row 1, group 1 is '90'"),
        ({"accuracy": [[True]], "counts": [1]}, "row 1, group 1 is True"),
        ({"accuracy": [[90.0]], "counts": [1.5]}, "counts: group 1 is 1.5"),
        ({"accuracy": [[90.0]], "counts": [-1]}, "group 1 has -1 test images"),
        ({"accuracy": [[100.5]], "counts": [1]}, "row 1, group 1 is 100.5"),
        ({"accuracy": [[float("nan")]], "counts": [1]}, "row 1, group 1 is nan"),
        ({"accuracy": [[90.0, 80.0], [70.0]], "counts": [1, 1]}, "row 2 has 1 entries, expected at least 2"),
        ({"accuracy": [[]], "counts": [1]}, "row 1 has 0 entries"),
        (
            {"accuracy": [[90.0], [80.0, 70.0]], "counts": [1]},
            "row 2 has 2 groups, but counts are given for 1",
        ),
        ({"accuracy": [[90.0]], "counts": [0]}, "keeps the count it was measured with"),
        ({"accuracy": [[90.0]], "counts": [1], "groups": [["a"], ["b"]]}, "class names of 2 groups"),
    ],
)
def test_what_is_not_a_matrix_is_refused_with_the_place(data: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        AccuracyMatrix.from_json(data)
    assert message in str(caught.value)


def test_every_metric_says_what_it_is_and_where_it_comes_from() -> None:
    for name, entry in metrics.METRICS.items():
        assert entry.name == name
        assert entry.label.replace(" ", "_") == name
        assert entry.unit in ("%", "points")
        assert entry.meaning and entry.origin

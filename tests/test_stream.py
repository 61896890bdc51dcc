"""Streams: the class order, how it is cut into tasks, and which images a task and a group have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zofc.data import ArrayImages, ImageSet, Source, Stream, class_order, split_classes
from zofc.errors import DataError


def source(
    names: str | list[str],
    train: int = 3,
    test: int = 2,
    name: str = "toy",
    side: int = 4,
    domains: bool = False,
) -> Source:
    """A class per letter; the first pixel of an image is its label, the second its number in the class."""

    def images(per_class: int) -> ImageSet:
        labels = np.repeat(np.arange(len(names)), per_class)
        array = np.zeros((len(labels), side, side, 3), np.uint8)
        array[:, 0, 0, 0], array[:, 0, 0, 1] = labels, np.tile(np.arange(per_class), len(names))
        return ImageSet(ArrayImages(array, name), labels, labels % 2 if domains else None)

    return Source(name, tuple(names), images(train), images(test), f"checksum of {name}")


def letters(stream: Stream, images: ImageSet, sources: list[Source]) -> list[tuple[str, str]]:
    """For each image: the name its label has in the stream, and the name it has in its source."""
    found = []
    for i, label in enumerate(images.labels):
        owner = next(s for s in sources if images.images.name(i).startswith(s.name))
        found.append((stream.classes[label], owner.classes[images.images.load(i).getpixel((0, 0))[0]]))
    return found


# --- order and split ---


@pytest.mark.parametrize(
    ("n", "first"), [(100, [68, 56, 78, 8, 23]), (200, [168, 136, 51, 9, 183]), (345, [214, 80, 343])]
)
def test_the_class_order_is_that_of_the_literature(n: int, first: list[int]) -> None:
    assert class_order(n, 1993)[: len(first)].tolist() == first


@given(st.data())
def test_a_split_covers_every_class_once_in_order(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 400))
    increment = data.draw(st.integers(1, n))
    first = data.draw(st.none() | st.integers(1, n))
    groups = split_classes(n, first, increment)
    assert [c for group in groups for c in group] == list(range(n))
    assert len(groups[0]) == (first or increment)
    assert all(len(group) == increment for group in groups[1:-1])
    assert 1 <= len(groups[-1]) <= max(increment, len(groups[0]))


def test_the_last_task_takes_what_remains() -> None:
    assert [len(g) for g in split_classes(100, 40, 25)] == [40, 25, 25, 10]
    assert split_classes(10, 10, 3) == [range(10)]


@pytest.mark.parametrize(
    ("first", "increment", "key"),
    [(None, 11, "data.increment"), (11, 5, "data.first"), (None, 0, "data.increment"), (0, 5, "data.first")],
)
def test_a_task_larger_than_the_stream_names_its_key(first: int | None, increment: int, key: str) -> None:
    with pytest.raises(DataError, match=rf"{key}: expected 1 to 10, the number of classes, got (11|0)"):
        split_classes(10, first, increment)


# --- streams ---


def test_labels_are_class_ids_in_stream_order() -> None:
    toy = source("abcdefg")
    stream = Stream.build(toy, order_seed=1993, increment=3)
    assert stream.classes == tuple("abcdefg"[i] for i in class_order(7, 1993))
    assert [task.classes for task in stream.tasks] == stream.groups == [range(0, 3), range(3, 6), range(6, 7)]
    assert [task.names for task in stream.tasks] == [
        stream.classes[:3],
        stream.classes[3:6],
        stream.classes[6:],
    ]
    for task in stream.tasks:
        train, test = stream.train_set(task), stream.test_set(task.classes)
        assert sorted(set(train.labels.tolist())) == list(task.classes)
        assert (len(train), len(test)) == (3 * len(task.classes), 2 * len(task.classes))
        assert all(a == b for images in (train, test) for a, b in letters(stream, images, [toy]))
    assert stream.seen_groups(stream.tasks[1]) == stream.groups[:2]
    assert stream.checksums == {"toy": "checksum of toy"}


def test_domains_follow_their_images() -> None:
    stream = Stream.build(source("abcd", domains=True), order_seed=0, increment=2)
    test = stream.test_set(range(2, 4))
    assert test.domains is not None
    assert [test.images.load(i).getpixel((0, 0))[0] % 2 for i in range(4)] == test.domains.tolist()


def test_only_the_first_classes_of_the_order_may_be_taken() -> None:
    full, some = (Stream.build(source("abcdefg"), order_seed=5, increment=2, classes=n) for n in (None, 5))
    assert some.classes == full.classes[:5]
    assert [len(task.classes) for task in some.tasks] == [2, 2, 1]
    assert len(some.test_set(range(7))) == 10
    with pytest.raises(DataError, match=r"data\.classes: expected 1 to 7, the classes of toy, got 8"):
        Stream.build(source("abcdefg"), order_seed=5, increment=2, classes=8)
    with pytest.raises(DataError, match=r"data\.increment: expected 1 to 3"):
        Stream.build(source("abcdefg"), order_seed=5, increment=4, classes=3)


def test_joint_training_is_one_task_evaluated_in_the_usual_groups() -> None:
    toy, more = source("abcd"), source("xyz", name="more")
    stream = Stream.build(toy, order_seed=1, increment=2, joint=True, then=[more])
    assert [task.classes for task in stream.tasks] == [range(7)]
    assert stream.groups == [range(0, 2), range(2, 4), range(4, 7)]
    assert stream.seen_groups(stream.tasks[0]) == stream.groups
    train = stream.train_set(stream.tasks[0])
    assert len(train) == 21
    assert train.images.array is not None, "images of one size stay in memory"
    assert all(a == b for a, b in letters(stream, train, [toy, more]))


def test_further_sources_follow_as_one_task_each() -> None:
    toy, more, odd = source("abcd"), source("xyz", name="more"), source("pq", name="odd", side=6)
    stream = Stream.build(toy, order_seed=7, increment=2, then=[more, odd])
    assert [task.classes for task in stream.tasks] == [range(0, 2), range(2, 4), range(4, 7), range(7, 9)]
    assert stream.tasks[2].names == tuple("xyz"[i] for i in class_order(3, 7))
    assert stream.checksums == {s.name: s.checksum for s in (toy, more, odd)}
    for task in stream.tasks:
        assert all(a == b for a, b in letters(stream, stream.train_set(task), [toy, more, odd]))
    everything = stream.test_set(range(9))
    assert len(everything) == 18
    assert everything.images.array is None
    assert all(a == b for a, b in letters(stream, everything, [toy, more, odd]))


def test_a_class_that_comes_twice_is_named_with_both_its_sources() -> None:
    with pytest.raises(DataError, match="class 'b' of more is already in toy"):
        Stream.build(source("abc"), order_seed=1, increment=1, then=[source("xb", name="more")])
    with pytest.raises(DataError, match="class 'b' of more is already in the classes learned before"):
        Stream.continuing(["a", "b"], [range(2)], [source("xb", name="more")])


def test_a_class_may_lack_test_images_but_a_group_may_not() -> None:
    toy = source("abcd")
    order = class_order(4, 3)

    def without(labels: list[int]) -> Source:
        keep = np.flatnonzero(~np.isin(toy.test.labels, labels))
        return Source("toy", toy.classes, toy.train, toy.test.take(keep), "")

    stream = Stream.build(without([order[0]]), order_seed=3, increment=2)
    assert len(stream.test_set(range(0, 2))) == 2
    missing = ", ".join("abcd"[i] for i in order[2:])
    with pytest.raises(DataError, match=f"toy: no test images for any of the classes {missing}"):
        Stream.build(without(order[2:].tolist()), order_seed=3, increment=2)


def test_a_class_without_training_images_is_named() -> None:
    toy = source("abc")
    short = Source("toy", toy.classes, toy.train.take(np.flatnonzero(toy.train.labels != 1)), toy.test, "")
    with pytest.raises(DataError, match="toy: in the test set only: 'b'"):
        Stream.build(short, order_seed=3, increment=1)


def test_a_stream_can_go_on_without_its_earlier_images() -> None:
    more = source("xyz", name="more")
    stream = Stream.continuing(["a", "b", "c"], [range(0, 2), range(2, 3)], [more])
    assert stream.classes[:3] == ("a", "b", "c")
    assert [task.classes for task in stream.tasks] == stream.groups == [range(0, 2), range(2, 3), range(3, 6)]
    assert [stream.has_data(group) for group in stream.groups] == [False, False, True]
    assert len(stream.test_set(range(0, 2))) == 0
    with pytest.raises(DataError, match="task 1 was learned in an earlier run"):
        stream.train_set(stream.tasks[1])
    train = stream.train_set(stream.tasks[2])
    assert sorted(set(train.labels.tolist())) == [3, 4, 5]
    assert all(a == b for a, b in letters(stream, train, [more]))
    assert stream.seen_groups(stream.tasks[2]) == stream.groups
    assert Stream.continuing(["a"], [range(1)], []).has_data(range(1)) is False


def test_earlier_groups_must_cover_the_earlier_classes() -> None:
    with pytest.raises(DataError, match="must cover the 3 earlier classes"):
        Stream.continuing(["a", "b", "c"], [range(0, 2)], [source("xyz")])

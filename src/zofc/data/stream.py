"""A stream serves tasks: the classes of one or several sources in a seeded order, cut into groups.

Labels leave the stream as class ids in stream order: the classes of a task are a range, and those seen so far
are `range(task.classes.stop)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zofc.data.concat import join
from zofc.data.selection import check_trainable
from zofc.data.source import ImageSet, Source, pair_name
from zofc.errors import DataError


def class_order(n: int, seed: int) -> NDArray[np.int64]:
    """The class order of the literature: numpy's legacy permutation, by convention of seed 1993."""
    return np.random.RandomState(seed).permutation(n).astype(np.int64)


def split_classes(n: int, first: int | None, increment: int) -> list[range]:
    """`first` classes (else `increment`), then `increment` at a time, then what remains."""
    for key, size in (("data.increment", increment), ("data.first", first)):
        if size is not None and not 1 <= size <= n:
            raise DataError(f"{key}: expected 1 to {n}, the number of classes, got {size}")
    starts = [0, *range(increment if first is None else first, n, increment)]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], n], strict=True)]


@dataclass(frozen=True)
class Task:
    """A set of classes that is learned at one time; class ids are in stream order."""

    index: int
    classes: range
    names: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """The classes one source adds to a stream: `order[i]` is the source's label of class id `start + i`."""

    source: Source
    start: int
    order: NDArray[np.int64]

    @property
    def classes(self) -> range:
        """Class ids of the part in the stream."""
        return range(self.start, self.start + len(self.order))

    @property
    def names(self) -> tuple[str, ...]:
        """Class names in the order of the stream."""
        return tuple(self.source.classes[label] for label in self.order)

    def ids(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Class ids for the source's labels, −1 for classes that are not in the stream."""
        ids = np.full(len(self.source.classes), -1, np.int64)
        ids[self.order] = self.classes
        return ids[labels]

    def select(self, images: ImageSet, classes: range) -> ImageSet:
        """The images of these classes, labelled with class ids."""
        ids = self.ids(images.labels)
        chosen = np.flatnonzero((ids >= classes.start) & (ids < classes.stop))
        return images.take(chosen).relabel(ids[chosen])


@dataclass(frozen=True)
class Stream:
    """Tasks to learn, groups of classes to evaluate separately, and the images of both."""

    classes: tuple[str, ...]
    tasks: list[Task]
    groups: list[range]
    parts: tuple[Part, ...]

    @classmethod
    def build(
        cls,
        source: Source,
        *,
        order_seed: int,
        increment: int,
        first: int | None = None,
        classes: int | None = None,
        joint: bool = False,
        then: Sequence[Source] = (),
    ) -> Stream:
        """Tasks of `increment` classes, then each source in `then` as one; if `joint`, all in one task."""
        order = _first_classes(source, order_seed, classes)
        groups = split_classes(len(order), first, increment)
        return cls._assembled((), groups, (Part(source, 0, order),), then, order_seed, joint)

    @classmethod
    def of_pairs(
        cls,
        source: Source,
        *,
        order_seed: int,
        classes: int | None = None,
        joint: bool = False,
        then: Sequence[Source] = (),
    ) -> Stream:
        """Each pair of domain and class is a class of its own, and a task is the classes of one domain, which may lack
        some. Domains come in a seeded order, and within each the classes do."""
        _check_domains(source, "domain-class")
        pairs = source.paired()
        labels = {name: label for label, name in enumerate(pairs.classes)}
        order: list[int] = []
        groups: list[range] = []
        for domain in (source.domain_names[i] for i in class_order(len(source.domain_names), order_seed)):
            names = [pair_name(domain, source.classes[i]) for i in _first_classes(source, order_seed, classes)]
            members = [labels[name] for name in names if name in labels]
            if not members:
                raise DataError(f"{source.name}: no images in the domain '{domain}'")
            groups.append(range(len(order), len(order) + len(members)))
            order += members
        return cls._assembled((), groups, (Part(pairs, 0, np.array(order)),), then, order_seed, joint)

    @classmethod
    def _assembled(
        cls, before: Sequence[str], groups: Sequence[range], parts: tuple[Part, ...], then: Sequence[Source],
        order_seed: int, joint: bool = False,
    ) -> Stream:  # fmt: skip
        """The classes learned before, those of the parts in these groups, and each further source as one group."""
        start = groups[-1].stop if groups else 0
        for source in then:
            parts += (Part(source, start, class_order(len(source.classes), order_seed)),)
            groups = [*groups, parts[-1].classes]
            start = parts[-1].classes.stop
        names = (*before, *(name for part in parts for name in part.names))
        _check_names(before, parts)
        _check_images(parts, groups)
        return cls(names, _tasks([range(len(names))] if joint else groups, names), list(groups), parts)

    @classmethod
    def continuing(
        cls, classes: Sequence[str], groups: Sequence[range], then: Sequence[Source], *, order_seed: int = 1993
    ) -> Stream:
        """A stream whose earlier classes were learned before and whose earlier images are not here now."""
        if [c for group in groups for c in group] != list(range(len(classes))):
            raise DataError(f"earlier groups must cover the {len(classes)} earlier classes in order, got {groups}")
        return cls._assembled(classes, groups, (), then, order_seed)

    @property
    def checksums(self) -> dict[str, str]:
        """What was read, per source."""
        return {part.source.name: part.source.checksum for part in self.parts}

    def has_data(self, classes: range) -> bool:
        """Whether the images of these classes are here; those of an earlier run are not."""
        return bool(self.parts) and classes.start >= self.parts[0].start

    def train_set(self, task: Task) -> ImageSet:
        """Training images of a task."""
        if not self.has_data(task.classes):
            raise DataError(f"task {task.index} was learned in an earlier run; its images are not here any more")
        return join([part.select(part.source.train, task.classes) for part in self.parts])

    def test_set(self, group: range) -> ImageSet:
        """The test images of a group, none if it was learned in an earlier run."""
        return join([part.select(part.source.test, group) for part in self.parts])

    def seen_groups(self, task: Task) -> list[range]:
        """The groups that are evaluated after this task."""
        return [group for group in self.groups if group.stop <= task.classes.stop]

    def evaluation(self, task: Task) -> Iterator[tuple[list[str], ImageSet]]:
        """What is evaluated after a task: the class names and test images of each group seen."""
        for group in self.seen_groups(task):
            yield [self.classes[i] for i in group], self.test_set(group)


@dataclass(frozen=True)
class DomainStream:
    """Each task is all classes in one further domain (the same labels, other looks); a group is a domain, evaluated by
    itself. Domains come in a seeded order, as classes do."""

    classes: tuple[str, ...]
    tasks: list[Task]
    part: Part
    order: NDArray[np.int64]  # the source's domain of each task

    @classmethod
    def build(cls, source: Source, *, order_seed: int, classes: int | None = None) -> DomainStream:
        """A stream of a source's domains, in an order drawn from the seed."""
        _check_domains(source, "domain")
        part = Part(source, 0, _first_classes(source, order_seed, classes))
        order = class_order(len(source.domain_names), order_seed)
        stream = cls(part.names, _tasks([part.classes] * len(order), part.names), part, order)
        for task in stream.tasks:
            for images, what in ((stream.train_set(task), "training"), (stream.test_set(task.index), "test")):
                if not len(images):
                    raise DataError(f"{source.name}: no {what} images in the domain '{stream.domain(task.index)}'")
        return stream

    @property
    def parts(self) -> tuple[Part, ...]:
        """The one source of the stream."""
        return (self.part,)

    @property
    def checksums(self) -> dict[str, str]:
        """Checksum of the data by source."""
        return {self.part.source.name: self.part.source.checksum}

    def train_set(self, task: Task) -> ImageSet:
        """Training images of a task."""
        return self._of_domain(self.part.source.train, task.index)

    def test_set(self, number: int) -> ImageSet:
        """Test images of the domain of a task."""
        return self._of_domain(self.part.source.test, number)

    def evaluation(self, task: Task) -> Iterator[tuple[list[str], ImageSet]]:
        """What is evaluated after a task: the name and test images of each domain seen."""
        for number in range(task.index + 1):
            yield [self.domain(number)], self.test_set(number)

    def domain(self, number: int) -> str:
        """Name of the domain of a task."""
        return self.part.source.domain_names[int(self.order[number])]

    def _of_domain(self, images: ImageSet, number: int) -> ImageSet:
        chosen = self.part.select(images, self.part.classes)
        assert chosen.domains is not None
        return chosen.take(np.flatnonzero(chosen.domains == self.order[number]))


def _first_classes(source: Source, order_seed: int, classes: int | None) -> NDArray[np.int64]:
    """The source's labels in the class order, the first `classes` of them if so many are asked for."""
    total = len(source.classes)
    if classes is not None and not 1 <= classes <= total:
        raise DataError(f"data.classes: expected 1 to {total}, the classes of {source.name}, got {classes}")
    return class_order(total, order_seed)[:classes]


def _check_domains(source: Source, by: str) -> None:
    if len(source.domain_names) < 2:
        raise DataError(f"data.by: '{by}' needs a source with domains, and {source.name} has none")


def _tasks(spans: Sequence[range], names: Sequence[str]) -> list[Task]:
    return [Task(i, span, tuple(names[span.start : span.stop])) for i, span in enumerate(spans)]


def _check_names(earlier: Sequence[str], parts: Sequence[Part]) -> None:
    """A class is learned once: no name may come twice."""
    owners = dict.fromkeys(earlier, "the classes learned before")
    for part in parts:
        for name in part.names:
            if name in owners:
                raise DataError(f"class '{name}' of {part.source.name} is already in {owners[name]}; rename one")
            owners[name] = part.source.name


def _check_images(parts: Sequence[Part], groups: Sequence[range]) -> None:
    """Every class can be learned and every group can be evaluated."""
    for part in parts:
        train, test = part.ids(part.source.train.labels), part.ids(part.source.test.labels)
        check_trainable(part.names, train - part.start, test - part.start, part.source.name)
        for group in groups:
            if group.start in part.classes and not np.isin(group, test).any():
                names = ", ".join(part.names[i - part.start] for i in group[:5])
                raise DataError(f"{part.source.name}: no test images for any of the classes {names}")

"""What a lesson does: which pictures it learns, which classes it learns anew because pictures were removed, and what it
is refused for before any work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zofc.learner import Learner
from zofc.teach.problems import Refusal
from zofc.teach.state import Picture, Taught, TaughtClass


@dataclass(frozen=True)
class LessonPlan:
    """A lesson that is about to begin."""

    number: int
    names: list[str]  # of the classes that change
    relearned: list[str]  # of these, those that are forgotten first
    lesson: dict[str, list[Path]]  # what is learned, by name
    pictures: list[Picture]  # that it uses: to learn, to test with or to take out
    tests: list[Picture]  # pictures that are held back, of all classes
    notices: list[str]
    trains: bool = False  # whether something is trained step by step
    passes: int = 1  # through the pictures, before anything is trained

    @property
    def images(self) -> int:
        """How many pictures are learned."""
        return sum(map(len, self.lesson.values()))

    @property
    def in_use(self) -> set[str]:
        """Ids of the pictures that must stay as they are until the lesson has ended."""
        return {picture.id for picture in (*self.pictures, *self.tests)}

    def enter(self, taught: Taught, lesson: int) -> None:
        """Enter in what was taught that the lesson has used its pictures."""
        for used in self.pictures:
            picture = taught.pictures.get(used.id)
            if picture is not None and used.removed and picture.in_model:
                picture.leave(lesson)
            elif picture is not None:
                picture.held_back = used.held_back
                picture.enter(lesson)
        for one in taught.present():
            if one.name in self.lesson and one.learned is None:
                one.learned = lesson


def plan_lesson(taught: Taught, path: Callable[[Picture], Path], learner: Learner) -> LessonPlan:
    """The lesson on all that waits for one."""
    waiting, removed = list(taught.to_learn()), list(taught.to_unlearn())
    touched = {picture.owner for picture in (*waiting, *removed)}
    classes = [one for one in taught.present() if one.id in touched]
    _check(taught, classes, waiting, learner)
    exact = type(learner.model.method).includes_images(learner.recipe)
    lesson: dict[str, list[Path]] = {}
    relearned: list[str] = []
    for one in classes:
        mine = [picture for picture in waiting if picture.owner == one.id]
        if one.learned is not None and (not exact or any(picture.owner == one.id for picture in removed)):
            mine = [picture for picture in taught.of_class(one.id) if not picture.held_back]
            _check_relearned(taught, one, mine)
            relearned.append(one.name)
        lesson[one.name] = [path(picture) for picture in mine]
    tests = [picture for picture in taught.pictures.values() if picture.held_back and not picture.removed]
    used = [*waiting, *removed, *(picture for picture in tests if picture.pending)]
    notices = [f"learned anew from all their pictures: {', '.join(relearned)}"] if relearned else []
    names = [one.name for one in classes]
    new = set(names) - (set(learner.classes) - set(relearned))
    number = 0 if set(learner.classes) <= set(relearned) else len(learner.model.tasks)
    trains = bool(new) and any(
        plan.lr and plan.epochs and number < (plan.tasks or math.inf) for plan in learner.recipe.optimize.values()
    )
    passes = 2 if new and learner.recipe.optimize and not trains else 1  # rows of new classes begin at a mean
    return LessonPlan(taught.next_lesson, names, relearned, lesson, used, tests, notices, trains, passes)


def _check(taught: Taught, classes: list[TaughtClass], waiting: list[Picture], learner: Learner) -> None:
    if not classes:
        raise Refusal("there is nothing to learn", "Add pictures to a class first.")
    new = {picture.owner for picture in waiting}
    known = [one for one in taught.present() if one.learned is not None or one.id in new]
    if len(known) < 2 and not learner.classes:
        raise Refusal(
            "the first lesson needs two classes, with pictures of each: there is nothing to tell one class from",
            "Add another class with pictures; one of other things is enough.",
        )


def _check_relearned(taught: Taught, one: TaughtClass, pictures: list[Picture]) -> None:
    """Refuse what would lose images that are not here."""
    if not pictures:
        raise Refusal(f"no picture of '{one.name}' would be left to learn", "Add some, or forget the class.")
    if any(lesson.number == one.learned and lesson.kind == "found" for lesson in taught.lessons):
        raise Refusal(
            f"'{one.name}' was learned from images that are not here, so that it cannot be learned anew",
            "Add its pictures under a new class, or train a run with all images.",
        )

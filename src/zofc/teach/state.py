"""What was taught: classes, pictures and lessons, and how they change. Nothing here touches a file.

Every picture says in which lesson it was learned and in which it left the model, so that undoing a lesson is to take
its number back wherever it stands: pictures that were added since stay.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from zofc.data.class_names import name_fault, name_key, tidy_name
from zofc.errors import DataError
from zofc.limits import CLASS_NAME_LETTERS, PICTURES_PER_CLASS, TAUGHT_CLASSES

FILE_NAME = r"^[0-9a-f]{32}\.[a-z0-9]{1,5}$"  # of a picture
HELD_BACK = 5  # one picture of so many is held back from learning, to test with

LessonKind = Literal["lesson", "forget", "rename", "found"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Picture(_Record):
    """A picture of a class; its id is a digest of the file's bytes."""

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    suffix: str = Field(pattern=r"^\.[a-z0-9]{1,5}$")
    owner: str  # id of its class
    held_back: bool = False
    removed: bool = False  # by the user
    spans: list[tuple[int, int | None]] = []  # the lesson that learned it (or tested with it) and that took it out

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.id}{self.suffix}"

    @property
    def in_model(self) -> bool:
        """Whether the model was taught with it, or is tested with it."""
        return bool(self.spans) and self.spans[-1][1] is None

    @property
    def pending(self) -> bool:
        """Whether it waits for a lesson."""
        return not self.removed and not self.in_model

    def enter(self, lesson: int) -> None:
        """A lesson learned it, unless it is in the model already."""
        if not self.in_model:
            self.spans.append((lesson, None))

    def leave(self, lesson: int) -> None:
        """A lesson took it out of the model."""
        self.spans[-1] = self.spans[-1][0], lesson

    def undo(self, lesson: int) -> None:
        """Be as before a lesson."""
        spans = [(first, None if last == lesson else last) for first, last in self.spans if first != lesson]
        self.spans = spans


class TaughtClass(_Record):
    """A class; `learned` is the lesson since which the model knows it."""

    id: str
    name: str
    learned: int | None = None
    forgotten: int | None = None


class Lesson(_Record):
    """A change of the model. Accuracies are in percent of the held-back pictures, by class id; so are how many of them
    were tested and right, which lessons of earlier versions do not tell."""

    number: int
    kind: LessonKind
    classes: list[str]  # their names
    images: int = 0
    seconds: float = 0.0
    accuracy_before: dict[str, float | None] = {}
    accuracy_after: dict[str, float | None] = {}
    right_before: dict[str, int] = {}
    right_after: dict[str, int] = {}
    tested: dict[str, int] = {}
    finished: str = ""
    undone: bool = False
    notices: list[str] = []
    digest: str  # of the model after it
    before: int | None  # the lesson whose model it changed, while that can be had again
    renamed: tuple[str, str, str] | None = None  # class id, old and new name


class Taught(_Record):
    """All that was taught, as the index file holds it."""

    version: Literal[1] = 1
    current: int | None = None  # the lesson whose model is the present one
    next_class: int = 1
    classes: list[TaughtClass] = []
    pictures: dict[str, Picture] = {}
    lessons: list[Lesson] = []
    deleted: list[Annotated[str, Field(pattern=FILE_NAME)]] = []  # files that the last change has no more pictures for

    # -- classes -----------------------------------------------------------------------------------------------------

    def present(self) -> list[TaughtClass]:
        """The classes that are not forgotten."""
        return [one for one in self.classes if one.forgotten is None]

    def find(self, number: str) -> TaughtClass | None:
        """The class with an id."""
        return next((one for one in self.present() if one.id == number), None)

    def add_class(self, name: str) -> TaughtClass:
        """A new class."""
        if len(self.present()) >= TAUGHT_CLASSES:
            raise DataError(f"there are {TAUGHT_CLASSES} classes, the most that can be taught; forget one first")
        return self.take_class(self.check_name(name))

    def take_class(self, name: str) -> TaughtClass:
        """A class of a model that was made elsewhere, whatever it is called."""
        made = TaughtClass(id=f"c{self.next_class}", name=name)
        self.next_class += 1
        self.classes.append(made)
        return made

    def check_name(self, name: str, of: str | None = None) -> str:
        """A class name as it is kept: one line of at most so many visible letters, like that of no other class."""
        name = tidy_name(name)
        if fault := name_fault(name):
            raise DataError(fault)
        if len(name) > CLASS_NAME_LETTERS:
            raise DataError(f"the name has {len(name)} letters; at most {CLASS_NAME_LETTERS} are allowed")
        if any(name_key(other.name) == name_key(name) and other.id != of for other in self.present()):
            raise DataError(f"there is a class '{name}' already; choose another name, or add the pictures to it")
        return name

    # -- pictures ----------------------------------------------------------------------------------------------------

    def of_class(self, number: str) -> list[Picture]:
        """The pictures of a class that its gallery shows."""
        return [one for one in self.pictures.values() if one.owner == number and not one.removed]

    def check_room(self, number: str) -> None:
        """Refuse more pictures than a class may have."""
        if len(self.of_class(number)) >= PICTURES_PER_CLASS:
            raise DataError(f"the class has {PICTURES_PER_CLASS} pictures, the most that are kept")

    def files(self) -> set[str]:
        """The names of the files of all pictures."""
        return {one.file for one in self.pictures.values()}

    def hold_back(self, number: str, in_use: Container[str] = ()) -> None:
        """Choose which pictures of a class are held back: a fifth, by content. What a lesson has used or is using stays
        as it is, and of the waiting ones one at least is learned."""
        pictures = self.of_class(number)
        free = [one for one in pictures if one.pending and one.id not in in_use]
        held = sum(one.held_back for one in pictures) - sum(one.held_back for one in free)
        room = max(0, min(len(pictures) // HELD_BACK - held, len(free) - 1))
        for place, one in enumerate(sorted(free, key=lambda one: one.id)):
            one.held_back = place < room

    def to_unlearn(self) -> Iterator[Picture]:
        """Pictures that the user removed and the model still rests on."""
        return (one for one in self.pictures.values() if one.removed and one.in_model and not one.held_back)

    def to_learn(self) -> Iterator[Picture]:
        """Pictures that wait for a lesson, without those that are only tested with."""
        present = {one.id for one in self.present()}
        return (one for one in self.pictures.values() if one.pending and not one.held_back and one.owner in present)

    def reachable(self, lessons: Iterable[int]) -> set[str]:
        """Ids of the pictures that are shown, or would be if one of these lessons were undone."""
        undoable, gone = set(lessons), {one.id: one.forgotten for one in self.classes if one.forgotten is not None}
        return {
            one.id
            for one in self.pictures.values()
            if (not one.removed or (one.in_model and not one.held_back) or undoable & {last for _, last in one.spans})
            and (one.owner not in gone or gone[one.owner] in undoable)
        }

    # -- lessons -----------------------------------------------------------------------------------------------------

    @property
    def next_lesson(self) -> int:
        """The number of the lesson that comes; 0 is the model as it was found."""
        return max((one.number for one in self.lessons), default=-1) + 1

    def latest(self) -> Lesson | None:
        """The lesson that made the present model."""
        return next((one for one in self.lessons if one.number == self.current and not one.undone), None)

    def chain(self) -> Iterator[Lesson]:
        """The lessons that led to the present model, last first, as far as they can be undone."""
        numbered = {one.number: one for one in self.lessons}
        lesson = self.latest()
        while lesson is not None:
            yield lesson
            lesson = None if lesson.before is None else numbered.get(lesson.before)

    def measured(self) -> Lesson | None:
        """The lesson that last measured the present model: not one that only renamed."""
        return next((one for one in self.chain() if one.accuracy_after), None)

    def finish(self, lesson: Lesson) -> None:
        """Enter a lesson: its model is the present one, and pictures that waited do not any more."""
        lesson.finished = datetime.now(UTC).isoformat(timespec="seconds")
        self.lessons.append(lesson)
        self.current = lesson.number

    def undo(self, lesson: Lesson) -> None:
        """Take a lesson back: its pictures wait again, what it forgot or renamed is as it was."""
        lesson.undone, self.current = True, lesson.before
        for picture in self.pictures.values():
            picture.undo(lesson.number)
        for one in self.classes:
            one.learned = None if one.learned == lesson.number else one.learned
            one.forgotten = None if one.forgotten == lesson.number else one.forgotten
            if lesson.renamed is not None and lesson.renamed[0] == one.id:
                one.name = lesson.renamed[1]
        self._merge_namesakes()
        for one in self.present():
            self.hold_back(one.id)

    def forget_past(self) -> None:
        """Let no lesson be undone any more."""
        for lesson in self.lessons:
            lesson.before = None

    def _merge_namesakes(self) -> None:
        """A class that has come back takes the pictures of one that was made under its name meanwhile."""
        for one in self.present():
            for other in self.present():
                if name_key(other.name) == name_key(one.name) and other is not one and other.learned is None:
                    for picture in self.pictures.values():
                        picture.owner = one.id if picture.owner == other.id else picture.owner
                    self.classes.remove(other)
                    return self._merge_namesakes()
        return None

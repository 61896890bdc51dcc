"""The teacher: one lesson at a time, made on a copy of the model in a thread of its own. The model that answers is
never changed; that of a lesson takes its place once it is on disk."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from zofc.errors import ZofcError
from zofc.learner import Evaluation, Learner
from zofc.runfolder.tensors import tensors_checksum
from zofc.teach.plan import LessonPlan, plan_lesson
from zofc.teach.problems import Busy, Missing, Refusal
from zofc.teach.progress import Cancelled, LessonProgress
from zofc.teach.scores import Scores
from zofc.teach.state import Lesson, LessonKind, Picture, Taught, TaughtClass
from zofc.teach.store import PictureStore, sync_folder

log = logging.getLogger("zofc.teach")
FEW_AT_ONCE = 8  # images of a lesson on a CPU
Edit = Callable[[Taught, int], None]  # what a lesson with a number changes beside the model


class Teacher:
    """A run that is taught: what it has been given, and the model that answers."""

    def __init__(self, store: PictureStore, learner: Learner, device: str | None = None) -> None:
        self.store, self.learner, self.device = store, learner, device
        self.progress: LessonProgress | None = None  # of the present lesson, or of the last one
        self.behind: str | None = None  # why the model that answers is not the run's
        self.ending = False  # the server is about to stop
        self._lesson: Thread | None = None
        self._changing = Lock()  # held by whoever changes the model

    @classmethod
    def open(cls, store: PictureStore, device: str | None = None) -> Teacher:
        """The run in a store that is opened, with the model of its last finished lesson. A model that was changed by
        other means than teaching is taken up as it is."""
        found = Learner.load(store.run, device)
        digest, latest = model_digest(found), store.taught.latest()
        teacher = cls(store, found, device)
        if latest is not None and digest == latest.digest:
            if not store.model(latest.number).is_dir():  # of a copy that was taken without them
                found.save(store.model(latest.number))
            return teacher
        if latest is not None and digest in {lesson.digest for lesson in store.taught.lessons}:
            if store.model(latest.number).is_dir():  # killed before it was copied
                teacher.learner = Learner.load(store.model(latest.number), device)
                teacher.learner.save(store.run)
                return teacher
            if teacher._go_back(digest):
                return teacher
        teacher._commit("found", found, found.classes, _take_up(found.classes))
        return teacher

    def _go_back(self, digest: str) -> bool:
        """In a copy that was taken without the models of lessons, while the last was not the run's yet: undo lessons
        until the model is the one with a digest; their pictures wait again. False if none of them has it."""
        chain = [lesson for lesson in self.store.taught.chain() if lesson.digest == digest]
        if not chain:
            return False
        self.learner.save(self.store.model(chain[0].number))
        with self.store.change() as taught:
            while (latest := taught.latest()) is not None and latest.number != chain[0].number:
                taught.undo(latest)
        return True

    # -- lessons -----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> LessonProgress | None:
        """The present lesson."""
        return self.progress if self.progress is not None and self.progress.ended is None else None

    def begin(self) -> int:
        """Begin a lesson on all that waits for one; its number."""
        self._acquire()
        try:
            plan = plan_lesson(self.store.taught, self.store.path, self.learner)
            self.store.in_use = plan.in_use
            self.progress = LessonProgress(plan.number, plan.images, len(plan.tests), plan.trains, plan.passes)
            name = f"lesson {plan.number}"
            self._lesson = Thread(target=self._teach, args=(plan, self.progress), name=name, daemon=True)
            self._lesson.start()
        except BaseException:
            self._release()
            raise
        return plan.number

    def cancel(self) -> int:
        """Ask the present lesson to stop; its number."""
        if (progress := self.running) is None:
            raise Missing("no lesson is running", "Start one first.")
        progress.cancelled = True
        return progress.number

    def end(self) -> None:
        """Cancel the present lesson, if there is one, and let none begin any more."""
        self.ending = True
        if (progress := self.running) is not None:
            progress.cancelled = True

    def stop(self) -> None:
        """Wait for the end of the present lesson, which is cancelled."""
        self.end()
        if self._lesson is not None:
            self._lesson.join()

    def _teach(self, plan: LessonPlan, progress: LessonProgress) -> None:
        """Make a lesson; whatever happens to it, the model that answers is whole."""
        try:
            lesson = self._make(plan, progress)
            end = "finished", lesson.model_dump(mode="json", exclude={"digest", "before", "renamed"})
        except Cancelled:
            end = "cancelled", {"number": plan.number}
        except ZofcError as error:
            end = "failed", {"number": plan.number, "title": "The lesson failed", "detail": str(error)}
        except Exception as error:
            log.exception("lesson %d failed", plan.number)
            text = f"{type(error).__name__}: {error}"
            end = "failed", {"number": plan.number, "title": "The lesson failed", "detail": text}
        self._release()
        progress.ended = end  # type: ignore[assignment]
        progress.changes += 1

    def _make(self, plan: LessonPlan, progress: LessonProgress) -> Lesson:
        clock = time.monotonic()
        learner = self._copy(progress)
        known = self._testable(learner, plan.tests)
        if known:
            progress.enter("before", sum(map(len, known.values())))
        before = Scores.of(learner.evaluate(known) if known else None, self.store.taught.present())
        progress.tested(before)
        learner = self._without(learner, plan.relearned, progress)
        progress.enter("features", plan.images * plan.passes)
        learner.learn(plan.lesson)
        progress.enter("testing", len(plan.tests))
        after = Scores.of(self.evaluate(learner, plan.tests), self.store.taught.present())
        progress.tested(after)  # the last chance to cancel
        learner.events.listeners.clear()
        learner.model.on_images, learner.model.most_at_once = lambda _: None, None
        return self._commit(
            "lesson", learner, plan.names, plan.enter, images=plan.images, seconds=round(time.monotonic() - clock, 2),
            accuracy_before=before.accuracy, accuracy_after=after.accuracy, right_before=before.right,
            right_after=after.right, tested=after.tested, notices=[*plan.notices, *progress.notices],
        )  # fmt: skip

    def _copy(self, progress: LessonProgress | None = None) -> Learner:
        """A copy of the model that may be changed."""
        current = self.store.taught.current
        assert current is not None  # a run that is opened has a model
        listeners = [] if progress is None else [progress]
        return _followed(Learner.load(self.store.model(current), self.device, listeners=listeners), progress)

    def _without(self, learner: Learner, forget: Sequence[str], progress: LessonProgress | None = None) -> Learner:
        """A copy without some classes."""
        if forget and set(learner.classes) <= set(forget):  # a learner keeps one class at least
            return _followed(Learner(learner.recipe, listeners=learner.events.listeners), progress)
        if gone := [name for name in forget if name in learner.classes]:
            learner.forget(*gone)
        return learner

    def _commit(self, kind: LessonKind, learner: Learner, names: Sequence[str], edit: Edit, **measured: Any) -> Lesson:
        """Save a model, then enter its lesson, then let it answer."""
        taught = self.store.taught
        lesson = Lesson(
            number=taught.next_lesson, kind=kind, classes=list(names), before=taught.current,
            digest=model_digest(learner), **measured,
        )  # fmt: skip
        folder = self.store.model(lesson.number)
        shutil.rmtree(folder, ignore_errors=True)  # what a killed lesson left
        folder.parent.mkdir(exist_ok=True)
        try:
            learner.save(folder)
            for written in (folder.parent, folder, *filter(Path.is_dir, folder.rglob("*"))):
                sync_folder(written)
            with self.store.unchanged():  # or an export might have the lesson without its model
                with self.store.change() as taught:
                    edit(taught, lesson.number)
                    taught.finish(lesson)
                self._publish(learner)
        except BaseException:
            if self.store.taught.current != lesson.number:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return lesson

    def _publish(self, learner: Learner) -> None:
        """Let a model answer, and be the run's. It is on disk with its lesson already: if it cannot be written to the
        run as well, the lesson stands, and it is written at the next chance."""
        self.learner, self.behind = learner, "it has not been written"
        self.store.in_use = set()
        try:
            self.catch_up()
            self.store.clear()
        except (ZofcError, OSError) as error:
            log.warning("the model of the last lesson could not be written to %s: %s", self.store.run, error)

    def catch_up(self) -> None:
        """Write the model that answers to the run, if it is not there."""
        with self.store.unchanged():
            if self.behind is not None:
                try:
                    self.learner.save(self.store.run)
                except (ZofcError, OSError) as error:
                    self.behind = str(error)
                    raise
                self.behind = None

    @property
    def warnings(self) -> list[str]:
        """What a user should know at present."""
        if self.behind is None:
            return []
        return [f"the last lesson is kept, but the model of the run is the one before it: {self.behind}"]

    # -- other changes -----------------------------------------------------------------------------------------------

    def forget(self, number: str, for_good: bool = False) -> None:
        """Forget a class and its pictures; for good also in what could be undone."""
        with self._sole():
            one = self._class(number)

            def edit(taught: Taught, lesson: int) -> None:
                taught.classes[[other.id for other in taught.classes].index(number)].forgotten = lesson

            if one.learned is not None:
                self._commit("forget", self._without(self._copy(), [one.name]), [one.name], edit)
            else:
                self.store.drop_class(number)
            if for_good and one.learned is not None:  # else no model ever knew it
                with self.store.change() as taught:
                    taught.forget_past()
            self.store.clear()

    def rename(self, number: str, name: str) -> TaughtClass:
        """Give a class another name."""
        with self._sole():
            one = self._class(number)
            name = self.store.taught.check_name(name, number)
            old = one.name

            def edit(taught: Taught, _lesson: int) -> None:
                taught.check_name(name, number)  # another class may have got it meanwhile
                taught.classes[[other.id for other in taught.classes].index(number)].name = name

            if name == old:
                return one
            if one.learned is None:
                with self.store.change() as taught:
                    edit(taught, 0)
            else:
                learner = self._copy()
                learner.rename(old, name)
                self._commit("rename", learner, [old, name], edit, renamed=(number, old, name))
            return self._class(number)

    def undo(self) -> Lesson:
        """Go back to the model before the last lesson."""
        with self._sole():
            lesson = self.undoable
            if lesson is None or lesson.before is None:
                raise Refusal("there is no lesson to undo", "The models before it are not kept any more, or none was.")
            learner = Learner.load(self.store.model(lesson.before), self.device)
            with self.store.unchanged():
                with self.store.change() as taught:
                    undone = next(one for one in taught.lessons if one.number == lesson.number)
                    taught.undo(undone)
                self._publish(learner)
            return undone

    @property
    def undoable(self) -> Lesson | None:
        """The lesson that can be undone."""
        latest = self.store.taught.latest()
        if latest is None or latest.before is None:
            return None
        return latest if self.store.model(latest.before).is_dir() else None

    def _class(self, number: str) -> TaughtClass:
        if (one := self.store.taught.find(number)) is None:
            raise Missing(f"there is no class {number}", "Ask for the classes anew.")
        return one

    # -- measuring ---------------------------------------------------------------------------------------------------

    def evaluate(self, learner: Learner, pictures: Sequence[Picture] | None = None) -> Evaluation | None:
        """Accuracy of a model on held-back pictures, by default on all of them; None where there are none."""
        if pictures is None:
            taught = self.store.taught
            pictures = [one for one in list(taught.pictures.values()) if one.held_back and not one.removed]
        tests = self._testable(learner, pictures)
        return learner.evaluate(tests) if tests else None

    def _testable(self, learner: Learner, pictures: Sequence[Picture]) -> dict[str, list[Path]]:
        """Files of the pictures whose classes a model knows, by class name."""
        names = {one.id: one.name for one in self.store.taught.present() if one.name in learner.classes}
        tests: dict[str, list[Path]] = {}
        for picture in pictures:
            if picture.owner in names:
                tests.setdefault(names[picture.owner], []).append(self.store.path(picture))
        return tests

    # -- one at a time -----------------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        if self.ending:
            raise Busy("the server is about to stop", "Start it again with: zofc teach RUN")
        if not self._changing.acquire(blocking=False):
            raise Busy("a lesson is running", "Wait until it has finished, or cancel it.")

    def _release(self) -> None:
        self.store.in_use = set()
        self._changing.release()

    @contextmanager
    def _sole(self) -> Iterator[None]:
        self._acquire()
        try:
            yield
        finally:
            self._release()


def _take_up(names: Sequence[str]) -> Edit:
    """Have the classes of a model that was made elsewhere."""

    def edit(taught: Taught, lesson: int) -> None:
        for one in taught.present():
            if one.learned is not None and one.name not in names:
                one.forgotten = lesson
        present = {one.name: one for one in taught.present()}
        for name in names:
            one = present.get(name) or taught.take_class(name)
            one.learned = lesson if one.learned is None else one.learned

    return edit


def _followed(learner: Learner, progress: LessonProgress | None) -> Learner:
    """A model whose lesson can be watched and cancelled: on a CPU few images pass at a time, where nothing is trained
    and features are computed in batches of a fixed size, so that no result changes."""
    if progress is not None:
        model, recipe = learner.model, learner.recipe
        model.on_images = progress.on_images
        if model.device.type == "cpu" and recipe.training.fixed_batches and not recipe.optimize:
            model.most_at_once = max(FEW_AT_ONCE, model.method.fixed_batch_size)
    return learner


def model_digest(learner: Learner) -> str:
    """Tells models apart by what they know, wherever they were saved."""
    state = learner.model.state_dict()
    tensors = tensors_checksum({name: value.detach().cpu() for name, value in state.items()})
    known = json.dumps([tensors, learner.classes, learner.model.calibration_state])
    return blake2b(known.encode(), digest_size=16).hexdigest()

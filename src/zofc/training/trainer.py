"""The trainer: task by task through a stream, evaluating every group seen and saving as it goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from zofc.data.loading import Loader
from zofc.data.source import ImageSet
from zofc.data.stream import Task
from zofc.errors import BudgetError, Interrupted, RankStopped, RunError, ZofcError, continue_command
from zofc.metrics import AccuracyMatrix, summary
from zofc.ranks import Ranks
from zofc.runfolder import Run
from zofc.runfolder.checkpoint import Checkpoint, keep_task, load_checkpoint, save_checkpoint
from zofc.runfolder.events import EventLog
from zofc.runfolder.journal import JournalPosition
from zofc.runfolder.kept_features import FeatureFile
from zofc.runfolder.progress import Progress
from zofc.training.device import environment, pick_device, set_up
from zofc.training.events import Events, Listener
from zofc.training.feature_memory import FeatureMemory
from zofc.training.incremental_model import IncrementalModel
from zofc.training.loggers import make_loggers
from zofc.training.pacing import CheckpointPacing
from zofc.training.rank_checks import check_divisible, check_same, check_states, tensor_digest, what_remains
from zofc.training.resolve import AnyStream, characters_only, check_recipe, open_stream, plugins_used, require_plugins
from zofc.training.run_journal import RunJournal
from zofc.training.signals import StopRequest, stop_signals
from zofc.training.task import LEAST_SAVED, TaskTraining
from zofc.units import format_duration

ROUNDING = {
    "threads": "threads:",
    "device_name": "device:",
    "torch": "torch",
    "processes": "processes:",
}  # of the environment: what bits rest on
TEST_IMAGE_BYTES = 2**30  # of decoded and cropped test images, kept for later evaluations


class Trainer:
    """One run in one folder, whose lock is held. Of several ranks, the first alone writes there."""

    def __init__(
        self, run: Run, listeners: Sequence[Listener] = (), reasons: Sequence[str] = (), ranks: Ranks | None = None
    ) -> None:
        self.folder, self.ranks = run, ranks or Ranks()
        self.reasons = reasons
        self.recipe = run.recipe
        check_divisible(check_recipe(self.recipe), self.ranks)
        self.events = Events(listeners)
        self.progress = Progress(recipe=run.digest)
        self.pacing = CheckpointPacing(self.recipe.training.checkpoint_minutes)
        self.began = False
        self.steps_here = 0  # steps of this process
        self.tests: dict[int, Loader] = {}  # by group, those that keep their images
        self.features: dict[int, FeatureMemory] = {}  # by group, of the test images
        self.journal: RunJournal | None = None  # of zeroth-order steps, if the recipe keeps one

    def run(self) -> dict[str, Any]:
        """Train what is left of the run; returns its metrics."""
        with stop_signals() as request:
            try:
                if self.ranks.first:
                    self.events.listeners.insert(0, EventLog(self.folder.path))
                    self.events.listeners += make_loggers(self.recipe, self.folder.path, self._notice)
                return self._run(request)
            except KeyboardInterrupt:
                raise Interrupted("stopped at once", self.folder) from None
            except BudgetError as error:  # of any task: each is planned when it begins
                if not self.progress.done:
                    self._discard()
                    raise
                how = f"{continue_command(self.folder)} training.memory=MORE"
                raise BudgetError(f"{error} The tasks before it are saved; {how}") from None
            except ZofcError as error:
                if not self.began:
                    self._discard()
                if isinstance(error, RankStopped):
                    raise RankStopped(f"{error}. {what_remains(self.folder)}") from None
                raise
            finally:
                if self.journal is not None:
                    self.journal.close()
                self.events.close()

    def _run(self, request: StopRequest) -> dict[str, Any]:
        device = pick_device(self.recipe.training.device)
        set_up(device, self.recipe.training)
        checkpoint = load_checkpoint(self.folder)
        if checkpoint is None:
            self._explain()
        stream = open_stream(self.recipe, self._notice, checkpoint.progress if checkpoint else None)
        model = IncrementalModel(self.recipe, device, self.ranks)
        model.method.expect(len(stream.tasks))
        at = checkpoint and (checkpoint.progress.position, tensor_digest(checkpoint.method))
        read = (self.folder.digest, stream.checksums, model.backbone.checksum, at)
        check_same(self.ranks, "recipe, data, weights or checkpoint", read)
        if self.ranks.first:
            self._record_environment(stream, model, checkpoint)
        if self.recipe.training.journal and self.ranks.first:
            self.journal = RunJournal(self.folder, self.recipe.seed, device)
        optimizers = self._restore(model, stream, checkpoint) if checkpoint else {}
        self._announce("run_resumed" if checkpoint else "run_started", stream, model)
        self.began = True
        if self.progress.rows:  # a run may have been killed after its checkpoint and before its results
            self._write_results(stream, model)
        for task in stream.tasks[self.progress.done :]:
            if self.ranks.any(request.stop):
                self._stop()
            fresh = len(model.tasks) == self.progress.done  # else the checkpoint was taken inside this task
            if fresh:
                model.extend(task.names)
            if not self.progress.learned:
                training = TaskTraining(model, model.loader(stream.train_set(task)), self.events, len(stream.tasks))
                self._learn(training, None if fresh else optimizers, request)
            self._evaluate(model, stream)
            if (
                self.recipe.training.keep_tasks and self.ranks.first
            ):  # before the checkpoint: a run killed in between keeps it again
                keep_task(self.folder, self.progress.done, model.method.state_dict())
            self._save(model, None)
            self._write_results(stream, model)
        metrics = dict(self.folder.metrics)
        saved = sum(memory.saved for memory in self.features.values())
        if saved > LEAST_SAVED:
            took = format_duration(saved)
            self.events.send("notice", text=f"features of test images were computed once: about {took} saved")
        self._report_traffic()
        self.events.send("run_finished", metrics=metrics)
        if self.ranks.any(request.stop):
            raise Interrupted(f"{self.folder} is finished; stopped before the next run")
        return metrics

    # -- one task ----------------------------------------------------------------------------------------------------

    def _learn(self, training: TaskTraining, optimizers: dict[str, Any] | None, request: StopRequest) -> None:
        """Train a task from its beginning, or from the checkpoint whose optimizers are given."""
        progress, model = self.progress, training.model
        if optimizers is not None:
            self._resume(training, optimizers)
        else:
            progress.task_seconds, progress.task_steps = 0.0, 0
        self.events.send(
            "task_started",
            task=training.index,
            classes=[model.classes[i] for i in model.tasks[-1]],
            images=len(training.loader.image_set),
            epochs=training.placement.epochs,
            steps=training.total_steps,
            step=training.steps_done,
        )
        if optimizers is None:
            training.begin()
        check_states(self.ranks, model.method.state_dict(), f"the start of task {training.index + 1}")
        if self.journal is not None:
            self.journal.follow(training.placement, training.index, resumed=optimizers is not None)
        for seconds in training.run():
            progress.task_seconds += seconds
            progress.task_steps += 1
            self.steps_here += 1
            if self.ranks.any_before(request.stop):
                self._save(model, training)
                self._stop()
            if self.pacing.due:
                self._save(model, training)
        if self.pacing.affordable:
            self._save(model, training)
        clock = time.perf_counter()
        self._end(training)
        progress.task_seconds += time.perf_counter() - clock
        progress.train_seconds += progress.task_seconds
        progress.steps += progress.task_steps
        self._note_size(training)
        self.events.send(
            "task_trained",
            task=training.index,
            seconds=round(progress.task_seconds, 3),
            steps=progress.task_steps,
            peak_memory=training.peak_memory,
        )
        clock = time.perf_counter()
        training.check()
        training.calibrate()
        progress.evaluate_seconds += time.perf_counter() - clock
        progress.learned, progress.epoch, progress.step = True, training.epoch, 0
        if self.pacing.affordable:
            self._save(model, None)

    def _end(self, training: TaskTraining) -> None:
        """Let the method finish the task, between what the journal has of it before and after."""
        if self.journal is not None:
            self.journal.end_steps()
        training.end()
        if self.journal is not None:
            self.journal.end_task()

    def _resume(self, training: TaskTraining, optimizers: dict[str, Any]) -> None:
        """Continue inside a task, where a checkpoint was taken."""
        progress = self.progress
        try:
            training.resume(progress.epoch, progress.step, progress.meter)
            training.placement.load_state(optimizers)
            training.peak_memory = progress.peak_memory[training.index]
        except (ValueError, TypeError, IndexError) as error:
            raise RunError(f"{self.folder}: the checkpoint does not fit this run: {error}; run it anew") from error

    def _note_size(self, training: TaskTraining) -> None:
        """Record the memory that the task needed and the parameters that it trained."""
        progress = self.progress
        before = progress.peak_memory[: training.index]
        unmeasured = [0] * (training.index - len(before))  # tasks learned elsewhere
        progress.peak_memory = [*before, *unmeasured, training.peak_memory]
        if sizes := training.placement.sizes:
            progress.trained = sizes

    def _evaluate(self, model: IncrementalModel, stream: AnyStream) -> None:
        """A new row of the accuracy matrix: every group of classes seen so far."""
        progress, clock = self.progress, time.perf_counter()
        row: list[float | None] = []
        counts: list[int] = []
        groups: list[list[str]] = []
        for number, (names, test) in enumerate(stream.evaluation(stream.tasks[len(model.tasks) - 1])):
            groups.append(names)
            if number < len(progress.row) and len(test):  # before the run was stopped
                row.append(progress.row[number])
                counts.append(len(test))
                continue
            if not len(test):  # data of an earlier run that is no longer at hand
                row.append(None)
                counts.append(progress.counts[number] if number < len(progress.counts) else 0)
                continue
            counts.append(len(test))
            if number not in self.features:
                self.features[number] = FeatureMemory(self._feature_file(stream, number, names, test), self.ranks)
            guessed, true = model.guesses(self._test_loader(model, number, test), self.features[number])
            row.append(100 * int((guessed == true).sum()) / len(true))
            progress.row = row
            if self.pacing.due:
                self._save(model, None)
        progress.learned, progress.row = False, []
        progress.rows.append(row)
        progress.counts, progress.groups = counts, groups
        progress.done += 1
        seconds = time.perf_counter() - clock
        progress.evaluate_seconds += seconds
        overall = summary(self.matrix)["all_classes"]
        self.events.send("evaluated", task=progress.done - 1, row=row, all_classes=overall, seconds=round(seconds, 3))

    def _feature_file(self, stream: AnyStream, number: int, names: Sequence[str], test: ImageSet) -> FeatureFile | None:
        if not self.recipe.training.keep_features:
            return None
        own = [part for part in stream.parts if not set(names).isdisjoint(part.names)]
        images = [part.source.checksum for part in own or stream.parts]
        return FeatureFile(self.folder, number, [*names, str(len(test)), *images])

    def _test_loader(self, model: IncrementalModel, number: int, test: ImageSet) -> Loader:
        """The loader of a group's test images; decoded images are kept for later evaluations while there is room."""
        if number in self.tests:
            return self.tests[number]
        loader = model.loader(test, keep=TEST_IMAGE_BYTES - sum(loader.kept_bytes for loader in self.tests.values()))
        if loader.kept_bytes:
            self.tests[number] = loader
        return loader

    def _stop(self) -> NoReturn:
        self.ranks.any(False)  # no rank ends before the first has saved: the end of one would end it too
        self.events.send("interrupted", **self.progress.position)
        raise Interrupted("stopped and saved", self.folder)

    # -- files --------------------------------------------------------------------------------------------------

    @property
    def matrix(self) -> AccuracyMatrix:
        """The accuracy matrix so far."""
        progress = self.progress
        rows, groups = tuple(map(tuple, progress.rows)), tuple(map(tuple, progress.groups))
        return AccuracyMatrix(rows, tuple(progress.counts), groups)

    def _save(self, model: IncrementalModel, training: TaskTraining | None) -> None:
        progress = self.progress
        progress.classes, progress.tasks = list(model.classes), [(task.start, task.stop) for task in model.tasks]
        progress.calibration = model.calibration_state
        optimizers: dict[str, Any] = {}
        if training is None:
            progress.epoch, progress.step = (progress.epoch if progress.learned else 0), 0
            progress.meter = {}
        else:
            progress.epoch, progress.step, progress.meter = training.epoch, training.step, asdict(training.meter)
            self._note_size(training)
            optimizers = training.placement.state()
        clock = time.perf_counter()
        if self.ranks.first:
            progress.journal = None if self.journal is None else self.journal.commit()
            save_checkpoint(self.folder, progress, model.state_dict(), optimizers)
        if text := self.pacing.note_save(time.perf_counter() - clock):
            self._notice(text)
        self.events.send("checkpoint", **progress.position)

    def _restore(self, model: IncrementalModel, stream: AnyStream, checkpoint: Checkpoint) -> dict[str, Any]:
        """Continue from a checkpoint; returns the state of its optimizers."""
        progress = checkpoint.progress
        self.folder.check_recipe_unchanged(progress.recipe)
        if list(stream.classes[: len(progress.classes)]) != progress.classes:
            raise RunError(f"{self.folder} learned other classes than the data now has; was the data set changed?")
        self.progress = progress
        if self.journal is not None and progress.journal is not None:
            self.journal.resume(JournalPosition(*progress.journal))
        model.restore(progress.classes, progress.tasks, checkpoint.method, progress.calibration)
        return checkpoint.optimizers

    def _write_results(self, stream: AnyStream, model: IncrementalModel) -> None:
        progress = self.progress
        if not self.ranks.first:
            return
        self.folder.write_matrix(self.matrix)
        self.folder.write_metrics(
            {
                "finished": progress.done == len(stream.tasks),
                "tasks": progress.done,
                "tasks_total": len(stream.tasks),
                **summary(self.matrix),
                "trainable_parameters": progress.trained,
                "seconds": {"train": round(progress.train_seconds, 3), "evaluate": round(progress.evaluate_seconds, 3)},
                "steps": progress.steps,
                "peak_memory": max(progress.peak_memory, default=0) or model.backbone.bytes,
                "peak_memory_by_task": progress.peak_memory,
            },
        )

    def _record_environment(self, stream: AnyStream, model: IncrementalModel, checkpoint: Checkpoint | None) -> None:
        """Record software, data and weights, and refuse to continue with other data or weights than before."""
        before, now = self.folder.environment, {**environment(model.device), "processes": self.ranks.size}
        inherited = checkpoint.progress.inherited if checkpoint else 0
        for key, what in ROUNDING.items() if checkpoint else ():
            if before.get(key, now[key]) != now[key]:
                changed = f"{what} {now[key]}, the run was begun with {before[key]}"
                self._notice(f"{changed}: sums are rounded in another order, so the last bits of results may differ")
        for changed in require_plugins(self.folder):
            self._notice(changed)
        for part in stream.parts:
            for changed in self.folder.changed_data({part.source.name: part.source.checksum}):
                if not inherited or part.start >= len(stream.classes) - len(stream.tasks[-1].classes):
                    raise RunError(f"{self.folder}: {changed}; start a new run")
                self._notice(f"{changed}; earlier tasks are evaluated on what is there now")
        if "backbone" in before:
            self.folder.check_weights(model.backbone.checksum)
        data = {**before.get("data", {}), **stream.checksums}
        made_with = {**now, "data": data, "backbone": model.backbone.describe()}
        self.folder.write_environment({**made_with, **plugins_used(self.recipe)})
        skipped = (part.source.skipped.items() for part in stream.parts)
        self.folder.write_skipped({image: reason for images in skipped for image, reason in images})

    # -- events --------------------------------------------------------------------------------------------------

    def _discard(self) -> None:
        """Remove what was written of a run that was refused."""
        if self.ranks.first:
            self.folder.discard_if_empty()

    def _report_traffic(self) -> None:
        """Tell what a step exchanged, if there are several processes."""
        sent = self.ranks.sent
        kinds = ("coefficients", "gradient", "loss and hits")
        if self.steps_here and (
            parts := [f"{sent[kind] / self.steps_here:,.0f} bytes of {kind}" for kind in kinds if sent[kind]]
        ):
            self._notice(f"{self.ranks.size} processes; a step exchanged {', '.join(parts)} on average")

    def _notice(self, text: str) -> None:
        self.events.send("notice", text=text)

    def _explain(self) -> None:
        for text in self.reasons:
            self.events.send("notice", text=text, about="choice")
        if doubt := characters_only(self.recipe.backbone.name, self.recipe.data.source):
            self._notice(doubt)

    def _announce(self, event: str, stream: AnyStream, model: IncrementalModel) -> None:
        self.events.send(
            event,
            name=self.recipe.title or self.recipe.name,
            method=self.recipe.method.name,
            groups=list(model.method.group_names),
            tasks=len(stream.tasks),
            epochs=[model.method.planned_epochs(task.index, self._images_of(stream, task)) for task in stream.tasks],
            classes=len(stream.classes),
            device=str(model.device),
            parameters=model.backbone.parameters,
            position=self.progress.position,
        )

    def _images_of(self, stream: AnyStream, task: Task) -> int:
        """The training images of a task; none of one that was learned in an earlier run, whose images may be gone."""
        return len(stream.train_set(task)) if task.index >= self.progress.inherited else 0

"""The trainer: task by task through a stream, evaluating every group seen and saving as it goes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor

from zofc.data import Stream
from zofc.errors import DataError, RunError, ZofcError
from zofc.metrics import AccuracyMatrix, summary
from zofc.training import checkpoint
from zofc.training.checkpoint import Progress
from zofc.training.continual import Continual
from zofc.training.device import environment, pick_device, set_up
from zofc.training.events import EventLog, Events, Listener
from zofc.training.folder import RunFolder
from zofc.training.loggers import make_loggers
from zofc.training.resolve import check_recipe, open_data, open_stream, order_seed
from zofc.training.task import TaskTraining


class Interrupted(ZofcError):
    """The user asked to stop; the run was saved."""


class Trainer:
    """One run in one folder."""

    def __init__(self, folder: RunFolder, listeners: Sequence[Listener] = ()) -> None:
        self.folder = folder
        self.listeners = listeners
        self.recipe = folder.recipe
        self.progress = Progress()
        self.saved_at = time.monotonic()
        check_recipe(self.recipe)

    def run(self) -> dict[str, Any]:
        """Train what is left of the run; returns its metrics."""
        with self.folder.locked():
            events = Events([EventLog(self.folder.path / "events.jsonl"), *self.listeners])
            try:
                events.listeners += make_loggers(self.recipe, self.folder.path)
                return self._run(events)
            finally:
                events.close()

    def _run(self, events: Events) -> dict[str, Any]:
        device = pick_device(self.recipe.training.device)
        set_up(device, self.recipe.training.threads)
        stream = self._open_stream(lambda text: events.send("notice", text=text))
        model = Continual(self.recipe, device)
        self._record_environment(device, stream, model)
        optimizers = self._restore(model, stream)
        resumed = bool(model.tasks)
        if self.progress.rows:  # a run may have been killed after its checkpoint and before its results
            self._write_results(stream, model)
        self._announce(events, "run_resumed" if resumed else "run_started", stream, model)
        with stop_signals() as asked:
            for task in stream.tasks[self.progress.done :]:
                if len(model.tasks) == self.progress.done:
                    model.extend(task.names)
                    fresh = True
                else:  # the checkpoint was taken inside this task
                    fresh = False
                training = TaskTraining(model, model.loader(stream.train_set(task)), events, len(stream.tasks))
                self._learn(training, fresh, optimizers, asked, events)
                self._evaluate(model, stream, events)
                self._save(model, None, events)
                self._write_results(stream, model)
                if asked.stop and self.progress.done < len(stream.tasks):
                    self._stop(events)
        metrics = self.folder.read_json("metrics.json")
        events.send("run_finished", metrics=metrics)
        return metrics

    def _open_stream(self, notice: Callable[[str], None]) -> Stream:
        """The recipe's stream; a run that continues another may do without the data learned before."""
        found = checkpoint.load_checkpoint(self.folder.path)
        if not found or not found[0].inherited:
            return open_stream(self.recipe, notice)
        progress = found[0]
        stop = progress.tasks[progress.inherited - 1][1]
        learned = progress.classes[:stop]
        try:
            stream = open_stream(self.recipe, notice)
            if list(stream.classes[:stop]) == learned:
                return stream
            why = "they were not learned from the recipe's data"
        except DataError as error:
            why = str(error)
        notice(f"earlier tasks are not evaluated again: {why}")
        new = open_data(self.recipe, self.recipe.data.then[-1], notice)
        return Stream.continuing(
            learned,
            [range(*task) for task in progress.tasks[: progress.inherited]],
            [new],
            order_seed=order_seed(self.recipe),
        )

    # -- one task --------------------------------------------------------------------------------------------------

    def _learn(
        self,
        training: TaskTraining,
        fresh: bool,
        optimizers: dict[str, Any],
        asked: StopRequest,
        events: Events,
    ) -> None:
        progress, model = self.progress, training.model
        events.send(
            "task_started",
            task=training.index,
            classes=[model.classes[i] for i in model.tasks[-1]],
            images=len(training.loader.image_set),
            epochs=training.placement.epochs,
            steps=training.total_steps,
            step=0 if fresh else progress.epoch * training.steps_per_epoch + progress.step,
        )
        if fresh:
            training.begin()
        else:
            training.resume(progress.epoch, progress.step, progress.meter)
            training.peak_memory = progress.peak_memory[training.index]
            training.placement.load_state(optimizers)
        started, steps = progress.train_seconds, progress.steps
        for seconds in training.run():
            progress.train_seconds += seconds
            progress.steps += 1
            if asked.stop:
                self._save(model, training, events)
                self._stop(events)
            if time.monotonic() - self.saved_at > 60 * self.recipe.training.checkpoint_minutes:
                self._save(model, training, events)
        clock = time.perf_counter()
        training.end()
        progress.train_seconds += time.perf_counter() - clock
        self._note_memory(training)
        events.send(
            "task_trained",
            task=training.index,
            seconds=round(progress.train_seconds - started, 3),
            steps=progress.steps - steps,
            peak_memory=training.peak_memory,
        )

    def _note_memory(self, training: TaskTraining) -> None:
        before = self.progress.peak_memory[: training.index]
        missing = [0] * (training.index - len(before))  # tasks learned without a measurement
        self.progress.peak_memory = [*before, *missing, training.peak_memory]

    def _stop(self, events: Events) -> NoReturn:
        events.send("interrupted", task=self.progress.done, epoch=self.progress.epoch, step=self.progress.step)
        raise Interrupted(f"stopped and saved; continue with: zofc run --resume {self.folder}")

    def _evaluate(self, model: Continual, stream: Stream, events: Events) -> None:
        """A new row of the accuracy matrix: every group of classes seen so far."""
        progress, clock = self.progress, time.perf_counter()
        row: list[float | None] = []
        counts: list[int] = []
        groups = stream.seen_groups(stream.tasks[len(model.tasks) - 1])
        for number, group in enumerate(groups):
            test = stream.test_set(group)
            if not len(test):  # data of an earlier run that is no longer at hand
                row.append(None)
                counts.append(progress.counts[number] if number < len(progress.counts) else 0)
                continue
            counts.append(len(test))
            guessed, true = model.guesses(model.loader(test))
            row.append(100 * int((guessed == true).sum()) / len(true))
        progress.rows.append(row)
        progress.counts = counts
        progress.groups = [(group.start, group.stop) for group in groups]
        progress.done += 1
        seconds = time.perf_counter() - clock
        progress.evaluate_seconds += seconds
        overall = summary(self.matrix)["all_classes"]
        events.send("evaluated", task=progress.done - 1, row=row, all_classes=overall, seconds=round(seconds, 3))

    # -- what is kept ----------------------------------------------------------------------------------------------

    @property
    def matrix(self) -> AccuracyMatrix:
        return AccuracyMatrix(tuple(tuple(row) for row in self.progress.rows), tuple(self.progress.counts))

    def _save(self, model: Continual, training: TaskTraining | None, events: Events) -> None:
        progress = self.progress
        progress.classes, progress.tasks = (
            list(model.classes),
            [(task.start, task.stop) for task in model.tasks],
        )
        tensors: dict[str, Tensor] = {}
        scalars: dict[str, Any] = {}
        if training is None:
            progress.epoch = progress.step = 0
            progress.meter = {}
        else:
            progress.epoch, progress.step, progress.meter = (
                training.epoch,
                training.step,
                vars(training.meter).copy(),
            )
            self._note_memory(training)
            tensors, scalars = checkpoint.pack_optimizers(training.placement.state())
        tensors |= {f"method|{key}": value for key, value in model.method.state_dict().items()}
        checkpoint.save_checkpoint(self.folder.path, progress, tensors, scalars)
        self.saved_at = time.monotonic()
        events.send("checkpoint", task=progress.done, epoch=progress.epoch, step=progress.step)

    def _restore(self, model: Continual, stream: Stream) -> dict[str, Any]:
        """Take up the last checkpoint, if there is one; returns the state of its optimisers."""
        found = checkpoint.load_checkpoint(self.folder.path)
        if found is None:
            return {}
        self.progress, tensors, scalars = found
        if list(stream.classes[: len(self.progress.classes)]) != self.progress.classes:
            raise RunError(f"{self.folder} learned other classes than the data now has; was the data set changed?")
        state = {key.removeprefix("method|"): value for key, value in tensors.items() if key.startswith("method|")}
        model.restore(self.progress.classes, self.progress.tasks, state)
        return checkpoint.unpack_optimizers(tensors, scalars)

    def _write_results(self, stream: Stream, model: Continual) -> None:
        progress = self.progress
        names = [[stream.classes[i] for i in range(*group)] for group in progress.groups]
        self.folder.write_json("matrix.json", {"accuracy": progress.rows, "counts": progress.counts, "groups": names})
        groups = model.method.groups()
        self.folder.write_json(
            "metrics.json",
            {
                "finished": progress.done == len(stream.tasks),
                "tasks": progress.done,
                "tasks_total": len(stream.tasks),
                **summary(self.matrix),
                "trainable_parameters": {
                    name: sum(t.numel() for t in group.values()) for name, group in groups.items()
                },
                "seconds": {
                    "train": round(progress.train_seconds, 3),
                    "evaluate": round(progress.evaluate_seconds, 3),
                },
                "steps": progress.steps,
                "peak_memory": max(progress.peak_memory, default=0) or model.backbone.bytes,
                "peak_memory_by_task": progress.peak_memory,
            },
        )

    def _record_environment(self, device: torch.device, stream: Stream, model: Continual) -> None:
        before = self.folder.read_json("environment.json")
        for name, checksum in stream.checksums.items():
            if before.get("data", {}).get(name, checksum) != checksum:
                raise RunError(
                    f"{self.folder}: the data of '{name}' changed since this run began (its checksum differs)"
                )
        known = before.get("backbone", {}).get("checksum", model.backbone.checksum)
        if known != model.backbone.checksum:
            raise RunError(
                f"{self.folder}: the backbone's weights changed since this run began (their checksum differs)"
            )
        data = {**before.get("data", {}), **stream.checksums}
        self.folder.write_json(
            "environment.json", {**environment(device), "data": data, "backbone": model.backbone.describe()}
        )

    def _announce(self, events: Events, name: str, stream: Stream, model: Continual) -> None:
        probe = model.method.group_names
        sizes = {"backbone": model.backbone.parameters}
        if "peft" in probe:
            sizes["peft"] = sum(p.numel() for n, p in model.method.named_parameters() if n.startswith("peft."))
        events.send(
            name,
            name=self.recipe.title or self.recipe.name,
            method=self.recipe.method.name,
            tasks=len(stream.tasks),
            classes=len(stream.classes),
            device=str(model.device),
            parameters=sizes,
        )


class StopRequest:
    """Set by the first Ctrl-C or termination signal; training stops after the step in progress."""

    stop = False


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Turn the first stop signal into a request, let a second one act at once."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request.stop:
            raise KeyboardInterrupt
        request.stop = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

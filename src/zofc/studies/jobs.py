"""The jobs of a grid: train a recipe, measure the cost of a step, or measure the flatness of a run.

Each leaves its result below the folder of runs, written atomically, under a name that follows from the recipe and the
job. An existing result is reused, so a table is the same however often its computation was interrupted.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from zofc.analysis.cost import measure_cost
from zofc.analysis.kept_run import KeptRun
from zofc.analysis.run_flatness import FlatnessSettings, measure_flatness
from zofc.errors import RunError
from zofc.methods import method_class
from zofc.recipe import Group, Recipe
from zofc.runfolder import Run, open_run
from zofc.runfolder.files import read_object, write_object
from zofc.runfolder.find import cost_file, study_run
from zofc.runfolder.identity import lasting_values
from zofc.runfolder.run import Measurement
from zofc.training.device import environment, pick_device
from zofc.training.resolve import build_stream
from zofc.training.runs import start_run, train

RESULT_KEYS = (
    "all_classes", "final_average", "average_incremental", "last_task", "forgetting", "seconds", "peak_memory",
    "trainable_parameters", "steps",
)  # fmt: skip
ENVIRONMENT_KEYS = ("python", "torch", "timm", "device_name")
NOT_COST = ("checkpoint_minutes", "journal", "keep_features", "keep_tasks", "loggers")  # no effect on a step
SAVE_SECONDS = 20.0  # that a process may take to save its run
CellRow = dict[str, Any]


class Job(ABC):
    """What is done with a recipe, and where its result is kept."""

    needs: ClassVar[Job | None] = None  # what must have been done with the same recipe before
    alone: ClassVar[bool] = False  # whether nothing else may run at the same time, because the job measures time

    @abstractmethod
    def path(self, recipe: Recipe, runs: Path) -> Path:
        """The file or folder of the result."""

    def name(self, recipe: Recipe, runs: Path) -> str:
        """Of the result, below `runs`."""
        return str(self.path(recipe, runs).relative_to(runs))

    def done(self, recipe: Recipe, runs: Path) -> bool:
        """Whether its result is there."""
        return self.path(recipe, runs).is_file()

    @abstractmethod
    def do(self, recipe: Recipe, runs: Path) -> CellRow:
        """Do what is left of the job; returns what a table needs of the result."""

    @abstractmethod
    def describe(self, row: CellRow) -> str:
        """Its row in a few words."""

    @abstractmethod
    def passes(self, recipe: Recipe) -> float:
        """How long it takes, in forward passes of one image; a backward pass counts as one."""


# -- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainRun(Job):
    """Train the recipe in its run folder."""

    def path(self, recipe: Recipe, runs: Path) -> Path:
        return study_run(recipe, runs)

    def done(self, recipe: Recipe, runs: Path) -> bool:
        run = Run(self.path(recipe, runs))
        return run.exists and run.finished

    def do(self, recipe: Recipe, runs: Path) -> CellRow:
        """A finished run is only read, so its device and images need not be here."""
        path = self.path(recipe, runs)
        if not self.done(recipe, runs):
            if path.is_dir():  # a process of a grid that was killed may still save its run
                with Run(path).locked(SAVE_SECONDS):
                    pass
            train(start_run(recipe, path.parent))
        run = open_run(path)
        if run.matrix is None:
            raise RunError(f"{run} has no accuracy matrix; remove the folder to train the run again")
        return {
            **{key: run.metrics[key] for key in RESULT_KEYS},
            "over_time": list(run.accuracies.values),
            "tested": sum(run.matrix.counts),
            "environment": {key: run.environment[key] for key in ENVIRONMENT_KEYS},
            "backbone": run.environment["backbone"]["checksum"],
            "data": run.environment["data"],
            "run": str(path.relative_to(runs)),
        }

    def describe(self, row: CellRow) -> str:
        forgotten = "" if row["forgetting"] is None else f", forgetting {row['forgetting']:.1f}"
        return f"{row['all_classes']:.1f} % of all classes{forgotten}"

    def passes(self, recipe: Recipe) -> float:
        stream = build_stream(recipe, lambda _: None)
        images = {task.index: len(stream.train_set(task)) for task in stream.tasks}
        trained = sum(number * (_passes_of_image(recipe, task, number) + 1) for task, number in images.items())
        tested = sum(len(test) for task in stream.tasks for _, test in stream.evaluation(task))
        return trained + tested


TRAIN = TrainRun()


def _passes_of_image(recipe: Recipe, task: int, images: int) -> int:
    """Passes of an image in all training steps of a task, in which some or all groups may not move any more."""
    moves = task < method_class(recipe).trained_tasks
    batches = math.ceil(images / recipe.training.batch_size)
    plans = [
        plan.for_batches(batches) for plan in recipe.optimize.values() if moves and task < (plan.tasks or math.inf)
    ]
    return max((plan.epochs * _evaluations(plan) for plan in plans), default=0)


def _evaluations(plan: Group) -> int:
    """Passes of an image in one step."""
    return 3 if plan.order == "first" else 1 + plan.queries * (2 if plan.estimator == "spsa" else 1)


# -- measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasureCost(Job):
    """Measure what a step of the recipe costs. A timing, once measured, is kept."""

    steps: int = 5  # timed
    task: int = 1

    alone: ClassVar[bool] = True

    def path(self, recipe: Recipe, runs: Path) -> Path:
        values = lasting_values(recipe)
        values["training"] = {key: value for key, value in values["training"].items() if key not in NOT_COST}
        return cost_file(recipe, runs, {"recipe": values, **asdict(self)})

    def do(self, recipe: Recipe, runs: Path) -> CellRow:
        path = self.path(recipe, runs)
        if not path.is_file():
            made_with = environment(pick_device(recipe.training.device))
            content = {
                "recipe": recipe.model_dump(mode="json"),
                "environment": {key: made_with[key] for key in ENVIRONMENT_KEYS},
                "cost": asdict(measure_cost(recipe, self.steps, self.task)),
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            write_object(path, content)
        content = read_object(path)
        return {"cost": content["cost"], "environment": content["environment"], "result": path.name}

    def describe(self, row: CellRow) -> str:
        phases = row["cost"]["phases"]
        return ", ".join(f"{'+'.join(phase['groups'])} {phase['step_seconds']:.3g} s a step" for phase in phases)

    def passes(self, recipe: Recipe) -> float:
        of_step = max((_evaluations(plan) for plan in recipe.optimize.values()), default=0)
        images, phases, untimed = recipe.training.batch_size, len(recipe.optimize), 3  # the warm-up, and counting
        return (self.steps + untimed) * (phases * images * of_step + recipe.training.eval_batch_size)


@dataclass(frozen=True)
class MeasureFlatness(Job):
    """Measure Φ of the recipe's run after each of its tasks, which it must keep."""

    settings: FlatnessSettings

    needs: ClassVar[Job | None] = TRAIN
    kind: ClassVar[Measurement] = "flatness"  # what the run folder and a row have it under
    relevant: ClassVar[tuple[str, ...]] = ("over", "rho", "images", "split", "rows", "every")  # that Φ depends on

    def path(self, recipe: Recipe, runs: Path) -> Path:
        return Run(study_run(recipe, runs)).measurement_file(self.kind)

    def done(self, recipe: Recipe, runs: Path) -> bool:
        return TRAIN.done(recipe, runs) and self._result(study_run(recipe, runs)) is not None

    def do(self, recipe: Recipe, runs: Path) -> CellRow:
        row = TRAIN.do(recipe, runs)
        path = runs / row["run"]
        result = self._result(path)
        if result is None:
            run = KeptRun(path, recipe.training.device)
            measured = measure_flatness(run, self.settings, [])
            run.folder.write_measurement(self.kind, asdict(measured), SAVE_SECONDS)
            result = self._result(path)
        return {**row, self.kind: result}

    def _result(self, run: Path) -> dict[str, list[Any]] | None:
        """The measurement in the run folder by set of parameters; None if there is none with these settings."""
        content = Run(run).measurement(self.kind)
        wanted, usual = (json.loads(json.dumps(asdict(settings))) for settings in (self.settings, FlatnessSettings()))
        if not content or any(content["settings"].get(key, usual[key]) != wanted[key] for key in self.relevant):
            return None
        return {
            name: [self._summary(entry) for entry in entries if entry["old"] is not None]
            for name, entries in content["by_set"].items()
        }

    def _summary(self, entry: dict[str, Any]) -> Any:
        """What a row keeps of the state after a task."""
        return entry["task"], entry["old"]["score"]

    def describe(self, row: CellRow) -> str:
        ends = {name: scores[-1] for name, scores in row[self.kind].items() if scores}
        return ", ".join(f"Φ {score:.3g} over {name} after task {task}" for name, (task, score) in ends.items())

    def passes(self, recipe: Recipe) -> float:
        stream, most = build_stream(recipe, lambda _: None), self.settings.images
        seen = sum(
            len(test) if most is None else min(len(test), most * len(names))
            for task in stream.tasks
            for names, test in stream.evaluation(task)
        )
        sets, points, forth_and_back, double = 2, 2, 2, 2
        return seen * sets * points * forth_and_back * double


@dataclass(frozen=True)
class MeasureCurvature(MeasureFlatness):
    """Measure the Hessian of the old tasks' loss too, and what of forgetting it explains, after some of the tasks."""

    kind: ClassVar[Measurement] = "curvature"
    relevant: ClassVar[tuple[str, ...]] = (*MeasureFlatness.relevant, "probes", "products", "tolerance")

    def _summary(self, entry: dict[str, Any]) -> Any:
        step, forgetting = entry["forgetting"], None
        spectrum, trace = entry["spectrum"], entry["trace"]
        converged = spectrum["converged"] and (step is None or step["spectrum"]["converged"])
        if step is not None:  # the error of ½ λ ‖Δθ‖² follows from how far λ is from an eigenvalue
            error = 0.5 * step["spectrum"]["residual"] * step["over"]["distance"] ** 2
            forgetting = {**step["over"], "bound_error": error}
        return {
            "task": entry["task"], "largest": spectrum["largest"], "largest_error": spectrum["residual"],
            "converged": converged, "trace": trace["mean"], "trace_error": trace["error"], "forgetting": forgetting,
        }  # fmt: skip

    def describe(self, row: CellRow) -> str:
        ends = {name: states[-1] for name, states in row[self.kind].items() if states}
        return ", ".join(f"λ {end['largest']:.3g} over {name} after task {end['task']}" for name, end in ends.items())

    def passes(self, recipe: Recipe) -> float:
        products = 2 * self.settings.products + self.settings.probes  # of the old tasks' loss, and of all so far
        of_sets = (len(self.settings.over) or 2) / 2
        return super().passes(recipe) * of_sets / self.settings.every * products

"""Optional loggers (extras of the package): each turns events into the scalars of one tracking tool."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from zofc.errors import RecipeError, nearest
from zofc.recipe import Recipe
from zofc.runfolder.events import Event
from zofc.training.events import StepStatus

Write = Callable[[dict[str, float], int], None]
Notice = Callable[[str], None]


class ScalarLogger:
    """Training loss and accuracy per epoch, accuracy per task, through one `write(scalars, step)`."""

    def __init__(self, write: Write, finish: Callable[[], Any]) -> None:
        self.write, self.finish = write, finish

    def event(self, event: Event) -> None:
        """Log the scalars of an epoch or an evaluation."""
        if event["event"] == "epoch":
            rates = {f"lr/{name}": value for name, value in event["lr"].items()}
            self.write({"train/loss": event["loss"], "train/accuracy": event["accuracy"], **rates}, event["number"])
        elif event["event"] == "evaluated":
            row = {f"test/task {i + 1}": value for i, value in enumerate(event["row"]) if value is not None}
            overall = {} if event["all_classes"] is None else {"test/all classes": event["all_classes"]}
            self.write({**row, **overall}, event["task"] + 1)

    def step(self, status: StepStatus) -> None:
        """Log nothing: epochs are enough."""

    def close(self) -> None:
        """Finish the session of the tool."""
        self.finish()


class OptionalLogger:
    """A logger that never ends a run: if its tool fails, it is switched off with one notice."""

    def __init__(self, name: str, make: Callable[[], ScalarLogger], notice: Notice) -> None:
        self.name, self.notice = name, notice
        self.logger: ScalarLogger | None = None
        self._attempt(lambda: setattr(self, "logger", make()))

    def event(self, event: Event) -> None:
        """Pass an event on."""
        if (logger := self.logger) is not None:
            self._attempt(lambda: logger.event(event))

    def step(self, status: StepStatus) -> None:
        """Log nothing: epochs are enough."""

    def close(self) -> None:
        """Finish the session of the tool."""
        logger, self.logger = self.logger, None
        if logger is not None:
            self._attempt(logger.close)

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except RecipeError:  # the user named a tool that is not installed
            raise
        except Exception as error:
            self.logger = None
            reason = " ".join(str(error).split()) or "no reason given"
            self.notice(f"training.loggers: '{self.name}' is switched off ({type(error).__name__}: {reason[:300]})")


def _tensorboard(_recipe: Recipe, run: Path) -> ScalarLogger:
    writer = _need("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(run / "tensorboard"))

    def write(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return ScalarLogger(write, writer.close)


def _wandb(recipe: Recipe, run: Path) -> ScalarLogger:
    session = _need("wandb", "wandb").init(
        project="zofc", id=run.name, resume="allow", dir=str(run), config=recipe.model_dump(mode="json")
    )
    return ScalarLogger(lambda scalars, _step: session.log(scalars), session.finish)


def _mlflow(recipe: Recipe, run: Path) -> ScalarLogger:
    mlflow = _need("mlflow", "mlflow")
    mlflow.set_experiment("zofc")
    mlflow.start_run(run_name=run.name)
    mlflow.log_params({"recipe": recipe.name, "method": recipe.method.name, "seed": recipe.seed})
    return ScalarLogger(lambda scalars, step: mlflow.log_metrics(scalars, step=step), mlflow.end_run)


LOGGERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def check_loggers(recipe: Recipe) -> None:
    """Refuse unknown loggers before any work."""
    for name in recipe.training.loggers:
        if name not in LOGGERS:
            raise RecipeError(f"training.loggers: unknown logger '{name}'{nearest(name, LOGGERS)}")


def make_loggers(recipe: Recipe, run: Path, notice: Notice) -> list[OptionalLogger]:
    """The loggers of a recipe; `notice` receives a sentence about each that fails."""
    return [OptionalLogger(name, partial(LOGGERS[name], recipe, run), notice) for name in recipe.training.loggers]


def _need(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise RecipeError(f"training.loggers: '{extra}' is not installed; pip install 'zofc[{extra}]'") from error

"""The start of a task of a recipe, as in a run: where costs and diagnoses are measured without training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor

from zofc.errors import RecipeError
from zofc.recipe import Recipe, TrainingSettings
from zofc.training.device import set_up
from zofc.training.events import Events
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import open_stream
from zofc.training.task import TaskTraining

OnProgress = Callable[[str], None]


@contextmanager
def torch_settings(device: torch.device, settings: TrainingSettings) -> Iterator[None]:
    """Set up torch as for a run; on exit, restore the settings from before."""
    cudnn, deterministic = torch.backends.cudnn, torch.utils.deterministic
    threads, products = torch.get_num_threads(), torch.get_float32_matmul_precision()
    before = cudnn.benchmark, cudnn.allow_tf32, deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")  # by torch's own forward mode
        set_up(device, settings)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(products)
            cudnn.benchmark, cudnn.allow_tf32, deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
            torch.use_deterministic_algorithms(strict, warn_only=warn)


def start_task(
    recipe: Recipe, task: int, device: torch.device, on_progress: OnProgress
) -> tuple[TaskTraining, list[str]]:
    """A fresh model at the first step of a task, and notices for the user."""
    notices: list[str] = []
    on_progress("opening the data")
    stream = open_stream(recipe, notices.append)
    if not 1 <= task <= len(stream.tasks):
        raise RecipeError(f"{recipe.name}: there is no task {task}; the recipe has {len(stream.tasks)}")
    on_progress("loading the backbone")
    model = IncrementalModel(recipe, device)
    for each in stream.tasks[:task]:
        model.extend(each.names)
    loader = model.loader(stream.train_set(stream.tasks[task - 1]))
    training = TaskTraining(model, loader, _Notices(notices), len(stream.tasks))
    on_progress("beginning the task")
    training.begin()  # some methods read the task's images before the first step
    return training, notices


class _Notices(Events):
    """Events of which the notices alone are kept."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self.texts = texts

    def send(self, kind: str, /, **fields: Any) -> None:
        if kind == "notice":
            self.texts.append(fields["text"])


def run_batches(training: TaskTraining) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The batches of a run, each with the number of its step."""
    batches = chain.from_iterable(training.batches(epoch) for epoch in count())
    for number, (images, labels) in enumerate(batches):
        yield number, images, labels

"""Running the tasks of a recipe: checks before work, the one loop, evaluation, events, devices."""

from zofc.training.events import Events, Listener
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import check_recipe, open_stream
from zofc.training.runs import extend_run, resume_run, start_run, train
from zofc.training.task import TaskTraining

__all__ = [
    "Events",
    "IncrementalModel",
    "Listener",
    "TaskTraining",
    "check_recipe",
    "extend_run",
    "open_stream",
    "resume_run",
    "start_run",
    "train",
]

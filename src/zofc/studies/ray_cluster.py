"""Cells as tasks of a Ray cluster: this machine alone, machines joined by `ray start`, or those behind `ray://…`.

Each cell is a task with its share of a GPU, or with CPU cores. Ray runs it again elsewhere if its node dies. Results
come back as bytes and are kept as the local pool keeps them, so either goes on where the other stopped.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import zofc
from zofc.errors import Interrupted, RecipeError, ZofcError
from zofc.recipe import Recipe, change_recipe
from zofc.runfolder import Run
from zofc.runfolder.travel import Files, pack_result, unpack_result
from zofc.studies.cells import Cell, run_cell
from zofc.studies.jobs import SAVE_SECONDS, TRAIN, CellRow
from zofc.studies.places import Place, longest_first, with_threads
from zofc.studies.ray_node import MeasureShare, NodeAnswer, RunCell
from zofc.training.signals import StopRequest, stop_signals

RETRIES = 3  # of a cell whose node or process dies
CANCELLED = "stopped; finished cells are kept, and the same command goes on from there"
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class NodeTask:
    """Something that a node is asked to do, with what it takes."""

    work: RunCell | MeasureShare
    cpus: float
    gpus: float


class RayCluster(Place):
    """A cluster at an address; by default the one that this machine belongs to, else one of this machine alone."""

    def __init__(
        self, address: str | None = None, workers: int | None = None, notice: Callable[[str], None] = print
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise RecipeError("--on ray: Ray is not installed; install the extra: pip install 'zofc[ray]'") from error
        self.ray: Any = ray
        self.address, self.workers, self.notice = address, workers, notice
        self._own = False  # whether the connection is ours to close
        self._on_signal: Any = None  # what a termination did before Ray had a say
        self._shares: dict[str, float] = {}  # of a GPU, by kind of recipe

    # -- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self.ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
        self._on_signal = signal.getsignal(signal.SIGTERM)
        try:
            quiet = {} if self.address else {"include_dashboard": False}
            self.ray.init(self.address, log_to_driver=False, logging_level="error", **quiet)
        except Exception as error:  # of many kinds
            where = self.address or os.environ.get("RAY_ADDRESS") or "this machine"
            raise ZofcError(f"--on: no Ray cluster could be reached at {where}: {error}") from error
        self._own = True
        resources = self.ray.cluster_resources()
        sizes = ", ".join(f"{resources.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU"))
        count = len(self._nodes())
        self.notice(f"Ray cluster of {count} node{'s' * (count != 1)}: {sizes}")

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._own = False
            self.ray.shutdown()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._on_signal or signal.SIG_DFL)

    def _nodes(self) -> list[Mapping[str, float]]:
        """The resources of each node that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    # -- cells -------------------------------------------------------------------------------------------------------

    def run(self, cells: Sequence[Cell], runs: Path, alone: bool) -> Iterator[tuple[Cell, CellRow]]:
        """Cells with `alone` run one at a time, with a whole GPU or all cores of a node."""
        self._connect()
        with stop_signals() as request:
            if not alone:
                self._measure_shares(cells, request)
            tasks = ((cell, self._task(cell, runs, alone)) for cell in longest_first(cells))
            for cell, result in self._answers(tasks, 1 if alone else self.workers, request):
                yield cell, _keep(cell, result, runs)

    def _task(self, cell: Cell, runs: Path, alone: bool) -> NodeTask | str:
        """What a node is asked to do for a cell, or why that is not possible."""
        gpus = self._gpus(cell.recipe)
        if gpus and not alone and cell.job == TRAIN:  # what measurements take is not known before
            gpus = self._shares.get(_kind(cell.recipe), 1.0)
        cpus = cell.recipe.training.threads or (self._least_cores(gpus) if alone else 1)
        try:
            files = _files_to_send((cell.needed or cell).path(runs))
        except ZofcError as error:
            return str(error)
        sent = cell if alone else replace(cell, recipe=with_threads(cell.recipe, cpus))
        return NodeTask(RunCell(sent, files), cpus, gpus)

    def _gpus(self, recipe: Recipe) -> float:
        """1 if a recipe wants a GPU and may find one."""
        device = recipe.training.device
        return float(device.startswith("cuda") or (device == "auto" and "GPU" in self.ray.cluster_resources()))

    def _least_cores(self, gpus: float) -> int:
        """The cores of the smallest node with so many GPUs."""
        return int(min((node.get("CPU", 1) for node in self._nodes() if node.get("GPU", 0) >= gpus), default=1)) or 1

    def _measure_shares(self, cells: Sequence[Cell], request: StopRequest) -> None:
        """What part of a GPU each kind of recipe takes. One with training.memory=auto takes what there is."""
        wanted = {
            _kind(cell.recipe): cell.recipe
            for cell in cells
            if cell.job == TRAIN and self._gpus(cell.recipe) and cell.recipe.training.memory != "auto"
        }
        if wanted and "GPU" not in self.ray.cluster_resources():
            self.notice("no node has a GPU: cells with training.device=cuda wait until one joins")
        tasks = (
            (kind, NodeTask(MeasureShare(recipe), recipe.training.threads or 1, 1.0))
            for kind, recipe in wanted.items()
            if kind not in self._shares
        )
        for kind, share in self._answers(tasks, None, request):
            self._shares[kind] = share if isinstance(share, float) else 1.0  # the cell itself will say why

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _answers(
        self, tasks: Iterator[tuple[_Key, NodeTask | str]], most: int | None, request: StopRequest
    ) -> Iterator[tuple[_Key, NodeAnswer]]:
        """What nodes answer, in order of completion, with at most so many tasks at a time. A task that was stopped on
        its node, as by a scheduler that takes the node away, is begun again."""
        running: dict[Any, tuple[_Key, NodeTask, int]] = {}
        try:
            while True:
                while (most is None or len(running) < most) and (following := next(tasks, None)) is not None:
                    key, task = following
                    if isinstance(task, str):
                        yield key, task
                    else:
                        running[self._start(task)] = key, task, RETRIES
                if not running:
                    return
                for reference in self.ray.wait(list(running), timeout=0.5)[0]:
                    key, task, retries = running.pop(reference)
                    answer = self._answer(reference)
                    if answer is None and retries:
                        running[self._start(task)] = key, task, retries - 1
                    else:
                        yield key, "it was stopped on its node, again and again" if answer is None else answer
                if request.stop:
                    raise Interrupted(CANCELLED)
        finally:
            self._cancel(list(running))

    def _start(self, task: NodeTask) -> Any:
        take = {"num_cpus": task.cpus, "num_gpus": task.gpus, "max_retries": RETRIES}
        if task.gpus:
            take["max_calls"] = 1  # a process keeps memory of its GPU as long as it lives
        return self.ray.remote(**take)(_function_of_nodes()).remote(zofc.__version__, pickle.dumps(task.work))

    def _answer(self, reference: Any) -> NodeAnswer:
        errors = self.ray.exceptions
        try:
            found: NodeAnswer = self.ray.get(reference)
            return found
        except errors.RayTaskError as error:
            return f"on its node: {str(error).strip().splitlines()[-1]}"
        except errors.RayError as error:
            return f"its node or process died, and {RETRIES} times again: {str(error).strip().splitlines()[0]}"

    def _cancel(self, references: list[Any]) -> None:
        """Stop tasks after their step, and wait for that: their scratch folders go with them."""
        with suppress(Exception):  # the cluster may be gone
            for reference in references:
                self.ray.cancel(reference)
            if references:
                self.ray.wait(references, num_returns=len(references), timeout=SAVE_SECONDS)


def _function_of_nodes() -> Callable[[str, bytes], NodeAnswer]:
    """What a node is given to call. Ray sends it by value, since it is no function of a module: so a node that has
    another version of zofc, or none, can say so."""

    def work(version: str, order: bytes) -> NodeAnswer:
        import socket

        remedy = f"install the same on every node: pip install 'zofc[ray]=={version}'"
        try:
            import zofc
        except ImportError as error:
            return f"the node {socket.gethostname()} cannot import zofc ({error}); {remedy}"
        if zofc.__version__ != version:
            return f"the node {socket.gethostname()} has zofc {zofc.__version__}, this machine {version}; {remedy}"
        from zofc.studies.ray_node import do_order

        return do_order(order)

    return work


def _kind(recipe: Recipe) -> str:
    """The same for recipes that take the same memory."""
    return change_recipe(recipe, "seed=0").model_dump_json()


def _files_to_send(path: Path) -> Files:
    """What a node needs of a run: nothing, or its folder as no process is writing it."""
    if not path.is_dir():
        return {}
    with Run(path).locked(SAVE_SECONDS):
        return pack_result(path)


def _keep(cell: Cell, answer: NodeAnswer, runs: Path) -> CellRow:
    """The row of a cell, once its result is where the local pool would have it."""
    if not isinstance(answer, Mapping):
        return cell.failed(str(answer))
    try:
        unpack_result(answer, cell.path(runs), SAVE_SECONDS)
    except ZofcError as error:
        return cell.failed(str(error))
    return run_cell(cell, runs) if cell.done(runs) else cell.failed("what its node sent is no finished result")

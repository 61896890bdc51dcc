"""What a node of a Ray cluster does: run a cell in a scratch folder, or measure what share of a GPU it takes.

Nothing is read from or written to the machine that asked, so no file system is shared: files come and go as bytes.
Images and weights are the node's own.
"""

from __future__ import annotations

import math
import os
import pickle
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zofc.analysis.cost import measure_cost
from zofc.errors import DataError, Interrupted, WeightsError
from zofc.recipe import Recipe
from zofc.runfolder.travel import Files, pack_result, unpack_result
from zofc.studies.cells import Cell, explain_failure
from zofc.training.device import pick_device
from zofc.training.resolve import build_stream

NodeAnswer = Files | float | str | None  # a result, a share, why there is none, or that the node stopped before its end
MARGIN = 1.1  # for what is not measured, such as statistics at the end of a task
MOST_CELLS = 8  # on one GPU
RAY_UNITS = 10_000  # of a resource, in which Ray counts


@dataclass(frozen=True)
class RunCell:
    """Run a cell; `files` are what there is of its own run, or of the result that it needs."""

    cell: Cell
    files: Files

    def do(self) -> NodeAnswer:
        """The files of its result, or why it failed."""
        cell = self.cell
        with tempfile.TemporaryDirectory(prefix="zofc-") as scratch:
            runs = Path(scratch)
            try:
                if self.files:
                    unpack_result(self.files, (cell.needed or cell).path(runs))
                cell.job.do(cell.recipe, runs)
                return pack_result(cell.path(runs))
            except Interrupted:
                return None
            except (DataError, WeightsError) as error:
                return f"{error} ({_whereabouts()})"
            except Exception as error:  # whatever it is, the other cells go on
                return explain_failure(error)


@dataclass(frozen=True)
class MeasureShare:
    """Measure the memory that a cell's training takes, on a GPU with nothing else on it."""

    recipe: Recipe

    def do(self) -> NodeAnswer:
        """The share of the GPU, or why it is not known."""
        recipe = self.recipe
        try:
            device = pick_device(recipe.training.device)
            if device.type != "cuda":
                return 1.0
            for task in {1, len(build_stream(recipe, lambda _: None).tasks)}:  # the model is largest at the last
                measure_cost(recipe, 1, task)
            free, total = torch.cuda.mem_get_info(device)  # torch keeps what it had at most; the context counts too
            return gpu_share(total - free, total)
        except Exception as error:
            return explain_failure(error)


def gpu_share(needed: int, total: int) -> float:
    """The part of a GPU for a cell that needs so many of its bytes: 1, 1/2, 1/3, …, so that equal cells fill it."""
    cells = min(MOST_CELLS, max(1, int(total // (MARGIN * needed))))
    return math.floor(RAY_UNITS / cells) / RAY_UNITS


def do_order(order: bytes) -> NodeAnswer:
    """Do what another process asks, which has the same version of zofc."""
    work: Any = pickle.loads(order)  # sent by our own process through Ray, which does the same
    result: NodeAnswer = work.do()
    return result


def _whereabouts() -> str:
    data = os.environ.get("ZOFC_DATA")
    where = f"$ZOFC_DATA is {data}" if data else "$ZOFC_DATA is not set"
    return f"on the node {socket.gethostname()}, where {where}: every node needs the images and weights of its own"

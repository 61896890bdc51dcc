"""How much memory a training step needs, and how much there is. On CUDA the need is the allocator's peak, elsewhere the
peak of the bytes of all live tensors, without what kernels allocate inside themselves."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zofc.optim.graphs import RECORDING_STEPS
from zofc.units import parse_bytes

if TYPE_CHECKING:
    from zofc.training.incremental_model import IncrementalModel

MEASURED_STEPS = (2, RECORDING_STEPS)  # for each size of a batch, on a CPU and on CUDA


@dataclass
class Peak:
    """The result of a measurement."""

    bytes: int = 0


@contextmanager
def measure_peak(device: torch.device, resident: Iterable[Tensor]) -> Iterator[Peak]:
    """Peak bytes inside the block, with those of `resident` (weights, trained parameters), but without anything else
    that was allocated before: not the batch, and not what an earlier run left. Recordings made before the block must
    not be replayed after it: the workspaces that they read are freed."""
    peak = Peak()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()  # a step allocates its own
        own, before = _bytes(resident), torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = own + torch.cuda.max_memory_allocated(device) - before
        return
    with _LiveBytes(resident) as live:
        yield peak
    peak.bytes = live.peak


class StepPeak:
    """The peak bytes of training steps, measured on the first few after each `begin`: by then optimizers have their
    state and, on CUDA, steps are recorded. Recordings made before a `begin` must not be replayed after it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.bytes = device, 0
        self.left = self.before = self.own = 0

    def begin(self, resident: Iterable[Tensor], batch_sizes: int, done: int) -> None:
        """Measure anew, with what is allocated beside the batch (weights, parameters, states of optimizers), the number
        of different batch sizes, and the number of steps that an earlier process has taken."""
        self.left = max(batch_sizes * MEASURED_STEPS[self.device.type == "cuda"] - done, 0)
        if self.device.type == "cuda":
            torch._C._cuda_clearCublasWorkspaces()
            self.own, self.before = _bytes(resident), torch.cuda.memory_allocated(self.device)

    @contextmanager
    def step(self, resident: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
        """Around a step: measure it if it is one of the first."""
        if not self.left:
            yield
            return
        self.left -= 1
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            yield
            peak = self.own + torch.cuda.max_memory_allocated(self.device) - self.before
        else:
            with _LiveBytes(resident()) as live:
                yield
            peak = live.peak
        self.bytes = max(self.bytes, peak)


def resident_tensors(model: IncrementalModel) -> list[Tensor]:
    """What is allocated between steps: the frozen weights and the method's own tensors."""
    modules = (model.backbone.vit, model.method)
    return [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]


@torch.no_grad()
def scoring_batch_size(model: IncrementalModel, most: int) -> int:
    """How many images, at most `most`, can be scored at a time within the recipe's memory budget; at least one."""
    budget = memory_budget(model.recipe.training.memory or "auto", model.device)

    def need(count: int) -> float:
        size = model.backbone.image_size
        with measure_peak(model.device, resident_tensors(model)) as peak:
            try:
                model.method.scores(torch.zeros(count, 3, size, size, device=model.device))
            except torch.OutOfMemoryError:
                return math.inf
        return peak.bytes

    if most < 2:
        return 1
    first, one, two = need(1), need(1), need(2)
    room = budget - max(first - one, 0)  # a method may keep what it computes for its first scores
    if two > room:
        return 1
    count = min(most, 2 + int((room - two) / max(two - one, 1)))
    while count > 2 and need(count) > room:
        count //= 2
    return count


def memory_budget(memory: str, device: torch.device) -> int:
    """Bytes for weights and a step. `auto`: on CUDA 90 % of what is free or reserved by us, else half the free RAM."""
    if memory != "auto":
        return parse_bytes(memory)
    if device.type == "cuda":
        return int(0.9 * (torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)))
    with suppress(OSError, StopIteration):  # caches that the system would free count as free
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024 // 2
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live storages, each from the operator that returns it until it is freed."""

    def __init__(self, resident: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.bytes = self.peak = 0
        for tensor in resident:
            self._track(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in (result,) if isinstance(result, Tensor) else tree_leaves(result):  # searching a tree is slow
            if isinstance(leaf, Tensor):
                self._track(leaf)
        return result

    def _track(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self.alive:
            return

        def freed(_: object) -> None:
            if self.alive.pop(key, None) is not None:
                self.bytes -= size

        self.alive[key] = weakref.ref(storage, freed)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

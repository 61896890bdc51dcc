"""CUDA graphs: work is recorded once and replayed, since a small model's step is mostly the time to launch kernels.

A recording reads parameters where they are, so it sees their updates; its inputs (images, labels, directions) are
copied to the tensors that it was recorded with. Work that cannot be recorded (it waits for the device, or draws from a
generator) is executed as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

PLAIN_RUNS = 2  # before a recording: libraries initialize themselves, and a shape that comes once is not recorded
RECORDING_STEPS = 2 * PLAIN_RUNS + 1  # steps until all is recorded, work on the results of another recording included


class MemoryPool:
    """The memory that recordings share: beside their inputs and results, they need no more than the largest of them."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin a new pool; recordings keep the one that they were made in."""
        self.handle = torch.cuda.graph_pool_handle()


class Recorder:
    """Runs calls of the same kind: the first few as they are, the others as replays of a recording."""

    def __init__(self, enabled: bool, pool: MemoryPool | None = None) -> None:
        self.enabled = enabled and torch.cuda.is_available()
        self.pool = (pool or MemoryPool()) if self.enabled else None
        self.runs: dict[Hashable, int] = {}
        self.recordings: dict[Hashable, Recording | None] = {}  # None: it cannot be recorded

    def __call__(self, kind: Hashable, work: Callable[..., Any], *inputs: Tensor) -> Any:
        """`work(*inputs)`. The work may read, beside its inputs, only parameters in their place and, if this recorder
        came with a result of `run`, that result. The result of a replay may be overwritten by the next replay."""
        return self.run(kind, work, *inputs)[0]

    def run(self, kind: Hashable, work: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Recorder]:
        """The result of `work(*inputs)`, and the recorder of work that reads this result: one that is not enabled
        unless the result is that of a recording, since any other is at another address the next time."""
        recording = self._recording(kind, work, inputs)
        if recording is None:
            return work(*inputs), Recorder(enabled=False)
        for own, value in zip(recording.inputs, inputs, strict=True):
            own.copy_(value)
        recording.graph.replay()
        return recording.result, recording.readers

    def _recording(self, kind: Hashable, work: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Recording | None:
        if self.pool is None or not self.enabled or any(value.device.type != "cuda" for value in inputs):
            return None
        key = (kind, *((tuple(value.shape), value.dtype) for value in inputs))
        self.runs[key] = self.runs.get(key, 0) + 1
        if self.runs[key] <= PLAIN_RUNS:
            return None
        if key not in self.recordings:
            with torch.cuda.device(inputs[0].device):
                self.recordings[key] = _record(work, inputs, self.pool)
            if self.recordings[key] is None:  # what failed may have left its pool unfit for others
                self.pool.renew()
        return self.recordings[key]

    def forget(self) -> None:
        """Free the memory of all recordings."""
        self.runs.clear()
        self.recordings.clear()
        if self.pool is not None:
            self.pool.renew()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, everything is executed as it is."""
        enabled, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = enabled


@dataclass
class Recording:
    """A graph with the tensors that it reads its inputs from and leaves its results in."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Any
    readers: Recorder  # of work that reads the result, which is always at the same address


def _record(work: Callable[..., Any], inputs: tuple[Tensor, ...], pool: MemoryPool) -> Recording | None:
    own = [value.clone() for value in inputs]
    stream, before = _side_stream(torch.cuda.current_device()), torch.cuda.current_stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):  # once beside the main stream, as recording needs it
        work(*own)
    before.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # other threads (one that pins batches of images) may go on calling the device meanwhile
        with torch.cuda.graph(graph, pool=pool.handle, stream=stream, capture_error_mode="thread_local"):
            result = work(*own)
    except torch.OutOfMemoryError:
        torch.cuda.set_stream(before)
        _end_allocation(pool)
        raise
    except RuntimeError:
        torch.cuda.set_stream(before)  # some versions of torch stay on the other stream
        torch.cuda.synchronize()
        _end_allocation(pool)
        return None
    return Recording(graph, own, result, Recorder(True, pool))


def _end_allocation(pool: MemoryPool) -> None:
    """After a recording that failed: else the allocator goes on as if it were still being made, and frees nothing."""
    with suppress(RuntimeError):  # it may have ended by itself
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool.handle)


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Where all recordings are made: cuBLAS keeps a workspace (32 MiB on some devices) for every stream it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

"""Work on a CUDA device recorded once and replayed: a small model's step is mostly the time it takes to launch kernels.

A recording reads parameters where they are, so it sees them moved; images and directions are copied to where it was
recorded with them. What cannot be recorded (it waits for the device, or draws from a generator) is done as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

PLAIN_RUNS = 2  # before a recording: libraries set themselves up, and a shape that comes once is not recorded
SETTLED = 2 * PLAIN_RUNS + 1  # steps until all is recorded, with what works on the results of another recording


@dataclass
class Recording:
    """A graph with the tensors that it reads its inputs from and leaves its results in."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Any


class Recorder:
    """Calls of the same kind: the first few as they are, the others replayed. All recordings work in the same memory,
    so that beside their inputs and results they need no more of it than the largest."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled and torch.cuda.is_available()
        self.pool = torch.cuda.graph_pool_handle() if self.enabled else None
        self.seen: dict[Hashable, int] = {}
        self.recordings: dict[Hashable, Recording | None] = {}  # None: it cannot be recorded

    def __call__(self, kind: Hashable, work: Callable[..., Any], *inputs: Tensor) -> Any:
        """`work(*inputs)`, which reads nothing else that changes but parameters in their place, and results of the
        replay just before. The result of a replay may be overwritten by the next one."""
        if not self.enabled or any(value.device.type != "cuda" for value in inputs):
            return work(*inputs)
        key = (kind, *((tuple(value.shape), value.dtype) for value in inputs))
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= PLAIN_RUNS:
            return work(*inputs)
        if key not in self.recordings:
            with torch.cuda.device(inputs[0].device):
                self.recordings[key] = _record(work, inputs, self.pool)
            if self.recordings[key] is None:  # what failed may have left its pool unfit for others
                self.pool = torch.cuda.graph_pool_handle()
        recording = self.recordings[key]
        if recording is None:
            return work(*inputs)
        for own, given in zip(recording.inputs, inputs, strict=True):
            own.copy_(given)
        recording.graph.replay()
        return recording.result

    def forget(self) -> None:
        """Give the memory of all recordings back."""
        self.seen.clear()
        self.recordings.clear()
        self.pool = torch.cuda.graph_pool_handle() if self.enabled else None

    def keeps(self, part: Any) -> bool:
        """Whether this is (the first part of) what a recording leaves its results in."""
        kept = (recording.result for recording in self.recordings.values() if recording is not None)
        return any(isinstance(result, tuple) and result[0] is part for result in kept)


def _record(work: Callable[..., Any], inputs: tuple[Tensor, ...], pool: Any) -> Recording | None:
    own = [value.clone() for value in inputs]
    stream = _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # once beside the main stream, as recording needs it
        work(*own)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # other threads (one that pins batches of images) may go on calling the device meanwhile
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            result = work(*own)
    except torch.OutOfMemoryError:
        _let_go(pool)
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        _let_go(pool)
        return None
    return Recording(graph, own, result)


def _let_go(pool: Any) -> None:
    """Of a recording that failed: else the allocator goes on as if one were being made, and frees nothing later on."""
    with suppress(RuntimeError):  # it may have ended by itself
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Where all recordings are made: cuBLAS keeps a workspace (32 MiB on some devices) for every stream it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

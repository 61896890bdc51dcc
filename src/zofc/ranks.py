"""The processes that train one run together, as `torchrun` starts them: how work is divided over them, what they
exchange, and how many bytes that is.

Every rank runs the same program on the same stream. It evaluates its own part of each batch, exchanges a few numbers
and then takes the same step as all others, so that parameters never travel. One process alone exchanges nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from zofc.errors import RanksError, RankStopped

MINUTES = 10.0  # without an answer, after which a rank gives up, unless training.rank_wait says otherwise
TENSOR_TYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.uint8)
MOST_AXES = 6  # of a tensor that is gathered
_T = TypeVar("_T")


class Share(NamedTuple):
    """What one rank has of a whole."""

    where: slice
    whole: int
    weight: float  # in a mean over the whole; 0 if it stands in for a part that would be empty


@runtime_checkable
class Divisible(Protocol):
    """Batches of which some can be made without the others."""

    def every(self, start: int, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Each `step`-th batch from number `start` on."""


class Ranks:
    """One process alone: nothing is divided and nothing travels."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()  # bytes of what was exchanged, by purpose

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and prints."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether nothing has to travel. A process group of one rank is not alone: what it sums passes through it."""
        return True

    def part(self, whole: int) -> Share:
        """The rank's part of so many images or queries, in one piece. Where there are fewer of them than ranks, the
        ranks without one evaluate the first with weight 0, so that all do the same."""
        each, more = divmod(whole, self.size)
        start = self.rank * each + min(self.rank, more)
        stop = start + each + (self.rank < more)
        return (
            Share(slice(start, stop), whole, (stop - start) / whole) if stop > start else Share(slice(0, 1), whole, 0)
        )

    def sum(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums of tensors over all ranks, in one message of the first one's type; their names are purposes."""
        return dict(parts)

    def in_order(
        self, batches: Iterable[tuple[Tensor, Tensor]], work: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`work(images)` and the labels of all batches, in order; each batch is worked on by one rank."""
        return ((work(images), labels) for images, labels in batches)

    def own(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches that are this rank's."""
        if isinstance(batches, Divisible):
            return batches.every(self.rank, self.size)
        return islice(batches, self.rank, None, self.size)

    def differing(self, digest: bytes) -> list[int]:
        """The ranks whose digest (16 bytes) is not that of the first one."""
        del digest
        return []

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return flag

    def any_before(self, flag: bool) -> bool:
        """Whether the flag was set on any rank at the call before this one; answered without waiting, where the
        ranks' steps take longer than a message. One process alone knows at once."""
        return flag

    def least(self, number: int) -> int:
        """The smallest number of all ranks."""
        return number

    def text_of_first(self, text: str) -> str:
        """The text that the first rank gives."""
        return text


class ProcessRanks(Ranks):
    """A process of several, in torch's default process group: gloo for tensors of the CPU, NCCL for those of CUDA."""

    def __init__(self, minutes: float = MINUTES) -> None:
        super().__init__()
        self.rank, self.size, self.minutes = dist.get_rank(), dist.get_world_size(), minutes
        self._pending: tuple[Any, Tensor] | None = None

    @property
    def alone(self) -> bool:
        """Never, even as the only one of its group."""
        return False

    def sum(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One all-reduce. All ranks get the same bits: each number is added up in one place."""
        lead = next(iter(parts.values()))
        device = lead.device if lead.device.type == "cuda" else torch.device("cpu")
        message = torch.cat([value.detach().reshape(-1).to(device, lead.dtype) for value in parts.values()])
        self._exchange(lambda: dist.all_reduce(message))
        for name, value in parts.items():
            self.sent[name] += value.numel() * message.element_size()
        pieces = torch.split(message, [value.numel() for value in parts.values()])
        return {
            name: piece.reshape(value.shape).to(value.device)
            for (name, value), piece in zip(parts.items(), pieces, strict=True)
        }

    def in_order(
        self, batches: Iterable[tuple[Tensor, Tensor]], work: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batch k is worked on by rank k mod size, as a whole: its result has the bits that one process gets."""
        own = self.own(batches)
        while True:
            batch = next(own, None)
            mine = None if batch is None else (work(batch[0]).detach(), batch[1])
            values = self._gather(None if mine is None else mine[0])
            labels = self._gather(None if mine is None else mine[1])
            for value, label in zip(values, labels, strict=True):
                if value is None or label is None:
                    return
                yield value, label

    def _gather(self, value: Tensor | None) -> list[Tensor | None]:
        """A tensor of each rank, of any shape, or None of a rank that has none."""
        header = torch.full((MOST_AXES + 2,), -1)
        if value is not None:
            header[: value.dim() + 2] = torch.tensor([TENSOR_TYPES.index(value.dtype), value.dim(), *value.shape])
        headers = self._all(header, "features")
        shapes = [None if head[0] < 0 else tuple(head[2 : 2 + int(head[1])].tolist()) for head in headers]
        sizes = [0 if shape is None else torch.Size(shape).numel() for shape in shapes]
        kinds = [TENSOR_TYPES[int(head[0])] for head in headers if head[0] >= 0]
        if not kinds:
            return [None] * self.size
        padded = torch.zeros(max(*sizes, 1), dtype=kinds[0])  # on the CPU, where all that reads it goes on
        if value is not None:
            padded[: value.numel()] = value.reshape(-1).cpu()
        return [
            None if shape is None else flat[:size].reshape(shape)
            for flat, shape, size in zip(self._all(padded, "features"), shapes, sizes, strict=True)
        ]

    def differing(self, digest: bytes) -> list[int]:
        """All digests travel to all ranks."""
        own, *others = self._all(torch.tensor(list(digest), dtype=torch.uint8), "checksums")
        return [rank for rank, other in enumerate(others, start=1) if not torch.equal(own, other)]

    def any(self, flag: bool) -> bool:
        """One small all-reduce."""
        value = torch.tensor([int(flag)])
        self._agree(lambda: dist.all_reduce(value), value)
        return bool(value)

    def any_before(self, flag: bool) -> bool:
        """The all-reduce of a call is finished at the next one."""
        before, value = self._pending, torch.tensor([int(flag)])
        work = self._exchange(lambda: dist.all_reduce(value, async_op=True))
        self._pending = work, value
        self.sent["stop requests"] += value.element_size()
        if before is None:
            return False
        self._exchange(before[0].wait)
        return bool(before[1])

    def least(self, number: int) -> int:
        """One small all-reduce."""
        value = torch.tensor([number])
        self._agree(lambda: dist.all_reduce(value, op=dist.ReduceOp.MIN), value)
        return int(value)

    def text_of_first(self, text: str) -> str:
        """Its length, then its bytes."""
        content = text.encode() if self.first else b""
        length = torch.tensor([len(content)])
        self._agree(lambda: dist.broadcast(length, 0), length)
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.first:
            letters = torch.tensor(list(content), dtype=torch.uint8)
        self._agree(lambda: dist.broadcast(letters, 0), letters)
        return bytes(letters.tolist()).decode()

    def _all(self, value: Tensor, what: str) -> list[Tensor]:
        """Equally large tensors of all ranks, of which this rank gives one."""
        received = [torch.empty_like(value) for _ in range(self.size)]
        self._exchange(lambda: dist.all_gather(received, value))
        self.sent[what] += value.nbytes
        return received

    def _agree(self, message: Callable[[], object], value: Tensor) -> None:
        """Exchange a value that is no part of a step."""
        self._exchange(message)
        self.sent["agreements"] += value.nbytes

    def _exchange(self, message: Callable[[], _T]) -> _T:
        try:
            return message()
        except RuntimeError as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise RankStopped(self._explain(why)) from None

    def _explain(self, why: str) -> str:
        """What an exchange that failed means, by what torch says of it."""
        if "timed out" in why.lower() or "timeout" in why.lower():
            return (
                f"rank {self.rank} of {self.size} has waited {self.minutes:g} minutes for another process of this run, "
                f"which hangs or is slower ({why}). training.rank_wait=MINUTES waits longer"
            )
        return (
            f"rank {self.rank} of {self.size} lost another process of this run, whose message says why, or which was "
            f"killed ({why})"
        )


def several_processes() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def join_ranks(minutes: float = MINUTES) -> Iterator[Ranks]:
    """The ranks that this process belongs to, by the environment that `torchrun` sets; itself alone without one. Each
    waits so many minutes for an answer of the others."""
    if not several_processes():
        yield Ranks()
        return
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(minutes=minutes)))
    except (RuntimeError, ValueError) as error:
        raise RanksError(f"the processes that torchrun started do not find each other: {error}") from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # addresses of processes that are gone stay in it
    with join_group(PrefixStore(f"zofc restart {attempt}", store), rank, size, minutes) as ranks:
        yield ranks


@contextmanager
def join_group(store: Store, rank: int = 0, size: int = 1, minutes: float = MINUTES) -> Iterator[ProcessRanks]:
    """The ranks that meet in a store; even one alone makes a group, whose sums pass through gloo or NCCL."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(minutes=minutes))
    except (RuntimeError, ValueError) as error:
        raise RanksError(f"the processes that torchrun started do not find each other: {error}") from error
    yield ProcessRanks(minutes)
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone

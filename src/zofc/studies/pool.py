"""Job in several processes that stop, and save what they are at, with the process that began them.

A process that is killed takes no other with it: its item is worked once more, with nothing beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar

from zofc.data.source import remember_sources
from zofc.errors import Interrupted
from zofc.training.signals import StopRequest, stop_signals

STOPPED = "stopped and saved; the same command goes on from there"
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Killed:
    """In place of a result: how the process ended that was to find it."""

    status: int  # minus the number of a signal

    def __str__(self) -> str:
        if self.status >= 0:
            return f"its process ended (status {self.status})"
        memory = ": perhaps out of memory; training.memory=auto bounds what a step takes"
        return f"its process was killed (signal {-self.status}), alone too{memory * (self.status == -signal.SIGKILL)}"


def _anywhere(seat: int) -> None:
    """For processes that are all the same."""


def in_processes(
    work: Callable[[T], R], items: Sequence[T], workers: int, sit: Callable[[int], None] = _anywhere
) -> Iterator[tuple[int, R | Killed]]:
    """`work` of every item, with its number, as they come; at last of those whose process was killed, one at a time. A
    process begins with `sit`, given its number among those that are there at the same time."""
    again = []
    with stop_signals() as asked:
        for number, found in _worked(work, dict(enumerate(items)), workers, asked, sit):
            if isinstance(found, Killed):
                again.append(number)
            else:
                yield number, found
        for number in again:
            yield from _worked(work, {number: items[number]}, 1, asked, sit)


def _worked(
    work: Callable[[T], R], items: Mapping[int, T], workers: int, asked: StopRequest, sit: Callable[[int], None]
) -> Iterator[tuple[int, R | Killed]]:
    """The items' results by their numbers; where a process was killed, that it was. Another takes its place."""
    left, team = deque(items), list[_Worker[T, R]]()
    try:
        while True:
            while left and (idle := next((worker for worker in team if worker.at is None), None)):
                idle.begin(number := left.popleft(), items[number])
            while left and len(team) < workers:
                free = min(set(range(workers)) - {worker.seat for worker in team})
                team.append(_Worker(work, sit, free))
                team[-1].begin(number := left.popleft(), items[number])
            busy = {worker: worker.at for worker in team if worker.at is not None}
            if not busy:
                return
            wait([worker.line for worker in busy], timeout=0.2)
            for worker, number in busy.items():
                result = worker.result()
                if result is not None:
                    if isinstance(result[0], Killed):
                        team.remove(worker)
                    yield number, result[0]
            if asked.stop:
                raise Interrupted(STOPPED)
    finally:
        for worker in team:
            worker.line.close()  # those at work save first, no other begins
        for worker in team:
            worker.process.join()


class _Worker(Generic[T, R]):
    """A process, with the number of the item that it is at."""

    def __init__(self, work: Callable[[T], R], sit: Callable[[int], None], seat: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.at: int | None = None
        self.seat = seat
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(work, theirs, sit, seat))
        with theirs, _unheard():
            self.process.start()

    def begin(self, number: int, item: T) -> None:
        self.at = number
        with suppress(OSError):  # it is gone, which is seen when its result is asked for
            self.line.send(item)

    def result(self) -> tuple[R | Killed] | None:
        """What it has found, once it has; what was raised there is raised here."""
        alive = self.process.is_alive()  # asked first: what it sent before it ended counts
        try:
            sent = self.line.recv() if self.line.poll() else None
        except (EOFError, OSError):
            alive, sent = False, None
        if sent is not None:
            self.at, (found, error) = None, sent
            if error is not None:
                raise error
            return (found,)
        if alive:
            return None
        self.process.join()
        return (Killed(self.process.exitcode or 0),)


@contextmanager
def _unheard() -> Iterator[None]:
    """A process that is started here does not hear Ctrl-C; it reaches this one afterwards."""
    resource_tracker.ensure_running()  # whose own start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- inside a worker -------------------------------------------------------------------------------------------------

_stopping, _at_work = threading.Event(), threading.Event()


def _serve(work: Callable[[Any], Any], line: Connection, sit: Callable[[int], None], seat: int) -> None:
    """A worker stops what it is at when the other end of its line is closed, or that process gone. A terminal's own
    signal reaches that process alone: a worker that got both would not wait to save."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what came while it was starting
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _stop)
    multiprocessing.set_start_method(None, force=True)  # else those who load its images would begin as slowly as it did
    remember_sources()
    sit(seat)
    items: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    threading.Thread(target=_listen, args=(line, items), daemon=True).start()
    with suppress(Interrupted, OSError):
        while item := items.get():
            line.send(_done(work, *item))


def _stop(_number: int, _frame: FrameType | None) -> None:
    """Where nothing is trained yet that could be saved (training has a handler of its own)."""
    if _at_work.is_set():
        raise Interrupted("stopped before it began")


def _listen(line: Connection, items: SimpleQueue[tuple[Any, ...]]) -> None:
    with suppress(EOFError, OSError):
        while True:
            items.put((line.recv(),))
    _stopping.set()
    items.put(())
    if _at_work.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def _done(work: Callable[[Any], Any], item: Any) -> tuple[Any, Exception | None]:
    _at_work.set()
    try:
        if _stopping.is_set():
            raise Interrupted("not begun")
        return work(item), None
    except Exception as error:
        return None, error
    finally:
        _at_work.clear()

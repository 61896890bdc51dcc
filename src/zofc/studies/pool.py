"""Work on items in several processes, which save and stop when the process that started them is interrupted or gone.

A killed process does not affect the others: its item is tried once more, with no other process running.
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

from zofc.data.source import remembered_sources
from zofc.errors import Interrupted
from zofc.training.signals import StopRequest, stop_signals

STOPPED = "stopped and saved; the same command goes on from there"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Killed:
    """In place of a result: how the process ended."""

    status: int  # minus the number of a signal

    def __str__(self) -> str:
        if self.status >= 0:
            return f"its process ended (status {self.status})"
        memory = ": perhaps out of memory; training.memory=auto bounds what a step takes"
        return f"its process was killed (signal {-self.status}), alone too{memory * (self.status == -signal.SIGKILL)}"


def _no_setup(seat: int) -> None:
    """For processes that are all the same."""


def in_processes(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    workers: int,
    set_up: Callable[[int], None] = _no_setup,
) -> Iterator[tuple[int, _Result | Killed]]:
    """The number of each item and `work(item)`, in the order of completion; items whose process was killed come last,
    one at a time. Each process first calls `set_up` with its seat, a number below `workers` that no other process has
    at the same time."""
    retries = []
    with stop_signals() as request:
        for number, result in _run(work, dict(enumerate(items)), workers, request, set_up):
            if isinstance(result, Killed):
                retries.append(number)
            else:
                yield number, result
        for number in retries:
            yield from _run(work, {number: items[number]}, 1, request, set_up)


def _run(
    work: Callable[[_Item], _Result],
    items: Mapping[int, _Item],
    workers: int,
    request: StopRequest,
    set_up: Callable[[int], None],
) -> Iterator[tuple[int, _Result | Killed]]:
    """The results by the items' numbers; a killed process is replaced."""
    left, team = deque(items), list[_Worker[_Item, _Result]]()
    try:
        while True:
            while left and (idle := next((worker for worker in team if worker.number is None), None)):
                idle.begin(number := left.popleft(), items[number])
            while left and len(team) < workers:
                free = min(set(range(workers)) - {worker.seat for worker in team})
                team.append(_Worker(work, set_up, free))
                team[-1].begin(number := left.popleft(), items[number])
            busy = {worker: worker.number for worker in team if worker.number is not None}
            if not busy:
                return
            wait([worker.connection for worker in busy], timeout=0.2)
            for worker, number in busy.items():
                result = worker.result()
                if result is not None:
                    if isinstance(result[0], Killed):
                        team.remove(worker)
                    yield number, result[0]
            if request.stop:
                raise Interrupted(STOPPED)
    finally:
        for worker in team:
            worker.connection.close()  # busy workers save first, the others do not begin
        for worker in team:
            worker.process.join()


class _Worker(Generic[_Item, _Result]):
    """A process, with the number of the item that it works on."""

    def __init__(self, work: Callable[[_Item], _Result], set_up: Callable[[int], None], seat: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.number: int | None = None
        self.seat = seat
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(work, theirs, set_up, seat))
        with theirs, _interrupts_blocked():
            self.process.start()

    def begin(self, number: int, item: _Item) -> None:
        self.number = number
        with suppress(OSError):  # the process is gone, which `result` will notice
            self.connection.send(item)

    def result(self) -> tuple[_Result | Killed] | None:
        """The result, None while there is none; an exception of the worker is raised here."""
        alive = self.process.is_alive()  # asked first: what it sent before it ended counts
        try:
            message = self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            alive, message = False, None
        if message is not None:
            self.number, (result, error) = None, message
            if error is not None:
                raise error
            return (result,)
        if alive:
            return None
        self.process.join()
        return (Killed(self.process.exitcode or 0),)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C does not reach a process started in the block; this process gets it afterwards."""
    resource_tracker.ensure_running()  # whose own start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- inside a worker -------------------------------------------------------------------------------------------------


def _serve(work: Callable[[Any], Any], connection: Connection, set_up: Callable[[int], None], seat: int) -> None:
    """Work on items until the other end of the connection is closed or its process gone. The terminal's own Ctrl-C
    reaches that process alone: a worker that got both signals would not wait to save."""
    server = _Server(connection)
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what came while the process was starting
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, server.stop)
    multiprocessing.set_start_method(None, force=True)  # else its own image loaders would start as slowly as it did
    set_up(seat)
    threading.Thread(target=server.listen, daemon=True).start()
    with remembered_sources(), suppress(Interrupted, OSError):
        while item := server.items.get():
            connection.send(server.answer(work, *item))


class _Server:
    """The items that a worker has received, and whether it works or has to stop."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.items: SimpleQueue[tuple[Any, ...]] = SimpleQueue()  # (): no more will come
        self.stopping, self.working = threading.Event(), threading.Event()

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal before training has begun, which has a handler of its own."""
        if self.working.is_set():
            raise Interrupted("stopped before it began")

    def listen(self) -> None:
        """Receive items until the connection is closed, then stop the work in progress."""
        with suppress(EOFError, OSError):
            while True:
                self.items.put((self.connection.recv(),))
        self.stopping.set()
        self.items.put(())
        if self.working.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def answer(self, work: Callable[[Any], Any], item: Any) -> tuple[Any, Exception | None]:
        """The result or the error of an item."""
        self.working.set()
        try:
            if self.stopping.is_set():
                raise Interrupted("not begun")
            return work(item), None
        except Exception as error:
            return None, error
        finally:
            self.working.clear()

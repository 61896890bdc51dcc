"""Work in several processes that stop, and save what they are at, with the process that began them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing.connection import Connection
from typing import TypeVar

from zofc.data.source import remember_sources
from zofc.errors import Interrupted
from zofc.training.signals import stop_signals

T = TypeVar("T")
R = TypeVar("R")


def in_processes(work: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[tuple[int, R]]:
    """`work` of every item, with its number, as they come."""
    context = multiprocessing.get_context("spawn")
    asks, asking = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, _begin, (asks,))
    with asking, stop_signals() as asked:
        try:
            given = {pool.submit(_do, work, item): number for number, item in enumerate(items)}
            left = set(given)
            while left:
                done, left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    yield given[future], future.result()
                if asked.stop:
                    raise Interrupted("stopped and saved; the same command goes on from there")
        finally:
            asking.close()  # those at work save first, no other begins
            pool.shutdown(wait=True, cancel_futures=True)


# -- inside a worker -------------------------------------------------------------------------------------------------

_stopping = threading.Event()


def _begin(asks: Connection) -> None:
    """A worker stops, as a signal would make it, when the other end of `asks` is closed or its process gone. A
    terminal's own signal reaches that process alone: a worker that got both would not wait to save."""
    os.setpgrp()
    remember_sources()
    threading.Thread(target=_stop_when_closed, args=(asks,), daemon=True).start()


def _stop_when_closed(asks: Connection) -> None:
    asks.poll(None)
    _stopping.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _do(work: Callable[[T], R], item: T) -> R:
    if _stopping.is_set():  # a pool hands out one item more than it can take back
        raise Interrupted("not begun")
    try:
        return work(item)
    except Interrupted:
        parent = multiprocessing.parent_process()
        if parent is None or not parent.is_alive():  # nobody is left who would end this process
            os._exit(1)
        raise

"""Work in several processes that stop, and save what they are at, with the process that began them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from types import FrameType
from typing import TypeVar

from zofc.data.source import remember_sources
from zofc.errors import Interrupted, RunError
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
        except BrokenProcessPool:
            raise RunError(
                "a worker was killed, perhaps for want of memory: take fewer at a time. The same command goes on from "
                "what is finished."
            ) from None
        finally:
            asking.close()  # those at work save first, no other begins
            pool.shutdown(wait=True, cancel_futures=True)


# -- inside a worker -------------------------------------------------------------------------------------------------

_stopping, _at_work = threading.Event(), threading.Event()


def _begin(asks: Connection) -> None:
    """A worker stops what it is at when the other end of `asks` is closed, or its process gone. A terminal's own signal
    reaches that process alone: a worker that got both would not wait to save."""
    os.setpgrp()
    multiprocessing.set_start_method(None, force=True)  # else those who load its images would begin as slowly as it did
    signal.signal(signal.SIGTERM, _stop)
    remember_sources()
    threading.Thread(target=_listen, args=(asks,), daemon=True).start()


def _stop(number: int, frame: FrameType | None) -> None:
    """Where nothing is trained yet that could be saved (training has a handler of its own)."""
    if _at_work.is_set():
        raise Interrupted("stopped before it began")


def _listen(asks: Connection) -> None:
    asks.poll(None)
    _stopping.set()
    if _at_work.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # who would end this process, after its work
    while _at_work.is_set():
        time.sleep(0.05)
    os._exit(1)


def _do(work: Callable[[T], R], item: T) -> R:
    _at_work.set()
    try:
        if _stopping.is_set():  # a pool hands out one item more than it can take back
            raise Interrupted("not begun")
        return work(item)
    finally:
        _at_work.clear()

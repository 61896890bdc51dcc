"""`zofc watch`: a run is shown until it is over, live in a terminal and by plain lines elsewhere."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from zofc.errors import RunError
from zofc.report.live import Follower, RunView
from zofc.report.terminal import ENDLESS, describe, print_line, run_picture
from zofc.runfolder import Run, newest_run
from zofc.runfolder.events import Event

Show = Callable[[Follower | None, Sequence[Event], float], None]  # a run, its new events, the time


def watch_run(
    path: Path,
    console: Console,
    once: bool = False,
    every: float = 0.5,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Show a run until it is over, or with `once` its present state; returns whether it is finished, or with `once`
    whether there is a run. Leaving by Ctrl-C is fine."""
    if Run(path).saved:
        lists = f"zofc show {shlex.quote(str(path))} lists its classes"
        print_line(console, f"{path} is a saved model, nothing runs there; {lists}")
        return True
    if once:
        folder = newest_run(path)
        if folder is None:
            raise RunError(f"{path}: no run folder there, nor below it")
        follower = Follower(folder)
        follower.read()
        follower.check_process(clock())
        _print_picture(console, follower, clock())
        print_line(console, follower.view.closing if follower.view.over else None)
        return True
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                view = _follow(path, partial(_redraw, live, path), every, clock, sleep)
        else:
            view = _follow(path, _Lines(console, path).show, every, clock, sleep)
    except KeyboardInterrupt:
        return True
    print_line(console, view.closing)
    return view.status == "finished"


def _redraw(live: Live, path: Path, follower: Follower | None, _events: Sequence[Event], now: float) -> None:
    waiting = Text(f"waiting for a run at {path}", style="dim")
    size = live.console.size
    live.update(_picture(follower, size.width, size.height, now) if follower else waiting, refresh=True)


class _Lines:
    """A run by lines. One that had begun before is first shown as it stands, instead of all that happened."""

    def __init__(self, console: Console, path: Path) -> None:
        self.console, self.path = console, path
        self.waited = self.begun = self.warned = False

    def show(self, follower: Follower | None, events: Sequence[Event], now: float) -> None:
        begun = bool(follower and follower.view.header)
        met = begun and not (self.waited or self.begun)
        if not begun and not self.waited:
            print_line(self.console, f"waiting for a run at {self.path}")
        self.waited, self.begun = self.waited or not begun, self.begun or begun
        if follower is None:
            return
        if met:
            _print_picture(self.console, follower, now)
        for event in () if met else events:
            print_line(self.console, describe(event, follower.view))
        if not self.warned and (text := follower.warning(now)):
            print_line(self.console, text)
            self.warned = True


def _follow(
    path: Path, show: Show, every: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> RunView:
    follower: Follower | None = None
    while True:
        follower, now = _current(path, follower), clock()
        events = follower.read() if follower is not None else []
        if follower is not None:
            follower.check_process(now)
        show(follower, events, now)
        if follower is not None and follower.view.over:
            return follower.view
        sleep(every)


def _current(path: Path, follower: Follower | None) -> Follower | None:
    """The run to follow: the newest one until it has begun, then that one until it is over."""
    if follower is not None and follower.view.header:
        if not follower.folder.is_dir():
            raise RunError(f"{follower.folder} is gone: was it removed or renamed?")
        return follower
    folder = newest_run(path)
    if folder is None:
        return None
    return follower if follower is not None and follower.folder == folder else Follower(folder)


def _picture(follower: Follower, width: int, height: int, now: float) -> RenderableType:
    return run_picture(follower.view, width, height, now, follower.warning(now))


def _print_picture(console: Console, follower: Follower, now: float) -> None:
    console.print(_picture(follower, console.width, ENDLESS, now), highlight=False)

"""`zofc watch`: a run is shown until it is over, live in a terminal and by plain lines elsewhere."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from zofc.errors import RunError
from zofc.report.live import Follower
from zofc.report.terminal import ENDLESS, describe, shown
from zofc.runfolder import Run, newest_run


def watch_run(
    path: Path,
    console: Console,
    once: bool = False,
    every: float = 0.5,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Show a run until it is over, live in a terminal and by plain lines elsewhere; whether it is finished, or with
    `once` whether there is something to show. Leaving by Ctrl-C is fine."""
    if Run(path).saved:
        _say(
            console,
            f"{path} is a saved model, nothing runs there; zofc show {shlex.quote(str(path))} lists its classes",
        )
        return True
    if once:
        folder = newest_run(path)
        if folder is None:
            raise RunError(f"{path}: no run folder there, nor below it")
        follower = Follower(folder)
        follower.read()
        follower.check_process(clock())
        _show(follower, console, clock())
        return True
    try:
        follow = _follow_live if console.is_terminal else _follow_plainly
        return follow(path, console, every, clock, sleep)
    except KeyboardInterrupt:
        return True


def _follow_live(
    path: Path, console: Console, every: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    follower: Follower | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            follower = _taken_up(path, follower)
            now = clock()
            picture: RenderableType = Text(f"waiting for a run at {path}", style="dim")
            if follower is not None:
                follower.read()
                follower.check_process(now)
                picture = shown(follower, console.width, console.height, now)
            live.update(picture, refresh=True)
            if follower is not None and follower.view.over:
                break
            sleep(every)
    _say(console, follower.view.closing)
    return follower.view.status == "finished"


def _follow_plainly(
    path: Path, console: Console, every: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    follower: Follower | None = None
    waited = warned = met = False
    while True:
        follower = _taken_up(path, follower)
        events = follower.read() if follower is not None else []
        begun = follower is not None and bool(follower.view.header)
        if not begun and not waited:
            _say(console, f"waiting for a run at {path}")
            waited = True
        if follower is not None and begun:
            follower.check_process(clock())
        if follower is not None and begun and not met and not waited:  # where it stands, instead of all that was before
            _show(follower, console, clock())
            if follower.view.over:
                return follower.view.status == "finished"
        elif follower is not None:
            for text in (describe(event, follower.view) for event in events):
                if text:
                    _say(console, text)
        if follower is not None and begun:
            met = True
            if follower.view.over:
                _say(console, follower.view.closing)
                return follower.view.status == "finished"
            if not warned and (text := follower.warning(clock())):
                _say(console, text)
                warned = True
        sleep(every)


def _show(follower: Follower, console: Console, now: float) -> None:
    console.print(shown(follower, console.width, ENDLESS, now), highlight=False)
    if follower.view.over:
        _say(console, follower.view.closing)


def _say(console: Console, text: str) -> None:
    """On one line, however long: there may be a command in it to be copied."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _taken_up(path: Path, follower: Follower | None) -> Follower | None:
    """The run to follow: the newest one until it has begun, then that one until it is over."""
    if follower is not None and follower.view.header:
        if not follower.folder.is_dir():
            raise RunError(f"{follower.folder} is gone: was it removed or renamed?")
        return follower
    folder = newest_run(path)
    if folder is None:
        return None
    return follower if follower is not None and follower.folder == folder else Follower(folder)

"""A command in a process of its own: forked from this one, which has imported everything, and held to limits.

A fork is ready in milliseconds where a new interpreter would import torch for seconds. The child leads a session of its
own, so that whatever it starts can be found and ended with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import gc
import io
import multiprocessing.util
import os
import pkgutil
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal, NoReturn

Job = Callable[[], object]  # what a child does; an int is its exit status
Excess = Literal["", "time", "memory"]
PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_SECONDS = 0.02
SESSION_SECONDS = 0.5  # between two looks at all processes of a session
OUTPUT_BYTES = 4 * 2**20  # of what a command prints; more is cut
REACHED = "torture: tried to reach"  # what a child prints when it opens a connection to another machine
QUIET_MODULES = ("zofc.evidence", "zofc.__main__")  # not imported: no command needs them


@dataclass(frozen=True)
class Limits:
    """What a command may take."""

    seconds: float = 30.0
    memory: int = 4 * 2**30  # resident bytes of all its processes


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int  # exit status, or minus the number of the signal that ended it
    seconds: float
    peak: int  # resident bytes
    text: str  # standard output and error
    excess: Excess = ""  # which limit it was ended for


@dataclass
class Process:
    """A child that is running."""

    pid: int
    output: Path
    started: float = field(default_factory=time.monotonic)
    peak: int = 0
    excess: Excess = ""
    _looked: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started

    def is_running(self, patience: float = 0.0) -> bool:
        """Whether it is still running after so many seconds, or until then if it ends before."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return not poll.poll(1000 * patience)
        finally:
            os.close(handle)

    def send(self, number: signal.Signals, session: bool = False) -> None:
        """Send a signal to the process, or to all of its session."""
        for pid in session_members(self.pid) if session else [self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def measure(self) -> int:
        """Resident bytes now: of the process, and now and then of all its session."""
        now = time.monotonic()
        pids = [self.pid]
        if now - self._looked > SESSION_SECONDS:
            self._looked = now
            pids = session_members(self.pid)
        used = sum(map(resident, pids))
        self.peak = max(self.peak, used)
        return used

    def watch(self, limits: Limits, until: Callable[[Process], bool] | None = None) -> bool:
        """Wait until it ends, a limit is exceeded (it is then killed) or `until` is true; whether it is running."""
        while self.is_running(SAMPLE_SECONDS if self.seconds > SAMPLE_SECONDS else 0.005):
            if self.measure() > limits.memory and proportional(self.pid) > limits.memory:
                self.excess = "memory"
            elif self.seconds > limits.seconds:
                self.excess = "time"
            elif until is None or not until(self):
                continue
            else:
                return True
            self.send(signal.SIGKILL, session=True)
            self.is_running(5.0)
            return False
        return False

    def finish(self, limits: Limits | None = None) -> Outcome:
        """Wait for the end, end what is left of its session, and say how it went."""
        if limits is not None:
            self.watch(limits)
        seconds = self.seconds
        for pid in session_members(self.pid):  # before it is reaped: until then nobody else has its number
            if pid != self.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        reap_orphans()
        peak = max(self.peak, 1024 * usage.ru_maxrss)
        excess = self.excess or ("memory" if limits is not None and peak > limits.memory else "")
        self.output.touch()  # it may have been killed before its first line of code
        with self.output.open("rb") as file:
            text = file.read(OUTPUT_BYTES).decode("utf-8", "backslashreplace")
        return Outcome(os.waitstatus_to_exitcode(status), seconds, peak, text, excess)


# -- processes -------------------------------------------------------------------------------------------------------


def session_members(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 (Path objects for every process cost too much)
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[3]) == leader:
                    found.append(int(name))
    return found


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    try:
        return PAGE * int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return 0


def proportional(leader: int) -> int:
    """Resident bytes of a session, where pages that processes share are counted once."""
    total = 0
    for pid in session_members(leader):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total


def adopt_orphans() -> None:
    """Become the parent of processes that lose theirs, so that they can be waited for."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Collect processes that were adopted and have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if waiting is None or os.getsid(waiting.si_pid) == waiting.si_pid:  # a leader: `finish` collects it
                return
            os.waitpid(waiting.si_pid, 0)


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_override() -> None:
    """Let permissions of files count also for root, as they do for an ordinary user."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _CapHeader(0x20080522, 0), (_CapData * 2)()
    if libc.capget(ctypes.byref(header), ctypes.byref(data)) == 0:
        override = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        data[0].effective &= ~override
        data[0].permitted &= ~override
        libc.capset(ctypes.byref(header), ctypes.byref(data))


# -- starting --------------------------------------------------------------------------------------------------------


def warm_up() -> None:
    """Import what commands import, so that no child has to."""
    import torch

    import zofc

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(zofc.__path__, "zofc."):
        if not module.name.startswith(QUIET_MODULES) and not module.name.endswith(("__main__", "kernels")):
            import_module(module.name)
    for name in ("pyarrow.parquet", "matplotlib.pyplot", "plotly.graph_objects", "PIL.Image", "safetensors.torch"):
        import_module(name)
    adopt_orphans()
    gc.collect()
    gc.freeze()  # pages with objects that nobody collects stay shared


def environment(home: Path) -> dict[str, str]:
    """Variables of a child: whatever it keeps is below `home`, and the hub is not asked."""
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "ZOFC_CACHE": str(home / "zofc-cache"),
        "ZOFC_DATA": "",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(home),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }


def start(
    job: Job,
    folder: Path,
    output: Path,
    *,
    home: Path | None = None,
    rlimits: Mapping[int, int] | None = None,
    before: Sequence[Callable[[], object]] = (),
) -> Process:
    """Fork a child that does `job` in `folder`, with its output in a file; `before` is called in it first."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid == 0:
        _child(job, folder, output, home or folder, rlimits or {}, before)
    return Process(pid, output)


def _child(
    job: Job,
    folder: Path,
    output: Path,
    home: Path,
    rlimits: Mapping[int, int],
    before: Sequence[Callable[[], object]],
) -> NoReturn:
    """The whole life of a child; it never returns to the code that forked it."""
    status = 70
    try:
        os.setsid()
        atexit._clear()  # what the parent does at its end is not for the child to do
        atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
        faulthandler.disable()
        _redirect(output)
        os.chdir(folder)
        os.environ.update(environment(home))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _cut_network()
        drop_override()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for which, most in rlimits.items():
            resource.setrlimit(which, (most, most))
        for prepare in before:
            prepare()
        status = _call(job)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # an interpreter ignores it too, at its end
                stream.flush()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
        status = 70
    finally:
        os._exit(status)


def _call(job: Job) -> int:
    """The status that an interpreter would end with."""
    try:
        result = job()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 255
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return result & 255 if isinstance(result, int) else 0


def _redirect(output: Path) -> None:
    """Standard input from nothing, standard output and error to a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    for target in (1, 2):
        os.dup2(written, target)
    open_streams()


def open_streams() -> None:
    """The standard streams as an interpreter makes them of descriptors 0, 1 and 2."""
    outputs = [io.BufferedWriter(io.FileIO(number, "w", closefd=False)) for number in (1, 2)]
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(outputs[0], encoding="utf-8", errors="surrogateescape")
    sys.stderr = io.TextIOWrapper(outputs[1], encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _cut_network() -> None:
    """Refuse connections to other machines, and print that one was tried: no try gives a reason for it."""
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            os.write(2, f"{REACHED} {address}\n".encode())
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        connect(self, address)  # type: ignore[arg-type]

    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    if hub := sys.modules.get("huggingface_hub.constants"):  # else it reads the variable
        hub.__dict__["HF_HUB_OFFLINE"] = True


@contextlib.contextmanager
def running(process: Process) -> Iterator[Process]:
    """A process that does not outlive the block."""
    try:
        yield process
    finally:
        process.send(signal.SIGKILL, session=True)


def command(words: Sequence[str]) -> Job:
    """The job of `zofc WORDS`."""

    def job() -> None:
        from zofc.cli import main

        sys.argv = ["zofc", *words]
        main()

    return job

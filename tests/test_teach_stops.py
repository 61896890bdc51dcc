"""Facts about the end of `zofc teach`: Ctrl-C and SIGTERM, idle, in a lesson, with a page open, and a second time."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import zofc
from teach_client import Client, glyphs, served
from waiting import DEADLINE

pytestmark = pytest.mark.loopback
GLYPHS = glyphs(3, 16)
NAMES = list(GLYPHS)
LONG = ("backbone.name=embedded", "optimize.peft.epochs=2000")  # a lesson that ends by being cancelled


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with pictures of two classes that wait for a lesson."""
    run = tmp_path_factory.mktemp("stops") / "taught"
    with served(run, *LONG) as server:
        for name in NAMES[:2]:
            server.add(name, GLYPHS[name])
        stop(server, signal.SIGTERM)
    return run


def stop(server: Client, *signals: int) -> None:
    """Send signals to the server, which says its last sentence and ends well."""
    assert server.process is not None and server.process.stdout is not None
    for number in signals:
        server.process.send_signal(number)
        time.sleep(0.3)
    assert server.process.wait(DEADLINE) == 0
    said = server.process.stdout.read()
    assert "stopped; all that was taught is in" in said
    assert "Traceback" not in said and "terminate" not in said


def begin_lesson(server: Client) -> None:
    """Begin a lesson, and wait until its adapter is trained."""
    server.call("POST", "/lessons", expect=202)
    while (lesson := server.call("GET", "/status")["lesson"])["phase"] != "adapter" or not lesson["step"]:
        time.sleep(0.05)


def open_stream(server: Client) -> socket.socket:
    """A connection on which events of a lesson have begun to arrive."""
    stream = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    path = f"/api/v1/lessons/current/events?token={server.token}"
    stream.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    received = b""
    while b"event: progress" not in received:
        received += stream.recv(4096)
    return stream


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_server_stops_with_its_sentence(run: Path, number: int) -> None:
    with served(run) as server, socket.create_connection(("127.0.0.1", server.port)):
        stop(server, number)


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_a_lesson_is_cancelled_and_its_stream_ends(run: Path, signals: tuple[int, ...]) -> None:
    with served(run) as server:
        begin_lesson(server)
        with open_stream(server) as stream:
            stop(server, *signals)
            while stream.recv(4096):
                pass
    with served(run) as server:
        assert [one["kind"] for one in server.call("GET", "/lessons")] == []
        assert [one["pending"] for one in server.call("GET", "/classes")] == [16, 16]
    assert zofc.load(run).classes == ()


ENDING = """
import atexit, os, signal, sys
from zofc.teach.stopping import stopped_by_signals

def again():
    os.kill(os.getpid(), signal.SIGINT)

class Late:
    def __del__(self):  # modules are torn down: Python's own handlers are gone
        again()

with stopped_by_signals(lambda: None, lambda: print("said last", flush=True)):
    again()
if sys.argv[1] == "late":
    keep = Late()
elif sys.argv[1] == "between":
    again()
    print("not reached")
print("ended")
"""


@pytest.mark.parametrize(("when", "said"), [("between", "said last\n"), ("late", "ended\n")])
def test_a_second_signal_while_the_process_ends_is_no_crash(when: str, said: str) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING, when], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")

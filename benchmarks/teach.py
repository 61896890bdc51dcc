"""How fast `zofc teach` answers: predictions a second and their latency with 1 and 16 clients, with and without
lessons; and the first minute: seconds from starting it to a first lesson of two classes, step by step.

    python benchmarks/teach.py --out results/teach.json

The server is a process of its own, asked over a socket; each client sends one JPEG of 500 × 375 pixels at a time, over
a new connection. While a lesson is to run, one is made, undone and made again. All loads are measured one after the
other, several times over, and their answers taken together. Clients and server share the machine.
Backbones beside the embedded one are read from $ZOFC_DATA/backbones and left out where they are not there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from predict import BACKBONES, encoded_photo
from rich.console import Console
from rich.table import Table

from zofc.training.device import environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from teach_client import Client, glyphs, served

SHOWN = ("embedded", "vit_small_patch14_dinov2.safetensors")
FIRST_PICTURES, LATER_PICTURES = 10, 40  # of a class of the first lesson, and of the one taught again and again
CLIENTS = (1, 16)
Load = dict[str, Any]


def ask_until(server: Client, end: float, photo: bytes) -> list[float]:
    """Seconds of each answer that a client gets until a time."""
    found = []
    while (clock := time.perf_counter()) < end:
        answer = server.send("/predict", [("photo.jpg", photo)])
        assert answer[0]["answers"], answer
        found.append(time.perf_counter() - clock)
    return found


@contextmanager
def lessons(server: Client, wanted: bool) -> Iterator[list[float]]:
    """Lessons without a pause while the block runs, if they are wanted: the seconds of each, in all."""
    stop, seconds = Event(), list[float]()

    def teach() -> None:
        while not stop.is_set():
            seconds.append(float(server.teach()["seconds"]))
            server.call("POST", "/lessons/undo")

    with ThreadPoolExecutor(1) as pool:
        teaching = pool.submit(teach) if wanted else None
        try:
            yield seconds
        finally:
            stop.set()
            if teaching is not None:
                teaching.result()


@dataclass
class Answers:
    """What clients got under a load."""

    clients: int
    wanted: bool  # lessons
    times: list[float] = field(default_factory=list)  # seconds of each answer
    lessons: list[float] = field(default_factory=list)  # seconds of each
    rates: list[float] = field(default_factory=list)  # answers a second, of each measurement

    def describe(self) -> Load:
        """Answers a second and their latency."""
        middle, slow = (1000 * float(np.quantile(self.times, share)) for share in (0.5, 0.99))
        return {
            "clients": self.clients, "lessons": len(self.lessons), "answers": len(self.times),
            "answers_per_second": float(np.mean(self.rates)), "each": self.rates, "median_ms": middle, "p99_ms": slow,
            "lesson_s": float(np.mean(self.lessons)) if self.lessons else None,
        }  # fmt: skip


def measure_load(server: Client, load: Answers, seconds: float) -> None:
    """Measure a load once more."""
    photos = [encoded_photo(number) for number in range(load.clients)]
    with lessons(server, load.wanted) as made, ThreadPoolExecutor(load.clients) as pool:
        clock = time.perf_counter()
        times = list(pool.map(lambda photo: ask_until(server, clock + seconds, photo), photos))
        taken = time.perf_counter() - clock
    load.times += [one for each in times for one in each]
    load.rates.append(sum(map(len, times)) / taken)
    load.lessons += made


def measure(backbone: str, settings: list[str], seconds: float, repeats: int) -> dict[str, Any]:
    """All loads on a backbone, after a first lesson that is timed from the start of the command."""
    pictures = glyphs(3, LATER_PICTURES)
    names = list(pictures)
    clock = time.perf_counter()
    reached: dict[str, float] = {}  # seconds since the command

    def reach(step: str) -> None:
        reached[step] = time.perf_counter() - clock

    with tempfile.TemporaryDirectory() as folder, served(Path(folder) / "run", *settings) as server:
        reach("answering")
        for name in names[:2]:
            server.add(name, pictures[name][:FIRST_PICTURES])
        reach("pictures")
        server.teach()
        reach("taught")
        server.send("/predict", [("photo.jpg", encoded_photo(0))])
        reach("answer")
        learner = server.call("GET", "/status")["learner"]
        server.add(names[2], pictures[names[2]])
        ask_until(server, time.perf_counter() + 1, encoded_photo(0))
        loads = [Answers(clients, wanted) for wanted in (False, True) for clients in CLIENTS]
        for _ in range(repeats):
            for load in loads:
                measure_load(server, load, seconds)
    return {
        "backbone": backbone, "learner": learner, "first_lesson_s": reached["taught"], "first_minute": reached,
        "loads": [load.describe() for load in loads],
    }  # fmt: skip


def settings_of(backbone: str) -> list[str] | None:
    """Settings of a backbone, None where it is not at hand."""
    path = Path(os.environ.get("ZOFC_DATA", ".")) / "backbones" / backbone
    if backbone != "embedded" and not path.exists():
        return None
    return [f"backbone.name={backbone if backbone == 'embedded' else path}", *BACKBONES[backbone]]


def main() -> None:
    """Measure every backbone and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load, each time")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each load")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shown = Table("backbone", "clients", "lessons", "answers/s", "median (ms)", "p99 (ms)")
    rows = []
    for backbone in SHOWN:
        if (settings := settings_of(backbone)) is None:
            continue
        rows.append(measure(backbone, settings, options.seconds, options.repeats))
        for load in rows[-1]["loads"]:
            cells = (load["answers_per_second"], load["median_ms"], load["p99_ms"])
            shown.add_row(backbone, str(load["clients"]), str(load["lessons"]), *(f"{cell:.1f}" for cell in cells))
    Console().print(shown)
    if options.out:
        asked = {"seconds": options.seconds, "repeats": options.repeats}
        content = {**asked, "rows": rows, "environment": environment(torch.device("cpu"))}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""kill −9 while a lesson is made and pictures are added: the server starts again with the model of the last finished
lesson and every picture that was confirmed. Two kills come while a lesson is entered, the others at random moments."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import zofc
from teach_client import QUICK, Client, glyphs, served
from zofc.runfolder.names import LESSON_MODEL
from zofc.teach.lessons import model_digest
from zofc.teach.state import Taught

pytestmark = pytest.mark.loopback
GLYPHS = glyphs(4, 40)
NAMES = list(GLYPHS)
ASKED = [("a.png", GLYPHS[name][number]) for name in NAMES for number in (0, 1)]
MORE = [GLYPHS[NAMES[0]][12 + number] for number in range(28)]  # added one by one while the lesson is made


@dataclass
class Before:
    """A run with a lesson and the pictures of a third class, and what the next lesson makes of it."""

    run: Path
    answers: list[Any]
    digest: str
    next_answers: list[Any]
    next_digest: str
    seconds: float


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    """The lesson is made once, undisturbed, in a copy."""
    folder = tmp_path_factory.mktemp("kills")
    run, whole = folder / "taught", folder / "whole"
    with served(run, *QUICK) as server:
        for name in NAMES[:2]:
            server.add(name, GLYPHS[name][:12])
        server.teach()
        server.add(NAMES[2], GLYPHS[NAMES[2]][:12])
        answers = server.send("/predict", ASKED)
    shutil.copytree(run, whole)
    with served(whole) as server:
        seconds = float(server.teach()["seconds"])
        next_answers = server.send("/predict", ASKED)
    digests = [model_digest(zofc.load(one)) for one in (run, whole)]
    return Before(run, answers, digests[0], next_answers, digests[1], seconds)


def index(run: Path) -> Taught:
    return Taught.model_validate_json((run / "taught/taught.json").read_bytes())


def add_pictures(server: Client, number: str, confirmed: set[str]) -> None:
    """Add pictures one by one until the server is gone."""
    try:
        for data in MORE:
            answer = server.send(f"/classes/{number}/images", [("more.png", data)])
            confirmed.update(one["id"] for one in answer["added"])
    except (OSError, HTTPException):
        pass


def kill_in_lesson(run: Path, moment: str, seconds: float) -> tuple[str, set[str]]:
    """Begin a lesson and kill the server; the class that got pictures meanwhile, and the ids of those confirmed."""
    with served(run) as server:
        number = str(server.call("GET", "/classes")[0]["id"])
        confirmed = {one["id"] for one in server.call("GET", f"/classes/{number}/images")}
        uploads = Thread(target=add_pictures, args=(server, number, confirmed))
        known = index(run).next_lesson
        server.call("POST", "/lessons", expect=202)
        uploads.start()
        while moment == "model written" and not (run / "taught/lessons" / LESSON_MODEL.format(known)).exists():
            pass
        while moment == "lesson entered" and index(run).next_lesson == known:
            pass
        if moment.isdecimal():
            time.sleep(random.Random(moment).uniform(0, 1.3 * seconds))
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        uploads.join()
    return number, confirmed


@pytest.mark.parametrize(
    "moment",
    [
        "model written",
        "lesson entered",
        "1",
        "2",
        *(pytest.param(str(one), marks=pytest.mark.slow) for one in range(3, 11)),
    ],
)
def test_a_killed_server_comes_back_with_all_that_was_confirmed(before: Before, moment: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(before.run, tmp_path / "taught"))
    number, confirmed = kill_in_lesson(run, moment, before.seconds)
    finished = index(run).current == index(before.run).next_lesson
    assert finished or moment != "lesson entered"
    with served(run) as server:
        assert {one["id"] for one in server.call("GET", f"/classes/{number}/images")} >= confirmed
        learned = [one["name"] for one in server.call("GET", "/classes") if one["learned"]]
        assert learned == NAMES[: 2 + finished]
        assert server.send("/predict", ASKED) == (before.next_answers if finished else before.answers)
        found = zofc.load(run)
        assert model_digest(found) == (before.next_digest if finished else before.digest)
        assert server.teach()["classes"] == NAMES[:1] + NAMES[2:3] * (not finished)

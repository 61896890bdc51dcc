"""kill −9 while a lesson is made and pictures are added: the server starts again with the model of the last finished
lesson and every picture that was confirmed. Two kills come while a lesson is entered, ten at random moments."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import zofc
from teach_client import QUICK, Client, forked, glyphs
from zofc.runfolder.names import LESSON_MODEL
from zofc.teach.lessons import model_digest
from zofc.teach.start import prepare_run
from zofc.teach.state import Taught

pytestmark = pytest.mark.loopback
GLYPHS = glyphs(4, 40)
NAMES = list(GLYPHS)
ASKED = [("a.png", GLYPHS[name][number]) for name in NAMES for number in (0, 1)]
FIRST = 12  # pictures of a class before the lesson
PATIENCE = 300  # seconds
MORE = [GLYPHS[NAMES[0]][FIRST + number] for number in range(28)]  # added one by one while the lesson is made


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
    prepare_run(run, QUICK, lambda _: None)
    with forked(run) as (server, _):
        for name in NAMES[:2]:
            server.add(name, GLYPHS[name][:FIRST])
        server.teach()
        server.add(NAMES[2], GLYPHS[NAMES[2]][:FIRST])
        answers = server.send("/predict", ASKED)
    shutil.copytree(run, whole)
    with forked(whole) as (server, _):
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


def wait_for(done: Callable[[], bool]) -> None:
    """Look without a pause, for moments are short; the deadline is for a lesson that fails."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end


def kill_in_lesson(run: Path, moment: str, seconds: float) -> tuple[str, set[str]]:
    """Begin a lesson and kill the server; the class that got pictures meanwhile, and the ids of those confirmed."""
    with forked(run) as (server, process):
        number = str(server.call("GET", "/classes")[0]["id"])
        confirmed = {one["id"] for one in server.call("GET", f"/classes/{number}/images")}
        uploads = Thread(target=add_pictures, args=(server, number, confirmed))
        known = index(run).next_lesson
        server.call("POST", "/lessons", expect=202)
        uploads.start()
        if moment == "model written":
            wait_for((run / "taught/lessons" / LESSON_MODEL.format(known)).exists)
        elif moment == "lesson entered":
            wait_for(lambda: index(run).next_lesson > known)
        else:
            time.sleep(random.Random(moment).uniform(0, 1.3 * seconds))
        process.kill()
        process.join()
        uploads.join()
    return number, confirmed


@pytest.mark.parametrize("moment", ["model written", "lesson entered", *map(str, range(1, 11))])
def test_a_killed_server_comes_back_with_all_that_was_confirmed(before: Before, moment: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(before.run, tmp_path / "taught"))
    number, confirmed = kill_in_lesson(run, moment, before.seconds)
    finished = index(run).current == index(before.run).next_lesson
    assert finished or moment != "lesson entered"
    with forked(run) as (server, _):
        kept = {one["id"] for one in server.call("GET", f"/classes/{number}/images")}
        assert kept >= confirmed
        learned = [one["name"] for one in server.call("GET", "/classes") if one["learned"]]
        assert learned == NAMES[: 2 + finished]
        assert server.send("/predict", ASKED) == (before.next_answers if finished else before.answers)
        found = zofc.load(run)
        assert model_digest(found) == (before.next_digest if finished else before.digest)
        left = NAMES[:1] * (len(kept) > FIRST) + NAMES[2:3] * (not finished)
        if left:
            assert server.teach()["classes"] == left
        else:  # killed before a picture had arrived
            assert "nothing to learn" in server.call("POST", "/lessons", expect=422)["detail"]

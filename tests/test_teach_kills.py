"""kill −9 while a lesson is made: the server starts again with the model of the last finished lesson and every picture
that was confirmed. ZOFC_KILLS sets how many random moments are tried."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import zofc
from teach_client import glyphs, served

pytestmark = pytest.mark.loopback
KILLS = int(os.environ.get("ZOFC_KILLS", "2"))
GLYPHS = glyphs(3, 16)
NAMES = list(GLYPHS)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run with a first lesson, and the seconds that the next takes."""
    run = tmp_path_factory.mktemp("kills") / "taught"
    with served(run, "backbone.name=embedded") as server:
        for name in NAMES[:2]:
            server.add(name, GLYPHS[name][:12])
        seconds = server.teach()["seconds"]
    return run, float(seconds)


@pytest.mark.parametrize("moment", range(KILLS))
def test_a_killed_server_comes_back_with_all_that_was_confirmed(taught: tuple[Path, float], moment: int) -> None:
    run, seconds = taught
    rng = random.Random(moment)
    with served(run) as server:
        known = {one["name"]: one for one in server.call("GET", "/classes")}
        while len(server.call("GET", "/lessons")) > 1 and known.get(NAMES[2], {}).get("learned"):
            server.call("POST", "/lessons/undo")
            known = {one["name"]: one for one in server.call("GET", "/classes")}
        if NAMES[2] in known:
            server.call("DELETE", f"/classes/{known[NAMES[2]]['id']}")
        number = server.add(NAMES[2], GLYPHS[NAMES[2]])
        confirmed = {one["id"] for one in server.call("GET", f"/classes/{number}/images")}
        before = len(server.call("GET", "/lessons"))
        server.call("POST", "/lessons", expect=202)
        time.sleep(rng.uniform(0, 1.3 * seconds))
        assert server.process is not None
        server.process.kill()
        server.process.wait()
    with served(run) as server:
        assert {one["id"] for one in server.call("GET", f"/classes/{number}/images")} == confirmed
        finished = [one for one in server.call("GET", "/lessons") if not one["undone"]]
        learned = [one["name"] for one in server.call("GET", "/classes") if one["learned"]]
        assert learned == (NAMES if len(server.call("GET", "/lessons")) > before else NAMES[:2]) and finished
        assert zofc.load(run).classes == tuple(learned)
        answers = server.send("/predict", [("a.png", GLYPHS[NAMES[0]][0])])[0]["answers"]
        assert {one["class"] for one in answers} == set(learned)
        if learned != NAMES:
            assert server.teach()["classes"] == [NAMES[2]]

"""Facts about the page of `zofc teach` as a person meets it: the real server, a real Chromium without a window."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chromium import PICTURES, PROGRAM, Chromium
from zofc.data.source import SourceOptions, open_source

pytest.importorskip("fastapi", reason="needs the extra: pip install zofc[teach]")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium: on Debian, apt-get install chromium")
TOKEN = "a-token-for-tests"
TRAINED, TRIED = 12, 3  # pictures of each class
QUICK = ("backbone.name=embedded", "optimize.peft.epochs=2", "optimize.head.epochs=2")
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
HOSTILE = "<img src=x onerror=alert(1)>"


class Server:
    """`zofc teach` on one run folder, which can be stopped and started again at the same address."""

    def __init__(self, run: Path) -> None:
        self.run, self.port = run, 0
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        command = [sys.executable, "-m", "zofc", "teach", str(self.run), "--no-browser", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *(QUICK if not self.run.exists() else ())],
            env={**os.environ, "ZOFC_TEACH_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", said)):
            line = self.process.stdout.readline()
            assert line, said
            said += line
        self.port = int(found[1])

    def stop(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Pictures of four characters, named plainly, the last as an attacker would."""
    folder = tmp_path_factory.mktemp("glyphs")
    source = open_source("glyphs", SourceOptions(per_class=TRAINED + TRIED, test_per_class=1))
    found: dict[str, list[Path]] = {}
    for label, name in enumerate(("fox", "hare", "owl", HOSTILE)):
        found[name] = []
        for number, index in enumerate(np.flatnonzero(source.train.labels == label)):
            found[name].append(folder / f"{label}-{number}.png")
            source.train.images.load(int(index)).save(found[name][-1])
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    served = Server(tmp_path_factory.mktemp("teach") / "run")
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Chromium]:
    browser = Chromium(tmp_path_factory.mktemp("chromium"), *CAMERA)
    browser.own = ("data:", "blob:", server.url)
    browser.open(f"{server.url}?token={TOKEN}")
    browser.until("document.documentElement.dataset.ready")
    yield browser
    browser.close()


def names(chromium: Chromium) -> list[str]:
    return list(chromium.run("[...document.querySelectorAll('.card h3')].map(e => e.textContent)"))


def card(chromium: Chromium, name: str) -> str:
    """The id of a class, once it has a card."""
    found = f"[...document.querySelectorAll('.card h3')].find(e => e.textContent === {json.dumps(name)})"
    chromium.until(f"Boolean({found})")
    return str(chromium.run(f"{found}.closest('li').dataset.id"))


def add_class(chromium: Chromium, name: str, files: list[Path]) -> str:
    chromium.type("#new-name", name)
    chromium.press("Enter")
    number = card(chromium, name)
    chromium.upload(f"[id='files-{number}']", files)
    chromium.until(
        "document.getElementById('upload').hidden && "
        f"document.querySelector('[data-id=\"{number}\"] .soft').textContent.startsWith('{len(files)} pictures')"
    )
    return number


def teach(chromium: Chromium, lesson: int) -> None:
    chromium.click("#teach-button")
    chromium.until(
        f"(document.querySelector('#before-after caption')?.textContent ?? '').startsWith('Lesson {lesson},')", 120
    )
    chromium.until("document.getElementById('lesson').hidden")


def ask(chromium: Chromium, files: list[Path]) -> list[str]:
    """The best answers for pictures, in their order."""
    chromium.run("document.getElementById('answers').replaceChildren()")
    chromium.upload("#try-files", files)
    chromium.until(f"document.querySelectorAll('#answers > li').length === {len(files)}")
    best = "[...document.querySelectorAll('#answers > li')].map(e => e.querySelector('.bars .name').textContent)"
    return list(reversed(chromium.run(best)))


def table(chromium: Chromium, selector: str) -> list[list[str]]:
    script = f"[...document.querySelectorAll('{selector} tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    return list(chromium.run(script))


# -- one story, in order: later facts rest on the classes that earlier ones taught ---------------------------------


def test_the_token_leaves_the_address_and_the_button_says_why_it_waits(chromium: Chromium, server: Server) -> None:
    assert chromium.run("location.href") == server.url
    assert chromium.run("document.getElementById('teach-button').disabled")
    assert chromium.run("document.getElementById('teach-why').textContent").startswith("Add two classes first")
    assert chromium.complaints == []


def test_three_classes_are_taught_and_answered_right(chromium: Chromium, glyphs: dict[str, list[Path]]) -> None:
    for name in ("fox", "hare", "owl"):
        add_class(chromium, name, glyphs[name][:TRAINED])
    chromium.until("!document.getElementById('teach-button').disabled")
    assert chromium.run("document.getElementById('teach-button').textContent").startswith("Teach 3 new classes, ")
    teach(chromium, 1)
    tried = [file for name in ("fox", "hare", "owl") for file in glyphs[name][TRAINED:]]
    answers = ask(chromium, tried)
    right = [name for name in ("fox", "hare", "owl") for _ in range(TRIED)]
    assert sum(a == b for a, b in zip(answers, right, strict=True)) >= 8, answers
    assert chromium.complaints == []


def test_a_fourth_class_shows_what_was_forgotten_and_its_name_stays_words(
    chromium: Chromium, glyphs: dict[str, list[Path]]
) -> None:
    add_class(chromium, HOSTILE, glyphs[HOSTILE][:TRAINED])
    teach(chromium, 2)
    rows = table(chromium, "#before-after")
    assert [row[0] for row in rows] == ["fox", "hare", "owl", HOSTILE]
    assert all(row[1].endswith("%") for row in rows[:3]) and rows[3][1] == "–" and rows[3][3] == "new"
    heat = table(chromium, "#heat-map")
    assert len(heat) == 4 and all(len(row) == 3 for row in heat) and heat[3][1] == "–"
    assert chromium.run("document.querySelectorAll('img[src=x]').length") == 0
    assert chromium.complaints == []


def test_nothing_is_wider_than_the_screen_and_pictures_of_the_page_are_kept(chromium: Chromium) -> None:
    for width, height, kind in ((1280, 900, "desktop"), (390, 844, "phone"), (360, 740, "")):
        chromium.resize(width, height)
        for dark in (False, True):
            chromium.prefer(dark)
            assert chromium.run("document.documentElement.scrollWidth") == width
            if kind:
                chromium.picture(f"teach-{kind}-{'dark' if dark else 'light'}.png")
    chromium.prefer(dark=False)
    chromium.resize(1280, 900)


def axe() -> str:
    """The script of axe-core, fetched once into build/."""
    script = PICTURES / "axe.min.js"
    if not script.is_file():
        if not (npm := shutil.which("npm")):
            pytest.skip("axe-core comes from npm, which is not installed")
        PICTURES.mkdir(exist_ok=True)
        packed = subprocess.run([npm, "pack", "axe-core@4"], cwd=PICTURES, capture_output=True, text=True, timeout=60)
        if packed.returncode:
            pytest.skip("axe-core cannot be fetched from npm")
        archive = PICTURES / packed.stdout.split()[-1]
        with tarfile.open(archive) as files:
            member = files.extractfile("package/axe.min.js")
            assert member is not None
            script.write_bytes(member.read())
        archive.unlink()
    return script.read_text("utf-8")


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_fault(chromium: Chromium, dark: bool) -> None:
    source = axe()
    chromium.prefer(dark)
    chromium.run(source + ";1")
    found: list[dict[str, Any]] = chromium.run("axe.run().then(r => r.violations)")
    chromium.prefer(dark=False)
    faults = [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")]
    assert faults == []


def test_the_camera_takes_pictures_and_is_answered_live(chromium: Chromium) -> None:
    chromium.until("document.querySelectorAll('.message').length === 0")  # notes go by themselves
    chromium.click("#try-camera")
    chromium.until("Boolean(document.querySelector('#try-now .bars'))")
    number = card(chromium, "fox")
    chromium.click(f"[data-id='{number}'] button[aria-pressed]")
    chromium.until(f"document.querySelector('[data-id=\"{number}\"] video')?.videoWidth > 0")
    assert chromium.run("document.querySelectorAll('video').length") == 1  # one part of the page has the camera
    chromium.click(f"[data-id='{number}'] .camera .accent")
    chromium.until(f"document.querySelector('[data-id=\"{number}\"] .head .soft').textContent.includes(' new')")
    chromium.click(f"[data-id='{number}'] button[aria-pressed]")
    chromium.until("!document.querySelector('video')")
    assert chromium.complaints == []


def test_undo_takes_the_last_lesson_back_and_a_reload_changes_nothing(chromium: Chromium, server: Server) -> None:
    chromium.click("#undo")
    chromium.until("document.querySelectorAll('#heat-map thead th').length === 2")
    chromium.open(server.url)
    chromium.until("document.documentElement.dataset.ready")
    assert names(chromium) == ["fox", "hare", "owl", HOSTILE]  # its pictures stay
    assert len(table(chromium, "#heat-map")) == 3
    assert chromium.run("document.querySelector('.history').textContent").count("undone") == 1
    assert chromium.complaints == []


def test_the_page_goes_on_when_the_server_is_stopped_and_started(
    chromium: Chromium, server: Server, glyphs: dict[str, list[Path]]
) -> None:
    before = table(chromium, "#heat-map")
    server.stop()
    chromium.until("!document.getElementById('offline').hidden")
    assert "zofc teach" in chromium.run("document.getElementById('offline').textContent")
    server.start()
    chromium.until("document.getElementById('offline').hidden")
    assert names(chromium) == ["fox", "hare", "owl", HOSTILE] and table(chromium, "#heat-map") == before
    assert ask(chromium, glyphs["owl"][TRAINED : TRAINED + 1]) == ["owl"]

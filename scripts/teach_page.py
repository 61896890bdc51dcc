"""The page of `zofc teach` as tests and screen captures use it: a server that can be stopped and started, and what a
person does on the page in a Chromium without a window."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chromium import Chromium

TOKEN = "a-token-for-tests"
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
LESSON_PATIENCE = 900  # seconds


class TeachServer:
    """`zofc teach` on one run folder, which can be stopped and started again at the same address."""

    def __init__(self, run: Path, *settings: str, token: str | None = TOKEN) -> None:
        """Serve a run folder; `settings` are for a new one. Without a `token`, that of the run folder is used."""
        self.run, self.settings, self.given, self.port, self.token = run, settings, token, 0, ""
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def start(self, *options: str) -> None:
        """Start the server and wait until it has said its address."""
        command = [sys.executable, "-m", "zofc", "teach", self.run.name, "--no-browser", "--port", str(self.port)]
        kept = {key: value for key, value in os.environ.items() if key != "ZOFC_TEACH_TOKEN"}
        given = {} if self.given is None else {"ZOFC_TEACH_TOKEN": self.given}
        self.process = subprocess.Popen(
            [*command, *options, *(self.settings if not self.run.exists() else ())],
            cwd=self.run.parent, env={**kept, **given, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", said)):
            line = self.process.stdout.readline()
            assert line, said
            said += line
        self.port, self.token = int(found[1]), found[2]

    def stop(self) -> None:
        """Stop the server as Ctrl-C does, and wait for its end."""
        assert self.process is not None and self.process.stdout is not None
        self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()


def open_page(server: TeachServer, profile: Path) -> Chromium:
    """A browser with the page of a server."""
    chromium = Chromium(profile, *CAMERA)
    chromium.own = ("data:", "blob:", server.url)
    chromium.open(f"{server.url}?token={server.token}")
    chromium.until("document.documentElement.dataset.ready")
    return chromium


def class_names(chromium: Chromium) -> list[str]:
    """The names on the cards."""
    return list(chromium.run("[...document.querySelectorAll('.card h3')].map(e => e.textContent)"))


def card(chromium: Chromium, name: str) -> str:
    """A selector of a class, once it has a card."""
    found = f"[...document.querySelectorAll('.card h3')].find(e => e.textContent === {json.dumps(name)})"
    chromium.until(f"Boolean({found})")
    number = chromium.run(f"{found}.closest('li').dataset.id")
    return f"[data-id='{number}']"


def facts(chromium: Chromium, name: str) -> str:
    """What a card says below the name of its class."""
    return str(chromium.run(f"document.querySelector({json.dumps(card(chromium, name) + ' .soft')}).textContent"))


def wait_for_uploads(chromium: Chromium, name: str, pictures: int) -> None:
    """Wait until a class has so many pictures and nothing is on its way."""
    text = f"document.querySelector({json.dumps(card(chromium, name) + ' .soft')}).textContent"
    chromium.until(f"document.getElementById('upload').hidden && {text}.startsWith('{pictures} picture')")


def add_class(chromium: Chromium, name: str, files: Sequence[Path]) -> None:
    """Type a name, press Enter and choose pictures."""
    chromium.type("#new-name", name)
    chromium.press("Enter")
    chromium.upload(f"{card(chromium, name)} input[type=file]", files)
    wait_for_uploads(chromium, name, len(files))


def teach(chromium: Chromium, lesson: int) -> None:
    """Press Teach and wait for the end of a lesson."""
    chromium.until("!document.getElementById('teach-button').disabled")
    chromium.click("#teach-button")
    wait_for_lesson(chromium, lesson)


def wait_for_lesson(chromium: Chromium, lesson: int) -> None:
    """Wait until the table of a lesson is there."""
    caption = "(document.querySelector('#before-after caption')?.textContent ?? '')"
    chromium.until(f"{caption}.startsWith('Lesson {lesson},')", LESSON_PATIENCE)
    chromium.until("document.getElementById('lesson').hidden")


def ask(chromium: Chromium, files: Sequence[Path]) -> list[str]:
    """The best answers for pictures, in their order; those of before are cleared."""
    chromium.run("document.getElementById('answers').replaceChildren()")
    chromium.upload("#try-files", files)
    chromium.until(f"document.querySelectorAll('#answers > li').length === {len(files)}")
    best = "[...document.querySelectorAll('#answers > li')].map(e => e.querySelector('.bars .name').textContent)"
    return list(reversed(chromium.run(best)))


def table(chromium: Chromium, selector: str) -> list[list[str]]:
    """The words in the rows of a table."""
    script = f"[...document.querySelectorAll('{selector} tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    return list(chromium.run(script))

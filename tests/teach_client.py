"""Clients of `zofc teach` for tests and the load benchmark: of the real server in a process of its own, over a socket,
and of the application in this process."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from zofc.data.source import SourceOptions, open_source

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext  # not on every platform

    from zofc.teach.lessons import Teacher

GLYPHS = 12  # images of each class
QUICK = ("backbone.name=embedded", "optimize.peft.epochs=2", "optimize.head.epochs=2")  # settings of a new run


def glyphs(classes: int, per_class: int = GLYPHS) -> dict[str, list[bytes]]:
    """PNG files of generated characters, by class name."""
    source = open_source("glyphs", SourceOptions(per_class=per_class, test_per_class=1))
    found = {}
    for label, name in enumerate(source.classes[:classes]):
        chosen = np.flatnonzero(source.train.labels == label)
        found[name] = [encode(source.train.images.load(int(index))) for index in chosen]
    return found


def encode(image: Image.Image, kind: str = "png") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def multipart(files: Sequence[tuple[str, bytes]], boundary: str = "x0x0x") -> tuple[bytes, str]:
    """The body of an upload and its content type."""
    parts = []
    for name, data in files:
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="files"; filename="{name}"\r\n'
        parts += [head.encode(), b"content-type: application/octet-stream\r\n\r\n", data, b"\r\n"]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


class Client:
    """Requests with the token, unless told otherwise."""

    def __init__(self, port: int, token: str, process: subprocess.Popen[str] | None = None) -> None:
        self.port, self.token, self.process = port, token, process
        self.said = ""  # until the address

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; a header of None is left out."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=600)
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        try:
            connection.request(method, path, body, {key: value for key, value in sent.items() if value})
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, value: Any = None, expect: int | None = None) -> Any:
        body = None if value is None else json.dumps(value).encode()
        status, _, content = self.ask(method, f"/api/v1{path}", body, {"Content-Type": "application/json"})
        answer = json.loads(content) if content else None
        assert status == expect or (expect is None and status < 300), (status, answer)
        return answer

    def send(self, path: str, files: Sequence[tuple[str, bytes]], expect: int = 200) -> Any:
        body, kind = multipart(files)
        status, _, content = self.ask("POST", f"/api/v1{path}", body, {"Content-Type": kind})
        assert status == expect, (status, content[:500])
        return json.loads(content)

    def add(self, name: str, images: Sequence[bytes]) -> str:
        """A new class with pictures; its id."""
        number = str(self.call("POST", "/classes", {"name": name})["id"])
        answer = self.send(f"/classes/{number}/images", [(f"{i}.png", data) for i, data in enumerate(images)])
        assert len(answer["added"]) == len(images), answer
        return number

    def follow(self) -> Iterator[tuple[str, Any]]:
        """The events of the present lesson."""
        _, _, content = self.ask("GET", "/api/v1/lessons/current/events")
        for block in content.decode().split("\n\n"):
            if found := re.fullmatch(r"event: (\w+)\ndata: (.*)", block):
                yield found[1], json.loads(found[2])

    def teach(self) -> Any:
        """A lesson, to its end."""
        self.call("POST", "/lessons", expect=202)
        kind, last = list(self.follow())[-1]
        assert kind == "finished", last
        return last


@contextmanager
def served(run: Path, *words: str, port: int = 0) -> Iterator[Client]:
    """`zofc teach` on a run folder; killed at the end."""
    token = secrets.token_urlsafe(16)
    environment = {**os.environ, "ZOFC_TEACH_TOKEN": token, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "zofc", "teach", str(run), "--no-browser", "--port", str(port), *words]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[str] = []
    try:
        assert process.stdout is not None
        while not (found := re.search(r"http://[^/]*:(\d+)/", lines[-1] if lines else "")):
            line = process.stdout.readline()
            assert line, "".join(lines)
            lines.append(line)
        client = Client(int(found[1]), token, process)
        client.said = "".join(lines)
        _wait(client)
        yield client
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@cache
def _forks() -> ForkServerContext:
    """Processes that start quickly: torch is imported once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zofc.teach.start", "zofc.learner", "zofc.advice.choice", "timm"])
    return context


def _serve(run: Path, token: str, said: Connection) -> None:
    from zofc.teach.start import TOKEN_VARIABLE, Options, serve

    os.environ[TOKEN_VARIABLE] = token
    serve(run, Options(port=0, browser=False), said.send)


@contextmanager
def forked(run: Path) -> Iterator[tuple[Client, BaseProcess]]:
    """The server of `zofc teach` on a run that was begun, in a process that starts quickly; killed at the end."""
    token = secrets.token_urlsafe(16)
    said, theirs = _forks().Pipe(duplex=False)
    process = _forks().Process(target=_serve, args=(run, token, theirs))
    process.start()
    theirs.close()
    try:
        while not (found := re.search(r"open: http://[^/]*:(\d+)/", said.recv())):
            pass
        client = Client(int(found[1]), token)
        _wait(client)
        yield client, process
    finally:
        process.kill()
        process.join()
        said.close()


def _wait(client: Client, patience: float = 600) -> None:
    """Until the server answers."""
    end = time.monotonic() + patience
    while True:
        try:
            client.call("GET", "/status")
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


class Page:
    """The API as a script uses it, without a socket."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        from fastapi.testclient import TestClient

        from zofc.teach.security import Access
        from zofc.teach.server import make_app

        app = make_app(teacher, Access("127.0.0.1", 80, "secret"))
        self.http = TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": "Bearer secret"})

    def get(self, path: str) -> object:
        answer = self.http.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def classes(self) -> dict[str, dict[str, object]]:
        return {one["name"]: one for one in self.get("/classes")}  # type: ignore[attr-defined]

    def add(self, name: str, images: list[bytes]) -> str:
        known = self.classes()
        number = (
            known[name]["id"] if name in known else self.http.post("/api/v1/classes", json={"name": name}).json()["id"]
        )
        files = [("files", (f"{i}.png", data)) for i, data in enumerate(images)]
        answer = self.http.post(f"/api/v1/classes/{number}/images", files=files)
        assert answer.status_code == 200 and not answer.json()["refused"], answer.text
        return str(number)

    def teach(self) -> dict[str, object]:
        answer = self.http.post("/api/v1/lessons")
        assert answer.status_code == 202, answer.text
        blocks = self.http.get("/api/v1/lessons/current/events").text.strip().split("\n\n")
        kind, data = blocks[-1].split("\n")
        assert kind == "event: finished", blocks[-1]
        return dict(json.loads(data.removeprefix("data: ")))

    def best(self, images: list[bytes]) -> list[str]:
        answer = self.http.post("/api/v1/predict", files=[("files", ("x.png", data)) for data in images])
        return [one["answers"][0]["class"] for one in answer.json()]

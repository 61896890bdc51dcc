"""One Chromium without a window, for tests and screen captures of pages.

It is driven through its DevTools protocol over a pair of pipes (`--remote-debugging-pipe`: JSON messages that end with
a zero byte, written to its descriptor 3, read from its 4), so driving it opens no socket.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE = 300  # seconds for anything the browser does; a busy machine is only late
PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PICTURES = Path(__file__).parents[1] / "build"


class Chromium:
    """One browser with one page, and what it complained about."""

    def __init__(self, profile: Path, *options: str) -> None:
        """Start it with a profile folder of its own and `options` of the command line beside the usual ones."""
        (commands, self._out), (self._in, answers) = _pipe(), _pipe()
        usual = [
            "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
            "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", str(PROGRAM), *usual, *options],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(commands)
        os.close(answers)
        self._rest = b""
        self._sent = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        self.own: tuple[str, ...] = ("data:",)  # beginnings of the addresses that a page may fetch
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self.ask("Browser.close")
        self._process.wait(PATIENCE)
        os.close(self._out)
        os.close(self._in)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come first are kept."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._sent:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                self._process.kill()
                raise RuntimeError("Chromium does not answer")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    # -- what a person does --

    def open(self, page: Path | str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a file or an address in a window of that size; under 600 pixels it is a phone."""
        url = page if isinstance(page, str) else page.as_uri()
        self.events.clear()
        self.resize(width, height)
        self._mode(dark)
        self.ask("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url.split('?')[0])})")
        self.read()

    def resize(self, width: int, height: int) -> None:
        """Give the window another size; under 600 pixels it is a phone."""
        phone = width < 600
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=phone, deviceScaleFactor=1 + phone
        )

    def read(self) -> None:
        """Scroll to the end and back, for figures are drawn when they come near."""
        for part in range(self.run("Math.ceil(document.documentElement.scrollHeight / innerHeight)")):
            self.run(f"scrollTo(0, {part} * innerHeight)")
            self.settle()
        self.run("scrollTo(0, 0)")
        self.settle()

    def prefer(self, dark: bool) -> None:
        """Switch between light and dark mode."""
        self._mode(dark)
        self.read()

    def _mode(self, dark: bool) -> None:
        mode = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])

    def settle(self) -> None:
        """Two frames: the first may ask for the second."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, patience: float = PATIENCE) -> None:
        """Wait until an expression is true on the page."""
        end = time.monotonic() + patience
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)

    def point(self, selector: str) -> tuple[float, float]:
        """Bring an element into view and move the pointer onto its middle."""
        x, y = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        self.settle()
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x - 1, y=y)
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()
        return x, y

    def click(self, selector: str) -> None:
        """Press the left button over an element's middle."""
        x, y = self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def press(self, key: str) -> None:
        """Press a key of no letter and let it go."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}[key]
        written = {"Enter": "\r", "Space": " "}.get(key)
        event = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": written} if written else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **event)
        self.settle()

    def upload(self, selector: str, files: Sequence[Path]) -> None:
        """Choose files in a file input, as its dialog would."""
        found = self.ask("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")["result"]
        assert "objectId" in found, f"no {selector}"
        self.ask("DOM.setFileInputFiles", files=[str(file) for file in files], objectId=found["objectId"])
        self.settle()

    def drop(self, selector: str, files: Sequence[Path]) -> None:
        """Drag files or folders from the desktop onto an element and let them go."""
        x, y = self.point(selector)
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.ask("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)
        self.settle()

    def type(self, selector: str, text: str) -> None:
        """Write into a field."""
        self.click(selector)
        self.ask("Input.insertText", text=text)
        self.settle()

    def view(self) -> bytes:
        """What the window shows, as PNG."""
        self.settle()
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def picture(self, name: str | None = None) -> bytes:
        """The whole page as PNG, kept under build/ if it has a name."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self.read()
        width, height = self.run("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        content = base64.b64decode(answer["data"])
        if name:
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / name).write_bytes(content)
        return content

    @property
    def complaints(self) -> list[Any]:
        """Exceptions, console errors and warnings, violations of the page's policy, requests for anything but it."""
        found: list[Any] = []
        for event in self.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(params["args"])
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"])
            elif event["method"] == "Network.requestWillBeSent" and params["type"] != "Document":
                found += [url for url in (params["request"]["url"],) if not url.startswith(self.own)]
        return found


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not among the first ten descriptors, which the shell is about to set."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]

"""Who may ask, and how much: token, Host and Origin are checked before anything is read, bodies are counted while they
arrive, and every response tells the browser to trust nothing but this server.

A page on another site can make a browser send requests here. It cannot read the token, so that it cannot pass; the
check of Host stops a name that was made to point here (DNS rebinding), that of Origin stops its posts.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from asyncio import Semaphore
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zofc.limits import BODIES_AT_ONCE, JSON_BODY_BYTES, UPLOAD_BYTES
from zofc.teach.problems import TooLarge, problem

API = "/api/"
UPLOADS = re.compile(r"/api/v1/(predict|classes/[^/]+/images)")  # routes that take files
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
POLICY = "; ".join(
    [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob: data:", "media-src blob:",
        "connect-src 'self'", "font-src 'self'", "manifest-src 'self'", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)  # fmt: skip
HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "x-frame-options": "DENY", "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """The address that is served and the token of those who may change anything."""

    host: str
    port: int
    token: str

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server. A server for all addresses is reached by any of them, which no
        name of a stranger can be."""
        name, _, port = header.rpartition(":") if not header.endswith("]") else (header, "", "")
        if not name:
            name, port = header, ""
        if (int(port) if port.isdecimal() and len(port) < 6 else 80) != self.port:
            return False
        own = {*LOCAL_NAMES, _bracket(self.host)}
        if not is_local(self.host):  # the name that the network knows the machine by (mDNS)
            own |= {f"{socket.gethostname().partition('.')[0].lower()}.local"}
        if not is_everywhere(self.host):
            return name.lower() in own
        return name.lower() in {*own, socket.gethostname().lower()} or _is_address(name)

    def knows_token(self, scope: Scope, headers: MutableMapping[str, str]) -> bool:
        """Whether a request brings the token: as a header, or to read also in the address."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if not given and scope["method"] in ("GET", "HEAD"):
            kind, given = "bearer", parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return kind.lower() == "bearer" and secrets.compare_digest(given.encode(), self.token.encode())


def is_everywhere(host: str) -> bool:
    """Whether a host means every address of the machine."""
    return host in ("0.0.0.0", "::", "")


def is_local(host: str) -> bool:
    """Whether a host can only be reached from this machine."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def own_addresses(host: str) -> list[str]:
    """Addresses of this machine at which a server for a host can be opened, 127.0.0.1 first if that is one."""
    if not is_everywhere(host):
        return [host]
    found = ["127.0.0.1"]
    with suppress(OSError):
        found += [str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: the system chooses the address it would send from
        found.append(str(probe.getsockname()[0]))
    others = {one: ipaddress.ip_address(one) for one in found}
    return [found[0], *(one for one, kind in others.items() if not (kind.is_loopback or kind.is_unspecified))]


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access
        self._bodies = Semaphore(BODIES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on with its body counted."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        send = _with_headers(scope, send)
        if (refusal := self._refusal(scope, headers)) is not None:
            await problem(*refusal)(scope, receive, send)
            return
        if scope["method"] == "POST" and UPLOADS.fullmatch(scope["path"]):
            async with self._bodies:
                await self._pass_on(scope, receive, send, headers, UPLOAD_BYTES)
        else:
            await self._pass_on(scope, receive, send, headers, JSON_BODY_BYTES)

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, headers: MutableMapping[str, str], limit: int
    ) -> None:
        """Let the application answer, unless the body has more bytes than the limit, whatever it announced."""
        too_large = problem(413, *_too_large(limit))
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            await too_large(scope, receive, send)
            return
        total, begun = 0, False

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > limit:
                raise TooLarge(*_too_large(limit))
            return message

        async def answered(message: Message) -> None:
            nonlocal begun
            if total <= limit or begun:  # else what the application makes of it does not count
                begun = True
                await send(message)

        try:
            await self.app(scope, counted, answered)
        except Exception:
            if total <= limit:
                raise
        if total > limit and not begun:
            await too_large(scope, receive, send)

    def _refusal(self, scope: Scope, headers: MutableMapping[str, str]) -> tuple[int, str, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.access.knows_host(host):
            return 421, f"'{host[:100]}' is not the address of this server", "Use the address that zofc teach printed."
        if origin is not None and origin != f"http://{host}":
            return 403, f"requests of other sites are refused: {origin[:100]}", "Use the page of this server."
        if scope["path"].startswith(API) and not self.access.knows_token(scope, headers):
            remedy = "Open the whole address that zofc teach printed, or send 'Authorization: Bearer TOKEN'."
            return 401, "the token is missing or wrong", remedy
        return None


def _with_headers(scope: Scope, send: Send) -> Callable[[Message], Awaitable[None]]:
    """Add what browsers are to obey."""
    extra = HEADERS | (
        {"cache-control": "no-store"} if scope["path"].startswith(API) else {"cache-control": "no-cache"}
    )
    lines = [(key.encode(), value.encode()) for key, value in extra.items()]

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {key for key, _ in lines}
            kept = [pair for pair in message.get("headers", []) if pair[0].lower() not in names]
            message = {**message, "headers": [*kept, *lines]}
        await send(message)

    return with_headers


def _too_large(limit: int) -> tuple[str, str]:
    return f"the request has more than {limit:,} bytes", "Send fewer or smaller files at a time."

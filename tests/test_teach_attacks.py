"""Attacks on `zofc teach`, each refused with a clear answer by the real server, its memory within bounds."""

from __future__ import annotations

import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from teach_client import QUICK, Client, glyphs, multipart, served
from waiting import DEADLINE
from zofc.limits import BODIES_AT_ONCE, JSON_BODY_BYTES, UPLOAD_BYTES, UPLOAD_FILES, UPLOAD_PIXELS
from zofc.teach.security import Access, is_local, own_addresses

pytestmark = pytest.mark.loopback
GLYPHS = glyphs(2)
NAMES = list(GLYPHS)
MOST_GROWTH = 400 * 2**20  # bytes that a refused attack may add to the server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    run = tmp_path_factory.mktemp("attacks") / "taught"
    with served(run, "backbone.name=embedded") as client:
        client.add("one", GLYPHS[NAMES[0]])
        client.add("two", GLYPHS[NAMES[1]])
        client.teach()
        yield client


def at_rest(client: Client) -> int:
    """Memory of the server before an attack, from which on the most that it has is counted anew."""
    assert client.process is not None
    Path(f"/proc/{client.process.pid}/clear_refs").write_text("5")
    return memory(client)


def memory(client: Client) -> int:
    """The most memory that the server has had since it was at rest."""
    assert client.process is not None
    lines = Path(f"/proc/{client.process.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_growth_is_seen_again_after_it_was_seen(server: Client) -> None:
    """The measure of the attacks below can fail: pictures that are decoded raise it, each time anew."""
    side = int(UPLOAD_PIXELS**0.5)
    for _ in range(2):
        before = at_rest(server)
        server.send("/predict", [("large.png", big_png(side))])
        assert memory(server) - before > UPLOAD_PIXELS


def problem(answer: tuple[int, dict[str, str], bytes], status: int) -> dict[str, object]:
    assert answer[0] == status and answer[1]["content-type"] == "application/problem+json", answer
    content = dict(json.loads(answer[2]))
    assert content["status"] == status and content["detail"] and content["remedy"]
    return content


def test_without_the_token_nothing_is_answered(server: Client) -> None:
    for method, path in [("GET", "/status"), ("POST", "/lessons"), ("GET", "/openapi.json"), ("DELETE", "/classes/c1")]:
        for given in ("", "Bearer wrong", f"Basic {server.token}", "Bearer ", "Bearer \xe4"):
            problem(server.ask(method, f"/api/v1{path}", headers={"Authorization": given}), 401)
    problem(server.ask("POST", f"/api/v1/lessons?token={server.token}", headers={"Authorization": ""}), 401)
    assert server.ask("GET", f"/api/v1/status?token={server.token}", headers={"Authorization": ""})[0] == 200
    assert server.ask("GET", "/", headers={"Authorization": ""})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost.evil.example:{port}", "[::2]:{port}", ""]
)
def test_another_host_is_refused(server: Client, host: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        name = host.format(port=server.port)
        connection.sendall(
            f"GET /api/v1/status HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {server.token}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        assert connection.recv(4096).split()[1] in (b"421", b"400")


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://localhost:{port}"],
)
def test_requests_of_other_sites_are_refused(server: Client, origin: str) -> None:
    body, kind = multipart([("a.png", GLYPHS[NAMES[0]][0])])
    headers = {"Origin": origin.format(port=server.port), "Content-Type": kind}
    problem(server.ask("POST", "/api/v1/predict", body, headers), 403)
    headers["Origin"] = f"http://127.0.0.1:{server.port}"
    assert server.ask("POST", "/api/v1/predict", body, headers)[0] == 200


@pytest.mark.parametrize(
    "name", ["../../evil.png", "/etc/evil.png", "..\\evil.png", "a/../../evil", "%2e%2e%2fevil.png"]
)
def test_no_name_becomes_a_path(server: Client, name: str, tmp_path: Path) -> None:
    number = server.call("POST", "/classes", {"name": name}, expect=201)["id"]
    server.send(f"/classes/{number}/images", [(name, GLYPHS[NAMES[0]][0] + b"x" * len(name))])
    run = Path(server.call("GET", "/status")["run"])
    assert not list(run.parent.rglob("*evil*")) and not Path("/etc/evil.png").exists()
    server.call("DELETE", f"/classes/{number}")


@pytest.mark.parametrize(
    "path", ["/page/../server.py", "/page/..%2fserver.py", "/page/%2e%2e/state.py", "/page//etc/passwd", "/page/.."]
)
def test_the_page_serves_its_own_files_alone(server: Client, path: str) -> None:
    assert server.ask("GET", path)[0] == 404


@pytest.mark.parametrize("number", ["..%2f..%2frecipe.yaml", "%00", "c1", "0" * 32])
def test_pictures_are_found_by_id_alone(server: Client, number: str) -> None:
    problem(server.ask("GET", f"/api/v1/images/{number}"), 404)


def big_png(side: int) -> bytes:
    """A PNG of side × side pixels in a few kilobytes, as a decompression bomb has it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + side // 8)) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_picture_of_200_megapixels_is_refused_before_it_is_decoded(server: Client) -> None:
    bomb, before = big_png(14144), at_rest(server)
    answer = server.send("/classes/c1/images", [("bomb.png", bomb)])
    assert not answer["added"]
    reason = answer["refused"][0]["reason"]
    assert f"the limit is {UPLOAD_PIXELS:,} pixels. Scale it down" in reason and reason.count("limit") == 1
    predicted = server.send("/predict", [("bomb.png", bomb), ("good.png", GLYPHS[NAMES[0]][0])])
    assert "pixels" in predicted[0]["error"] and predicted[1]["answers"]
    assert memory(server) - before < MOST_GROWTH


def test_ten_thousand_small_files_are_refused(server: Client) -> None:
    before = at_rest(server)
    body, kind = multipart([(f"{i}.png", GLYPHS[NAMES[0]][i % 12]) for i in range(10_000)])
    content = problem(server.ask("POST", "/api/v1/classes/c1/images", body, {"Content-Type": kind}), 413)
    assert str(UPLOAD_FILES) in str(content["detail"])
    assert memory(server) - before < MOST_GROWTH
    assert server.call("GET", "/classes")[0]["images"] == 12


def test_bodies_are_counted_whatever_they_announce(server: Client) -> None:
    problem(server.ask("POST", "/api/v1/classes", b" " * 100_000, {"Content-Type": "application/json"}), 413)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = (
            f"POST /api/v1/classes/c1/images HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Authorization: Bearer {server.token}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        )
        connection.sendall(f"{head}Content-Length: {UPLOAD_BYTES + 1}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(100)


@pytest.mark.parametrize(
    ("path", "kind", "most"),
    [
        ("/classes", "application/json", JSON_BODY_BYTES),
        ("/classes", "multipart/form-data; boundary=x", JSON_BODY_BYTES),  # no route that takes files
        ("/classes", "multipart/mixed", JSON_BODY_BYTES),
        ("/classes/c1/images", "multipart/form-data; boundary=x", UPLOAD_BYTES),
    ],
)
def test_bodies_of_unknown_length_have_the_limit_of_their_route(
    server: Client, path: str, kind: str, most: int
) -> None:
    before = at_rest(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        head = (
            f"POST /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
            f"Authorization: Bearer {server.token}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        part = b"".join([b"--x\r\n", b'content-disposition: form-data; name="files"; filename="a"\r\n\r\n'])
        connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        piece, sent = b" " * min(most // 4, 2**22), 0
        with suppress(ConnectionError):  # the server may have answered and closed
            while sent < most + len(piece):
                connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                sent += len(piece)
        answer = b""
        with suppress(ConnectionError):
            while received := connection.recv(65536):
                answer += received
    assert answer.startswith(b"HTTP/1.1 413 ") and b"application/problem+json" in answer, answer[:300]
    assert f"more than {most:,} bytes".encode() in answer
    assert memory(server) - before < MOST_GROWTH


def test_thumbnails_of_large_pictures_are_decoded_a_few_at_a_time(server: Client) -> None:
    side = int(UPLOAD_PIXELS**0.5)
    number = server.add("large", [big_png(side) + bytes([i]) for i in range(6)])
    pictures = [one["id"] for one in server.call("GET", f"/classes/{number}/images")]
    before = at_rest(server)
    with ThreadPoolExecutor(12) as pool:
        asked = [(one, size) for one in pictures for size in (64, 96)]
        answers = list(pool.map(lambda one: server.ask("GET", f"/api/v1/images/{one[0]}?size={one[1]}"), asked))
    assert {answer[0] for answer in answers} == {200} and {answer[1]["content-type"] for answer in answers} == {
        "image/jpeg"
    }
    assert memory(server) - before < 2 * 4 * UPLOAD_PIXELS + MOST_GROWTH
    before = at_rest(server)
    again = [server.ask("GET", f"/api/v1/images/{one}?size={size}")[2] for one, size in asked]
    assert again == [answer[2] for answer in answers]
    assert memory(server) - before < UPLOAD_PIXELS  # kept, not decoded again
    server.call("DELETE", f"/classes/{number}")


def test_few_bodies_are_received_at_once(server: Client) -> None:
    """Uploads that stand still keep others waiting; whatever has no files is answered at once."""
    head = (
        f"POST /api/v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100000\r\n"
        f"Authorization: Bearer {server.token}\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n--x"
    )
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        for _ in range(BODIES_AT_ONCE):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            stack.enter_context(connection).sendall(head.encode())
        time.sleep(0.5)
        waits = pool.submit(server.send, "/predict", [("a.png", GLYPHS[NAMES[0]][0])])
        assert server.call("GET", "/classes")
        time.sleep(1)
        assert not waits.done()
        stack.close()
        assert waits.result(DEADLINE)[0]["answers"]


def test_a_file_that_is_no_picture_is_refused_by_name(server: Client) -> None:
    files = [("page.html", b"<script>alert(1)</script>"), ("half.png", GLYPHS[NAMES[0]][0][:60]), ("", b"")]
    answer = server.send("/classes/c1/images", files)
    assert not answer["added"] and [one["name"] for one in answer["refused"]][:2] == ["page.html", "half.png"]


def test_html_in_a_class_name_stays_text(server: Client) -> None:
    name = "<img src=x onerror=alert(1)>"
    number = server.call("POST", "/classes", {"name": name}, expect=201)["id"]
    status, headers, content = server.ask("GET", "/api/v1/classes")
    assert status == 200 and headers["content-type"] == "application/json" and json.dumps(name).encode() in content
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    policy = server.ask("GET", "/")[1]["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    server.call("DELETE", f"/classes/{number}")


@pytest.mark.parametrize("name", ["", "   ", "a" * 101, "a\x00b", "a\x1b[31m", "one"])
def test_names_that_are_none_are_refused(server: Client, name: str) -> None:
    body = json.dumps({"name": name}).encode()
    problem(server.ask("POST", "/api/v1/classes", body, {"Content-Type": "application/json"}), 422)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"name": 5}', b'{"name": "x", "more": 1}', b"\xff"])
def test_bodies_that_cannot_be_understood_are_problems(server: Client, body: bytes) -> None:
    answer = server.ask("POST", "/api/v1/classes", body, {"Content-Type": "application/json"})
    problem(answer, 422 if answer[0] == 422 else 400)


def test_of_lessons_that_are_begun_at_once_one_runs(server: Client) -> None:
    number = server.add("three", glyphs(3)[list(glyphs(3))[2]])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.ask("POST", "/api/v1/lessons"), range(8)))
        statuses = sorted(answer[0] for answer in answers)
    assert statuses == [202] + [409] * 7
    assert server.ask("DELETE", f"/api/v1/classes/{number}")[0] in (204, 409)
    assert list(server.follow())[-1][0] == "finished"


def test_the_earlier_model_answers_during_a_lesson(tmp_path: Path) -> None:
    many = glyphs(3, 150)
    with served(tmp_path / "taught", *QUICK) as server:
        asked = [("a.png", GLYPHS[NAMES[0]][0]), ("b.png", GLYPHS[NAMES[1]][0])]
        for name in NAMES:
            server.add(name, GLYPHS[name])
        server.teach()
        before, during = server.send("/predict", asked), 0
        server.add("three", many[list(many)[2]])
        number = server.call("POST", "/lessons", expect=202)["number"]
        while (lesson := server.call("GET", "/status")["lesson"]) is not None:
            answers = server.send("/predict", asked)
            if server.call("GET", "/lessons")[-1]["number"] < number:  # it has not taken the place of the model
                assert answers == before and lesson["number"] == number
                during += 1
        assert during >= 3
        assert {one["class"] for one in server.send("/predict", asked)[0]["answers"]} == {*NAMES, "three"}


def test_a_service_for_others_says_what_it_opens_and_has_no_page(tmp_path: Path) -> None:
    with served(tmp_path / "taught", *QUICK, "--api-only", "--host", "0.0.0.0") as server:
        assert "Warning: --host 0.0.0.0 opens this server to every machine that can reach this one" in server.said
        assert "API: http://127.0.0.1:" in server.said and "open:" not in server.said
        assert server.process is not None and server.process.stdout is not None
        line = server.process.stdout.readline()
        for address in line.removeprefix("from other machines: ").split() if line.startswith("from") else ():
            assert address.startswith("http://") and address.endswith(f":{server.port}/api/v1/")
            assert "127.0.0.1" not in address and "0.0.0.0" not in address
        assert server.call("GET", "/status")["classes"] == 0
        assert [server.ask("GET", path)[0] for path in ("/", "/page/main.js")] == [404, 404]


def test_a_server_for_all_addresses_knows_those_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, 0, 0, "", (address, 0)) for address in ("127.0.1.1", "10.0.0.3", "10.0.0.3")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda _: ("192.168.1.7", 5), raising=False)
    assert own_addresses("0.0.0.0") == ["127.0.0.1", "10.0.0.3", "192.168.1.7"]
    assert own_addresses("192.168.1.7") == ["192.168.1.7"]


def test_what_a_server_for_all_addresses_accepts() -> None:
    everywhere = Access("0.0.0.0", 8321, "t")
    assert everywhere.knows_host("192.168.1.7:8321") and everywhere.knows_host("localhost:8321")
    assert not everywhere.knows_host("evil.example:8321") and not everywhere.knows_host("192.168.1.7")
    network = Access("192.168.1.7", 8321, "t")
    name = socket.gethostname().partition(".")[0].lower()
    assert everywhere.knows_host(f"{name}.local:8321") and network.knows_host(f"{name}.local:8321")
    assert network.knows_host("192.168.1.7:8321") and not network.knows_host("192.168.1.8:8321")
    assert not Access("127.0.0.1", 8321, "t").knows_host(f"{name}.local:8321")
    assert not everywhere.knows_host("evil.local:8321")
    assert own_addresses("127.0.0.1") == ["127.0.0.1"] and own_addresses("::1") == ["::1"]
    assert is_local("127.0.0.1") and is_local("::1") and not is_local("0.0.0.0") and not is_local("evil.example")

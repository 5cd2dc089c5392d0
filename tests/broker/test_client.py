# SPDX-License-Identifier: Apache-2.0
"""The client: never takes half a reply for a result, and starts fast."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.client import (
    BrokenReplyError,
    Client,
    RefusedError,
    StrangerError,
    UnreachableError,
    exec_request,
)
from tests.support.kernel import require_root
from tests.support.process import ORDINARY_UID

SECRET = "s3cret" * 8
STREAM = {"total_bytes": 3, "head_bytes": 3, "tail_bytes": 0}
RESULT: dict[str, Any] = {
    "reason": "exited",
    "exit": {"code": 0, "signal": None, "core": False, "shell_code": 0},
    "timed_out": False,
    "stdout": {"encoding": "utf8", "text": "é\n", "truncated": False, **STREAM},
    "stderr": {"encoding": "base64", "b64": "/w==", "truncated": True, **STREAM},
    "confinement": {"mode": "sandboxed"},
    "environment": {"base": "minimal", "stripped": []},
    "duration_ms": 3,
    "orphans_killed": 0,
}


def reply(document: object, status: str = "200 OK", more: str = "") -> bytes:
    body = json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


class Canned:
    """A server that answers each request with the next of its byte strings, then closes."""

    def __init__(self, path: Path, *connections: list[bytes]) -> None:
        self.path = path
        self.requests: list[bytes] = []
        self.closed_one = threading.Event()
        self._connections = connections
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for replies in self._connections:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                for data in replies:
                    self.requests.append(read_request(connection))
                    connection.sendall(data)
            self.closed_one.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def read_request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65536)
        if not part:
            return data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Content-Length" in line]
    while length and len(body) < length[0]:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return str(path)


@pytest.fixture
def canned(tmp_path: Path) -> Iterator[Callable[..., Canned]]:
    running: list[Canned] = []

    def make(*connections: list[bytes]) -> Canned:
        running.append(Canned(tmp_path / "sock", *connections))
        return running[-1]

    yield make
    for server in running:
        server.close()


@pytest.fixture
def client(tmp_path: Path, secret_file: str) -> Iterator[Client]:
    with Client(socket_path=str(tmp_path / "sock"), secret_file=secret_file) as made:
        yield made


def test_a_result_has_its_streams_as_bytes(canned: Callable[..., Canned], client: Client) -> None:
    server = canned([reply(RESULT)])
    result = client.exec(["true"], cwd="/x", timeout_ms=5)
    assert (result.stdout, result.stderr) == ("é\n".encode(), b"\xff")
    assert (result.exit_code, result.signal, result.shell_code) == (0, None, 0)
    assert (result.truncated, result.timed_out) == (True, False)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/exec HTTP/1.1\r\n")
    assert f"Authorization: Bearer {SECRET}".encode() in head
    assert json.loads(body) == {"argv": ["true"], "cwd": "/x", "timeout_ms": 5}


BROKEN = [
    ("nothing", b""),
    ("half a head", b"HTTP/1.1 200 OK\r\nContent-Le"),
    ("half a body", reply(RESULT)[:-20]),
    ("no length", b"HTTP/1.1 200 OK\r\n\r\n{}"),
    ("a length that is none", b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}"),
    ("a length beyond reason", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}"),
    ("not HTTP", b"SSH-2.0-OpenSSH\r\n\r\n"),
    (
        "a status in another script",
        "HTTP/1.1 ²²² x\r\nContent-Length: 2\r\n\r\n{}".encode("latin-1"),
    ),
    (
        "a length in another script",
        "HTTP/1.1 200 x\r\nContent-Length: ²\r\n\r\n{}".encode("latin-1"),
    ),
    (
        "a length of many digits",
        b"HTTP/1.1 200 x\r\nContent-Length: " + b"0" * 5000 + b"\r\n\r\n{}",
    ),
    ("JSON without end", b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000),
    ("an empty object", reply({})),
    *[(f"no {name}", reply({k: v for k, v in RESULT.items() if k != name})) for name in RESULT],
    *[(f"another kind of {name}", reply(RESULT | {name: []})) for name in RESULT],
    *[(f"an empty {name}", reply(RESULT | {name: {}})) for name in RESULT],
    ("base64 that is none", reply(RESULT | {"stdout": RESULT["stderr"] | {"b64": "=x"}})),
    ("half a surrogate", reply(RESULT | {"stdout": RESULT["stdout"] | {"text": "\ud800"}})),
    (
        "a stream without its text",
        reply(RESULT | {"stdout": RESULT["stderr"] | {"encoding": "utf8"}}),
    ),
    ("a refusal that is none", reply({}, "403 Forbidden")),
    ("a refusal with odd details", reply({"code": "no", "details": "x"}, "403 Forbidden")),
    ("not JSON", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    ("not an object", reply([])),
    ("a head without end", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000),
]


@pytest.mark.parametrize("data", [row[1] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_reply_that_is_not_whole_is_never_a_result(
    canned: Callable[..., Canned], client: Client, data: bytes
) -> None:
    canned([data])
    with pytest.raises(BrokenReplyError):
        client.exec(["true"])


@pytest.mark.parametrize("document", [{}, {"checks": {}}, {"ready": True, "checks": []}])
def test_what_is_no_readiness_and_no_plan_is_broken(
    canned: Callable[..., Canned], client: Client, document: dict[str, Any]
) -> None:
    canned([reply(document), reply(document)])
    with pytest.raises(BrokenReplyError):
        client.ready()
    with pytest.raises(BrokenReplyError):
        client.plan(["true"])


class Strangers:
    """Listens as another account in a place of its own; what came in is in `requests`."""

    def __init__(self, directory: Path) -> None:
        require_root()
        directory.mkdir(mode=0o755)
        os.chown(directory, ORDINARY_UID, ORDINARY_UID)
        self.path = directory / "broker.sock"
        self.requests: list[bytes] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        os.seteuid(ORDINARY_UID)
        try:
            self._listener.listen()  # SO_PEERCRED tells who did this (unix(7))
        finally:
            os.seteuid(0)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            self.requests.append(read_request(connection))
            if self.requests[0]:
                connection.sendall(reply(RESULT))

    def end(self) -> list[bytes]:
        self._thread.join(10)
        self._listener.close()
        return self.requests


@pytest.fixture
def tmp(tmp_path: Path) -> Iterator[Path]:
    """A place like /tmp, below directories that only root can write."""
    with tempfile.TemporaryDirectory(dir="/run" if os.geteuid() == 0 else tmp_path) as base:
        os.chmod(base, 0o755)
        place = Path(base) / "tmp"
        place.mkdir()
        place.chmod(0o1777)
        yield place


@pytest.mark.parametrize("way", ["", "link", "relative link", "..", "relative"])
def test_nothing_is_sent_to_a_stranger_who_came_first(
    tmp: Path, secret_file: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = Strangers(tmp / "host-broker-0")
    path = str(strangers.path)
    if way == "link":
        (tmp.parent / "way").symlink_to(tmp / "host-broker-0")
        path = str(tmp.parent / "way" / "broker.sock")
    elif way == "relative link":
        (tmp.parent / "way").symlink_to("./tmp/../tmp/host-broker-0/broker.sock")
        path = str(tmp.parent / "way")
    elif way == "..":
        path = f"{tmp}/host-broker-0/../host-broker-0/broker.sock"
    elif way == "relative":
        monkeypatch.chdir(strangers.path.parent)
        path = "broker.sock"
    words = rf"uid {ORDINARY_UID} listens.*nothing was sent"
    with (
        Client(socket_path=path, secret_file=secret_file) as client,
        pytest.raises(StrangerError, match=words),
    ):
        client.exec(["true"])
    assert strangers.end() == [b""]


def test_another_account_serves_in_a_place_that_not_everybody_can_write(
    tmp: Path, secret_file: str
) -> None:
    """As the system's broker does, also where its account has no name: in a container."""
    service = Strangers(tmp.parent / "host-broker")
    with Client(socket_path=str(service.path), secret_file=secret_file) as client:
        assert client.exec(["true"]).exit_code == 0
    assert len(service.end()) == 1


def test_our_own_broker_may_be_anywhere(
    canned: Callable[..., Canned], client: Client, tmp_path: Path
) -> None:
    tmp_path.chmod(0o1777)
    canned([reply(RESULT)])
    assert client.exec(["true"]).exit_code == 0


def test_a_refusal_carries_its_problem(canned: Callable[..., Canned], client: Client) -> None:
    problem = {"code": "busy", "detail": "no runner is free", "retryable": True, "audit_id": "a_9"}
    canned([reply(problem, "503 Service Unavailable")])
    with pytest.raises(RefusedError, match="busy: no runner is free") as refused:
        client.exec(["true"])
    error = refused.value
    assert (error.status, error.code, error.retryable, error.audit_id) == (503, "busy", True, "a_9")
    assert error.problem == problem


def test_not_ready_is_an_answer_but_a_refusal_is_not(
    canned: Callable[..., Canned], client: Client
) -> None:
    canned(
        [reply({"ready": False, "checks": {"x": False}}, "503 x"), reply({"code": "no"}, "401 x")]
    )
    assert client.ready() == {"ready": False, "checks": {"x": False}}
    with pytest.raises(RefusedError):
        client.ready()


def test_one_connection_serves_many_calls(canned: Callable[..., Canned], client: Client) -> None:
    canned([reply({"n": 1}), reply({"n": 2})])
    assert [client.capabilities()["n"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"])
def test_a_connection_that_was_closed_is_made_anew(
    canned: Callable[..., Canned], client: Client, more: str
) -> None:
    server = canned([reply({"n": 1}, more=more)], [reply({"n": 2})])
    assert client.capabilities()["n"] == 1
    assert server.closed_one.wait(10)
    assert client.capabilities()["n"] == 2


def test_bytes_that_nobody_asked_for_are_not_the_next_reply(
    canned: Callable[..., Canned], client: Client
) -> None:
    canned([reply({"n": 1}) + reply({"n": 99})], [reply({"n": 2})])
    assert [client.capabilities()["n"] for _ in range(2)] == [1, 2]


def test_no_broker_is_told_from_a_broken_reply(client: Client) -> None:
    with pytest.raises(UnreachableError, match="no broker answers"):
        client.exec(["true"])


def test_a_refusal_is_read_though_the_request_was_cut_off(tmp_path: Path, client: Client) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10)
                connection.sendall(reply({"code": "body_too_large"}, "413 x"))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    continue

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(RefusedError, match="body_too_large"):
            client.exec(["x" * 4_000_000])
        client.close()
        thread.join(10)


@pytest.mark.parametrize("text", [SECRET, f"Authorization: Bearer {SECRET}", f"{SECRET}\r\n"])
def test_the_secret_is_read_from_either_file_and_shown_nowhere(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    client = Client(socket_path=str(tmp_path / "none"), secret_file=str(path))
    assert client._authorization == f"Bearer {SECRET}"
    assert SECRET not in repr(client)
    with pytest.raises(UnreachableError) as unreachable:
        client.ready()
    assert SECRET not in str(unreachable.value)


@pytest.mark.parametrize("places", [{}, {"socket_path": "/s", "tcp": ("127.0.0.1", 1)}])
def test_exactly_one_place(secret_file: str, places: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Client(secret_file=secret_file, **places)


REQUESTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"argv": [b"a", "b"]}, {"argv": ["a", "b"]}),
    ({"argv": [b"\xff"]}, {"argv": [{"b64": "/w=="}]}),
    ({"argv": ["\udcff"]}, {"argv": [{"b64": "/w=="}]}),
    ({"script": "x", "cwd": b"/\xe9"}, {"script": "x", "cwd_b64": "L+k="}),
    ({"script": "x", "cwd": None, "timeout_ms": None}, {"script": "x"}),
    ({"script": "x", "env": {"A": b"\xff", "B": "b"}},
     {"script": "x", "env": {"A": {"b64": "/w=="}, "B": "b"}}),
    ({"script": "x", "stdin": b""}, {"script": "x", "stdin": {"b64": ""}}),
    ({"script": "x", "roots": [("/a", ["read"]), (b"/\xff", ["exec"])]},
     {"script": "x", "roots": [{"path": "/a", "access": ["read"]},
                               {"path_b64": "L/8=", "access": ["exec"]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "body"), REQUESTS)
def test_a_request_is_spelled_as_the_protocol_has_it(
    arguments: dict[str, Any], body: dict[str, Any]
) -> None:
    assert exec_request(arguments.pop("argv", None), **arguments) == body


def test_importing_it_loads_nothing_slow() -> None:
    slow = {"http.client", "ssl", "email", "asyncio", "dataclasses", "inspect", "typing", "logging"}
    program = "import sys; import broker.client; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert slow.isdisjoint(done.stdout.split())


def test_it_waits_for_a_place_in_a_full_queue(tmp_path: Path, secret_file: str) -> None:
    """A Unix socket says EAGAIN at once to whoever connects without waiting."""
    path = tmp_path / "full"
    answers: list[object] = []

    def ask() -> None:
        with Client(socket_path=str(path), secret_file=secret_file) as client:
            answers.append(client.ready())

    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as fillers:
        listener.bind(str(path))
        listener.listen(0)
        filled = 0
        while filled == 0:
            filler = fillers.enter_context(socket.socket(socket.AF_UNIX))
            filler.setblocking(False)
            filled = filler.connect_ex(str(path))
        assert filled == errno.EAGAIN
        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive() and not is_connecting(asking):
            pass
        fillers.close()
        while asking.is_alive():
            with listener.accept()[0] as connection:
                if connection.recv(1) == b"G":
                    read_request(connection)
                    connection.sendall(reply({"ready": True, "checks": {}}))
                    break
        asking.join(60)
    assert answers == [{"ready": True, "checks": {}}]


def is_connecting(thread: threading.Thread) -> bool:
    """Whether it is inside of connect(2), number 42 on x86-64 (proc_pid_syscall(5))."""
    return Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().startswith("42 ")

# SPDX-License-Identifier: Apache-2.0
"""A connection's limits, over a real socket, with raw bytes: what no well-behaved client sends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from uvicorn.server import ServerState

from broker.transport import HttpLimits, LimitedHttp, http_config

DEFAULTS = HttpLimits()
QUICK = HttpLimits(connections=4, header_timeout_s=0.3, body_idle_s=0.3, keep_alive_s=1)


async def echo(scope: Any, receive: Any) -> None:
    """Answers the length of the body; /early answers before it reads one."""
    body = b""
    while scope["path"] != "/early":
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        body += event["body"]
        if not event["more_body"]:
            break
    if scope["path"] == "/wait":
        gone = asyncio.Event()
        scope["state"]["connection"].when_lost(gone.set)
        await gone.wait()
        scope["app_seen"].set()
        return
    reply = b"%d" % len(body)
    scope["state"]["connection"].answer(200, [], reply)


class Served:
    """The protocol on a Unix socket, on a loop in a thread of its own."""

    def __init__(self, path: str, limits: HttpLimits) -> None:
        self.path = path
        self.client_gone = threading.Event()
        self._limits = limits
        self._loop = uvloop.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _app(self, scope: Any, receive: Any, _send: Any) -> None:
        scope["app_seen"] = self.client_gone
        await echo(scope, receive)

    async def _serve(self) -> None:
        config = http_config(self._app)
        ids = itertools.count(1)
        make = functools.partial(
            LimitedHttp,
            config,
            ServerState(),
            {},
            limits=self._limits,
            next_audit_id=lambda: f"a_{next(ids)}",
        )
        server = await self._loop.create_unix_server(make, self.path)
        self._started.set()
        await self._stop.wait()
        server.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(10)
        sock.connect(self.path)
        return sock

    def exchange(self, data: bytes) -> bytes:
        with self.connect() as sock:
            sock.sendall(data)
            return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def problem_of(reply: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"audit-id: a_" in head
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[HttpLimits], Served]]:
    running: list[Served] = []

    def start(limits: HttpLimits = DEFAULTS) -> Served:
        running.append(Served(str(tmp_path / f"s{len(running)}"), limits))
        return running[-1]

    yield start
    for served in running:
        served.close()


POST = b"POST /x HTTP/1.1\r\nHost: b\r\nConnection: close\r\n"

MALFORMED = [
    (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400, "Content-Length"),
    (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400, "Content-Length"),
    (POST + b"Content-Length: 3, 3\r\n\r\nabc", 400, "Content-Length"),
    (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 400, "Content-Length"),
    (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: gzip\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "chunk size"),
    (POST + b"A: b\r\n c: d\r\n\r\n", 400, "whitespace"),
    (POST + b"A : b\r\n\r\n", 400, "header"),
    (POST + b"A: b\0c\r\n\r\n", 400, "header value"),
    (b"GET / HTTP/2.0\r\nHost: b\r\n\r\n", 400, "HTTP version"),
    (b"GET / HTTP/1.1\nHost: b\n\n", 400, "CRLF"),
    (b"GET /\xff HTTP/1.1\r\nHost: b\r\n\r\n", 400, "url"),
    (b"NOPE / HTTP/1.1\r\nHost: b\r\n\r\n", 400, "method"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "method"),
]


@pytest.mark.parametrize(("data", "status", "word"), MALFORMED)
def test_an_ambiguous_or_malformed_request_is_named_and_refused(
    serve: Callable[..., Served], data: bytes, status: int, word: str
) -> None:
    got, problem = problem_of(serve().exchange(data))
    assert got == status
    assert problem["code"] == "bad_request"
    assert word.lower() in problem["detail"].lower()


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        (b"Content-Length: 3\r\n\r\nabc", b"200"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"200"),
        (b"\r\n", b"200"),
    ],
)
def test_one_unambiguous_length_is_taken(
    serve: Callable[..., Served], extra: bytes, status: bytes
) -> None:
    assert serve().exchange(POST + extra).split()[1] == status


def padded(total: int) -> bytes:
    """A request whose header section, counted as we count it, is exactly `total` bytes."""
    fixed = len(b"/x") + len(b"Host: b\r\n") + len(b"Connection: close\r\n") + len(b"X: \r\n")
    return POST + b"X: " + b"a" * (total - fixed) + b"\r\n\r\n"


def test_headers_at_the_limit_pass_and_one_byte_more_does_not(serve: Callable[..., Served]) -> None:
    served = serve()
    limit = HttpLimits().header_bytes
    assert served.exchange(padded(limit)).split()[1] == b"200"
    status, problem = problem_of(served.exchange(padded(limit + 1)))
    assert (status, problem["code"]) == (431, "headers_too_large")
    assert problem["details"] == {"limit": limit}


def test_a_header_line_that_never_ends_is_counted_as_it_comes(serve: Callable[..., Served]) -> None:
    with serve().connect() as sock:
        sock.sendall(POST + b"X: ")
        for _ in range(17):
            sock.sendall(b"a" * 1024)
        status, _ = problem_of(read_all(sock))
    assert status == 431


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(
    serve: Callable[..., Served], chunked: bool
) -> None:
    served = serve()

    def post(size: int) -> bytes:
        body = b"x" * size
        if chunked:
            head = POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size
            return served.exchange(head + body + b"\r\n0\r\n\r\n")
        return served.exchange(POST + b"Content-Length: %d\r\n\r\n" % size + body)

    limit = HttpLimits().body_bytes
    assert post(limit).endswith(b"\r\n\r\n%d" % limit)
    status, problem = problem_of(post(limit + 1))
    assert (status, problem["code"]) == (413, "body_too_large")


def test_the_answer_is_read_by_a_client_that_is_still_sending(serve: Callable[..., Served]) -> None:
    size = 3 * 1024 * 1024
    reply = serve().exchange(POST + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
    assert problem_of(reply)[0] == 413


def test_slow_headers_time_out(serve: Callable[..., Served]) -> None:
    for sent in (b"", b"GET /x HT", POST):
        status, problem = problem_of(serve(QUICK).exchange(sent))
        assert (status, problem["code"]) == (408, "request_timeout")
        assert problem["detail"].startswith("headers:")


def test_a_body_that_stops_times_out(serve: Callable[..., Served]) -> None:
    status, problem = problem_of(serve(QUICK).exchange(POST + b"Content-Length: 9\r\n\r\nabc"))
    assert (status, problem["code"]) == (408, "request_timeout")
    assert problem["detail"].startswith("body:")


def test_a_quiet_connection_is_closed_without_an_answer(serve: Callable[..., Served]) -> None:
    with serve(QUICK).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n")
        reply = read_all(sock)
    assert reply.split()[1] == b"200"
    assert reply.count(b"HTTP/1.1") == 1


def test_blank_lines_do_not_keep_a_connection_alive(serve: Callable[..., Served]) -> None:
    with serve(QUICK).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n")
        assert b"200" in sock.recv(65536)
        sock.sendall(b"\r\n")
        assert read_all(sock) == b""


def test_one_connection_too_many_is_told_so(serve: Callable[..., Served]) -> None:
    served = serve(HttpLimits(connections=4))
    kept = [served.connect() for _ in range(4)]
    try:
        for sock in kept:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n")
            assert b"200" in sock.recv(65536)
        status, problem = problem_of(served.exchange(b""))
        assert (status, problem["code"]) == (503, "busy")
    finally:
        for sock in kept:
            sock.close()


def test_a_second_request_before_the_answer_ends_the_connection(
    serve: Callable[..., Served],
) -> None:
    served = serve()
    with served.connect() as sock:
        sock.sendall(b"GET /wait HTTP/1.1\r\nHost: b\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n")
        status, problem = problem_of(read_all(sock))
    assert status == 400
    assert "second request" in problem["detail"]


@pytest.mark.parametrize("how", ["close", "half-close"])
def test_a_client_that_leaves_is_noticed(serve: Callable[..., Served], how: str) -> None:
    served = serve()
    with served.connect() as sock:
        sock.sendall(b"GET /wait HTTP/1.1\r\nHost: b\r\n\r\n")
        if how == "half-close":
            sock.shutdown(socket.SHUT_WR)
            assert served.client_gone.wait(10)
    assert served.client_gone.wait(10)


def test_expect_100_continue_is_answered_before_the_body(serve: Callable[..., Served]) -> None:
    with serve().connect() as sock:
        sock.sendall(POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert read_all(sock).endswith(b"\r\n\r\n3")


def test_expect_100_continue_with_too_large_a_body_is_refused_at_once(
    serve: Callable[..., Served],
) -> None:
    reply = serve().exchange(POST + b"Content-Length: 9999999\r\nExpect: 100-continue\r\n\r\n")
    assert problem_of(reply)[0] == 413


def test_an_upgrade_is_not_taken_up(serve: Callable[..., Served]) -> None:
    request = b"GET / HTTP/1.1\r\nHost: b\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    reply = serve().exchange(request)
    assert reply.split()[1] == b"200"
    assert b"connection: close" in reply


def test_a_body_too_large_after_an_early_answer_closes_without_a_second_one(
    serve: Callable[..., Served],
) -> None:
    with serve().connect() as sock:
        sock.sendall(b"POST /early HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n")
        first = sock.recv(65536)
        size = HttpLimits().body_bytes + 1
        sock.sendall(b"%x\r\n" % size + b"x" * (size - 1))
        sock.sendall(b"x")
        rest = b""
        with contextlib.suppress(ConnectionResetError):
            rest = read_all(sock)
    assert first.split()[1] == b"200"
    assert b"HTTP/1.1" not in rest

# SPDX-License-Identifier: Apache-2.0
"""A connection's limits, over a real socket, with raw bytes: what no well-behaved client sends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.app import App
from broker.audit import Audit
from broker.service import Service
from broker.transport import Finish, Handler, Head, HttpConnection, HttpLimits, HttpServer

DEFAULTS = HttpLimits()
QUICK = HttpLimits(connections=4, header_timeout_s=0.3, body_timeout_s=0.3, keep_alive_s=1)
PUBLIC = frozenset((b"/public", b"/wait", b"/large"))

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Echo:
    """Answers the body's length; /early before there is a body, /wait when the client has left."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.waiting = threading.Semaphore(0)
        self.client_gone = threading.Event()

    def begin(self, connection: HttpConnection, head: Head) -> Finish | None:
        self.begun.append(head.path)
        if head.path == b"/early":
            connection.answer(200, [], b"early")
            return None
        if head.path == b"/wait":
            return lambda body: self._wait(connection)
        if head.path == b"/large":
            return lambda body: connection.answer(200, [], bytes(16 << 20))
        if head.path == b"/later":
            return lambda body: self._later(connection, body)
        return lambda body: connection.answer(200, [], b"%d" % len(body))

    async def _wait(self, connection: HttpConnection) -> None:
        gone = asyncio.Event()
        connection.when_lost(gone.set)
        self.waiting.release()
        await gone.wait()
        self.client_gone.set()
        connection.answer(200, [], b"nobody reads this")

    async def _later(self, connection: HttpConnection, body: bytes) -> None:
        await asyncio.sleep(0)
        connection.answer(200, [], b"%d" % len(body))


class Unrecorded:
    """Takes the place of the log."""

    def append_lazy(self, kind: str, fields: object) -> None:
        return


class Nobody:
    def verify(self, authorization: bytes | None) -> bool:
        return False


def lockout() -> Handler:
    """What answers where nobody has the right secret."""
    return App(
        service=cast("Service", None),
        audit=cast("Audit", Unrecorded()),
        secrets=Nobody(),
        next_audit_id=lambda: "a_1",
    )


class Served:
    """The protocol on a Unix socket, on a loop in a thread of its own."""

    def __init__(
        self,
        path: str,
        limits: HttpLimits,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        handler: Handler | None = None,
    ) -> None:
        self.path = path
        self.echo = Echo()
        self._handler = handler or self.echo
        self._limits = limits
        self._loop = new_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        ids = itertools.count(1)
        self.http = HttpServer(
            self._handler,
            lambda: f"a_{next(ids)}",
            [(b"x-every", b"reply")],
            self._limits,
            public=PUBLIC,
        )
        server = await self._loop.create_unix_server(self.http.connection, self.path)
        self._started.set()
        await self._stop.wait()
        server.close()
        await self.http.close_connections()

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


def read_one(sock: socket.socket) -> bytes:
    """One answer, of which nothing was read."""
    reply = b""
    while b"\r\n\r\n" not in reply:
        reply += read_some(sock, 65536)
    head, _, body = reply.partition(b"\r\n\r\n")
    size = int(head.partition(b"content-length: ")[2].split()[0])
    while len(body) < size:
        body += read_some(sock, size - len(body))
    return head + b"\r\n\r\n" + body


def read_some(sock: socket.socket, size: int) -> bytes:
    part = sock.recv(size)
    assert part, "closed"
    return part


def trickle(sock: socket.socket, data: bytes) -> bytes:
    """Sends it again and again until something comes; returns all that comes."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(1000):
            if select.select([sock], [], [], 0.01)[0]:
                return read_all(sock)
            sock.send(data)
        pytest.fail("nothing came")
    return b""


def flood(sock: socket.socket, data: bytes) -> None:
    for _ in range(1000):
        sock.sendall(data)


def problem_of(reply: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"audit-id: a_" in head
    assert b"x-every: reply" in head
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[HttpLimits], Served]]:
    running: list[Served] = []

    def start(limits: HttpLimits = DEFAULTS, **options: Any) -> Served:
        running.append(Served(str(tmp_path / f"s{len(running)}"), limits, **options))
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


def test_a_body_that_trickles_times_out(serve: Callable[..., Served]) -> None:
    with serve(QUICK).connect() as sock:
        sock.sendall(POST + b"Content-Length: 2000\r\n\r\n")
        status, problem = problem_of(trickle(sock, b"x"))
    assert (status, problem["code"]) == (408, "request_timeout")
    assert problem["detail"].startswith("body:")


def test_headers_that_trickle_time_out(serve: Callable[..., Served]) -> None:
    with serve(QUICK).connect() as sock:
        sock.sendall(POST)
        status, problem = problem_of(trickle(sock, b"A: b\r\n"))
    assert (status, problem["code"]) == (408, "request_timeout")


def test_blank_lines_do_not_keep_a_connection_alive(serve: Callable[..., Served]) -> None:
    with serve(QUICK).connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n")
        assert b"200" in sock.recv(65536)
        assert trickle(sock, b"\r\n") == b""


# ---- places ----

GET = b"GET %b HTTP/1.1\r\nHost: b\r\n\r\n"


@contextlib.contextmanager
def connected(served: Served, count: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """That many connections, each of which was answered `data`, or has begun to be."""
    with contextlib.ExitStack() as opened:
        socks = [opened.enter_context(served.connect()) for _ in range(count)]
        for sock in socks:
            sock.sendall(data)
            assert not data or sock.recv(1) == b"H"
        yield socks


def ended(sock: socket.socket) -> bool:
    """Whether it is closed at the other end, now or before the time-out."""
    with contextlib.suppress(ConnectionResetError):
        read_all(sock)
    return True


def test_one_connection_too_many_is_told_so(serve: Callable[..., Served]) -> None:
    served = serve(HttpLimits(connections=4))
    with connected(served, 4, GET % b"/") as kept:
        status, problem = problem_of(served.exchange(b""))
        assert (status, problem["code"]) == (503, "busy")
        for sock in kept:
            sock.recv(65536)
            sock.sendall(GET % b"/")
            assert b"200" in read_one(sock)


def test_beyond_twice_as_many_connections_are_closed_without_an_answer(
    serve: Callable[..., Served],
) -> None:
    served = serve(HttpLimits(connections=1, linger_s=60))
    with connected(served, 1, GET % b"/"), served.connect() as told:
        assert told.recv(65536).split()[1] == b"503"
        with served.connect() as sock:
            assert read_all(sock) == b""


def test_who_was_told_that_none_is_free_takes_no_place(serve: Callable[..., Served]) -> None:
    served = serve(HttpLimits(connections=2, linger_s=60))
    with connected(served, 2, GET % b"/") as kept, served.connect() as told:
        assert told.recv(65536).split()[1] == b"503"
        before = len(served.http.connections)
        kept[0].close()
        while len(served.http.connections) == before:
            continue
        assert served.exchange(POST + b"\r\n").split()[1] == b"200"


@pytest.mark.parametrize(
    "data",
    [GET % b"/public", GET % b"/large", GET % b"/early"],
    ids=["idle", "does not read", "lingers"],
)
def test_connections_without_the_secret_make_room_oldest_first(
    serve: Callable[..., Served], data: bytes
) -> None:
    served = serve(HttpLimits(connections=4, linger_s=60))
    with connected(served, 4, data) as kept, served.connect() as sock:
        sock.sendall(GET % b"/")
        assert b"200" in read_one(sock)
        assert ended(kept[0])
        assert len(served.http.connections) == 4


@pytest.mark.parametrize("data", [b"", POST, POST + b"Content-Length: 9\r\n\r\n"])
def test_a_new_connection_closes_one_that_has_not_asked_yet(
    serve: Callable[..., Served], data: bytes
) -> None:
    served = serve(HttpLimits(connections=2, body_timeout_s=60, header_timeout_s=60))
    with connected(served, 1, GET % b"/") as proven, served.connect() as slow:
        slow.sendall(data.replace(b"/x", b"/public"))
        assert served.exchange(POST + b"\r\n").split()[1] == b"200"
        assert ended(slow)
        proven[0].recv(65536)
        proven[0].sendall(GET % b"/")
        assert b"200" in read_one(proven[0])


def test_a_connection_that_is_served_is_not_closed_for_another(
    serve: Callable[..., Served],
) -> None:
    served = serve(HttpLimits(connections=1))
    with served.connect() as sock:
        sock.sendall(GET % b"/wait")
        assert served.echo.waiting.acquire(timeout=10)
        assert problem_of(served.exchange(b""))[0] == 503
        assert not served.echo.client_gone.is_set()


# ---- answers ----


@pytest.mark.parametrize(
    "extra", [b"", b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_an_answer_to_the_headers_alone_ends_the_connection(
    serve: Callable[..., Served], extra: bytes
) -> None:
    reply = serve().exchange(b"POST /early HTTP/1.1\r\nHost: b\r\n" + extra + b"\r\n")
    assert b"connection: close\r\n" in reply
    assert reply.endswith(b"early")


def test_without_the_secret_every_answer_ends_the_connection(serve: Callable[..., Served]) -> None:
    served = serve(handler=lockout())
    statuses = []
    for _ in range(11):
        reply = served.exchange(b"POST /v1/exec HTTP/1.1\r\nHost: b\r\nContent-Length: 9\r\n\r\n")
        assert b"connection: close\r\n" in reply
        statuses.append(reply.split()[1])
    assert statuses == [b"401"] * 10 + [b"429"]


def test_an_answer_to_the_headers_alone_is_read_by_a_client_that_sends_its_body(
    serve: Callable[..., Served],
) -> None:
    size = HttpLimits().body_bytes
    head = b"POST /early HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n" % size
    assert serve().exchange(head + b"x" * size).endswith(b"early")


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_request_behind_an_unsent_answer_waits_until_that_is_read(
    serve: Callable[..., Served], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    served = serve(new_loop=new_loop)
    with served.connect() as sock:
        sock.sendall(GET % b"/large")
        assert sock.recv(1, socket.MSG_PEEK) == b"H"
        sock.sendall(GET % b"/x")
        served.exchange(POST + b"\r\n")  # the loop has been round
        assert served.echo.begun == [b"/large", b"/x"]
        read_one(sock)
        assert read_one(sock).endswith(b"\r\n\r\n0")
    assert served.echo.begun == [b"/large", b"/x", b"/x"]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_request_sent_together_with_one_whose_answer_is_unsent_is_not_taken(
    serve: Callable[..., Served], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    served = serve(new_loop=new_loop)
    assert served.exchange(3 * (GET % b"/large")).count(b"HTTP/1.1") == 1
    assert served.echo.begun == [b"/large"]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_client_that_only_asks_is_stopped(
    serve: Callable[..., Served], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with (
        serve(QUICK, new_loop=new_loop).connect() as sock,
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        flood(sock, 100 * (GET % b"/x"))


@pytest.mark.parametrize("extra", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_slow_reader_gets_its_whole_answer(
    serve: Callable[..., Served],
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    extra: bytes,
) -> None:
    limits = HttpLimits(header_timeout_s=0.25, keep_alive_s=1.5, linger_s=0.01)
    served = serve(limits, new_loop=new_loop)
    with served.connect() as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: b\r\n" + extra + b"\r\n")
        got = 0
        for _ in range(10):
            got += len(sock.recv(1 << 20, socket.MSG_WAITALL))
            assert problem_of(served.exchange(b""))[0] == 408  # the time that this takes
        assert got + len(read_all(sock)) > 16 << 20


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
            assert served.echo.client_gone.wait(10)
    assert served.echo.client_gone.wait(10)


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


def test_an_answer_that_nobody_takes_does_not_stay_for_ever(serve: Callable[..., Served]) -> None:
    served = serve(QUICK)
    with served.connect() as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: b\r\n\r\n")
        assert sock.recv(1 << 20, socket.MSG_WAITALL).startswith(b"HTTP/1.1 200")
        while served.http.connections:
            continue
        assert len(read_all(sock)) < 16 << 20


def test_many_requests_on_one_connection(serve: Callable[..., Served]) -> None:
    with serve().connect() as sock:
        for number in range(20):
            path = b"/later" if number % 2 else b"/x"
            body = b"x" * number
            sock.sendall(
                b"POST %b HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n%b"
                % (path, len(body), body)
            )
            assert sock.recv(65536).endswith(b"\r\n\r\n%d" % number)


def test_head_gets_the_headers_only(serve: Callable[..., Served]) -> None:
    reply = serve().exchange(b"HEAD /x HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
    assert b"content-length: 1\r\n" in reply
    assert reply.endswith(b"\r\n\r\n")


def test_a_target_in_absolute_form_is_taken(serve: Callable[..., Served]) -> None:
    data = b"GET http://b/early?x HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"
    assert serve().exchange(data).endswith(b"early")


def test_an_http_10_client_is_answered_and_closed(serve: Callable[..., Served]) -> None:
    assert serve().exchange(b"GET /x HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n0")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(str(tmp_path_factory.mktemp("shared") / "s"), DEFAULTS)
    yield served
    served.close()


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"


@given(cuts=st.sets(st.integers(1, len(CHUNKED) - 1)))
@settings(max_examples=100, deadline=None)
def test_a_request_in_any_pieces_is_the_same_request(shared: Served, cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(CHUNKED)]
    with shared.connect() as sock:
        for start, end in itertools.pairwise(edges):
            sock.sendall(CHUNKED[start:end])
        assert read_all(sock).endswith(b"\r\n\r\n5")


PIECES = st.sampled_from(
    [b"POST /x HTTP/1.1", b"GET / HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: b", b"abc", b"\0",
     b"Content-Length: 3", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"0\r\n\r\n",
     b"3\r\nabc\r\n", b"Expect: 100-continue", b"Upgrade: x", b"Connection: close", b"\xff", b" "]
)  # fmt: skip


@given(pieces=st.lists(PIECES, max_size=25))
@settings(max_examples=300, deadline=None)
def test_whatever_comes_is_answered_or_refused_and_the_connection_ends(
    shared: Served, pieces: list[bytes]
) -> None:
    with shared.connect() as sock:
        sock.sendall(b"".join(pieces))
        sock.shutdown(socket.SHUT_WR)
        reply = b""
        with contextlib.suppress(ConnectionResetError):
            reply = read_all(sock)
    statuses = {line.split()[1] for line in reply.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")}
    assert statuses <= {b"100", b"200", b"400"}

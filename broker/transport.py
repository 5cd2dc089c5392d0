# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 connection, with its limits: what is refused before any handler sees it.

llhttp (httptools) does the parsing; this adds what a server that less trusted callers can reach
needs: bounds on headers, body, time and connections, no ambiguous lengths, no pipelining, no
upgrades, and refusals that are problem documents.  Routing and authentication are app.py's.

Theory of operation.  Bytes go into the parser, whose callbacks move the connection through its
stages:

    HEADERS → BODY → ANSWERING → SENDING → IDLE → HEADERS …      any → LINGER → closed

At the end of the headers the handler decides: it may answer at once, which ends the connection, or
take the request, and gets the body when it is whole.  There is one request in hand at a time, until
the kernel has its whole answer: until then nothing is read, so a client that does not read its
answers costs one of them.  The stage also says what the connection waits for, and so how long it
may: in all, not for each byte; one timer serves them all.

A refusal ends the connection.  What the client still sends is read and dropped for a moment, so
that it gets to see the answer instead of a reset (unix(7): closing with unread data resets).

A connection holds one of a limited number of places.  Those on which no request was authenticated
give theirs up to a new connection, so that callers without the secret cannot keep others out.
"""

from __future__ import annotations

import asyncio
import enum
import http
import json
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import httptools

from broker.errors import (
    PROBLEM_TYPE,
    BadRequestError,
    BodyTooLargeError,
    BrokerError,
    BusyError,
    HeadersTooLargeError,
    RequestTimeoutError,
)

LINGER_BYTES = 4 * 1024 * 1024

Headers = list[tuple[bytes, bytes]]

_UCRED = struct.Struct("=3i")  # pid, uid, gid: struct ucred, unix(7)
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
_ONCE = frozenset(
    (b"authorization", b"host", b"origin", b"content-type", b"content-length", b"expect",
     b"transfer-encoding", b"idempotency-key")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a connection may use.

    `body_timeout_s` is for all of a body.  `keep_alive_s` is for the quiet time between two
    requests, and for a client that takes nothing of its answer.
    """

    header_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    connections: int = 256
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    linger_s: float = 2.0


class _Stage(enum.Enum):
    """What the next bytes belong to, or whose turn it is."""

    IDLE = "idle"
    HEADERS = "headers"
    BODY = "body"
    ANSWERING = "answering"
    SENDING = "sending"  # answered, but the kernel has not taken all of it
    LINGER = "linger"  # nothing more is answered: what comes is dropped


class _RefusedError(Exception):
    """Carries a refusal out of a parser callback; httptools gives it back as its context."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel says (SO_PEERCRED), at the time of connect(2)."""

    transport: str  # "unix" or "tcp"
    uid: int | None = None
    pid: int | None = None


@dataclass(slots=True)
class Head:
    """A request without its body.  `path` and `query` are as sent, nothing is decoded.

    `headers` have names in lower case; those that decide something are there once at most.
    """

    method: str = ""
    path: bytes = b""
    query: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)


class Handler(Protocol):
    """Who answers.  Each request is begun once, and finished unless it was answered before."""

    def begin(self, connection: HttpConnection, head: Head) -> Finish | None:
        """Returns what is to be called with the body; None if `connection.answer` was called."""


Finish = Callable[[bytes], Coroutine[Any, Any, None] | None]
"""Takes the whole body.  Either it has answered when it returns, or what it returns will."""


@dataclass(slots=True)
class HttpServer:
    """What the connections of a server share.

    `headers` are sent with every reply.  `public` are the paths the handler takes requests for
    without a secret: a request taken for any other proves that its sender has it.
    """

    handler: Handler
    next_audit_id: Callable[[], str]
    headers: Headers
    limits: HttpLimits = HttpLimits()
    public: frozenset[bytes] = frozenset()
    connections: set[HttpConnection] = field(default_factory=set)  # those with a place
    unproven: dict[HttpConnection, None] = field(default_factory=dict)  # of them, oldest first
    turned_away: set[HttpConnection] = field(default_factory=set)  # being told that none is free
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def connection(self) -> HttpConnection:
        """For create_server()."""
        return HttpConnection(self)

    def admit(self, connection: HttpConnection) -> bool:
        """Gives it a place, if need be that of the oldest that nobody needs to miss."""
        if len(self.connections) >= self.limits.connections:
            evicted = next((other for other in self.unproven if other.evict()), None)
            if evicted is None:
                return False
            self.forget(evicted)
        self.connections.add(connection)
        self.unproven[connection] = None
        return True

    def forget(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        self.unproven.pop(connection, None)
        self.turned_away.discard(connection)
        self.quiet.set()

    async def close_connections(self) -> None:
        """Closes each connection once it is idle; returns when there is none."""
        for connection in tuple(self.connections):
            connection.close_when_answered()
        while self.connections or self.turned_away:
            self.quiet.clear()
            await self.quiet.wait()


class HttpConnection(asyncio.Protocol):
    """A connection, from connect(2) to close(2)."""

    def __init__(self, server: HttpServer) -> None:
        self.peer = Peer("unix")
        self._server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._stage = _Stage.HEADERS
        self._deadline_s = 0.0  # of this stage; 0 if it has none, or none yet
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes that the kernel has not taken, as of the last look
        self._last = False  # no further request is taken
        # Of the request in hand:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0  # of headers the parser has given out
        self._raw_bytes = 0  # of headers as they came, or of what is dropped
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._finish: Finish | None = None
        self._begun = self._answered = False
        self._keep_alive = True
        self._on_lost: Callable[[], None] | None = None
        self._lost = False

    # ---- the connection ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # any unsent byte pauses
        self.peer = _peer_of(transport)
        if self._server.admit(self):
            self._watch()
        elif len(self._server.turned_away) < self._limits.connections:
            self._server.turned_away.add(self)
            self._refuse(BusyError("connection"))
        else:
            self._stage = _Stage.LINGER
            self._transport.abort()  # too many even to be told why

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stage = _Stage.LINGER
        self._server.forget(self)
        self._tell_lost()

    def eof_received(self) -> None:
        """A half-closed connection counts as gone: on a stream it cannot be told from closed."""

    def data_received(self, data: bytes) -> None:
        if self._stage is _Stage.LINGER:
            self._drop(len(data))
            return
        began_in = self._stage
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken; answered as if not asked for, then closed
        except httptools.HttpParserError as error:
            self._refuse(_refusal(error))
            return
        if self._stage is _Stage.HEADERS and began_in is not _Stage.BODY:
            self._count_raw(len(data))
        self._watch()

    def pause_writing(self) -> None:
        """Not all of what was written could be sent: until it is, no further request is read."""
        self._unsent = self._transport.get_write_buffer_size()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._unsent = 0
        self._transport.resume_reading()
        if self._stage is _Stage.SENDING:
            self._enter(_Stage.IDLE)
        elif self._stage is _Stage.LINGER:
            self._deadline_s = 0.0  # the moment begins when the answer is out
        self._watch()

    def evict(self) -> bool:
        """Closes it for another, unless a request is being served."""
        if self._stage is _Stage.ANSWERING:
            return False
        self._stage = _Stage.LINGER
        self._transport.abort()
        return True

    def when_lost(self, act: Callable[[], None] | None) -> None:
        """Calls `act` once when the client has gone, at once if it has; None forgets it."""
        self._on_lost = act
        if self._lost:
            self._tell_lost()

    def _tell_lost(self) -> None:
        self._lost = True
        act, self._on_lost = self._on_lost, None
        if act is not None:
            act()

    def close_when_answered(self) -> None:
        """Takes no further request."""
        self._last = True
        self._keep_alive = False
        if self._stage is _Stage.IDLE or (self._stage is _Stage.HEADERS and not self._url):
            self._transport.close()
        elif self._stage is _Stage.SENDING:
            self._end()

    # ---- the parser ----

    def on_message_begin(self) -> None:
        if self._stage in (_Stage.ANSWERING, _Stage.SENDING):
            # Nobody needs it; a client that has left could not be noticed behind its queue, and
            # the answers to one that does not read would pile up.
            raise _RefusedError(BadRequestError("a second request before the answer to the first"))
        if not self._keep_alive:
            raise _RefusedError(BadRequestError("a request after the last one"))
        self._enter(_Stage.HEADERS)
        self._url = b""
        self._headers = {}
        self._body = []
        self._header_bytes = self._raw_bytes = self._body_bytes = 0
        self._begun = self._answered = False
        self._finish = None

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        name = name.lower()
        if name in self._headers:
            if name in _ONCE:
                raise _RefusedError(
                    BadRequestError(f"header {name.decode('ascii', 'replace')} is given twice")
                )
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._enter(_Stage.BODY)
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _RefusedError(BadRequestError("HTTP version is not 1.1"))
        self._refuse_body()
        self._keep_alive = (
            version == "1.1"
            and self._parser.should_keep_alive()
            and not self._parser.should_upgrade()
            and not self._last
        )
        path, query = _split(self._url)
        self._begun = True
        head = Head(self._parser.get_method().decode("ascii"), path, query, self._headers)
        self._finish = self._server.handler.begin(self, head)
        if self._finish is None:
            return
        if path not in self._server.public:
            self._server.unproven.pop(self, None)
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse_body(self) -> None:
        coding = self._headers.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise _RefusedError(BadRequestError("Transfer-Encoding is not 'chunked'"))
        if int(self._headers.get(b"content-length", b"0")) > self._limits.body_bytes:
            raise _RefusedError(BodyTooLargeError(self._limits.body_bytes))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            raise _RefusedError(BodyTooLargeError(self._limits.body_bytes))
        if self._finish is not None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        finish, self._finish = self._finish, None
        if self._stage is _Stage.LINGER or finish is None:
            return
        self._enter(_Stage.ANSWERING)
        answering = finish(b"".join(self._body))
        self._body = []
        if answering is not None:
            task = self._loop.create_task(answering)
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.header_bytes:
            raise _RefusedError(HeadersTooLargeError(self._limits.header_bytes))

    def _count_raw(self, size: int) -> None:
        """The parser holds an unfinished line back, so its bytes are counted as they come."""
        self._raw_bytes += size
        if self._raw_bytes > self._limits.header_bytes:
            self._refuse(HeadersTooLargeError(self._limits.header_bytes))

    # ---- time ----

    def _enter(self, stage: _Stage) -> None:
        """The time of a stage begins with it; more bytes for the same one do not extend it."""
        if stage is not self._stage:
            self._stage = stage
            self._deadline_s = 0.0

    def _watch(self) -> None:
        """Sets the deadline for what the connection waits for now, if that is not done.

        A timer that is armed for earlier is left alone: it looks again when it fires.  So a request
        that comes in one piece touches no timer.
        """
        if self._deadline_s:
            return
        allowed_s = self._allowed_s()
        if allowed_s is None:
            return
        if self._unsent:
            self._unsent = self._transport.get_write_buffer_size()
        self._deadline_s = self._loop.time() + allowed_s
        if self._timer is None or self._timer.when() > self._deadline_s:
            self._arm(self._deadline_s)

    def _allowed_s(self) -> float | None:
        match self._stage:
            case _Stage.HEADERS:
                return self._limits.header_timeout_s
            case _Stage.BODY:
                return self._limits.body_timeout_s
            case _Stage.IDLE | _Stage.SENDING:
                return self._limits.keep_alive_s
            case _Stage.LINGER:
                return self._limits.keep_alive_s if self._unsent else self._limits.linger_s
            case _Stage.ANSWERING:
                return None

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline_s, self._late)

    def _late(self) -> None:
        self._timer = None
        if self._deadline_s == 0.0:
            return
        if self._loop.time() < self._deadline_s:
            self._arm(self._deadline_s)
        elif self._stage is _Stage.HEADERS:
            limit_s = self._limits.header_timeout_s
            self._refuse(RequestTimeoutError(f"headers: not complete after {limit_s:g} s"))
        elif self._stage is _Stage.BODY:
            limit_s = self._limits.body_timeout_s
            self._refuse(RequestTimeoutError(f"body: not complete after {limit_s:g} s"))
        elif self._transport.get_write_buffer_size() < self._unsent:
            self._deadline_s = 0.0  # slow, but it reads its answer
            self._watch()
        else:
            self._transport.abort()  # quiet, or not even reading what it asked for

    # ---- answering ----

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Writes the whole reply to the request in hand, in one piece.

        Without effect where the client has gone or the request was refused meanwhile.  An answer
        to the headers alone ends the connection: nobody is held to end a body that nobody wants.
        """
        if self._answered or self._stage is _Stage.LINGER:
            return
        self._answered = True
        if self._stage is _Stage.BODY:
            self._keep_alive = False
        self._transport.write(self._reply(status, headers, body, close=not self._keep_alive))
        if not self._keep_alive:
            self._end()
        else:
            self._enter(_Stage.SENDING if self._unsent else _Stage.IDLE)
            self._watch()

    def _reply(self, status: int, headers: Headers, body: bytes, *, close: bool) -> bytes:
        lines = [_STATUS_LINES[status]]
        for name, value in (*self._server.headers, *headers):
            lines += [name, b": ", value, b"\r\n"]
        lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
        if self._parser.get_method() != b"HEAD":
            lines.append(body)
        return b"".join(lines)

    def _refuse(self, error: BrokerError) -> None:
        """Answers and closes.  Where an answer was given there is nothing left to say."""
        if self._stage is _Stage.LINGER:
            return
        if not (self._begun and self._answered):
            audit_id = self._server.next_audit_id()
            headers = [(b"audit-id", audit_id.encode()), (b"content-type", PROBLEM_TYPE.encode())]
            if error.retry_after_s is not None:
                headers.append((b"retry-after", b"%d" % error.retry_after_s))
            body = json.dumps(error.problem(audit_id)).encode()
            self._transport.write(self._reply(error.status, headers, body, close=True))
        self._end()
        self._tell_lost()

    def _end(self) -> None:
        """Says that nothing follows, and drops what still comes for a moment."""
        self._enter(_Stage.LINGER)
        self._raw_bytes = 0
        if self._transport.is_closing():
            return
        self._transport.write_eof()
        self._watch()

    def _drop(self, size: int) -> None:
        self._raw_bytes += size
        if self._raw_bytes > LINGER_BYTES:
            self._transport.abort()


def _split(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target, which may be in absolute form (RFC 9112 section 3.2)."""
    if url.startswith(b"/"):
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""


def _refusal(error: httptools.HttpParserError) -> BrokerError:
    """What the parser objects to, in its words: they are constants and name the header."""
    if isinstance(error.__context__, _RefusedError):
        return error.__context__.error
    return BadRequestError(f"cannot read the request: {error}")


def _peer_of(transport: asyncio.BaseTransport) -> Peer:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return Peer("tcp")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(credentials)
    return Peer("unix", uid, pid)

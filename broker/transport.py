# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 connection, with its limits: what is refused before any handler sees it.

uvicorn's protocol over llhttp does the parsing; this subclass adds what a server that less trusted
callers can reach needs: bounds on headers, body, time and connections, no ambiguous lengths, no
pipelining, and answers that are problem documents.  Routing and authentication are server.py's.

A refusal here ends the connection.  What the client still sends is read and dropped for a moment,
so that it gets to see the answer instead of a reset (unix(7): closing with unread data resets).
"""

from __future__ import annotations

import asyncio
import enum
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

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
_VERSIONS = ("1.1", "1.0")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a connection may use.  `keep_alive_s` is for the quiet time between two requests."""

    header_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    connections: int = 256
    header_timeout_s: float = 10.0
    body_idle_s: float = 30.0
    keep_alive_s: int = 75
    linger_s: float = 2.0


class _Stage(enum.Enum):
    """Where in a request the bytes that come next belong."""

    IDLE = "idle"
    HEADERS = "headers"
    BODY = "body"
    LINGER = "linger"  # refused: the rest is dropped


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


def http_config(app: ASGI3Application) -> Config:
    """uvicorn's settings without what it adds by itself: proxies, WebSockets, logs, lifespan."""
    config = Config(
        app,
        interface="asgi3",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        access_log=False,
    )
    config.load()
    return config


class LimitedHttp(HttpToolsProtocol):
    """A connection.  The application finds it as `scope["state"]["connection"]`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: HttpLimits,
        next_audit_id: Callable[[], str],
        when_closed: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.timeout_keep_alive = limits.keep_alive_s
        self.limits = limits
        self.peer = Peer("unix")
        self._next_audit_id = next_audit_id
        self._when_closed = when_closed
        self._on_lost: Callable[[], None] | None = None
        self._lost = False
        self._stage = _Stage.HEADERS
        self._timer: asyncio.TimerHandle | None = None
        self._timed_stage = _Stage.IDLE
        self._header_bytes = 0  # of headers the parser has given out
        self._raw_bytes = 0  # of headers as they came, or of what is dropped
        self._body_bytes = 0
        self._heard_at = 0.0
        self._current: RequestResponseCycle | None = None
        self._handed_over = False  # the application has the request that bytes belong to

    # ---- the connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = _peer_of(transport)
        if len(self.connections) > 2 * self.limits.connections:
            transport.abort()  # too many even to be told why
        elif len(self.connections) > self.limits.connections:
            self._refuse(BusyError("connection"))
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)
        self._tell_lost()
        if self._when_closed is not None:
            self._when_closed()

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

    def data_received(self, data: bytes) -> None:
        if self._stage is _Stage.LINGER:
            self._drop(len(data))
            return
        began_in = self._stage
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # no other protocol is spoken; answered, then closed
        except httptools.HttpParserError as error:
            self._refuse(_refusal(error))
            return
        if self._stage is _Stage.HEADERS and began_in is not _Stage.BODY:
            self._count_raw(len(data))
        self._watch()

    def eof_received(self) -> None:
        """A half-closed connection counts as gone: on a stream it cannot be told from closed."""

    # ---- the parser ----

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._stage = _Stage.HEADERS
        self._header_bytes = self._raw_bytes = self._body_bytes = 0
        self._handed_over = False
        self.scope["state"]["connection"] = self
        if self._current is not None and not self._current.response_complete:
            # Nobody needs it, and a client that has left could not be noticed behind its queue.
            raise _RefusedError(BadRequestError("a second request before the answer to the first"))

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._stage = _Stage.BODY
        if self.parser.get_http_version() not in _VERSIONS:
            raise _RefusedError(BadRequestError("HTTP version is not 1.1"))
        for name, value in self.headers:
            if name == b"content-length" and int(value) > self.limits.body_bytes:
                raise _RefusedError(BodyTooLargeError(self.limits.body_bytes))
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise _RefusedError(BadRequestError("Transfer-Encoding is not 'chunked'"))
        super().on_headers_complete()
        self._current = self.cycle
        self._handed_over = True

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.body_bytes:
            raise _RefusedError(BodyTooLargeError(self.limits.body_bytes))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = _Stage.IDLE
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.limits.header_bytes:
            raise _RefusedError(HeadersTooLargeError(self.limits.header_bytes))

    def _count_raw(self, size: int) -> None:
        """The parser holds an unfinished line back, so its bytes are counted as they come."""
        self._raw_bytes += size
        if self._raw_bytes > self.limits.header_bytes:
            self._refuse(HeadersTooLargeError(self.limits.header_bytes))

    # ---- time ----

    def _watch(self) -> None:
        """Keeps one timer for the stage the connection is in; none while it is nobody's turn."""
        if self._stage is _Stage.BODY:
            self._heard_at = self.loop.time()
        if self._stage is self._timed_stage:
            return
        self._unwatch()
        if self._stage is _Stage.HEADERS:
            self._timer = self.loop.call_later(self.limits.header_timeout_s, self._late_headers)
        elif self._stage is _Stage.BODY:
            self._timer = self.loop.call_later(self.limits.body_idle_s, self._late_body)
        self._timed_stage = self._stage

    def _unwatch(self) -> None:
        self._timed_stage = _Stage.IDLE
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late_headers(self) -> None:
        self._refuse(
            RequestTimeoutError(f"headers: not complete after {self.limits.header_timeout_s:g} s")
        )

    def _late_body(self) -> None:
        silent_s = self.loop.time() - self._heard_at
        if silent_s < self.limits.body_idle_s:
            self._timer = self.loop.call_later(self.limits.body_idle_s - silent_s, self._late_body)
            return
        self._refuse(RequestTimeoutError(f"body: nothing came for {self.limits.body_idle_s:g} s"))

    # ---- answering ----

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Writes the whole reply to the request in hand, in one piece.

        What ASGI's two messages would do in two writes, which a client sees as two reads.
        """
        cycle = self._current
        if cycle is None or cycle.disconnected or cycle.response_started:
            return
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            lines += [name, b": ", value, b"\r\n"]
        lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        lines.append(body)
        self.transport.write(b"".join(lines))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    # ---- refusing ----

    def _refuse(self, error: BrokerError) -> None:
        """Answers and closes.  Where an answer was begun or given there is nothing left to say."""
        if self._stage is _Stage.LINGER:
            return
        self._unwatch()
        self._unset_keepalive_if_required()
        silent = self._abandon()
        self._stage = _Stage.LINGER
        self._raw_bytes = 0
        if self.transport.is_closing() or silent:
            self.transport.close()
            return
        self.transport.write(self._refusal_bytes(error))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(self.limits.linger_s, self.transport.close)

    def _abandon(self) -> bool:
        """Takes the request in hand from the application; says whether its answer was begun."""
        cycle = self._current
        if cycle is None:
            return False
        if cycle.response_complete:
            return self._handed_over
        cycle.disconnected = True
        cycle.message_event.set()
        self._tell_lost()
        return cycle.response_started

    def _refusal_bytes(self, error: BrokerError) -> bytes:
        audit_id = self._next_audit_id()
        body = json.dumps(error.problem(audit_id)).encode()
        lines = [STATUS_LINE[error.status]]
        for name, value in (
            *self.server_state.default_headers,
            (b"audit-id", audit_id.encode()),
            (b"content-type", PROBLEM_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ):
            lines += [name, b": ", value, b"\r\n"]
        if error.retry_after_s is not None:
            lines.append(b"retry-after: %d\r\n" % error.retry_after_s)
        return b"".join([*lines, b"\r\n", body])

    def _drop(self, size: int) -> None:
        self._raw_bytes += size
        if self._raw_bytes > LINGER_BYTES:
            self.transport.close()


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

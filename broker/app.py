# SPDX-License-Identifier: Apache-2.0
"""One request, from its headers to its reply.

The order is that of what may be learned: the transport's rules (Origin, Host), then who is asking,
then which operation, then its body.  Until the secret was right every answer is the same, whatever
was asked for.  Here is the one place of the program that takes any exception for an answer: it is
recorded, and the caller is told nothing of it.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol

from broker import __version__
from broker.audit import Audit
from broker.auth import Failures
from broker.errors import (
    PROBLEM_TYPE,
    AuditUnavailableError,
    BadRequestError,
    BrokerError,
    InternalError,
    MethodNotAllowedError,
    NotSupportedError,
    OriginForbiddenError,
    TooManyAttemptsError,
    UnauthenticatedError,
    UnknownFieldError,
)
from broker.gate import Who
from broker.model import Principal
from broker.operations import OPERATIONS, Operation, op_sha256, route
from broker.service import PROTOCOL, Call, ClientGoneError, Reply, Service
from broker.transport import Finish, Head, Headers, HttpConnection, Peer

DEFAULT_HEADERS = [
    (b"broker-version", __version__.encode()),
    (b"broker-protocol", b"%d" % PROTOCOL),
]
HOSTS = frozenset((b"localhost", b"127.0.0.1", b"[::1]"))
NDJSON = b"application/x-ndjson"
_JSON = (b"content-type", b"application/json")

_PUBLIC = {(row.method, row.path) for row in OPERATIONS if not row.authenticated}

log = logging.getLogger("broker")


class Verifier(Protocol):
    """The accepted secrets."""

    def verify(self, authorization: bytes | None) -> bool: ...


class AuditIds:
    """Ids of requests: unique over restarts, cheap, and they tell nothing but the order."""

    def __init__(self) -> None:
        self._instance = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def next(self) -> str:
        return f"a_{self._instance}_{next(self._numbers)}"


_RECORDED_ELSEWHERE = (UnauthenticatedError, TooManyAttemptsError, AuditUnavailableError)
"""A failed authentication is an event of its own, up to a rate; the last cannot be recorded."""


class App:
    """The handler of every connection.  `secrets` is replaced whole when the file is read again."""

    def __init__(
        self, *, service: Service, audit: Audit, secrets: Verifier, next_audit_id: Callable[[], str]
    ) -> None:
        self.secrets = secrets
        self._service = service
        self._audit = audit
        self._next_audit_id = next_audit_id
        self._failures = Failures()

    def begin(self, connection: HttpConnection, head: Head) -> Finish | None:
        """Everything that can be said before the body."""
        peer = connection.peer
        principal = Principal("client", peer.transport, peer.uid, peer.pid)
        call = Call(Who(principal, self._next_audit_id()), connection)
        with _Answering(self, call):
            _refuse_foreign(head, peer)
            path = head.path.decode("ascii")
            if (head.method, path) not in _PUBLIC:
                self._authenticate(call, peer, head.headers.get(b"authorization"))
            operation = route(head.method, path)
            _refuse_unsupported(operation, head)
            return functools.partial(self._finish, call, operation, head)
        return None

    def _finish(
        self, call: Call, operation: Operation, head: Head, body: bytes
    ) -> Coroutine[Any, Any, None] | None:
        with _Answering(self, call):
            handler = getattr(self._service, operation.handler)
            if operation.parse is None:
                reply: Reply | Coroutine[Any, Any, Reply] = handler()
            else:
                content_type = head.headers.get(b"content-type", b"").decode("latin-1")
                call.request = operation.parse(body, content_type)
                reply = handler(call, call.request)
            if not isinstance(reply, Reply):
                return self._answer_later(call, reply)
            self._answer(call, reply)
        return None

    async def _answer_later(self, call: Call, coming: Coroutine[Any, Any, Reply]) -> None:
        with _Answering(self, call):
            self._answer(call, await coming)

    def _answer(self, call: Call, reply: Reply) -> None:
        headers = [(b"audit-id", call.who.audit_id.encode()), _JSON]
        call.connection.answer(reply.status, headers, reply.body)
        if reply.afterwards is not None:
            reply.afterwards()

    def failed(self, call: Call, error: Exception) -> None:
        """Answers what went wrong with a request, each kind in its way."""
        if isinstance(error, ClientGoneError):
            return
        if not isinstance(error, BrokerError):
            log.error("request %s failed", call.who.audit_id, exc_info=error)
            self._service.record_failure(call, error)
            error = InternalError()
        elif call.request is None and not isinstance(error, _RECORDED_ELSEWHERE):
            self._record_refusal(call, error)
        call.connection.answer(error.status, *_problem(call, error))

    def _record_refusal(self, call: Call, error: BrokerError) -> None:
        """What was refused before the gate: the gate records its own."""
        refusal = {"code": error.code, "detail": error.detail}
        try:
            self._audit.append_lazy("request.refused", {**call.who.fields(), **refusal})
        except AuditUnavailableError:
            log.warning("cannot record a refusal, refusing all the same")

    def _authenticate(self, call: Call, peer: Peer, authorization: bytes | None) -> None:
        """Only failures are held up: whoever has the secret gets in, so nobody can lock others out.

        The secret is 256 random bits or more; guessing it slower would not make it safer.
        """
        if self.secrets.verify(authorization):
            return
        wait_s = self._failures.add((peer.transport, peer.uid), time.monotonic())
        if wait_s is not None:
            raise TooManyAttemptsError(wait_s)
        try:
            self._audit.append_lazy("auth.failed", call.who.fields())
        except AuditUnavailableError:
            log.warning("cannot record a failed authentication, refusing it all the same")
        raise UnauthenticatedError


class _Answering:
    """Context manager: whatever goes wrong inside is answered, and ends there."""

    __slots__ = ("_app", "_call")

    def __init__(self, app: App, call: Call) -> None:
        self._app = app
        self._call = call

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._app.failed(self._call, error)
        return True


def _refuse_foreign(head: Head, peer: Peer) -> None:
    """Web pages reach loopback too, but always send Origin and cannot choose Host freely."""
    if b"origin" in head.headers:
        raise OriginForbiddenError("requests from web pages (Origin) are not answered")
    if peer.transport != "tcp":
        return
    given = head.headers.get(b"host", b"")
    name, colon, port = given.rpartition(b":")
    host = name if colon and port.isdigit() else given
    if host.lower() not in HOSTS:
        raise OriginForbiddenError("Host must be localhost, 127.0.0.1 or [::1]")


def _refuse_unsupported(operation: Operation, head: Head) -> None:
    """What a caller would rely on and we do not do is refused, never ignored."""
    if head.query:
        raise UnknownFieldError(head.query.decode("ascii", "replace").partition("=")[0], None)
    headers = head.headers
    if operation.parse is None:
        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
            raise BadRequestError(f"{operation.method} {operation.path} takes no body")
        return
    if b"idempotency-key" in headers:
        raise NotSupportedError("Idempotency-Key: this broker does not keep replies")
    if NDJSON in headers.get(b"accept", b""):
        raise NotSupportedError("Accept: this broker answers with JSON, not with a stream")


def _problem(call: Call, error: BrokerError) -> tuple[Headers, bytes]:
    headers = [(b"audit-id", call.who.audit_id.encode()), (b"content-type", PROBLEM_TYPE.encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", ", ".join(error.allow).encode()))
    if isinstance(error, UnauthenticatedError):
        headers.append((b"www-authenticate", b"Bearer"))
        return headers, json.dumps(error.problem()).encode()
    identity = op_sha256(call.request) if call.request else None
    return headers, json.dumps(error.problem(call.who.audit_id, identity)).encode()

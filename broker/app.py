# SPDX-License-Identifier: Apache-2.0
"""One request, from its headers to its reply: an ASGI application without a framework.

The order is that of what may be learned: the transport's rules (Origin, Host), then who is asking,
then which operation, then its body.  Until the secret was right every answer is the same, whatever
was asked for.  Here is the one place of the program that catches any exception: it is recorded, and
the caller is told nothing of it.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from broker import __version__
from broker.audit import Audit
from broker.auth import Failures
from broker.errors import (
    PROBLEM_TYPE,
    AuditUnavailableError,
    BadRequestError,
    BodyTooLargeError,
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
from broker.transport import Headers, LimitedHttp, Peer

DEFAULT_HEADERS = [
    (b"broker-version", __version__.encode()),
    (b"broker-protocol", b"%d" % PROTOCOL),
]
HOSTS = frozenset((b"localhost", b"127.0.0.1", b"[::1]"))
NDJSON = b"application/x-ndjson"

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


@dataclass(slots=True)
class _Seen:
    """The headers that matter, each at most once."""

    authorization: bytes | None = None
    host: bytes | None = None
    origin: bytes | None = None
    content_type: bytes | None = None
    content_length: bytes | None = None
    transfer_encoding: bytes | None = None
    accept: bytes | None = None
    idempotency_key: bytes | None = None


_NAMES = {name.replace("_", "-").encode(): name for name in _Seen.__slots__}


class App:
    """An ASGI 3 application for LimitedHttp, whose `answer` it uses.

    `secrets` is replaced whole when the secret file is read again.
    """

    def __init__(
        self, *, service: Service, audit: Audit, secrets: Verifier, next_audit_id: Callable[[], str]
    ) -> None:
        self.secrets = secrets
        self._service = service
        self._audit = audit
        self._next_audit_id = next_audit_id
        self._failures = Failures()

    async def __call__(self, scope: Any, receive: Any, _send: Any) -> None:
        connection: LimitedHttp = scope["state"]["connection"]
        peer = connection.peer
        principal = Principal("client", peer.transport, peer.uid, peer.pid)
        call = Call(Who(principal, self._next_audit_id()), connection)
        headers: Headers = [(b"audit-id", call.who.audit_id.encode())]
        try:
            reply = await self._answer(call, peer, scope, receive)
            headers.append((b"content-type", b"application/json"))
        except ClientGoneError:
            return
        except BrokerError as error:
            reply = _problem(call, error, headers)
        except Exception as fault:
            log.exception("request %s failed", call.who.audit_id)
            self._service.record_failure(call, fault)
            reply = _problem(call, InternalError(), headers)
        connection.answer(reply.status, headers, reply.body)
        if reply.afterwards is not None:
            reply.afterwards()

    async def _answer(self, call: Call, peer: Peer, scope: Any, receive: Any) -> Reply:
        seen = _seen(scope["headers"])
        _refuse_foreign(seen, peer)
        method, path = scope["method"], scope["raw_path"].decode("ascii")
        if (method, path) not in _PUBLIC:
            self._authenticate(call, peer, seen.authorization)
        operation = route(method, path)
        _refuse_unsupported(operation, scope["query_string"], seen)
        if operation.parse is None:
            return await self._handle(operation, ())
        body = await _body(receive, operation.max_body_bytes)
        content_type = seen.content_type.decode("latin-1") if seen.content_type else None
        request = operation.parse(body, content_type)
        call.request = request
        return await self._handle(operation, (call, request))

    async def _handle(self, operation: Operation, arguments: tuple[Any, ...]) -> Reply:
        handler: Callable[..., Reply | Awaitable[Reply]] = getattr(self._service, operation.handler)
        reply = handler(*arguments)
        return reply if isinstance(reply, Reply) else await reply

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


def _seen(headers: Headers) -> _Seen:
    seen = _Seen()
    for name, value in headers:
        field = _NAMES.get(name)
        if field is None:
            continue
        if getattr(seen, field) is not None and field != "accept":
            raise BadRequestError(f"header {name.decode()} is given twice")
        setattr(seen, field, value)
    return seen


def _refuse_foreign(seen: _Seen, peer: Peer) -> None:
    """Web pages reach loopback too, but always send Origin and cannot choose Host freely."""
    if seen.origin is not None:
        raise OriginForbiddenError("requests from web pages (Origin) are not answered")
    if peer.transport != "tcp":
        return
    name, colon, port = (seen.host or b"").rpartition(b":")
    host = name if colon and port.isdigit() else seen.host or b""
    if host.lower() not in HOSTS:
        raise OriginForbiddenError("Host must be localhost, 127.0.0.1 or [::1]")


def _refuse_unsupported(operation: Operation, query: bytes, seen: _Seen) -> None:
    """What a caller would rely on and we do not do is refused, never ignored."""
    if query:
        raise UnknownFieldError(query.decode("ascii", "replace").partition("=")[0], None)
    if operation.parse is None:
        if seen.transfer_encoding is not None or (seen.content_length or b"0") != b"0":
            raise BadRequestError(f"{operation.method} {operation.path} takes no body")
        return
    if seen.idempotency_key is not None:
        raise NotSupportedError("Idempotency-Key: this broker does not keep replies")
    if seen.accept is not None and NDJSON in seen.accept:
        raise NotSupportedError("Accept: this broker answers with JSON, not with a stream")


async def _body(receive: Any, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(event["body"])
        size += len(event["body"])
        if size > limit:
            raise BodyTooLargeError(limit)
        if not event["more_body"]:
            return b"".join(parts)


def _problem(call: Call, error: BrokerError, headers: Headers) -> Reply:
    headers.append((b"content-type", PROBLEM_TYPE.encode()))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", ", ".join(error.allow).encode()))
    if isinstance(error, UnauthenticatedError):
        headers.append((b"www-authenticate", b"Bearer"))
        document = error.problem()
    else:
        identity = op_sha256(call.request) if call.request else None
        document = error.problem(call.who.audit_id, identity)
    return Reply(error.status, json.dumps(document).encode())

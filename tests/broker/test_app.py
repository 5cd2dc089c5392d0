# SPDX-License-Identifier: Apache-2.0
"""One request: what nobody foresaw is told to nobody, and recorded."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, cast

import pytest

from broker.app import App, AuditIds
from broker.audit import Audit
from broker.service import Call, Reply, Service
from broker.transport import Headers, Peer


class Everybody:
    def verify(self, authorization: bytes | None) -> bool:
        return True


class Faulty:
    """A service whose every operation fails in a way it did not foresee."""

    def __init__(self) -> None:
        self.faults: list[tuple[str, str]] = []

    def readiness(self) -> Reply:
        raise RuntimeError("s3cret")

    async def run(self, call: Call, request: object) -> Reply:
        raise KeyError("s3cret")

    def record_failure(self, call: Call, fault: Exception) -> None:
        self.faults.append((call.who.audit_id, repr(fault)))


class Answers:
    """Takes the place of a connection and keeps what is answered."""

    peer = Peer("unix", 1, 2)

    def __init__(self) -> None:
        self.given: list[tuple[int, dict[bytes, bytes], dict[str, Any]]] = []

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self.given.append((status, dict(headers), json.loads(body)))


def ask(method: str, path: str, events: list[dict[str, Any]]) -> tuple[Faulty, Answers]:
    service, connection = Faulty(), Answers()
    app = App(
        service=cast("Service", service),
        audit=cast("Audit", None),
        secrets=Everybody(),
        next_audit_id=AuditIds().next,
    )
    scope = {"method": method, "raw_path": path.encode(), "query_string": b"", "headers": [],
             "state": {"connection": connection}}  # fmt: skip

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    asyncio.run(app(scope, receive, None))
    return service, connection


BODY = {"type": "http.request", "body": b'{"argv":["x"]}', "more_body": False}


@pytest.mark.parametrize(("method", "path"), [("GET", "/readyz"), ("POST", "/v1/exec")])
def test_a_fault_is_recorded_and_not_told(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "broker"):
        service, connection = ask(method, path, [BODY])
    ((status, headers, problem),) = connection.given
    assert (status, problem["code"]) == (500, "internal")
    assert "s3cret" not in json.dumps(problem)
    ((audit_id, fault),) = service.faults
    assert "s3cret" in fault
    assert headers[b"audit-id"].decode() == audit_id == problem["audit_id"]


def test_a_client_that_leaves_in_its_body_is_not_answered() -> None:
    part = {"type": "http.request", "body": b"{", "more_body": True}
    service, connection = ask("POST", "/v1/exec", [part, {"type": "http.disconnect"}])
    assert connection.given == []
    assert service.faults == []


def test_audit_ids_differ_between_two_brokers() -> None:
    first, second = AuditIds(), AuditIds()
    assert first.next() != second.next()
    assert first.next() != first.next()

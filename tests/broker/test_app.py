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
from broker.transport import Head, Headers, HttpConnection, Peer


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


def ask(method: str, path: str, body: bytes) -> tuple[Faulty, Answers]:
    service, connection = Faulty(), Answers()
    app = App(
        service=cast("Service", service),
        audit=cast("Audit", None),
        secrets=Everybody(),
        next_audit_id=AuditIds().next,
    )
    finish = app.begin(cast("HttpConnection", connection), Head(method, path.encode()))
    assert finish is not None
    coming = finish(body)
    if coming is not None:
        asyncio.run(coming)
    return service, connection


@pytest.mark.parametrize(("method", "path"), [("GET", "/readyz"), ("POST", "/v1/exec")])
def test_a_fault_is_recorded_and_not_told(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "broker"):
        service, connection = ask(method, path, b'{"argv":["x"]}')
    ((status, headers, problem),) = connection.given
    assert (status, problem["code"]) == (500, "internal")
    assert "s3cret" not in json.dumps(problem)
    ((audit_id, fault),) = service.faults
    assert "s3cret" in fault
    assert headers[b"audit-id"].decode() == audit_id == problem["audit_id"]


def test_audit_ids_differ_between_two_brokers() -> None:
    first, second = AuditIds(), AuditIds()
    assert first.next() != second.next()
    assert first.next() != first.next()

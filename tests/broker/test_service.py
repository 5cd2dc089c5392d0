# SPDX-License-Identifier: Apache-2.0
"""The service: the form of its answers, and that each intent gets exactly one outcome."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.audit import Audit
from broker.ceiling import Ceiling
from broker.errors import BusyError, TooManyRunsError
from broker.gate import Account, Gate, Who
from broker.model import (
    Access,
    Captured,
    ExecOp,
    ExecRequest,
    Exit,
    Principal,
    Root,
    RunOutcome,
    RunReason,
)
from broker.permit import Permit
from broker.runs.pool import Cancellation
from broker.service import Call, ClientGoneError, Kernel, Service
from tests.support.openapi import validator

OUTCOME = RunOutcome(
    reason=RunReason.EXITED, exit=Exit(0, None), timed_out=False, stdout=Captured(b"out", b"", 3),
    stderr=Captured(), drained=True, orphans_killed=0, started_at="2026-11-30T13:40:00.1Z",
    duration_ms=3,
)  # fmt: skip


class OneAnswerPool:
    """Runs nothing: gives the outcome it was told, or raises it."""

    def __init__(self) -> None:
        self.answer: RunOutcome | Exception = OUTCOME
        self.permits: list[Permit[ExecOp]] = []
        self.meanwhile: Callable[[Cancellation], None] = lambda cancellation: None

    async def run(
        self, permit: Permit[ExecOp], cancellation: Cancellation | None = None
    ) -> RunOutcome:
        self.permits.append(permit)
        assert cancellation is not None
        self.meanwhile(cancellation)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class AllHold:
    def checks(self) -> dict[str, bool]:
        return {"kill_switch": True}

    known = checks


class Wire:
    """A connection that is lost when a test says so."""

    def __init__(self) -> None:
        self.gone = False
        self.act: Callable[[], None] | None = None

    def when_lost(self, act: Callable[[], None] | None) -> None:
        self.act = act
        if self.gone and act is not None:
            act()


class Scene:
    def __init__(self, base: Path) -> None:
        self.audit_dir = base / "audit"
        self.audit = Audit.open(self.audit_dir)
        self.pool = OneAnswerPool()
        self.service = Service(
            audit=self.audit,
            pool=self.pool,
            kernel=Kernel(abi=7, errata=3),
            floors=AllHold(),
            openapi=lambda: b"{}",
        )
        self.service.gate = Gate(
            audit=self.audit,
            ceiling=Ceiling(roots=(Root(os.fsencode(base), Access.READ),)),
            account=Account(b"op", b"/home/op", b"/bin/sh"),
            inherited={},
            objection=lambda: None,
            places=self.service.places,
        )
        self.wire = Wire()
        self.call = Call(Who(Principal("client", "unix", 1, 2), "a_t_1"), self.wire)

    def run(self, **request: Any) -> dict[str, Any]:
        asked = ExecRequest(**{"argv": (b"true",), **request})
        reply = asyncio.run(self.service.run(self.call, asked))
        document: dict[str, Any] = json.loads(reply.body)
        assert reply.status == 200
        assert reply.afterwards is not None
        reply.afterwards()
        validator("ExecResult").validate(document)
        return document

    def close(self) -> None:
        if self.audit.failure is None:
            self.audit.close()

    def records(self) -> list[dict[str, Any]]:
        self.close()
        lines = (self.audit_dir / "audit.jsonl").read_bytes().rstrip(b"\0").splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def outcome_of(scene: Scene) -> dict[str, Any]:
    intent, outcome = scene.records()
    assert (intent["kind"], outcome["kind"]) == ("exec.intent", "exec.outcome")
    assert (outcome["ref"], outcome["audit_id"]) == (intent["seq"], "a_t_1")
    return outcome


def test_a_result_is_told_and_recorded(scene: Scene) -> None:
    document = scene.run(label="why")
    assert document["run"] == "r_t_1"
    assert document["audit_id"] == "a_t_1"
    assert document["label"] == "why"
    assert document["stdout"]["text"] == "out"
    assert document["confinement"] == {
        "mode": "sandboxed", "isolation": "landlock", "abi": 7, "errata": 3, "network": "none",
    }  # fmt: skip
    assert document["op_sha256"] == scene.pool.permits[0].op.op_sha256
    outcome = outcome_of(scene)
    assert (outcome["state"], outcome["reason"], outcome["code"]) == ("ended", "exited", 0)
    assert outcome["confinement"] == document["confinement"]


ENDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"exit": Exit(3, None)}, {"code": 3, "signal": None, "shell_code": 3}),
    ({"exit": Exit(None, 9)}, {"code": None, "signal": "KILL", "shell_code": 137}),
    ({"exit": Exit(None, 42, core=True)}, {"signal": "SIG42", "shell_code": 170, "core": True}),
    (
        {"reason": RunReason.SPAWN_FAILED, "exit": None, "spawn_shell_code": 127},
        {"code": None, "signal": None, "shell_code": 127},
    ),
    ({"reason": RunReason.LOST, "exit": None}, {"code": None, "shell_code": 255}),
]


@pytest.mark.parametrize(("changes", "told"), ENDS)
def test_how_it_ended(scene: Scene, changes: dict[str, Any], told: dict[str, Any]) -> None:
    scene.pool.answer = replace(OUTCOME, **changes)
    assert told.items() <= scene.run()["exit"].items()


STREAMS: list[tuple[Captured, bytes, str, bool]] = [
    (Captured(), b"", "utf8", False),
    (Captured("é".encode(), b"", 2), "é".encode(), "utf8", False),
    (Captured(b"ab", b"yz", 4), b"abyz", "utf8", False),
    (Captured(b"ab", b"yz", 9), b"abyz", "utf8", True),
    (Captured(b"\xc3", b"\xa9", 2), "é".encode(), "utf8", False),
    (Captured(b"a\xc3", b"z", 100), b"a\xc3z", "base64", True),
    (Captured(b"\0", b"", 1), b"\0", "utf8", False),
    (Captured(b"\xed\xb3\xa9", b"", 3), b"\xed\xb3\xa9", "base64", False),  # a lone surrogate
]


@pytest.mark.parametrize(("kept", "data", "encoding", "truncated"), STREAMS)
def test_a_stream_is_text_or_base64_and_says_what_is_missing(
    scene: Scene, kept: Captured, data: bytes, encoding: str, truncated: bool
) -> None:
    scene.pool.answer = replace(OUTCOME, stdout=kept)
    stream = scene.run()["stdout"]
    assert stream["encoding"] == encoding
    told = stream["text"].encode() if encoding == "utf8" else base64.b64decode(stream["b64"])
    assert told == data
    assert (stream["truncated"], stream["total_bytes"]) == (truncated, kept.total_bytes)
    assert (stream["head_bytes"], stream["tail_bytes"]) == (len(kept.head), len(kept.tail))


@pytest.mark.parametrize("error", [TooManyRunsError(1), BusyError("runner")])
def test_a_refusal_after_the_intent_closes_it_as_not_run(scene: Scene, error: Exception) -> None:
    scene.pool.answer = error
    with pytest.raises(type(error)):
        scene.run()
    outcome = outcome_of(scene)
    assert (outcome["state"], outcome["code"]) == ("not_run", error.code)  # type: ignore[attr-defined]
    assert scene.service.places() == 0


def test_a_fault_after_the_intent_closes_it_as_unknown(scene: Scene) -> None:
    scene.pool.answer = RuntimeError("x" * 5000)
    with pytest.raises(RuntimeError) as fault:
        scene.run()
    scene.service.record_failure(scene.call, fault.value)
    outcome = outcome_of(scene)
    assert outcome["state"] == "unknown"
    assert outcome["detail"].startswith("RuntimeError: xxx")
    assert len(outcome["detail"]) <= 500


def test_a_fault_before_any_intent_is_an_event_of_its_own(scene: Scene) -> None:
    scene.service.record_failure(scene.call, ValueError("no"))
    (record,) = scene.records()
    assert (record["kind"], record["detail"]) == ("request.failed", "ValueError: no")


def test_a_client_that_has_left_before_the_start_runs_nothing(scene: Scene) -> None:
    scene.wire.gone = True
    with pytest.raises(ClientGoneError):
        scene.run()
    assert scene.pool.permits == []
    outcome = outcome_of(scene)
    assert (outcome["state"], outcome["reason"]) == ("not_run", "client_gone")


def test_a_client_that_leaves_while_it_runs_cancels(scene: Scene) -> None:
    seen: list[RunReason | None] = []

    def leave(cancellation: Cancellation) -> None:
        assert scene.wire.act is not None
        scene.wire.act()
        seen.append(cancellation.reason)

    scene.pool.meanwhile = leave
    scene.run()
    assert seen == [RunReason.CLIENT_GONE]
    assert scene.wire.act is None


def test_all_runs_can_be_ended(scene: Scene) -> None:
    def end(cancellation: Cancellation) -> None:
        scene.service.end_all(RunReason.SHUTDOWN)
        assert cancellation.reason is RunReason.SHUTDOWN

    scene.pool.meanwhile = end
    scene.run()
    scene.service.end_all(RunReason.SHUTDOWN)  # nobody is left


def test_a_result_is_told_although_its_record_cannot_be_written(scene: Scene) -> None:
    scene.pool.meanwhile = lambda cancellation: scene.audit.close()
    assert scene.run()["reason"] == "exited"
    assert scene.audit.failure is not None


def test_a_root_of_a_plan_has_a_path_only_if_the_caller_named_it(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    sub = os.fsencode(tmp_path / "sub")
    plain = json.loads(scene.service.plan(scene.call, ExecRequest(argv=(b"x",))).body)
    named = json.loads(
        scene.service.plan(
            scene.call, ExecRequest(argv=(b"x",), roots=(Root(sub, Access.READ),))
        ).body
    )
    wider = json.loads(
        scene.service.plan(
            scene.call, ExecRequest(argv=(b"x",), roots=(Root(b"/", Access.READ),))
        ).body
    )
    for document in (plain, named, wider):
        validator("Plan").validate(document)
        assert document["decision"] == "allow"
    assert "path" not in plain["roots"][0]
    assert named["roots"][0]["path"] == str(tmp_path / "sub")
    assert wider["roots"] == plain["roots"]
    assert str(tmp_path) not in json.dumps(wider)

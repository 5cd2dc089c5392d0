# SPDX-License-Identifier: Apache-2.0
"""What each operation does: a parsed request in, a reply out.  One method for each handler name.

Owns the order gate → runner → outcome record → answer, and the form of the answers (openapi.yaml).
Leaves the connection, authentication and error documents to server.py, deciding to gate.py.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

from broker import __version__
from broker.audit import Audit
from broker.ceiling import MAX_GRACE_MS, Ceiling
from broker.chain import Field
from broker.errors import AuditUnavailableError, BrokerError, Json, path_member
from broker.gate import Admitted, Gate, Who, access_words, name_fields
from broker.model import (
    Captured,
    Confinement,
    ExecOp,
    ExecRequest,
    Exit,
    Network,
    Root,
    RunOutcome,
    RunReason,
)
from broker.operations import MAX_BODY_BYTES, MAX_STDIN_BYTES, OPERATIONS, op_sha256
from broker.permit import Permit
from broker.runs.pool import Cancellation

PROTOCOL = 1
MAX_DETAIL_CHARS = 500
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
UNKNOWN_SHELL_CODE = 255
"""`shell_code` of a run whose end nobody saw (`lost`)."""


class Pool(Protocol):
    """What the service needs of RunnerPool."""

    async def run(
        self, permit: Permit[ExecOp], cancellation: Cancellation | None = None
    ) -> RunOutcome: ...


class Floors(Protocol):
    """Readiness by name, true where a floor holds; `known` looks at nothing."""

    def checks(self) -> Mapping[str, bool]: ...

    def known(self) -> Mapping[str, bool]: ...


class Connection(Protocol):
    """The client's end: where answers go, and whether it is still there."""

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None: ...

    def when_lost(self, act: Callable[[], None] | None) -> None:
        """Calls `act` once when the client has gone, at once if it has; None forgets it."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What of Landlock is in force, for every result."""

    abi: int
    errata: int


@dataclass(slots=True)
class Call:
    """One request in hand.  `intent_seq` is set while an intent has no outcome record yet."""

    who: Who
    connection: Connection
    intent_seq: int | None = None
    request: ExecRequest | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """`afterwards` is to be called as soon as the answer is written, before anything else."""

    status: int
    body: bytes
    afterwards: Callable[[], None] | None = None


class ClientGoneError(Exception):
    """The client left before anything ran; there is nobody to answer."""


class Service:
    """The handlers."""

    def __init__(
        self,
        *,
        audit: Audit,
        pool: Pool,
        kernel: Kernel,
        floors: Floors,
        openapi: Callable[[], bytes],
    ) -> None:
        self.gate: Gate  # set once by the daemon: the gate asks `places` of us
        self._audit = audit
        self._pool = pool
        self._confinements = {
            (mode, network): _confinement(kernel, mode, network)
            for mode in Confinement
            for network in Network
        }
        self._floors = floors
        self._openapi = openapi
        self._places = 0
        self._runs: set[Cancellation] = set()
        self._root_key = secrets.token_bytes(16)

    def places(self) -> int:
        """Requests to run that are being decided about or running."""
        return self._places

    def is_idle(self) -> bool:
        """Whether no run is on, so that no outcome is still to be recorded."""
        return not self._runs

    def end_all(self, reason: RunReason) -> None:
        """Ends every run that is on: TERM, grace, KILL."""
        for cancellation in tuple(self._runs):
            cancellation.trigger(reason)

    # ---- state ----

    def health(self) -> Reply:
        """For anybody who can connect: no name, no path, no disk."""
        return _json({
            "status": "ok",
            "capabilities": {"exec": all(self._floors.known().values())},
            "counts": {"runs": self._places},
        })  # fmt: skip

    def readiness(self) -> Reply:
        checks = dict(self._floors.checks())
        ready = all(checks.values())
        return _json({"ready": ready, "checks": checks}, 200 if ready else 503)

    def capabilities(self) -> Reply:
        ceiling = self.gate.ceiling
        return _json({
            "version": __version__,
            "protocol": PROTOCOL,
            "operations": [
                {
                    "name": row.name,
                    "method": row.method,
                    "path": row.path,
                    "summary": row.summary,
                    "capability": row.capability,
                }
                for row in OPERATIONS
            ],
            "features": {"exec": True, "runs": False, "files": False, "idempotency": False},
            "limits": _limits(ceiling),
            "confinement": self._confinement(ceiling.confinement, ceiling.network),
        })  # fmt: skip

    def openapi(self) -> Reply:
        return Reply(200, self._openapi())

    # ---- exec ----

    def plan(self, call: Call, request: ExecRequest) -> Reply:
        """Every gate, no effect.  A refusal is an answer here, with what /v1/exec would say."""
        self._places += 1
        try:
            op = self.gate.plan(call.who, request)
        except BrokerError as refusal:
            return _json(self._denied(call, request, refusal))
        finally:
            self._places -= 1
        return _json({
            "decision": "allow",
            "reason": "allowed",
            "roots": [self._root(root, request) for root in op.roots],
            "confinement": self._confinement(op.confinement, op.network),
            "environment": _environment(op),
            "limits": {item.name: getattr(op.limits, item.name) for item in fields(op.limits)},
            "audit_id": call.who.audit_id,
            "op_sha256": op.op_sha256,
        })  # fmt: skip

    def _denied(self, call: Call, request: ExecRequest, refusal: BrokerError) -> dict[str, Json]:
        ceiling, identity = self.gate.ceiling, op_sha256(request)
        return {
            "decision": "deny",
            "reason": str(refusal.details.get("reason", refusal.code)),
            "detail": refusal.detail,
            "problem": refusal.problem(call.who.audit_id, identity),
            "roots": [],
            "confinement": self._confinement(ceiling.confinement, ceiling.network),
            "audit_id": call.who.audit_id,
            "op_sha256": identity,
        }

    async def run(self, call: Call, request: ExecRequest) -> Reply:
        """Runs the command to its end.  A client that goes away ends it."""
        self._places += 1
        try:
            admitted = await self.gate.authorise(call.who, request)
            call.intent_seq = admitted.intent_seq
            outcome = await self._run(call, admitted)
        finally:
            self._places -= 1
        op = admitted.permit.op
        confinement = self._confinement(op.confinement, op.network)
        return Reply(
            200,
            _encoded(_result(call.who.audit_id, op, outcome, confinement)),
            # Not before: waking the log's writer costs the caller a tenth of a small run.
            functools.partial(self._record_outcome, call, outcome, confinement),
        )

    async def _run(self, call: Call, admitted: Admitted) -> RunOutcome:
        cancellation = Cancellation()
        self._runs.add(cancellation)
        call.connection.when_lost(lambda: cancellation.trigger(RunReason.CLIENT_GONE))
        try:
            if cancellation.reason is not None:
                raise ClientGoneError
            return await self._pool.run(admitted.permit, cancellation)
        except BrokerError as refusal:
            self._record(call, {"state": "not_run", "code": refusal.code})
            raise
        except ClientGoneError:
            self._record(call, {"state": "not_run", "reason": RunReason.CLIENT_GONE.value})
            raise
        finally:
            call.connection.when_lost(None)
            self._runs.discard(cancellation)

    # ---- records ----

    def _record_outcome(
        self, call: Call, outcome: RunOutcome, confinement: dict[str, Json]
    ) -> None:
        end = outcome.exit
        self._record(
            call,
            {
                "state": "ended",
                "reason": outcome.reason.value,
                "code": end.code if end else None,
                "signal": end.signal_name if end else None,
                "stdout_bytes": outcome.stdout.total_bytes,
                "stderr_bytes": outcome.stderr.total_bytes,
                "orphans_killed": outcome.orphans_killed,
                "survivors": outcome.survivors,
                "skipped_roots": name_fields(outcome.skipped_roots),
                "spawn_error": (outcome.spawn_error or "")[:MAX_DETAIL_CHARS] or None,
                "duration_ms": outcome.duration_ms,
                "confinement": confinement,
            },
        )

    def record_failure(self, call: Call, fault: Exception) -> None:
        """An exception nobody foresaw: what it left open is closed as unknown."""
        failure = {
            "state": "unknown",
            "detail": f"{type(fault).__name__}: {fault}"[:MAX_DETAIL_CHARS],
        }
        if call.intent_seq is not None:
            self._record(call, failure)
        else:
            self._append("request.failed", {**call.who.fields(), **failure}, None)

    def _record(self, call: Call, outcome: Mapping[str, Field]) -> None:
        self._append("exec.outcome", {"audit_id": call.who.audit_id, **outcome}, call.intent_seq)
        call.intent_seq = None

    def _append(self, kind: str, record: Mapping[str, Field], ref: int | None) -> None:
        try:
            self._audit.append_lazy(kind, record, ref=ref)
        except AuditUnavailableError:
            return  # the effect has happened: its result is told; readyz and the next run say no

    # ---- forms ----

    def _confinement(self, mode: Confinement, network: Network) -> dict[str, Json]:
        return self._confinements[mode, network]

    def _root(self, root: Root, request: ExecRequest) -> dict[str, Json]:
        """A root by an id of this process; its path only if the caller named it."""
        digest = hashlib.blake2b(root.path, key=self._root_key, digest_size=8)
        told = any(asked.path == root.path for asked in request.roots or ())
        return {
            "id": f"root_{digest.hexdigest()}",
            "access": access_words(root.access).split(),
            **(path_member(root.path) if told else {}),
        }


def _confinement(kernel: Kernel, mode: Confinement, network: Network) -> dict[str, Json]:
    return {
        "mode": mode.value,
        "isolation": "landlock" if mode is Confinement.SANDBOXED else "none",
        "abi": kernel.abi,
        "errata": kernel.errata,
        # Nothing is enforced on an unconfined command, so nothing else may be claimed of it.
        "network": network.value if mode is Confinement.SANDBOXED else Network.OPEN.value,
    }


def _json(document: Mapping[str, Json], status: int = 200) -> Reply:
    return Reply(status, _encoded(document))


def _encoded(document: Mapping[str, Json]) -> bytes:
    return _ENCODE(document).encode("ascii")


def _limits(ceiling: Ceiling) -> dict[str, Json]:
    limits: dict[str, Json] = {
        item.name: getattr(ceiling.limits, item.name) for item in fields(ceiling.limits)
    }
    return limits | {
        "max_grace_ms": MAX_GRACE_MS,
        "max_body_bytes": MAX_BODY_BYTES,
        "max_stdin_bytes": MAX_STDIN_BYTES,
    }


def _environment(op: ExecOp) -> dict[str, Json]:
    return {"base": op.environment_base, "stripped": list(op.stripped)}


def _result(
    audit_id: str, op: ExecOp, outcome: RunOutcome, confinement: Mapping[str, Json]
) -> dict[str, Json]:
    result: dict[str, Json] = {
        "run": run_id(audit_id),
        "reason": outcome.reason.value,
        "exit": _exit(outcome.exit, outcome.spawn_shell_code),
        "timed_out": outcome.timed_out,
        "stdout": _stream(outcome.stdout),
        "stderr": _stream(outcome.stderr),
        "drained": outcome.drained,
        "orphans_killed": outcome.orphans_killed,
        "survivors": outcome.survivors,
        "started_at": outcome.started_at,
        "duration_ms": outcome.duration_ms,
        "confinement": confinement,
        "environment": _environment(op),
        "skipped_roots": len(outcome.skipped_roots),
        "audit_id": audit_id,
        "op_sha256": op.op_sha256,
    }
    if outcome.spawn_error is not None:
        result["spawn_error"] = outcome.spawn_error
    if op.label is not None:
        result["label"] = op.label
    return result


def run_id(audit_id: str) -> str:
    """A run is named after the request that started it."""
    return "r_" + audit_id.removeprefix("a_")


def _exit(end: Exit | None, spawn_shell_code: int | None) -> dict[str, Json]:
    if end is None:
        code = UNKNOWN_SHELL_CODE if spawn_shell_code is None else spawn_shell_code
        return {"code": None, "signal": None, "core": False, "shell_code": code}
    return {
        "code": end.code,
        "signal": end.signal_name,
        "core": end.core,
        "shell_code": end.shell_code,
    }


def _stream(kept: Captured) -> dict[str, Json]:
    """Text where head and tail together are UTF-8, else base64: a cut may split a character."""
    data = kept.head + kept.tail
    try:
        content: dict[str, Json] = {"encoding": "utf8", "text": data.decode("utf-8")}
    except UnicodeDecodeError:
        content = {"encoding": "base64", "b64": base64.b64encode(data).decode("ascii")}
    return content | {
        "total_bytes": kept.total_bytes,
        "truncated": kept.truncated,
        "head_bytes": len(kept.head),
        "tail_bytes": len(kept.tail),
    }

# SPDX-License-Identifier: Apache-2.0
"""The gate: from an authenticated request to a Permit, or to a refusal.  Every effect passes here.

The checks narrow, in this order: floors (draining, proof, kill switch), a free place, the ceiling
as a whole, roots = requested ∩ ceiling, the working directory inside them, limits, environment,
then the intent record, durable, and only then the Permit.  The verdict is a conjunction: the order
decides only which reason is told first, and that nothing outside the ceiling is looked at.

A refusal is a BrokerError and is recorded with what was asked for.  Any other exception is a
refusal too: no Permit was made, and the connection loop records it (server.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.audit import Audit
from broker.ceiling import Ceiling, canonical, clamp, effective_limits
from broker.chain import Field, describe_argv
from broker.environ import rebuild
from broker.errors import (
    BrokerError,
    CeilingDeniedError,
    InvalidFieldError,
    TooManyRunsError,
)
from broker.model import (
    ALL_ACCESS,
    Access,
    Confinement,
    Env,
    ExecOp,
    ExecRequest,
    Limits,
    Network,
    OnLimit,
    Principal,
    Reason,
    Root,
)
from broker.operations import op_sha256
from broker.paths import contains
from broker.permit import Permit, _mint

SCRATCH = b"/\0scratch"
"""Stands for the run's private directory, whose name is known only when a runner is chosen.

No request can hold these bytes: a NUL is refused in every path and value."""

AUDIT_LIST_BYTES = 2048
"""Of roots, or of names, before JSON's escapes, which make at most three of one.

A record has a limit, and a caller who fills it must not be able to turn a refusal into a fault."""


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks, and the id under which the answer is recorded."""

    principal: Principal
    audit_id: str

    def fields(self) -> dict[str, Field]:
        return {
            "audit_id": self.audit_id,
            "principal": self.principal.name,
            "transport": self.principal.transport,
            "peer_uid": self.principal.peer_uid,
            "peer_pid": self.principal.peer_pid,
        }


@dataclass(frozen=True, slots=True)
class Account:
    """Whose processes runs are, from the password database."""

    user: bytes
    home: bytes
    shell: bytes


@dataclass(frozen=True, slots=True)
class _Built:
    """An environment as an ExecOp holds it."""

    env: Env
    base: str
    stripped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A Permit, and the number of the intent record that its outcome refers to."""

    permit: Permit[ExecOp]
    intent_seq: int


class Gate:
    """Decides under the ceiling in force.  `ceiling` is replaced whole at a reload.

    `objection` returns what stands against any run at all, or None.  `places` counts the runs that
    are on or being decided about, the one that asks included.
    """

    def __init__(
        self,
        *,
        audit: Audit,
        ceiling: Ceiling,
        account: Account,
        inherited: Mapping[bytes, bytes],
        objection: Callable[[], BrokerError | None],
        places: Callable[[], int],
    ) -> None:
        self.ceiling = ceiling
        self._audit = audit
        self._account = account
        self._inherited = dict(inherited)
        self._objection = objection
        self._places = places
        self._plain: dict[str, _Built] = {}

    async def authorise(self, who: Who, request: ExecRequest) -> Admitted:
        """Returns leave to run, after the intent is on the disk.

        Raises the BrokerError that says why not; it has been recorded as `exec.denied`.  The caller
        must not await between this and making the run known to what ends runs.
        """
        ceiling = self.ceiling
        op = self.decide(who, request)
        intent = {**who.fields(), **op_fields(op)}
        seq = None
        if self._places() <= 1:  # nobody else is kept waiting by a flush
            seq = self._audit.append_alone("exec.intent", intent)
        if seq is None:
            seq = await self._audit.append("exec.intent", intent)
            if self.ceiling is not ceiling or self._objection() is not None:
                # A reload, the kill switch or the end came while it was written: decided again.
                overtaken = {"audit_id": who.audit_id, "state": "not_run", "reason": "overtaken"}
                self._audit.append_lazy("exec.outcome", overtaken, ref=seq)
                return await self.authorise(who, request)
        return Admitted(_mint(op, who.audit_id), seq)

    def plan(self, who: Who, request: ExecRequest) -> ExecOp:
        """The same decision, recorded as `exec.plan`; nothing can run by it and nothing is used."""
        op = self.decide(who, request)
        self._audit.append_lazy("exec.plan", {**who.fields(), **op_fields(op)})
        return op

    async def authorise_self_check(self, audit_id: str, argv: tuple[bytes, ...], stdin: bytes,
                                   limits: Limits) -> Admitted:  # fmt: skip
        """Leave for the broker's own proof: `argv`, and nothing but it, in the barest sandbox.

        Takes nothing from the ceiling, so that the proof does not depend on what is granted, and
        is sandboxed although the ceiling may say unconfined.
        """
        op = ExecOp(
            argv=argv, script=None, cwd=b"/", environment=(), environment_base="none", stripped=(),
            roots=(Root(argv[0], Access.EXEC),), baseline=False, network=Network.OPEN,
            confinement=Confinement.SANDBOXED, limits=limits, stdin=stdin, on_limit=OnLimit.KILL,
            scratch=SCRATCH, label="self-check", op_sha256=op_sha256(ExecRequest(argv=argv)),
        )  # fmt: skip
        who = Who(Principal("self-check", "none"), audit_id)
        seq = await self._audit.append("selfcheck.intent", {**who.fields(), **op_fields(op)})
        return Admitted(_mint(op, audit_id), seq)

    # ---- the decision ----

    def decide(self, who: Who, request: ExecRequest) -> ExecOp:
        """Every check but the intent record.  A refusal is recorded here, whoever asked."""
        try:
            return self._decide(request)
        except BrokerError as refusal:
            self.record_denial(who, request, refusal)
            raise

    def _decide(self, request: ExecRequest) -> ExecOp:
        ceiling = self.ceiling
        self._refuse_closed(ceiling)
        roots = _roots(request, ceiling)
        cwd = _working_directory(request.cwd, roots, ceiling)
        limits = effective_limits(request, ceiling)
        environment = self._environment(request, ceiling)
        return ExecOp(
            argv=request.argv,
            script=request.script,
            cwd=cwd,
            environment=environment.env,
            environment_base=environment.base,
            stripped=environment.stripped,
            roots=roots,
            baseline=ceiling.baseline,
            network=ceiling.network,
            confinement=ceiling.confinement,
            limits=limits,
            stdin=request.stdin,
            on_limit=request.on_limit,
            scratch=SCRATCH,
            label=request.label,
            op_sha256=op_sha256(request),
        )

    def _refuse_closed(self, ceiling: Ceiling) -> None:
        objection = self._objection()
        if objection is not None:
            raise objection
        if ceiling.deny_code is not None:
            raise CeilingDeniedError(
                ceiling.deny_code.value,
                "the operator's ceiling allows nothing; `host-broker status` says why",
            )
        if self._places() > ceiling.limits.max_runs:
            raise TooManyRunsError(ceiling.limits.max_runs)

    def _environment(self, request: ExecRequest, ceiling: Ceiling) -> _Built:
        """Built once for all requests that change nothing: what it is made of does not change."""
        unconfined = ceiling.confinement is Confinement.UNCONFINED
        base = "login" if unconfined else ceiling.environment
        if base == "developer" and not _grants_home(ceiling, self._account.home):
            base = "minimal"  # a HOME that no run may touch breaks what "developer" is for
        plain = self._plain.get(base)
        if plain is not None and not request.env:
            return plain
        environment = rebuild(
            base,
            home=self._account.home,
            user=self._account.user,
            shell=self._account.shell,
            scratch=SCRATCH,
            inherited=self._inherited,
            overrides=request.env,
        )
        built = _Built(tuple(environment.env.items()), environment.base, environment.stripped)
        if not request.env:
            self._plain[base] = built
        return built

    def record_denial(self, who: Who, request: ExecRequest, refusal: BrokerError) -> None:
        """A refusal as an event: what was asked for, what stood against it, what was missing."""
        self._audit.append_lazy(
            "exec.denied",
            {
                **who.fields(),
                **_command_fields(request.argv, request.script),
                "cwd": request.cwd,
                "roots": root_fields(request.roots or ()),
                "env_names": name_fields([name for name, _ in request.env]),
                "label": request.label,
                "op_sha256": op_sha256(request),
                "confinement": self.ceiling.confinement.value,
                "code": refusal.code,
                "detail": refusal.detail,
                "reason": _text(refusal.details.get("reason")),
                "field": _text(refusal.details.get("field")),
            },
        )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _grants_home(ceiling: Ceiling, home: bytes) -> bool:
    """Whether anything of it is granted: itself, or a toolchain below.  "/" is nobody's home."""
    where = canonical(home, ceiling)
    return where != b"/" and bool(ceiling.rights(where) or ceiling.below(where))


def _roots(request: ExecRequest, ceiling: Ceiling) -> tuple[Root, ...]:
    roots = clamp(request.roots, ceiling)
    if request.roots and not roots:
        raise CeilingDeniedError(
            Reason.NO_ROOT_LEFT.value,
            "none of the requested roots lies under the ceiling with the access asked for",
            field="roots",
        )
    return roots


def _working_directory(asked: bytes | None, roots: tuple[Root, ...], ceiling: Ceiling) -> bytes:
    """Where the directory really is, if that is inside the effective roots.

    First by name alone, so that outside of the roots nothing is looked at and "exists" cannot be
    told from "does not"; then as the kernel resolves it.  Not given: the private scratch directory.
    """
    if asked is None:
        return SCRATCH
    named = canonical(asked, ceiling)
    _refuse_outside(named, roots)
    try:
        directory_fd = os.open(named, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        _refuse_outside(os.path.realpath(named), roots)
        raise InvalidFieldError("cwd", "is not a directory that can be entered") from error
    try:
        real = os.readlink(b"/proc/self/fd/%d" % directory_fd)
    finally:
        os.close(directory_fd)
    _refuse_outside(real, roots)
    return real


def _refuse_outside(path: bytes, roots: tuple[Root, ...]) -> None:
    if not any(contains(root.path, path) for root in roots):
        raise CeilingDeniedError(
            Reason.CWD_OUTSIDE_CEILING.value,
            "cwd is outside the roots of this run",
            field="cwd",
        )


# --- what is recorded -----------------------------------------------------------------------------


def op_fields(op: ExecOp) -> dict[str, Field]:
    """What a record tells of an operation: never values of the environment, never its stdin."""
    return {
        **_command_fields(op.argv, op.script),
        "cwd": None if op.cwd == op.scratch else op.cwd,
        "environment_base": op.environment_base,
        "stripped": name_fields(op.stripped),
        "roots": root_fields(op.roots),
        "baseline": op.baseline,
        "network": op.network.value,
        "confinement": op.confinement.value,
        "timeout_ms": op.limits.timeout_ms,
        "stdin_bytes": len(op.stdin),
        "label": op.label,
        "op_sha256": op.op_sha256,
    }


def _command_fields(argv: tuple[bytes, ...] | None, script: bytes | None) -> dict[str, Field]:
    if argv is not None:
        return describe_argv(argv)
    return {
        ("script" if name == "argv" else "script_cut"): value
        for name, value in describe_argv((script or b"",)).items()
    }


def root_fields(roots: tuple[Root, ...]) -> list[Field]:
    """`[path, "read write"]` of the first roots, and how many more there are."""
    kept: list[Field] = []
    left = AUDIT_LIST_BYTES
    for root in roots:
        left -= len(root.path) + 8
        if left < 0:
            return [*kept, len(roots) - len(kept)]
        kept.append([root.path, access_words(root.access)])
    return kept


def name_fields(names: Sequence[str | bytes]) -> list[Field]:
    """The first of them, and how many more there are."""
    kept: list[Field] = []
    left = AUDIT_LIST_BYTES
    for name in names:
        left -= len(name) + 8
        if left < 0:
            return [*kept, len(names) - len(kept)]
        kept.append(name)
    return kept


def access_words(access: Access) -> str:
    """`read write exec`, of what is in it."""
    return _ACCESS_WORDS[access]


_ACCESS_WORDS = {
    access: " ".join(flag.name.lower() for flag in Access if flag in access and flag.name)
    for access in (Access(bits) for bits in range(ALL_ACCESS.value + 1))
}

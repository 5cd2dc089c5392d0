# SPDX-License-Identifier: Apache-2.0
"""The gate: what it refuses, in which order, what it records, and that nothing runs without it."""

from __future__ import annotations

import ast
import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broker
from broker.audit import Audit
from broker.ceiling import Ceiling, CeilingLimits, canonicalised, deny_all
from broker.chain import GENESIS, Fields, encode
from broker.errors import (
    AuditUnavailableError,
    BrokerError,
    CeilingDeniedError,
    DrainingError,
    EnvironmentRefusedError,
    FeatureDisabledError,
    InvalidFieldError,
    LimitExceededError,
    NotReadyError,
    TooManyRunsError,
)
from broker.gate import SCRATCH, Account, Gate, Who
from broker.model import (
    Access,
    Confinement,
    ExecRequest,
    Limits,
    Principal,
    Reason,
    Root,
)
from broker.permit import Permit

T = TypeVar("T")
READ, WRITE, EXEC = Access.READ, Access.READ | Access.WRITE, Access.EXEC
WHO = Who(Principal("client", "unix", 1000, 77), "a_test_1")
ACCOUNT = Account(b"op", b"/home/op", b"/bin/bash")


class Scene:
    """A gate over a real audit log and a real directory tree."""

    def __init__(self, base: Path) -> None:
        self.inside = base / "inside"
        self.outside = base / "outside"
        for place in (self.inside / "sub", self.outside / "sub"):
            place.mkdir(parents=True)
        (self.inside / "file").write_text("")
        (self.inside / "way-out").symlink_to(self.outside)
        (self.inside / "dangling-out").symlink_to(self.outside / "nothing")
        (self.inside / "way-in").symlink_to(self.inside / "sub")
        (self.outside / "way-in").symlink_to(self.inside)
        self.objection: BrokerError | None = None
        self.places = 1
        self.audit_dir = base / "audit"
        self.audit = Audit.open(self.audit_dir)
        self.gate = Gate(
            audit=self.audit,
            ceiling=Ceiling(roots=(Root(os.fsencode(self.inside), WRITE),)),
            account=ACCOUNT,
            inherited={b"CANARY_TOKEN": b"s3cret", b"CANARY": b"plain"},
            objection=lambda: self.objection,
            places=lambda: self.places,
        )

    def request(self, **changes: Any) -> ExecRequest:
        plain = ExecRequest(argv=(b"true",), cwd=os.fsencode(self.inside))
        return replace(plain, **changes)

    def close(self) -> None:
        if self.audit.failure is None:
            self.audit.close()

    def records(self) -> list[dict[str, Any]]:
        self.close()
        lines = (self.audit_dir / "audit.jsonl").read_bytes().rstrip(b"\0").splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def test_an_allow_is_recorded_before_the_permit_exists(scene: Scene) -> None:
    admitted = run(scene.gate.authorise(WHO, scene.request(stdin=b"abc", label="why")))
    op = admitted.permit.op
    assert admitted.permit.audit_id == WHO.audit_id
    assert op.cwd == os.fsencode(scene.inside)
    assert op.confinement is Confinement.SANDBOXED
    (record,) = scene.records()
    assert (record["kind"], record["seq"]) == ("exec.intent", admitted.intent_seq)
    told = {"audit_id": "a_test_1", "principal": "client", "peer_uid": 1000, "peer_pid": 77,
            "argv": ["true"], "cwd": str(scene.inside), "confinement": "sandboxed",
            "roots": [[str(scene.inside), "read write"]], "stdin_bytes": 3, "label": "why",
            "op_sha256": op.op_sha256}  # fmt: skip
    assert told.items() <= record.items()


Change = Callable[[Scene], ExecRequest]

REFUSALS: list[tuple[str, Change, type[BrokerError], str | None]] = [
    (
        "cwd outside",
        lambda s: s.request(cwd=os.fsencode(s.outside)),
        CeilingDeniedError,
        "cwd_outside_ceiling",
    ),
    (
        "cwd outside and not there",
        lambda s: s.request(cwd=os.fsencode(s.outside / "nothing")),
        CeilingDeniedError,
        "cwd_outside_ceiling",
    ),
    (
        "cwd with a name that only begins like the root",
        lambda s: s.request(cwd=os.fsencode(s.inside) + b"-not"),
        CeilingDeniedError,
        "cwd_outside_ceiling",
    ),
    (
        "cwd through a link that leads out",
        lambda s: s.request(cwd=os.fsencode(s.inside / "way-out" / "sub")),
        CeilingDeniedError,
        "cwd_outside_ceiling",
    ),
    (
        "cwd through a link to nothing outside",
        lambda s: s.request(cwd=os.fsencode(s.inside / "dangling-out")),
        CeilingDeniedError,
        "cwd_outside_ceiling",
    ),
    (
        "cwd outside, by a link that leads in",
        lambda s: s.request(cwd=os.fsencode(s.outside / "way-in")),
        CeilingDeniedError,
        "cwd_outside_ceiling",
    ),
    (
        "cwd inside the ceiling, outside the requested roots",
        lambda s: s.request(roots=(Root(os.fsencode(s.inside / "sub"), READ),)),
        CeilingDeniedError,
        "cwd_outside_ceiling",
    ),
    (
        "cwd not there",
        lambda s: s.request(cwd=os.fsencode(s.inside / "nothing")),
        InvalidFieldError,
        None,
    ),
    (
        "cwd a file",
        lambda s: s.request(cwd=os.fsencode(s.inside / "file")),
        InvalidFieldError,
        None,
    ),
    (
        "no requested root left",
        lambda s: s.request(cwd=None, roots=(Root(os.fsencode(s.outside), READ),)),
        CeilingDeniedError,
        "no_root_left",
    ),
    (
        "an access the ceiling does not have",
        lambda s: s.request(cwd=None, roots=(Root(os.fsencode(s.inside), EXEC),)),
        CeilingDeniedError,
        "no_root_left",
    ),
    ("a time-out too long", lambda s: s.request(timeout_ms=600_001), LimitExceededError, None),
    ("a grace too long", lambda s: s.request(grace_ms=10_001), LimitExceededError, None),
    (
        "too much output",
        lambda s: s.request(head_bytes=4 << 20, tail_bytes=1),
        LimitExceededError,
        None,
    ),
    (
        "an injected variable",
        lambda s: s.request(env=((b"LD_PRELOAD", b"x.so"),)),
        EnvironmentRefusedError,
        "environment_refused",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [row[1:] for row in REFUSALS],
    ids=[row[0] for row in REFUSALS],
)
def test_a_refusal_is_an_error_and_an_event(
    scene: Scene, change: Change, error: type[BrokerError], reason: str | None
) -> None:
    request = change(scene)
    with pytest.raises(error) as refused:
        run(scene.gate.authorise(WHO, request))
    assert refused.value.details.get("reason") == reason
    (record,) = scene.records()
    assert record["kind"] == "exec.denied"
    assert record["code"] == refused.value.code
    assert record["reason"] == reason
    assert record["argv"] == ["true"]
    assert record["audit_id"] == "a_test_1"
    assert (record["cwd"] is None) == (request.cwd is None)


def test_exists_outside_and_does_not_exist_outside_are_the_same_answer(scene: Scene) -> None:
    def answer(cwd: Path) -> dict[str, object]:
        with pytest.raises(CeilingDeniedError) as refused:
            run(scene.gate.authorise(WHO, scene.request(cwd=os.fsencode(cwd))))
        return refused.value.problem()

    assert answer(scene.outside / "sub") == answer(scene.outside / "nothing")
    assert answer(scene.inside / "way-out") == answer(scene.inside / "dangling-out")


@pytest.mark.parametrize("where", ["way-in", "sub", "way-in/."])
def test_a_cwd_is_where_it_really_is(scene: Scene, where: str) -> None:
    op = scene.gate.decide(WHO, scene.request(cwd=os.fsencode(scene.inside / where)))
    assert op.cwd == os.fsencode(scene.inside / "sub")


def test_both_spellings_of_a_root_work(scene: Scene) -> None:
    written, real = os.fsencode(scene.outside / "way-in"), os.fsencode(scene.inside)
    scene.gate.ceiling = canonicalised(Ceiling(roots=(Root(written, READ),)), {written: real})
    for cwd in (written, written + b"/sub", real + b"/sub"):
        assert scene.gate.decide(WHO, scene.request(cwd=cwd)).cwd.startswith(real)


def test_without_a_cwd_a_run_starts_in_its_scratch_directory(scene: Scene) -> None:
    assert scene.gate.decide(WHO, scene.request(cwd=None)).cwd == SCRATCH


FLOORS: list[tuple[BrokerError, int]] = [
    (DrainingError(), 503),
    (NotReadyError(["helper_selftest"]), 503),
    (FeatureDisabledError("kill_switch"), 403),
    (AuditUnavailableError(), 503),
]


@pytest.mark.parametrize(("floor", "status"), FLOORS, ids=[row[0].code for row in FLOORS])
def test_a_floor_that_does_not_hold_comes_first(
    scene: Scene, floor: BrokerError, status: int
) -> None:
    scene.objection = floor
    scene.gate.ceiling = deny_all(Reason.CEILING_MISSING, "it does not exist")
    with pytest.raises(type(floor)) as refused:
        run(scene.gate.authorise(WHO, scene.request(cwd=b"/elsewhere")))
    assert refused.value.status == status


@pytest.mark.parametrize("code", [code for code in Reason if code.value.startswith("ceiling_")])
def test_a_ceiling_that_denies_everything_says_only_why(scene: Scene, code: Reason) -> None:
    scene.gate.ceiling = deny_all(code, "'/etc/host-broker/ceiling.toml': writable by others")
    with pytest.raises(CeilingDeniedError) as refused:
        run(scene.gate.authorise(WHO, scene.request()))
    assert refused.value.details["reason"] == code.value
    assert "/etc" not in json.dumps(refused.value.problem())


@pytest.mark.parametrize(("places", "fine"), [(2, True), (3, False)])
def test_as_many_runs_as_the_ceiling_allows(scene: Scene, places: int, fine: bool) -> None:
    roots = scene.gate.ceiling.roots
    scene.gate.ceiling = Ceiling(roots=roots, limits=CeilingLimits(max_runs=2))
    scene.places = places
    if fine:
        run(scene.gate.authorise(WHO, scene.request()))
        return
    with pytest.raises(TooManyRunsError) as refused:
        run(scene.gate.authorise(WHO, scene.request()))
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)


def test_if_the_intent_cannot_be_written_there_is_no_permit(scene: Scene) -> None:
    scene.audit.close()
    with pytest.raises(AuditUnavailableError):
        run(scene.gate.authorise(WHO, scene.request()))


def test_a_plan_takes_the_same_decision_and_records_no_intent(scene: Scene) -> None:
    request = scene.request()
    planned = scene.gate.plan(WHO, request)
    admitted = run(scene.gate.authorise(WHO, request))
    assert planned == admitted.permit.op
    assert [record["kind"] for record in scene.records()] == ["exec.plan", "exec.intent"]


def test_nothing_of_the_brokers_environment_reaches_a_run(scene: Scene) -> None:
    op = scene.gate.decide(WHO, scene.request(env=((b"MINE", b"1"), (b"MY_TOKEN", b"x"))))
    environment = dict(op.environment)
    assert environment[b"MINE"] == b"1"
    assert not {b"CANARY", b"CANARY_TOKEN", b"MY_TOKEN"} & environment.keys()
    assert op.stripped == ("MY_TOKEN",)
    assert environment[b"TMPDIR"] == SCRATCH


def test_unconfined_is_said_and_gets_the_login_environment(scene: Scene) -> None:
    scene.gate.ceiling = replace(
        scene.gate.ceiling, confinement=Confinement.UNCONFINED, trusted_single_operator=True
    )
    op = run(scene.gate.authorise(WHO, scene.request())).permit.op
    assert op.environment_base == "login"
    assert dict(op.environment)[b"CANARY"] == b"plain"
    assert b"CANARY_TOKEN" not in dict(op.environment)
    (record,) = scene.records()
    assert record["confinement"] == "unconfined"


def test_values_and_stdin_are_in_no_record(scene: Scene) -> None:
    request = scene.request(env=((b"NAME", b"v4lue-1"),), stdin=b"v4lue-2")
    run(scene.gate.authorise(WHO, request))
    with pytest.raises(LimitExceededError):
        run(scene.gate.authorise(WHO, replace(request, timeout_ms=2**40)))
    text = json.dumps(scene.records())
    assert "NAME" in text
    assert "v4lue" not in text


def test_the_self_check_is_sandboxed_and_has_nothing_but_the_helper(scene: Scene) -> None:
    scene.gate.ceiling = replace(scene.gate.ceiling, confinement=Confinement.UNCONFINED)
    limits = Limits(1000, 100, 1, 0, None, None, None, None, None)
    argv = (b"/opt/confine", b"--reach")
    op = run(scene.gate.authorise_self_check("a_1", argv, b"", limits)).permit.op
    assert op.confinement is Confinement.SANDBOXED
    assert op.roots == (Root(b"/opt/confine", EXEC),)
    assert not op.baseline
    assert op.environment == ()
    assert [record["kind"] for record in scene.records()] == ["selfcheck.intent"]


class Encoder:
    """An audit log that only encodes: raises ValueError for a record that is too large."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def append_lazy(self, kind: str, fields: Fields, *, ref: int | None = None) -> int:
        encode(GENESIS, at="", instance="", kind=kind, fields=fields, ref=ref)
        self.kinds.append(kind)
        return len(self.kinds)


# Bytes that JSON makes most of, and lists as long as the parser lets them be.
heavy = st.sampled_from([b"\xff", b"\\", b"\n", b"\x01", "é".encode(), "😀".encode(), b"a"])
paths = heavy.map(lambda unit: b"/" + (unit * 4094)[:4094])
argvs = st.one_of(
    st.just((b"",) * 16_384),
    st.just((b"\xff",) * 16_384),
    st.just(("é",) * 16_384).map(lambda argv: tuple(map(str.encode, argv))),
    heavy.map(lambda unit: ((unit * 131_071)[:131_071],) * 4),
)


@given(argv=argvs, cwd=paths, root=paths, roots=st.sampled_from([1, 1024]))
@settings(max_examples=60, deadline=None)
def test_whatever_is_asked_fits_into_a_record(
    argv: tuple[bytes, ...], cwd: bytes, root: bytes, roots: int
) -> None:
    audit = Encoder()
    gate = Gate(
        audit=cast("Audit", audit),
        ceiling=Ceiling(roots=(Root(root, WRITE),)),
        account=ACCOUNT,
        inherited={},
        objection=lambda: None,
        places=lambda: 1,
    )
    request = ExecRequest(
        argv=argv,
        cwd=cwd[:-1] + b"/x",
        roots=(Root(root, WRITE),) * roots,
        env=tuple((b"LD_%0250d" % number, b"") for number in range(512)),
        label="😀" * 128,
    )
    with pytest.raises(BrokerError):
        gate.decide(WHO, request)
    gate.plan(WHO, replace(request, cwd=None, env=()))
    gate.plan(WHO, replace(request, cwd=None, env=(), argv=None, script=b"\\" * 65_536))
    assert audit.kinds == ["exec.denied", "exec.plan", "exec.plan"]


def test_only_the_gate_makes_permits() -> None:
    makers = []
    for path in Path(broker.__path__[0]).rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                  for alias in node.names}  # fmt: skip
        if "_mint" in names:
            makers.append(path.name)
    assert makers == ["gate.py"]
    with pytest.raises(TypeError):
        Permit(object(), "a_1", token=object())


@pytest.mark.parametrize(
    ("granted", "base", "home"),
    [
        (b"/home/op", "developer", b"/home/op"),
        (b"/home/op/.cargo", "developer", b"/home/op"),
        (b"/home", "developer", b"/home/op"),
        (b"/home/other", "minimal", SCRATCH),
        (b"/srv", "minimal", SCRATCH),
    ],
)
def test_home_is_the_account_s_where_any_of_it_is_granted(
    scene: Scene, granted: bytes, base: str, home: bytes
) -> None:
    scene.gate.ceiling = Ceiling(roots=(Root(granted, WRITE),), environment="developer")
    op = scene.gate.decide(WHO, scene.request(cwd=None))
    assert (op.environment_base, dict(op.environment)[b"HOME"]) == (base, home)
    scene.gate.ceiling = Ceiling(roots=(Root(b"/home/op", WRITE),), environment="developer")
    again = scene.gate.decide(WHO, scene.request(cwd=None))
    assert dict(again.environment)[b"HOME"] == b"/home/op"


# --- while an intent is being written -------------------------------------------------------------


def overtaken(scene: Scene, change: Callable[[], None]) -> BrokerError | None:
    """A run that waits for its intent record while `change` happens; its refusal, if any."""

    async def act() -> BrokerError | None:
        scene.places = 2  # so that it waits
        waiting = asyncio.get_running_loop().create_task(scene.gate.authorise(WHO, scene.request()))
        await asyncio.sleep(0)
        assert not waiting.done()
        change()
        try:
            await waiting
        except BrokerError as refusal:
            return refusal
        return None

    return run(act())


def switch_off(scene: Scene) -> None:
    scene.objection = FeatureDisabledError(Reason.KILL_SWITCH.value)


def deny_everything(scene: Scene) -> None:
    scene.gate.ceiling = deny_all(Reason.CEILING_EMPTY, "empty")


@pytest.mark.parametrize(
    ("change", "refused"),
    [(switch_off, FeatureDisabledError), (deny_everything, CeilingDeniedError)],
)
def test_a_change_while_the_intent_is_written_is_obeyed(
    scene: Scene, change: Callable[[Scene], None], refused: type[BrokerError]
) -> None:
    assert isinstance(overtaken(scene, lambda: change(scene)), refused)
    intent, outcome, denied = scene.records()
    assert (intent["kind"], outcome["kind"], denied["kind"]) == (
        "exec.intent", "exec.outcome", "exec.denied",
    )  # fmt: skip
    assert (outcome["state"], outcome["reason"]) == ("not_run", "overtaken")
    assert outcome["ref"] == intent["seq"]


def test_a_reload_that_still_allows_it_lets_it_run_under_the_new_ceiling(scene: Scene) -> None:
    def reload() -> None:
        scene.gate.ceiling = replace(scene.gate.ceiling, limits=CeilingLimits(max_timeout_ms=1234))

    assert overtaken(scene, reload) is None
    first, outcome, second = scene.records()
    assert (first["kind"], outcome["reason"], second["kind"]) == (
        "exec.intent", "overtaken", "exec.intent",
    )  # fmt: skip
    assert (first["timeout_ms"], second["timeout_ms"]) == (120_000, 1234)

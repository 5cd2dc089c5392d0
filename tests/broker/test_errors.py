# SPDX-License-Identifier: Apache-2.0
"""The wire codes: one class each, complete, bounded, silent about what the caller did not send."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import errors
from broker.errors import BrokerError

CLASSES = sorted(BrokerError.__subclasses__(), key=lambda cls: cls.__name__)

ONE_OF_EACH: dict[type[BrokerError], BrokerError] = {
    type(error): error
    for error in (
        errors.BadRequestError("two Content-Length headers"),
        errors.BadJsonError("Expecting value at byte 3"),
        errors.UnknownFieldError("timout_ms", "timeout_ms"),
        errors.InvalidFieldError("argv", "is not an array"),
        errors.LimitExceededError("timeout_ms", 10, 11, "ms"),
        errors.BadPathError("is not absolute", b"a/b"),
        errors.UnauthenticatedError(),
        errors.TooManyAttemptsError(60),
        errors.TooManyRunsError(16),
        errors.FeatureDisabledError("kill_switch"),
        errors.CeilingDeniedError("cwd_outside_ceiling", "cwd lies outside", field="cwd"),
        errors.EnvironmentRefusedError(["PATH"]),
        errors.OriginForbiddenError("requests from web pages are refused"),
        errors.NoSuchRouteError("'/x' is not a route"),
        errors.MethodNotAllowedError(["GET", "POST"]),
        errors.RequestTimeoutError("headers: not complete after 10 s"),
        errors.BodyTooLargeError(10),
        errors.ArgvTooLargeError("argv", 10, 11),
        errors.UnsupportedMediaTypeError("'text/plain' is not application/json"),
        errors.HeadersTooLargeError(10),
        errors.InternalError(),
        errors.NotSupportedError("Idempotency-Key is not supported"),
        errors.NotReadyError(["ceiling_loaded"]),
        errors.DrainingError(),
        errors.AuditUnavailableError(),
        errors.BusyError("connection"),
        errors.NoSpaceError("the scratch directory"),
    )
}


def test_every_class_is_in_the_table_above():
    assert set(ONE_OF_EACH) == set(CLASSES)


def test_each_code_has_one_class_and_no_class_has_a_subclass():
    codes = [cls.code for cls in CLASSES]
    assert sorted(codes) == sorted(set(codes))
    assert not [cls for cls in CLASSES if cls.__subclasses__()]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_says_what_the_protocol_needs(cls: type[BrokerError]):
    assert cls.__name__.endswith("Error")
    assert cls.__doc__
    assert cls.__doc__ != BrokerError.__doc__
    assert 400 <= cls.status <= 599
    assert cls.code.replace("_", "").isalpha()
    assert cls.code.islower()
    assert cls.title
    assert cls.layer


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_problem_is_json_with_the_standard_members_and_ours(cls: type[BrokerError]):
    error = ONE_OF_EACH[cls]
    bare = error.problem()
    assert list(bare) == [
        "type", "title", "status", "detail", "code", "layer", "retryable", "details",
    ]  # fmt: skip
    assert bare["type"] == f"urn:host-broker:error:{cls.code}"
    assert bare["detail"] == str(error)
    full = error.problem("17", "ab" * 32)
    assert full == {**bare, "audit_id": "17", "op_sha256": "ab" * 32}
    assert json.loads(json.dumps(full)) == full


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_asks_for_patience_is_retryable(cls: type[BrokerError]):
    if ONE_OF_EACH[cls].retry_after_s is not None:
        assert cls.retryable
        assert cls.status in (429, 503)


def test_the_base_is_never_raised():
    raised = [
        f"{path}:{node.lineno}"
        for path in (Path(__file__).parents[2] / "broker").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and getattr(node.exc.func, "id", getattr(node.exc.func, "attr", "")) == "BrokerError"
    ]
    assert raised == []


@pytest.mark.parametrize(
    ("error", "detail", "details"),
    [
        (
            errors.UnknownFieldError("comfirm", "confirm"),
            "unknown field 'comfirm'; did you mean 'confirm'?",
            {"field": "comfirm", "nearest": "confirm"},
        ),
        (
            errors.UnknownFieldError("x", None),
            "unknown field 'x'",
            {"field": "x", "nearest": None},
        ),
        (
            errors.BadPathError("is not absolute", b"a/b").at("cwd"),
            "cwd: 'a/b' is not absolute",
            {"field": "cwd", "why": "is not absolute", "path": "a/b"},
        ),
        (
            errors.BadPathError("holds a NUL", b"/\xff\0"),
            r"path: '/\\xff\x00' holds a NUL",
            {"field": "path", "why": "holds a NUL", "path_b64": "L/8A"},
        ),
        (
            errors.CeilingDeniedError("no_root_left", "nothing of it is allowed"),
            "nothing of it is allowed",
            {"reason": "no_root_left"},
        ),
        (
            errors.EnvironmentRefusedError(["LD_PRELOAD", "BASH_ENV"]),
            "env: BASH_ENV, LD_PRELOAD would choose what code runs; "
            "leave out or set inside the command",
            {"reason": "environment_refused", "names": ["BASH_ENV", "LD_PRELOAD"]},
        ),
        (
            errors.LimitExceededError("output", 10, 11, "bytes"),
            "output: at most 10 bytes, not 11",
            {"field": "output", "limit": 10, "given": 11, "unit": "bytes"},
        ),
    ],
    ids=lambda value: value.code if isinstance(value, BrokerError) else "",
)
def test_details_hold_what_a_program_needs(error: BrokerError, detail: str, details: object):
    assert error.detail == detail
    assert error.details == details


@given(st.text())
def test_text_of_a_caller_is_shown_on_one_bounded_printable_line(text: str):
    shown = errors.shown(text)
    assert shown.isprintable()
    assert len(shown) <= 10 * errors.MAX_ECHO_CHARS + 10


@given(st.binary(min_size=1, max_size=20_000))
def test_an_error_does_not_grow_with_what_was_sent(raw: bytes):
    field = raw.decode("latin-1")
    for error in (
        errors.UnknownFieldError(field, None),
        errors.BadPathError("is not absolute", raw),
        errors.EnvironmentRefusedError(f"LD_{number}" for number in range(len(raw))),
    ):
        assert len(json.dumps(error.problem())) < 8_000


def test_a_path_is_spelled_as_text_where_it_is_text():
    assert errors.path_member("/srv/é".encode()) == {"path": "/srv/é"}
    assert errors.path_member(b"/srv/\xe9") == {"path_b64": "L3Nydi/p"}

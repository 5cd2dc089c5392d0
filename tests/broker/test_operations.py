# SPDX-License-Identifier: Apache-2.0
"""The table of operations, and what a body may say."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.environ import MAX_STRING_BYTES
from broker.errors import (
    ArgvTooLargeError,
    BadJsonError,
    BadPathError,
    BodyTooLargeError,
    BrokerError,
    InvalidFieldError,
    LimitExceededError,
    MethodNotAllowedError,
    NoSuchRouteError,
    UnknownFieldError,
    UnsupportedMediaTypeError,
)
from broker.model import Access, ExecRequest, Limits, OnLimit, Root
from broker.operations import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGV_BYTES,
    MAX_ARGV_ITEMS,
    MAX_BODY_BYTES,
    MAX_INTEGER,
    MAX_LABEL_CHARS,
    MAX_REQUEST_ROOTS,
    MAX_SCRIPT_BYTES,
    MAX_STDIN_BYTES,
    OPERATIONS,
    _canonical,
    op_sha256,
    parse_exec_request,
    route,
)

R, W, X = Access.READ, Access.WRITE, Access.EXEC


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def parsed(**given_fields: object) -> ExecRequest:
    """A body with these fields, beside an argv unless there is a command among them."""
    if not {"argv", "script"} & set(given_fields):
        given_fields["argv"] = ["true"]
    return parse_exec_request(json.dumps(given_fields).encode())


# --- the table ------------------------------------------------------------------------------------


def test_the_routes_of_this_protocol():
    assert [(row.method, row.path, row.name) for row in OPERATIONS] == [
        ("GET", "/healthz", "health.show"),
        ("GET", "/readyz", "readiness.show"),
        ("GET", "/v1/capabilities", "capabilities.show"),
        ("GET", "/openapi.json", "openapi.show"),
        ("POST", "/v1/plan", "exec.plan"),
        ("POST", "/v1/exec", "exec.run"),
    ]


def test_only_health_needs_no_secret():
    assert [row.name for row in OPERATIONS if not row.authenticated] == ["health.show"]
    assert {row.capability for row in OPERATIONS if row.authenticated} == {"status", "exec"}


def test_names_and_routes_are_unique_and_a_body_belongs_to_post():
    assert len({row.name for row in OPERATIONS}) == len(OPERATIONS)
    assert len({(row.method, row.path) for row in OPERATIONS}) == len(OPERATIONS)
    for row in OPERATIONS:
        assert row.summary.endswith((".", "503."))
        assert row.handler.isidentifier()
        assert (row.parse is not None) == (row.method == "POST")
        assert row.max_body_bytes == (MAX_BODY_BYTES if row.method == "POST" else 0)


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_each_row_is_found_by_its_route(row: object):
    assert route(row.method, row.path) is row  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "path", "error", "message"),
    [
        ("POST", "/healthz", MethodNotAllowedError, "use GET here"),
        ("GET", "/v1/exec", MethodNotAllowedError, "use POST here"),
        ("HEAD", "/readyz", MethodNotAllowedError, "use GET here"),
        ("GET", "/", NoSuchRouteError, "'/' is not a route"),
        ("GET", "", NoSuchRouteError, "'' is not a route"),
        ("POST", "/v1/exec/", NoSuchRouteError, "'/v1/exec/' is not a route; '/v1/exec' is"),
        ("POST", "/v1/exec//", NoSuchRouteError, "'/v1/exec//' is not a route"),
        ("POST", "/v1/Exec", NoSuchRouteError, "'/v1/Exec' is not a route"),
        ("POST", "/v2/exec", NoSuchRouteError, "'/v2/exec' is not a route"),
        ("POST", "/v1/../v1/exec", NoSuchRouteError, "'/v1/../v1/exec' is not a route"),
    ],
)
def test_any_other_route_is_refused(method: str, path: str, error: type, message: str):
    with pytest.raises(error) as caught:
        route(method, path)
    assert str(caught.value) == message


# --- whole bodies ---------------------------------------------------------------------------------


def test_a_body_with_every_field():
    request = parsed(
        argv=["ls", {"b64": b64(b"\xff")}],
        cwd="/srv/p/",
        env={"LANG": "C", "RAW": {"b64": b64(b"\xfe")}},
        roots=[
            {"path": "/srv/p", "access": ["write"]},
            {"path_b64": b64(b"/srv/\xe9"), "access": ["read", "exec"]},
        ],
        timeout_ms=5000,
        grace_ms=100,
        stdin={"b64": b64(b"\0in")},
        output={"head_bytes": 10, "tail_bytes": 0, "on_limit": "kill"},
        label="build 42 é",
    )
    assert request == ExecRequest(
        argv=(b"ls", b"\xff"),
        cwd=b"/srv/p",
        env=((b"LANG", b"C"), (b"RAW", b"\xfe")),
        roots=(Root(b"/srv/p", R | W), Root(b"/srv/\xe9", R | X)),
        timeout_ms=5000,
        grace_ms=100,
        stdin=b"\0in",
        head_bytes=10,
        tail_bytes=0,
        on_limit=OnLimit.KILL,
        label="build 42 é",
    )


def test_absent_fields_are_left_to_the_servers_defaults():
    assert parsed(argv=["true"]) == ExecRequest(argv=(b"true",))
    assert parsed(script="echo é\n\ttrue\n") == ExecRequest(script="echo é\n\ttrue\n".encode())
    assert parsed(stdin="none", roots=[], env={}, output={}) == ExecRequest(
        argv=(b"true",), roots=()
    )


@pytest.mark.parametrize(
    "content_type",
    [None, "", "application/json", "Application/JSON; charset=UTF-8",
     'application/json; charset="utf-8"', "application/x-www-form-urlencoded",
     "application/json; profile=x"],
)  # fmt: skip
def test_json_is_read_whether_or_not_curl_says_so(content_type: str | None):
    assert parse_exec_request(b'{"argv":["true"]}', content_type).argv == (b"true",)


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        ("text/plain", "'text/plain' is not application/json"),
        ("multipart/form-data; boundary=x", "'multipart/form-data' is not application/json"),
        ("application/jsonx", "'application/jsonx' is not application/json"),
        ("application/json; charset=latin-1", "JSON is UTF-8 here, no other charset"),
        ("application/json; charset=", "JSON is UTF-8 here, no other charset"),
    ],
)
def test_another_media_type_is_refused(content_type: str, message: str):
    with pytest.raises(UnsupportedMediaTypeError) as caught:
        parse_exec_request(b'{"argv":["true"]}', content_type)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Expecting value at byte 0"),
        (b"{", "Expecting property name enclosed in double quotes at byte 1"),
        ('{"é":}'.encode(), "Expecting value at byte 6"),
        (b'{"argv":["true"]} x', "Extra data at byte 18"),
        (b"[]", "the body is not a JSON object"),
        (b'"argv"', "the body is not a JSON object"),
        (b"null", "the body is not a JSON object"),
        (b'{"a":1,"a":1}', "field 'a' is given twice"),
        (b'{"env":{"A":"1","B":"2","A":"1"}}', "field 'A' is given twice"),
        (b'{"stdin":{"b64":"","b64":""}}', "field 'b64' is given twice"),
        (b'{"timeout_ms":NaN}', "NaN is not JSON"),
        (b'{"timeout_ms":-Infinity}', "-Infinity is not JSON"),
        (b'{"argv":["\xe9"]}', "the body is not UTF-8 at byte 10; send other bytes as base64"),
        (b'["\xed\xa0\x80"]', "the body is not UTF-8 at byte 2; send other bytes as base64"),
        (b'{"timeout_ms":' + b"1" * 5000 + b"}", "a number is too long, or the nesting too deep"),
        (b"[" * 200_000, "a number is too long, or the nesting too deep"),
        (b'{"argv":' + b'{"a":' * 100_000, "a number is too long, or the nesting too deep"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: bytes, message: str):
    with pytest.raises(BadJsonError) as caught:
        parse_exec_request(body)
    assert str(caught.value) == message


def test_a_byte_order_mark_is_refused():
    with pytest.raises(BadJsonError, match="byte order mark"):
        parse_exec_request(b'\xef\xbb\xbf{"argv":["true"]}')


def test_a_control_character_in_a_string_is_refused():
    with pytest.raises(BadJsonError, match="control character"):
        parse_exec_request(b'{"argv":["a\nb"]}')


def test_the_largest_body_is_read_and_one_byte_more_is_not():
    body = b'{"argv":["true"]}'
    assert parse_exec_request(body + b" " * (MAX_BODY_BYTES - len(body))).argv
    with pytest.raises(BodyTooLargeError) as caught:
        parse_exec_request(body + b" " * (MAX_BODY_BYTES - len(body) + 1))
    assert caught.value.details == {"limit": MAX_BODY_BYTES}


@pytest.mark.parametrize(
    ("given_fields", "field", "nearest"),
    [
        ({"timout_ms": 5}, "timout_ms", "timeout_ms"),
        ({"comfirm": True}, "comfirm", None),
        ({"environment": {}}, "environment", None),
        ({"approval_id": "a"}, "approval_id", None),
        ({"pty": {}}, "pty", None),
        ({"Argv": []}, "Argv", "argv"),
        ({"": 1}, "", None),
        ({"output": {"headbytes": 1}}, "output.headbytes", "output.head_bytes"),
        ({"roots": [{"path": "/", "acess": 1}]}, "roots[0].acess", "roots[0].access"),
        ({"stdin": {"b64": "", "eof": True}}, "stdin.eof", None),
        ({"argv": ["x", {"b46": ""}]}, "argv[1].b46", "argv[1].b64"),
        ({"env": {"A": {"base64": ""}}}, "env['A'].base64", "env['A'].b64"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_naming_the_nearest(
    given_fields: dict[str, object], field: str, nearest: str | None
):
    with pytest.raises(UnknownFieldError) as caught:
        parsed(**given_fields)
    assert caught.value.details == {"field": field, "nearest": nearest}


# --- single fields --------------------------------------------------------------------------------

NULL_IN_PATH = b64(b"/srv\0")

INVALID: list[tuple[dict[str, object], str]] = [
    ({"argv": ["x"], "script": "x"}, "argv: give exactly one of argv and script"),
    ({"argv": None}, "argv: is not an array"),
    ({"argv": "ls -l"}, "argv: is not an array"),
    ({"argv": []}, "argv: names no program"),
    ({"argv": [""]}, "argv: names no program"),
    ({"argv": ["x", 1]}, "argv[1]: is not a string"),
    ({"argv": ["x", None]}, "argv[1]: is not a string"),
    ({"argv": ["x", "a\0b"]}, "argv[1]: holds a NUL, where execve(2) would cut it off"),
    ({"argv": [{"b64": b64(b"\0")}]}, "argv[0]: holds a NUL, where execve(2) would cut it off"),
    (
        {"argv": ["\udce9"]},
        "argv[0]: holds a lone surrogate; send bytes that are not UTF-8 as base64",
    ),
    ({"argv": [{"b64": "QQ"}]}, "argv[0].b64: is not base64 (with padding, without line ends)"),
    ({"argv": [{"b64": "Q Q="}]}, "argv[0].b64: is not base64 (with padding, without line ends)"),
    ({"argv": [{"b64": "_-8="}]}, "argv[0].b64: is not base64 (with padding, without line ends)"),
    ({"argv": [{}]}, "argv[0].b64: is not a string"),
    ({"script": 1}, "script: is not a string"),
    ({"script": {"b64": ""}}, "script: is not a string"),
    ({"script": ""}, "script: is empty"),
    ({"script": "a\rb"}, "script: holds U+000D at character 1; end lines with a line feed alone"),
    ({"script": "a\0"}, "script: holds U+0000 at character 1"),
    ({"script": "\x1b[0m"}, "script: holds U+001B at character 0"),
    ({"script": "a\x0b"}, "script: holds U+000B at character 1"),
    ({"script": "a\x7f"}, "script: holds U+007F at character 1"),
    ({"script": "é\x85"}, "script: holds U+0085 at character 1"),
    ({"script": "\ufeffls"}, "script: holds U+FEFF at character 0"),
    ({"script": "a\u200b"}, "script: holds U+200B at character 1"),
    ({"script": "a\u202e"}, "script: holds U+202E at character 1"),
    ({"script": "a\u2066"}, "script: holds U+2066 at character 1"),
    ({"script": "a\u2028"}, "script: holds U+2028 at character 1"),
    ({"script": "a\u061c"}, "script: holds U+061C at character 1"),
    ({"cwd": 1}, "cwd: is not a string"),
    ({"cwd": None}, "cwd: is not a string"),
    ({"cwd": "/a", "cwd_b64": b64(b"/a")}, "cwd: give one of cwd and cwd_b64"),
    ({"cwd_b64": "?"}, "cwd_b64: is not base64 (with padding, without line ends)"),
    ({"env": []}, "env: is not an object"),
    ({"env": {"A": 1}}, "env['A']: is not a string"),
    ({"env": {"A": None}}, "env['A']: is not a string"),
    ({"env": {"A=B": "1"}}, "env: 'A=B' is no name: printable ASCII without space and '='"),
    ({"env": {"A": "x\0"}}, "env: the value of 'A' holds a NUL"),
    ({"roots": {}}, "roots: is not an array"),
    ({"roots": ["/srv"]}, "roots[0]: is not an object"),
    ({"roots": [{"access": ["read"]}]}, "roots[0]: has neither path nor path_b64"),
    ({"roots": [{"path": "/a"}]}, "roots[0].access: is not an array"),
    ({"roots": [{"path": "/a", "access": "read"}]}, "roots[0].access: is not an array"),
    ({"roots": [{"path": "/a", "access": []}]}, "roots[0].access: is empty"),
    (
        {"roots": [{"path": "/a", "access": ["rw"]}]},
        'roots[0].access: is not a list of "read", "write" and "exec"',
    ),
    (
        {"roots": [{"path": "/a", "access": [["read"]]}]},
        'roots[0].access: is not a list of "read", "write" and "exec"',
    ),
    (
        {"roots": [{"path": "/a", "path_b64": "L2E=", "access": ["read"]}]},
        "roots[0].path: give one of path and path_b64",
    ),
    ({"timeout_ms": 0}, "timeout_ms: is less than 1; leave it out for the default"),
    ({"timeout_ms": -1}, "timeout_ms: is less than 1; leave it out for the default"),
    ({"timeout_ms": True}, "timeout_ms: is not a whole number"),
    ({"timeout_ms": 5.0}, "timeout_ms: is not a whole number"),
    ({"timeout_ms": "5"}, "timeout_ms: is not a whole number"),
    ({"timeout_ms": None}, "timeout_ms: is not a whole number"),
    ({"timeout_ms": MAX_INTEGER + 1}, f"timeout_ms: is more than {MAX_INTEGER}"),
    ({"grace_ms": 0}, "grace_ms: is less than 1; leave it out for the default"),
    ({"grace_ms": False}, "grace_ms: is not a whole number"),
    ({"stdin": "pipe"}, 'stdin: is neither "none" nor {"b64": …}'),
    ({"stdin": None}, 'stdin: is neither "none" nor {"b64": …}'),
    ({"stdin": {}}, "stdin.b64: is not a string"),
    ({"output": 5}, "output: is not an object"),
    (
        {"output": {"head_bytes": -1}},
        "output.head_bytes: is less than 0; leave it out for the default",
    ),
    ({"output": {"tail_bytes": True}}, "output.tail_bytes: is not a whole number"),
    ({"output": {"on_limit": "stop"}}, 'output.on_limit: is neither "drop" nor "kill"'),
    ({"output": {"on_limit": ["kill"]}}, 'output.on_limit: is neither "drop" nor "kill"'),
    ({"output": {"on_limit": None}}, 'output.on_limit: is neither "drop" nor "kill"'),
    ({"label": 1}, "label: is not a string"),
    ({"label": ""}, "label: is empty or not printable"),
    ({"label": "a\n"}, "label: is empty or not printable"),
    ({"label": "a\u202e"}, "label: is empty or not printable"),
]


@pytest.mark.parametrize(("given_fields", "message"), INVALID, ids=lambda value: str(value)[:60])
def test_an_invalid_field_is_refused_by_name(given_fields: dict[str, object], message: str):
    with pytest.raises(InvalidFieldError) as caught:
        parsed(**given_fields)
    assert str(caught.value) == message
    assert caught.value.details["field"] == message.partition(":")[0]


def test_a_body_without_a_command_is_refused():
    with pytest.raises(InvalidFieldError, match="give exactly one of argv and script"):
        parse_exec_request(b'{"cwd":"/"}')


@pytest.mark.parametrize(
    ("given_fields", "field", "why"),
    [
        ({"cwd": "srv"}, "cwd", "is not absolute"),
        ({"cwd": ""}, "cwd", "is empty"),
        ({"cwd": "~/p"}, "cwd", "starts with '~', which only a shell expands; spell it out"),
        ({"cwd": "/srv/../etc"}, "cwd", "has a '..' component"),
        ({"cwd": "/a\0"}, "cwd", "holds a NUL"),
        ({"cwd_b64": NULL_IN_PATH}, "cwd_b64", "holds a NUL"),
        ({"roots": [{"path": "a", "access": ["read"]}]}, "roots[0].path", "is not absolute"),
        (
            {"roots": [{"path_b64": b64(b"/a//b"), "access": ["read"]}]},
            "roots[0].path_b64",
            "has an empty component ('//')",
        ),
    ],
)
def test_a_bad_path_is_refused_by_field(given_fields: dict[str, object], field: str, why: str):
    with pytest.raises(BadPathError) as caught:
        parsed(**given_fields)
    assert (caught.value.details["field"], caught.value.why) == (field, why)
    assert caught.value.__suppress_context__


def argv_of(total: int) -> list[str]:
    """Arguments that take `total` bytes with their NULs, none too long by itself."""
    whole, rest = divmod(total, 100_000)
    return ["x" * 99_999] * whole + ["x" * (rest - 1)]


@pytest.mark.parametrize(
    ("at_limit", "past_it", "error", "field", "limit"),
    [
        (
            {"argv": ["x", "y" * MAX_ARGUMENT_BYTES]},
            {"argv": ["x", "y" * (MAX_ARGUMENT_BYTES + 1)]},
            ArgvTooLargeError,
            "argv[1]",
            131_071,
        ),
        (
            {"argv": argv_of(MAX_ARGV_BYTES)},
            {"argv": argv_of(MAX_ARGV_BYTES + 1)},
            ArgvTooLargeError,
            "argv",
            MAX_ARGV_BYTES,
        ),
        (
            {"argv": ["x"] * MAX_ARGV_ITEMS},
            {"argv": ["x"] * (MAX_ARGV_ITEMS + 1)},
            ArgvTooLargeError,
            "argv",
            MAX_ARGV_ITEMS,
        ),
        (
            {"script": "é" * (MAX_SCRIPT_BYTES // 2)},
            {"script": "é" * (MAX_SCRIPT_BYTES // 2) + "x"},
            ArgvTooLargeError,
            "script",
            65_536,
        ),
        (
            {"stdin": {"b64": b64(b"x" * MAX_STDIN_BYTES)}},
            {"stdin": {"b64": b64(b"x" * (MAX_STDIN_BYTES + 1))}},
            LimitExceededError,
            "stdin",
            MAX_STDIN_BYTES,
        ),
        (
            {"roots": [{"path": "/a", "access": ["read"]}] * MAX_REQUEST_ROOTS},
            {"roots": [{"path": "/a", "access": ["read"]}] * (MAX_REQUEST_ROOTS + 1)},
            LimitExceededError,
            "roots",
            MAX_REQUEST_ROOTS,
        ),
        (
            {"label": "é" * MAX_LABEL_CHARS},
            {"label": "é" * (MAX_LABEL_CHARS + 1)},
            LimitExceededError,
            "label",
            MAX_LABEL_CHARS,
        ),
        (
            {"env": {"A": "x" * (MAX_STRING_BYTES - 2)}},
            {"env": {"A": "x" * (MAX_STRING_BYTES - 1)}},
            LimitExceededError,
            "env",
            MAX_STRING_BYTES,
        ),
    ],
    ids=["argument", "argv bytes", "argv items", "script", "stdin", "roots", "label", "env"],
)
def test_at_each_limit_and_one_past_it(
    at_limit: dict[str, object],
    past_it: dict[str, object],
    error: type[BrokerError],
    field: str,
    limit: int,
):
    parsed(**at_limit)
    with pytest.raises(error) as caught:
        parsed(**past_it)
    assert caught.value.details["field"] == field
    assert (caught.value.details["limit"], caught.value.details["given"]) == (limit, limit + 1)


def test_the_largest_integer_is_read():
    assert parsed(timeout_ms=MAX_INTEGER).timeout_ms == MAX_INTEGER


def test_a_program_may_be_named_by_bytes_and_arguments_may_be_empty():
    assert parsed(argv=[{"b64": b64(b"/opt/\xff")}, "", "a\nb"]).argv == (
        b"/opt/\xff",
        b"",
        b"a\nb",
    )


# --- any body at all ------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["argv", "script", "cwd", "cwd_b64", "env", "roots", "timeout_ms", "grace_ms", "stdin",
     "output", "label", "b64", "path", "access", "extra"]
)  # fmt: skip
LIKELY = st.fixed_dictionaries(
    {"argv": st.lists(st.sampled_from(["true", "a", "\udce9"]), max_size=3)},
    optional={
        "timeout_ms": st.integers(-1, 3),
        "stdin": st.sampled_from(["none", "pipe"]),
        "roots": st.lists(
            st.fixed_dictionaries(
                {"path": st.sampled_from(["/a", "a"]), "access": st.just(["read"])}
            ),
            max_size=2,
        ),
    },
)


def test_any_body_is_a_request_or_a_client_error():
    seen: Counter[bool] = Counter()

    @settings(deadline=None, max_examples=600)
    @given(
        st.binary(max_size=60)
        | (st.dictionaries(FIELDS, JSON, max_size=4) | LIKELY).map(json.dumps).map(str.encode)
    )
    def check(body: bytes) -> None:
        try:
            request = parse_exec_request(body)
        except BrokerError as error:
            seen[False] += 1
            json.dumps(error.problem()).encode()
            if error.status in (400, 413):
                return
            raise
        seen[True] += 1
        assert (request.argv is None) != (request.script is None)

    check()
    assert min(seen[True], seen[False]) >= 20, seen


# --- identity -------------------------------------------------------------------------------------

BASE = ExecRequest(
    argv=(b"a", b"b"),
    env=((b"A", b"1"),),
    roots=(Root(b"/a", R),),
    stdin=b"x",
    timeout_ms=1,
)

VARIANTS = [
    BASE,
    replace(BASE, argv=(b"ab",)),
    replace(BASE, argv=(b"a", b"b", b"")),
    replace(BASE, argv=(b"a", b"", b"b")),
    replace(BASE, argv=None, script=b"a"),
    replace(BASE, argv=(b"a2:b",)),
    replace(BASE, cwd=b"/a"),
    replace(BASE, env=()),
    replace(BASE, env=((b"A", b"1"), (b"B", b""))),
    replace(BASE, env=((b"A1", b""),)),
    replace(BASE, roots=None),
    replace(BASE, roots=()),
    replace(BASE, roots=(Root(b"/a", R | W),)),
    replace(BASE, roots=(Root(b"/a", R), Root(b"/a", R))),
    replace(BASE, timeout_ms=None),
    replace(BASE, timeout_ms=10),
    replace(BASE, grace_ms=1),
    replace(BASE, stdin=b""),
    replace(BASE, head_bytes=1),
    replace(BASE, tail_bytes=1),
    replace(BASE, on_limit=OnLimit.KILL),
    replace(BASE, label="x"),
]


def test_equal_requests_have_one_identity_and_others_another():
    identities = [op_sha256(request) for request in VARIANTS]
    assert len(set(identities)) == len(VARIANTS)
    assert [op_sha256(replace(request)) for request in VARIANTS] == identities
    assert all(len(identity) == 64 for identity in identities)


def test_the_order_in_a_body_does_not_matter():
    one = parse_exec_request(b'{"argv":["x"],"env":{"A":"1","B":"2"},"cwd":"/a"}')
    other = parse_exec_request(b'{"cwd":"/a/","env":{"B":{"b64":"Mg=="},"A":"1"},"argv":["x"]}')
    assert op_sha256(one) == op_sha256(other)


VALUES = st.recursive(
    st.none() | st.integers() | st.binary(max_size=4) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
)


@given(VALUES, VALUES)
def test_the_canonical_form_is_injective(one: object, other: object):
    same = type(one) is type(other) and one == other
    assert (_canonical(one) == _canonical(other)) is same


def test_what_has_no_canonical_form_is_a_fault_of_ours():
    with pytest.raises(TypeError, match="no canonical form for float"):
        _canonical((1.5,))
    assert _canonical(Limits(1, 1, 1, 1, None, None, None, None, None)).startswith(b"t9:i1:")

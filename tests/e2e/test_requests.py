# SPDX-License-Identifier: Apache-2.0
"""Who is answered and what: authentication, routes, and bad input, which is named with a code."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.client import Client, RefusedError
from broker.operations import OPERATIONS
from tests.support.daemon import Daemon
from tests.support.openapi import SPEC, validator

PROBLEM = validator("Problem")


def send(sock: socket.socket, data: bytes) -> tuple[int, dict[str, str], Any]:
    """One exchange with raw bytes; the connection may be closed by it."""
    sock.sendall(data)
    reply = b""
    while b"\r\n\r\n" not in reply:
        part = sock.recv(65536)
        assert part, "closed without an answer"
        reply += part
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += sock.recv(65536)
    return int(lines[0].split()[1]), headers, json.loads(body)


def ask(daemon: Daemon, data: bytes) -> tuple[int, dict[str, str], Any]:
    with daemon.connect() as sock:
        return send(sock, data)


def request(
    daemon: Daemon, method: str, path: str, *lines: str, secret: str | None = "", body: str = ""
) -> bytes:
    """A request with the right secret, another one, or (None) without."""
    head = [f"{method} {path} HTTP/1.1", "Host: b", *lines]
    if secret is not None:
        head.append(f"Authorization: {secret or daemon.authorization}")
    if body:
        head.append(f"Content-Length: {len(body)}")
    return ("\r\n".join([*head, "", ""]) + body).encode()


# ---- authentication ----

WRONG = [
    None,
    "Bearer",
    "Bearer x",
    "Bearer " + "A" * 43,
    "Basic Zm9vOmJhcg==",
    "Bearer {secret}x",
    "Bearer {secret} {secret}",
    "Token {secret}",
    "{secret}",
]


@pytest.fixture
def quiet(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A broker that has seen no failures yet."""
    return make_daemon().start()


def test_whatever_is_wrong_with_a_secret_the_answer_is_the_same(quiet: Daemon) -> None:
    secret = quiet.authorization.split()[1]
    answers = [
        ask(quiet, request(quiet, "GET", "/readyz", secret=wrong and wrong.format(secret=secret)))
        for wrong in WRONG
    ]
    for status, headers, document in answers:
        PROBLEM.validate(document)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert document == answers[0][2]
    assert quiet.stop() == 0
    failed = quiet.records("auth.failed")
    assert len(failed) == len(WRONG)
    assert all(record["peer_uid"] == os.geteuid() for record in failed)
    assert secret not in quiet.log.read_text() + json.dumps(quiet.records())


def test_without_a_secret_no_route_is_told_from_another(quiet: Daemon) -> None:
    asked = [
        ("GET", "/readyz"),
        ("GET", "/nope"),
        ("POST", "/v1/exec"),
        ("DELETE", "/healthz"),
        ("GET", "/v1/exec/"),
        ("GET", "/readyz?x=1"),
    ]
    answers = [ask(quiet, request(quiet, *route, secret=None)) for route in asked]
    assert {status for status, _, _ in answers} == {401}
    assert all(document == answers[0][2] for _, _, document in answers)


def test_two_secrets_are_accepted_while_one_replaces_the_other(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon()
    following = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff" * 2
    daemon.settings.next_secret_file.write_text(following + "\n")
    daemon.settings.next_secret_file.chmod(0o600)
    daemon.start()
    for secret in (daemon.authorization, f"Bearer {following}"):
        assert ask(daemon, request(daemon, "GET", "/readyz", secret=secret))[0] == 200


def test_after_ten_failures_a_peer_waits_and_the_right_secret_does_not(quiet: Daemon) -> None:
    daemon = quiet
    wrong = request(daemon, "GET", "/readyz", secret="Bearer wrong")
    assert [ask(daemon, wrong)[0] for _ in range(10)] == [401] * 10
    status, headers, document = ask(daemon, wrong)
    assert (status, document["code"]) == (429, "too_many_attempts")
    assert 1 <= int(headers["retry-after"]) <= 60
    assert ask(daemon, request(daemon, "GET", "/readyz"))[0] == 200
    assert daemon.stop() == 0
    assert len(daemon.records("auth.failed")) == 10


def test_health_needs_no_secret_and_tells_nothing(daemon: Daemon) -> None:
    status, _, document = ask(daemon, request(daemon, "GET", "/healthz", secret=None))
    assert status == 200
    validator("Health").validate(document)
    assert document == {"status": "ok", "capabilities": {"exec": True}, "counts": {"runs": 0}}


def test_neither_health_nor_readiness_reveals_a_path(daemon: Daemon) -> None:
    for path in ("/healthz", "/readyz"):
        _, headers, document = ask(daemon, request(daemon, "GET", path))
        text = json.dumps([headers, document])
        assert str(daemon.base) not in text
        assert daemon.authorization.split()[1] not in text


# ---- routes ----

ROUTES = [
    ("GET", "/v1/nope", 404, "no_such_route"),
    ("GET", "/healthz/", 404, "no_such_route"),
    ("POST", "/v1/exec/", 404, "no_such_route"),
    ("GET", "//healthz", 404, "no_such_route"),
    ("GET", "/HEALTHZ", 404, "no_such_route"),
    ("GET", "/v1/%65xec", 404, "no_such_route"),
    ("GET", "/v1/../healthz", 404, "no_such_route"),
    ("GET", "/v1/exec", 405, "method_not_allowed"),
    ("DELETE", "/v1/exec", 405, "method_not_allowed"),
    ("POST", "/healthz", 405, "method_not_allowed"),
    ("OPTIONS", "/v1/exec", 405, "method_not_allowed"),
    ("GET", "/readyz?verbose=1", 400, "unknown_field"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), ROUTES)
def test_only_the_written_form_is_routed(
    daemon: Daemon, method: str, path: str, status: int, code: str
) -> None:
    got, headers, document = ask(daemon, request(daemon, method, path))
    PROBLEM.validate(document)
    assert (got, document["code"]) == (status, code)
    assert document["audit_id"] == headers["audit-id"]
    if status == 405:
        assert headers["allow"] == ("POST" if path == "/v1/exec" else "GET")
    if path.endswith("/") and status == 404:
        assert path.rstrip("/") in document["detail"]


def test_head_is_not_a_method_here_and_gets_no_body(daemon: Daemon) -> None:
    with daemon.connect() as sock:
        sock.sendall(request(daemon, "HEAD", "/healthz", "Connection: close"))
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 405 ")
    assert b"allow: GET\r\n" in reply
    assert reply.endswith(b"\r\n\r\n")


def test_every_reply_has_its_headers(daemon: Daemon) -> None:
    for data in (request(daemon, "GET", "/healthz"), request(daemon, "GET", "/x"), b"?\r\n\r\n"):
        _, headers, _ = ask(daemon, data)
        assert headers["audit-id"].startswith("a_")
        assert headers["broker-protocol"] == "1"
        assert headers["broker-version"] == SPEC["info"]["version"]


def test_audit_ids_are_all_different(daemon: Daemon) -> None:
    with daemon.connect() as sock:
        one = request(daemon, "GET", "/healthz")
        assert len({send(sock, one)[1]["audit-id"] for _ in range(50)}) == 50


def test_the_contract_is_served(daemon: Daemon) -> None:
    assert ask(daemon, request(daemon, "GET", "/openapi.json"))[2] == SPEC


def test_capabilities_are_the_table_and_the_limits(client: Client) -> None:
    document = client.capabilities()
    validator("Capabilities").validate(document)
    assert [row["name"] for row in document["operations"]] == [row.name for row in OPERATIONS]
    assert document["limits"]["max_timeout_ms"] == 600_000


def test_readiness_is_an_answer(client: Client) -> None:
    document = client.ready()
    validator("Readiness").validate(document)
    assert document["ready"] is True
    assert all(document["checks"].values())


# ---- web pages, other hosts ----


@pytest.mark.parametrize("origin", ["https://evil.test", "null", "http://localhost"])
def test_a_request_with_an_origin_is_refused_before_anything(daemon: Daemon, origin: str) -> None:
    data = request(daemon, "GET", "/healthz", f"Origin: {origin}", secret=None)
    status, _, document = ask(daemon, data)
    assert (status, document["code"]) == (403, "origin_forbidden")


HOSTS = [
    ("localhost", 200),
    ("LOCALHOST:80", 200),
    ("127.0.0.1", 200),
    ("127.0.0.1:1234", 200),
    ("[::1]", 200),
    ("[::1]:80", 200),
    ("evil.test", 403),
    ("localhost.evil.test", 403),
    ("localhost:80:evil", 403),
    ("127.0.0.2", 403),
    ("", 403),
]


@pytest.mark.parametrize("family", ["127.0.0.1", "[::1]"])
def test_over_tcp_the_host_must_be_loopback(
    make_daemon: Callable[..., Daemon], family: str
) -> None:
    with socket.socket(socket.AF_INET6 if "[" in family else socket.AF_INET) as free:
        free.bind((family.strip("[]"), 0))
        port = free.getsockname()[1]
    settings = f'cgroup = "none"\ntcp = "{family}:{port}"\n'
    daemon = make_daemon(settings=settings).start()
    for host, status in HOSTS:
        with socket.create_connection((family.strip("[]"), port), 10) as sock:
            head = f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nAuthorization: {daemon.authorization}"
            assert send(sock, f"{head}\r\n\r\n".encode())[0] == status, host
    with Client(tcp=(family.strip("[]"), port),
                secret_file=str(daemon.settings.client_header_file)) as client:  # fmt: skip
        assert client.exec(["echo", "over tcp"]).stdout == b"over tcp\n"
    record = daemon.records("exec.intent")[-1]
    assert (record["transport"], record["peer_uid"]) == ("tcp", None)


# ---- bad input ----

EXEC = "/v1/exec"
BAD = [
    # body, extra headers, status, code, word of the detail
    ("", (), 400, "bad_json", ""),
    ("{", (), 400, "bad_json", "byte"),
    ("[]", (), 400, "bad_json", "object"),
    ('{"argv":["a"],"argv":["b"]}', (), 400, "bad_json", "argv"),
    ('{"argv":["true"],"timout_ms":1}', (), 400, "unknown_field", "timeout_ms"),
    ('{"argv":["true"],"script":"true"}', (), 400, "invalid_field", "argv"),
    ("{}", (), 400, "invalid_field", "argv"),
    ('{"argv":["a\\u0000b"]}', (), 400, "invalid_field", "NUL"),
    ('{"argv":["true"],"cwd":"/a\\u0000b"}', (), 400, "bad_path", "NUL"),
    ('{"argv":["true"],"cwd":"rel"}', (), 400, "bad_path", "absolute"),
    ('{"argv":["true"],"cwd":"/srv/../etc"}', (), 400, "bad_path", ".."),
    ('{"argv":["true"],"cwd":"~/x"}', (), 400, "bad_path", "~"),
    ('{"argv":["true"],"timeout_ms":0}', (), 400, "invalid_field", "timeout_ms"),
    ('{"argv":["true"],"timeout_ms":-5}', (), 400, "invalid_field", "timeout_ms"),
    ('{"argv":["true"],"timeout_ms":600001}', (), 400, "limit_exceeded", "600000"),
    ('{"argv":["true"],"env":{"LD_PRELOAD":"x"}}', (), 403, "command_denied", "LD_PRELOAD"),
    ('{"argv":["true"],"cwd":"/etc"}', (), 403, "ceiling_denied", "cwd"),
    ('{"argv":["true"]}', ("Content-Type: text/xml",), 415, "unsupported_media_type", "xml"),
    ('{"argv":["true"]}', ("Idempotency-Key: k",), 501, "not_supported", "Idempotency-Key"),
    ('{"argv":["true"]}', ("Accept: application/x-ndjson",), 501, "not_supported", "Accept"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "extra", "status", "code", "word"), BAD)
def test_bad_input_is_named(
    daemon: Daemon, body: str, extra: tuple[str, ...], status: int, code: str, word: str
) -> None:
    got, headers, document = ask(daemon, request(daemon, "POST", EXEC, *extra, body=body))
    PROBLEM.validate(document)
    assert (got, document["code"]) == (status, code)
    assert word in document["detail"]
    assert document["audit_id"] == headers["audit-id"]
    assert headers["content-type"] == "application/problem+json"


def test_two_content_lengths_are_named(daemon: Daemon) -> None:
    data = request(daemon, "POST", EXEC, "Content-Length: 2", body="{}")
    status, headers, document = ask(daemon, data)
    PROBLEM.validate(document)
    assert (status, document["code"]) == (400, "bad_request")
    assert "Content-Length" in document["detail"]
    assert headers["connection"] == "close"


def test_a_secret_given_twice_is_refused(daemon: Daemon) -> None:
    data = request(daemon, "GET", "/readyz", "Authorization: Bearer x")
    status, _, document = ask(daemon, data)
    assert (status, document["code"]) == (400, "bad_request")
    assert "authorization" in document["detail"]


def test_a_get_with_a_body_is_refused(daemon: Daemon) -> None:
    status, _, document = ask(daemon, request(daemon, "GET", "/readyz", body="{}"))
    assert (status, document["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    ("size", "status", "code"),
    [(131_071, 200, None), (131_072, 413, "argv_too_large"), (1 << 20, 413, "body_too_large")],
)
def test_large_arguments(daemon: Daemon, size: int, status: int, code: str | None) -> None:
    body = json.dumps({"argv": ["/bin/true", "x" * size]})
    got, _, document = ask(daemon, request(daemon, "POST", EXEC, body=body))
    assert (got, document.get("code")) == (status, code)


def test_a_mebibyte_of_argv_in_small_pieces_is_refused_by_its_sum(daemon: Daemon) -> None:
    body = json.dumps({"argv": ["/bin/true", *["x" * 1000] * 600]})
    got, _, document = ask(daemon, request(daemon, "POST", EXEC, body=body))
    assert (got, document["code"]) == (413, "argv_too_large")
    assert document["details"]["limit"] == 512 * 1024


def test_the_same_connection_goes_on_after_a_refusal(daemon: Daemon) -> None:
    with daemon.connect() as sock:
        assert send(sock, request(daemon, "POST", EXEC, body="{"))[0] == 400
        good = request(daemon, "POST", EXEC, body='{"argv":["true"]}')
        assert send(sock, good)[2]["exit"]["code"] == 0


def test_denials_are_events(daemon: Daemon, client: Client) -> None:
    with pytest.raises(RefusedError) as refused:
        client.exec(["cat", "x" * 10_000], cwd="/etc/ssl")
    assert refused.value.audit_id is not None
    record = daemon.recorded(refused.value.audit_id)["exec.denied"]
    assert (record["code"], record["reason"], record["cwd"]) == (
        "ceiling_denied",
        "cwd_outside_ceiling",
        "/etc/ssl",
    )
    assert len(json.dumps(record["argv"])) < 5000
    assert record["argv_cut"]["bytes"] == 10_005


def test_as_many_runs_at_once_as_allowed(make_daemon: Callable[..., Daemon]) -> None:
    ceiling = 'write = ["{work}"]\n[limits]\nmax_runs = 2\n'
    daemon = make_daemon(ceiling=ceiling).start()
    fifo = "mkfifo $0.in 2>/dev/null; echo up; read line < gate"

    def blocked() -> bytes:
        with daemon.client() as client:
            return client.exec(["bash", "-c", fifo], cwd=str(daemon.work)).stdout

    os.mkfifo(daemon.work / "gate")
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(blocked) for _ in range(2)]
        gate = os.open(daemon.work / "gate", os.O_WRONLY)  # opens when a run reads it
        with daemon.client() as client:
            while daemon.curl("http://b/healthz")[2]["counts"]["runs"] < 2:
                continue
            with pytest.raises(RefusedError) as refused:
                client.exec(["true"])
            assert (refused.value.status, refused.value.code) == (429, "too_many_runs")
            assert refused.value.retryable
        os.write(gate, b"go\ngo\n")
        results = [result.result() for result in waiting]
        os.close(gate)  # not before: the second may open it only now
        assert results == [b"up\n"] * 2

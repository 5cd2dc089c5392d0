# SPDX-License-Identifier: Apache-2.0
"""One command through the real daemon: how it ends, what is kept, and that nothing stays behind."""

from __future__ import annotations

import base64
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.client import Client, ExecResult, RefusedError
from tests.support.daemon import Daemon, processes_with
from tests.support.openapi import validator

EXEC_RESULT = validator("ExecResult")


@pytest.fixture
def run(daemon: Daemon, client: Client) -> Callable[..., ExecResult]:
    """Runs in the working directory, and checks every result against the contract."""

    def call(argv: list[str] | None = None, **options: Any) -> ExecResult:
        result = client.exec(argv, **{"cwd": str(daemon.work), **options})
        EXEC_RESULT.validate(result.document)
        return result

    return call


Run = Callable[..., ExecResult]


def resident_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+([0-9]+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


# ---- how it ends ----

ENDINGS: list[tuple[str, str, int | None, str | None, int]] = [
    # script, reason, code, signal, shell_code
    ("exit 0", "exited", 0, None, 0),
    ("exit 3", "exited", 3, None, 3),
    ("exit 255", "exited", 255, None, 255),
    ("exit 137", "exited", 137, None, 137),
    ("kill -9 $$", "signaled", None, "KILL", 137),
    ("kill -TERM $$", "signaled", None, "TERM", 143),
    ("kill -SEGV $$", "signaled", None, "SEGV", 139),
    ("kill -42 $$", "signaled", None, "SIG42", 170),
]


@pytest.mark.parametrize(("script", "reason", "code", "signal", "shell_code"), ENDINGS)
def test_a_code_and_a_signal_are_told_apart(
    run: Run, script: str, reason: str, code: int | None, signal: str | None, shell_code: int
) -> None:
    result = run(script=script)
    assert (result.reason, result.exit_code, result.signal) == (reason, code, signal)
    assert result.shell_code == shell_code
    assert not result.timed_out


NOT_STARTED = [
    (["nope"], 127),
    (["/nope"], 127),
    (["./nope"], 127),
    (["/etc/passwd"], 126),
    (["/etc"], 126),
    (["./text"], 126),
]


@pytest.mark.parametrize(("argv", "shell_code"), NOT_STARTED)
def test_what_cannot_be_executed_is_an_answer_and_no_run(
    daemon: Daemon, run: Run, argv: list[str], shell_code: int
) -> None:
    (daemon.work / "text").write_text("not a program")
    result = run(argv)
    assert (result.reason, result.exit_code, result.shell_code) == (
        "spawn_failed",
        None,
        shell_code,
    )
    assert result.document["spawn_error"]
    assert (result.stdout, result.stderr) == (b"", b"")
    outcome = daemon.recorded(result.document["audit_id"])["exec.outcome"]
    assert outcome["reason"] == "spawn_failed"


# ---- time, and the whole tree ----


def test_a_child_that_holds_the_pipe_delays_nothing(run: Run) -> None:
    before = time.monotonic()
    result = run(script="sleep 3311.3 & echo started")
    assert time.monotonic() - before < 1
    assert result.stdout == b"started\n"
    assert result.document["orphans_killed"] == 1
    assert processes_with("3311.3") == []


def test_a_time_out_ends_the_tree_whatever_it_escaped_to(run: Run) -> None:
    script = "setsid sleep 3312.3 & (setsid sh -c 'sleep 3312.3 &' &) ; echo out; sleep 3312.3"
    result = run(script=script, timeout_ms=500)
    assert (result.reason, result.timed_out) == ("timeout", True)
    assert result.stdout == b"out\n"
    assert processes_with("3312.3") == []


def test_a_command_that_ignores_term_is_killed_after_the_grace(run: Run) -> None:
    script = "trap '' TERM; echo before; while :; do sleep 0.05; done"
    before = time.monotonic()
    result = run(script=script, timeout_ms=300, grace_ms=200)
    took_s = time.monotonic() - before
    assert (result.reason, result.signal) == ("timeout", "KILL")
    assert result.stdout == b"before\n"
    assert 0.5 <= took_s < 2


def test_a_command_that_heeds_term_may_still_say_something(run: Run) -> None:
    script = "trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.02; done"
    result = run(script=script, timeout_ms=300, grace_ms=5000)
    assert (result.reason, result.exit_code) == ("timeout", 4)
    assert result.stdout == b"ready\nbye\n"


def test_the_time_out_at_the_limit_is_taken_and_one_more_refused(run: Run) -> None:
    assert run(["true"], timeout_ms=600_000).exit_code == 0
    with pytest.raises(RefusedError) as refused:
        run(["true"], timeout_ms=600_001)
    assert (refused.value.status, refused.value.code) == (400, "limit_exceeded")


# ---- output ----


def test_a_flood_is_cut_in_the_middle_and_fills_no_memory(daemon: Daemon, run: Run) -> None:
    run(["true"])
    before_kib = resident_kib(daemon.pid)
    script = "echo first; (yes & p=$!; sleep 1; kill $p); echo last"
    result = run(script=script, timeout_ms=20_000)
    stdout = result.document["stdout"]
    assert stdout["truncated"]
    assert stdout["total_bytes"] > 4 << 20
    assert (stdout["head_bytes"], stdout["tail_bytes"]) == (512 * 1024, 512 * 1024)
    assert result.stdout.startswith(b"first\ny\n")
    assert result.stdout.endswith(b"y\nlast\n")
    assert resident_kib(daemon.pid) - before_kib < 20 * 1024


def test_a_flood_does_not_put_off_the_deadline(run: Run) -> None:
    before = time.monotonic()
    result = run(["yes"], timeout_ms=700, grace_ms=100)
    assert (result.reason, result.truncated) == ("timeout", True)
    assert time.monotonic() - before < 3


def test_each_stream_has_a_budget_of_its_own(run: Run) -> None:
    script = "head -c 50000000 /dev/zero; echo ERR >&2; exit 3"
    result = run(script=script)
    assert result.stderr == b"ERR\n"
    assert result.exit_code == 3
    assert result.document["stdout"]["total_bytes"] == 50_000_000


@pytest.mark.parametrize("on_limit", ["drop", "kill"])
def test_head_and_tail_are_kept_exactly(run: Run, on_limit: str) -> None:
    output = {"head_bytes": 5, "tail_bytes": 4, "on_limit": on_limit}
    result = run(script="printf 0123456789; sleep 0.2; exit 7", output=output)
    assert result.document["stdout"]["truncated"]
    if on_limit == "kill":
        assert result.reason == "output_limit"
        return
    assert result.reason == "exited"
    assert result.stdout == b"012346789"
    assert result.document["stdout"]["total_bytes"] == 10


def test_output_that_just_fits_is_whole(run: Run) -> None:
    output = {"head_bytes": 5, "tail_bytes": 5, "on_limit": "kill"}
    result = run(script="printf 0123456789", output=output)
    assert (result.reason, result.stdout, result.truncated) == ("exited", b"0123456789", False)


EXACT = [
    ("printf 'a\\n\\nb'", b"a\n\nb", "utf8"),
    ("printf '\\342'; sleep 0.1; printf '\\211'; sleep 0.1; printf '\\244'", "≤".encode(), "utf8"),
    ("printf 'a\\000b'", b"a\0b", "utf8"),
    ("printf '\\377\\376'", b"\xff\xfe", "base64"),
    ("printf '\\342\\211'", b"\xe2\x89", "base64"),
    ("printf '\\r\\n'", b"\r\n", "utf8"),
    ("true", b"", "utf8"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "expected", "encoding"), EXACT)
def test_bytes_come_back_exactly(run: Run, script: str, expected: bytes, encoding: str) -> None:
    result = run(script=script)
    assert result.stdout == expected
    assert result.document["stdout"]["encoding"] == encoding


def test_a_character_over_many_writes_is_not_broken(run: Run) -> None:
    result = run(script="for i in $(seq 50000); do printf '\\342\\211\\244'; done")
    assert result.document["stdout"]["text"] == "≤" * 50_000


# ---- input, environment, descriptors ----


def test_without_stdin_a_reader_sees_the_end_at_once(run: Run) -> None:
    assert run(["cat"]).stdout == b""


@pytest.mark.parametrize("size", [1, 512 * 1024])
def test_stdin_arrives_whole(run: Run, size: int) -> None:
    data = bytes(range(256)) * (size // 256) or b"x"
    assert run(["cat"], stdin=data).stdout == data


def test_stdin_that_nobody_reads_blocks_nothing(run: Run) -> None:
    assert run(["true"], stdin=b"x" * 500_000).exit_code == 0


def test_no_descriptor_and_no_variable_of_the_broker_reaches_a_run(
    make_daemon: Callable[..., Daemon],
) -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "INVOCATION_ID": "c4nary", "CANARY": "c4nary",
               "MY_API_KEY": "c4nary", "WATCHDOG_USEC": "1"}  # fmt: skip
    daemon = make_daemon(environ=environ).start()
    with daemon.client() as client:
        listed = client.exec(script="ls -l /proc/self/fd; ls /proc/self/fd; env")
    text = listed.stdout.decode()
    numbers = {int(word) for word in text.split() if word.isdigit() and len(word) == 1}
    assert numbers <= {0, 1, 2, 3}  # 3 is ls reading the directory
    assert "socket:" not in text
    for name in ("NOTIFY_SOCKET", "LISTEN_", "INVOCATION_ID", "WATCHDOG", "c4nary", "XDG_"):
        assert name not in text
    assert daemon.authorization.split()[1] not in text


def test_a_run_has_a_private_directory_short_enough_for_sockets(daemon: Daemon, run: Run) -> None:
    first = run(script="echo $TMPDIR; stat -c %a $TMPDIR; touch $TMPDIR/left").stdout.split()
    again = run(script="ls -A $TMPDIR").stdout
    assert first[1] == b"700"
    assert len(first[0]) + len("/" + "s" * 53) <= 107
    assert again == b""
    assert not (Path(first[0].decode()) / "left").exists()


def test_without_a_cwd_the_private_directory_is_where_it_runs(
    daemon: Daemon, client: Client
) -> None:
    assert client.exec(script='[ "$PWD" = "$TMPDIR" ]').exit_code == 0


def test_secrets_are_stripped_and_named(run: Run) -> None:
    result = run(["env"], env={"GREETING": "hi", "MY_TOKEN": "t0psecret"})
    assert b"GREETING=hi" in result.stdout
    assert b"t0psecret" not in result.stdout
    assert result.document["environment"]["stripped"] == ["MY_TOKEN"]


def test_an_argument_need_not_be_utf8(run: Run) -> None:
    result = run([b"printf", b"%s", b"a\xe9\xffz"])  # type: ignore[list-item]
    assert result.stdout == b"a\xe9\xffz"


def test_a_name_that_is_not_utf8_is_a_cwd(daemon: Daemon, client: Client) -> None:
    odd = bytes(daemon.work) + b"/caf\xe9"
    subprocess.run(["mkdir", "-p", odd], check=True)
    result = client.exec(["touch", "here"], cwd=odd)
    assert result.exit_code == 0
    assert Path(odd.decode("utf-8", "surrogateescape"), "here").exists()


def test_bash_reads_no_startup_files(daemon: Daemon, run: Run) -> None:
    (daemon.work / ".bashrc").write_text("echo from-bashrc\n")
    result = run(script="echo $-; shopt login_shell", env={"HOME": str(daemon.work)})
    assert b"from-bashrc" not in result.stdout
    assert b"login_shell    \toff" in result.stdout


# ---- the ceiling, for real ----


def test_outside_the_roots_the_kernel_says_no(daemon: Daemon, run: Run) -> None:
    secret = daemon.settings.secret_file
    assert subprocess.run(["cat", secret], check=False).returncode == 0
    result = run(script=f"cat {secret}; echo x > {daemon.base}/evil; touch inside; ls inside")
    assert result.stderr.count(b"Permission denied") == 2
    assert result.stdout == b"inside\n"
    assert not (daemon.base / "evil").exists()


def test_requested_roots_narrow_the_run(daemon: Daemon, run: Run) -> None:
    (daemon.work / "sub").mkdir(exist_ok=True)
    (daemon.work / "data").write_text("d")
    script = f"cat {daemon.work}/data; echo x > {daemon.work}/sub/new"
    wide = run(script=script, cwd=str(daemon.work / "sub"))
    assert (wide.stdout, wide.exit_code) == (b"d", 0)
    narrow = run(
        script=script,
        cwd=str(daemon.work / "sub"),
        roots=[(str(daemon.work / "sub"), ["read"])],
    )
    assert narrow.stdout == b""
    assert narrow.stderr.count(b"Permission denied") == 2


def test_every_result_and_record_says_the_confinement(daemon: Daemon, run: Run) -> None:
    result = run(["true"])
    assert result.confinement["mode"] == "sandboxed"
    assert result.confinement["isolation"] == "landlock"
    assert result.confinement["abi"] >= 3
    records = daemon.recorded(result.document["audit_id"])
    intent, outcome = records["exec.intent"], records["exec.outcome"]
    assert intent["confinement"] == "sandboxed"
    assert outcome["confinement"] == result.confinement
    assert outcome["ref"] == intent["seq"]


def test_unconfined_is_said_everywhere(make_daemon: Callable[..., Daemon]) -> None:
    ceiling = 'write = ["{work}"]\nconfinement = "unconfined"\ntrusted_single_operator = true\n'
    daemon = make_daemon(ceiling=ceiling, environ={"CANARY": "mine", "MY_TOKEN": "t"}).start()
    with daemon.client() as client:
        result = client.exec(script=f"cat {daemon.settings.secret_file} | wc -c; env")
        told = client.capabilities()["confinement"]
        planned = client.plan(["true"])["confinement"]
    assert result.exit_code == 0
    assert int(result.stdout.split()[0]) > 40  # it read what no confined run reads
    assert b"CANARY=mine" in result.stdout
    assert b"MY_TOKEN" not in result.stdout
    for confinement in (result.confinement, told, planned):
        assert (confinement["mode"], confinement["isolation"]) == ("unconfined", "none")
    assert daemon.records("exec.intent")[-1]["confinement"] == "unconfined"
    assert "UNCONFINED" in daemon.log.read_text()


def test_unconfined_without_a_trusted_operator_stays_sandboxed(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(ceiling='write = ["{work}"]\nconfinement = "unconfined"\n').start()
    with daemon.client() as client:
        result = client.exec(["cat", str(daemon.settings.secret_file)])
    assert result.confinement["mode"] == "sandboxed"
    assert result.exit_code == 1


def test_a_plan_runs_nothing_and_has_the_identity_of_its_run(
    daemon: Daemon, client: Client, run: Run
) -> None:
    before = len(daemon.records("exec.intent"))
    planned = client.plan(["touch", "planned"], cwd=str(daemon.work))
    validator("Plan").validate(planned)
    assert planned["decision"] == "allow"
    assert len(daemon.records("exec.intent")) == before
    assert not (daemon.work / "planned").exists()
    assert run(["touch", "planned"]).document["op_sha256"] == planned["op_sha256"]
    assert str(daemon.work) not in str(planned)


def test_a_plan_tells_a_refusal_as_exec_would(daemon: Daemon, client: Client) -> None:
    planned = client.plan(["true"], cwd="/etc")
    validator("Plan").validate(planned)
    assert (planned["decision"], planned["reason"]) == ("deny", "cwd_outside_ceiling")
    with pytest.raises(RefusedError) as refused:
        client.exec(["true"], cwd="/etc")
    same = {"code", "status", "title", "detail", "details", "op_sha256"}
    assert {key: planned["problem"][key] for key in same} == {
        key: refused.value.problem[key] for key in same
    }


def test_curl_alone_is_enough(daemon: Daemon) -> None:
    body = f'{{"argv":["printf","caf\\u00e9"],"cwd":"{daemon.work}","timeout_ms":5000}}'
    status, headers, result = daemon.curl("http://b/v1/exec", "-d", body)
    assert (status, result["stdout"]["text"]) == (200, "café")
    assert headers["audit-id"] == result["audit_id"]
    assert headers["broker-protocol"] == "1"


def test_curl_sends_a_large_body_after_100_continue(daemon: Daemon) -> None:
    data = base64.b64encode(b"x" * 300_000).decode()
    body = daemon.base / "body.json"
    body.write_text(f'{{"argv":["wc","-c"],"stdin":{{"b64":"{data}"}}}}')
    status, _, result = daemon.curl(
        "http://b/v1/exec", "-H", "Expect: 100-continue", "--data-binary", f"@{body}"
    )
    assert (status, result["stdout"]["text"]) == (200, "300000\n")

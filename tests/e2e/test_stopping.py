# SPDX-License-Identifier: Apache-2.0
"""Ending: clients that leave, drain, reload, the kill switch, and the broker's sudden death."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from broker import chain
from broker.client import BrokenReplyError, ExecResult, RefusedError, UnreachableError
from tests.support.daemon import Daemon, processes_with

Make = Callable[..., Daemon]
GONE_S = 20.0


class Waiting:
    """A run that says it is on by opening a FIFO, and goes on until it is told to end."""

    def __init__(self, daemon: Daemon, mark: str) -> None:
        self.mark = mark
        self.path = daemon.work / f"fifo-{mark}"
        os.mkfifo(self.path)
        self.script = f"exec 3>{self.path}; sleep {mark} & setsid sleep {mark} & wait"

    def wait_until_on(self) -> None:
        os.close(os.open(self.path, os.O_RDONLY))


def wait_until_gone(mark: str) -> None:
    deadline = time.monotonic() + GONE_S
    while processes_with(mark):
        assert time.monotonic() < deadline, f"still there: {processes_with(mark)}"


@contextmanager
def running(daemon: Daemon, waiting: Waiting, **options: Any) -> Iterator[Future[ExecResult]]:
    """The run is on inside of the block, by a client in a thread."""

    def call() -> ExecResult:
        with daemon.client() as client:
            return client.exec(script=waiting.script, cwd=str(daemon.work), **options)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        waiting.wait_until_on()
        yield future


def raw_request(daemon: Daemon, body: dict[str, Any]) -> bytes:
    data = json.dumps(body)
    return (
        f"POST /v1/exec HTTP/1.1\r\nHost: b\r\nAuthorization: {daemon.authorization}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n{data}"
    ).encode()


# ---- clients that leave ----


@pytest.mark.parametrize("how", ["close", "half-close"])
def test_a_client_that_leaves_quietly_ends_its_run(daemon: Daemon, how: str) -> None:
    waiting = Waiting(daemon, f"3321.{len(how)}")
    with daemon.connect() as sock:
        sock.sendall(raw_request(daemon, {"script": waiting.script, "cwd": str(daemon.work)}))
        waiting.wait_until_on()
        assert processes_with(waiting.mark)
        left_at = time.monotonic()
        if how == "half-close":
            sock.shutdown(socket.SHUT_WR)
        else:
            sock.close()
        wait_until_gone(waiting.mark)
    assert time.monotonic() - left_at < 3
    intent = daemon.records("exec.intent")[-1]
    outcome = daemon.recorded(intent["audit_id"])["exec.outcome"]
    assert (outcome["reason"], outcome["ref"]) == ("client_gone", intent["seq"])


def test_a_client_that_sends_on_while_it_waits_is_cut_off(daemon: Daemon) -> None:
    waiting = Waiting(daemon, "3322.5")
    with daemon.connect() as sock:
        sock.sendall(raw_request(daemon, {"script": waiting.script, "cwd": str(daemon.work)}))
        waiting.wait_until_on()
        sock.sendall(raw_request(daemon, {"argv": ["true"]}))
        assert b"400 Bad Request" in sock.recv(65536)
        wait_until_gone(waiting.mark)


def test_many_clients_leaving_at_once_leave_nothing(daemon: Daemon) -> None:
    for _ in range(3):
        socks = [daemon.connect() for _ in range(8)]
        for sock in socks:
            sock.sendall(raw_request(daemon, {"argv": ["sleep", "3323.5"]}))
        for sock in socks:
            sock.close()
    with daemon.client() as client:
        while client.call("GET", "/healthz")["counts"]["runs"]:
            continue
        assert processes_with("3323.5") == []
        assert client.exec(["true"]).exit_code == 0
    intents = {record["seq"] for record in daemon.records("exec.intent")}
    assert intents - {record.get("ref") for record in daemon.records("exec.outcome")} <= {
        max(intents)
    }


# ---- SIGTERM ----


def test_sigterm_waits_for_a_run_and_answers_it(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    waiting = Waiting(daemon, "3324.5")
    waiting.script = f"exec 3>{waiting.path}; read line <{waiting.path}.go; echo $line"
    os.mkfifo(f"{waiting.path}.go")
    with daemon.client() as kept, running(daemon, waiting) as future:
        assert kept.ready()["ready"]
        os.kill(daemon.pid, signal.SIGTERM)
        while os.path.lexists(daemon.settings.socket):
            continue  # stopping shows by the socket's name being gone
        with pytest.raises(UnreachableError), daemon.client() as late:
            late.exec(["true"])
        checks = kept.ready()["checks"]
        assert checks["draining"] is False
        with pytest.raises(RefusedError) as refused:
            kept.exec(["true"])
        assert (refused.value.status, refused.value.code) == (503, "draining")
        Path(f"{waiting.path}.go").write_text("finished\n")
        assert future.result().stdout == b"finished\n"
    assert daemon.process is not None
    assert daemon.process.wait(30) == 0
    assert [record["kind"] for record in daemon.records()][-1] == "broker.stopped"


def test_after_the_drain_runs_are_ended_and_answered(make_daemon: Make) -> None:
    daemon = make_daemon(settings='cgroup = "none"\ndrain_ms = 300\n').start()
    waiting = Waiting(daemon, "3325.5")
    with running(daemon, waiting, grace_ms=100) as future:
        assert daemon.stop() == 0
        assert future.result().reason == "shutdown"
    wait_until_gone(waiting.mark)
    outcome = daemon.records("exec.outcome")[-1]
    assert outcome["reason"] == "shutdown"


def test_asked_twice_it_does_not_wait(make_daemon: Make) -> None:
    daemon = make_daemon(settings='cgroup = "none"\ndrain_ms = 600000\n').start()
    waiting = Waiting(daemon, "3326.5")
    with running(daemon, waiting, grace_ms=100) as future:
        os.kill(daemon.pid, signal.SIGTERM)
        while os.path.lexists(daemon.settings.socket):
            continue
        assert daemon.stop() == 0
        assert future.result().reason == "shutdown"


# ---- sudden death ----


def test_the_brokers_death_ends_every_run(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    waiting = Waiting(daemon, "3327.5")
    with running(daemon, waiting) as future:
        daemon.stop(signal.SIGKILL)
        with pytest.raises(BrokenReplyError):
            future.result()
    wait_until_gone(waiting.mark)
    wait_until_gone(str(daemon.base))  # nor is a supervisor left
    intent = daemon.records("exec.intent")[-1]
    daemon.start()
    assert daemon.stop() == 0
    outcome = daemon.records("exec.outcome")[-1]
    assert (outcome["ref"], outcome["state"]) == (intent["seq"], "unknown")
    assert daemon.records("broker.recovered")


# ---- the kill switch ----


def test_the_kill_switch_ends_runs_and_refuses_new_ones(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    waiting = Waiting(daemon, "3328.5")
    with running(daemon, waiting, grace_ms=100) as future:
        daemon.settings.kill_switch.touch()
        assert future.result(timeout=10).reason == "cancelled"
    with daemon.client() as client:
        with pytest.raises(RefusedError) as refused:
            client.exec(["true"])
        assert (refused.value.status, refused.value.code) == (403, "feature_disabled")
        assert refused.value.problem["details"] == {"reason": "kill_switch"}
        assert client.plan(["true"])["decision"] == "deny"
        assert client.ready()["checks"]["kill_switch"] is False
        daemon.settings.kill_switch.unlink()
        assert client.exec(["true"]).exit_code == 0
    wait_until_gone(waiting.mark)
    assert daemon.records("broker.killed")


@pytest.mark.parametrize("kind", ["symlink", "directory", "moved"])
def test_anything_of_its_name_is_the_kill_switch(make_daemon: Make, kind: str) -> None:
    daemon = make_daemon()
    switch = daemon.settings.kill_switch
    if kind == "symlink":
        switch.symlink_to("/no/such")
    elif kind == "directory":
        switch.mkdir()
    else:
        switch.with_name("later").touch()
        switch.with_name("later").rename(switch)
    daemon.start()
    with daemon.client() as client, pytest.raises(RefusedError, match="feature_disabled"):
        client.exec(["true"])


# ---- SIGHUP ----


def reload(daemon: Daemon) -> None:
    before = daemon.log.read_text().count("again")
    os.kill(daemon.pid, signal.SIGHUP)
    while daemon.log.read_text().count("again") == before:
        continue


def test_sighup_reads_the_ceiling_again(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    other = daemon.base / "other"
    other.mkdir()
    with daemon.client() as client:
        with pytest.raises(RefusedError, match="ceiling_denied"):
            client.exec(["touch", "x"], cwd=str(other))
        daemon.write_ceiling(f'write = ["{other}"]\n')
        reload(daemon)
        assert client.exec(["touch", "x"], cwd=str(other)).exit_code == 0
        with pytest.raises(RefusedError, match="ceiling_denied"):
            client.exec(["true"], cwd=str(daemon.work))
        daemon.write_ceiling("broken")
        reload(daemon)
        with pytest.raises(RefusedError, match="ceiling_denied"):
            client.exec(["true"], cwd=str(other))
    roots = [record["roots"] for record in daemon.records("broker.reloaded")]
    assert roots == [[[str(other), "read write"]], []]


def test_sighup_reads_the_secrets_again(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    with daemon.client() as old:
        assert old.exec(["true"]).exit_code == 0
        daemon.settings.secret_file.write_text("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff" * 2)
        reload(daemon)
        with pytest.raises(RefusedError, match="unauthenticated"):
            old.exec(["true"])
        daemon.settings.client_header_file.write_text(
            "Authorization: Bearer " + "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff" * 2
        )
        with daemon.client() as new:
            assert new.exec(["true"]).exit_code == 0
            daemon.settings.secret_file.chmod(0o644)
            reload(daemon)
            with pytest.raises(RefusedError, match="unauthenticated"):
                new.exec(["true"])
    assert "nobody can authenticate" in daemon.log.read_text()


def test_a_reload_while_runs_are_on_changes_nothing_for_them(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    done = threading.Event()

    def ask() -> list[int | None]:
        with daemon.client() as client:
            codes = []
            while not done.is_set():
                codes.append(client.exec(["true"], cwd=str(daemon.work)).exit_code)
            return codes

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        for _ in range(10):
            reload(daemon)
        done.set()
        assert {code for future in asking for code in future.result()} == {0}


# ---- a log that cannot be written for a while ----


def test_it_goes_on_by_itself_once_the_log_can_be_written_again(make_daemon: Make) -> None:
    """A file size limit stands for a full disk.  Meanwhile nothing runs, and it says why."""
    daemon = make_daemon().start()
    with daemon.client() as client:
        assert client.exec(["true"]).exit_code == 0
        size = (daemon.settings.audit_dir / "audit.jsonl").stat().st_size
        _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, hard))
        refused: list[str] = []
        deadline = time.monotonic() + 60
        while len(refused) < 3:
            assert time.monotonic() < deadline
            try:
                client.exec(["true"], label="x" * 128)
            except RefusedError as refusal:
                refused.append(refusal.code)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (hard, hard))
        again = None
        while again is None:
            assert time.monotonic() < deadline
            with suppress(RefusedError):
                again = client.exec(["true"])
        assert again.exit_code == 0
    assert set(refused) == {"audit_unavailable"}
    assert daemon.records("broker.recovered")
    assert daemon.stop() == 0
    assert chain.verify(daemon.settings.audit_dir).ok
    intents = [record["seq"] for record in daemon.records("exec.intent")]
    outcomes = [record["ref"] for record in daemon.records("exec.outcome")]
    assert sorted(outcomes) == intents

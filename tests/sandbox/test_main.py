# SPDX-License-Identifier: Apache-2.0
"""`python -m sandbox`: what it prints and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def call(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandbox", *arguments], capture_output=True, text=True, **options
    )


def test_run_confines() -> None:
    done = call("run", "--", "sh", "-c", "echo hello; cat /etc/shadow")
    assert (done.returncode, done.stdout) == (1, "hello\n")
    assert done.stderr == "cat: /etc/shadow: Permission denied\n"


def test_roots_and_directory(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("text")
    script = "cat in/file && echo x >in/new"
    for option, status in (("--ro", 2), ("--rw", 0)):
        done = call("run", option, tmp_path / "in", "--cwd", tmp_path, "--", "sh", "-c", script)
        assert (done.returncode, done.stdout) == (status, "text")


def test_the_environment_is_what_was_asked_for() -> None:
    env = os.environ | {"PASSED": "1", "KEPT": "2"}
    arguments = ("--env", "PASSED", "--env", "SET=3", "--env", "UNSET_HERE")
    done = call("run", *arguments, "--", "env", env=env)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert names == {"PATH", "LANG", "PASSED", "SET"}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("run", "--", "sh", "-c", "exit 7"), 7, ""),
        (("run", "--", "sh", "-c", "kill -TERM $$"), 128 + signal.SIGTERM, ""),
        ((), 90, "the following arguments are required: command"),
        (("run",), 90, "the following arguments are required: ARG"),
        (("run", "--nonsense", "--", "true"), 90, "--nonsense"),
        (("run", "--net", "some", "--", "true"), 90, "invalid choice: 'some'"),
        (("run", "--env", "=1", "--", "true"), 90, "not a name of an environment variable"),
        (("run", "--ro", "/no/such", "--", "true"), 92, "root '/no/such'"),
        (("run", "--cwd", "/no/such", "--", "true"), 92, "cwd '/no/such'"),
        (("run", "--", "/etc/passwd"), 126, "exec '/etc/passwd'"),
        (("run", "--no-baseline", "--", "/bin/true"), 126, "exec '/bin/true'"),
        (("run", "--", "no-such-program"), 127, "exec 'no-such-program'"),
        (("run", "--", "/no/such"), 127, "exec '/no/such'"),
    ],
)
def test_each_ending_has_a_status_of_its_own(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = call(*arguments)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr


def test_status_and_selftest_say_ready() -> None:
    status = call("status")
    assert (status.returncode, status.stdout.startswith("ready: Landlock ABI ")) == (0, True)
    proof = call("selftest")
    assert (proof.returncode, "claims hold" in proof.stdout) == (0, True)


def test_an_interrupt_reaches_the_command() -> None:
    script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 60 & wait $!; done"
    argv = [sys.executable, "-m", "sandbox", "run", "--", "sh", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(timeout=60) == 5


def test_an_interrupt_before_the_command_says_anything_leaves_nothing(tmp_path: Path) -> None:
    """Whenever it comes: our end is the command's end."""
    for attempt in range(8):
        fifo = tmp_path / f"held-{attempt}"
        os.mkfifo(fifo)
        script = f"exec 3>{fifo}; exec sleep 300"
        roots = ("--rw", tmp_path)
        argv = [sys.executable, "-m", "sandbox", "run", *roots, "--", "sh", "-c", script]
        with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process, open(fifo, "rb") as held:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 128 + signal.SIGINT
            assert held.read() == b""

# SPDX-License-Identifier: Apache-2.0
"""run(): input, output, deadline, and what is left behind."""

from __future__ import annotations

import os
import select
import signal
import time

import pytest

import sandbox
from sandbox import Completed, Exit, Ruleset, SandboxError, run

MIB = 1 << 20


def test_the_exit_and_both_outputs_come_back(system: Ruleset) -> None:
    done = run(["sh", "-c", "echo out; echo err >&2; exit 3"], roots=system)
    assert done == Completed(Exit(3), b"out\n", b"err\n")


def test_the_input_is_read_to_its_end(system: Ruleset) -> None:
    assert run(["cat"], roots=system, input=b"text").stdout == b"text"
    assert run(["cat"], roots=system).stdout == b""


def test_input_and_outputs_larger_than_pipes_flow_at_once(system: Ruleset) -> None:
    data = os.urandom(3 * MIB)
    done = run(["tee", "/dev/fd/2"], roots=system, input=data)
    assert (done.stdout, done.stderr) == (data, data)


def test_input_that_nobody_reads_is_no_error(system: Ruleset) -> None:
    assert run(["true"], roots=system, input=bytes(MIB)).exit == Exit(0)


@pytest.mark.parametrize(("written", "truncated"), [(4096, False), (4097, True)])
def test_output_beyond_the_limit_is_dropped_and_said(
    system: Ruleset, written: int, truncated: bool
) -> None:
    argv = ["head", "-c", str(written), "/dev/zero"]
    done = run(argv, roots=system, max_output_bytes=4096)
    assert (len(done.stdout), done.truncated, done.exit) == (4096, truncated, Exit(0))


def test_dropped_output_does_not_stop_the_command(system: Ruleset) -> None:
    script = f"head -c {5 * MIB} /dev/zero; echo end >&2"
    done = run(["sh", "-c", script], roots=system, max_output_bytes=10)
    assert (done.stdout, done.stderr, done.truncated) == (bytes(10), b"end\n", True)


def test_the_deadline_ends_it_and_keeps_what_came(system: Ruleset) -> None:
    begun = time.monotonic()
    done = run(["sh", "-c", "echo early; exec sleep 60"], roots=system, timeout_s=0.3)
    assert done == Completed(Exit(None, signal.SIGKILL), b"early\n", b"", timed_out=True)
    assert 0.3 <= time.monotonic() - begun < 30


def test_the_deadline_holds_under_a_flood_of_output(system: Ruleset) -> None:
    begun = time.monotonic()
    done = run(["yes"], roots=system, timeout_s=0.3, max_output_bytes=100)
    assert (done.timed_out, done.truncated, len(done.stdout)) == (True, True, 100)
    assert time.monotonic() - begun < 30


def test_the_deadline_ends_the_group(system: Ruleset) -> None:
    done = run(["sh", "-c", "sleep 60 & echo $!; wait"], roots=system, timeout_s=0.3)
    assert done.timed_out
    assert has_ended(int(done.stdout))


def test_a_background_process_that_holds_the_pipes_delays_nothing(system: Ruleset) -> None:
    begun = time.monotonic()
    done = run(["sh", "-c", "sleep 60 & echo $!"], roots=system)
    assert (done.exit, done.timed_out) == (Exit(0), False)
    assert has_ended(int(done.stdout))
    assert time.monotonic() - begun < 30


def test_a_process_in_another_session_delays_nothing_either(system: Ruleset) -> None:
    begun = time.monotonic()
    done = run(["sh", "-c", "setsid sleep 60 & echo $!"], roots=system)
    assert time.monotonic() - begun < 30
    os.kill(int(done.stdout), signal.SIGKILL)  # as stated: run() does not find it


def has_ended(pid: int) -> bool:
    """Whether a process that was sent SIGKILL is gone within half a minute."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(30_000))
    finally:
        os.close(pidfd)


def test_nothing_is_left_open_when_spawning_fails(system: Ruleset) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(SandboxError):
            run(["/no/such"], roots=system, input=b"x")
        with pytest.raises(SandboxError):
            run(["true"], roots=[sandbox.read("/no/such")])
    assert len(os.listdir("/proc/self/fd")) == before


def test_roots_need_no_ruleset_of_the_callers() -> None:
    done = run(["cat", "/etc/hosts"], roots=sandbox.baseline())
    assert done.exit == Exit(0)
    refused = run(["ls", "/root"], roots=sandbox.baseline())
    assert (refused.exit, b"Permission denied" in refused.stderr) == (Exit(2), True)

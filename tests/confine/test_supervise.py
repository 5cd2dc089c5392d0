# SPDX-License-Identifier: Apache-2.0
"""The command as a child: signals pass through, and nothing is left when it ends."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.confine.launcher import TIMEOUT_S, processes_of, program

KINDS = [
    "plain",
    "own_group",
    "own_session",
    "double_fork",
    "subreaper",
    "respawn",
    "stopped",
    "detached",
]
LEFT_BEHIND_STATUS = 7


@contextmanager
def started(tree: Path, *words: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """confine with `tree` as the command; `words` are options, `--` and the command's own."""
    split = words.index("--")
    options, arguments = words[:split], words[split + 1 :]
    argv = [program(), "--baseline", "--exec", str(tree), *options, "--", str(tree), *arguments]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, **{"stdout": subprocess.PIPE, **more}
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def pipe_of(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout


def line_of(child: subprocess.Popen[bytes]) -> str:
    """The next line that the command writes."""
    ready, _, _ = select.select([pipe_of(child)], [], [], TIMEOUT_S)
    assert ready, "the command is silent"
    return os.read(pipe_of(child).fileno(), 4096).decode().rstrip("\n")


def is_held(pipe: IO[bytes]) -> bool:
    """Whether somebody still has the other end."""
    poller = select.poll()
    poller.register(pipe, 0)
    return not poller.poll(0)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        os.sched_yield()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


# ---- what is left behind ----


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_hides_is_ended_with_the_command(kind: str, tree: Path) -> None:
    with started(tree, "--supervise", "--", kind) as child:
        assert child.wait(TIMEOUT_S) == LEFT_BEHIND_STATUS
        assert not is_held(pipe_of(child))
        assert processes_of(tree) == []


@pytest.mark.parametrize("kind", KINDS)
def test_without_supervise_it_goes_on(kind: str, tree: Path) -> None:
    """The control: each kind really is left behind."""
    with started(tree, "--", kind) as child:
        assert child.wait(TIMEOUT_S) == LEFT_BEHIND_STATUS
        assert is_held(pipe_of(child))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_confine_is_the_end_of_all(number: signal.Signals, tree: Path) -> None:
    with started(tree, "--supervise", "--", "hold") as child:
        assert line_of(child) == "ready"
        child.send_signal(number)
        status = child.wait(TIMEOUT_S)
        assert status == (-9 if number == signal.SIGKILL else 128 + number)
        until(lambda: not is_held(pipe_of(child)))
        assert processes_of(tree) == []


def test_the_end_of_confine_under_a_shell_is_the_end_of_the_command(tree: Path) -> None:
    """Where it leads a process group and so has a child without being asked for."""
    with started(tree, "--", "signals", process_group=0) as child:
        assert line_of(child) == "ready"
        child.kill()
        child.wait(TIMEOUT_S)
        until(lambda: not is_held(pipe_of(child)))


def test_the_end_of_the_supervisor_is_the_end_of_all(tree: Path) -> None:
    """The process between confine and the command, killed by somebody outside."""
    with started(tree, "--supervise", "--", "hold") as child:
        assert line_of(child) == "ready"
        supervisor = int(
            Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0]
        )
        os.kill(supervisor, signal.SIGKILL)
        assert child.wait(TIMEOUT_S) == 128 + signal.SIGKILL
        until(lambda: not is_held(pipe_of(child)))


def test_the_command_cannot_undo_that(tree: Path) -> None:
    """It holds no parent-death signal of its own to clear."""
    with started(tree, "--supervise", "--", "detached") as child:
        assert child.wait(TIMEOUT_S) == LEFT_BEHIND_STATUS
        assert processes_of(tree) == []


# ---- signals ----

PASSED_ON = ["INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "CONT"]


@pytest.mark.parametrize("leads", [False, True])
def test_signals_pass_through_to_the_command(leads: bool, tree: Path) -> None:
    options = [] if leads else ["--supervise"]
    with started(tree, *options, "--", "signals", process_group=0 if leads else None) as child:
        assert line_of(child) == "ready"
        for name in PASSED_ON:
            child.send_signal(signal.Signals[f"SIG{name}"])
            assert line_of(child) == name
        child.send_signal(signal.SIGTERM)
        assert line_of(child) == "TERM"
        assert child.wait(TIMEOUT_S) == 9


def test_signals_pass_through_to_the_whole_group_of_the_command(tree: Path) -> None:
    with started(tree, "--supervise", "--", "pair") as child:
        seen: set[str] = set()
        while len(seen) < 2:
            seen.update(line_of(child).splitlines())
        assert seen == {"parent ready", "child ready"}
        child.send_signal(signal.SIGUSR1)
        while len(seen) < 4:
            seen.update(line_of(child).splitlines())
        assert {"parent USR1", "child USR1"} < seen


def test_a_signal_that_the_caller_ignores_stays_ignored(tree: Path) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with started(tree, "--supervise", "--", "signals", preexec_fn=nohup) as child:
        assert line_of(child) == "ready"
        child.send_signal(signal.SIGHUP)
        child.send_signal(signal.SIGUSR1)
        assert line_of(child) == "USR1"


def test_a_stop_from_the_terminal_stops_the_command_and_goes_on_with_it(tree: Path) -> None:
    with started(tree, "--supervise", "--", "signals") as child:
        assert line_of(child) == "ready"
        (command,) = processes_of(tree)
        child.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        until(lambda: state_of(command) == "T")
        child.send_signal(signal.SIGCONT)
        assert line_of(child) == "CONT"
        assert state_of(command) != "T"


def test_a_command_that_is_killed_takes_its_status_along(tree: Path) -> None:
    with started(tree, "--supervise", "--", "hold") as child:
        assert line_of(child) == "ready"
        stat = {pid: Path(f"/proc/{pid}/stat").read_text() for pid in processes_of(tree)}
        (command,) = [
            pid for pid, text in stat.items() if int(text.split()[5]) == pid and leads(pid)
        ]
        os.kill(command, signal.SIGKILL)
        assert child.wait(TIMEOUT_S) == 128 + signal.SIGKILL
        assert not is_held(pipe_of(child))


def leads(pid: int) -> bool:
    """Whether the process is the command: the one with a parent that is no tree."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return os.path.basename(os.readlink(f"/proc/{parent}/exe")) == "confine"


# ---- with a terminal ----


@contextmanager
def in_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """confine leading a session with a terminal and its foreground group; and the other end."""
    terminal, other = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    argv = [program(), "--baseline", *words]
    with subprocess.Popen(
        argv,
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
        preexec_fn=take_terminal,
    ) as child:
        os.close(other)
        try:
            yield child, terminal
        finally:
            child.kill()
            os.close(terminal)


def expect(terminal: int, *lines: str) -> None:
    """Reads lines, and no others, from the terminal; what it echoes is `^C` and the like."""
    seen: list[str] = []
    while len(seen) < len(lines):
        ready, _, _ = select.select([terminal], [], [], TIMEOUT_S)
        assert ready, seen
        text = os.read(terminal, 4096).decode().replace("^C", "").replace("^\\", "")
        seen += [line for line in text.splitlines() if line]
    assert seen == list(lines)


@pytest.mark.parametrize("options", [(), ("--supervise",), ("--tty",), ("--tty", "--supervise")])
def test_a_key_reaches_the_command_once(options: tuple[str, ...], tree: Path) -> None:
    words = ("--exec", str(tree), *options, "--", str(tree), "signals")
    with in_terminal(*words) as (child, terminal):
        expect(terminal, "ready")
        for _ in range(3):
            os.write(terminal, b"\x03")
            expect(terminal, "INT")
        os.write(terminal, b"\x1c")
        expect(terminal, "QUIT")
        child.send_signal(signal.SIGUSR1)
        expect(terminal, "USR1")


@pytest.mark.parametrize(("options", "answer"), [((), "denied"), (("--tty",), "reached")])
def test_the_terminal_is_out_of_reach_without_tty(options: tuple[str, ...], answer: str) -> None:
    """stdin stays the terminal that it was; the session's own name for it leads nowhere."""
    script = "(echo reached > /dev/tty) 2> /dev/null || echo denied"
    with in_terminal(*options, "--", "/bin/sh", "-c", script) as (_, terminal):
        expect(terminal, answer)

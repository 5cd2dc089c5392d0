# SPDX-License-Identifier: Apache-2.0
"""What is denied unless granted by name: network, shared memory, terminals, resources."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from tests.confine.launcher import confine, shell
from tests.support import probe
from tests.support.kernel import require, require_root
from tests.support.process import as_ordinary_user

PYTHON = "/usr/bin/python3"  # in the baseline, which this process's may not be


def python(script: str, *options: object) -> str:
    """What a program of the system's Python prints under the baseline."""
    require(os.access(PYTHON, os.X_OK), PYTHON)
    result = confine("--baseline", *options, "--", PYTHON, "-c", script)
    return result.out.strip() or result.err.strip().splitlines()[-1]


# ---- network ----

SOCKET = """
import errno, socket
try:
    socket.socket(socket.%s, socket.SOCK_STREAM).close()
    print("ok")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize(
    ("family", "net", "answer"),
    [
        ("AF_INET", "open", "ok"),
        ("AF_INET6", "open", "ok"),
        ("AF_INET", "none", "EPERM"),
        ("AF_INET6", "none", "EPERM"),
        ("AF_UNIX", "open", "EPERM"),
        ("AF_UNIX", "none", "EPERM"),
    ],
)
def test_the_network_is_there_unless_taken_away(family: str, net: str, answer: str) -> None:
    assert python(SOCKET % family, "--net", net) == answer
    socket.socket(getattr(socket, family), socket.SOCK_STREAM).close()  # the control


# ---- shared memory, terminals ----

SEMAPHORE = """
import multiprocessing
try:
    multiprocessing.Semaphore()
    print("ok")
except PermissionError:
    print("denied")
"""
PTY = """
import pty
try:
    pty.openpty()
    print("ok")
except OSError:
    print("denied")
"""


@pytest.mark.parametrize(
    ("script", "options", "answer"),
    [
        (SEMAPHORE, (), "denied"),
        (SEMAPHORE, ("--tty",), "denied"),
        (SEMAPHORE, ("--shm",), "ok"),
        (PTY, (), "denied"),
        (PTY, ("--shm",), "denied"),
        (PTY, ("--tty",), "ok"),
    ],
)
def test_shared_memory_and_terminals_are_granted_by_name(
    script: str, options: tuple[str, ...], answer: str
) -> None:
    assert python(script, *options) == answer


# ---- limits ----

PROC_NAMES = {
    "Max cpu time": 120,
    "Max file size": 64 << 20,
    "Max address space": 4 << 30,
    "Max open files": 1024,
    "Max locked memory": 64 << 10,
    "Max pending signals": 1024,
    "Max msgqueue size": 0,
    "Max nice priority": 0,
    "Max realtime priority": 0,
}


def limits(*options: str, **more: object) -> dict[str, tuple[str, str]]:
    text = confine("--baseline", *options, "--", "/bin/cat", "/proc/self/limits", **more).out
    return {
        line[:25].rstrip(): (line[26:46].strip(), line[47:67].strip())
        for line in text.splitlines()[1:]
    }


def test_limits_are_set_on_request_and_never_above_those_in_force() -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, resource.RLIM_INFINITY))

    found = limits("--limits")
    for name, value in PROC_NAMES.items():
        assert int(found[name][1]) <= value, name
        assert found[name][1] == str(value) or int(found[name][1]) < value
    assert found["Max open files"] == ("1024", "1024")
    found = limits("--limits", preexec_fn=lower)
    assert found["Max open files"] == ("100", "200")
    assert found["Max file size"] == ("5", str(64 << 20))
    assert limits("--limits")["Max cpu time"] == ("120", "120")


def test_without_the_option_the_limits_are_the_callers_but_for_core() -> None:
    """A core limit of 1 is the one that keeps the kernel from running a handler on the host."""

    def mine() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (111, 222))

    found = limits(preexec_fn=mine)
    assert found["Max open files"] == ("111", "222")
    assert found["Max core file size"] == ("1", "1")


def test_processes_are_counted_above_those_that_the_user_has() -> None:
    require_root()
    count = as_ordinary_user(lambda: int(limits("--limits")["Max processes"][1]))
    assert 256 < count < 256 + 1000
    assert limits("--limits")["Max processes"][1] == "256"  # root: not enforced, not counted


@pytest.mark.parametrize(
    ("script", "bare"),
    [
        ("head -c 70000000 /dev/zero > big", 0),
        ("ulimit -n 2000", 0),
        ("ulimit -t unlimited", 0),
    ],
)
def test_a_limit_holds(script: str, bare: int, place: Path) -> None:
    words = ("--rw", place, "--cwd", place)
    assert shell(script, *words).status == bare
    assert shell(script, *words, "--limits").status != 0


def test_an_address_space_beyond_the_limit_is_refused() -> None:
    script = "import mmap\ntry:\n    mmap.mmap(-1, 5 << 30)\n    print('ok')\nexcept OSError:\n"
    script += "    print('denied')\n"
    assert python(script) == "ok"
    assert python(script, "--limits") == "denied"


# ---- what no option grants ----


def test_an_outside_process_cannot_be_signalled(probe_program: Path) -> None:
    words = ("--baseline", "--exec", probe_program, "--", probe_program, "files", "/")
    answers = probe.parse(confine(*words).out.encode())
    assert answers["signal_outside"] == "EPERM"

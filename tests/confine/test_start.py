# SPDX-License-Identifier: Apache-2.0
"""What the command starts with, and that it does not start when a step fails."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.confine.launcher import KERNEL, SETUP, TIMEOUT_S, confine, program, shell
from tests.proof.outer import Refusal, attach, equals
from tests.support.kernel import require, require_root
from tests.support.process import as_ordinary_user

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CLOSE_RANGE, OPENAT2, SECCOMP, SETSID, KEYCTL, CAPSET, PRCTL = 436, 437, 317, 112, 250, 126, 157
NO_NEW_PRIVS: Final = 38


# ---- descriptors ----


def descriptors(probe_program: Path, *options: str, **more: Any) -> str:
    words = ("--baseline", "--exec", probe_program, *options, "--", probe_program, "descriptors")
    return confine(*words, **more).out


@pytest.mark.parametrize("options", [(), ("--supervise",)])
def test_no_descriptor_but_the_first_three_is_inherited(
    options: tuple[str, ...], probe_program: Path
) -> None:
    held = [os.open("/", os.O_RDONLY), *os.pipe()]
    try:
        high = os.dup2(held[0], 200)
        held.append(high)
        bare = subprocess.run(
            [probe_program, "descriptors"], pass_fds=held, capture_output=True, check=True
        )
        assert "200" in bare.stdout.decode().split()
        found = descriptors(probe_program, *options, pass_fds=held)
    finally:
        for fd in held:
            os.close(fd)
    assert found.split() == ["0", "1", "2"]


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 2>&-", "0<&- 1>&- 2>&-"])
def test_closed_stdio_becomes_dev_null_and_nothing_of_ours(closed: str, place: Path) -> None:
    (place / "answer").write_text("")
    script = "for n in 0 1 2; do readlink /proc/self/fd/$n; done > " + str(place / "answer")
    launch = f'exec "$@" {closed}'
    inner = [program(), "--baseline", "--rw", str(place), "--", "/bin/sh", "-c", script]
    subprocess.run(["/bin/sh", "-c", launch, "sh", *inner], check=True, timeout=TIMEOUT_S)
    # Inside the redirection stdout is the answer file itself.
    found = (place / "answer").read_text().split()
    for number in (0, 2):
        if f"{number}<&-" in closed or f"{number}>&-" in closed:
            assert found[number] == "/dev/null"


def test_a_closed_stdout_fails_no_command() -> None:
    inner = [program(), "--baseline", "--", "/bin/echo", "lost"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" 1>&-', "sh", *inner], timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0


def unix(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, kind)


SENDING = "import socket, sys; socket.socket(fileno=0).sendto(b'out', sys.argv[1])"


def test_a_datagram_socket_as_stdin_is_replaced(place: Path) -> None:
    require(os.access("/usr/bin/python3", os.X_OK), "/usr/bin/python3")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(place / "receiver"))
        receiver.setblocking(False)
        one, other = unix(socket.SOCK_DGRAM)
        with one, other:
            bare = ["/usr/bin/python3", "-c", SENDING, str(place / "receiver")]
            subprocess.run(bare, stdin=one.fileno(), check=True)
            assert receiver.recv(9) == b"out"
            result = confine("--baseline", "--rw", place, "--", *bare, stdin=one)
        assert result.status != 0
        assert "descriptor 0 is a socket that could be aimed elsewhere" in result.err
        with pytest.raises(BlockingIOError):
            receiver.recv(9)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("kind", ["dgram pair", "unconnected stream"])
def test_a_socket_that_can_be_aimed_becomes_dev_null(kind: str, number: int, place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unconnected:
        one, other = unix(socket.SOCK_DGRAM)
        with one, other:
            given = one if kind == "dgram pair" else unconnected
            stdio: dict[str, Any] = {"stdin": None, "stdout": None, "stderr": None}
            stdio[("stdin", "stdout", "stderr")[number]] = given
            script = f"readlink /proc/self/fd/{number} > {place}/answer"
            if number == 1:
                script = f"exec 3>&1; readlink /proc/self/fd/3 > {place}/answer"
            words = [program(), "--baseline", "--rw", str(place), "--", "/bin/sh", "-c", script]
            subprocess.run(words, check=True, timeout=TIMEOUT_S, **stdio)
    assert (place / "answer").read_text() == "/dev/null\n"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_connected_stream_socket_stays(kind: socket.SocketKind) -> None:
    one, other = unix(kind)
    with one, other:
        other.send(b"line\n")
        result = confine("--baseline", "--", "/bin/dd", "bs=99", "count=1", stdin=one)
    assert result.out == "line\n"
    assert "confine:" not in result.err


@pytest.mark.parametrize(("net", "stays"), [("open", True), ("none", False)])
def test_an_unconnected_network_socket_stays_with_the_network(net: str, stays: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as given:
        result = shell("readlink /proc/self/fd/0", "--net", net, stdin=given)
    assert result.out.startswith("socket:") is stays


@pytest.mark.parametrize("net", ["open", "none"])
def test_a_socket_of_a_family_that_the_filter_refuses_becomes_dev_null(net: str) -> None:
    sock_diag = 4  # lists every socket of the host (sock_diag(7))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, sock_diag) as given:
        result = shell("readlink /proc/self/fd/0", "--net", net, stdin=given)
    assert result.out == "/dev/null\n"
    assert "descriptor 0 is a socket that could be aimed elsewhere" in result.err


# ---- signals, session, umask, privileges ----


def dirty() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGRTMIN + 5, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    os.umask(0)


def status_of_command(*options: str, **more: Any) -> dict[str, str]:
    text = confine("--baseline", *options, "--", "/bin/cat", "/proc/self/status", **more).out
    return dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("options", [(), ("--supervise",), ("--tty",)])
def test_signals_and_mask_start_clean_and_the_umask_strict(options: tuple[str, ...]) -> None:
    found = status_of_command(*options, preexec_fn=dirty, restore_signals=False)
    for name in ("SigIgn", "SigBlk", "SigPnd", "SigCgt"):
        assert int(found[name], 16) == 0, name
    assert found["Umask"] == "0022"


@pytest.mark.parametrize(("callers", "commands"), [(0o000, "0022"), (0o077, "0077")])
def test_the_umask_is_the_callers_but_at_least_022(callers: int, commands: str) -> None:
    found = status_of_command(preexec_fn=lambda: os.umask(callers) and None)
    assert found["Umask"] == commands


def test_the_command_has_no_capability_and_gets_none() -> None:
    found = status_of_command()
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(found[name], 16) == 0, name
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"
    if os.geteuid() == 0:
        assert int(found["CapBnd"], 16) == 0


def ids(*options: str, **more: Any) -> tuple[int, int, int]:
    """pid, process group and session of the command."""
    words = ("--baseline", *options, "--", "/bin/cat", "/proc/self/stat")
    fields = confine(*words, **more).out.rsplit(")", 1)[1].split()
    return int(fields[1]), int(fields[2]), int(fields[3])


@pytest.mark.parametrize("options", [(), ("--supervise",)])
def test_the_command_leads_a_session_of_its_own(options: tuple[str, ...]) -> None:
    _, group, session = ids(*options)
    assert group == session
    assert session != os.getsid(0)


def test_with_the_terminal_the_session_is_the_callers() -> None:
    assert ids("--tty")[2] == os.getsid(0)


def test_the_command_is_the_process_that_was_started() -> None:
    """Unless that leads a process group: then it has a parent of ours."""
    for options, leads, in_place in (
        ((), False, True),
        ((), True, False),
        (("--supervise",), False, False),
        (("--tty",), True, True),
    ):
        words = [program(), "--baseline", *options, "--", "/bin/sh", "-c", "echo $$"]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, process_group=0 if leads else None
        ) as child:
            assert child.stdout is not None
            found = int(child.stdout.read())
        assert (found == child.pid) is in_place, (options, leads)
        assert child.returncode == 0


def test_a_set_user_id_confine_refuses(place: Path) -> None:
    require_root()
    copy = place / "confine"
    shutil.copy(program(), copy)
    words = [str(copy), "--version"]
    copy.chmod(0o4755)
    refused = as_ordinary_user(
        lambda: subprocess.run(words, capture_output=True, check=False, text=True)
    )
    assert refused.returncode == SETUP
    assert "must not be set-user-ID" in refused.stderr
    copy.chmod(0o755)
    as_ordinary_user(lambda: subprocess.run(words, capture_output=True, check=True))


# ---- steps that fail ----

REFUSED: list[tuple[str, list[Refusal], int, int, str]] = [
    ("no landlock", [(CREATE_RULESET, ())], errno.ENOSYS, KERNEL, "kernel: cannot confine"),
    ("landlock off", [(CREATE_RULESET, ())], errno.EOPNOTSUPP, KERNEL, "lsm="),
    ("no rule", [(ADD_RULE, ())], errno.ENOSYS, SETUP, "rule: '/usr': cannot confine"),
    ("odd file system", [(ADD_RULE, ())], errno.EBADFD, SETUP, "cannot carry rules"),
    ("no domain", [(RESTRICT_SELF, ())], errno.EPERM, SETUP, "landlock: cannot confine"),
    ("no filter", [(SECCOMP, ())], errno.ENOSYS, SETUP, "seccomp: cannot confine"),
    ("no close_range", [(CLOSE_RANGE, ())], errno.EPERM, SETUP, "close: cannot close"),
    ("no capset", [(CAPSET, ())], errno.EPERM, SETUP, "capabilities: cannot confine"),
    ("no keyring", [(KEYCTL, ())], errno.EDQUOT, SETUP, "keyring: cannot confine"),
    (
        "no no_new_privs",
        [(PRCTL, equals(0, NO_NEW_PRIVS))],
        errno.EINVAL,
        SETUP,
        "no_new_privs: cannot confine",
    ),
]


@pytest.mark.parametrize("options", [(), ("--supervise",)])
@pytest.mark.parametrize("case", REFUSED, ids=[case[0] for case in REFUSED])
def test_a_step_that_fails_is_named_and_the_command_does_not_run(
    case: tuple[str, list[Refusal], int, int, str], options: tuple[str, ...]
) -> None:
    _, refusals, error, status, message = case
    words = ("--exec", "/usr", "--exec", "/lib", "--exec", "/lib64", *options, "--")
    assert confine(*words, "/usr/bin/echo", "ran").out == "ran\n"
    result = confine(*words, "/usr/bin/echo", "ran", preexec_fn=attach(refusals, error))
    assert (result.status, result.out) == (status, "")
    assert message in result.message
    name = "EOPNOTSUPP" if error == errno.EOPNOTSUPP else errno.errorcode[error]
    assert f"({name})" in result.message
    assert "; " in result.message  # and a remedy


@pytest.mark.parametrize(("options", "stage"), [((), "session: "), (("--supervise",), "start: ")])
def test_without_a_session_of_its_own_the_command_does_not_run(
    options: tuple[str, ...], stage: str
) -> None:
    refused = shell("echo ran", *options, preexec_fn=attach([(SETSID, ())], errno.EPERM))
    assert (refused.status, refused.out) == (SETUP, "")
    assert refused.message.startswith(stage)
    assert shell("echo ran", "--tty", preexec_fn=attach([(SETSID, ())])).out == "ran\n"


def test_an_outer_filter_without_openat2_costs_nothing_but_time(place: Path) -> None:
    (place / "file").write_text("text")
    outer = attach([(OPENAT2, ())], errno.ENOSYS)
    assert shell(f"cat {place}/file", "--ro", place, preexec_fn=outer).out == "text"
    (place / "link").symlink_to(place / "file")
    assert shell("true", "--ro", place / "link", preexec_fn=outer).status == SETUP


def test_an_outer_filter_without_keys_is_no_hindrance() -> None:
    outer = attach([(KEYCTL, ())], errno.ENOSYS)
    assert shell("echo ran", preexec_fn=outer).out == "ran\n"


def test_the_kernels_limit_of_nested_sandboxes_is_refused() -> None:
    def nest(layers: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        handled = ctypes.c_uint64(1 << 12)
        for _ in range(layers):
            ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(handled), 8, 0)
            assert libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
            os.close(ruleset)

    assert shell("echo ran", preexec_fn=lambda: nest(15)).out == "ran\n"
    refused = shell("echo ran", preexec_fn=lambda: nest(16))
    assert (refused.status, refused.out) == (SETUP, "")
    assert "landlock: cannot confine" in refused.message
    assert "16 sandboxes are nested" in refused.message


def test_no_child_is_refused_with_the_reason() -> None:
    """An outer filter answers EAGAIN to fork, as RLIMIT_NPROC does."""
    clone, fork, vfork = 56, 57, 58
    outer = attach([(clone, ()), (fork, ()), (vfork, ())], errno.EAGAIN)
    words = ("--exec", "/usr", "--supervise", "--", "/usr/bin/echo", "ran")
    refused = confine(*words, preexec_fn=outer)
    assert (refused.status, refused.out) == (SETUP, "")
    assert refused.message.startswith("start: cannot run the command in a child: ")
    assert "(EAGAIN)" in refused.message

# SPDX-License-Identifier: Apache-2.0
"""What a child finds, what it does not find, and how spawning fails."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import re
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

import sandbox
from sandbox import Limits, Ruleset, SandboxError, SpawnPlan, _core, spawn
from sandbox.errors import HINTS
from tests.support.kernel import require_cgroup, require_root
from tests.support.process import as_ordinary_user, in_process


def output_of(plan: SpawnPlan) -> bytes:
    """The stdout of a plan that writes less than a pipe holds."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as answers:
        try:
            child = spawn(replace(plan, stdout=writer))
        finally:
            os.close(writer)
        with child:
            answer = answers.read()
            assert child.wait().code == 0
        return answer


def status_of_child(ruleset: Ruleset) -> dict[str, str]:
    """/proc/self/status of a child."""
    text = output_of(SpawnPlan(["cat", "/proc/self/status"], ruleset=ruleset)).decode()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def failure_of(plan: SpawnPlan) -> tuple[str, str]:
    """(stage, errno) of a spawn that must fail, and leaves no child behind."""
    with pytest.raises(SandboxError) as caught:
        spawn(plan)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert caught.value.hint
    return caught.value.stage, caught.value.errno_name


# ---- what it finds ----


def test_it_has_no_privilege(system: Ruleset) -> None:
    status = status_of_child(system)
    sets = {name: status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
    assert sets == dict.fromkeys(sets, "0000000000000000")
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_root_loses_the_bounding_set_too(system: Ruleset) -> None:
    require_root()
    assert status_of_child(system)["CapBnd"] == "0000000000000000"
    assert Path("/proc/self/status").read_text().count("CapBnd:\t0000000000000000") == 0


def test_its_signals_are_as_after_login(system: Ruleset) -> None:
    def inherit_badly() -> dict[str, str]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, 40})
        return status_of_child(system)

    status = in_process(inherit_badly)
    assert {status[name] for name in ("SigBlk", "SigIgn", "SigCgt")} == {"0000000000000000"}


def test_spawning_restores_our_signal_mask(system: Ruleset) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with spawn(SpawnPlan(["true"], ruleset=system)) as child:
        child.wait()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_it_leads_a_session_of_its_own(system: Ruleset) -> None:
    with spawn(SpawnPlan(["sleep", "60"], ruleset=system)) as child:
        assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid


def test_its_environment_is_the_plan_and_nothing_of_ours(
    system: Ruleset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "1")
    plan = SpawnPlan(["/usr/bin/env"], ruleset=system)
    minimal = {f"{name}={value}" for name, value in sandbox.MINIMAL_ENV.items()}
    assert set(output_of(plan).decode().splitlines()) == minimal
    assert output_of(replace(plan, env={})) == b""
    given = {"A": "1", "EMPTY": "", "PATHLIKE": Path("/x"), "UTF": "ä", "EQUAL": "a=b"}
    wanted = {b"A=1", b"EMPTY=", b"PATHLIKE=/x", "UTF=ä".encode(), b"EQUAL=a=b"}
    assert set(output_of(replace(plan, env=given)).splitlines()) == wanted


def test_names_that_are_not_utf8_arrive_unchanged(system: Ruleset, tmp_path: Path) -> None:
    odd = b"\xff\xfe\n"
    plan = SpawnPlan([b"/usr/bin/printf", b"%s", odd], ruleset=system)
    assert output_of(plan) == odd
    assert output_of(replace(plan, argv=["printf", "%s", os.fsdecode(odd)])) == odd
    in_env = SpawnPlan(["/usr/bin/env", "-0"], ruleset=system, env={b"N\xff": odd})
    assert output_of(in_env) == b"N\xff=" + odd + b"\0"
    directory = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(directory)
    roots = [*sandbox.baseline(), sandbox.read(directory)]
    done = sandbox.run(["pwd"], roots=roots, cwd=directory)
    assert done.stdout == directory + b"\n"


def test_the_working_directory_is_the_plan_or_ours(system: Ruleset, tmp_path: Path) -> None:
    plan = SpawnPlan(["/usr/bin/env", "pwd", "-P"], ruleset=system)
    assert output_of(plan).decode() == f"{Path.cwd().resolve()}\n"
    assert output_of(replace(plan, cwd="/usr")) == b"/usr\n"


def test_a_relative_program_counts_from_the_working_directory(system: Ruleset) -> None:
    assert output_of(SpawnPlan(["./env", "pwd"], ruleset=system, cwd="/usr/bin")) == b"/usr/bin\n"


def test_the_umask_is_the_plans(system: Ruleset) -> None:
    plan = SpawnPlan(["sh", "-c", "umask"], ruleset=system)
    assert output_of(plan) == b"0022\n"
    assert output_of(replace(plan, umask=0o077)) == b"0077\n"


LIMIT_LINES: Final = {
    "memory_bytes": ("Max address space", 1 << 30),
    "processes": ("Max processes", 1234),
    "open_files": ("Max open files", 100),
    "file_size_bytes": ("Max file size", 4096),
    "cpu_s": ("Max cpu time", 7),
    "locked_bytes": ("Max locked memory", 4096),
    "queue_bytes": ("Max msgqueue size", 0),
}


def limits_of_child(ruleset: Ruleset, limits: Limits) -> dict[str, list[str]]:
    plan = SpawnPlan(["cat", "/proc/self/limits"], ruleset=ruleset, limits=limits)
    lines = output_of(plan).decode().splitlines()
    return {line[:26].strip(): line[26:].split()[:2] for line in lines}


def test_each_limit_is_set_soft_and_hard(system: Ruleset) -> None:
    values = {name: value for name, (_, value) in LIMIT_LINES.items()}
    found = limits_of_child(system, Limits(**values))
    for line, value in LIMIT_LINES.values():
        assert found[line] == [str(value), str(value)]


def test_limits_not_named_stay(system: Ruleset) -> None:
    found = limits_of_child(system, sandbox.Limits())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found["Max open files"] == [str(soft), str(hard)]


def test_core_dumps_are_frozen_off(system: Ruleset) -> None:
    assert limits_of_child(system, Limits())["Max core file size"] == ["1", "1"]
    script = "ulimit -c 0 && grep core /proc/self/limits"
    text = output_of(SpawnPlan(["sh", "-c", script], ruleset=system)).decode()
    assert text.split()[4:6] == ["1", "1"]
    crash = sandbox.run(["sh", "-c", "kill -SEGV $$"], roots=system)
    assert crash.exit == sandbox.Exit(None, signal.SIGSEGV, core=False)


@pytest.mark.parametrize("value", [-1, 1 << 63])
def test_a_limit_outside_the_kernels_range_is_refused(value: int) -> None:
    Limits(cpu_s=(1 << 63) - 1)
    with pytest.raises(ValueError, match="cpu_s must be from 0 to"):
        Limits(cpu_s=value)


def test_it_is_born_in_the_cgroup_of_the_plan(system: Ruleset) -> None:
    require_root()
    group = require_cgroup() / f"sandbox-test-{os.getpid()}"
    group.mkdir()
    directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        plan = SpawnPlan(["cat", "/proc/self/cgroup"], ruleset=system, cgroup_fd=directory)
        assert f"0::/{group.name}\n".encode() in output_of(plan)
    finally:
        os.close(directory)
        group.rmdir()


def test_it_dies_with_the_thread_that_asked_for_that(system: Ruleset) -> None:
    plan = SpawnPlan(["sleep", "60"], ruleset=system, pdeathsig=True)
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(spawn, plan).result()
    with child:
        assert child.wait(timeout_s=30).signal == signal.SIGKILL


def test_a_terminal_becomes_the_controlling_one(system: Ruleset) -> None:
    master, slave = os.openpty()
    try:
        plan = SpawnPlan(["cat", "/proc/self/stat"], ruleset=system, terminal_fd=slave)
        tty_number = int(output_of(plan).decode().rpartition(")")[2].split()[4])
        assert tty_number == os.fstat(slave).st_rdev
        without = output_of(replace(plan, terminal_fd=-1)).decode()
        assert without.rpartition(")")[2].split()[4] == "0"
    finally:
        os.close(master)
        os.close(slave)


# ---- descriptors ----


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Thousands of descriptors that a careless spawn would hand down."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    opened = [os.open("/dev/null", os.O_RDWR) for _ in range(2000)]
    for fd in opened:
        os.set_inheritable(fd, True)
    yield
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_no_descriptor_but_stdio_is_inherited(
    system: Ruleset, probe_program: Path, many_descriptors: None
) -> None:
    plan = SpawnPlan([probe_program, "descriptors"], ruleset=system)
    assert output_of(plan) == b"0\n1\n2\n"


def test_stdio_with_high_numbers_arrives(
    system: Ruleset, many_descriptors: None, tmp_path: Path
) -> None:
    done = sandbox.run(["sh", "-c", "cat; echo err >&2"], roots=system, input=b"in")
    assert (done.stdout, done.stderr) == (b"in", b"err\n")


def test_threads_spawning_at_once_do_not_mix_their_descriptors(
    system: Ruleset, probe_program: Path, many_descriptors: None
) -> None:
    ruleset = system
    script = f'{probe_program} descriptors | tr "\\n" " "; cat'

    def one(number: int) -> tuple[bytes, bytes]:
        text = b"%d" % number
        return text, sandbox.run(["sh", "-c", script], roots=ruleset, input=text).stdout

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, range(240)))
    assert answers == [(text, b"0 1 2 " + text) for text, _ in answers]


def test_stdio_is_dev_null_unless_given(system: Ruleset) -> None:
    links = "readlink /proc/self/fd/0 /proc/self/fd/2"
    assert output_of(SpawnPlan(["sh", "-c", links], ruleset=system)) == b"/dev/null\n/dev/null\n"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (1, 0, 2), (2, 2, 2)])
def test_low_descriptors_can_be_given_in_any_order(
    system: Ruleset, tmp_path: Path, order: tuple[int, int, int]
) -> None:
    names = [tmp_path / str(number) for number in range(3)]

    def permuted() -> None:
        for number, name in enumerate(names):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        stdin, stdout, stderr = order
        script = "for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done >&1"
        plan = SpawnPlan(
            ["sh", "-c", script], ruleset=system, stdin=stdin, stdout=stdout, stderr=stderr
        )
        with spawn(plan) as child:
            assert child.wait().code == 0

    in_process(permuted)
    wanted = "".join(f"{names[number]}\n" for number in order)
    assert names[order[1]].read_text() == wanted


def test_it_works_from_a_process_without_stdio(system: Ruleset) -> None:
    def closed() -> sandbox.Completed:
        os.closerange(0, 3)
        return sandbox.run(["sh", "-c", "cat; echo out"], roots=system, input=b"in ")

    assert in_process(closed).stdout == b"in out\n"


def unix_socket(kind: int) -> Callable[[], Sequence[socket.socket]]:
    return lambda: (socket.socket(socket.AF_UNIX, kind),)


def unix_pair(kind: int) -> Callable[[], Sequence[socket.socket]]:
    return lambda: socket.socketpair(socket.AF_UNIX, kind)


SOCKETS: Final = [
    (unix_pair(socket.SOCK_STREAM), None),
    (unix_pair(socket.SOCK_SEQPACKET), None),
    (unix_pair(socket.SOCK_DGRAM), "EPROTOTYPE"),
    (unix_socket(socket.SOCK_STREAM), "EPROTOTYPE"),
    (unix_socket(socket.SOCK_DGRAM), "EPROTOTYPE"),
    (lambda: (socket.socket(socket.AF_INET, socket.SOCK_STREAM),), "EPROTOTYPE"),
    (lambda: (socket.socket(socket.AF_INET, socket.SOCK_DGRAM),), "EPROTOTYPE"),
]


@pytest.mark.parametrize(("make", "refusal"), SOCKETS)
@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_socket_that_can_be_aimed_elsewhere_is_no_stdio(
    system: Ruleset, stream: str, make: Callable[[], Sequence[socket.socket]], refusal: str | None
) -> None:
    ends = make()
    plan = replace(SpawnPlan(["true"], ruleset=system), **{stream: ends[0].fileno()})
    if refusal:
        assert failure_of(plan) == ("descriptors", refusal)
    else:
        with spawn(plan) as child:
            assert child.wait().code == 0
    for end in ends:
        end.close()


# ---- how it ends ----


@pytest.mark.parametrize(
    ("script", "ended", "status"),
    [
        ("exit 0", sandbox.Exit(0), 0),
        ("exit 255", sandbox.Exit(255), 255),
        ("kill -TERM $$", sandbox.Exit(None, signal.SIGTERM), 143),
    ],
)
def test_code_and_signal_are_told_apart(
    system: Ruleset, script: str, ended: sandbox.Exit, status: int
) -> None:
    with spawn(SpawnPlan(["sh", "-c", script], ruleset=system)) as child:
        assert child.wait() == ended
        assert child.wait() == ended
    assert ended.status == status


def test_many_threads_can_wait_for_one_child(system: Ruleset) -> None:
    child = spawn(SpawnPlan(["sleep", "60"], ruleset=system))
    ready = threading.Barrier(9)

    def wait() -> sandbox.Exit:
        ready.wait()
        return child.wait()

    with child, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(wait) for _ in range(8)]
        ready.wait()
        child.signal(signal.SIGUSR1)
        assert {future.result() for future in waiting} == {sandbox.Exit(None, signal.SIGUSR1)}


def test_waiting_can_have_a_limit(system: Ruleset) -> None:
    with spawn(SpawnPlan(["sleep", "60"], ruleset=system)) as child:
        with pytest.raises(TimeoutError, match=f"process {child.pid} still runs after 0"):
            child.wait(timeout_s=0)
        child.signal(signal.SIGKILL)
        assert child.wait(timeout_s=60).signal == signal.SIGKILL


def test_leaving_the_block_ends_the_whole_process_group(system: Ruleset) -> None:
    reader, writer = os.pipe()
    plan = SpawnPlan(["sh", "-c", "sleep 60 & echo; wait"], ruleset=system, stdout=writer)
    with os.fdopen(reader, "rb") as alive:
        with spawn(plan):
            os.close(writer)
            assert alive.readline() == b"\n"
        assert alive.read() == b""  # end of file: nobody holds the other end


def test_signalling_an_ended_child_does_nothing(system: Ruleset) -> None:
    with spawn(SpawnPlan(["true"], ruleset=system)) as child:
        child.wait()
        child.signal(signal.SIGKILL)
        child.signal_group(signal.SIGKILL)
        assert child.wait() == sandbox.Exit(0)


# ---- how it fails ----


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["no-such-program-anywhere"], "ENOENT"),
        (["/no/such/program"], "ENOENT"),
        (["/etc/passwd/x"], "ENOTDIR"),
        (["/etc/passwd"], "EACCES"),
        (["/usr"], "EACCES"),
        (["/bin/true", "x" * (1 << 20)], "E2BIG"),
        (["/bin/true", *["x" * 1000] * 8000], "E2BIG"),
    ],
)
def test_a_program_that_cannot_be_executed(system: Ruleset, argv: list[str], error: str) -> None:
    assert failure_of(SpawnPlan(argv, ruleset=system)) == ("exec", error)


def test_a_program_in_no_exec_root_is_refused(system: Ruleset, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    plan = SpawnPlan([program], ruleset=system)
    assert failure_of(plan) == ("exec", "EACCES")
    with Ruleset([*sandbox.baseline(), sandbox.execute(program)]) as ruleset:
        assert sandbox.run([program], roots=ruleset).exit.code == 0


@pytest.mark.parametrize(("text", "error"), [("no magic", "ENOEXEC"), ("#!/nowhere\n", "ENOENT")])
def test_a_file_that_is_no_program_is_refused(
    system: Ruleset, tmp_path: Path, text: str, error: str
) -> None:
    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(0o755)
    with Ruleset([*sandbox.baseline(), sandbox.execute(program)]) as ruleset:
        assert failure_of(SpawnPlan([program], ruleset=ruleset)) == ("exec", error)


def test_a_program_open_for_writing_is_refused(probe_program: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(probe_program.read_bytes())
    program.chmod(0o755)
    with Ruleset([sandbox.execute(program)]) as ruleset, program.open("ab"):
        plan = SpawnPlan([program, "nothing"], ruleset=ruleset)
        assert failure_of(plan) == ("exec", "ETXTBSY")


@pytest.mark.parametrize(
    ("cwd", "error"),
    [("/no/such", "ENOENT"), ("/etc/passwd", "ENOTDIR"), ("/etc/passwd/x", "ENOTDIR")],
)
def test_a_working_directory_that_cannot_be_entered(system: Ruleset, cwd: str, error: str) -> None:
    plan = SpawnPlan(["true"], ruleset=system, cwd=cwd)
    assert failure_of(plan) == ("cwd", error)
    with pytest.raises(SandboxError, match=f"cwd '{cwd}'"):
        spawn(plan)


def test_a_hard_limit_that_we_may_not_raise_is_named(system: Ruleset) -> None:
    require_root()
    resource_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    plan = SpawnPlan(["true"], ruleset=system, limits=Limits(open_files=resource_limit + 1))

    def refused() -> str:
        with pytest.raises(SandboxError) as caught:
            spawn(plan)
        return str(caught.value)

    wanted = (
        rf"limits: Operation not permitted \(EPERM\): open_files={resource_limit + 1}: only root"
    )
    assert re.match(wanted, as_ordinary_user(refused))


def test_stdio_that_is_not_open_is_refused(system: Ruleset) -> None:
    assert failure_of(SpawnPlan(["true"], ruleset=system, stdin=12345)) == ("descriptors", "EBADF")


def test_a_terminal_that_is_none_is_refused(system: Ruleset) -> None:
    with open("/dev/null") as null:
        plan = SpawnPlan(["true"], ruleset=system, terminal_fd=null.fileno())
        assert failure_of(plan) == ("terminal", "ENOTTY")


def test_a_cgroup_that_is_none_is_refused(system: Ruleset) -> None:
    plan = SpawnPlan(["true"], ruleset=system, cgroup_fd=12345)
    assert failure_of(plan) == ("clone", "EBADF")


def test_a_closed_ruleset_is_refused(system: Ruleset) -> None:
    plan = SpawnPlan(["true"], ruleset=system)
    system.close()
    with pytest.raises(ValueError, match="the ruleset is closed"):
        spawn(plan)


LANDLOCK_RESTRICT_SELF: Final = 446
PR_SET_NO_NEW_PRIVS: Final = 38


def test_a_seventeenth_layer_is_refused(system: Ruleset) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def nest() -> tuple[str, str]:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        with Ruleset([sandbox.write("/"), sandbox.execute("/")]) as everything:
            for _ in range(16):
                assert libc.syscall(LANDLOCK_RESTRICT_SELF, everything.fd, 0) == 0
            return failure_of(SpawnPlan(["true"], ruleset=system))

    assert in_process(nest) == ("landlock", "E2BIG")


BAD_PLANS: Final = [
    ({"argv": []}, "argv must be a sequence of words"),
    ({"argv": "true"}, "argv must be a sequence of words"),
    ({"argv": [""]}, "the first word of argv is empty"),
    ({"argv": ["/bin/tr\0ue"]}, "NUL in path of the program"),
    ({"argv": ["tr\0ue"]}, "NUL in path of the program"),
    ({"argv": ["true", "a", "b\0c"]}, r"NUL in argument b'b\\x00c'"),
    ({"argv": ["true", "", "\0"]}, r"NUL in argument b'\\x00'"),
    ({"env": {"A\0": "1"}}, "NUL in environment entry"),
    ({"env": {"A": "1", "B": "\0"}}, r"NUL in environment entry b'B=\\x00'"),
    ({"env": {"": "1"}}, "not a name of an environment variable: ''"),
    ({"env": {"A=B": "1"}}, "not a name of an environment variable: 'A=B'"),
    ({"env": {b"=": b"1"}}, "not a name of an environment variable: b'='"),
    ({"cwd": "/us\0r"}, "NUL in path of the working directory"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_PLANS)
def test_a_malformed_plan_is_a_value_error_that_says_what(
    system: Ruleset, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        spawn(SpawnPlan(**({"argv": ["/bin/true"], "ruleset": system} | wrong)))


def test_a_plan_does_not_change_after_it_was_made(system: Ruleset) -> None:
    argv, env = ["/usr/bin/env"], {"A": "1"}
    plan = SpawnPlan(argv, ruleset=system, env=env)
    argv.append("B=2")
    env["C"] = "3"
    assert output_of(plan) == output_of(plan) == b"A=1\n"


def test_every_hint_is_for_a_stage_that_exists() -> None:
    stages = {_core.stage_name(number) for number in range(64)}
    assert "unknown" in stages  # all were seen
    assert set(HINTS) <= stages | {"root"}


def test_an_error_survives_pickling(system: Ruleset) -> None:
    with pytest.raises(SandboxError) as caught:
        spawn(SpawnPlan(["/no/such"], ruleset=system))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert (copy.stage, copy.errno, copy.path) == ("exec", errno.ENOENT, b"/no/such")


def test_a_hundred_spawns_leave_nothing_behind(system: Ruleset) -> None:
    def spawn_many() -> tuple[int, int]:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(100):
            plan = SpawnPlan(["true" if number % 2 else "/no/such"], ruleset=system)
            with contextlib.suppress(SandboxError), spawn(plan) as child:
                child.wait()
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return before, len(os.listdir("/proc/self/fd"))

    with spawn(SpawnPlan(["true"], ruleset=system)) as first:
        first.wait()  # reserves the low descriptors
    before, after = in_process(spawn_many)
    assert after == before

# SPDX-License-Identifier: Apache-2.0
"""Confined children: the plan, and what runs by it.

Nothing reaches a child by accident: no descriptor but the three of its plan, no environment but its
plan's, no signal disposition, no capability.  It leads a session and a process group of its own.
What it leaves behind in other groups is not found here; `confine --supervise` and the broker end
whole trees.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from types import MappingProxyType, TracebackType
from typing import Final, TypeAlias

from sandbox import _core
from sandbox.errors import SandboxError
from sandbox.landlock import Network
from sandbox.ruleset import Pathname, Ruleset

Environment: TypeAlias = Mapping[str, Pathname] | Mapping[bytes, Pathname]

#: For stdin, stdout and stderr of a plan.
DEVNULL: Final = -1
#: The environment of a plan that gives none: enough to find programs, nothing of the caller's.
MINIMAL_ENV: Final[Mapping[str, str]] = MappingProxyType(
    {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a child, soft and hard alike; None leaves the caller's limit in force.

    They hold for each process, `processes` for all of the user: a tree can exceed every one of them
    together.  The limit on core dumps is not here: it is always frozen at a value that makes none.
    """

    memory_bytes: int | None = field(default=None, metadata={"resource": resource.RLIMIT_AS})
    processes: int | None = field(default=None, metadata={"resource": resource.RLIMIT_NPROC})
    open_files: int | None = field(default=None, metadata={"resource": resource.RLIMIT_NOFILE})
    file_size_bytes: int | None = field(default=None, metadata={"resource": resource.RLIMIT_FSIZE})
    cpu_s: int | None = field(default=None, metadata={"resource": resource.RLIMIT_CPU})
    locked_bytes: int | None = field(default=None, metadata={"resource": resource.RLIMIT_MEMLOCK})
    queue_bytes: int | None = field(default=None, metadata={"resource": resource.RLIMIT_MSGQUEUE})

    def __post_init__(self) -> None:
        for name, _, value in self.rows():
            if not 0 <= value < 1 << 63:
                raise ValueError(f"{name} must be from 0 to 2**63-1, not {value}")

    def rows(self) -> list[tuple[str, int, int]]:
        """(name, RLIMIT_* number, value) of each limit that is set."""
        return [
            (limit.name, limit.metadata["resource"], value)
            for limit in fields(self)
            if (value := getattr(self, limit.name)) is not None
        ]


#: The caller's limits stay in force.
NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: by `code`, or by `signal` (then `core` tells whether it dumped)."""

    code: int | None
    signal: int | None = None
    core: bool = False

    @property
    def status(self) -> int:
        """One number as shells give it: the code, or 128 + the signal."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


_EXITS: Final = tuple(Exit(code) for code in range(256))


@dataclass(frozen=True, slots=True)
class SpawnPlan:
    """Everything about a confined child; can be spawned any number of times, from any thread.

    argv: the first word is looked up once in the PATH of `env` (its absolute entries)
        unless it has a slash.
    ruleset: borrowed; must be open whenever the plan is spawned.
    cwd: None stays in the caller's; opened at each spawn, relative names in argv count from it.
    env: None is MINIMAL_ENV, {} is empty; the caller's own is never inherited.
    stdin, stdout, stderr: borrowed descriptors, DEVNULL by default; never a datagram socket.
    network: NONE also when the ruleset was made with NONE.
    cgroup_fd: a cgroup v2 directory to be born in.
    terminal_fd: a pty's slave to become the controlling terminal.
    pdeathsig: SIGKILL when the *thread* that spawned ends, for threads that stay; where a
        start_spawner() thread spawns, that is the end of the process.

    Raises ValueError for an empty argv, a NUL anywhere, and a bad name in env.
    """

    argv: Sequence[Pathname]
    _: KW_ONLY
    ruleset: Ruleset
    cwd: Pathname | None = None
    env: Environment | None = None
    stdin: int = DEVNULL
    stdout: int = DEVNULL
    stderr: int = DEVNULL
    network: Network = Network.OPEN
    limits: Limits = NO_LIMITS
    umask: int = 0o022
    cgroup_fd: int = -1
    terminal_fd: int = -1
    pdeathsig: bool = False
    _native: _core.NativePlan | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.argv, str | bytes) or not self.argv:
            raise ValueError(f"argv must be a sequence of words, not {self.argv!r}")
        object.__setattr__(self, "argv", tuple(self.argv))
        if self.env is not None:
            object.__setattr__(self, "env", MappingProxyType(dict(self.env)))


class Child:
    """A confined process.  Owns its pidfd, and must be waited for like any child.

    `with` kills the process group on leaving if the process still runs, waits and closes.  Usable
    from any thread.
    """

    __slots__ = ("_exit", "_reaping", "pid", "pidfd")

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._exit: Exit | None = None
        self._reaping = threading.Lock()

    def wait(self, timeout_s: float | None = None) -> Exit:
        """Waits until the process ends.  Raises TimeoutError when that takes longer."""
        if self._exit is not None:
            return self._exit
        # The pidfd tells of the end alone; wait(2) would also tell of the stops of a child that has
        # called PTRACE_TRACEME.
        if not _is_readable(self.pidfd, timeout_s):
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s")
        with self._reaping:
            if self._exit is None:
                self._exit = _reap(self.pid, self.pidfd)
            return self._exit

    def signal(self, number: int) -> None:
        """Signals the process, never another that got its number.  Does nothing once it ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def signal_group(self, number: int) -> None:
        """Signals what is left of the process group.  Does nothing once waited for."""
        with self._reaping:  # until it is reaped, its number cannot name another group
            if self._exit is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)

    def close(self) -> None:
        """Closes the pidfd; the process itself is left as it is."""
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._exit is None:
            self.signal_group(signal.SIGKILL)
            self.wait()
        self.close()

    def __del__(self) -> None:
        self.close()


def spawn(plan: SpawnPlan) -> Child:
    """Starts the command confined; returns when it has been executed.

    Raises SandboxError with the stage, and then nothing of the command has run: "exec" when there
    is no such program or it lies in no exec root, "cwd", "limits", "descriptors", …
    """
    native = plan._native
    if native is None:
        native = _prepare(plan)
        object.__setattr__(plan, "_native", native)
    cwd_fd = -1 if plan.cwd is None else _open_cwd(plan.cwd)
    try:
        return Child(*native.spawn(cwd_fd, plan.ruleset.fd))
    finally:
        if cwd_fd >= 0:
            os.close(cwd_fd)


def start_spawner(network: Network = Network.OPEN) -> None:
    """Makes later spawns cheap: what a filter costs is paid once (docs/performance.md).

    A kernel thread of this process goes under the filter, without capabilities, for good; spawn()
    lets it make the children, which are born with all that and need only their Landlock domain.
    For a process that has its final user, groups and namespaces, and has confined itself, if at
    all: what a thread puts on itself later (Landlock, seccomp, affinity) is not on the children,
    and a filter for all threads (SECCOMP_FILTER_FLAG_TSYNC) is refused.  Its RLIMIT_CORE becomes 1,
    and cannot be raised again.  Threads of Python, the process itself and its forks are not
    affected; a fork goes without, and so do spawns into a cgroup.  Once for each network it is used
    with.
    Raises SandboxError with the stage.
    """
    _core.start_spawner(_core.NET_NONE if network is Network.NONE else 0)


def _prepare(plan: SpawnPlan) -> _core.NativePlan:
    env = MINIMAL_ENV if plan.env is None else plan.env
    argv = [os.fsencode(word) for word in plan.argv]
    no_network = Network.NONE in (plan.network, plan.ruleset.network)
    return _core.NativePlan(
        executable=_find_program(argv[0], env),
        argv=argv,
        env=[_env_entry(name, value) for name, value in env.items()],
        stdio=(plan.stdin, plan.stdout, plan.stderr),
        limits=plan.limits.rows(),
        flags=(_core.NET_NONE if no_network else 0) | (_core.PDEATHSIG if plan.pdeathsig else 0),
        umask=plan.umask,
        terminal_fd=plan.terminal_fd,
        cgroup_fd=plan.cgroup_fd,
    )


def _env_entry(name: str | bytes, value: Pathname) -> bytes:
    if not name or ("=" in name if isinstance(name, str) else b"=" in name):
        raise ValueError(f"not a name of an environment variable: {name!r}")
    if isinstance(name, str) and isinstance(value, str):
        return os.fsencode(f"{name}={value}")  # one of these costs as much as all the rest
    return os.fsencode(name) + b"=" + os.fsencode(value)


def _find_program(name: bytes, env: Environment) -> bytes:
    """Where execvp(3) would find `name`; the name itself where it would not look."""
    if not name:
        raise ValueError("the first word of argv is empty")
    if b"\0" in name:
        raise ValueError(f"NUL in path of the program {name!r}")
    if b"/" in name:
        return name
    for directory in _search_path(env).split(b":"):
        path = os.path.join(directory, name)
        if path.startswith(b"/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise SandboxError("exec", errno.ENOENT, path=name, hint="no such program in PATH")


def _search_path(env: Environment) -> bytes:
    for name, value in env.items():
        if name in ("PATH", b"PATH"):
            return os.fsencode(value)
    return os.fsencode(MINIMAL_ENV["PATH"])


def _open_cwd(path: Pathname) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"NUL in path of the working directory {name!r}")
    try:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError("cwd", error.errno or errno.EINVAL, path=name) from error


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _reap(pid: int, pidfd: int) -> Exit:
    """The status of a process that has ended, and was not waited for before."""
    while True:
        try:
            ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError as error:
            why = f"status of process {pid} lost: SIGCHLD is ignored here, or any child waited for"
            raise ChildProcessError(error.errno, why) from error
        if ended is None:  # a tracer in its tree is shown the end first, and may never look
            return _exit_of(_hidden_status(pid))
        if ended.si_code == os.CLD_EXITED:
            return _EXITS[ended.si_status]
        if ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            return Exit(None, ended.si_status, ended.si_code == os.CLD_DUMPED)


def _hidden_status(pid: int) -> int:
    """The wait(2) status that the kernel keeps with a zombie: the last field of proc(5)'s stat."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().split()[-1])


def _exit_of(status: int) -> Exit:
    if os.WIFSIGNALED(status):
        return Exit(None, os.WTERMSIG(status), os.WCOREDUMP(status))
    return _EXITS[os.WEXITSTATUS(status)]

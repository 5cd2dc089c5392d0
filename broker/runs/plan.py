# SPDX-License-Identifier: Apache-2.0
"""From a decided operation to what the kernel is told: executable, roots, resource limits.

Reads the filesystem and nothing else.  The ceiling has been applied before; what is added here is
the baseline and the private scratch directory, which no request can name or widen.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import stat
import time
from collections.abc import Iterator

import sandbox
from broker.model import Access, ExecOp, Limits

SHELL = b"/bin/bash"
SHELL_OPTIONS = (b"--norc", b"--noprofile", b"-c")

Limit = tuple[int, int, int]

MOST_PROCESSES = 1024
RECOUNT_S = 10
MANY_ROOTS = 256
"""More than these are not all compared with the disk before each run, only once a second."""

_ACCESS = (
    (Access.READ, sandbox.Access.READ),
    (Access.WRITE, sandbox.Access.WRITE),
    (Access.EXEC, sandbox.Access.EXEC),
)


class ExecutableNotFoundError(Exception):
    """The command's name leads to no program (`$?` would be 127) or to none that may run (126)."""

    def __init__(self, message: str, shell_code: int) -> None:
        super().__init__(message)
        self.shell_code = shell_code


def argv_of(op: ExecOp) -> tuple[bytes, ...]:
    """The argument vector: as given, or bash reading nothing but the script's text."""
    if op.script is not None:
        return (SHELL, *SHELL_OPTIONS, op.script)
    return op.argv or ()


def find_executable(name: bytes, search_path: bytes, cwd: bytes) -> bytes:
    """The file that `name` means, as execvp(3) searches, but never through a relative PATH entry.

    Raises:
        ExecutableNotFoundError: nothing there, or only something that is not executable.
    """
    if b"/" in name:
        return os.path.join(cwd, name)
    refused = b""
    for directory in search_path.split(b":"):
        if not directory.startswith(b"/"):
            continue
        candidate = directory + b"/" + name
        try:
            mode = os.stat(candidate).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & 0o111:
            return candidate
        refused = refused or candidate
    if refused:
        raise ExecutableNotFoundError(f"{os.fsdecode(refused)!r} is not an executable file", 126)
    raise ExecutableNotFoundError(f"{os.fsdecode(name)!r} is not in the run's PATH", 127)


def roots_of(op: ExecOp, scratch: bytes) -> Iterator[sandbox.Root]:
    """What the ruleset is made of: effective roots, baseline, scratch."""
    writable = [root.path for root in op.roots if Access.WRITE in root.access]
    many = len(op.roots) > MANY_ROOTS
    for root in op.roots:
        access = sandbox.Access(0)
        for ours, theirs in _ACCESS:
            if ours in root.access:
                access |= theirs
        # Canonical since the ceiling was loaded: a link in it now was planted after that.
        stable = many and not any(_is_below(root.path, above) for above in writable)
        yield sandbox.Root(root.path, access, optional=True, follow=False, stable=stable)
    if op.baseline:
        yield from sandbox.baseline()
    yield sandbox.Root(scratch, sandbox.Access.READ | sandbox.Access.WRITE | sandbox.Access.EXEC)


def _is_below(path: bytes, directory: bytes) -> bool:
    """Whether a run that may write `directory` can make `path` name something else."""
    return path.startswith(directory.rstrip(b"/") + b"/")


def resource_limits(limits: Limits) -> list[Limit]:
    """(resource, soft, hard) for setrlimit(2).  Bounds one process each, not their sum."""
    chosen = (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_NPROC, _processes(limits.processes)),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_FSIZE, limits.file_size_bytes),
    )
    wanted = [(which, value, value) for which, value in chosen if value is not None]
    return [_lowered(*limit) for limit in wanted] + [
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_RTPRIO, 0, 0),
    ]


def _processes(allowed: int | None) -> int | None:
    """RLIMIT_NPROC counts all threads of the account, so what a run may have comes on top of those.

    Root is not bound by it.  Anybody else always is: a loop that forks and exits then runs into it,
    and cannot outrun its end.
    """
    if os.geteuid() == 0:
        return allowed
    return _threads_of_account(int(time.monotonic() / RECOUNT_S)) + (allowed or MOST_PROCESSES)


@functools.lru_cache(maxsize=1)
def _threads_of_account(_period: int) -> int:
    """How many threads our user has now, but for what cannot be seen."""
    user = os.geteuid()
    count = 0
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == user:
                count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count


def _lowered(which: int, soft: int, hard: int) -> Limit:
    """Never above the hard limit already in force, which an ordinary user may not raise."""
    ours = resource.getrlimit(which)[1]
    if ours == resource.RLIM_INFINITY:
        return which, soft, hard
    return which, min(soft, ours), min(hard, ours)

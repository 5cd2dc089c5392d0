# SPDX-License-Identifier: Apache-2.0
"""From a decided operation to what the kernel is told: executable, roots, resource limits.

Reads the filesystem and nothing else.  The ceiling has been applied before; what is added here is
the baseline and the private scratch directory, which no request can name or widen.
"""

from __future__ import annotations

import functools
import os
import resource
import stat
from collections.abc import Iterator

import sandbox
from broker.model import Access, ExecOp, Limits

SHELL = b"/bin/bash"
SHELL_OPTIONS = (b"--norc", b"--noprofile", b"-c")

Limit = tuple[int, int, int]

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
    for root in op.roots:
        access = sandbox.Access(0)
        for ours, theirs in _ACCESS:
            if ours in root.access:
                access |= theirs
        # Canonical since the ceiling was loaded: a link in it now was planted after that.
        yield sandbox.Root(root.path, access, optional=True, follow=False)
    if op.baseline:
        yield from sandbox.baseline()
    yield sandbox.Root(scratch, sandbox.Access.READ | sandbox.Access.WRITE | sandbox.Access.EXEC)


@functools.lru_cache(maxsize=16)
def resource_limits(limits: Limits) -> list[Limit]:
    """(resource, soft, hard) for setrlimit(2).  Bounds one process each, not their sum."""
    chosen = (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.processes),
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


def _lowered(which: int, soft: int, hard: int) -> Limit:
    """Never above the hard limit already in force, which an ordinary user may not raise."""
    ours = resource.getrlimit(which)[1]
    if ours == resource.RLIM_INFINITY:
        return which, soft, hard
    return which, min(soft, ours), min(hard, ours)

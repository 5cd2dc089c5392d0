# SPDX-License-Identifier: Apache-2.0
"""The nouns: frozen values that pass between deciders and effects.  No behaviour beyond naming.

Paths are bytes: Linux names need not be UTF-8, and a replaced byte is another file.  A path in a
value here is absolute, without `.`, `..`, `//` or NUL (paths.py checks where it comes in).
"""

from __future__ import annotations

import enum
import signal as signals
from dataclasses import dataclass

Env = tuple[tuple[bytes, bytes], ...]


class Access(enum.Flag):
    """What a root allows.  `WRITE` is always given together with `READ` by the two parsers.

    `EXEC` alone lets programs start.  The kernel can only open a program for reading as well, so a
    run can read what it may execute; the file operations of the broker tell the two apart.
    """

    READ = 1
    WRITE = 2
    EXEC = 4


NO_ACCESS = Access(0)
ALL_ACCESS = Access.READ | Access.WRITE | Access.EXEC


@dataclass(frozen=True, slots=True)
class Root:
    """A directory hierarchy (or one file) and what it allows below it."""

    path: bytes
    access: Access


class Confinement(enum.Enum):
    SANDBOXED = "sandboxed"
    UNCONFINED = "unconfined"


class Network(enum.Enum):
    """`NONE`: no INET sockets at all.  `OPEN`: INET sockets as the user has them; never AF_UNIX."""

    NONE = "none"
    OPEN = "open"


class OnLimit(enum.Enum):
    """What happens when a stream outgrows head + tail: drop the middle, or end the run."""

    DROP = "drop"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who authenticated.  `peer_uid` and `peer_pid` are for the record, never for a decision."""

    name: str
    transport: str  # "unix" or "tcp"
    peer_uid: int | None = None
    peer_pid: int | None = None


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command as asked for.  Exactly one of `argv` and `script`.  None = the server's default.

    `roots` None asks for everything the ceiling has; an empty tuple asks for nothing but the
    baseline.  `env` holds no malformed name or value, but may hold names that are refused.
    """

    argv: tuple[bytes, ...] | None = None
    script: bytes | None = None
    cwd: bytes | None = None
    env: Env = ()
    roots: tuple[Root, ...] | None = None
    timeout_ms: int | None = None
    grace_ms: int | None = None
    stdin: bytes = b""
    head_bytes: int | None = None
    tail_bytes: int | None = None
    on_limit: OnLimit = OnLimit.DROP
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use.  None: not limited by us (what the kernel and the unit say applies).

    `head_bytes` and `tail_bytes` are kept of each of stdout and stderr.
    """

    timeout_ms: int
    grace_ms: int
    head_bytes: int
    tail_bytes: int
    memory_bytes: int | None
    processes: int | None
    open_files: int | None
    cpu_s: int | None
    file_size_bytes: int | None


class Reason(enum.Enum):
    """Why a decision came out as it did.  Values are stable: wire, audit and tests cite them."""

    # floors
    KILL_SWITCH = "kill_switch"
    # the ceiling as a whole denies everything
    CEILING_MISSING = "ceiling_missing"
    CEILING_UNREADABLE = "ceiling_unreadable"
    CEILING_EMPTY = "ceiling_empty"
    CEILING_MALFORMED = "ceiling_malformed"
    CEILING_WRONG_OWNER = "ceiling_wrong_owner"
    CEILING_WRITABLE_BY_OTHERS = "ceiling_writable_by_others"
    CEILING_SYMLINK = "ceiling_symlink"
    # this request
    NO_ROOT_LEFT = "no_root_left"
    CWD_OUTSIDE_CEILING = "cwd_outside_ceiling"


class RunReason(enum.Enum):
    """Why a run ended (`reason` of the exec result)."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"
    CLIENT_GONE = "client_gone"
    SPAWN_FAILED = "spawn_failed"
    SHUTDOWN = "shutdown"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ExecOp:
    """One command as decided, nothing left to default: what a Permit carries.

    `environment` is the complete environment of the child; `stripped` names what was taken out.
    `scratch` is the path of the private directory that TMPDIR points at; the runner makes it.
    """

    argv: tuple[bytes, ...] | None
    script: bytes | None
    cwd: bytes
    environment: Env
    environment_base: str
    stripped: tuple[str, ...]
    roots: tuple[Root, ...]
    baseline: bool
    network: Network
    confinement: Confinement
    limits: Limits
    stdin: bytes
    on_limit: OnLimit
    scratch: bytes | None
    label: str | None
    op_sha256: str


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: exactly one of `code` and `signal` (a number) is set."""

    code: int | None
    signal: int | None
    core: bool = False

    @property
    def signal_name(self) -> str | None:
        """The name without SIG ("KILL"); "SIG42" for a real-time signal; None after an exit."""
        if self.signal is None:
            return None
        try:
            return signals.Signals(self.signal).name.removeprefix("SIG")
        except ValueError:
            return f"SIG{self.signal}"

    @property
    def shell_code(self) -> int:
        """What a shell would put into `$?`: the code, or 128 + signal."""
        if self.code is not None:
            return self.code
        return 128 + (self.signal or 0)


@dataclass(frozen=True, slots=True)
class Captured:
    """A stream kept in part: its first and its last bytes, and how many there were in all.

    While `total_bytes == len(head) + len(tail)` nothing is missing between the two.
    """

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0

    @property
    def truncated(self) -> bool:
        return self.total_bytes > len(self.head) + len(self.tail)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What became of a run.  `started_at` is wall-clock RFC 3339 UTC, `duration_ms` monotonic.

    `spawn_error` is set with `RunReason.SPAWN_FAILED`: a sentence naming stage and errno.
    `spawn_shell_code` is then 126 (not executable) or 127 (not found).
    `skipped_roots` existed in the ceiling but not on disk at the spawn.
    `survivors`: something of the run could not be ended (uninterruptible sleep).
    """

    reason: RunReason
    exit: Exit | None
    timed_out: bool
    stdout: Captured
    stderr: Captured
    drained: bool
    orphans_killed: int
    started_at: str
    duration_ms: int
    spawn_error: str | None = None
    spawn_shell_code: int | None = None
    skipped_roots: tuple[bytes, ...] = ()
    survivors: bool = False

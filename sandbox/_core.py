# SPDX-License-Identifier: Apache-2.0
"""The only importer of the C module: thin calls that take and return Python values.

Owns the life of every C structure and turns `{stage, errno}` into SandboxError.  Leaves meaning
(roots, plans, children) to the modules above.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sandbox._native import ffi, lib
from sandbox.errors import SandboxError, SandboxUnavailable

if TYPE_CHECKING:
    from sandbox import _native

ABI_FLOOR: Final = lib.SANDBOX_ABI_FLOOR
READ: Final = lib.SANDBOX_READ
WRITE: Final = lib.SANDBOX_WRITE
EXEC: Final = lib.SANDBOX_EXEC
DEVICE: Final = lib.SANDBOX_DEVICE
NET_NONE: Final = lib.SANDBOX_NET_NONE
PDEATHSIG: Final = lib.SANDBOX_PDEATHSIG

_PROOF_ROWS_MAX: Final = 512
_ROOTS_PER_BATCH: Final = 128  # descriptors open at a time; RLIMIT_NOFILE is often 1024


class KernelStatus(NamedTuple):
    """What sandbox_status found; `error` is 0 or the errno that says why it is not enough."""

    error: int
    abi: int
    kernel_abi: int
    errata: int
    handled_fs: int
    handled_net: int
    scoped: int


class ProofRow(NamedTuple):
    """One row of the C self-test, see struct sandbox_proof_row."""

    name: str
    claim: str
    expected: int
    confined: int
    control: int
    ok: bool
    skipped: bool


def c_string(data: bytes, what: str) -> _native.Bytes:
    """`data` as the C string it already is: bytes objects end in a NUL of their own.

    Raises ValueError when there is a NUL inside, where C would stop reading.
    """
    if b"\0" in data:
        raise ValueError(f"NUL in {what} {data!r}")
    return ffi.from_buffer("char[]", data)


def stage_name(stage: int) -> str:
    """The name of a stage number (`enum sandbox_stage`); "unknown" for others."""
    return ffi.string(lib.sandbox_stage_name(stage)).decode()


def failed(failure: _native.Failure, path: bytes | None = None) -> SandboxError:
    """The exception for what C reported; `path` says on what, where there is one."""
    kind = SandboxUnavailable if failure.stage == lib.SANDBOX_STAGE_KERNEL else SandboxError
    return kind(stage_name(failure.stage), failure.error, path=path)


def kernel_status(max_abi: int = 0) -> KernelStatus:
    status = ffi.new("struct sandbox_status *")
    error = -lib.sandbox_status(max_abi, status)
    return KernelStatus(
        error,
        status.abi,
        status.kernel_abi,
        status.errata,
        status.handled_fs,
        status.handled_net,
        status.scoped,
    )


def baseline_rows() -> Iterator[tuple[bytes, int]]:
    """(path, access bits) of the system baseline."""
    for number in range(1 << 16):
        row = lib.sandbox_baseline(number)
        if row.path == ffi.NULL:
            return
        yield ffi.string(row.path), row.access


def create_ruleset(flags: int, max_abi: int, weaken_fs: int) -> int:
    """A ruleset without rules, which denies all; the caller owns the descriptor."""
    fd = ffi.new("int *")
    failure = ffi.new("struct sandbox_failure *")
    if lib.sandbox_ruleset(ffi.NULL, 0, flags, max_abi, weaken_fs, fd, failure):
        raise failed(failure)
    return fd[0]


class RootTable:
    """The paths of a ruleset with the inode each of them was opened at."""

    __slots__ = ("_paths", "_roots")

    def __init__(self, roots: Sequence[tuple[bytes, bool, bool]]) -> None:
        """Each root is (path, follow, stable)."""
        self._paths = [c_string(path, "path of a root") for path, _, _ in roots]
        self._roots = ffi.new("struct sandbox_root[]", len(roots))
        for number, (_, follow, stable) in enumerate(roots):
            root = self._roots[number]
            root.path, root.follow, root.stable = self._paths[number], follow, stable

    def __len__(self) -> int:
        return len(self._paths)

    def batches(self) -> Iterator[Batch]:
        """Opens the roots a batch at a time and closes each before the next."""
        for start in range(0, len(self), _ROOTS_PER_BATCH):
            with Batch(self._roots, start, min(_ROOTS_PER_BATCH, len(self) - start)) as batch:
                yield batch

    def stale(self, *, every: bool) -> int | None:
        """The first root whose path names another inode than when it was opened, or None.

        Stable roots are looked at with `every` only.
        """
        number = lib.sandbox_stale_root(self._roots, len(self), every)
        return None if number == len(self) else number


class Batch:
    """Some roots of a table while they are open."""

    __slots__ = ("_roots", "_slice", "start")

    def __init__(self, roots: _native.Roots, start: int, length: int) -> None:
        self.start = start
        self._roots = roots
        self._slice = roots[start : start + length]

    def __enter__(self) -> Batch:
        lib.sandbox_open_roots(self._slice, len(self._slice))
        return self

    def __exit__(self, *exception: object) -> None:
        lib.sandbox_close_roots(self._slice, len(self._slice))

    def __iter__(self) -> Iterator[_native.Root]:
        return iter(self._slice)

    def add_to(self, ruleset_fd: int, handled_fs: int, paths: Sequence[bytes]) -> None:
        """Adds a rule for each root with an access; `paths` names the roots of the whole table."""
        failure = ffi.new("struct sandbox_failure *")
        if lib.sandbox_add_roots(ruleset_fd, self._slice, len(self._slice), handled_fs, failure):
            raise failed(failure, paths[self.start + failure.index])


@functools.cache
def filter_program(flags: int) -> _native.Program:
    """The seccomp program for these flags; assembled once, as it never changes."""
    program = ffi.new("struct sandbox_filter *")
    error = -lib.sandbox_filter(flags, -1, program)
    if error:
        raise SandboxError("filter", error)
    return program


def start_spawner(flags: int) -> None:
    """See sandbox_spawner in csrc/sandbox.h; the program it takes lives as long as the process."""
    failure = ffi.new("struct sandbox_failure *")
    if lib.sandbox_spawner(flags, filter_program(flags), failure):
        raise failed(failure)


class NativePlan:
    """A plan in C's terms: made once, spawned any number of times, from any thread.

    The C side holds addresses only; what they point to lives as long as this object.
    """

    __slots__ = ("_executable", "_kept", "_limits", "_template")

    def __init__(
        self,
        *,
        executable: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        stdio: tuple[int, int, int],
        limits: Sequence[tuple[str, int, int]],
        flags: int,
        umask: int,
        terminal_fd: int,
        cgroup_fd: int,
    ) -> None:
        path = c_string(executable, "path of the program")
        arguments = _Vector(argv, "argument")
        environment = _Vector(env, "environment entry")
        table = _limit_table(limits)
        program = filter_program(flags & NET_NONE)
        plan = ffi.new("struct sandbox_plan *")
        plan.path = path
        plan.argv = arguments.native
        plan.envp = environment.native
        plan.stdio[0], plan.stdio[1], plan.stdio[2] = stdio
        plan.limits = table
        plan.n_limits = len(limits)
        plan.filter = program
        plan.flags = flags
        plan.umask = umask
        plan.terminal_fd = terminal_fd
        plan.cgroup_fd = cgroup_fd
        self._executable = executable
        self._limits = limits
        self._template = plan
        self._kept = (path, arguments, environment, table, program)

    def spawn(self, cwd_fd: int, ruleset_fd: int) -> tuple[int, int]:
        """(pid, pidfd) of the confined child that has exec'ed; the caller owns both."""
        template = self._template
        plan = ffi.new("struct sandbox_plan *", template[0])
        plan.cwd_fd = cwd_fd
        plan.ruleset_fd = ruleset_fd
        child = ffi.new("struct sandbox_child *")
        failure = ffi.new("struct sandbox_failure *")
        if lib.sandbox_spawn(plan, child, failure):
            raise self._failed(failure)
        return child.pid, child.pidfd

    def _failed(self, failure: _native.Failure) -> SandboxError:
        if failure.stage == lib.SANDBOX_STAGE_EXEC:
            return failed(failure, self._executable)
        error = failed(failure)
        if failure.stage == lib.SANDBOX_STAGE_LIMITS and failure.index >= 0:
            name, _, value = self._limits[failure.index]
            error.hint = f"{name}={value}: {error.hint}"
        return error


class _Vector:
    """A NULL-terminated array of C strings, which lie one after the other in one bytes object."""

    __slots__ = ("_strings", "native")

    def __init__(self, items: Sequence[bytes], what: str) -> None:
        joined = b"\0".join(items)
        if joined.count(b"\0") != max(len(items) - 1, 0):
            raise ValueError(f"NUL in {what} {next(item for item in items if 0 in item)!r}")
        self._strings = ffi.from_buffer("char[]", joined)
        ends = itertools.accumulate([len(item) + 1 for item in items], initial=0)
        starts = [self._strings + offset for offset, _ in zip(ends, items, strict=False)]
        self.native = ffi.new("char *[]", [*starts, ffi.NULL])


def _limit_table(limits: Sequence[tuple[str, int, int]]) -> _native.Limits:
    table = ffi.new("struct sandbox_limit[]", len(limits))
    for number, (_, resource, value) in enumerate(limits):
        table[number].resource = resource
        table[number].soft = table[number].hard = value
    return table


def selftest(
    directory: bytes, *, max_abi: int = 0, omit_row: int = -1, weaken_fs: int = 0, keep: int = 0
) -> list[ProofRow]:
    """Runs the C self-test below `directory`; the rest weakens it, for tests of the proof."""
    weakness = ffi.new("struct sandbox_weakness *")
    weakness.omit_row, weakness.weaken_fs, weakness.keep = omit_row, weaken_fs, keep
    rows = ffi.new("struct sandbox_proof_row[]", _PROOF_ROWS_MAX)
    count = ffi.new("size_t *")
    error = -lib.sandbox_selftest(directory, max_abi, weakness, rows, _PROOF_ROWS_MAX, count)
    if error and error == kernel_status(max_abi).error:
        raise SandboxUnavailable("kernel", error)
    if error:
        raise SandboxError("selftest", error, path=directory)
    return [_proof_row(rows[number]) for number in range(count[0])]


def _proof_row(row: _native.ProofRow) -> ProofRow:
    return ProofRow(
        ffi.string(row.name).decode(),
        ffi.string(row.claim).decode(),
        row.expected,
        row.confined,
        row.control,
        bool(row.ok),
        bool(row.skipped),
    )

# SPDX-License-Identifier: Apache-2.0
"""The pool of runners: who runs a permitted command, and what is left over afterwards.

A slot is a runner process, a private scratch directory and, where delegated, a cgroup leaf.  Slots
are made on demand up to `max_runs` and used again, so a run costs one message to a process that is
already there.  Rulesets are cached by their roots and compared with the disk before each use.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import sandbox
from broker.errors import BusyError, NoSpaceError, TooManyRunsError
from broker.model import (
    Captured,
    Confinement,
    ExecOp,
    Exit,
    Network,
    OnLimit,
    Root,
    RunOutcome,
    RunReason,
)
from broker.permit import Permit
from broker.runs import cgroup as cgroups
from broker.runs.plan import (
    MANY_ROOTS,
    ExecutableNotFoundError,
    argv_of,
    find_executable,
    resource_limits,
    roots_of,
)
from broker.runs.runner import Runner, RunnerLostError, orphans
from broker.runs.scratch import Scratch, remove_tree, sweep
from broker.runs.wire import NET_NONE, UNCONFINED, Reply, Request, WireReason

RULESETS_KEPT = 64  # per slot; each holds one descriptor of the kernel
RUNNER_EXIT_S = 3.0
ORPHANS_S = 5.0  # a loop that forks and exits leaves new ones while the last are ended
UMASK = 0o022

_REASONS = {
    WireReason.EXITED: RunReason.EXITED,
    WireReason.SIGNALED: RunReason.SIGNALED,
    WireReason.TIMEOUT: RunReason.TIMEOUT,
    WireReason.OUTPUT_LIMIT: RunReason.OUTPUT_LIMIT,
    WireReason.CANCELLED: RunReason.CANCELLED,
    WireReason.SPAWN_FAILED: RunReason.SPAWN_FAILED,
}


class Cancellation:
    """Lets whoever started a run end it, and says why in the outcome."""

    def __init__(self) -> None:
        self.reason: RunReason | None = None
        self._act: Callable[[], None] | None = None

    def trigger(self, reason: RunReason) -> None:
        """The first reason counts; triggering before the run has started ends it at its start."""
        if self.reason is None:
            self.reason = reason
            if self._act is not None:
                self._act()

    def attach(self, act: Callable[[], None]) -> None:
        self._act = act
        if self.reason is not None:
            act()

    def detach(self) -> None:
        self._act = None


@dataclass(frozen=True, slots=True)
class _Cached:
    roots: tuple[Root, ...]  # kept alive, as their id may be the key
    ruleset: sandbox.Ruleset
    skipped: tuple[bytes, ...]


class _Slot:
    def __init__(self, *, runner: Runner, scratch: Scratch, leaf: cgroups.Leaf | None) -> None:
        self.runner = runner
        self.scratch = scratch
        self.leaf = leaf
        self._rulesets: OrderedDict[object, _Cached] = OrderedDict()

    def ruleset(self, op: ExecOp) -> _Cached:
        """The kernel ruleset for an operation: cached while every root is still the same inode."""
        # All of a large ceiling is one object (clamp); hashing it would cost more than the run.
        roots = op.roots if len(op.roots) <= MANY_ROOTS else id(op.roots)
        key = (roots, op.baseline, op.network)
        cached = self._rulesets.get(key)
        if cached is not None and cached.ruleset.current():
            self._rulesets.move_to_end(key)
            return cached
        if cached is not None:
            self._rulesets.pop(key).ruleset.close()
        cached = self._rulesets[key] = _make_ruleset(op, self.scratch.path)
        if len(self._rulesets) > RULESETS_KEPT:
            self._rulesets.popitem(last=False)[1].ruleset.close()
        return cached

    def renew(self) -> bytes | None:
        """Ready for the next run; returns a path that is to be removed, if any.

        Raises:
            OSError: no scratch directory can be made; the slot is to be dropped.
        """
        if self.scratch.untouched():
            return None
        self.forget_rulesets()
        return self.scratch.replace()

    def forget_rulesets(self) -> None:
        while self._rulesets:
            self._rulesets.popitem()[1].ruleset.close()

    def close(self) -> None:
        self.runner.close()
        self.forget_rulesets()

    def finish(self) -> None:
        """Blocks: reaps the runner, then removes what only it could still have used."""
        self.runner.wait(RUNNER_EXIT_S)
        self.scratch.remove()
        if self.leaf is not None:
            self.leaf.close()


class RunnerPool:
    """Runs permitted commands, at most `max_runs` at a time.  One per process."""

    def __init__(
        self, *, helper: str, scratch_dir: str, max_runs: int, cgroup_dir: str | None, log_fd: int
    ) -> None:
        self._helper = helper
        self._scratch_base = os.fsencode(scratch_dir)
        self._max_runs = max_runs
        self._cgroup_dir = cgroup_dir
        self._log_fd = log_fd
        self._idle: list[_Slot] = []
        self._returning: list[_Slot] = []
        self._cleaning: set[asyncio.Task[None]] = set()
        self._slots: set[_Slot] = set()
        self._runs: set[Cancellation] = set()
        self._dropping: dict[_Slot, asyncio.Task[None]] = {}
        self._made = 0
        self._closed = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.orphans_killed = 0

    @classmethod
    async def open(
        cls,
        *,
        helper: str,
        scratch_dir: str,
        max_runs: int,
        cgroup: Literal["auto", "none"] = "auto",
        log_fd: int = 2,
    ) -> Self:
        """Clears what an earlier broker left, and starts the first runner.

        Raises:
            OSError: no helper, or no scratch directory.
        """
        sweep(os.fsencode(scratch_dir))
        pool = cls(
            helper=helper,
            scratch_dir=scratch_dir,
            max_runs=max_runs,
            cgroup_dir=cgroups.delegated_directory() if cgroup == "auto" else None,
            log_fd=log_fd,
        )
        if pool._cgroup_dir is not None:
            cgroups.sweep(pool._cgroup_dir)
        pool._idle.append(await pool._make_slot())
        return pool

    @property
    def active(self) -> int:
        """Runs that are on now."""
        return len(self._runs)

    @property
    def tree_kill(self) -> Literal["cgroup", "subreaper"]:
        """How the end of a run reaches all of its processes."""
        return "cgroup" if self._cgroup_dir is not None else "subreaper"

    async def run(
        self, permit: Permit[ExecOp], cancellation: Cancellation | None = None
    ) -> RunOutcome:
        """Runs the permitted command to its end.

        Raises:
            TooManyRunsError: nothing ran, all slots are taken.
            NoSpaceError, BusyError: nothing ran, no runner could be made.
        """
        cancellation = cancellation or Cancellation()
        self._admit(cancellation)
        try:
            self._settle()
            slot = self._take_idle() or await self._new_slot()
            return await self._run_and_keep(slot, permit.op, cancellation)
        finally:
            self._release(cancellation)

    async def _run_and_keep(
        self, slot: _Slot, op: ExecOp, cancellation: Cancellation
    ) -> RunOutcome:
        try:
            outcome = await self._run_in(slot, op, cancellation)
        except BaseException:
            self._drop(slot)
            raise
        if outcome.reason is RunReason.LOST or not slot.runner.reusable:
            self._drop(slot)
        else:  # after the answer, which need not wait for it
            self._returning.append(slot)
            asyncio.get_running_loop().call_soon(self._settle)
        return outcome

    async def _run_in(self, slot: _Slot, op: ExecOp, cancellation: Cancellation) -> RunOutcome:
        started = time.time_ns()
        clock = time.monotonic_ns()
        try:
            request, descriptors, skipped = _prepare(slot, op)
        except ExecutableNotFoundError as error:
            return _not_spawned(str(error), error.shell_code, started)
        except OSError as error:
            return _not_spawned(str(error), 126, started)
        try:
            waiting = await slot.runner.request(request.encode(), descriptors)
            cancellation.attach(slot.runner.cancel)
            reply = await waiting
        except RunnerLostError as error:
            return _lost(str(error), started, time.monotonic_ns() - clock)
        finally:
            os.close(descriptors[0])
        if reply.left_cgroup:
            slot.runner.reusable = False
        return _outcome(reply, request, cancellation.reason, started, skipped)

    # ---- slots ----

    def _take_idle(self) -> _Slot | None:
        while self._idle:
            slot = self._idle.pop()
            if not slot.runner.lost:
                return slot
            self._drop(slot)  # killed from outside while it waited: nothing was asked of it
        return None

    async def _new_slot(self) -> _Slot:
        try:
            return await self._make_slot()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpaceError("scratch directory") from error
            raise BusyError("runner") from error

    async def _make_slot(self) -> _Slot:
        self._made += 1
        with contextlib.ExitStack() as undo:
            scratch = Scratch(self._scratch_base)
            undo.callback(scratch.remove)
            leaf = self._make_leaf()
            if leaf is not None:
                undo.callback(leaf.close)
            runner = Runner(self._helper, self._log_fd)
            undo.pop_all()
        slot = _Slot(runner=runner, scratch=scratch, leaf=leaf)
        self._slots.add(slot)
        try:
            if leaf is not None:
                leaf.adopt(runner.pid)
            await runner.connect()
        except BaseException:
            self._drop(slot)
            raise
        return slot

    def _make_leaf(self) -> cgroups.Leaf | None:
        if self._cgroup_dir is None:
            return None
        name = f"{cgroups.LEAF_PREFIX}{os.getpid()}-{self._made}"
        return cgroups.Leaf(f"{self._cgroup_dir}/{name}")

    def _admit(self, cancellation: Cancellation) -> None:
        if self._closed or len(self._runs) >= self._max_runs:
            raise TooManyRunsError(limit=self._max_runs)
        self._runs.add(cancellation)
        self._quiet.clear()

    def _release(self, cancellation: Cancellation) -> None:
        cancellation.detach()
        self._runs.discard(cancellation)
        if not self._runs:
            self._quiet.set()

    def _settle(self) -> None:
        """Makes slots whose run has ended ready for the next."""
        while self._returning:
            slot = self._returning.pop()
            if slot not in self._dropping:
                self._give_back(slot)

    def _give_back(self, slot: _Slot) -> None:
        try:
            rubbish = slot.renew()
        except OSError:
            self._drop(slot)
            return
        if rubbish is not None:  # may be large: not on the loop
            self._in_thread(remove_tree, rubbish)
        if self._closed:
            self._drop(slot)
        else:
            self._idle.append(slot)

    def _in_thread(self, work: Callable[[bytes], None], argument: bytes) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(work, argument))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    def _drop(self, slot: _Slot) -> None:
        """Ends a runner and everything below it; the waiting is done beside the loop."""
        if slot in self._dropping:
            return
        slot.close()
        self._dropping[slot] = asyncio.get_running_loop().create_task(self._finish(slot))

    async def _finish(self, slot: _Slot) -> None:
        await asyncio.to_thread(slot.finish)
        self._slots.discard(slot)
        del self._dropping[slot]
        await asyncio.to_thread(self._kill_orphans)

    def _kill_orphans(self) -> None:
        """Ends what a lost runner left to this process, which is a subreaper.  Blocks."""
        deadline = time.monotonic() + ORPHANS_S
        while time.monotonic() < deadline:
            found = orphans({slot.runner.pid for slot in tuple(self._slots)})
            if not found:
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # an unreaped child of ours: the number is its own
            for pid in found:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            self.orphans_killed += len(found)

    # ---- the end ----

    async def drain(self, grace_s: float) -> None:
        """Waits for the runs that are on, then ends the rest (`shutdown`)."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), grace_s)
        for cancellation in tuple(self._runs):
            cancellation.trigger(RunReason.SHUTDOWN)

    async def close(self) -> None:
        """Ends every runner and waits for it.  The pool is not used again."""
        self._closed = True
        for slot in tuple(self._slots):
            self._drop(slot)
        while self._dropping or self._cleaning:
            await asyncio.gather(*self._dropping.values(), *self._cleaning)


def _prepare(slot: _Slot, op: ExecOp) -> tuple[Request, list[int], tuple[bytes, ...]]:
    """The request, the descriptors that go with it (the first is ours to close), skipped roots."""
    argv = argv_of(op)
    environment = dict(op.environment)
    cwd = slot.scratch.path if op.cwd == op.scratch else op.cwd
    confined = op.confinement is Confinement.SANDBOXED
    cached = slot.ruleset(op) if confined else None
    flags = 0 if confined else UNCONFINED
    if op.network is Network.NONE:
        flags |= NET_NONE
    request = Request(
        path=find_executable(argv[0], environment.get(b"PATH", b""), cwd),
        argv=argv,
        env=_environment(op, slot.scratch.path),
        limits=resource_limits(op.limits),
        stdin=op.stdin,
        flags=flags,
        umask=UMASK,
        head_bytes=op.limits.head_bytes,
        tail_bytes=op.limits.tail_bytes,
        timeout_ms=op.limits.timeout_ms,
        grace_ms=op.limits.grace_ms,
        kill_on_limit=op.on_limit is OnLimit.KILL,
        has_cgroup=slot.leaf is not None,
    )
    descriptors = [_open_directory(cwd)]
    if cached is not None:
        descriptors.append(cached.ruleset.fd)
    if slot.leaf is not None:
        descriptors.append(slot.leaf.fd)
    return request, descriptors, cached.skipped if cached is not None else ()


def _open_directory(path: bytes) -> int:
    """The directory that was decided about, not what an earlier run put in its place since."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.readlink(b"/proc/self/fd/%d" % fd) == path:
        return fd
    os.close(fd)
    raise OSError(errno.ESTALE, "the working directory was replaced", os.fsdecode(path))


def _make_ruleset(op: ExecOp, scratch: bytes) -> _Cached:
    network = sandbox.Network.NONE if op.network is Network.NONE else sandbox.Network.OPEN
    ruleset = sandbox.Ruleset(tuple(roots_of(op, scratch)), network=network)
    missing = {root.name for root in ruleset.skipped}
    # What the baseline lacks on this machine is no news.
    return _Cached(op.roots, ruleset, tuple(root.path for root in op.roots if root.path in missing))


def _environment(op: ExecOp, scratch: bytes) -> list[bytes]:
    """NAME=value; a value that names the operation's scratch directory gets the slot's."""
    return [
        name + b"=" + (scratch if value == op.scratch else value) for name, value in op.environment
    ]


def _not_spawned(message: str, shell_code: int, started_ns: int) -> RunOutcome:
    return RunOutcome(
        reason=RunReason.SPAWN_FAILED, exit=None, timed_out=False, stdout=Captured(),
        stderr=Captured(), drained=True, orphans_killed=0, started_at=_timestamp(started_ns),
        duration_ms=0, spawn_error=message, spawn_shell_code=shell_code,
    )  # fmt: skip


def _lost(message: str, started_ns: int, duration_ns: int) -> RunOutcome:
    return RunOutcome(
        reason=RunReason.LOST, exit=None, timed_out=False, stdout=Captured(), stderr=Captured(),
        drained=False, orphans_killed=0, started_at=_timestamp(started_ns),
        duration_ms=duration_ns // 1_000_000, spawn_error=message,
    )  # fmt: skip


def _outcome(
    reply: Reply,
    request: Request,
    cancelled: RunReason | None,
    started_ns: int,
    skipped: tuple[bytes, ...],
) -> RunOutcome:
    reason = _REASONS[reply.reason]
    if reason is RunReason.SPAWN_FAILED:
        return _not_spawned(_spawn_error(reply, request), _shell_code(reply), started_ns)
    if reason is RunReason.CANCELLED and cancelled is not None:
        reason = cancelled
    return RunOutcome(
        reason=reason,
        exit=_exit(reply.wait_status) if reply.exit_known else None,
        timed_out=reason is RunReason.TIMEOUT,
        stdout=reply.stdout,
        stderr=reply.stderr,
        drained=reply.drained,
        orphans_killed=reply.orphans_killed,
        started_at=_timestamp(started_ns),
        duration_ms=reply.duration_ns // 1_000_000,
        skipped_roots=skipped,
        survivors=reply.survivors,
    )


def _exit(status: int) -> Exit:
    if os.WIFSIGNALED(status):
        return Exit(None, os.WTERMSIG(status), os.WCOREDUMP(status))
    return Exit(os.WEXITSTATUS(status), None)


def _shell_code(reply: Reply) -> int:
    return 127 if reply.error in (errno.ENOENT, errno.ENOTDIR) else 126


def _spawn_error(reply: Reply, request: Request) -> str:
    stage = sandbox.stage_name(reply.stage)
    path = request.path if stage == "exec" else None
    return str(sandbox.SandboxError(stage, reply.error, path=path))


def _timestamp(ns: int) -> str:
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest:09d}Z"


@functools.lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))

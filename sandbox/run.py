# SPDX-License-Identifier: Apache-2.0
"""Running one confined command to its end with its output captured."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from sandbox.landlock import Network
from sandbox.ruleset import Pathname, Root, Ruleset
from sandbox.spawn import DEVNULL, NO_LIMITS, Child, Environment, Exit, Limits, SpawnPlan, spawn

#: Most that run() keeps of each output stream unless told otherwise.
MAX_OUTPUT_BYTES: Final = 64 << 20

_CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended and what it wrote.

    `timed_out`: the deadline ended it, the output is what came until then.  `truncated`: one stream
    or both had more than was kept.
    """

    exit: Exit
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False


def run(
    argv: Sequence[Pathname],
    *,
    roots: Iterable[Root] | Ruleset,
    cwd: Pathname | None = None,
    env: Environment | None = None,
    input: bytes = b"",
    timeout_s: float | None = None,
    network: Network = Network.OPEN,
    limits: Limits = NO_LIMITS,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> Completed:
    """Runs one confined command to its end and returns its exit and output.

    When it ends, or `timeout_s` is over, its process group is killed and what the pipes hold by
    then is all the output: a background process that keeps them open delays nothing.  Each stream
    is kept up to `max_output_bytes`; the rest is read and dropped.  A Ruleset given for `roots` is
    borrowed and may serve any number of commands.  Raises what Ruleset, SpawnPlan and spawn() do.
    """
    with contextlib.ExitStack() as owned:
        if not isinstance(roots, Ruleset):
            roots = owned.enter_context(Ruleset(roots, network=network))
        feed = owned.enter_context(_Feed(input)) if input else None
        out = owned.enter_context(_Capture(max_output_bytes))
        err = owned.enter_context(_Capture(max_output_bytes))
        plan = SpawnPlan(
            argv,
            ruleset=roots,
            cwd=cwd,
            env=env,
            stdin=feed.child_end if feed else DEVNULL,
            stdout=out.child_end,
            stderr=err.child_end,
            network=network,
            limits=limits,
        )
        with spawn(plan) as child:
            timed_out = not _pump(child, feed, (out, err), timeout_s)
            child.signal_group(signal.SIGKILL)
            ended = child.wait()
        out.drain()
        err.drain()
        truncated = out.truncated or err.truncated
        return Completed(ended, bytes(out.kept), bytes(err.kept), timed_out, truncated)


def _pump(
    child: Child, feed: _Feed | None, captures: Iterable[_Capture], timeout_s: float | None
) -> bool:
    """Moves input and output until the process ends; False when the time is over first."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    moves = {capture.fd: capture.move for capture in captures}
    poll = select.poll()
    poll.register(child.pidfd, select.POLLIN)
    for fd in moves:
        poll.register(fd, select.POLLIN)
    if feed:
        moves[feed.fd] = feed.move
        poll.register(feed.fd, select.POLLOUT)
    for pipe in (feed, *captures):
        if pipe:
            pipe.release_child_end()
    while True:
        left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
        if left_ms is not None and left_ms <= 0:
            return False
        for fd, _ in poll.poll(left_ms):
            if fd == child.pidfd:
                return True
            if not moves[fd]():
                poll.unregister(fd)
                if feed and fd == feed.fd:
                    feed.close()  # the child reads end of file


class _Pipe:
    """A pipe between us and the child.  Owns both ends until the child's is released."""

    def __init__(self, *, child_reads: bool) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self.fd, self.child_end = (writer, reader) if child_reads else (reader, writer)

    def release_child_end(self) -> None:
        child_end, self.child_end = self.child_end, -1
        if child_end >= 0:
            os.close(child_end)

    def close(self) -> None:
        self.release_child_end()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Feed(_Pipe):
    """The child's stdin and what is still to be written to it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(child_reads=True)
        os.set_blocking(self.fd, False)
        self._left = memoryview(data)

    def move(self) -> bool:
        """Writes what fits; False, and end of file for the child, when there is no more to do."""
        try:
            written = os.write(self.fd, self._left[:_CHUNK_BYTES])
        except BlockingIOError:
            return True
        except BrokenPipeError:  # the command does not want the rest
            written = len(self._left)
        self._left = self._left[written:]
        return len(self._left) > 0


class _Capture(_Pipe):
    """One output stream and what is kept of it."""

    def __init__(self, limit: int) -> None:
        super().__init__(child_reads=False)
        self._limit = limit
        self.kept = bytearray()
        self.truncated = False

    def move(self) -> bool:
        """Reads once, which must not block; False at the end of the stream."""
        return self._take(_CHUNK_BYTES) > 0

    def drain(self) -> None:
        """Takes what is in the pipe now, and no more: a survivor may go on writing."""
        left = _bytes_in_pipe(self.fd)
        while left > 0:
            left -= self._take(min(left, _CHUNK_BYTES))

    def _take(self, size: int) -> int:
        chunk = os.read(self.fd, size)
        room = self._limit - len(self.kept)
        self.kept += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room
        return len(chunk)


def _bytes_in_pipe(fd: int) -> int:
    answer = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder)

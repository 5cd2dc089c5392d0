# SPDX-License-Identifier: Apache-2.0
"""One runner process (`confine --runner`), from the broker's side of its socket.

A runner runs one command at a time and is used again while it answers well.  It is dropped, with
everything below it, by closing the socket: end of file makes it kill its tree and exit.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import subprocess

from broker.runs.wire import CANCEL, REPLY, Reply, ReplyError, decode_reply, reply_bytes


class RunnerLostError(Exception):
    """The runner ended or answered nonsense; what its command did is not known."""


class _Replies(asyncio.Protocol):
    """Collects one reply at a time from the runner's socket."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._wanted = REPLY.size
        self._waiter: asyncio.Future[Reply] | None = None
        self.lost = False

    def expect(self) -> asyncio.Future[Reply]:
        """The next reply.  To be called before its request is sent."""
        self._waiter = asyncio.get_running_loop().create_future()
        if self.lost:
            self._fail("it ended while idle")
        return self._waiter

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._wanted == REPLY.size and len(self._data) >= REPLY.size:
            self._wanted += reply_bytes(self._data)
        if len(self._data) >= self._wanted:
            self._deliver()

    def _deliver(self) -> None:
        reply_data = bytes(self._data)
        self._data.clear()
        self._wanted = REPLY.size
        try:
            reply = decode_reply(reply_data)
        except ReplyError as error:
            self._fail(str(error))
            return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._fail("it ended before its reply" if exc is None else str(exc))

    def _fail(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(RunnerLostError(f"the runner is lost: {why}"))


class Runner:
    """Owns the process and the socket.  Starting it is immediate; `connect` comes before use."""

    def __init__(self, helper: str, log_fd: int) -> None:
        """Starts `helper --runner`.

        Raises:
            OSError: there is no such helper, or it cannot be executed.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [helper, "--runner", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log_fd,
                    env={}, cwd="/", pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours
        self._sending = ours.dup()  # a transport owns `ours`; descriptors go out by sendmsg
        self._replies = _Replies()
        self._transport: asyncio.Transport | None = None
        self.pid = self._process.pid
        #: False once a command was sent: it may have crossed the reply and be read as a request.
        self.reusable = True

    @property
    def lost(self) -> bool:
        """Whether its end of the socket is known to be closed."""
        return self._replies.lost

    async def connect(self) -> None:
        """Attaches the socket to the running loop."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self._replies, sock=self._socket)

    async def request(self, data: bytes, descriptors: list[int]) -> asyncio.Future[Reply]:
        """Hands one request over; the future is its reply.

        Raises:
            RunnerLostError: the runner is to be dropped.  So does the future.
        """
        reply = self._replies.expect()
        try:
            sent = self._sending.sendmsg([data], [_rights(descriptors)])
            if sent < len(data):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(self._sending, memoryview(data)[sent:])
        except OSError as error:  # an idle socket is empty, so even EAGAIN means a broken runner
            reply.cancel()
            raise RunnerLostError(f"the runner is lost: {error}") from error
        return reply

    def cancel(self) -> None:
        """TERM to the whole tree, KILL after the grace."""
        self._command(CANCEL)

    def _command(self, command: bytes) -> None:
        self.reusable = False
        # A runner that cannot be told is about to be found lost by whoever waits for its reply.
        with contextlib.suppress(OSError):
            self._sending.send(command)

    def close(self) -> None:
        """Tells the runner to kill what it runs and go.  Does not wait."""
        with contextlib.suppress(OSError):  # both descriptors share one connection
            self._sending.shutdown(socket.SHUT_RDWR)
        self._sending.close()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()

    def wait(self, timeout_s: float) -> bool:
        """Reaps the process, by force if need be.  Blocks; for threads.  False when forced."""
        try:
            self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False


def _rights(descriptors: list[int]) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors)


def orphans(runners: set[int]) -> list[int]:
    """Direct children of this process that came to it from a lost runner.

    A run always begins with setsid(2), and nothing can enter an existing session, so what is in
    this process's own session is a helper of its own; all else but the runners is an orphan.
    """
    own_session = os.getsid(0)
    return [
        pid
        for pid in _children()
        if pid not in runners and _session(pid) not in (own_session, None)
    ]


def _children() -> list[int]:
    """From every thread's list (proc(5))."""
    pids: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as children:
            pids += map(int, children.read().split())
    return pids


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None

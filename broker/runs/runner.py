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

from broker.runs.wire import CANCEL, KILL, REPLY, Reply, ReplyError, decode_reply, reply_bytes

RECEIVE_BYTES = 65536


class RunnerLostError(Exception):
    """The runner ended or answered nonsense; what its command did is not known."""


class Runner:
    """Owns the process and the socket."""

    def __init__(self, helper: str, log_fd: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [helper, "--runner", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log_fd,
                env={}, cwd="/", pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        ours.setblocking(False)
        self._socket = ours
        self.pid = self._process.pid
        #: False once a command was sent: it may have crossed the reply and be read as a request.
        self.reusable = True

    async def send(self, data: bytes, descriptors: list[int]) -> None:
        """Hands one request over.

        Raises:
            RunnerLostError: the runner is to be dropped.
        """
        try:
            sent = self._socket.sendmsg([data], [_rights(descriptors)])
            if sent < len(data):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(self._socket, memoryview(data)[sent:])
        except OSError as error:  # an idle socket is empty, so even EAGAIN means a broken runner
            raise RunnerLostError(f"the runner is gone: {error}") from error

    async def receive(self) -> Reply:
        """Waits for the reply to the request that was sent.

        Raises:
            RunnerLostError: the runner is to be dropped.
        """
        try:
            return await self._reply(asyncio.get_running_loop())
        except (OSError, ReplyError) as error:
            raise RunnerLostError(f"the runner is gone: {error}") from error

    async def _reply(self, loop: asyncio.AbstractEventLoop) -> Reply:
        data = await loop.sock_recv(self._socket, RECEIVE_BYTES)
        parts = [data]
        have, want = len(data), REPLY.size
        header_seen = False
        while data:
            if not header_seen and have >= REPLY.size:
                header_seen = True
                parts = [b"".join(parts)]
                want += reply_bytes(parts[0])
            if have >= want and header_seen:
                return decode_reply(b"".join(parts))
            data = await loop.sock_recv(self._socket, max(RECEIVE_BYTES, want - have))
            parts.append(data)
            have += len(data)
        raise RunnerLostError("the runner ended before its reply")

    def cancel(self) -> None:
        """TERM to the whole tree, KILL after the grace."""
        self._command(CANCEL)

    def kill(self) -> None:
        self._command(KILL)

    def _command(self, command: bytes) -> None:
        self.reusable = False
        # A runner that cannot be told is about to be found lost by whoever waits for its reply.
        with contextlib.suppress(OSError):
            self._socket.send(command)

    def close(self) -> None:
        """Tells the runner to kill what it runs and go.  Does not wait."""
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


def children_of_this_process() -> list[int]:
    """Process ids of all direct children, from every thread's list (proc(5), CONFIG_PROC_CHILDREN)."""
    pids: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as children:
            pids += map(int, children.read().split())
    return pids

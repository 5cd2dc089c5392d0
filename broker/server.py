# SPDX-License-Identifier: Apache-2.0
"""The daemon: what is proved and opened before it serves, and in which order it stops.

Nothing is served before every floor held once.  Each refusal to start is a StartupError with the
fix and an exit status of its own, and leaves nothing behind but the lock file, which stays on
purpose: removing a lock that another process may just have opened would let two in.

Stopping: no new runs and no new connections by path, runs get `drain_ms`, then TERM, grace, KILL;
answers are written; only then the runners and the log are closed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import pwd
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack

import uvloop
from uvicorn.server import ServerState

from broker import __version__, listen, process, reach
from broker.app import DEFAULT_HEADERS, App, AuditIds
from broker.audit import Audit
from broker.ceiling import Ceiling
from broker.config import Settings, load_ceiling, load_secrets
from broker.errors import BrokerError
from broker.gate import Account, Gate
from broker.model import Limits, RunReason
from broker.readiness import Proof, Readiness, Selftest, helper_path
from broker.runs.pool import RunnerPool
from broker.service import Kernel, Service
from broker.startup import ReachUnknownError, SecretRefusedError
from broker.transport import HttpLimits, LimitedHttp, http_config

MAX_RUNS = 1024
"""What the pool would take; the ceiling's `max_runs` is checked by the gate, and may change."""

WRITE_ANSWERS_S = 15.0
"""After the drain: the longest grace of a run, and time to write its answer."""

REACH_LIMITS = Limits(
    timeout_ms=10_000, grace_ms=100, head_bytes=reach.MAX_REPORT_BYTES, tail_bytes=0,
    memory_bytes=None, processes=None, open_files=None, cpu_s=None, file_size_bytes=None,
)  # fmt: skip

log = logging.getLogger("broker")


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT.  Raises StartupError if it must not serve."""
    process.harden()
    notify_socket = process.take_notify_socket()
    if settings.tcp is not None:
        listen.parse_loopback(settings.tcp)
    selftest = Selftest(helper_path())
    with ExitStack() as opened:
        opened.callback(selftest.abandon)
        secrets = load_secrets(settings)
        directory_fd, name = listen.open_socket_directory(settings.socket)
        opened.callback(os.close, directory_fd)
        opened.callback(os.close, listen.lock(directory_fd, os.path.dirname(settings.socket)))
        listen.refuse_occupied(directory_fd, name)
        audit = Audit.open(settings.audit_dir)
        opened.callback(audit.close)
        proof = selftest.finish()
        daemon = Daemon(settings, audit, proof, load_ceiling(settings), notify_socket)
        uvloop.run(daemon.serve(directory_fd, name, secrets))


class Daemon:
    """One broker's parts, from READY to the end."""

    def __init__(
        self,
        settings: Settings,
        audit: Audit,
        proof: Proof,
        ceiling: Ceiling,
        notify_socket: str | None,
    ) -> None:
        self._settings = settings
        self._audit = audit
        self._proof = proof
        self._first_ceiling = ceiling
        self._notify = functools.partial(process.sd_notify, notify_socket)
        self._ids = AuditIds()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._state = ServerState()
        self._state.default_headers = DEFAULT_HEADERS

    async def serve(self, directory_fd: int, name: str, secrets: Secrets) -> None:
        pool = await RunnerPool.open(
            helper=self._proof.helper,
            scratch_dir=str(self._settings.scratch_dir),
            max_runs=MAX_RUNS,
            cgroup=self._settings.cgroup,
        )
        try:
            self._assemble(pool, secrets)
            await self._check_reach(pool)
            with ExitStack() as listening:
                await self._listen(listening, directory_fd, name)
                await self._run()
        finally:
            await pool.close()

# SPDX-License-Identifier: Apache-2.0
"""The daemon: what is proved and opened before it serves, and in which order it stops.

Nothing is served before every floor held once.  Each refusal to start is a StartupError with the
fix and an exit status of its own, and leaves nothing behind but the lock file, which stays on
purpose: removing a lock that another process may just have opened would let two in.

Stopping: no new runs, no new connections by path; runs get `drain_ms`, then TERM, grace, KILL;
answers are written; only then the runners and the log are closed.  The broker's death ends every
run as well: a runner kills all it started when its socket to the broker closes.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import pwd
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import uvloop

from broker import __version__, listen, process, reach, startup
from broker.app import DEFAULT_HEADERS, App, AuditIds, Verifier
from broker.audit import Audit
from broker.ceiling import Ceiling
from broker.chain import Field
from broker.config import Settings, load_ceiling, load_secrets
from broker.directories import open_own
from broker.errors import AuditUnavailableError
from broker.gate import Account, Gate, name_fields, root_fields
from broker.model import Confinement, Limits, RunReason
from broker.operations import OPERATIONS
from broker.readiness import Proof, Readiness, Selftest, helper_path
from broker.runs.pool import RunnerPool
from broker.service import Kernel, Service
from broker.startup import ReachUnknownError, SettingsRefusedError, StartupError
from broker.transport import HttpLimits, HttpServer

MAX_RUNS = 1024
"""What the pool would take; the ceiling's `max_runs` is for the gate, and may change while on."""

ANSWER_S = 15.0
"""After the drain: the longest grace of a run, and time to write its answer."""

FLUSH_S = 2.0
"""For a client to take the end of its answer."""

MEND_AGAIN_S = 2.0
"""At least between two attempts to open a log that failed."""

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
    with ExitStack() as opened:
        secrets = load_secrets(settings)
        directory_fd, name = listen.open_socket_directory(settings.socket)
        opened.callback(os.close, directory_fd)
        opened.callback(os.close, listen.lock(directory_fd, os.path.dirname(settings.socket)))
        listen.refuse_occupied(directory_fd, name)
        restore_state(settings.state_dir)
        make_scratch(settings.scratch_dir)
        selftest = opened.enter_context(Selftest(helper_path()))
        ceiling = load_ceiling(settings)
        proof = selftest.finish()
        audit = Audit.open(settings.audit_dir)
        opened.callback(audit.close)
        daemon = Daemon(settings, audit, proof, ceiling, secrets)
        daemon.notify = functools.partial(process.sd_notify, notify_socket)
        try:
            uvloop.run(daemon.serve(directory_fd, name))
        except AuditUnavailableError as error:
            raise startup.AuditUnavailableError(
                f"cannot write audit log {str(settings.audit_dir)!r}: {error.__cause__}",
                "make space on its disk",
            ) from error


class Daemon:
    """One broker, from its proofs to its end, on one event loop."""

    def __init__(
        self, settings: Settings, audit: Audit, proof: Proof, ceiling: Ceiling, secrets: Verifier
    ) -> None:
        self.notify = functools.partial(process.sd_notify, None)
        self._settings = settings
        self._audit = audit
        self._proof = proof
        self._ceiling = ceiling
        self._secrets = secrets
        self._ids = AuditIds()
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mend_at = 0.0

    async def serve(self, directory_fd: int, name: str) -> None:
        """Proves, listens, serves, drains."""
        async with self._pool() as pool:
            self._assemble(pool)
            await self._check_reach(pool)
            with ExitStack() as open_now:
                listener = await self._listen(open_now, directory_fd, name)
                await self._serve_until_stopped(pool, listener)

    @asynccontextmanager
    async def _pool(self) -> AsyncIterator[RunnerPool]:
        pool = await RunnerPool.open(
            helper=self._proof.helper,
            scratch_dir=str(self._settings.scratch_dir),
            max_runs=MAX_RUNS,
            cgroup=self._settings.cgroup,
        )
        try:
            yield pool
        finally:
            await pool.close()

    def _assemble(self, pool: RunnerPool) -> None:
        self._readiness = Readiness(
            proof=self._proof,
            audit=self._audit,
            kill_switch=str(self._settings.kill_switch),
            ceiling=lambda: self._gate.ceiling,
            log_failed=self._mend_log,
        )
        self._service = Service(
            audit=self._audit,
            pool=pool,
            kernel=Kernel(self._proof.abi, self._proof.errata),
            floors=self._readiness,
            openapi=openapi_json,
        )
        self._gate = self._service.gate = Gate(
            audit=self._audit,
            ceiling=self._ceiling,
            account=own_account(),
            inherited=os.environb,
            objection=self._readiness.objection,
            places=self._service.places,
        )
        self._app = App(
            service=self._service,
            audit=self._audit,
            secrets=self._secrets,
            next_audit_id=self._ids.next,
        )
        self._readiness.refresh()

    async def _check_reach(self, pool: RunnerPool) -> None:
        """The proof that no run can talk to what controls this host, by the path of every run."""

        async def run_confined(argv: tuple[bytes, ...], stdin: bytes) -> bytes:
            admitted = await self._gate.authorise_self_check(
                self._ids.next(), argv, stdin, REACH_LIMITS
            )
            outcome = await pool.run(admitted.permit)
            ended = {"state": "ended", "reason": outcome.reason.value}
            self._audit.append_lazy("selfcheck.outcome", ended, ref=admitted.intent_seq)
            if outcome.exit is None or outcome.exit.code != 0:
                raise ReachUnknownError(
                    f"the confined check ended by {outcome.reason.value}: "
                    f"{outcome.spawn_error or outcome.stderr.head.decode('utf-8', 'replace')}",
                    "run `confine --selftest` by hand",
                )
            return outcome.stdout.head

        home = os.fsdecode(own_account().home)
        await reach.check(
            helper=self._proof.helper,
            directory=os.path.dirname(os.path.realpath(self._settings.socket)),
            endpoints=reach.endpoints_here(os.environ, home),
            run_confined=run_confined,
        )

    # ---- serving ----

    async def _listen(
        self, open_now: ExitStack, directory_fd: int, name: str
    ) -> listen.UnixListener:
        """Both sockets answer when this returns."""
        self._http = HttpServer(
            self._app,
            self._ids.next,
            DEFAULT_HEADERS,
            HttpLimits(connections=self._settings.max_connections),
            public=frozenset(row.path.encode() for row in OPERATIONS if not row.authenticated),
        )
        listener = listen.listen_unix(directory_fd, name, self._settings.socket_group)
        open_now.callback(listener.unlink)
        sockets = [listener.sock]
        if self._settings.tcp is not None:
            sockets.append(listen.listen_tcp(self._settings.tcp))
        for sock in sockets:
            server = await asyncio.get_running_loop().create_server(
                self._http.connection, sock=sock
            )
            open_now.callback(server.close)
        return listener

    async def _serve_until_stopped(self, pool: RunnerPool, listener: listen.UnixListener) -> None:
        started = {"version": __version__, "pid": os.getpid(), **ceiling_fields(self._gate.ceiling)}
        await self._audit.append("broker.started", started)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        with self._kill_switch_watched(loop):
            log_ceiling(self._gate.ceiling)
            gc.collect()
            gc.freeze()  # what was made until now lives as long as we do; never look through it
            self.notify("READY=1")
            log.info("serving at %s", self._settings.socket)
            await self._stopping.wait()
            await self._drain(pool, listener)

    def _asked_to_stop(self) -> None:
        if self._stopping.is_set():
            self._service.end_all(RunReason.SHUTDOWN)  # asked twice: do not wait for the runs
        self._stopping.set()

    async def _drain(self, pool: RunnerPool, listener: listen.UnixListener) -> None:
        self.notify("STOPPING=1")
        log.info("stopping, %d runs are on", pool.active)
        self._readiness.draining = True
        self._readiness.refresh()
        listener.unlink()
        await pool.drain(self._settings.drain_ms / 1000)
        if self._http.tasks:
            await asyncio.wait(set(self._http.tasks), timeout=ANSWER_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._http.close_connections(), FLUSH_S)
        self._audit.append_lazy("broker.stopped", {"pid": os.getpid()})

    # ---- changes while serving ----

    def _reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload_now())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_now(self) -> None:
        """Reads ceiling and secrets again, and proves the helper again if it was replaced.

        What cannot be trusted any more denies everything.
        """
        async with self._reloading:
            try:
                await asyncio.to_thread(self._readiness.prove_again)
            except StartupError as error:
                log.error("nothing runs: %s; %s", error, error.fix)
            ceiling = await asyncio.to_thread(load_ceiling, self._settings)
            secrets: Verifier = Nobody()
            try:
                secrets = await asyncio.to_thread(load_secrets, self._settings)
            except StartupError as error:
                log.error("nobody can authenticate: %s; %s", error, error.fix)
            try:
                await self._audit.append("broker.reloaded", ceiling_fields(ceiling))
            except AuditUnavailableError:
                log.error("cannot record the reload; nothing runs until the log can be written")
            self._gate.ceiling = ceiling
            self._app.secrets = secrets
            self._readiness.refresh()
            log.info("read ceiling and secrets again")
            log_ceiling(ceiling)

    def _mend_log(self) -> None:
        """Opens a log that failed again, once in a while, and never under a run that is on."""
        now = time.monotonic()
        if now < self._mend_at or not self._service.is_idle():
            return
        self._mend_at = now + MEND_AGAIN_S
        task = asyncio.get_running_loop().create_task(self._mend_log_now())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _mend_log_now(self) -> None:
        try:
            await asyncio.to_thread(self._audit.reopen)
        except startup.AuditUnavailableError as error:
            log.error("nothing runs: %s; %s", error, error.fix)
        else:
            log.warning("the log can be written again")
            self._readiness.refresh()

    @contextmanager
    def _kill_switch_watched(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Setting the kill switch ends the runs that are on; each new one looks for itself."""
        directory = os.path.dirname(self._settings.kill_switch)
        try:
            watch_fd = process.inotify_watch(directory)
        except OSError as error:
            log.warning("cannot watch for the kill switch (%s), it stops new runs only", error)
            yield
            return
        loop.add_reader(watch_fd, self._config_changed, watch_fd)
        try:
            yield
        finally:
            loop.remove_reader(watch_fd)
            os.close(watch_fd)

    def _config_changed(self, watch_fd: int) -> None:
        os.read(watch_fd, 65536)
        self._readiness.refresh()
        if not self._readiness.killed():
            return
        log.warning("the kill switch is on, ending all runs")
        self._service.end_all(RunReason.CANCELLED)
        with suppress(AuditUnavailableError):
            self._audit.append_lazy("broker.killed", {"pid": os.getpid()})


def make_scratch(directory: Path) -> None:
    """The directory of the runs' private directories: ours, 0700.  Raises SettingsRefusedError."""
    try:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        os.close(open_own(directory, 0o700))
    except OSError as error:
        raise SettingsRefusedError(
            f"cannot use scratch directory {str(directory)!r}: {error.strerror}",
            "make it a directory of the broker's account with mode 0700, as `host-broker init` "
            "does, or set `scratch_dir` in broker.toml",
        ) from error


def restore_state(directory: Path) -> None:
    """The directory of the records, 0700 again.  Raises SettingsRefusedError.

    It may be another's who made our directories in it, and need not exist if none is in it.
    """
    try:
        if directory.lstat().st_uid == os.geteuid():
            os.close(open_own(directory, 0o700))
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsRefusedError(
            f"cannot use state directory {str(directory)!r}: {error.strerror}",
            f"look at who changed it, then chmod 0700 {str(directory)!r}",
        ) from error


class Nobody:
    """The secrets in force while the file cannot be trusted: none."""

    def verify(self, authorization: bytes | None) -> bool:
        return False


def own_account() -> Account:
    """Of the user id we run as, which need not have an entry in the password database."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return Account(b"%d" % os.geteuid(), b"/", b"/bin/sh")
    return Account(*map(os.fsencode, (entry.pw_name, entry.pw_dir, entry.pw_shell)))


def ceiling_fields(ceiling: Ceiling) -> dict[str, Field]:
    """What a record tells of the ceiling in force; the file itself is the operator's."""
    return {
        "roots": root_fields(ceiling.roots),
        "confinement": ceiling.confinement.value,
        "network": ceiling.network.value,
        "deny_code": ceiling.deny_code.value if ceiling.deny_code else None,
        "warnings": name_fields(ceiling.warnings),
    }


def log_ceiling(ceiling: Ceiling) -> None:
    if ceiling.deny_reason is not None:
        log.warning("the ceiling allows nothing: %s", ceiling.deny_reason)
    if ceiling.confinement is Confinement.UNCONFINED:
        log.warning("runs are UNCONFINED: the operator trusts whoever has the secret")
    for warning in ceiling.warnings:
        log.warning("ceiling: %s", warning)


@functools.cache
def openapi_json() -> bytes:
    """The contract as it was built in; the same text as openapi.yaml."""
    return Path(__file__).with_name("openapi.json").read_bytes()

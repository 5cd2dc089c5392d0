# SPDX-License-Identifier: Apache-2.0
"""A broker of its own for a test: private directories, a real process, a real socket."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker import config
from broker.client import Client

PROJECT = Path(__file__).parents[2]
READY_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 60.0


class Daemon:
    """Directories for a user's broker below a short path, and the broker in them while started.

    Context manager: leaving it kills what is left and removes everything.  `work` is a directory
    that the ceiling lets runs write unless another `ceiling` is given; `{work}` in it is filled in.
    """

    def __init__(
        self,
        *,
        ceiling: str = 'write = ["{work}"]\nnetwork = "open"\n',
        settings: str = 'cgroup = "none"\n',
        environ: dict[str, str] | None = None,
    ) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="hb-", dir="/tmp"))
        self.work = self.base / "work"
        self.work.mkdir()
        for name in ("config", "run", "state"):
            (self.base / name).mkdir(mode=0o700)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.base),
            "PYTHONPATH": os.pathsep.join([str(PROJECT), *_inherited_path()]),
            "XDG_CONFIG_HOME": str(self.base / "config"),
            "XDG_RUNTIME_DIR": str(self.base / "run"),
            "XDG_STATE_HOME": str(self.base / "state"),
            **(environ or {}),
        }
        self.config_dir = self.base / "config" / "host-broker"
        self.write_settings(settings)
        self.settings = config.load_settings(environ=self.environ, mode="user")
        config.init_directories(self.settings)
        config.create_secret(self.settings)
        self.write_ceiling(ceiling)
        self.umask = 0o022
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.base / "log"

    def write_settings(self, text: str) -> None:
        self.config_dir.mkdir(exist_ok=True, mode=0o700)
        (self.config_dir / "broker.toml").write_text(text)

    def write_ceiling(self, text: str) -> None:
        self.settings.ceiling_file.write_text(text.replace("{work}", str(self.work)))

    # ---- the process ----

    def start(self) -> Self:
        """Returns when it says READY=1.  Raises AssertionError with its log if it does not."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            address = str(self.base / f"notify-{os.getpid()}")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            notify.bind(address)
            notify.settimeout(0.1)
            self.process = self._spawn({"NOTIFY_SOCKET": address})
            for _ in range(int(READY_TIMEOUT_S * 10)):
                with contextlib.suppress(TimeoutError):
                    if b"READY=1" in notify.recv(4096):
                        return self
                if self.process.poll() is not None:
                    break
        raise AssertionError(f"not ready, exit {self.process.poll()}: {self.log.read_text()}")

    def refused(self) -> tuple[int, str]:
        """Starts it where it must refuse; returns exit status and what it said."""
        process = self._spawn({})
        try:
            status = process.wait(EXIT_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        return status, self.log.read_text()

    def names(self) -> set[str]:
        """Every name below its directories, but for what we write ourselves."""
        found = {str(path.relative_to(self.base)) for path in self.base.rglob("*")}
        return {name for name in found if name != "log" and not name.startswith("notify-")}

    def _spawn(self, more: dict[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                self.command(),
                umask=self.umask,
                env=self.environ | more,
                cwd=self.base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def command(self) -> Sequence[str]:
        # -P: the directory we are in is not on sys.path, where it would count as the broker's code.
        return [sys.executable, "-P", "-m", "broker", "--user", "serve"]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signals it and waits for its end; returns its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(EXIT_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.base, ignore_errors=True)

    # ---- talking to it ----

    def client(self) -> Client:
        return Client(
            socket_path=self.settings.socket, secret_file=str(self.settings.client_header_file)
        )

    @property
    def authorization(self) -> str:
        return self.settings.client_header_file.read_text().strip().partition(": ")[2]

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(60)
        sock.connect(self.settings.socket)
        return sock

    def curl(self, *words: str, authenticated: bool = True) -> tuple[int, dict[str, str], Any]:
        """curl over the socket; returns status, headers in lower case, and the document."""
        header = ["-H", f"@{self.settings.client_header_file}"] if authenticated else []
        done = subprocess.run(
            ["curl", "-sS", "-i", "--unix-socket", self.settings.socket, *header, *words],
            capture_output=True,
            check=True,
            timeout=60,
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head, _, body = body.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines[1:])
        headers = {name.lower(): value for name, _, value in pairs}
        return int(lines[0].split()[1]), headers, json.loads(body) if body else None

    # ---- what it recorded ----

    def recorded(self, audit_id: str) -> dict[str, dict[str, Any]]:
        """The records of one request by kind.

        Outcomes are written after the answer; one more run's intent is on the disk behind them.
        """
        with self.client() as client:
            client.exec(["true"])
        return {record["kind"]: record for record in self.records() if
                record.get("audit_id") == audit_id}  # fmt: skip

    def records(self, kind: str = "") -> list[dict[str, Any]]:
        """The audit records so far, of a kind or of all."""
        log = (self.settings.audit_dir / "audit.jsonl").read_bytes()
        found = [json.loads(line) for line in log.rstrip(b"\0").splitlines() if line]
        return [record for record in found if not kind or record["kind"] == kind]


def _inherited_path() -> list[str]:
    """For tests run as another user, by an interpreter that is not the virtual environment's."""
    inherited = os.environ.get("PYTHONPATH")
    return [inherited] if inherited else []


def processes_with(mark: str) -> list[int]:
    """Processes that have `mark` in their command line, zombies not counted."""
    return [pid for pid, command in _commands() if mark.encode() in command]


def _commands() -> Iterator[tuple[int, bytes]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry), Path(f"/proc/{entry}/cmdline").read_bytes()

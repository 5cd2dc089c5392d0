# SPDX-License-Identifier: Apache-2.0
"""A broker of our own to measure: private directories, a ceiling made from a view, a real socket.

Also the floor's server, which only spawns.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.scene import Scene, View
from tests.bench.workers import ENVIRONMENT, PROJECT, BenchError

READY_TIMEOUT_S = 60.0


def ceiling_toml(view: View) -> str:
    """The view as an operator would write it down (devices are in the baseline); TOML's strings
    are JSON's here."""
    write = [path for path in view.write if not path.startswith("/dev/")]
    granted = {"exec": view.execute, "read": view.read, "write": write}
    lines = [f"{key} = {json.dumps(list(paths))}\n" for key, paths in granted.items()]
    return "".join(lines) + "[limits]\nmax_runs = 64\n"


class Daemon:
    """`host-broker serve` over a ceiling; ready when made.  Context manager: leaving it stops it.

    `ready_s` is how long it took from starting the process to its READY=1.
    """

    def __init__(self, scene: Scene, name: str, view: View) -> None:
        self.directory = scene.directory / name
        self.directory.mkdir()
        self.config = self.directory / "config" / "host-broker"
        # Short, as on a real machine: sockets are bound below it, and unix(7) takes 107 bytes.
        self._runtime = tempfile.TemporaryDirectory(prefix="hb", dir="/tmp")
        self.socket = Path(self._runtime.name) / "host-broker" / "broker.sock"
        self.env = {
            **ENVIRONMENT,
            "HOME": str(self.directory),
            "PYTHONPATH": str(PROJECT),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "XDG_RUNTIME_DIR": self._runtime.name,
            "XDG_STATE_HOME": str(self.directory / "state"),
            "NOTIFY_SOCKET": f"{self._runtime.name}/notify",
        }
        self._prepare(view)
        self._log = (self.directory / "log").open("w")
        self.ready_s = self._start()

    def _broker(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "broker", "--user", *words]

    def _prepare(self, view: View) -> None:
        init = subprocess.run(
            self._broker("init"),
            env=self.env,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if init.returncode != 0:
            raise BenchError(f"host-broker init: {init.stdout}{init.stderr}")
        (self.config / "ceiling.toml").write_text(ceiling_toml(view))

    def _start(self) -> float:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(self.env["NOTIFY_SOCKET"])
            started_at = time.monotonic()
            self._process = subprocess.Popen(
                self._broker("serve"),
                env=self.env,
                cwd=self.directory,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
            if not self._is_ready(notify):
                self.close()
                last_words = (self.directory / "log").read_text().strip().splitlines()[-1:]
                raise BenchError(f"the broker did not get ready: {' '.join(last_words)}")
            return time.monotonic() - started_at

    def _is_ready(self, notify: socket.socket) -> bool:
        """Waits for READY=1, for the daemon's end, or for the time to be over."""
        ended = os.pidfd_open(self._process.pid)
        watched = [notify.fileno(), ended]
        try:
            while notify.fileno() in select.select(watched, [], [], READY_TIMEOUT_S)[0]:
                if b"READY=1" in notify.recv(4096):
                    return True
            return False
        finally:
            os.close(ended)

    @property
    def resident_mib(self) -> float:
        """Of the daemon's main process."""
        return status_kib(self._process.pid, "VmRSS") / 1024

    @property
    def tree_pss_mib(self) -> float:
        """Of the daemon and its supervisors together, what they share counted once."""
        pids = [self._process.pid, *children(self._process.pid)]
        return sum(pss_kib(pid) for pid in pids) / 1024

    def _message(self, body: dict[str, Any]) -> bytes:
        """The whole HTTP request for /v1/exec."""
        payload = json.dumps(body)
        header = (self.config / "client.header").read_text().strip()
        return (
            f"POST /v1/exec HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n{payload}"
        ).encode()

    def _call(self, body: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(READY_TIMEOUT_S)
            connection.connect(str(self.socket))
            connection.sendall(self._message(body))
            result: dict[str, Any] = json.loads(read_reply(connection))
        return result

    def request(self, scene: Scene, name: str, body: dict[str, Any]) -> Path:
        """A file with the request, for the C client.  It is sent once before: if it does not really
        run the command, and confined, every figure after it would be void."""
        result = self._call(body)
        mode = result.get("confinement", {}).get("mode")
        if result.get("exit", {}).get("code") != 0 or mode != "sandboxed":
            raise BenchError(f"/v1/exec answered {str(result)[:600]}")
        file = scene.directory / f"{self.directory.name}-{name}.http"
        file.write_bytes(self._message(body))
        return file

    def exit_code(self, argv: list[str], cwd: str) -> int:
        """Runs a command; its exit code, or 128 when it was killed or refused."""
        code = self._call({"argv": argv, "cwd": cwd}).get("exit", {}).get("code")
        return 128 if code is None else int(code)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._runtime.cleanup()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EchoServer:
    """The floor's server (echoserver.c), ready when made."""

    def __init__(self, scene: Scene, *command: str) -> None:
        self.socket = scene.directory / "echo.sock"
        self._process = subprocess.Popen(
            [scene.echoserver, str(self.socket), "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise BenchError("the echo server did not get ready")

    def __enter__(self) -> EchoServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()
        self.socket.unlink()


def read_reply(connection: socket.socket) -> bytes:
    """The body of one reply with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length:\s*([0-9]+)", head, re.MULTILINE)
    while length and len(body) < int(length[1]):
        body += received(connection)
    return body


def received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise BenchError("the broker closed the connection")
    return data


def status_kib(pid: int, field: str) -> int:
    found = re.search(rf"^{field}:\s+([0-9]+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    if found is None:
        raise BenchError(f"no {field} in /proc/{pid}/status")
    return int(found[1])


def pss_kib(pid: int) -> int:
    found = re.search(r"^Pss:\s+([0-9]+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    return int(found[1]) if found else 0


def children(pid: int) -> list[int]:
    """All descendants that exist now."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
            found += [int(child), *children(int(child))]
    return found

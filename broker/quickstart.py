# SPDX-License-Identifier: Apache-2.0
"""`host-broker quickstart`: from nothing to a confined command through a broker of one's own.

Provisions the user's broker, starts it (unless it is running), sends commands over its socket and
shows what came back; ends the broker it started.  An existing ceiling is used as it is.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from broker import chain
from broker.client import Client, RefusedError, UnreachableError
from broker.config import Settings, load_ceiling
from broker.model import Access
from broker.provision import provision

READY_S = 30.0
STOP_S = 40.0

_CEILING = """\
# Written by `host-broker quickstart`: one directory for a first look.
# See ceiling.example.toml for every key; after a change: host-broker status.
read = []
write = ["{workspace}"]
exec = ["{workspace}"]
"""

_INSIDE = """\
echo "hello from $(pwd), as $(id -un)"
echo "written inside" > note.txt && cat note.txt
"""


class QuickstartError(Exception):
    """The demonstration could not be made; the message says at what."""


def quickstart(settings: Settings) -> None:
    """Raises QuickstartError, StartupError, or ClientError."""
    workspace = _workspace()
    made = provision(settings, ceiling=_CEILING.format(workspace=workspace))
    click.echo(
        f"provisioned  {settings.config_dir} ({'new' if made.secret else 'existing'} secret)"
    )
    ceiling = load_ceiling(settings)
    if ceiling.deny_code is not None:
        raise QuickstartError(
            f"the ceiling denies everything: {ceiling.deny_reason}; "
            f"add a writable directory to {str(settings.ceiling_file)!r}"
        )
    # Never into a directory of the user's own: in a ceiling that he wrote, a private one serves.
    granted = Access.WRITE in ceiling.rights(os.fsencode(os.path.realpath(workspace)))
    writable = os.fsencode(workspace) if granted else None
    with _running(settings), _client(settings) as client:
        _show_inside(client, writable)
        _show_outside(client, settings)
    _show_log(settings)
    own = "host-broker --user" if os.geteuid() == 0 else "host-broker"
    click.echo(f"\nnext: edit the ceiling, then `{own} serve` and `{own} exec -- CMD`")


def _workspace() -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    data = Path(base if base.startswith("/") else os.path.expanduser("~/.local/share"))
    workspace = data / "host-broker" / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    return workspace


def _client(settings: Settings) -> Client:
    return Client(socket_path=settings.socket, secret_file=os.fspath(settings.secret_file))


@contextlib.contextmanager
def _running(settings: Settings) -> Iterator[None]:
    """A broker for as long as the block: the one that answers already, or a new one."""
    with contextlib.suppress(UnreachableError):
        with _client(settings) as client:
            client.ready()
        click.echo(f"broker       already answers on {settings.socket}")
        yield
        return
    with tempfile.TemporaryDirectory() as directory:
        process = _start(settings, f"{directory}/notify")
        click.echo(f"broker       ready on {settings.socket} (pid {process.pid})")
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def _start(settings: Settings, notify: str) -> subprocess.Popen[bytes]:
    """Starts `serve` and waits until it says READY=1, as systemd would."""
    command = [sys.executable, "-P", "-m", "broker", f"--{settings.mode}"]
    command += ["--config-dir", os.fspath(settings.config_dir), "serve"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(notify)
        process = subprocess.Popen(command, env={**os.environ, "NOTIFY_SOCKET": notify})
        pidfd = os.pidfd_open(process.pid)
        try:
            _await_ready(listener, pidfd)
        except QuickstartError:
            process.kill()
            process.wait()
            raise
        finally:
            os.close(pidfd)
    return process


def _await_ready(listener: socket.socket, pidfd: int) -> None:
    ready, _, _ = select.select([listener.fileno(), pidfd], [], [], READY_S)
    if listener.fileno() not in ready or b"READY=1" not in listener.recv(4096):
        raise QuickstartError("the broker did not become ready; its reason is above")


def _show_inside(client: Client, writable: bytes | None) -> None:
    cwd = {"cwd": os.fsdecode(writable)} if writable is not None else {}
    click.echo(f"\n$ inside {cwd.get('cwd', 'a private scratch directory')}")
    done = client.exec(script=_INSIDE, **cwd)
    click.echo(
        done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace"), nl=False
    )
    confinement = done.confinement
    click.echo(
        f"→ exit {done.shell_code}, {confinement['mode']} by {confinement['isolation']} "
        f"(ABI {confinement['abi']}), {done.document['duration_ms']} ms, "
        f"record {done.document['audit_id']}"
    )
    if done.exit_code != 0:
        raise QuickstartError("the command failed; `host-broker doctor` says what to look at")


def _show_outside(client: Client, settings: Settings) -> None:
    """The broker's own secret, which this very user can read from any other shell."""
    target = os.fspath(settings.secret_file)
    click.echo(f"\n$ cat {target}")
    done = client.exec(["cat", target])
    click.echo(done.stderr.decode("utf-8", "replace"), nl=False)
    click.echo(f"→ exit {done.shell_code}: outside the ceiling")
    if done.exit_code == 0:
        raise QuickstartError("the secret was readable from inside: report this as a bug")
    with contextlib.suppress(RefusedError):
        client.exec(["true"], cwd="/root")
        raise QuickstartError("a working directory outside the ceiling was accepted")


def _show_log(settings: Settings) -> None:
    verdict = chain.verify(settings.audit_dir)
    click.echo(f"\naudit        {verdict.records} records, {'intact' if verdict.ok else 'BROKEN'}")

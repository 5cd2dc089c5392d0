# SPDX-License-Identifier: Apache-2.0
"""The endpoint reach check: can a confined command talk to what controls this host?

A Unix socket of docker, systemd, D-Bus or an agent is a way out of any sandbox.  So at each start a
confined child, spawned as every run is, tries to reach each endpoint of a fixed table, and three
sockets planted for it: a path listener, an abstract one and a datagram receiver.  The same program
run without confinement must reach the planted ones; else the check would prove nothing.

What is reported are classes, never paths: the answer to "why does it not serve" goes to logs that
others read.  Not covered: TCP (a matter of the ceiling's `network`), and descriptors passed in.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.startup import EndpointReachableError, ReachUnknownError

CONTROL_TIMEOUT_S = 10.0
MAX_REPORT_BYTES = 256 * 1024
PLANTED = ("planted-path", "planted-abstract", "planted-datagram")

# Class, and its places.  {run} is each user's runtime directory, {home} the account's home.
# What is not there is tried all the same: it costs a microsecond.
PATHS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "docker",
        (
            "/run/docker.sock",
            "/var/run/docker.sock",
            "{run}/docker.sock",
            "{home}/.docker/run/docker.sock",
            "{home}/.docker/desktop/docker.sock",
        ),
    ),
    (
        "containerd",
        (
            "/run/containerd/containerd.sock",
            "/run/docker/containerd/containerd.sock",
            "/run/k3s/containerd/containerd.sock",
            "{run}/containerd/containerd.sock",
        ),
    ),
    ("podman", ("/run/podman/podman.sock", "{run}/podman/podman.sock")),
    ("crio", ("/run/crio/crio.sock",)),
    ("systemd-private", ("/run/systemd/private", "{run}/systemd/private")),
    ("systemd-notify", ("/run/systemd/notify", "{run}/systemd/notify")),
    ("dbus-system", ("/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket")),
    ("dbus-session", ("{run}/bus", "{run}/dbus-1/session")),
    (
        "journald",
        ("/run/systemd/journal/socket", "/run/systemd/journal/stdout", "/dev/log"),
    ),
    ("syslog", ("/dev/log", "/run/systemd/journal/dev-log", "/run/systemd/journal/syslog")),
    ("x11", tuple(f"/tmp/.X11-unix/X{display}" for display in range(10))),  # noqa: S108
    ("wayland", ("{run}/wayland-0", "{run}/wayland-1")),
    (
        "ssh-agent",
        (
            "{SSH_AUTH_SOCK}",
            "{run}/ssh-agent.socket",
            "{run}/keyring/ssh",
            "{run}/gcr/ssh",
            "{run}/openssh_agent",
        ),
    ),
    (
        "gpg-agent",
        (
            "{run}/gnupg/S.gpg-agent",
            "{run}/gnupg/S.gpg-agent.extra",
            "{run}/gnupg/S.gpg-agent.ssh",
            "{home}/.gnupg/S.gpg-agent",
            "{home}/.gnupg/S.gpg-agent.ssh",
        ),
    ),
    ("keyring", ("{run}/keyring/control", "{run}/keyring/pkcs11")),
    (
        "libvirt",
        (
            "/run/libvirt/libvirt-sock",
            "/run/libvirt/virtqemud-sock",
            "{run}/libvirt/libvirt-sock",
            "{run}/libvirt/virtqemud-sock",
        ),
    ),
    ("snapd", ("/run/snapd.socket", "/run/snapd-snap.socket")),
    (
        "lxd",
        (
            "/var/lib/lxd/unix.socket",
            "/var/snap/lxd/common/lxd/unix.socket",
            "/var/lib/incus/unix.socket",
        ),
    ),
    ("pulse", ("{run}/pulse/native", "/run/pulse/native")),
    ("pipewire", ("{run}/pipewire-0", "{run}/pipewire-0-manager")),
)

# Class, and how its abstract names begin: which ones exist is in /proc/net/unix.
ABSTRACT: tuple[tuple[str, bytes], ...] = (
    ("containerd", b"/containerd-shim/"),
    ("dbus-session", b"/tmp/dbus-"),
    ("dbus-session", b"/run/user/"),
    ("x11", b"/tmp/.X11-unix/"),
    ("x11", b"/tmp/.ICE-unix/"),
    ("podman", b"/podman/"),
    ("ssh-agent", b"ssh-agent"),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place to knock at.  An abstract `name` is without its leading zero byte."""

    class_name: str
    name: bytes
    abstract: bool = False

    def line(self) -> bytes:
        """As `confine --reach` reads it."""
        kind = b"abstract" if self.abstract else b"path"
        return b"%b %b %b\n" % (self.class_name.encode(), kind, self.name.hex().encode())


def host_endpoints(
    *, runtime_dirs: Iterable[str], home: str, environ: Mapping[str, str], abstract: Iterable[bytes]
) -> tuple[Endpoint, ...]:
    """The table filled in.  `abstract` are the abstract names that exist now."""
    places = {"run": tuple(runtime_dirs), "home": (home,)}
    agent = environ.get("SSH_AUTH_SOCK", "")
    places["SSH_AUTH_SOCK"] = (agent,) if agent.startswith("/") else ()
    found = [
        Endpoint(class_name, os.fsencode(path))
        for class_name, templates in PATHS
        for template in templates
        for path in _filled(template, places)
    ]
    found += [
        Endpoint(class_name, name, abstract=True)
        for name in abstract
        for class_name, beginning in ABSTRACT
        if name.startswith(beginning)
    ]
    return tuple(dict.fromkeys(found))


def _filled(template: str, places: Mapping[str, tuple[str, ...]]) -> list[str]:
    if not template.startswith("{"):
        return [template]
    key, _, rest = template[1:].partition("}")
    return [place + rest for place in places[key]]


def abstract_names(table: bytes) -> list[bytes]:
    """The abstract names in the text of /proc/net/unix, where each begins with `@`."""
    found = (line.partition(b" @") for line in table.splitlines())
    return [name for _, mark, name in found if mark]


def endpoints_here(environ: Mapping[str, str], home: str) -> tuple[Endpoint, ...]:
    """The table for this host as it is now."""
    users = Path("/run/user")
    runtime_dirs = [str(entry) for entry in users.iterdir()] if users.is_dir() else []
    own = environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    return host_endpoints(
        runtime_dirs=dict.fromkeys([*runtime_dirs, own]),
        home=home,
        environ=environ,
        abstract=abstract_names(Path("/proc/net/unix").read_bytes()),
    )


class Planted:
    """Three sockets that anybody unconfined can reach.  Context manager: removes them."""

    def __init__(self, directory: str) -> None:
        mark = secrets.token_hex(8)
        self._directory = directory
        base = os.fsencode(directory) + b"/reach-" + mark.encode()
        self.endpoints = (
            Endpoint("planted-path", base + b".s"),
            Endpoint("planted-abstract", b"host-broker-reach-" + mark.encode(), abstract=True),
            Endpoint("planted-datagram", base + b".d"),
        )
        self._open = ExitStack()

    def __enter__(self) -> Self:
        directory_fd = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open.callback(os.close, directory_fd)
        for endpoint in self.endpoints:
            datagram = endpoint.class_name == "planted-datagram"
            kind = socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM
            sock = self._open.enter_context(socket.socket(socket.AF_UNIX, kind))
            if endpoint.abstract:
                sock.bind(b"\0" + endpoint.name)
            else:  # below a descriptor, since the directory alone may fill sun_path
                self._open.callback(_unlink, endpoint.name)
                name = os.path.basename(endpoint.name)
                sock.bind(b"/proc/self/fd/%d/%b" % (directory_fd, name))
            if not datagram:
                sock.listen(8)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()


def _unlink(path: bytes) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


async def check(
    *,
    helper: str,
    directory: str,
    endpoints: Iterable[Endpoint],
    run_confined: Callable[[tuple[bytes, ...], bytes], Awaitable[bytes]],
) -> int:
    """Returns how many endpoints were tried and refused.

    `run_confined(argv, stdin)` runs the program by the real spawn path and returns its output.
    `directory` is where sockets can be planted.  Raises EndpointReachableError, or
    ReachUnknownError if the check itself did not work: not knowing is no reason to serve.
    """
    argv = (os.fsencode(helper), b"--reach")
    with Planted(directory) as planted:
        _require_control(argv, planted.endpoints)
        tried = (*planted.endpoints, *endpoints)
        output = await run_confined(argv, _asked(tried))
    reached = _reached(output, tried)
    if reached:
        raise EndpointReachableError(
            f"a confined command reaches host endpoints: {', '.join(reached)}",
            "do not serve on this machine; report it with the output of `host-broker doctor`",
        )
    return len(tried)


def _require_control(argv: tuple[bytes, ...], planted: tuple[Endpoint, ...]) -> None:
    try:
        done = subprocess.run(
            argv, input=_asked(planted), capture_output=True, timeout=CONTROL_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _unknown(f"its control run failed: {error}") from error
    missed = set(PLANTED) - set(_reached(done.stdout, planted))
    if missed:
        raise _unknown(f"its control run did not reach {', '.join(sorted(missed))}")


def _asked(endpoints: Iterable[Endpoint]) -> bytes:
    return b"".join(endpoint.line() for endpoint in endpoints)


def _reached(output: bytes, asked: tuple[Endpoint, ...]) -> list[str]:
    """The classes reached, from one line for each endpoint asked about, in their order."""
    lines = output.decode("ascii", "replace").splitlines()
    answers = [line.split(" ") for line in lines]
    expected = [endpoint.class_name for endpoint in asked]
    well_formed = all(len(row) == 3 and row[1] in ("REACHED", "REFUSED") for row in answers)
    if not well_formed or [row[0] for row in answers] != expected:
        raise _unknown(f"it answered {len(lines)} of {len(expected)} lines as it should")
    return sorted({row[0] for row in answers if row[1] == "REACHED"})


def _unknown(why: str) -> ReachUnknownError:
    return ReachUnknownError(
        f"the endpoint reach check proves nothing: {why}",
        "run `confine --reach` and `confine --selftest` by hand; rebuild with `make build`",
    )

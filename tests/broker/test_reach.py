# SPDX-License-Identifier: Apache-2.0
"""The endpoint reach check: refuses what can be reached, names classes only, trusts no silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import sandbox
from broker import reach
from broker.reach import PLANTED, Endpoint, Planted, abstract_names, host_endpoints
from broker.startup import EndpointReachableError, ReachUnknownError

HELPER = str(sandbox.helper_path())
Run = Callable[[tuple[bytes, ...], bytes], Awaitable[bytes]]


async def confined(argv: tuple[bytes, ...], stdin: bytes) -> bytes:
    done = subprocess.run([HELPER, "--exec", argv[0], "--", *argv], input=stdin,
                          capture_output=True, check=True)  # fmt: skip
    return done.stdout


async def unconfined(argv: tuple[bytes, ...], stdin: bytes) -> bytes:
    return subprocess.run(argv, input=stdin, capture_output=True, check=True).stdout


def check(
    directory: Path, run: Run, endpoints: tuple[Endpoint, ...] = (), helper: str = HELPER
) -> int:
    return asyncio.run(
        reach.check(helper=helper, directory=str(directory), endpoints=endpoints, run_confined=run)
    )


def test_confined_nothing_is_reached_and_nothing_is_left(tmp_path: Path) -> None:
    here = reach.endpoints_here(os.environ, os.path.expanduser("~"))
    assert check(tmp_path, confined, here) == len(here) + len(PLANTED)
    assert os.listdir(tmp_path) == []


def test_a_child_that_is_not_confined_is_found_by_every_planted_socket(tmp_path: Path) -> None:
    with pytest.raises(EndpointReachableError) as refused:
        check(tmp_path, unconfined)
    assert all(name in str(refused.value) for name in PLANTED)
    assert refused.value.exit_status == 83
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("weakness", ["AF_UNIX stream", "datagram"])
def test_one_reachable_endpoint_is_enough(tmp_path: Path, weakness: str) -> None:
    """A sandbox that lets one kind of socket through, as its report would look."""

    async def weak(argv: tuple[bytes, ...], stdin: bytes) -> bytes:
        reached = "planted-path" if weakness == "AF_UNIX stream" else "planted-datagram"
        lines = (await confined(argv, stdin)).decode().splitlines()
        return "".join(
            f"{reached} REACHED {weakness.split()[0]}\n"
            if line.startswith(reached)
            else f"{line}\n"
            for line in lines
        ).encode()

    with pytest.raises(EndpointReachableError):
        check(tmp_path, weak)


def test_an_endpoint_is_named_by_class_and_never_by_path(tmp_path: Path) -> None:
    runtime = tmp_path / "s3cret-user"
    (runtime / "podman").mkdir(parents=True)
    endpoints = host_endpoints(
        runtime_dirs=[str(runtime)],
        home="/nonexistent",
        environ={},
        abstract=[b"/tmp/dbus-s3cret"],
    )
    with socket.socket(socket.AF_UNIX) as path, socket.socket(socket.AF_UNIX) as abstract:
        path.bind(str(runtime / "podman" / "podman.sock"))
        path.listen()
        abstract.bind(b"\0/tmp/dbus-s3cret")
        abstract.listen()
        with pytest.raises(EndpointReachableError) as refused:
            check(tmp_path, unconfined, endpoints)
        assert check(tmp_path, confined, endpoints) > len(PLANTED)
    said = f"{refused.value} {refused.value.fix}"
    assert "podman" in said
    assert "dbus-session" in said
    assert "s3cret" not in said
    assert "/" not in said


ANSWERS = [
    ("nothing", b""),
    ("one line short", b"planted-path REFUSED EPERM\nplanted-abstract REFUSED EPERM\n"),
    ("another order", b"planted-abstract REFUSED EPERM\nplanted-path REFUSED EPERM\n"
                      b"planted-datagram REFUSED EPERM\n"),
    ("another word", b"planted-path EPERM\nplanted-abstract REFUSED EPERM\n"
                     b"planted-datagram REFUSED EPERM\n"),
    ("a line too many", b"planted-path REFUSED EPERM\nplanted-abstract REFUSED EPERM\n"
                        b"planted-datagram REFUSED EPERM\ndocker REFUSED ENOENT\n"),
    ("no text", b"\xff\xfe"),
]  # fmt: skip


@pytest.mark.parametrize("answer", [row[1] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_an_answer_that_is_not_whole_proves_nothing(tmp_path: Path, answer: bytes) -> None:
    async def run(argv: tuple[bytes, ...], stdin: bytes) -> bytes:
        return answer

    with pytest.raises(ReachUnknownError) as unknown:
        check(tmp_path, run)
    assert unknown.value.exit_status == 82


@pytest.mark.parametrize("helper", ["/bin/true", "/bin/false", "/no/such"])
def test_a_control_that_reaches_nothing_proves_nothing(tmp_path: Path, helper: str) -> None:
    with pytest.raises(ReachUnknownError, match="proves nothing"):
        check(tmp_path, confined, helper=helper)


def test_planted_sockets_fit_below_a_directory_that_fills_sun_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    assert check(deep, confined) == len(PLANTED)
    with pytest.raises(EndpointReachableError, match="planted-path"):
        check(deep, unconfined)


def test_the_table_has_every_class_that_controls_a_host() -> None:
    required = {"docker", "containerd", "podman", "systemd-private", "dbus-system",
                "dbus-session", "journald", "syslog", "x11", "wayland", "ssh-agent", "gpg-agent",
                "libvirt", "snapd", "lxd", "pulse", "pipewire"}  # fmt: skip
    found = host_endpoints(
        runtime_dirs=["/run/user/1", "/run/user/2"],
        home="/home/u",
        environ={"SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1"},
        abstract=[b"/tmp/.X11-unix/X0", b"unrelated"],
    )
    assert required <= {endpoint.class_name for endpoint in found}
    assert Endpoint("ssh-agent", b"/tmp/ssh-x/agent.1") in found
    assert Endpoint("dbus-session", b"/run/user/2/bus") in found
    assert Endpoint("x11", b"/tmp/.X11-unix/X0", abstract=True) in found
    assert not any(b"unrelated" in endpoint.name or b"{" in endpoint.name for endpoint in found)
    assert all(endpoint.name.startswith(b"/") for endpoint in found if not endpoint.abstract)


def test_an_agent_that_is_not_set_or_relative_is_no_endpoint() -> None:
    for environ in ({}, {"SSH_AUTH_SOCK": "agent"}):
        found = host_endpoints(runtime_dirs=[], home="/h", environ=environ, abstract=[])
        assert not any(endpoint.name == b"agent" for endpoint in found)


def test_abstract_names_are_read_as_the_kernel_writes_them() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        name = b"host-broker test @ %d" % os.getpid()
        sock.bind(b"\0" + name)
        sock.listen()
        assert name in abstract_names(Path("/proc/net/unix").read_bytes())
    assert abstract_names(b"Num RefCount\n0: 3 0 0 1 3 99 /run/x@y\n0: 3 0 0 1 3 1 @a b\n") == [
        b"a b"
    ]


def test_planted_sockets_go_also_when_the_check_fails(tmp_path: Path) -> None:
    with contextlib.suppress(RuntimeError), Planted(str(tmp_path)):
        assert len(os.listdir(tmp_path)) == 2
        raise RuntimeError
    assert os.listdir(tmp_path) == []

# SPDX-License-Identifier: Apache-2.0
"""The baseline: enough for ordinary tools, and nothing that is a secret."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Final

import pytest

import sandbox
from sandbox import Access
from tests.confine.launcher import confine, shell
from tests.support.kernel import require_root

#: What no row may be, lie above, or lie below.
SECRET: Final = [
    "/boot",
    "/dev/kmsg",
    "/dev/mem",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
    "/dev/tty",
    "/etc/apt",
    "/etc/gshadow",
    "/etc/host-broker",
    "/etc/machine-id",
    "/etc/pki/tls/private",
    "/etc/shadow",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/home",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/srv",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/tmp",
    "/var/lib/host-broker",
    "/var/log",
    "/var/spool",
]
ROWS: Final = sandbox.baseline()
PROGRAMS: Final = {"/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/nix/store", "/gnu/store"}


def path_of(root: sandbox.Root) -> PurePath:
    return PurePath(os.fsdecode(root.path))


@pytest.mark.parametrize("secret", SECRET)
def test_no_row_grants_a_secret(secret: str) -> None:
    for row in ROWS:
        path = path_of(row)
        assert not PurePath(secret).is_relative_to(path), row
        assert not path.is_relative_to(secret), row


def test_no_row_leads_to_a_secret_through_a_link() -> None:
    for row in ROWS:
        real = PurePath(os.path.realpath(path_of(row)))
        for secret in SECRET:
            if secret == "/run":  # resolver files are kept there
                continue
            assert not PurePath(secret).is_relative_to(real), row
            assert not real.is_relative_to(secret), row


def test_rows_are_absolute_once_and_optional() -> None:
    paths = [str(path_of(row)) for row in ROWS]
    assert len(set(paths)) == len(paths)
    assert all(path.startswith("/") and "/../" not in path for path in paths)
    assert all(row.optional for row in ROWS)


def test_only_programs_execute_and_only_device_nodes_are_written() -> None:
    for row in ROWS:
        path = str(path_of(row))
        if row.access & Access.EXEC:
            assert path in PROGRAMS
        if row.access & Access.WRITE:
            assert Path(path).is_char_device()
        assert not row.access & Access.DEVICE
        assert row.access & Access.READ


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/etc/gshadow", "/proc/{}/environ", "/proc/{}/mem"]
)
def test_root_reads_no_secret_through_it(path: str) -> None:
    """Among them what other processes know."""
    require_root()
    path = path.format(os.getpid())
    with open(path, "rb"):
        pass
    denied = confine("--baseline", "--", "/bin/cat", path)
    assert denied.status == 1
    assert "Permission denied" in denied.err


def test_the_root_directory_home_and_etc_are_not_listed() -> None:
    for path in ("/", "/etc", "/root", "/home", "/tmp", "/dev", "/run"):
        denied = confine("--baseline", "--", "/bin/ls", path)
        assert (denied.status, denied.out) == (2, ""), path


TOOLS = {
    "names": "getent passwd root && getent hosts localhost && id -un",
    "time": "date && TZ=Europe/Paris date",
    "pipes": "seq 1000 | sort -n | tail -1",
    "processes": "ps -e > /dev/null && nproc && uname -a",
    "devices": "head -c 9 /dev/urandom > /dev/null && ! echo x > /dev/full",
    "compiler": "echo 'int main(void) { return 0; }' > a.c && cc -o a a.c",
    "archive": "mkdir d && echo x > d/f && tar -cf d.tar d && tar -tf d.tar",
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q "
    "--allow-empty -m m && git log --oneline",
    "python": "/usr/bin/python3 -c 'import ssl, socket, threading, hashlib'",
    "substitution": "bash -c 'diff <(echo a) <(echo a)'",
    "script": "printf '#!/usr/bin/env sh\\necho ran\\n' > s && sh s",
}


@pytest.mark.parametrize("name", TOOLS)
def test_ordinary_tools_work(name: str, place: Path) -> None:
    environment = {**os.environ, "HOME": str(place), "TMPDIR": str(place)}
    words = ("--rw", place, "--cwd", place)
    result = shell(f"set -e; {TOOLS[name]}", *words, env=environment)
    assert result.status == 0, result.err

# SPDX-License-Identifier: Apache-2.0
"""Where else a directory can be reached: bind mounts, and other mounts of the same file system.

Landlock grants what lies below a root by any mount, so a directory of ours that is mounted a second
time has to be looked for at its other places too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from broker.paths import contains

MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """`root` of the file system `device` (major:minor) is at `point` (proc_pid_mountinfo(5))."""

    device: bytes
    root: bytes
    point: bytes


def mounts() -> tuple[Mount, ...]:
    """All of this process's namespace, later ones over earlier ones.  Raises OSError."""
    with open(MOUNTS, "rb") as file:
        return tuple(map(_mount, file))


def _mount(line: bytes) -> Mount:
    _, _, device, root, point = line.split(b" ", 5)[:5]
    return Mount(device, _plain(root), _plain(point))


def _plain(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), field)


def places(path: bytes, known: tuple[Mount, ...]) -> Iterator[bytes]:
    """The canonical path itself, and every path at which it, or part of it, is mounted as well."""
    yield path
    over = [mount for mount in known if contains(mount.point, path)]
    if not over:
        return
    home = max(reversed(over), key=lambda mount: len(mount.point))  # the last one is on top
    inside = _below(home.root, path[len(home.point.rstrip(b"/")) :])
    for mount in known:
        if mount.device != home.device:
            continue
        if contains(mount.root, inside):
            yield _below(mount.point, inside[len(mount.root.rstrip(b"/")) :])
        elif contains(inside, mount.root):
            yield mount.point


def _below(directory: bytes, rest: bytes) -> bytes:
    return (directory.rstrip(b"/") + rest) or b"/"

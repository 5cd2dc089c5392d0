# SPDX-License-Identifier: Apache-2.0
"""cgroup v2 leaves for runs, where the unit's subtree is delegated (cgroups(7), `Delegate=yes`).

A leaf makes the end of a run exact: `cgroup.kill` (Linux 5.14) reaches every process in it at once.
"""

from __future__ import annotations

import contextlib
import os

LEAF_PREFIX = "run-"


class Leaf:
    """One leaf directory; `fd` is what clone3(CLONE_INTO_CGROUP) takes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        os.mkdir(self._path, 0o755)
        self.fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def renew(self) -> None:
        """Another cgroup under the same name: one that was killed takes no new process.

        Raises:
            OSError: something in the old one cannot be ended.
        """
        os.close(self.fd)
        os.rmdir(self._path)
        self._open()

    def close(self) -> None:
        os.close(self.fd)
        # EBUSY: a process that cannot be ended is still inside; the directory shows it.
        with contextlib.suppress(OSError):
            os.rmdir(self._path)


def sweep(directory: str) -> None:
    """Removes the empty leaves of a broker that was killed."""
    with os.scandir(directory) as entries:
        leaves = [entry.path for entry in entries if entry.name.startswith(LEAF_PREFIX)]
    for path in leaves:
        with contextlib.suppress(OSError):  # of a broker that is alive, or not empty
            os.rmdir(path)


def delegated_directory() -> str | None:
    """This process's own cgroup, if leaves can be made and killed below it; else None."""
    mount, own = _mount_point(), _own_cgroup()
    if mount is None or own is None:
        return None
    directory = mount + own.rstrip("/")
    probe = f"{directory}/probe-{os.getpid()}"
    try:
        leaf = Leaf(probe)
    except OSError:
        return None
    can_kill = os.path.exists(f"{probe}/cgroup.kill") and _accepts_processes(directory)
    leaf.close()
    return directory if can_kill else None


def _accepts_processes(directory: str) -> bool:
    """A process may move between two groups only with write access to their common ancestor."""
    return os.access(f"{directory}/cgroup.procs", os.W_OK)


def _mount_point() -> str | None:
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == "cgroup2":
                return fields[1]
    return None


def _own_cgroup() -> str | None:
    with open("/proc/self/cgroup") as groups:
        for line in groups:
            if line.startswith("0::"):
                return line[3:].rstrip("\n")
    return None

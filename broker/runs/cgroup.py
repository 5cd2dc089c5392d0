# SPDX-License-Identifier: Apache-2.0
"""cgroup v2 leaves for runs, where the unit's subtree is delegated (cgroups(7), `Delegate=yes`).

A leaf holds a runner and everything it runs: what a lost runner leaves behind can still be found
and ended as a whole (`cgroup.kill`, Linux 5.14), and so can a tree that outruns its killer.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

LEAF_PREFIX = "run-"
EMPTY_S = 2.0


class Leaf:
    """The cgroup of one runner and all that it runs; `fd` is its directory."""

    def __init__(self, path: str) -> None:
        os.mkdir(path, 0o755)
        self._path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def adopt(self, pid: int) -> None:
        """Moves a process in; its children are born there.

        Raises:
            OSError: the process is gone, or the move is not allowed.
        """
        self._write("cgroup.procs", str(pid))

    def close(self) -> None:
        """Kills what is left inside, waits for its end, and removes it.  Blocks."""
        with contextlib.suppress(OSError):  # before Linux 5.14 there is no cgroup.kill
            self._write("cgroup.kill", "1")
        self._await_empty()
        os.close(self.fd)
        # EBUSY: a process that cannot be ended is still inside; the directory shows it.
        with contextlib.suppress(OSError):
            os.rmdir(self._path)

    def _await_empty(self) -> None:
        """The kernel reports a change of cgroup.events as an exceptional condition (cgroups(7))."""
        deadline = time.monotonic() + EMPTY_S
        poll = select.poll()
        with open(f"{self._path}/cgroup.events", encoding="ascii") as events:
            poll.register(events, select.POLLPRI)
            while "populated 1" in events.read():
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not poll.poll(left_s * 1000):
                    return
                events.seek(0)

    def _write(self, name: str, text: str) -> None:
        with open(f"{self._path}/{name}", "w", encoding="ascii") as file:
            file.write(text)


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

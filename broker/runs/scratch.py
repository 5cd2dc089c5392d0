# SPDX-License-Identifier: Apache-2.0
"""Private scratch directories: 0700, one per run, TMPDIR of the run.

A directory that a run left exactly as it found it (empty, same inode, mode and owner) serves the
next run: its inode is in the cached ruleset.  Anything else is removed whole.  Nobody of the
earlier run is alive then, and none of its descriptors are.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess


class Scratch:
    """One directory below `base`; `path` changes when the directory had to be replaced."""

    def __init__(self, base: bytes) -> None:
        self._base = base
        self._make()

    def _make(self) -> None:
        self.path = self._base + b"/" + secrets.token_hex(4).encode()
        os.mkdir(self.path, 0o700)
        self._fresh = _identity(os.stat(self.path))

    def renew(self) -> bool:
        """Ready for the next run.  False when the directory was replaced."""
        try:
            with os.scandir(self.path) as entries:
                untouched = next(entries, None) is None
            if untouched and _identity(os.lstat(self.path)) == self._fresh:
                return True
        except OSError:
            pass  # unreadable or gone: replaced below
        self.remove()
        self._make()
        return False

    def remove(self) -> None:
        remove_tree(self.path)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid)


def remove_tree(path: bytes) -> None:
    """Removes a tree, whatever its owner (the run) did to it.

    Never follows a symbolic link.  A tree deeper than Python recurses, or whose directories lost
    their permissions, is left to chmod(1) and rm(1), which walk by descriptors without recursion.
    """
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        for command in (b"/bin/chmod", b"-R", b"u+rwX"), (b"/bin/rm", b"-rf", b"--one-file-system"):
            subprocess.run([*command, b"--", path], stderr=subprocess.DEVNULL, check=False)


def sweep(base: bytes) -> int:
    """Removes what an earlier broker left behind.  Returns how many directories that were."""
    with os.scandir(base) as entries:
        leftovers = [entry.path for entry in entries]
    for path in leftovers:
        remove_tree(path)
    return len(leftovers)

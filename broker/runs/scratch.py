# SPDX-License-Identifier: Apache-2.0
"""Private scratch directories: 0700, one per run, TMPDIR of the run.

A directory in which a run never made anything (same inode, same time of change) serves the next
run: its inode is in the cached ruleset.  Anything else is replaced, and removed whole.  Nobody of
the earlier run is alive then, and none of its descriptors are.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess

from broker.directories import open_own

_NAME = re.compile(rb"run-[0-9a-f]{8}")


class Scratch:
    """One directory below `base`; `path` changes when the directory had to be replaced.

    Raises:
        OSError: no directory can be made.
    """

    def __init__(self, base: bytes) -> None:
        self._base = base
        self._make()

    def _make(self) -> None:
        path = self._base + b"/run-" + secrets.token_hex(4).encode()
        try:
            os.mkdir(path, 0o700)
        except PermissionError:
            self._reopen_base()
            os.mkdir(path, 0o700)
        self.path = path
        self._fresh = _identity(path)

    def _reopen_base(self) -> None:
        """A run may have shut the base, or the directory of ours that it is in (chmod(2))."""
        with contextlib.suppress(OSError):  # another's, which no run can change
            os.close(open_own(os.path.dirname(self._base), 0o750, fits=0o7777))
        os.close(open_own(self._base, 0o700))

    def untouched(self) -> bool:
        """Whether the run left it exactly as it was."""
        try:
            with os.scandir(self.path) as entries:
                return next(entries, None) is None and _identity(self.path) == self._fresh
        except OSError:
            return False

    def replace(self) -> bytes:
        """Makes another directory; returns the old path, which is the caller's to remove."""
        old = self.path
        self._make()
        return old

    def remove(self) -> None:
        remove_tree(self.path)


def _identity(path: bytes) -> tuple[object, ...]:
    """Changes with names made or removed in it, with mode, owner, ACL and attributes.

    Before Linux 6.13 two changes within a tick have the same time, so attributes are compared too.
    """
    status = os.lstat(path)
    attributes = os.listxattr(path, follow_symlinks=False)
    return (
        status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_ctime_ns, attributes
    )  # fmt: skip


def remove_tree(path: bytes) -> None:
    """Removes a tree, whatever its owner (the run) did to it; a symbolic link itself.

    A tree deeper than Python recurses, or whose directories lost their permissions, is left to
    chmod(1) and rm(1), which walk by descriptors without recursion.
    """
    if not os.path.isdir(path) or os.path.islink(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        for command in (b"/bin/chmod", b"-R", b"u+rwX"), (b"/bin/rm", b"-rf", b"--one-file-system"):
            subprocess.run([*command, b"--", path], stderr=subprocess.DEVNULL, check=False)


def _is_ours(entry: os.DirEntry[bytes]) -> bool:
    return (
        _NAME.fullmatch(entry.name) is not None
        and entry.is_dir(follow_symlinks=False)
        and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    )


def sweep(base: bytes) -> int:
    """Removes what an earlier broker left behind.  Returns how many directories that were.

    Only directories of ours with names as we give them: the operator may have named any place.
    """
    with os.scandir(base) as entries:
        leftovers = [entry.path for entry in entries if _is_ours(entry)]
    for path in leftovers:
        remove_tree(path)
    return len(leftovers)

# SPDX-License-Identifier: Apache-2.0
"""Directories of the broker's account: opened whatever a run did to their mode, and repaired.

A run has our account, and Landlock has no right for chmod(2).  Refusing a mode would let one run
keep the next broker from starting, so what is ours is given its mode back.  What belongs to
somebody else is refused, and a symbolic link is never followed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import TypeAlias

Place: TypeAlias = "str | bytes | Path"

_OUR_NAMES = re.compile(r"audit|tmp|host-broker(-\d+)?")


def open_own(path: Place, mode: int, *, fits: int | None = None) -> int:
    """Opens a directory of ours (O_PATH), after giving it `mode` where what it has does not fit.

    A mode fits if we may do everything and nobody has a permission that is not in `fits` (`mode`).
    Raises OSError, PermissionError for a directory that is not ours.
    """
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = _refuse_foreign(fd, stat.S_IFDIR)
        has = stat.S_IMODE(found.st_mode)
        if has & 0o700 != 0o700 or has & ~(mode if fits is None else fits):
            _refuse_system(path, has)
            _chmod(fd, mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def restore_file(name: str, mode: int, directory_fd: int) -> None:
    """Gives a regular file of ours `mode`.  Raises OSError."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        _refuse_foreign(fd, stat.S_IFREG)
        _chmod(fd, mode)
    finally:
        os.close(fd)


def _refuse_foreign(fd: int, kind: int) -> os.stat_result:
    found = os.fstat(fd)
    if stat.S_IFMT(found.st_mode) != kind:
        raise PermissionError(errno.EPERM, f"it is of another kind (mode {found.st_mode:06o})")
    if found.st_uid != os.geteuid():
        why = f"it belongs to uid {found.st_uid}, the broker runs as {os.geteuid()}"
        raise PermissionError(errno.EPERM, why)
    return found


def _refuse_system(path: Place, has: int) -> None:
    """All of the system is root's: a slip in broker.toml must not close /tmp or /srv to others."""
    named = _OUR_NAMES.fullmatch(os.fsdecode(os.path.basename(path)))
    if os.geteuid() == 0 and (has & stat.S_ISVTX or not named):
        raise PermissionError(
            errno.EPERM, f"it has mode {has:04o}, and may be meant for others than root's broker"
        )


def _chmod(fd: int, mode: int) -> None:
    os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod(2) refuses O_PATH, and we may open nothing more

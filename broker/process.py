# SPDX-License-Identifier: Apache-2.0
"""What the daemon does to its own process, and what it tells its service manager.

Raw prctl(2) and inotify(7), which the standard library does not have.  Nothing here is inherited
by a run: the C core sets dispositions, limits and descriptors of each child anew.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

IN_CREATE = 0x100
IN_MOVED_TO = 0x80
IN_CLOEXEC = os.O_CLOEXEC
IN_NONBLOCK = os.O_NONBLOCK

UMASK = 0o077

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def harden() -> None:
    """Makes the daemon unreadable to others of its user id, a subreaper, and without core dumps.

    Not dumpable: ptrace(2), /proc/PID/mem, environ and fd are refused to processes without
    CAP_SYS_PTRACE.  RLIMIT_CORE is 1 byte, since a core_pattern pipe ignores 0 (core(5)), and since
    runs are given the same.  Descriptors are allowed up to the hard limit: a run needs a few.
    """
    os.umask(UMASK)
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _checked(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")
    _checked(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def take_notify_socket() -> str | None:
    """Takes the manager's address out of the environment, so that nothing started inherits it."""
    return os.environ.pop("NOTIFY_SOCKET", None)


def sd_notify(address: str | None, state: str) -> None:
    """Tells systemd `READY=1`, `STOPPING=1` (sd_notify(3)); without a manager it does nothing.

    A manager that does not listen is its own trouble: it will time out and say so.
    """
    if not address:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(state.encode(), name)
        except OSError:
            return


def inotify_watch(directory: str) -> int:
    """A descriptor that becomes readable when a name appears in `directory`; the caller's.

    Raises OSError where the user's inotify instances are used up.
    """
    watch_fd = _checked(_libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK), "inotify_init1")
    path = os.fsencode(directory)
    try:
        mask = IN_CREATE | IN_MOVED_TO
        _checked(_libc.inotify_add_watch(watch_fd, path, mask), "inotify_add_watch")
    except OSError:
        os.close(watch_fd)
        raise
    return watch_fd

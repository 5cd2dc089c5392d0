# SPDX-License-Identifier: Apache-2.0
"""What can go wrong while confining, with the stage it happened in and what to do about it."""

from __future__ import annotations

import errno
import os
from typing import Final

#: The advice that helps, by stage and errno.
HINTS: Final[dict[str, dict[int, str]]] = {
    "kernel": {
        errno.ENOSYS: "this kernel is built without Landlock; use Linux 6.2 or newer with "
        "CONFIG_SECURITY_LANDLOCK=y",
        errno.EOPNOTSUPP: "Landlock is built in but was not enabled at boot; boot with "
        "lsm=landlock,… (the rest as in /sys/kernel/security/lsm)",
        errno.ERANGE: "Linux 6.2 or newer is needed: below Landlock ABI 3 files outside every root "
        "can be emptied",
    },
    "root": {
        errno.ENOENT: "create it, leave it out, or make it optional",
        errno.ENOTDIR: "a component of the path is a file; leave the root out or fix the path",
        errno.EACCES: "the caller itself may not look that path up",
        errno.ELOOP: "a magic link, or a symbolic link where none is followed; name the place it "
        "points to",
        errno.EMFILE: "raise RLIMIT_NOFILE",
    },
    "ruleset": {
        errno.EPERM: "an outer seccomp filter refuses Landlock; allow the calls landlock_* there",
    },
    "rule": {
        errno.EBADFD: "this filesystem has no inodes that Landlock can bind (nsfs, pipefs, sockfs)",
    },
    "descriptors": {
        errno.EBADF: "a descriptor given as stdio is not open",
        errno.EMFILE: "raise RLIMIT_NOFILE",
        errno.EPROTOTYPE: "as stdio give a file, a pipe or a connected Unix stream pair; any other "
        "socket could be re-aimed by the command",
    },
    "clone": {
        errno.EBADF: "cgroup_fd must be an open cgroup v2 directory",
        errno.EACCES: "the caller may not put processes into that cgroup",
        errno.EAGAIN: "the limit of processes is reached (RLIMIT_NPROC or pids.max)",
        errno.EBUSY: "the cgroup has controllers enabled for its children; use a leaf",
        errno.ENOMEM: "out of memory, or the cgroup's memory.max is reached",
        errno.EOPNOTSUPP: "the cgroup is of a type that takes no processes; use a leaf",
    },
    "terminal": {
        errno.ENOTTY: "terminal_fd must be the slave side of a pty",
        errno.EPERM: "the terminal already controls another session",
    },
    "cwd": {
        errno.EACCES: "the caller itself may not enter that directory",
        errno.ENOENT: "create the working directory or name another",
        errno.ENOTDIR: "the working directory must be a directory",
    },
    "limits": {
        errno.EPERM: "only root raises a hard limit; ask for less or start with more",
    },
    "landlock": {
        errno.E2BIG: "too many sandboxes are nested: the kernel's limit is sixteen Landlock layers",
    },
    "seccomp": {
        errno.ENOMEM: "too many seccomp filters are stacked",
    },
    "exec": {
        errno.E2BIG: "arguments and environment exceed the kernel's limit: 128 KiB for one of "
        "them, a quarter of RLIMIT_STACK together",
        errno.EACCES: "the program, its interpreter or its loader lies in no exec root, or is not "
        "executable",
        errno.ENOENT: "no such program, or its interpreter (named after #!, or ld.so) is missing",
        errno.ENOTDIR: "a component of the program's path is a file",
        errno.ENOEXEC: "neither a binary for this machine nor a script with a #! line",
        errno.ETXTBSY: "somebody has the program open for writing",
    },
}


class SandboxError(OSError):
    """Setting up the confinement failed; nothing of the command has run.

    `stage` says where (a name of `enum sandbox_stage`, or "root" for opening a root), `errno` and
    `strerror` why, `path` on what (or None), `hint` what to do about it (or None).
    """

    def __init__(
        self, stage: str, number: int, *, path: bytes | None = None, hint: str | None = None
    ) -> None:
        super().__init__(number, os.strerror(number))
        self.stage = stage
        self.path = path
        self.filename = None if path is None else os.fsdecode(path)
        self.hint = hint or HINTS.get(stage, {}).get(number)

    @property
    def errno_name(self) -> str:
        """The symbol, e.g. "ENOENT"; the number in digits where the C library has no symbol."""
        return errno.errorcode.get(self.errno or 0, str(self.errno))

    def __str__(self) -> str:
        where = "" if self.path is None else f" {self.filename!r}"
        advice = "" if self.hint is None else f": {self.hint}"
        return f"{self.stage}{where}: {self.strerror} ({self.errno_name}){advice}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.stage, self.errno, self.path, self.hint)


class SandboxUnavailable(SandboxError):
    """This kernel cannot confine: Landlock is not built, not enabled, or below the floor."""


def _rebuild(
    kind: type[SandboxError], stage: str, number: int, path: bytes | None, hint: str | None
) -> SandboxError:
    return kind(stage, number, path=path, hint=hint)

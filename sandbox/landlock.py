# SPDX-License-Identifier: Apache-2.0
"""What a root may grant, and what this kernel can enforce."""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass
from typing import Final

from sandbox import _core
from sandbox.errors import HINTS, SandboxError, SandboxUnavailable

#: The oldest Landlock ABI that confines: 3, of Linux 6.2.
FLOOR: Final = _core.ABI_FLOOR


class Access(enum.Flag):
    """What a root grants beneath it."""

    READ = _core.READ
    """Open for reading, list directories."""
    WRITE = _core.WRITE
    """Write, truncate, create, remove, rename and link; never make device nodes."""
    EXEC = _core.EXEC
    """Execute; a program must be mapped, so this reads too."""
    DEVICE = _core.DEVICE
    """ioctl(2) on device nodes; only beside READ or WRITE, and free below ABI 5."""


class Network(enum.Enum):
    """What a command may do with IP sockets.  Unix sockets are refused either way."""

    OPEN = "open"
    NONE = "none"


class State(enum.Enum):
    """Whether this kernel confines."""

    NOT_BUILT = "not built"
    NOT_ENABLED = "not enabled"
    BELOW_FLOOR = "below the floor"
    READY = "ready"


_STATES: Final = {
    0: State.READY,
    errno.ENOSYS: State.NOT_BUILT,
    errno.EOPNOTSUPP: State.NOT_ENABLED,
    errno.ERANGE: State.BELOW_FLOOR,
}
_ERRNOS: Final = {state: number for number, state in _STATES.items()}


@dataclass(frozen=True, slots=True)
class Status:
    """What this kernel enforces.

    `abi` is the Landlock ABI in use, the smaller of the kernel's (`kernel_abi`) and the newest that
    this package knows; 0 where there is none.  `errata` is the kernel's mask of repaired faults,
    bit n-1 for erratum n; 0 where the kernel reports none.  `handled_fs` has a bit of
    <linux/landlock.h> for each right that is denied where no root grants it.
    """

    state: State
    abi: int = 0
    kernel_abi: int = 0
    errata: int = 0
    handled_fs: int = 0

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def hint(self) -> str | None:
        """What makes the kernel ready; None when it is."""
        if self.ready:
            return None
        found = f"; this kernel is ABI {self.kernel_abi}" if self.kernel_abi else ""
        return HINTS["kernel"][_ERRNOS[self.state]] + found

    def require(self) -> None:
        """Raises SandboxUnavailable, with the fix, unless ready."""
        if not self.ready:
            raise SandboxUnavailable("kernel", _ERRNOS[self.state], hint=self.hint)


def status() -> Status:
    """Asks the kernel.  Raises SandboxError when it gives an answer no Landlock gives."""
    return _status(0)


def _status(max_abi: int) -> Status:
    found = _core.kernel_status(max_abi)
    state = _STATES.get(found.error)
    if state is None:
        raise SandboxError("kernel", found.error)
    return Status(state, found.abi, found.kernel_abi, found.errata, found.handled_fs)

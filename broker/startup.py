# SPDX-License-Identifier: Apache-2.0
"""Refusals to start: each says what was found, where, and the fix, and has its own exit status.

A daemon that cannot prove its floors does not serve.  The statuses follow sysexits.h where it has
a word for the case; `host-broker serve` ends with them and systemd shows them.
"""

from typing import ClassVar


class StartupError(Exception):
    """The daemon refuses to start.  Never raised itself: a subclass names the case."""

    code: ClassVar[str] = "startup_refused"
    exit_status: ClassVar[int] = 1

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


class KernelBelowFloorError(StartupError):
    """The kernel has no Landlock, has it switched off, or is older than ABI 3."""

    code = "kernel_below_floor"
    exit_status = 69  # EX_UNAVAILABLE


class HelperUnprovedError(StartupError):
    """The helper's self-test ran and a row of it failed: it does not enforce on this machine."""

    code = "helper_unproved"
    exit_status = 70  # EX_SOFTWARE


class HelperMissingError(StartupError):
    """There is no helper executable where it must be, or it cannot be run."""

    code = "helper_missing"
    exit_status = 72  # EX_OSFILE


class SocketOccupiedError(StartupError):
    """Something that is not a socket stands at the socket's path; it is never removed."""

    code = "socket_occupied"
    exit_status = 73  # EX_CANTCREAT


class AuditUnavailableError(StartupError):
    """The audit log cannot be opened or appended to, or its chain is broken."""

    code = "audit_unavailable"
    exit_status = 74  # EX_IOERR


class AlreadyRunningError(StartupError):
    """Another broker holds the lock of this socket directory, and goes on serving."""

    code = "already_running"
    exit_status = 75  # EX_TEMPFAIL


class SecretRefusedError(StartupError):
    """The secret file is missing, readable by others, wrongly owned, or too weak."""

    code = "secret_refused"
    exit_status = 77  # EX_NOPERM


class RoutableAddressError(StartupError):
    """The TCP address is not a literal loopback address; nothing listened at any time."""

    code = "routable_address"
    exit_status = 78  # EX_CONFIG


class EndpointReachableError(StartupError):
    """A confined command reached a host control endpoint; only its class is named."""

    code = "endpoint_reachable"
    exit_status = 83


class SettingsRefusedError(StartupError):
    """broker.toml cannot be used as it stands."""

    code = "settings_refused"
    exit_status = 79


class SocketPathTooLongError(StartupError):
    """The socket's path does not fit sun_path: unix(7) takes 107 bytes and a NUL."""

    code = "socket_path_too_long"
    exit_status = 80


class SocketDirectoryError(StartupError):
    """The socket's directory is missing, or others could replace the socket in it."""

    code = "socket_directory"
    exit_status = 81


class ReachUnknownError(StartupError):
    """The reach check could not be carried out, or its control saw nothing: it proves nothing."""

    code = "reach_unknown"
    exit_status = 82

# SPDX-License-Identifier: Apache-2.0
"""The listening sockets: how they come to be at their place, and how they leave it.

Owns the lock of the socket directory, the Unix socket and the loopback TCP socket.  Nothing here
accepts a connection; server.py hands these sockets to the event loop.

The Unix socket appears in one step.  It is bound under another name with mode 0600, listens,
is given its group and then mode 0660, and only then renamed over the final name.  So there is no
moment at which it is wider than 0660 or present and not answering, and a stale file of a killed
broker is replaced without a probe (probing is a race: a live server may answer late).  The lock
is what keeps a second instance out; it is released by the kernel when the holder dies.
"""

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass

from broker.directories import open_own, restore_file
from broker.startup import (
    AlreadyRunningError,
    RoutableAddressError,
    SocketDirectoryError,
    SocketOccupiedError,
    SocketPathTooLongError,
)

SUN_PATH_MAX_BYTES = 107  # unix(7): sun_path is 108 bytes with its NUL
BACKLOG = 128
SOCKET_MODE = 0o660
LOCK_NAME = "broker.lock"
DIRECTORY_MODE = 0o750
DIRECTORY_FITS = 0o2755
"""Of ours nobody keeps more; that others may enter is for an operator who lets them connect."""
LOOPBACK = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


@dataclass(frozen=True, slots=True)
class UnixListener:
    """A listening Unix socket at its final path, and the inode by which it is known as ours."""

    sock: socket.socket
    directory_fd: int
    name: str
    inode: tuple[int, int]

    def unlink(self) -> bool:
        """Removes the socket file if it is still ours; says whether it did."""
        _reopen(self.directory_fd)
        try:
            found = os.stat(self.name, dir_fd=self.directory_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if (found.st_dev, found.st_ino) != self.inode:
            return False
        os.unlink(self.name, dir_fd=self.directory_fd)
        return True


def open_socket_directory(path: str) -> tuple[int, str]:
    """Opens the directory of socket `path`; returns its descriptor, the caller's, and the name.

    The directory is created (0750) if only it is missing, and repaired if it is ours: a run may
    change its mode.  Raises SocketPathTooLongError for a path that no client could connect to,
    SocketDirectoryError where somebody else could put another socket in our place.
    """
    length = len(os.fsencode(path))
    if length > SUN_PATH_MAX_BYTES:
        raise SocketPathTooLongError(
            f"socket path {path!r} is {length} bytes; unix(7) allows {SUN_PATH_MAX_BYTES}",
            "choose a shorter path for `socket` in broker.toml",
        )
    directory, name = os.path.split(os.path.abspath(path))
    try:
        real = os.path.join(_trusted_parent(directory), os.path.basename(directory))
        with contextlib.suppress(FileExistsError):
            os.mkdir(real, 0o750)
        return _open_directory(real), name
    except OSError as error:
        raise SocketDirectoryError(
            f"cannot use socket directory {directory!r}, or others could replace the socket: "
            f"{error.strerror}",
            "make it a directory of the broker's account with mode 0750, below directories that "
            "only root or that account can write",
        ) from error


def _trusted_parent(directory: str) -> str:
    """Where the directory really is, after a look at who could put another in its place.

    Anybody may write above it where the sticky bit keeps names (/tmp).
    """
    parent = os.path.realpath(os.path.dirname(directory), strict=True)
    above = parent
    while True:
        found = os.stat(above)
        shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if shared or found.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, f"{above!r} has {_owner_and_mode(found)}")
        if above == "/":
            return parent
        above = os.path.dirname(above)


def _open_directory(directory: str) -> int:
    """Opens it to be used; one of root's as it is, one of ours after giving back its mode."""
    if os.lstat(directory).st_uid == 0 != os.geteuid():
        path_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    else:
        path_fd = open_own(directory, DIRECTORY_MODE, fits=DIRECTORY_FITS)
    try:
        found = os.fstat(path_fd)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, f"it has {_owner_and_mode(found)}")
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path_fd)
    finally:
        os.close(path_fd)


def _reopen(directory_fd: int) -> None:
    """Lets us reach the names in a directory of ours that a run has shut."""
    found = os.fstat(directory_fd)
    if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
        os.fchmod(directory_fd, DIRECTORY_MODE)


def _owner_and_mode(found: os.stat_result) -> str:
    return f"owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}"


def lock(directory_fd: int, directory: str) -> int:
    """Takes the directory's lock; returns the descriptor that holds it as long as it is open."""
    try:
        lock_fd = _open_lock(directory_fd)
    except OSError as error:
        raise SocketDirectoryError(
            f"cannot open {LOCK_NAME} in {directory!r}: {error.strerror}",
            "look at what it is and who made it, then remove it while no broker serves there",
        ) from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock_fd)
        raise AlreadyRunningError(
            f"another broker serves {directory!r} (it holds {LOCK_NAME})",
            "stop it first, or give this one another `socket` in broker.toml",
        ) from error
    return lock_fd


def _open_lock(directory_fd: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(LOCK_NAME, flags, 0o600, dir_fd=directory_fd)
    except PermissionError:  # a run may have shut it
        restore_file(LOCK_NAME, 0o600, directory_fd)
        return os.open(LOCK_NAME, flags, 0o600, dir_fd=directory_fd)


def listen_unix(directory_fd: int, name: str, group_id: int | None) -> UnixListener:
    """Puts a listening socket at `name`, over a stale one.  The lock must be held.

    `group_id` may connect besides the owner; None leaves the directory's or our own group.
    Raises SocketOccupiedError if what stands at `name` is not a socket.
    """
    refuse_occupied(directory_fd, name)
    temporary = f".broker.sock.{os.getpid()}"
    _remove(directory_fd, temporary)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(sock, directory_fd, temporary)
        sock.listen(BACKLOG)
        if group_id is not None:
            os.chown(temporary, -1, group_id, dir_fd=directory_fd, follow_symlinks=False)
        os.chmod(temporary, SOCKET_MODE, dir_fd=directory_fd)
        found = os.stat(temporary, dir_fd=directory_fd, follow_symlinks=False)
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError:
        sock.close()
        _remove(directory_fd, temporary)
        raise
    return UnixListener(sock, directory_fd, name, (found.st_dev, found.st_ino))


def refuse_occupied(directory_fd: int, name: str) -> None:
    """Raises SocketOccupiedError if something that is not a socket stands at `name`."""
    try:
        found = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketOccupiedError(
            f"{name!r} in the socket directory is not a socket (mode {found.st_mode:06o})",
            "look at what it is and move it away; it is never removed for you",
        )


def _bind(sock: socket.socket, directory_fd: int, name: str) -> None:
    """Binds below a descriptor: any depth fits sun_path, and the directory cannot be swapped."""
    before = os.umask(0o177)
    try:
        sock.bind(f"/proc/self/fd/{directory_fd}/{name}")
    finally:
        os.umask(before)


def _remove(directory_fd: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return


def parse_loopback(address: str) -> tuple[str, int]:
    """Reads `127.0.0.1:PORT` or `[::1]:PORT`; anything else raises RoutableAddressError.

    A name is refused although it may mean loopback: who answers for it may change his mind.
    """
    host, colon, port = address.rpartition(":")
    try:
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("no port from 0 to 65535")
        bracketed = host.startswith("[") and host.endswith("]")
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
        if ip not in LOOPBACK or bracketed != (ip.version == 6):
            raise ValueError("not 127.0.0.1 or [::1]")
    except ValueError as error:
        raise RoutableAddressError(
            f"cannot listen on TCP {address!r}: {error}{_where(host)}",
            'set `tcp` to "127.0.0.1:PORT" or "[::1]:PORT", or leave it out',
        ) from error
    return str(ip), int(port)


def _where(host: str) -> str:
    """Names the interface that has the refused address, so that the operator sees what was open."""
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return ""
    from pyroute2 import IPRoute  # only here: it is slow to import and rarely needed

    with IPRoute() as route:
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in route.get_links()}
        rows = [(row.get_attr("IFA_ADDRESS"), names[row["index"]]) for row in route.get_addr()]
    found = [
        f"{address} on {name}"
        for address, name in sorted(rows)
        if ip.is_unspecified or address == str(ip)
    ]
    return f" (it would be reachable at {', '.join(found)})" if found else ""


def listen_tcp(address: str) -> socket.socket:
    """Listens on a literal loopback address, and asks the kernel where it really listens."""
    host, port = parse_loopback(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        bound = sock.getsockname()[0]
        if bound != host:
            raise RoutableAddressError(
                f"asked for TCP {host!r}, the kernel bound {bound!r}",
                "do not redirect the broker's bind(2)",
            )
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise AlreadyRunningError(
            f"TCP {address} is in use by another program",
            "choose another port for `tcp` in broker.toml",
        ) from error
    except RoutableAddressError:
        sock.close()
        raise
    return sock

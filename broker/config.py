# SPDX-License-Identifier: Apache-2.0
"""Where the broker's files are, and reading them: settings, ceiling, secrets.

Owns the paths, broker.toml, and the checks that a file comes from who may decide: the owner is root
or the broker's own account, nobody else can write it or replace it, and it is a regular file opened
without following a symbolic link.  The checks are made on the opened descriptor.  Leaves to
ceiling.py and auth.py what the contents mean.

A wrong broker.toml or secret refuses to start.  A wrong ceiling denies everything and says why: the
broker then still answers what is the matter.
"""

from __future__ import annotations

import difflib
import enum
import errno
import grp
import os
import pwd
import stat
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from broker import auth
from broker.ceiling import (
    MAX_CEILING_BYTES,
    Ceiling,
    CeilingError,
    canonicalised,
    deny_all,
    overlapping,
    parse_ceiling,
)
from broker.errors import shown, shown_bytes
from broker.listen import SUN_PATH_MAX_BYTES, parse_loopback
from broker.model import ALL_ACCESS, Access, Confinement, Reason
from broker.mounts import mounts, places
from broker.startup import SecretRefusedError, SettingsRefusedError, SocketPathTooLongError

NAME = "host-broker"
"""Of the service's account and of every directory of ours."""
MAX_SETTINGS_BYTES = 64 * 1024
MAX_SECRET_FILE_BYTES = 4096
SCRATCH_MAX_BYTES = 44
"""unix(7) takes 107 bytes: 9 are the run's own directory, 54 a long socket name below TMPDIR."""

DEFAULT_DRAIN_MS = 30_000
DEFAULT_MAX_CONNECTIONS = 256

Mode: TypeAlias = Literal["system", "user"]
CgroupUse: TypeAlias = Literal["auto", "none"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The plumbing: no authority is in here.  `socket_group` is a group id that may connect."""

    mode: Mode
    config_dir: Path
    state_dir: Path
    scratch_dir: Path
    socket: str
    socket_group: int | None = None
    tcp: str | None = None
    drain_ms: int = DEFAULT_DRAIN_MS
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    cgroup: CgroupUse = "auto"

    @property
    def ceiling_file(self) -> Path:
        return self.config_dir / "ceiling.toml"

    @property
    def settings_file(self) -> Path:
        return self.config_dir / "broker.toml"

    @property
    def secret_file(self) -> Path:
        return self.config_dir / "secret"

    @property
    def next_secret_file(self) -> Path:
        """Exists while one secret replaces another; both are accepted then."""
        return self.config_dir / "secret.next"

    @property
    def client_header_file(self) -> Path:
        """`curl -H @FILE`: the secret as a header, so that it is in no argv."""
        return self.config_dir / "client.header"

    @property
    def kill_switch(self) -> Path:
        """While this name exists, as whatever, every run is refused."""
        return self.config_dir / "disabled"

    @property
    def audit_dir(self) -> Path:
        return self.state_dir / "audit"

    @property
    def runtime_dir(self) -> Path:
        return Path(self.socket).parent


# --- a file that decides --------------------------------------------------------------------------


class Problem(enum.Enum):
    """Why a file is not used."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    SYMLINK = "symlink"
    NOT_REGULAR = "not_regular"
    WRONG_OWNER = "wrong_owner"
    WRITABLE_BY_OTHERS = "writable_by_others"
    READABLE_BY_OTHERS = "readable_by_others"
    TOO_LARGE = "too_large"


class FileRefusedError(Exception):
    """A file is missing or not to be trusted.  Says what, where and why; `fix` says what to do."""

    def __init__(self, problem: Problem, what: str, path: Path, why: str, fix: str) -> None:
        super().__init__(f"cannot use {what} {str(path)!r}: {why}")
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True, slots=True)
class _Checked:
    """The file being checked, for the texts."""

    what: str
    path: Path

    def refused(self, problem: Problem, why: str, fix: str) -> FileRefusedError:
        return FileRefusedError(problem, self.what, self.path, why, fix)

    def failed(self, error: OSError, where: Path) -> FileRefusedError:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return self.refused(
                Problem.MISSING, "it does not exist", "create it; see host-broker(8)"
            )
        if error.errno == errno.ELOOP:
            why = "it is a symbolic link"
            return self.refused(Problem.SYMLINK, why, "put the file itself there")
        why = f"{error.strerror} ({str(where)!r})"
        return self.refused(Problem.UNREADABLE, why, "let the broker's account read it")


def read_owned_file(
    path: Path, what: str, *, max_bytes: int, secret: bool = False, readers: int | None = None
) -> bytes:
    """Returns the content of a file that only root or our own account can have written.

    `secret`: nobody else may read it either, but the group `readers` (and group root, whose bit is
    also the mask of an ACL as systemd puts on credentials).  The directories above may not be
    writable by others, who could put another file in its place.  Raises FileRefusedError.
    """
    checked = _Checked(what, path)
    fd = _open_without_link(checked)
    try:
        _refuse_untrusted(checked, os.fstat(fd))
        if secret:
            _refuse_readable(checked, os.fstat(fd), readers)
        data = _read(fd, max_bytes + 1)
    except OSError as error:
        raise checked.failed(error, path) from error
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        why = f"it is larger than {max_bytes} bytes"
        raise checked.refused(Problem.TOO_LARGE, why, "see its man page for the format")
    return data


def _open_without_link(checked: _Checked) -> int:
    # Not blocking: the open of a FIFO would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    directory_fd = _open_parent(checked)
    try:
        return os.open(checked.path.name, flags, dir_fd=directory_fd)
    except OSError as error:
        raise checked.failed(error, checked.path) from error
    finally:
        os.close(directory_fd)


def _read(fd: int, most: int) -> bytes:
    parts = []
    while most > 0 and (part := os.read(fd, most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _refuse_untrusted(checked: _Checked, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        why = "it is not a regular file"
        raise checked.refused(Problem.NOT_REGULAR, why, "put a file there")
    if found.st_uid not in (0, os.geteuid()):
        why = f"it belongs to uid {found.st_uid}, not to root or uid {os.geteuid()}"
        raise checked.refused(Problem.WRONG_OWNER, why, f"chown root {str(checked.path)!r}")
    if found.st_mode & 0o022:
        why = f"others can write it (mode {stat.S_IMODE(found.st_mode):04o})"
        fix = f"look at what it says, then chmod go-w {str(checked.path)!r}"
        raise checked.refused(Problem.WRITABLE_BY_OTHERS, why, fix)


def _refuse_readable(checked: _Checked, found: os.stat_result, readers: int | None) -> None:
    allowed = 0o740 if found.st_gid in (0, readers) else 0o700
    if stat.S_IMODE(found.st_mode) & ~allowed:
        why = f"others can read it (mode {stat.S_IMODE(found.st_mode):04o})"
        fix = f"chmod {allowed & 0o640:04o} {str(checked.path)!r}, and make a new secret"
        raise checked.refused(Problem.READABLE_BY_OTHERS, why, fix)


def _open_parent(checked: _Checked) -> int:
    """Opens the directory of a file (O_PATH) after looking at those above it, as they really are.

    The directory itself may be writable by its owner only.  Above it a group may write, since home
    directories with a group of their own are common, and anybody where the sticky bit keeps names.
    """
    try:
        real = Path(os.path.realpath(checked.path.parent, strict=True))
        for above in reversed(real.parents):
            _refuse_directory(checked, above, os.stat(above), 0o002)
        fd = os.open(real, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise checked.failed(error, checked.path.parent) from error
    try:
        _refuse_directory(checked, real, os.fstat(fd), 0o022)
    except FileRefusedError:
        os.close(fd)
        raise
    return fd


def _refuse_directory(
    checked: _Checked, directory: Path, found: os.stat_result, refused_bits: int
) -> None:
    name = str(directory)
    if found.st_uid not in (0, os.geteuid()):
        why = f"directory {name!r} belongs to uid {found.st_uid}, who could replace the file"
        raise checked.refused(Problem.WRONG_OWNER, why, "put the file below directories of root")
    if found.st_mode & refused_bits and not found.st_mode & stat.S_ISVTX:
        why = f"others can write directory {name!r} (mode {stat.S_IMODE(found.st_mode):04o})"
        raise checked.refused(Problem.WRITABLE_BY_OTHERS, why, f"chmod go-w {name!r}")


# --- broker.toml ----------------------------------------------------------------------------------


def load_settings(
    *,
    environ: Mapping[str, str],
    mode: Mode | None = None,
    config_dir: Path | None = None,
) -> Settings:
    """Reads broker.toml, all of whose keys have defaults; a missing file is an empty one.

    Without `mode`, root and the service's account get the system's broker, everybody else a broker
    of their own.  Raises SettingsRefusedError, SocketPathTooLongError, or RoutableAddressError.
    """
    mode = mode or ("system" if os.geteuid() in (0, _service_uid()) else "user")
    places = _system_places() if mode == "system" else _user_places(environ)
    config_dir = config_dir or places.config_dir
    table = _read_table(config_dir / "broker.toml")
    return _Reader(table, config_dir / "broker.toml").settings(mode, config_dir, places)


def _service_uid() -> int | None:
    try:
        return pwd.getpwnam(NAME).pw_uid
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class _Places:
    config_dir: Path
    runtime_dir: Path
    state_dir: Path


def _system_places() -> _Places:
    return _Places(Path("/etc") / NAME, Path("/run") / NAME, Path("/var/lib") / NAME)


def _user_places(environ: Mapping[str, str]) -> _Places:
    """The XDG directories; a relative one counts as not set, as the specification wants."""

    def base(variable: str, default: str) -> Path:
        value = environ.get(variable, "")
        return Path(value if value.startswith("/") else os.path.expanduser(default)) / NAME

    runtime = environ.get("XDG_RUNTIME_DIR", "")
    fallback = Path("/tmp") / f"{NAME}-{os.geteuid()}"  # noqa: S108 - 0700, owner checked at use
    return _Places(
        base("XDG_CONFIG_HOME", "~/.config"),
        Path(runtime) / NAME if runtime.startswith("/") else fallback,
        base("XDG_STATE_HOME", "~/.local/state"),
    )


def _read_table(path: Path) -> dict[str, object]:
    try:
        data = read_owned_file(path, "settings", max_bytes=MAX_SETTINGS_BYTES)
        return tomllib.loads(data.decode("utf-8"))
    except FileRefusedError as refused:
        if refused.problem is Problem.MISSING:
            return {}
        raise SettingsRefusedError(str(refused), refused.fix) from refused
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as bad:
        raise SettingsRefusedError(
            f"cannot use settings {str(path)!r}: not TOML: {bad}", "correct it"
        ) from bad


_RANGES = {"drain_ms": (0, 600_000), "max_connections": (1, 4096)}
_KEYS = ("socket", "socket_group", "tcp", "state_dir", "scratch_dir", "cgroup", *_RANGES)


class _Reader:
    """Turns the table into Settings; a key that is wrong is named with the file."""

    def __init__(self, table: Mapping[str, object], path: Path) -> None:
        self._table = table
        self._path = path

    def settings(self, mode: Mode, config_dir: Path, places: _Places) -> Settings:
        self._refuse_unknown()
        state_dir = self._directory("state_dir") or places.state_dir
        socket = self._directory("socket") or places.runtime_dir / "broker.sock"
        return Settings(
            mode=mode,
            config_dir=config_dir,
            state_dir=state_dir,
            scratch_dir=self._scratch(state_dir, socket.parent),
            socket=_short_enough(str(socket)),
            socket_group=self._group(),
            tcp=self._tcp(),
            drain_ms=self._number("drain_ms", DEFAULT_DRAIN_MS),
            max_connections=self._number("max_connections", DEFAULT_MAX_CONNECTIONS),
            cgroup=self._cgroup(),
        )

    def _refuse_unknown(self) -> None:
        for key in self._table:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_KEYS)}"
                raise self._refused(key, "is not a setting", hint)

    def _text(self, key: str) -> str | None:
        value = self._table.get(key)
        if value is not None and (not isinstance(value, str) or "\0" in value or not value):
            raise self._refused(key, f"is {shown(str(value))}", "write text in quotes")
        return value

    def _directory(self, key: str) -> Path | None:
        value = self._text(key)
        if value is None:
            return None
        if not value.startswith("/") or ".." in value.split("/"):
            raise self._refused(key, f"is {shown(value)}", "write an absolute path without '..'")
        return Path(value)

    def _scratch(self, state_dir: Path, runtime_dir: Path) -> Path:
        """The first place where a run's own sockets fit; as written it has to fit."""
        written = self._directory("scratch_dir")
        places = [written] if written else [state_dir / "tmp", runtime_dir / "tmp"]
        for place in places:
            if len(os.fsencode(place)) <= SCRATCH_MAX_BYTES:
                return place
        length = len(os.fsencode(places[0]))
        why = f"{str(places[0])!r} is {length} bytes, more than {SCRATCH_MAX_BYTES}"
        raise self._refused("scratch_dir", why, "name a shorter one: sockets of runs go below it")

    def _group(self) -> int | None:
        name = self._text("socket_group")
        if name is None:
            return None
        try:
            return grp.getgrnam(name).gr_gid
        except KeyError as unknown:
            raise self._refused(
                "socket_group", f"is {shown(name)}, which no group is called", f"groupadd {name}"
            ) from unknown

    def _tcp(self) -> str | None:
        address = self._text("tcp")
        if address is not None:
            parse_loopback(address)
        return address

    def _number(self, key: str, default: int) -> int:
        value = self._table.get(key, default)
        least, most = _RANGES[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            fix = f"write a whole number from {least} to {most}"
            raise self._refused(key, f"is {shown(str(value))}", fix)
        return value

    def _cgroup(self) -> CgroupUse:
        match self._table.get("cgroup", "auto"):
            case "auto":
                return "auto"
            case "none":
                return "none"
            case other:
                raise self._refused("cgroup", f"is {shown(str(other))}", 'write "auto" or "none"')

    def _refused(self, key: str, why: str, fix: str) -> SettingsRefusedError:
        return SettingsRefusedError(
            f"cannot use settings {str(self._path)!r}: {shown(key)} {why}", fix
        )


def _short_enough(socket: str) -> str:
    length = len(os.fsencode(socket))
    if length > SUN_PATH_MAX_BYTES:
        raise SocketPathTooLongError(
            f"socket path {socket!r} is {length} bytes; unix(7) allows {SUN_PATH_MAX_BYTES}",
            "choose a shorter path for `socket` in broker.toml",
        )
    return socket


# --- secrets --------------------------------------------------------------------------------------


def load_secrets(settings: Settings) -> auth.Secrets:
    """Reads `secret` and, if there is one, `secret.next`.  Raises SecretRefusedError.

    The system's broker lets its own group read them, since root owns them there.
    """
    current = _read_secret(settings, settings.secret_file)
    if current is None:
        raise SecretRefusedError(
            f"cannot use secret {str(settings.secret_file)!r}: it does not exist",
            "run `host-broker init`",
        )
    return auth.Secrets(current, _read_secret(settings, settings.next_secret_file))


def _service_group() -> int:
    """The group that may read the system's secret: the unit's account, whoever looks."""
    try:
        return grp.getgrnam(NAME).gr_gid
    except KeyError:
        return os.getegid()


def _read_secret(settings: Settings, path: Path) -> bytes | None:
    readers = _service_group() if settings.mode == "system" else None
    try:
        content = read_owned_file(
            path, "secret", max_bytes=MAX_SECRET_FILE_BYTES, secret=True, readers=readers
        )
        auth.parse_secret(content)
    except FileRefusedError as refused:
        if refused.problem is Problem.MISSING:
            return None
        raise SecretRefusedError(str(refused), refused.fix) from refused
    except auth.WeakSecretError as weak:
        raise SecretRefusedError(
            f"cannot use secret {str(path)!r}: it {weak}", "move it away and run `host-broker init`"
        ) from None  # nothing of the content may be shown
    return content


# --- the ceiling ----------------------------------------------------------------------------------

_CEILING_REASONS = {
    Problem.MISSING: Reason.CEILING_MISSING,
    Problem.UNREADABLE: Reason.CEILING_UNREADABLE,
    Problem.SYMLINK: Reason.CEILING_SYMLINK,
    Problem.NOT_REGULAR: Reason.CEILING_MALFORMED,
    Problem.WRONG_OWNER: Reason.CEILING_WRONG_OWNER,
    Problem.WRITABLE_BY_OTHERS: Reason.CEILING_WRITABLE_BY_OTHERS,
    Problem.TOO_LARGE: Reason.CEILING_MALFORMED,
}


def load_ceiling(settings: Settings) -> Ceiling:
    """Reads ceiling.toml and asks the disk where its roots really are.

    Never raises for what the file is or says: whatever is wrong gives a ceiling that denies
    everything and says why.  Roots that do not exist are left to exist later, with a warning; if
    there is no other, or if a root reaches the broker's own files, everything is denied.
    """
    path = settings.ceiling_file
    try:
        ceiling = parse_ceiling(read_owned_file(path, "ceiling", max_bytes=MAX_CEILING_BYTES))
    except FileRefusedError as refused:
        return deny_all(_CEILING_REASONS[refused.problem], f"{refused}; {refused.fix}")
    except CeilingError as bad:
        return deny_all(Reason.CEILING_MALFORMED, f"cannot use ceiling {str(path)!r}: {bad}")
    if ceiling.deny_code is not None:
        return ceiling
    return _without_own_files(_placed(ceiling), settings)


def _placed(ceiling: Ceiling) -> Ceiling:
    real_paths: dict[bytes, bytes] = {}
    missing: list[bytes] = []
    for root in ceiling.roots:
        real = _real_path(root.path)
        if real is None:
            missing.append(root.path)
        else:
            real_paths[root.path] = real
    if not real_paths:
        why = (
            f"no usable root: none of {len(missing)} exists, the first is {shown_bytes(missing[0])}"
        )
        return deny_all(Reason.CEILING_EMPTY, why)
    return canonicalised(ceiling, real_paths, missing)


def _real_path(path: bytes) -> bytes | None:
    """Where the kernel gets to by a path; None if nowhere."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        real = os.readlink(b"/proc/self/fd/%d" % fd)
        return real if real.startswith(b"/") and not real.endswith(b" (deleted)") else None
    finally:
        os.close(fd)


def _without_own_files(ceiling: Ceiling, settings: Settings) -> Ceiling:
    """Refuses a ceiling under which a run could reach what rules it.

    With the secret, records or settings in reach a run could raise its own ceiling or rewrite what
    it did; with the socket's directory or our code writable it could stand in for the broker.  An
    unconfined ceiling says openly that runs can do all this.
    """
    if ceiling.confinement is Confinement.UNCONFINED:
        return ceiling
    try:
        known = mounts()
    except OSError as error:
        return deny_all(Reason.CEILING_UNREADABLE, f"cannot read the mounts: {error.strerror}")
    for directory, access, what in _own_directories(settings):
        here = os.fsencode(os.path.realpath(directory))
        for root in (root for place in places(here, known) for root in overlapping(ceiling, place)):
            if root.access & access:
                return deny_all(
                    Reason.CEILING_MALFORMED,
                    f"cannot use ceiling {str(settings.ceiling_file)!r}: root "
                    f"{shown_bytes(root.path)} reaches {what} in {str(directory)!r}; "
                    "list the directories beside it instead",
                )
    return ceiling


def _own_directories(settings: Settings) -> list[tuple[Path, Access, str]]:
    """Our directories, the access to each that a run must not have, and what is in it."""
    return [
        (settings.config_dir, ALL_ACCESS, "the broker's settings and secret"),
        (settings.state_dir, ALL_ACCESS, "the broker's records"),
        (settings.scratch_dir, ALL_ACCESS, "the private directories of other runs"),
        (settings.runtime_dir, Access.WRITE, "the broker's socket"),
        *[(path, Access.WRITE, "the broker's own code") for path in _code_directories()],
    ]


def _code_directories() -> list[Path]:
    """Where our code is imported from, as far as the account of the runs could write there.

    A checkout that we run from is not all code: of it only the packages count.
    """
    home = Path(__file__).parents[1]
    imported = {Path(entry) for entry in sys.path if entry.startswith("/")}
    if not home.name.endswith("-packages"):
        imported.discard(home)
    code = imported | {home / "broker", home / "sandbox", Path(sys.executable).parent}
    return sorted(path for path in code if _is_own(path))


def _is_own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


# --- provisioning ---------------------------------------------------------------------------------


def init_directories(settings: Settings, account: tuple[int, int] | None = None) -> list[Path]:
    """Creates what is missing of the broker's directories, with exact modes; returns what it made.

    `account` is the (uid, gid) the system's broker runs as, given by root: the configuration then
    stays root's and readable by that group, the rest is the account's.  A directory that exists
    loses the permissions it should not have.  Raises SettingsRefusedError.
    """
    uid, gid = account or (os.geteuid(), os.getegid())
    config_uid, config_mode = (0, 0o750) if account else (uid, 0o700)
    rows: Sequence[tuple[Path, int, int]] = (
        (settings.config_dir, config_uid, config_mode),
        (settings.runtime_dir, uid, 0o750),
        (settings.state_dir, uid, 0o700),
        (settings.audit_dir, uid, 0o700),
        (settings.scratch_dir, uid, 0o700),
    )
    try:
        return [path for path, owner, mode in rows if _make_directory(path, owner, gid, mode)]
    except OSError as error:
        raise SettingsRefusedError(
            f"cannot make directory {error.filename!r}: {error.strerror}",
            "make it by hand, or change broker.toml",
        ) from error


def _make_directory(path: Path, uid: int, gid: int, mode: int) -> bool:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
        made = True
    except FileExistsError:
        made = False
    # O_PATH, since under an odd umask even we may not open it before the chmod.
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found, itself = os.fstat(fd), f"/proc/self/fd/{fd}"
        if made and (found.st_uid, found.st_gid) != (uid, gid):
            os.chown(itself, uid, gid)
        elif found.st_uid != uid:
            raise OSError(errno.EPERM, f"it belongs to uid {found.st_uid}, not {uid}", str(path))
        if made or stat.S_IMODE(found.st_mode) & ~mode:
            os.chmod(itself, mode)
    finally:
        os.close(fd)
    return made


def create_secret(settings: Settings, account: tuple[int, int] | None = None) -> bool:
    """Writes a new secret and its `client.header` if there is no secret; returns whether it did.

    0600 and ours; with `account` (see init_directories) 0640, root's and its group's.  Never
    replaces a secret.  Raises SettingsRefusedError.
    """
    secret = auth.generate_secret()
    mode, gid = (0o640, account[1]) if account else (0o600, os.getegid())
    try:
        if not _write_new(settings.secret_file, f"{secret}\n", mode, gid):
            return False
        settings.client_header_file.unlink(missing_ok=True)  # of an earlier secret
        _write_new(settings.client_header_file, auth.client_header(secret), mode, gid)
    except OSError as error:
        raise SettingsRefusedError(
            f"cannot write {error.filename!r}: {error.strerror}", "run `host-broker init` as owner"
        ) from error
    return True


def _write_new(path: Path, text: str, mode: int, gid: int) -> bool:
    """Creates the file complete and durable, or not at all; False if the name is taken."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fchown(fd, -1, gid)
            os.fchmod(fd, mode)
            os.fsync(fd)
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True

# SPDX-License-Identifier: Apache-2.0
"""`host-broker init`: directories, a secret, a ceiling that denies everything.  Idempotent.

Nothing that exists is changed: no secret that clients hold, no ceiling that an operator wrote.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path

from broker.config import NAME, Settings, create_secret, init_directories
from broker.startup import SettingsRefusedError

PACKAGE = Path(__file__).parent
EXAMPLE_CEILING = PACKAGE / "ceiling.example.toml"
UNIT = PACKAGE / "host-broker.service"


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What `init` made; what was there already is not in it."""

    directories: tuple[Path, ...]
    secret: bool
    ceiling: bool


def unit_text() -> str:
    """The systemd unit of the system's broker, with this installation's command in it."""
    command = Path(sys.executable).parent / NAME
    return UNIT.read_text().replace("/usr/bin/host-broker", str(command))


def service_account() -> tuple[int, int] | None:
    """(uid, gid) of the account of the system's unit, if it exists."""
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(NAME)
        return entry.pw_uid, entry.pw_gid
    return None


def provision(settings: Settings, *, ceiling: str | None = None) -> Provisioned:
    """Makes what is missing.  `ceiling` is the text of a new one; the default denies everything.

    Raises:
        SettingsRefusedError: a directory or file cannot be made.
    """
    account = service_account() if settings.mode == "system" and os.geteuid() == 0 else None
    directories = init_directories(settings, account)
    secret = create_secret(settings, account)
    text = EXAMPLE_CEILING.read_text() if ceiling is None else ceiling
    return Provisioned(tuple(directories), secret, _write_ceiling(settings.ceiling_file, text))


def _write_ceiling(path: Path, text: str) -> bool:
    """0644 and the caller's; False if there is one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    except OSError as error:
        raise SettingsRefusedError(
            f"cannot write {str(path)!r}: {error.strerror}", "run `host-broker init` as the owner"
        ) from error
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o644)
        file.write(text)
    return True

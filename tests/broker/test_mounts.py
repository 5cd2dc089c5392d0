# SPDX-License-Identifier: Apache-2.0
"""Where else a directory is mounted, and that a ceiling is refused which reaches ours there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.mounts import Mount, mounts, places
from tests.support.kernel import require_program, require_root

ROOT = Mount(b"8:1", b"/", b"/")
HOME = Mount(b"8:2", b"/@home", b"/home")


@pytest.mark.parametrize(
    ("path", "others", "found"),
    [
        (b"/etc/x", (), {b"/etc/x"}),
        (b"/etc/x", (Mount(b"8:1", b"/etc/x", b"/srv/w"),), {b"/etc/x", b"/srv/w"}),
        (b"/etc/x", (Mount(b"8:1", b"/etc", b"/srv/w"),), {b"/etc/x", b"/srv/w/x"}),
        (b"/etc/x", (Mount(b"8:1", b"/", b"/srv/w"),), {b"/etc/x", b"/srv/w/etc/x"}),
        (b"/etc/x", (Mount(b"8:1", b"/etc/x/y", b"/srv/w"),), {b"/etc/x", b"/srv/w"}),
        (b"/etc/x", (Mount(b"8:1", b"/etc/xy", b"/srv/w"),), {b"/etc/x"}),
        (b"/etc/x", (Mount(b"8:2", b"/etc/x", b"/srv/w"),), {b"/etc/x"}),
        (b"/home/a", (), {b"/home/a"}),
        (b"/home/a", (Mount(b"8:2", b"/@home/a/b", b"/srv/w"),), {b"/home/a", b"/srv/w"}),
        (b"/home/a", (Mount(b"8:2", b"/", b"/srv"),), {b"/home/a", b"/srv/@home/a"}),
        (b"/home", (Mount(b"8:2", b"/@home", b"/srv/w"),), {b"/home", b"/srv/w"}),
        (b"/home/a", (Mount(b"9:9", b"/", b"/home"),), {b"/home/a"}),
        (b"/srv/x", (Mount(b"8:1", b"/etc", b"/srv"),), {b"/srv/x", b"/etc/x"}),
    ],
)
def test_places(path: bytes, others: tuple[Mount, ...], found: set[bytes]) -> None:
    assert set(places(path, (ROOT, HOME, *others))) == found


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hb ", dir="/tmp") as directory:
        yield Path(directory)


LOAD = """
import os, sys
from broker import config
from broker.mounts import mounts
settings = config.load_settings(environ=os.environ, mode="user")
print(any(b"hb " in mount.point for mount in mounts()), config.load_ceiling(settings).deny_reason)
"""


@pytest.mark.parametrize(
    ("bound", "at", "refused"),
    [
        ("c/host-broker", "work/below", True),
        ("c", "work", True),
        ("c", "work/deep", True),
        ("c/host-broker/sub", "work/below", True),
        ("s/host-broker", "work/below", True),
        ("other", "work/below", False),
    ],
)
def test_our_directory_bound_into_a_root_is_found(
    home: Path, bound: str, at: str, refused: bool
) -> None:
    """The directory's name has a space, which the kernel escapes."""
    require_root()
    require_program("unshare")
    for name in ("c/host-broker/sub", "s/host-broker", "r", "other", "work/below", "work/deep"):
        (home / name).mkdir(parents=True)
    ceiling = home / "c/host-broker/ceiling.toml"
    ceiling.write_text(f'read = ["{home}/work"]')
    ceiling.chmod(0o600)
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4"'
    unshare = ["unshare", "--mount", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*unshare, str(home / bound), str(home / at), sys.executable, LOAD],
        env=os.environ | {
            "XDG_CONFIG_HOME": f"{home}/c",
            "XDG_STATE_HOME": f"{home}/s",
            "XDG_RUNTIME_DIR": f"{home}/r",
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    seen, _, reason = done.stdout.strip().partition(" ")
    assert seen == "True"
    assert ("reaches the broker's" in reason) == refused, reason
    assert refused or reason == "None"


def test_the_root_is_always_mounted() -> None:
    assert b"/" in {mount.point for mount in mounts()}

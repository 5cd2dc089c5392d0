# SPDX-License-Identifier: Apache-2.0
"""Parts of the daemon that need no process of their own; the rest is in tests/e2e."""

from __future__ import annotations

import os
import pwd
import resource
import stat
from pathlib import Path

import pytest

from broker import server
from broker.audit import Audit
from broker.ceiling import Ceiling, deny_all
from broker.chain import GENESIS, encode
from broker.gate import Account
from broker.logfile import RESERVE_BYTES
from broker.model import Access, Reason, Root
from broker.startup import SettingsRefusedError
from tests.support.daemon import Daemon
from tests.support.kernel import require_root
from tests.support.process import as_ordinary_user, in_process, ordinary_directory


def test_the_scratch_directory_is_made_private(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    before = os.umask(0)
    try:
        server.make_scratch(place)
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    server.make_scratch(place)


@pytest.mark.parametrize("mode", [0o777, 0o710, 0o1777, 0, 0o500])
def test_a_scratch_directory_and_the_state_get_their_mode_back(mode: int) -> None:
    """A run can change it (chmod(2)), and must not keep the next broker from starting."""
    with ordinary_directory() as place:

        def modes() -> list[int]:
            state = place / "state"
            scratch = state / "tmp"
            scratch.mkdir(parents=True)
            scratch.chmod(mode)
            state.chmod(mode)
            server.restore_state(state)
            server.make_scratch(scratch)
            return [stat.S_IMODE(path.stat().st_mode) for path in (state, scratch)]

        assert as_ordinary_user(modes) == [0o700, 0o700]


def test_a_state_directory_of_another_is_left_as_it_is(tmp_path: Path) -> None:
    require_root()
    os.chown(tmp_path, 12345, -1)
    tmp_path.chmod(0o755)
    server.restore_state(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    server.restore_state(tmp_path / "none")


def test_root_does_not_close_a_directory_of_the_system(tmp_path: Path) -> None:
    require_root()
    for name, mode in (("srv", 0o755), ("tmp", 0o1777)):
        place = tmp_path / name
        place.mkdir()
        place.chmod(mode)
        with pytest.raises(SettingsRefusedError, match="meant for others") as refused:
            server.make_scratch(place)
        assert refused.value.exit_status == 79
        assert stat.S_IMODE(place.stat().st_mode) == mode


def test_a_disk_that_fills_up_during_the_start_is_a_refusal() -> None:
    """The log has the space it was opened with and gets no more: EFBIG stands for ENOSPC."""
    with Daemon() as daemon:
        audit = Audit.open(daemon.settings.audit_dir)
        nearly_full = RESERVE_BYTES - RESERVE_BYTES // 16
        for _ in range(nearly_full // 50_000):
            audit.append_blocking("exec.denied", {"why": "x" * 50_000})
        audit.close()

        def start() -> tuple[int, str]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (RESERVE_BYTES, RESERVE_BYTES))
            return daemon.refused()

        status, said = in_process(start)
    assert status == 74, said
    assert "fix: make space on its disk" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("what", ["another's", "a file", "a symlink", "no parent"])
def test_a_scratch_directory_that_is_not_ours_alone_is_refused(tmp_path: Path, what: str) -> None:
    place = tmp_path / "tmp"
    if what == "another's":
        require_root()
        place.mkdir(mode=0o700)
        os.chown(place, 12345, -1)
    elif what == "a file":
        place.touch(0o600)
    elif what == "a symlink":
        (tmp_path / "real").mkdir(mode=0o700)
        place.symlink_to("real")
    else:
        place = tmp_path / "no" / "tmp"
    with pytest.raises(SettingsRefusedError, match="scratch directory") as refused:
        server.make_scratch(place)
    assert refused.value.exit_status == 79


def test_the_account_is_the_one_we_run_as(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert server.own_account() == Account(b"root", b"/root", os.fsencode(pwd.getpwuid(0).pw_shell))
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_001)
    assert server.own_account() == Account(b"4000000001", b"/", b"/bin/sh")


def test_a_ceiling_of_any_size_fits_into_a_record() -> None:
    roots = tuple(Root(b"/%0200d" % number, Access.READ) for number in range(10_000))
    warnings = tuple(f"root {number} does not exist" for number in range(10_000))
    for ceiling in (Ceiling(roots=roots, warnings=warnings), deny_all(Reason.CEILING_EMPTY, "x")):
        fields = server.ceiling_fields(ceiling)
        line, _ = encode(GENESIS, at="", instance="", kind="broker.started", fields=fields)
        assert b'"cut"' not in line


def test_while_the_secret_cannot_be_trusted_nobody_is_let_in() -> None:
    assert not server.Nobody().verify(b"Bearer x")
    assert not server.Nobody().verify(None)

# SPDX-License-Identifier: Apache-2.0
"""Parts of the daemon that need no process of their own; the rest is in tests/e2e."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from broker import server
from broker.ceiling import Ceiling, deny_all
from broker.chain import GENESIS, encode
from broker.gate import Account
from broker.model import Access, Reason, Root
from broker.startup import SettingsRefusedError


def test_the_scratch_directory_is_made_private(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    before = os.umask(0)
    try:
        server.make_scratch(place)
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    server.make_scratch(place)


@pytest.mark.parametrize("what", ["others can enter", "a file", "a symlink", "no parent"])
def test_a_scratch_directory_that_is_not_ours_alone_is_refused(tmp_path: Path, what: str) -> None:
    place = tmp_path / "tmp"
    if what == "others can enter":
        place.mkdir(mode=0o700)
        place.chmod(0o710)
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
        encode(GENESIS, at="", instance="", kind="broker.started", fields=fields)


def test_while_the_secret_cannot_be_trusted_nobody_is_let_in() -> None:
    assert not server.Nobody().verify(b"Bearer x")
    assert not server.Nobody().verify(None)

# SPDX-License-Identifier: Apache-2.0
"""Readiness: the helper is proved, and each floor by itself stops every run."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sandbox
from broker import readiness
from broker.audit import Audit
from broker.ceiling import Ceiling, deny_all
from broker.errors import NotReadyError
from broker.model import Access, Reason, Root
from broker.readiness import Proof, Readiness, Selftest
from broker.startup import HelperMissingError, HelperUnprovedError, StartupError
from tests.support.process import as_ordinary_user, ordinary_directory

HELPER = str(sandbox.helper_path())


class Floors:
    """Readiness over a real log and a copy of the real helper."""

    def __init__(self, base: Path) -> None:
        self.helper = base / "confine"
        shutil.copy(HELPER, self.helper)
        with Selftest(str(self.helper)) as selftest:
            self.proof = selftest.finish()
        self.audit = Audit.open(base / "audit")
        self.kill_switch = base / "disabled"
        self.log_failures: list[str] = []
        self.ceiling = Ceiling(roots=(Root(b"/srv", Access.READ),))
        self.readiness = Readiness(
            proof=self.proof,
            audit=self.audit,
            kill_switch=str(self.kill_switch),
            ceiling=lambda: self.ceiling,
            log_failed=lambda: self.log_failures.append("failed"),
        )


@pytest.fixture
def floors(tmp_path: Path) -> Iterator[Floors]:
    made = Floors(tmp_path)
    yield made
    if made.audit.failure is None:
        made.audit.close()


def test_the_real_helper_is_proved(floors: Floors) -> None:
    assert floors.proof.abi >= sandbox.FLOOR
    assert floors.proof.rows > 50
    assert floors.proof.holds()
    assert all(floors.readiness.checks().values())
    assert floors.readiness.objection() is None


FLOORS = [
    ("draining", "draining", 503),
    ("kill_switch", "feature_disabled", 403),
    ("audit_writable", "audit_unavailable", 503),
    ("helper_selftest", "not_ready", 503),
]


@pytest.mark.parametrize(("name", "code", "status"), FLOORS)
def test_each_floor_by_itself_stops_every_run(
    floors: Floors, name: str, code: str, status: int
) -> None:
    if name == "draining":
        floors.readiness.draining = True
    elif name == "kill_switch":
        floors.kill_switch.touch()
    elif name == "audit_writable":
        floors.audit.close()
    else:
        floors.helper.write_bytes(b"")
    floors.readiness.refresh()
    assert {key for key, holds in floors.readiness.checks().items() if not holds} == {name}
    objection = floors.readiness.objection()
    assert objection is not None
    assert (objection.code, objection.status) == (code, status)


@pytest.mark.parametrize(
    ("reason", "loaded"),
    [
        (Reason.CEILING_EMPTY, True),
        (Reason.CEILING_MISSING, False),
        (Reason.CEILING_SYMLINK, False),
    ],
)
def test_a_ceiling_is_loaded_though_it_is_empty(
    floors: Floors, reason: Reason, loaded: bool
) -> None:
    floors.ceiling = deny_all(reason, "why")
    floors.readiness.refresh()
    assert floors.readiness.checks()["ceiling_loaded"] is loaded
    assert floors.readiness.objection() is None  # the gate says why


def test_the_kill_switch_is_looked_at_for_every_run(floors: Floors) -> None:
    assert floors.readiness.objection() is None
    floors.kill_switch.touch()
    assert floors.readiness.objection() is not None
    floors.kill_switch.unlink()
    assert floors.readiness.objection() is None


def test_a_switch_that_cannot_be_looked_for_is_on(floors: Floors) -> None:
    """A run may shut the directory; only "there is none" is off."""
    with ordinary_directory() as place:

        def looks() -> list[bool]:
            switch = place / "config" / "disabled"
            switch.parent.mkdir()
            readiness = Readiness(
                proof=floors.proof,
                audit=floors.audit,
                kill_switch=str(switch),
                ceiling=lambda: floors.ceiling,
                log_failed=lambda: None,
            )
            seen = [readiness.killed()]
            switch.parent.chmod(0)
            seen.append(readiness.killed())
            switch.parent.chmod(0o700)
            switch.symlink_to("nowhere")
            seen.append(readiness.killed())
            switch.unlink()
            switch.parent.rmdir()
            switch.parent.touch()
            seen.append(readiness.killed())
            return seen

        assert as_ordinary_user(looks) == [False, True, True, True]


def test_what_was_seen_stands_for_a_second(floors: Floors, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now)
    assert floors.readiness.known() == {}
    assert floors.readiness.checks()["kill_switch"]
    floors.kill_switch.touch()
    assert floors.readiness.checks()["kill_switch"]
    assert floors.readiness.known()["kill_switch"]
    now += 1.0
    assert not floors.readiness.checks()["kill_switch"]


CHANGES = {
    "replaced": lambda path: Path(shutil.copy(HELPER, path.with_name("n"))).rename(path),
    "written": lambda path: path.write_bytes(path.read_bytes()),
    "removed": lambda path: path.unlink(),
    "made executable again": lambda path: path.chmod(0o700),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_helper_that_changed_is_not_the_one_that_was_proved(floors: Floors, change: str) -> None:
    CHANGES[change](floors.helper)
    assert not floors.proof.holds()


def test_a_replaced_helper_serves_once_it_is_proved(floors: Floors) -> None:
    CHANGES["replaced"](floors.helper)
    floors.readiness.refresh()
    assert isinstance(floors.readiness.objection(), NotReadyError)
    floors.readiness.prove_again()
    floors.readiness.refresh()
    assert floors.readiness.objection() is None


def test_a_replaced_helper_that_proves_nothing_stays_out(floors: Floors) -> None:
    floors.helper.unlink()
    floors.helper.symlink_to("/bin/true")
    with pytest.raises(HelperUnprovedError, match="gave no proof"):
        floors.readiness.prove_again()
    floors.readiness.refresh()
    assert isinstance(floors.readiness.objection(), NotReadyError)


def test_a_helper_that_cannot_be_started_now_is_tried_again_by_the_service_manager() -> None:
    """Want of processes passes: its exit status is one after which the unit restarts."""

    def start() -> int:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            Selftest(HELPER)
        except StartupError as refused:
            return refused.exit_status
        raise AssertionError("it started")

    assert as_ordinary_user(start) == HelperUnprovedError.exit_status


def test_a_helper_that_hangs_is_unproved_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "confine"
    helper.write_text("#!/bin/sh\necho $$ > $TMPDIR/pid\nexec sleep 3341.5\n")
    helper.chmod(0o755)
    monkeypatch.setattr(readiness, "SELFTEST_TIMEOUT_S", 0.5)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(HelperUnprovedError, match="did not end"), Selftest(str(helper)) as selftest:
        selftest.finish()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_start_that_fails_elsewhere_ends_the_selftest(tmp_path: Path) -> None:
    helper = tmp_path / "confine"
    helper.write_text("#!/bin/sh\nexec sleep 3342.5\n")
    helper.chmod(0o755)
    with pytest.raises(RuntimeError), Selftest(str(helper)) as selftest:
        raise RuntimeError
    assert selftest._process.returncode == -signal.SIGKILL


def test_a_missing_helper_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(HelperMissingError, match="nowhere") as missing:
        Selftest(str(tmp_path / "nowhere"))
    assert "make build" in missing.value.fix


def test_nothing_of_our_environment_reaches_the_selftest(tmp_path: Path) -> None:
    helper = tmp_path / "confine"
    helper.write_text("#!/bin/sh\nenv >&2\nexit 1\n")
    helper.chmod(0o755)
    program = (
        "import sys; from broker.readiness import Selftest\n"
        "try:\n    Selftest(sys.argv[1]).finish()\nexcept Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(helper)],
        env={**os.environ, "CANARY": "c4nary"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "TMPDIR" in done.stdout
    assert "c4nary" not in done.stdout


def test_a_proof_knows_its_file(floors: Floors) -> None:
    assert replace(floors.proof, identity=(0, 0, 0, 0, 0)).holds() is False
    assert isinstance(floors.proof, Proof)

# SPDX-License-Identifier: Apache-2.0
"""Whether a command may run now: what is proved at the start, and what must go on holding.

At the start: the helper's self-test (a child confined for real, each denial with its control) and
the endpoint reach check (reach.py) by the real spawn path.  Unproved means not serving, in both
confinement modes.  While serving: the helper is still the file that was proved, the ceiling is
loaded, records can be written, the kill switch is off, the broker is not stopping.  Those are
looked at again at most once a second, but for the kill switch, which is looked at for every run.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import sandbox
from broker.audit import Audit
from broker.ceiling import Ceiling
from broker.errors import (
    AuditUnavailableError,
    BrokerError,
    DrainingError,
    FeatureDisabledError,
    NotReadyError,
)
from broker.model import Reason
from broker.startup import HelperMissingError, HelperUnprovedError, KernelBelowFloorError

SELFTEST_TIMEOUT_S = 30.0
CHECK_AGAIN_S = 1.0
EXIT_KERNEL = 91  # confine(1): this kernel cannot confine
DETAIL_ROWS = 5

_FIX = "run `confine --selftest` by hand, rebuild with `make build`, see docs/operating.md"

_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

Identity = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Proof:
    """The helper as it was proved: which file it is, and what of Landlock it uses."""

    helper: str
    identity: Identity
    abi: int
    errata: int
    rows: int

    def holds(self) -> bool:
        """Whether the helper is still that file, unchanged."""
        try:
            return _identity(self.helper) == self.identity
        except OSError:
            return False


def helper_path() -> str:
    """The helper of this installation.  Raises HelperMissingError."""
    try:
        return str(sandbox.helper_path())
    except FileNotFoundError as error:
        raise HelperMissingError(str(error), _FIX) from error


class Selftest:
    """`confine --selftest --json`: started now, judged later; a start has more to do meanwhile.

    Context manager: leaving it ends a self-test that is still going on.
    """

    def __init__(self, helper: str) -> None:
        """Raises HelperMissingError if there is nothing that can be started.

        HelperUnprovedError if it cannot be started now, for want of memory or processes.
        """
        self._helper = helper
        try:
            self._identity = _identity(helper)
            self._process = subprocess.Popen(
                [helper, "--selftest", "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"TMPDIR": os.environ.get("TMPDIR", "/tmp")},  # noqa: S108
            )
        except OSError as error:
            what = f"cannot run the helper {helper!r}: {error.strerror}"
            if error.errno in _PASSING:  # not for the operator to mend
                raise HelperUnprovedError(what, "it is tried again") from error
            raise HelperMissingError(what, _FIX) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.__exit__(kind, error, trace)

    def finish(self) -> Proof:
        """Waits for the proof.  Raises KernelBelowFloorError or HelperUnprovedError."""
        try:
            output, errors = self._process.communicate(timeout=SELFTEST_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise HelperUnprovedError(
                f"the self-test of {self._helper!r} did not end in {SELFTEST_TIMEOUT_S:g} s", _FIX
            ) from error
        said = errors.decode("utf-8", "replace").strip().removeprefix("confine: ")
        status = self._process.returncode
        if status == EXIT_KERNEL:
            raise KernelBelowFloorError(
                f"this kernel cannot confine: {said}",
                "boot Linux 6.2 or newer with Landlock enabled (lsm=landlock,…)",
            )
        return self._judge(output, status, said)

    def _judge(self, output: bytes, status: int, said: str) -> Proof:
        try:
            report = json.loads(output.decode("utf-8", "surrogateescape"))
            rows, ok, abi, errata = (report[key] for key in ("rows", "ok", "abi", "errata"))
            failed = [row["name"] for row in rows if not row["ok"] and not row["skipped"]]
        except (ValueError, KeyError, TypeError) as error:
            raise HelperUnprovedError(
                f"{self._helper!r} gave no proof (exit status {status}): {said or error}", _FIX
            ) from error
        if status != 0 or ok is not True or failed or all(row["skipped"] for row in rows):
            names = ", ".join(failed[:DETAIL_ROWS]) or f"exit status {status}"
            raise HelperUnprovedError(
                f"{self._helper!r} does not enforce on this machine: {names}", _FIX
            )
        return Proof(self._helper, self._identity, int(abi), int(errata), len(rows))


def _identity(path: str) -> Identity:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_thrown(kill_switch: str | os.PathLike[str]) -> bool:
    """Whether there is any file of this name, whatever it is.

    Only "there is none" is off: a run can shut the directory of a user's broker (chmod(2)), and
    must not so hide the switch.
    """
    try:
        os.lstat(kill_switch)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


class Readiness:
    """The floors while serving, by name: true where one holds.  `draining` is set once."""

    def __init__(
        self,
        *,
        proof: Proof,
        audit: Audit,
        kill_switch: str,
        ceiling: Callable[[], Ceiling],
        log_failed: Callable[[], None],
    ) -> None:
        """`log_failed` is called whenever records are seen not to be writable."""
        self.draining = False
        self._proof = proof
        self._audit = audit
        self._kill_switch = kill_switch
        self._ceiling = ceiling
        self._log_failed = log_failed
        self._checked_at = 0.0
        self._checks: dict[str, bool] = {}

    def checks(self) -> dict[str, bool]:
        """Every floor, looked at within the last second."""
        now = time.monotonic()
        if not self._checks or now - self._checked_at >= CHECK_AGAIN_S:
            self._checks = self._look()
            self._checked_at = now
        return self._checks

    def known(self) -> dict[str, bool]:
        """Every floor as it was last seen; looks at nothing."""
        return self._checks

    def prove_again(self) -> None:
        """For a helper that was replaced: proves the new one.  Blocks as long as that takes.

        Raises StartupError, and what was unproved stays so.
        """
        if not self._proof.holds():
            with Selftest(self._proof.helper) as selftest:
                self._proof = selftest.finish()

    def refresh(self) -> None:
        """Forgets what was seen: something is known to have changed."""
        self._checks = {}
        self.checks()

    def killed(self) -> bool:
        """Whether the operator's kill switch is on."""
        return is_thrown(self._kill_switch)

    def _look(self) -> dict[str, bool]:
        if self._audit.failure is not None:
            self._log_failed()
        return {
            "helper_selftest": self._proof.holds(),
            "socket_classes": True,  # nothing was served before it held
            "ceiling_loaded": self._ceiling().deny_code in (None, Reason.CEILING_EMPTY),
            "audit_writable": self._audit.failure is None,
            "kill_switch": not self.killed(),
            "draining": not self.draining,
        }

    def objection(self) -> BrokerError | None:
        """What stands against running anything.  A ceiling that denies is the gate's to tell."""
        if self.draining:
            return DrainingError()
        if self.killed():
            return FeatureDisabledError(Reason.KILL_SWITCH.value)
        if self._audit.failure is not None:
            self._log_failed()
            return AuditUnavailableError()
        if not self.checks()["helper_selftest"]:
            return NotReadyError(["helper_selftest"])
        return None

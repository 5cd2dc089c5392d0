# SPDX-License-Identifier: Apache-2.0
"""The proof that what was built here confines: named results of csrc/selftest.c."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox import _core
from sandbox._core import ProofRow
from sandbox.ruleset import Pathname

_HELPER: Final = Path(__file__).with_name("confine")


@dataclass(frozen=True, slots=True)
class Proof:
    """One row for each claim; `ok` only if every claim held here and at least one was tested."""

    rows: tuple[ProofRow, ...]

    @property
    def ok(self) -> bool:
        tested = [row for row in self.rows if not row.skipped]
        return bool(tested) and all(row.ok for row in tested)

    @property
    def failures(self) -> tuple[ProofRow, ...]:
        """The rows whose claim did not hold."""
        return tuple(row for row in self.rows if not row.ok and not row.skipped)


def selftest(directory: Pathname | None = None) -> Proof:
    """Confines children for real and compares what each call gives them with an unconfined control.

    Works in a private tree below `directory` (the usual temporary one when None) and removes it.
    Takes some milliseconds.  Raises SandboxUnavailable or SandboxError when it cannot even begin.
    """
    return Proof(tuple(_core.selftest(os.fsencode(directory or tempfile.gettempdir()))))


def helper_path() -> Path:
    """The static executable `confine` of this installation.

    Raises FileNotFoundError when it is not there or cannot be executed.
    """
    if not os.access(_HELPER, os.X_OK):
        raise FileNotFoundError(f"{str(_HELPER)!r} is missing or not executable: run `make build`")
    return _HELPER

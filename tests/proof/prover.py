# SPDX-License-Identifier: Apache-2.0
"""The self-test called by a program of its own, as root or as an ordinary user."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.filter.core import MUSL, SOURCE, compile_c

HERE: Final = Path(__file__).parent
CORE: Final = tuple(
    SOURCE / name
    for name in ("landlock.c", "seccomp.c", "spawn.c", "stdfd.c", "selftest.c", "probes.c")
)
USER: Final = 61234
CAPACITY: Final = 512

# struct sandbox_weakness.keep
KEEP_CAPABILITIES: Final = 1
KEEP_SCOPES_OFF: Final = 2
KEEP_KEYRING: Final = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One struct sandbox_proof_row."""

    name: str
    expected: int
    confined: int
    control: int
    ok: bool
    skipped: bool
    claim: str


@dataclass(frozen=True, slots=True)
class Proof:
    """What one call returned, and the state of the process that made it."""

    result: int
    rows: dict[str, Row]
    descriptors_before: list[str]
    descriptors_after: list[str]
    children: int  # errno of waiting for one

    def failed(self) -> set[str]:
        return {row.name for row in self.rows.values() if not row.ok}

    def skipped(self) -> set[str]:
        return {row.name for row in self.rows.values() if row.skipped}


@dataclass(frozen=True, slots=True)
class Prover:
    """The compiled prove.c.  `uid`: whom to become, None to stay; `directory` is that user's."""

    program: Path
    directory: Path
    uid: int | None

    def output(
        self,
        *arguments: object,
        prefix: tuple[str, ...] = (),
        before: Callable[[], None] | None = None,
    ) -> list[list[str]]:
        done = subprocess.run(
            [*prefix, str(self.program), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            user=self.uid,
            group=self.uid,
            extra_groups=None if self.uid is None else [],
            preexec_fn=before,
        )
        return [line.split("\t") for line in done.stdout.splitlines()]

    def prove(
        self,
        directory: Path | None = None,
        *,
        max_abi: int = 0,
        omit_row: int = -1,
        weaken_fs: int = 0,
        keep: int = 0,
        capacity: int = CAPACITY,
        prefix: tuple[str, ...] = (),
        before: Callable[[], None] | None = None,
    ) -> Proof:
        place = directory or self.directory
        numbers = (max_abi, omit_row, weaken_fs, keep, capacity)
        lines = self.output(place, *numbers, prefix=prefix, before=before)
        facts = {line[0]: line[1:] for line in lines}
        return Proof(
            result=int(facts["result"][0]),
            rows={line[1]: _row(line[1:]) for line in lines if line[0] == "row"},
            descriptors_before=facts["descriptors_before"],
            descriptors_after=facts["descriptors_after"],
            children=int(facts["children"][0]),
        )

    def filter_rows(self) -> list[str]:
        return [line[0] for line in self.output("rows")]

    def abi(self) -> int:
        return int(self.output("status", 0)[0][1])

    def handled_fs(self, max_abi: int = 0) -> int:
        return int(self.output("status", max_abi)[0][2])


def _row(fields: list[str]) -> Row:
    name, expected, confined, control, ok, skipped, claim = fields
    numbers = (int(expected), int(confined), int(control))
    return Row(name, *numbers, ok=ok == "1", skipped=skipped == "1", claim=claim)


def compile_prover(directory: Path) -> Path:
    """Static with musl, as confine is."""
    return compile_c(MUSL, directory / "prove", HERE / "prove.c", *CORE)

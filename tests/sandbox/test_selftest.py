# SPDX-License-Identifier: Apache-2.0
"""The proof holds here, and fails as soon as any part of the confinement is left out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import sandbox
from sandbox import Proof, ProofRow, SandboxError, SandboxUnavailable, _core
from tests.support.process import as_ordinary_user


def test_the_proof_holds_on_this_machine() -> None:
    proof = sandbox.selftest()
    assert proof.failures == ()
    assert proof.ok


def test_the_proof_holds_for_an_ordinary_user() -> None:
    proof = as_ordinary_user(lambda: sandbox.selftest("/tmp"))
    assert proof.failures == ()
    assert proof.ok


@pytest.mark.parametrize("max_abi", [3, 4, 5, 6])
def test_the_proof_holds_as_on_older_kernels(tmp_path: Path, max_abi: int) -> None:
    rows = _core.selftest(os.fsencode(tmp_path), max_abi=max_abi)
    assert Proof(tuple(rows)).failures == ()


def test_every_claim_has_a_name_of_its_own_and_a_sentence() -> None:
    rows = sandbox.selftest().rows
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.claim for row in rows)


@pytest.mark.parametrize("weakness", [{"omit_row": 0}, {"weaken_fs": 1 << 14}, {"keep": 2}])
def test_a_weakened_confinement_is_no_proof(tmp_path: Path, weakness: dict[str, int]) -> None:
    # tests/proof leaves out each part; this shows that its answer arrives here
    assert not Proof(tuple(_core.selftest(os.fsencode(tmp_path), **weakness))).ok


def test_the_proof_leaves_nothing_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert sandbox.selftest(tmp_path).ok
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"selftest '.*/missing'.*ENOENT"):
        sandbox.selftest(tmp_path / "missing")


def test_below_the_floor_there_is_no_proof(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable):
        _core.selftest(os.fsencode(tmp_path), max_abi=2)


ROW = ProofRow("name", "claim", 1, 1, 0, ok=True, skipped=False)


@pytest.mark.parametrize(
    ("rows", "ok"),
    [
        ((), False),
        ((ROW,), True),
        ((ROW, ROW._replace(ok=False)), False),
        ((ROW, ROW._replace(ok=False, skipped=True)), True),
        ((ROW._replace(ok=False, skipped=True),), False),
    ],
)
def test_a_proof_needs_every_tested_claim_and_at_least_one(
    rows: tuple[ProofRow, ...], ok: bool
) -> None:
    assert Proof(rows).ok is ok


def test_the_helper_proves_the_same() -> None:
    answer = subprocess.run([sandbox.helper_path(), "--selftest"], capture_output=True)
    assert answer.returncode == 0, answer.stdout

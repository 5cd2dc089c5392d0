# SPDX-License-Identifier: Apache-2.0
"""The self-test compiled once, and somewhere that both root and an ordinary user can be."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.prover import USER, Prover, compile_prover
from tests.support.kernel import require_root


@pytest.fixture(scope="session")
def open_place() -> Iterator[Path]:
    """A directory that any uid may enter, which pytest's own are not."""
    place = Path(tempfile.mkdtemp(prefix="proof-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def program(open_place: Path) -> Path:
    return compile_prover(open_place)


def _prover(program: Path, place: Path, name: str) -> Prover:
    directory = place / name
    directory.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        return Prover(program, directory, uid=None)
    uid = USER if name == "user" else 0
    os.chown(directory, uid, uid)
    return Prover(program, directory, uid=uid or None)


@pytest.fixture(scope="session")
def root(program: Path, open_place: Path) -> Prover:
    require_root()
    return _prover(program, open_place, "root")


@pytest.fixture(scope="session")
def user(program: Path, open_place: Path) -> Prover:
    return _prover(program, open_place, "user")


@pytest.fixture(params=["root", "user"])
def prover(request: pytest.FixtureRequest) -> Prover:
    """Each test once as root and once as an ordinary user."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Prover)
    return found

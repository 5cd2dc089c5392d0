# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.confine.launcher import processes_of
from tests.support import program as programs

TREE_SOURCE = Path(__file__).with_name("tree.c")


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory that every user may enter and nobody else's links lead to."""
    directory = Path(tempfile.mkdtemp(prefix="confine-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def tree_program() -> Iterator[Path]:
    """tree.c, compiled."""
    with programs.built(TREE_SOURCE) as built:
        yield built


@pytest.fixture
def tree(tree_program: Path) -> Iterator[Path]:
    """The program, and the end of whatever it left behind."""
    yield tree_program
    while left := processes_of(tree_program):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.confine.launcher import processes_of

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
    directory = Path(tempfile.mkdtemp(prefix="tree-", dir="/tmp"))
    directory.chmod(0o755)
    program = directory / "tree"
    compiler = "musl-gcc" if shutil.which("musl-gcc") else "gcc"
    flags = ["-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static"]
    subprocess.run([compiler, *flags, "-o", str(program), str(TREE_SOURCE)], check=True)
    yield program
    shutil.rmtree(directory)


@pytest.fixture
def tree(tree_program: Path) -> Iterator[Path]:
    """The program, and the end of whatever it left behind."""
    yield tree_program
    while left := processes_of(tree_program):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

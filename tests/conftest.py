# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import probe


def pytest_configure() -> None:
    """What we start can be interrupted, although a shell that puts us behind itself ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def probe_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/support/probe.c, compiled; anybody may execute it."""
    directory = tmp_path_factory.mktemp("probe")
    for parent in (directory, directory.parent, directory.parent.parent):
        parent.chmod(0o755)
    return probe.build(directory)

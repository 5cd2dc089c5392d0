# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import probe


@pytest.fixture(scope="session")
def probe_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/support/probe.c, compiled; anybody may execute it."""
    directory = tmp_path_factory.mktemp("probe")
    for parent in (directory, directory.parent, directory.parent.parent):
        parent.chmod(0o755)
    return probe.build(directory)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sandbox


@pytest.fixture
def system(probe_program: Path) -> Iterator[sandbox.Ruleset]:
    """The baseline and the probe program."""
    with sandbox.Ruleset([*sandbox.baseline(), sandbox.execute(probe_program)]) as ruleset:
        yield ruleset

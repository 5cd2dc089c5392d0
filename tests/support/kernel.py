# SPDX-License-Identifier: Apache-2.0
"""What a test needs of the machine, required by name.

Where it is missing a test is skipped, but with REQUIRE_KERNEL=1, as in CI, it fails: a skip must
not look like a proof.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import sandbox


def require(condition: object, what: str) -> None:
    """Goes on if the machine has `what`; skips, or fails under REQUIRE_KERNEL=1, if not."""
    if condition:
        return
    if os.environ.get("REQUIRE_KERNEL") == "1":
        pytest.fail(f"REQUIRE_KERNEL=1 and this machine lacks {what}", pytrace=False)
    pytest.skip(f"needs {what}")


def require_abi(abi: int) -> None:
    """Landlock of at least this ABI."""
    require(sandbox.status().abi >= abi, f"Landlock ABI {abi}")


def require_root() -> None:
    require(os.geteuid() == 0, "root")


def require_program(name: str) -> str:
    """The path of a program that is not ours."""
    path = shutil.which(name)
    require(path, f"the program {name}")
    return str(path)


def require_cgroup() -> Path:
    """The root of a cgroup v2 hierarchy in which we may create groups."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(place, os.W_OK):
            return Path(place)
    require(False, "a writable cgroup v2 hierarchy")
    raise AssertionError("unreachable: require() does not return")

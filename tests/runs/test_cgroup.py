# SPDX-License-Identifier: Apache-2.0
"""Runs born in a cgroup of their own, where the subtree may be used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from broker.model import Exit, RunReason
from broker.runs.cgroup import Leaf, delegated_directory, sweep
from tests.runs.conftest import MakePermit, open_pool
from tests.support.kernel import require

SCRIPT = "cat /proc/self/cgroup; setsid sleep 300 & (setsid sleep 300 &); exit 5"


@pytest.fixture
def delegated() -> str:
    directory = delegated_directory()
    require(directory is not None, "a cgroup v2 subtree that this process may use")
    assert directory is not None
    return directory


def test_the_whole_tree_ends_and_the_leaf_serves_again(
    delegated: str, permit: MakePermit, tmp_path: Path
) -> None:
    """After cgroup.kill Linux 6.15+ kills what is born there, so the leaf must be a new one."""

    async def twice() -> None:
        async with open_pool(tmp_path / "scratch", cgroup="auto") as pool:
            assert pool.tree_kill == "cgroup"
            for _ in range(3):
                outcome = await pool.run(permit(SCRIPT))
                assert outcome.reason is RunReason.EXITED
                assert outcome.exit == Exit(5, None)
                assert b"/run-" in outcome.stdout.head
                assert outcome.orphans_killed == 2

    asyncio.run(twice())
    assert [name for name in os.listdir(delegated) if name.startswith(f"run-{os.getpid()}-")] == []


def test_a_lost_runner_leaves_nobody_in_its_leaf(
    delegated: str, permit: MakePermit, tmp_path: Path, work: Path
) -> None:
    async def close_under_way() -> None:
        async with open_pool(tmp_path / "scratch", cgroup="auto") as pool:
            run = asyncio.create_task(pool.run(permit("setsid sleep 300 & touch on; sleep 300")))
            while not (work / "on").exists():
                await asyncio.sleep(0)
            await pool.close()
            await run

    asyncio.run(close_under_way())
    assert [name for name in os.listdir(delegated) if name.startswith(f"run-{os.getpid()}-")] == []


def test_a_sweep_removes_leaves_of_a_killed_broker(delegated: str) -> None:
    leaf = Leaf(f"{delegated}/run-0-1")
    os.close(leaf.fd)
    sweep(delegated)
    assert not os.path.exists(f"{delegated}/run-0-1")

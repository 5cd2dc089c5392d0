# SPDX-License-Identifier: Apache-2.0
"""Runners in cgroups of their own, where the subtree may be used."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from broker.model import Exit, RunReason
from broker.runs.cgroup import Leaf, delegated_directory, sweep
from tests.runs.conftest import MakePermit, open_pool, processes_in, runners_of_this_process
from tests.support.kernel import require

SCRIPT = "cat /proc/self/cgroup; setsid sleep 300 & (setsid sleep 300 &); exit 5"


@pytest.fixture
def delegated() -> str:
    directory = delegated_directory()
    require(directory is not None, "a cgroup v2 subtree that this process may use")
    assert directory is not None
    return directory


def test_runs_are_in_the_leaf_and_end_whole(
    delegated: str, permit: MakePermit, tmp_path: Path
) -> None:
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


def test_what_a_lost_runner_left_is_ended_with_its_leaf(
    delegated: str, permit: MakePermit, tmp_path: Path, work: Path
) -> None:
    """This process is no subreaper here, so the orphans go to init: only the leaf has them."""

    async def lose_it() -> RunReason:
        async with open_pool(tmp_path / "scratch", cgroup="auto") as pool:
            script = "setsid sleep 300 & (setsid sleep 300 &) ; touch on; sleep 300"
            run = asyncio.create_task(pool.run(permit(script)))
            while not (work / "on").exists():
                await asyncio.sleep(0)
            for pid in runners_of_this_process():
                os.kill(pid, signal.SIGKILL)
            return (await run).reason

    assert asyncio.run(lose_it()) is RunReason.LOST
    assert processes_in(work) == []
    assert [name for name in os.listdir(delegated) if name.startswith(f"run-{os.getpid()}-")] == []


def test_a_tree_that_outruns_its_killer_is_ended_by_the_kernel(
    delegated: str, permit: MakePermit, tmp_path: Path, work: Path
) -> None:
    bomb = work / "bomb"
    bomb.write_text("#!/bin/sh\nwhile [ -e $1 ]; do setsid $0 $1 & setsid $0 $1 & done\n")
    bomb.chmod(0o755)
    fuse = tmp_path / "fuse"
    fuse.touch()
    burning = threading.Timer(3.0, lambda: fuse.unlink(missing_ok=True))
    burning.start()  # should the test fail, the bomb goes out by itself

    async def explode() -> RunReason:
        async with open_pool(tmp_path / "scratch", cgroup="auto") as pool:
            outcome = await pool.run(permit(f"{bomb} {fuse} & echo on"))
            again = await pool.run(permit("echo again"))
            assert again.stdout.head == b"again\n"
            return outcome.reason

    try:
        assert asyncio.run(explode()) is RunReason.EXITED
    finally:
        burning.cancel()
        fuse.unlink(missing_ok=True)
    assert processes_in(work) == []


def test_a_sweep_removes_leaves_of_a_killed_broker(delegated: str) -> None:
    leaf = Leaf(f"{delegated}/run-0-1")
    os.close(leaf.fd)  # as if its broker had been killed
    sweep(delegated)
    assert not os.path.exists(f"{delegated}/run-0-1")

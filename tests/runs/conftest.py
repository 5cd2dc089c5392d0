# SPDX-License-Identifier: Apache-2.0
"""A pool over the real helper, and permits for it as the gate would make them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sandbox
from broker.model import (
    Access,
    Confinement,
    ExecOp,
    Limits,
    Network,
    OnLimit,
    Root,
    RunOutcome,
)
from broker.permit import Permit, _mint
from broker.runs.pool import Cancellation, RunnerPool

LIMITS = Limits(
    timeout_ms=20_000, grace_ms=200, head_bytes=65536, tail_bytes=65536,
    memory_bytes=None, processes=None, open_files=None, cpu_s=None, file_size_bytes=None,
)  # fmt: skip

MakePermit = Callable[..., Permit[ExecOp]]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture
def permit(work: Path) -> MakePermit:
    """permit("a script") or permit(argv=[...]), with any field of ExecOp or Limits changed."""

    def make(script: str | None = None, **changes: object) -> Permit[ExecOp]:
        limit_names = {field.name for field in dataclasses.fields(Limits)}
        limits = {name: changes.pop(name) for name in list(changes) if name in limit_names}
        argv = changes.pop("argv", None)
        op = ExecOp(
            argv=tuple(map(os.fsencode, argv)) if isinstance(argv, list) else None,
            script=script.encode() if script is not None else None,
            cwd=os.fsencode(work),
            environment=((b"PATH", b"/usr/bin:/bin"), (b"TMPDIR", b"/scratch")),
            environment_base="minimal",
            stripped=(),
            roots=(Root(os.fsencode(work), Access.READ | Access.WRITE | Access.EXEC),),
            baseline=True,
            network=Network.OPEN,
            confinement=Confinement.SANDBOXED,
            limits=dataclasses.replace(LIMITS, **limits),  # type: ignore[arg-type]
            stdin=b"",
            on_limit=OnLimit.DROP,
            scratch=b"/scratch",
            label=None,
            op_sha256="0" * 64,
        )
        return _mint(dataclasses.replace(op, **changes), "a-1")  # type: ignore[arg-type]

    return make


@asynccontextmanager
async def open_pool(scratch: Path, **options: object) -> AsyncIterator[RunnerPool]:
    scratch.mkdir(exist_ok=True)
    settings: dict[str, object] = {
        "helper": os.fspath(sandbox.helper_path()), "scratch_dir": os.fspath(scratch),
        "max_runs": 4, "cgroup": "none",
    }  # fmt: skip
    pool = await RunnerPool.open(**(settings | options))  # type: ignore[arg-type]
    try:
        yield pool
    finally:
        await pool.close()


class Runs:
    """Runs one permit in a pool of its own, from a test that is not a coroutine."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    async def __call__(
        self, permit: Permit[ExecOp], cancellation: Cancellation | None = None, **options: object
    ) -> RunOutcome:
        async with open_pool(self.scratch, **options) as pool:
            return await pool.run(permit, cancellation)


@pytest.fixture
def run_one(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "scratch")


def processes_in(directory: Path) -> list[int]:
    """Processes whose working directory is inside: each run here has a directory of its own."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            cwd = os.readlink(f"/proc/{entry}/cwd")
        except OSError:
            continue
        if entry.isdigit() and cwd.startswith(os.fspath(directory)):
            found.append(int(entry))
    return found


def runners_of_this_process() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in children if b"--runner" in Path(f"/proc/{pid}/cmdline").read_bytes()]

# SPDX-License-Identifier: Apache-2.0
"""The bypass ledger, escapes.toml, tried for real: under confine, under a runner, and unconfined.

Every row is a probe of probes.c.  All of them run in one process tree for each way of running, and
each row is compared on its own, with the exact errno.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sandbox
from broker.model import Access, Confinement, ExecOp, Limits, Network, OnLimit, Root, RunReason
from broker.permit import _mint
from broker.runs.pool import RunnerPool
from tests.support import probe
from tests.support import program as programs
from tests.support.kernel import require_root

HERE = Path(__file__).parent
OTHER_UID = 61234
OUTSIDE_FILES = ("file", "program", "truncate", "exchange")

Answers = dict[str, str]


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-")[0].split(".")[:2])


@dataclasses.dataclass(frozen=True)
class Escape:
    """A row of the ledger."""

    id: str
    source: str
    what: str
    test: str
    confined: str
    control: str
    control_user: str = ""
    since: str = "0.0"
    abi: int = 3
    machine: bool = False
    """The control depends on the file system or on what this machine has mounted."""

    def expected_control(self, uid: int) -> str:
        return self.control_user if uid and self.control_user else self.control

    @property
    def applies(self) -> bool:
        newer = version(os.uname().release) >= version(self.since)
        return newer and sandbox.status().abi >= self.abi


LEDGER = [
    Escape(**row) for row in tomllib.loads((HERE / "escapes.toml").read_text())["escape"]
]  # fmt: skip
PROBES = [row for row in LEDGER if row.test == "test_probes"]
TRIED = [pytest.param(row, id=row.id) for row in PROBES]


# ---- the ways of running ----


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """probes.c, compiled."""
    with programs.built(HERE / "probes.c") as built:
        yield built


@contextmanager
def place(uid: int) -> Iterator[Path]:
    """A fresh tree that belongs to `uid`: `in` is to be granted, `out` is not."""
    directory = Path(tempfile.mkdtemp(prefix="escape-", dir="/tmp"))
    directory.chmod(0o755)
    (directory / "in" / "programs").mkdir(parents=True)
    (directory / "out").mkdir()
    for name in OUTSIDE_FILES:
        (directory / "out" / name).write_text("outside\n")
        (directory / "out" / name).chmod(0o755)
    for path in directory.rglob("*"):
        os.chown(path, uid, uid)
    try:
        yield directory
        assert (directory / "out" / "truncate").exists()
    finally:
        shutil.rmtree(directory)


def run_directly(command: list[str], uid: int) -> Answers:
    """As `uid`, with a descriptor above 2 that is left open."""
    identity = {"user": uid, "group": uid, "extra_groups": []} if uid != os.geteuid() else {}
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, check=True, timeout=20, pass_fds=(writer,), cwd="/",
            **identity,  # type: ignore[call-overload]
        )  # fmt: skip
    finally:
        os.close(reader)
        os.close(writer)
    return probe.parse(done.stdout)


def run_control(program: Path, uid: int) -> Answers:
    with place(uid) as tree:
        return run_directly([str(program), "below", str(tree / "in"), str(tree / "out")], uid)


def run_confined(program: Path, uid: int) -> Answers:
    with place(uid) as tree:
        granted = ["--baseline", "--exec", str(program), "--rw", str(tree / "in")]
        programs = ["--rw", str(tree / "in/programs"), "--exec", str(tree / "in/programs")]
        command = [str(program), str(tree / "in"), str(tree / "out")]
        confine = [os.fspath(sandbox.helper_path()), "--supervise", *granted, *programs]
        return run_directly([*confine, "--", *command], uid)


def run_in_pool(program: Path, uid: int) -> Answers:
    with place(uid) as tree, tempfile.TemporaryDirectory(prefix="escape-") as scratch:
        return asyncio.run(_run_in_pool(program, tree, scratch))


async def _run_in_pool(program: Path, tree: Path, scratch: str) -> Answers:
    pool = await RunnerPool.open(
        helper=os.fspath(sandbox.helper_path()), scratch_dir=scratch, max_runs=1, cgroup="none"
    )
    try:
        outcome = await pool.run(_mint(operation(program, tree), "a-1"))
    finally:
        await pool.close()
    assert outcome.reason is RunReason.EXITED, outcome
    assert not outcome.stderr.head
    return probe.parse(outcome.stdout.head)


def operation(program: Path, tree: Path) -> ExecOp:
    inside = os.fsencode(tree / "in")
    write = Access.READ | Access.WRITE
    return ExecOp(
        argv=tuple(os.fsencode(word) for word in (program, tree / "in", tree / "out")),
        script=None, cwd=inside, environment=(), environment_base="minimal", stripped=(),
        roots=(
            Root(inside, write),
            Root(inside + b"/programs", write | Access.EXEC),
            Root(os.fsencode(program), Access.READ | Access.EXEC),
        ),
        baseline=True, network=Network.OPEN, confinement=Confinement.SANDBOXED,
        limits=Limits(
            timeout_ms=20_000, grace_ms=200, head_bytes=65536, tail_bytes=0, memory_bytes=None,
            processes=None, open_files=None, cpu_s=None, file_size_bytes=None,
        ),
        stdin=b"", on_limit=OnLimit.DROP, scratch=b"/scratch", label=None, op_sha256="0" * 64,
    )  # fmt: skip


Way = Callable[[Path, int], Answers]


@pytest.fixture(scope="module")
def answers(program: Path) -> Callable[[Way, int], Answers]:
    """What each way of running answered, run once."""
    known: dict[tuple[Way, int], Answers] = {}

    def look(way: Way, uid: int) -> Answers:
        if (way, uid) not in known:
            known[way, uid] = way(program, uid)
        return known[way, uid]

    return look


# ---- the tests ----


def test_the_ledger_names_every_probe_once(
    answers: Callable[[Way, int], Answers],
) -> None:
    assert [row.id for row in PROBES] == list(answers(run_confined, os.geteuid()))
    assert len({row.id for row in LEDGER}) == len(LEDGER)
    for row in LEDGER:
        assert row.source, row.id
        assert row.what, row.id
        assert row.confined != "ok", f"{row.id}: what is open belongs in the threat model"


@pytest.mark.parametrize("way", [run_confined, run_in_pool])
@pytest.mark.parametrize("row", TRIED)
def test_probes(row: Escape, way: Way, answers: Callable[[Way, int], Answers]) -> None:
    check(row, way, os.geteuid(), answers)


@pytest.mark.parametrize("row", TRIED)
def test_probes_as_an_ordinary_user(row: Escape, answers: Callable[[Way, int], Answers]) -> None:
    require_root()
    check(row, run_confined, OTHER_UID, answers)


def check(row: Escape, way: Way, uid: int, answers: Callable[[Way, int], Answers]) -> None:
    if not row.applies:  # the kernel has not got the call: nothing is claimed of it
        return
    assert answers(way, uid)[row.id] == row.confined
    if not row.machine:
        assert answers(run_control, uid)[row.id] == row.expected_control(uid)

# SPDX-License-Identifier: Apache-2.0
"""Commands that outlive their end, fake it, or reach into the next run.

Each test is the attack and what must come of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import sandbox
from broker.model import Access, Exit, Root, RunReason
from tests.runs.conftest import MakePermit, open_pool
from tests.support import program as programs
from tests.support.kernel import require, require_root

PROJECT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("lifecycle.c")
ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_OTHER = 1, 4, 0x20
DEFAULT_ACL = "system.posix_acl_default"


def default_acl(user: int, group: int, other: int) -> bytes:
    """A default ACL in the form of its extended attribute (linux/posix_acl_xattr.h)."""
    entries = (ACL_USER_OBJ, user), (ACL_GROUP_OBJ, group), (ACL_OTHER, other)
    packed = [struct.pack("<HHI", tag, bits, 0xFFFFFFFF) for tag, bits in entries]
    return struct.pack("<I", 2) + b"".join(packed)


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """lifecycle.c, compiled."""
    with programs.built(SOURCE) as built:
        yield built


@pytest.fixture
def hostile(program: Path) -> Iterator[Path]:
    """The program, and the end of whatever it left behind."""
    yield program
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if os.readlink(entry / "exe") == str(program):
                os.kill(int(entry.name), signal.SIGKILL)


def ruleset(program: Path, work: Path) -> sandbox.Ruleset:
    return sandbox.Ruleset([*sandbox.baseline(), sandbox.execute(program), sandbox.write(work)])


def grows(file: Path) -> bool:
    before = file.stat().st_size
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        if file.stat().st_size != before:
            return True
    return False


def roots(program: Path, work: Path) -> tuple[Root, ...]:
    return (
        Root(os.fsencode(program), Access.READ | Access.EXEC),
        Root(os.fsencode(work), Access.READ | Access.WRITE | Access.EXEC),
    )


# ---- the end of a run ----


def test_an_exit_that_is_hidden_by_a_tracer_is_seen_by_run(hostile: Path, work: Path) -> None:
    with ruleset(hostile, work) as granted:
        started = time.monotonic()
        done = sandbox.run([hostile, "zombie", work / "beat"], roots=granted, timeout_s=1)
    assert time.monotonic() - started < 3
    assert done.exit == sandbox.Exit(3)


def test_a_ptrace_stop_is_not_an_exit(hostile: Path, work: Path) -> None:
    with ruleset(hostile, work) as granted:
        plan = sandbox.SpawnPlan([hostile, "stop", work / "beat"], ruleset=granted)
        with sandbox.spawn(plan) as child:
            killer = threading.Timer(1, child.signal, [signal.SIGKILL])
            killer.start()
            seen = child.wait()
            killer.cancel()
    assert seen == sandbox.Exit(None, signal.SIGKILL)


def test_an_exit_that_is_hidden_by_a_tracer_is_seen_by_the_runner(
    hostile: Path,
    work: Path,
    permit: MakePermit,
    tmp_path: Path,
) -> None:
    async def attack() -> None:
        async with open_pool(tmp_path / "scratch") as pool:
            argv = [os.fspath(hostile), "zombie", os.fspath(work / "beat")]
            op = permit(argv=argv, roots=roots(hostile, work), timeout_ms=2000)
            outcome = await pool.run(op)
        assert (outcome.reason, outcome.exit) == (RunReason.EXITED, Exit(3, None))
        assert not grows(work / "beat")

    asyncio.run(attack())


def test_the_front_killed_is_the_end_of_a_traced_command(hostile: Path, work: Path) -> None:
    helper = os.fspath(sandbox.helper_path())
    granted = ["--baseline", "--exec", str(hostile), "--rw", str(work)]
    command = [str(hostile), "zombie", str(work / "beat")]
    front = subprocess.Popen([helper, "--supervise", *granted, "--", *command])
    while not (work / "beat").exists():
        assert front.poll() is None
    front.kill()
    front.wait()
    deadline = time.monotonic() + 1
    while grows(work / "beat") and time.monotonic() < deadline:
        pass
    assert not grows(work / "beat")


def test_processes_that_fork_and_exit_do_not_outlive_the_deadline(
    hostile: Path,
    work: Path,
    permit: MakePermit,
    tmp_path: Path,
) -> None:
    async def attack() -> float:
        async with open_pool(tmp_path / "scratch") as pool:
            argv = [os.fspath(hostile), "chains"]
            started = time.monotonic()
            op = permit(argv=argv, roots=roots(hostile, work), timeout_ms=500, processes=400)
            outcome = await pool.run(op)
            assert outcome.reason is RunReason.TIMEOUT
            return time.monotonic() - started

    assert asyncio.run(attack()) < 3


# ---- what a run leaves for the next ----


def test_attributes_of_the_scratch_directory_are_not_handed_on(
    work: Path,
    permit: MakePermit,
    tmp_path: Path,
) -> None:
    acl = default_acl(0, 7, 7).hex()
    leave = f"import os; os.setxattr(os.environ['TMPDIR'], {DEFAULT_ACL!r}, bytes.fromhex('{acl}'))"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    try:
        os.setxattr(scratch, DEFAULT_ACL, default_acl(7, 7, 7))
        os.removexattr(scratch, DEFAULT_ACL)
    except OSError:
        require(False, f"a file system with ACLs at {scratch}")

    async def attack() -> bytes:
        async with open_pool(scratch) as pool:
            planted = await pool.run(permit(argv=["/usr/bin/python3", "-c", leave]))
            assert planted.exit == Exit(0, None), planted
            await asyncio.sleep(0)  # the directory goes back to the pool
            outcome = await pool.run(permit("touch $TMPDIR/f && stat -c %a $TMPDIR/f"))
            return outcome.stdout.head

    assert asyncio.run(attack()) == b"644\n"


def test_a_big_tree_in_the_scratch_directory_does_not_hold_up_the_loop(
    permit: MakePermit,
    tmp_path: Path,
) -> None:
    many = "import os; os.chdir(os.environ['TMPDIR']); [os.mknod(str(n)) for n in range(40000)]"

    async def attack() -> float:
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            last = time.monotonic()
            while True:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                longest, last = max(longest, now - last), now

        async with open_pool(tmp_path / "scratch") as pool:
            ticking = asyncio.create_task(tick())
            outcome = await pool.run(permit(argv=["/usr/bin/python3", "-c", many]))
            assert outcome.exit == Exit(0, None), outcome
            await asyncio.sleep(0.02)
            ticking.cancel()
        return longest

    assert asyncio.run(attack()) < 0.15


# ---- hosts that do not know what they hold ----


def host(code: str) -> subprocess.CompletedProcess[str]:
    """Another Python that uses the library."""
    text = f"import os, sys; import sandbox; B = sandbox.baseline()\n{code}"
    command = [sys.executable, "-c", text]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=30)


def test_a_host_that_closed_all_descriptors_does_not_lend_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    done = host(f"""
sandbox.run(["/bin/true"], roots=B)
os.closerange(3, 64)  # as a daemon does
own = [os.open({str(secret)!r}, os.O_RDWR) for _ in range(20)]
granted = sandbox.Ruleset(B)
with sandbox.spawn(sandbox.SpawnPlan(["/bin/cat"], ruleset=granted, stdout=1)) as child:
    child.wait()
""")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_thread_that_started_the_spawner_may_end() -> None:
    done = host("""
import threading
def thread(size, target):
    threading.stack_size(size)
    one = threading.Thread(target=target)
    one.start()
    one.join()
    while os.path.exists(f"/proc/self/task/{one.native_id}"):
        pass  # until the kernel has ended it, and the C library may give its stack back
thread(256 << 20, sandbox.start_spawner)
thread(1 << 30, lambda: None)
thread(1 << 30, lambda: None)
print(sandbox.run(["/bin/echo", "alive"], roots=B).stdout)
""")
    assert (done.returncode, done.stdout) == (0, "b'alive\\n'\n")


def test_groups_that_the_host_gave_up_are_not_the_childs() -> None:
    require_root()
    done = host("""
os.setgroups([4, 5])
sandbox.start_spawner()
os.setgroups([])
print(sandbox.run(["/usr/bin/id", "-G"], roots=B).stdout)
""")
    assert done.stdout == "b'0\\n'\n"


def test_threads_may_start_the_spawner_together() -> None:
    done = host("""
import signal, threading
failed = 0
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        signal.alarm(3)
        together = threading.Barrier(4)
        def start():
            together.wait()
            sandbox.start_spawner()
        threads = [threading.Thread(target=start) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        fine = sandbox.run(["/bin/echo", "x"], roots=B).stdout == b"x\\n"
        os._exit(0 if fine and len(os.listdir("/proc/self/task")) == 2 else 1)
    failed += os.waitpid(pid, 0)[1] != 0
print(failed)
""")
    assert (done.returncode, done.stdout) == (0, "0\n")

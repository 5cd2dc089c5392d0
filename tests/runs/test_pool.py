# SPDX-License-Identifier: Apache-2.0
"""Commands through real runners: results, limits, the end of the whole tree, and what is left."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from pathlib import Path

import pytest

from broker.errors import BusyError, TooManyRunsError
from broker.model import Confinement, Exit, Network, OnLimit, RunReason
from broker.runs.pool import Cancellation
from tests.runs.conftest import (
    MakePermit,
    Runs,
    open_pool,
    processes_in,
    runners_of_this_process,
)

PR_SET_CHILD_SUBREAPER = 36


def test_output_and_code_come_back(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(run_one(permit("echo out; echo err >&2; exit 7")))
    assert outcome.reason is RunReason.EXITED
    assert outcome.exit == Exit(7, None)
    assert (outcome.stdout.head, outcome.stderr.head) == (b"out\n", b"err\n")
    assert outcome.drained
    assert outcome.orphans_killed == 0


@pytest.mark.parametrize(
    ("script", "expected"),
    [("kill -9 $$", Exit(None, signal.SIGKILL)), ("exit 137", Exit(137, None))],
)
def test_a_signal_is_not_an_exit_code(
    run_one: Runs, permit: MakePermit, script: str, expected: Exit
) -> None:
    assert asyncio.run(run_one(permit(script))).exit == expected


def test_bytes_between_head_and_tail_are_counted_not_kept(
    run_one: Runs, permit: MakePermit
) -> None:
    script = "printf 'HEAD'; head -c 1000000 /dev/zero; printf 'TAIL'; echo ERR >&2; exit 3"
    outcome = asyncio.run(run_one(permit(script, head_bytes=4, tail_bytes=7)))
    assert outcome.stdout.head == b"HEAD"
    assert outcome.stdout.tail == b"\0\0\0TAIL"
    assert outcome.stdout.total_bytes == 1_000_008
    assert outcome.stdout.truncated
    assert outcome.stderr.head + outcome.stderr.tail == b"ERR\n"
    assert outcome.exit == Exit(3, None)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 12, 13, 20])
def test_head_and_tail_meet_without_loss(run_one: Runs, permit: MakePermit, length: int) -> None:
    text = "abcdefghijklmnopqrst"[:length]
    outcome = asyncio.run(run_one(permit(f"printf '{text}'", head_bytes=8, tail_bytes=5)))
    kept = outcome.stdout
    assert kept.head == text[:8].encode()
    assert kept.tail == text[8:][-5:].encode()
    assert kept.truncated is (length > 13)


def test_input_is_fed_and_ended(run_one: Runs, permit: MakePermit) -> None:
    data = bytes(range(256)) * 4096
    outcome = asyncio.run(run_one(permit("cat", stdin=data, head_bytes=1 << 21)))
    assert outcome.stdout.head == data


def test_input_nobody_reads_does_not_block(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(run_one(permit("exec true", stdin=b"x" * 1_000_000)))
    assert outcome.exit == Exit(0, None)


def test_no_input_is_an_end_of_file(run_one: Runs, permit: MakePermit) -> None:
    assert asyncio.run(run_one(permit("wc -c"))).stdout.head.strip() == b"0"


def test_a_background_child_neither_delays_nor_survives(
    run_one: Runs, permit: MakePermit, work: Path
) -> None:
    outcome = asyncio.run(run_one(permit("sleep 300 & echo started")))
    assert outcome.reason is RunReason.EXITED
    assert outcome.stdout.head == b"started\n"
    assert outcome.orphans_killed == 1
    assert outcome.duration_ms < 5_000
    assert processes_in(work) == []


def test_a_time_out_ends_the_tree_and_keeps_what_was_said(
    run_one: Runs, permit: MakePermit, work: Path
) -> None:
    script = "setsid sleep 300 & (setsid sh -c 'sleep 300 &' &); echo partial; sleep 300"
    outcome = asyncio.run(run_one(permit(script, timeout_ms=500)))
    assert outcome.reason is RunReason.TIMEOUT
    assert outcome.timed_out
    assert outcome.exit == Exit(None, signal.SIGTERM)
    assert outcome.stdout.head == b"partial\n"
    assert processes_in(work) == []


def test_a_command_that_ignores_term_is_killed_after_the_grace(
    run_one: Runs, permit: MakePermit, work: Path
) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 300; done"
    outcome = asyncio.run(run_one(permit(script, timeout_ms=300, grace_ms=200)))
    assert outcome.reason is RunReason.TIMEOUT
    assert outcome.exit == Exit(None, signal.SIGKILL)
    assert outcome.stdout.head == b"ready\n"
    assert processes_in(work) == []


def test_a_stopped_command_ends_too(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(run_one(permit("kill -STOP $$", timeout_ms=300)))
    assert outcome.reason is RunReason.TIMEOUT


def test_a_chain_that_forks_and_exits_is_caught(
    run_one: Runs, permit: MakePermit, work: Path
) -> None:
    chain = "f() { (sleep 0.001; f) & }; f; f; echo started"
    outcome = asyncio.run(run_one(permit(chain)))
    assert outcome.stdout.head == b"started\n"
    assert processes_in(work) == []


def test_a_bomb_that_doubles_is_ended(run_one: Runs, permit: MakePermit, work: Path) -> None:
    """Bounded by its depth; each generation leaves its parents and starts sessions of its own."""
    bomb = work / "bomb"
    bomb.write_text(
        "#!/bin/bash\n[ $1 -gt 0 ] || exec sleep 300\n"
        "for _ in 1 2; do setsid $0 $(($1 - 1)) & done; wait\n"
    )
    bomb.chmod(0o755)
    outcome = asyncio.run(run_one(permit(f"{bomb} 8 & echo started", timeout_ms=10_000)))
    assert outcome.stdout.head == b"started\n"
    assert processes_in(work) == []


def test_a_stream_over_its_limit_ends_the_run_on_request(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(
        run_one(permit("yes", head_bytes=100, tail_bytes=100, on_limit=OnLimit.KILL))
    )
    assert outcome.reason is RunReason.OUTPUT_LIMIT
    assert outcome.stdout.truncated


def test_a_flood_does_not_hide_the_deadline(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(run_one(permit("yes & exec yes >&2", timeout_ms=400)))
    assert outcome.reason is RunReason.TIMEOUT
    assert outcome.duration_ms < 5_000


@pytest.mark.parametrize(
    ("argv", "shell_code", "words"),
    [
        (["nope"], 127, "not in the run's PATH"),
        (["/nowhere/nope"], 127, "ENOENT"),
        (["/etc/passwd"], 126, "EACCES"),
    ],
)
def test_what_cannot_be_spawned_says_why(
    run_one: Runs, permit: MakePermit, argv: list[str], shell_code: int, words: str
) -> None:
    outcome = asyncio.run(run_one(permit(argv=argv)))
    assert outcome.reason is RunReason.SPAWN_FAILED
    assert outcome.spawn_shell_code == shell_code
    assert words in (outcome.spawn_error or "")


def test_the_search_never_uses_a_relative_entry(
    run_one: Runs, permit: MakePermit, work: Path
) -> None:
    planted = work / "ls"
    planted.write_text("#!/bin/sh\necho planted\n")
    planted.chmod(0o755)
    environment = ((b"PATH", b".::work:/usr/bin"),)
    outcome = asyncio.run(run_one(permit(argv=["ls", "/"], environment=environment)))
    assert b"planted" not in outcome.stdout.head


def test_the_child_sees_its_environment_and_nothing_else(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(run_one(permit(argv=["/usr/bin/env"], environment=((b"A", b"1"),))))
    assert outcome.stdout.head == b"A=1\n"


def test_the_child_has_standard_descriptors_only(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(run_one(permit(argv=["/bin/ls", "/proc/self/fd"])))
    assert outcome.stdout.head.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls reading the directory


def test_scratch_is_private_writable_and_gone(
    run_one: Runs, permit: MakePermit, tmp_path: Path
) -> None:
    outcome = asyncio.run(run_one(permit('stat -c %a "$TMPDIR"; echo x > "$TMPDIR/f"; pwd')))
    assert outcome.stdout.head.startswith(b"700\n")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_run_without_a_directory_starts_in_its_scratch(run_one: Runs, permit: MakePermit) -> None:
    outcome = asyncio.run(run_one(permit('[ "$PWD" = "$TMPDIR" ] && echo same', cwd=b"/scratch")))
    assert outcome.stdout.head == b"same\n"


def test_one_run_cannot_reach_the_scratch_of_another(permit: MakePermit, tmp_path: Path) -> None:
    async def both() -> bytes:
        cancellation = Cancellation()
        async with open_pool(tmp_path / "scratch") as pool:
            script = 'echo secret > "$TMPDIR/f"; sleep 300'
            first = asyncio.create_task(pool.run(permit(script), cancellation))
            while not (found := list((tmp_path / "scratch").glob("*/f"))):
                await asyncio.sleep(0)
            second = await pool.run(permit(f"cat {found[0]}; echo x > {found[0]}"))
            cancellation.trigger(RunReason.CANCELLED)
            await first
            return second.stdout.head + second.stderr.head

    seen = asyncio.run(both())
    assert b"secret" not in seen
    assert seen.count(b"Permission denied") == 2


def test_outside_the_roots_nothing_opens(run_one: Runs, permit: MakePermit, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("outside")
    confined = asyncio.run(run_one(permit(f"cat {secret}")))
    control = asyncio.run(run_one(permit(f"cat {secret}", confinement=Confinement.UNCONFINED)))
    assert b"Permission denied" in confined.stderr.head
    assert control.stdout.head == b"outside"


def test_without_network_an_inet_socket_is_eperm(run_one: Runs, permit: MakePermit) -> None:
    probe = [
        "/usr/bin/python3", "-c",
        "import socket\ntry: socket.socket(); print('made')\nexcept OSError as e: print(e.errno)",
    ]  # fmt: skip
    none = asyncio.run(run_one(permit(argv=probe, network=Network.NONE)))
    control = asyncio.run(run_one(permit(argv=probe)))
    assert (none.stdout.head, control.stdout.head) == (b"1\n", b"made\n")


def test_a_root_replaced_on_disk_is_opened_again(
    permit: MakePermit, tmp_path: Path, work: Path
) -> None:
    async def twice() -> tuple[bytes, bytes]:
        async with open_pool(tmp_path / "scratch") as pool:
            first = await pool.run(permit("echo 1 > a; cat a"))
            work.rename(tmp_path / "old")
            work.mkdir()
            second = await pool.run(permit("echo 2 > a; cat a"))
            return first.stdout.head, second.stdout.head

    assert asyncio.run(twice()) == (b"1\n", b"2\n")


def test_a_cancelled_run_ends_with_the_reason_given(
    permit: MakePermit, tmp_path: Path, work: Path
) -> None:
    async def cancelled() -> RunReason:
        cancellation = Cancellation()
        async with open_pool(tmp_path / "scratch") as pool:
            run = asyncio.create_task(pool.run(permit("touch on; sleep 300"), cancellation))
            while not (work / "on").exists():
                await asyncio.sleep(0)
            cancellation.trigger(RunReason.CLIENT_GONE)
            return (await run).reason

    assert asyncio.run(cancelled()) is RunReason.CLIENT_GONE
    assert processes_in(work) == []


def test_cancelling_before_the_start_ends_the_run(permit: MakePermit, run_one: Runs) -> None:
    cancellation = Cancellation()
    cancellation.trigger(RunReason.CANCELLED)
    outcome = asyncio.run(run_one(permit("sleep 300"), cancellation))
    assert outcome.reason is RunReason.CANCELLED


def test_at_most_max_runs_are_on(permit: MakePermit, tmp_path: Path, work: Path) -> None:
    async def one_too_many() -> None:
        cancellation = Cancellation()
        async with open_pool(tmp_path / "scratch", max_runs=1) as pool:
            run = asyncio.create_task(pool.run(permit("touch on; sleep 300"), cancellation))
            while not (work / "on").exists():
                await asyncio.sleep(0)
            assert pool.active == 1
            with pytest.raises(TooManyRunsError):
                await pool.run(permit("true"))
            cancellation.trigger(RunReason.CANCELLED)
            await run
            assert (await pool.run(permit("true"))).exit == Exit(0, None)

    asyncio.run(one_too_many())


def test_without_a_new_runner_nothing_runs(permit: MakePermit, tmp_path: Path, work: Path) -> None:
    async def no_place() -> None:
        cancellation = Cancellation()
        async with open_pool(tmp_path / "scratch") as pool:
            run = asyncio.create_task(pool.run(permit("touch on; sleep 300"), cancellation))
            while not (work / "on").exists():
                await asyncio.sleep(0)
            (tmp_path / "scratch").rename(tmp_path / "moved")
            with pytest.raises(BusyError):
                await pool.run(permit("touch second"))
            (tmp_path / "moved").rename(tmp_path / "scratch")
            cancellation.trigger(RunReason.CANCELLED)
            await run

    asyncio.run(no_place())
    assert not (work / "second").exists()


def test_a_killed_runner_is_a_lost_run_and_leaves_nobody(
    permit: MakePermit, tmp_path: Path, work: Path
) -> None:
    """Its orphans come to the broker, which is a subreaper, and are killed there."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    async def lose_it() -> tuple[RunReason, int]:
        async with open_pool(tmp_path / "scratch") as pool:
            script = "setsid sleep 300 & (setsid sleep 300 &); touch on; sleep 300"
            run = asyncio.create_task(pool.run(permit(script)))
            while not (work / "on").exists():
                await asyncio.sleep(0)
            (runner,) = runners_of_this_process()
            os.kill(runner, signal.SIGKILL)
            outcome = await run
            again = await pool.run(permit("echo again"))
            assert again.stdout.head == b"again\n"
            await pool.close()
            return outcome.reason, pool.orphans_killed

    reason, orphans = asyncio.run(lose_it())
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert reason is RunReason.LOST
    assert orphans >= 2
    assert processes_in(work) == []


def test_closing_the_pool_ends_what_is_on(permit: MakePermit, tmp_path: Path, work: Path) -> None:
    async def close_early() -> RunReason:
        async with open_pool(tmp_path / "scratch") as pool:
            run = asyncio.create_task(pool.run(permit("touch on; sleep 300")))
            while not (work / "on").exists():
                await asyncio.sleep(0)
            await pool.drain(0.1)
            return (await run).reason

    assert asyncio.run(close_early()) is RunReason.SHUTDOWN
    assert processes_in(work) == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_many_runs_leave_no_descriptor_behind(permit: MakePermit, tmp_path: Path) -> None:
    async def many() -> tuple[int, int]:
        async with open_pool(tmp_path / "scratch") as pool:
            await pool.run(permit("true"))
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(50):
                await asyncio.gather(*(pool.run(permit("echo x > $TMPDIR/f")) for _ in range(2)))
            return before, len(os.listdir("/proc/self/fd"))

    before, after = asyncio.run(many())
    assert after <= before + 4  # the second slot: its socket and a ruleset

# SPDX-License-Identifier: Apache-2.0
"""The audit log's writer: what is acknowledged is on the disk; no crash looks like tampering."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import chain, startup
from broker.audit import Audit
from broker.chain import HEAD_NAME, LOG_NAME, Head, Link
from broker.errors import AuditUnavailableError

ROOT = Path(__file__).parents[2]


def run_python(script: str, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        **options,
    )


def output_of(script: str, *arguments: object) -> bytes:
    with run_python(script, *arguments) as process:
        return process.communicate(timeout=60)[0]


def kinds(directory: Path) -> list[object]:
    return [record["kind"] for record in chain.records(directory)]


def named(directory: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in chain.records(directory) if record["kind"] == kind]


CRASH_WITH_AN_OPEN_INTENT = """
    import os, sys
    from pathlib import Path
    from broker.audit import Audit
    audit = Audit.open(Path(sys.argv[1]), segment_bytes=int(sys.argv[2]))
    first = audit.append_blocking("exec.intent", {"argv": ["/bin/true"]})
    audit.append_blocking("exec.intent", {"argv": ["/bin/false"]})
    for number in range(20):
        audit.append_lazy("test.event", {"number": number})
    audit.append_blocking("exec.outcome", {"state": "done"}, ref=first)
    os._exit(9)
"""


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A log whose writer ended without closing it; record 2 is an intent without an outcome."""
    output_of(CRASH_WITH_AN_OPEN_INTENT, tmp_path / "audit", 1 << 20)
    return tmp_path / "audit"


# --- appending ------------------------------------------------------------------------------------


def test_numbers_are_given_in_order_and_the_envelope_tells_when_and_by_whom(tmp_path: Path) -> None:
    async def append_all(audit: Audit) -> list[int]:
        first = audit.append("exec.intent", {"n": 0})
        second = audit.append_lazy("exec.outcome", {"n": 1}, ref=1)
        rest = [audit.append("exec.denied", {"n": n}) for n in range(2, 6)]
        return [await first, second, *await asyncio.gather(*rest)]

    audit = Audit.open(tmp_path / "audit")
    before = time.time_ns()
    assert asyncio.run(append_all(audit)) == [1, 2, 3, 4, 5, 6]
    assert audit.append_blocking("broker.stop", {}) == 7
    audit.close()
    records = list(chain.records(tmp_path / "audit"))
    assert [record.get("n") for record in records] == [0, 1, 2, 3, 4, 5, None]
    assert [record.get("ref") for record in records[:2]] == [None, 1]
    assert {record["instance"] for record in records} == {audit.instance}
    stamp = time.strftime("%Y-%m-%dT%H", time.gmtime(before // 10**9))
    assert str(records[0]["at"]).startswith(stamp)
    assert len(str(records[0]["at"])) == len("2026-01-02T03:04:05.123456789Z")
    assert chain.verify(tmp_path / "audit").ok


def test_an_acknowledged_record_is_in_the_file_and_behind_one_flush(tmp_path: Path) -> None:
    calls: list[str] = []

    def see(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in {"fdatasync", "pwrite"}:
            calls.append(argument.__name__)

    async def append_together(audit: Audit) -> int:
        await audit.append("test.event", {})
        calls.clear()
        await asyncio.gather(*[audit.append("test.event", {"n": n}) for n in range(64)])
        flushes = calls.count("fdatasync")
        log = (tmp_path / "audit" / LOG_NAME).read_bytes()
        assert log.count(b'"kind":"test.event"') == 65
        return flushes

    threading.setprofile(see)
    try:
        audit = Audit.open(tmp_path / "audit")
    finally:
        threading.setprofile(None)
    # All 64 are queued before the loop waits; the writer may have begun with fewer.
    assert 1 <= asyncio.run(append_together(audit)) <= 4
    audit.close()


def test_a_lazy_record_is_on_the_disk_without_another_append(tmp_path: Path) -> None:
    audit = Audit.open(tmp_path / "audit")
    seq = audit.append_lazy("exec.outcome", {})
    deadline = time.monotonic() + 10
    head = None
    directory_fd = os.open(tmp_path / "audit", os.O_RDONLY)
    while time.monotonic() < deadline:  # the head is written after the flush
        head = chain.read_head(directory_fd)
        if head is not None and head.link.seq == seq:
            break
    os.close(directory_fd)
    assert head is not None
    assert (head.link.seq, head.closed) == (seq, False)
    audit.close()


def test_a_caller_who_goes_away_does_not_take_its_record_along(tmp_path: Path) -> None:
    async def cancel_one(audit: Audit) -> int:
        gone = audit.append("exec.intent", {"gone": True})
        gone.cancel()
        return await audit.append("exec.intent", {})

    audit = Audit.open(tmp_path / "audit")
    assert asyncio.run(cancel_one(audit)) == 2
    loop = asyncio.new_event_loop()

    async def leave() -> asyncio.Future[int]:
        return audit.append("exec.intent", {"left": True})

    loop.run_until_complete(leave())
    loop.close()
    assert audit.append_blocking("test.event", {}) == 4
    audit.close()
    assert kinds(tmp_path / "audit") == ["exec.intent"] * 3 + ["test.event"]


def test_threads_share_one_chain(tmp_path: Path) -> None:
    audit = Audit.open(tmp_path / "audit", segment_bytes=20_000)
    got: list[int] = []

    def append_some() -> None:
        got.extend(audit.append_blocking("test.event", {}) for _ in range(50))

    threads = [threading.Thread(target=append_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    audit.close()
    assert len(set(got)) == 200
    assert chain.verify(tmp_path / "audit").ok


def test_what_is_not_a_record_is_refused_and_leaves_no_gap(tmp_path: Path) -> None:
    audit = Audit.open(tmp_path / "audit")
    with pytest.raises(ValueError, match="not a record"):
        audit.append_lazy("test.event", {"hash": "0"})
    with pytest.raises(TypeError):
        audit.append_lazy("test.event", {"it": object()})  # type: ignore[dict-item]
    assert audit.append_blocking("test.event", {}) == 1
    audit.close()
    with pytest.raises(AuditUnavailableError):
        audit.append_lazy("test.event", {})
    audit.close()


def test_the_log_goes_on_after_a_restart(tmp_path: Path) -> None:
    for start in (1, 4, 7):
        audit = Audit.open(tmp_path / "audit")
        assert [audit.append_lazy("test.event", {}) for _ in range(3)] == [*range(start, start + 3)]
        audit.close()
    assert chain.verify(tmp_path / "audit").last_seq == 9
    assert kinds(tmp_path / "audit") == ["test.event"] * 9


# --- where it lies --------------------------------------------------------------------------------


def test_the_directory_and_its_files_are_for_the_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        audit = Audit.open(tmp_path / "audit", segment_bytes=500)
        for _ in range(4):
            audit.append_blocking("test.event", {})
        audit.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    files = list((tmp_path / "audit").iterdir())
    assert len(files) > 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_modes_that_a_run_changed_are_put_right(tmp_path: Path) -> None:
    Audit.open(tmp_path / "audit").close()
    (tmp_path / "audit" / LOG_NAME).chmod(0o666)
    (tmp_path / "audit" / HEAD_NAME).chmod(0)
    (tmp_path / "audit").chmod(0)
    Audit.open(tmp_path / "audit").close()
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    for name in (LOG_NAME, HEAD_NAME):
        assert stat.S_IMODE((tmp_path / "audit" / name).stat().st_mode) == 0o600


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    audit = Audit.open(tmp_path / "audit")
    with pytest.raises(startup.AuditUnavailableError, match="another process writes") as refused:
        Audit.open(tmp_path / "audit")
    assert refused.value.fix
    assert audit.append_blocking("test.event", {}) == 1
    audit.close()
    Audit.open(tmp_path / "audit").close()


@pytest.mark.parametrize("name", ["the directory", LOG_NAME, HEAD_NAME])
def test_a_symbolic_link_in_place_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    Audit.open(tmp_path / "audit").close()
    target = tmp_path / "audit" if name == "the directory" else tmp_path / "audit" / name
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(startup.AuditUnavailableError, match="cannot open audit log"):
        Audit.open(tmp_path / "audit")


def test_a_file_with_a_second_name_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    Audit.open(tmp_path / "audit").close()
    log = tmp_path / "audit" / LOG_NAME
    (tmp_path / "second").hardlink_to(log)
    with pytest.raises(startup.AuditUnavailableError, match="with one name"):
        Audit.open(tmp_path / "audit")
    (tmp_path / "second").unlink()
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(startup.AuditUnavailableError, match="is not a regular file"):
        Audit.open(tmp_path / "audit")


def test_a_missing_parent_or_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "no" / "audit", tmp_path / "file"):
        with pytest.raises(startup.AuditUnavailableError, match="cannot open audit log"):
            Audit.open(path)


# --- crashes --------------------------------------------------------------------------------------


def test_an_intent_without_outcome_is_recorded_as_unknown_once(crashed: Path) -> None:
    assert chain.verify(crashed).ok
    Audit.open(crashed).close()
    recovered = named(crashed, "broker.recovered")
    assert [record["unknown"] for record in recovered] == [[2]]
    outcomes = named(crashed, "exec.outcome")
    assert [(record["ref"], record["state"]) for record in outcomes] == [
        (1, "done"),
        (2, "unknown"),
    ]
    Audit.open(crashed).close()
    assert len(named(crashed, "broker.recovered")) == 1
    assert chain.verify(crashed).ok


def test_an_intent_that_is_open_at_a_regular_end_is_recorded_as_unknown(tmp_path: Path) -> None:
    audit = Audit.open(tmp_path / "audit")
    audit.append_lazy("exec.intent", {})
    audit.close()
    Audit.open(tmp_path / "audit").close()
    assert kinds(tmp_path / "audit") == ["exec.intent", "broker.recovered", "exec.outcome"]


def test_open_intents_are_found_across_files(tmp_path: Path) -> None:
    output_of(CRASH_WITH_AN_OPEN_INTENT, tmp_path / "audit", 1500)
    assert kinds(tmp_path / "audit").count(chain.SEGMENT) > 3
    Audit.open(tmp_path / "audit").close()
    assert [record["ref"] for record in named(tmp_path / "audit", "exec.outcome")] == [1, 2]
    assert chain.verify(tmp_path / "audit").ok


def test_a_crash_between_two_files_is_recovered(crashed: Path) -> None:
    log = crashed / LOG_NAME
    log.write_bytes(log.read_bytes().rstrip(b"\0"))
    log.rename(crashed / chain.segment_name(1))
    assert chain.verify(crashed).ok
    Audit.open(crashed).close()
    assert [record["ref"] for record in named(crashed, "exec.outcome")] == [1, 2]
    assert chain.verify(crashed).ok


@pytest.mark.parametrize("torn", [b"{", b'{"seq":24,"at":"2026', b"\0" * 600 + b'x"}\n', b"\xff"])
def test_an_unfinished_record_is_moved_aside_and_never_dropped(crashed: Path, torn: bytes) -> None:
    log = crashed / LOG_NAME
    whole = log.read_bytes()
    end = len(whole.rstrip(b"\0"))
    log.write_bytes(whole[:end] + torn + whole[end + len(torn) :])
    before = chain.verify(crashed)
    assert before.ok
    assert "record 24 is unfinished" in before.detail
    Audit.open(crashed).close()
    (report,) = named(crashed, "broker.recovered")
    assert report["seq"] == 24
    assert (crashed / report["torn_file"]).read_bytes() == torn
    assert report["torn_bytes"] == len(torn)
    assert report["torn_sha256"] == hashlib.sha256(torn).hexdigest()
    assert chain.verify(crashed).detail == "the chain is whole"


@pytest.mark.parametrize("cut", ["byte", "record", "head", "log", "head only", "longer"])
def test_a_changed_log_is_not_continued_and_not_touched(crashed: Path, cut: str) -> None:
    log, head = crashed / LOG_NAME, crashed / HEAD_NAME
    whole = log.read_bytes()
    if cut == "byte":
        log.write_bytes(whole.replace(b'"number":7', b'"number":8'))
    elif cut == "record":
        log.write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
    elif cut == "longer":
        Audit.open(crashed).close()
        log.write_bytes(log.read_bytes() + b"\0")
    else:
        (head if cut == "head" else log).unlink()
        if cut == "head only":
            head.write_bytes(b"nonsense")
    before = {path.name: path.read_bytes() for path in crashed.iterdir()}
    for _ in range(2):  # the first refusal holds no lock
        with pytest.raises(startup.AuditUnavailableError, match="was changed") as refused:
            Audit.open(crashed)
        assert "evidence" in refused.value.fix
    assert {path.name: path.read_bytes() for path in crashed.iterdir()} == before
    assert not chain.verify(crashed).ok


WRITE_UNTIL_KILLED = """
    import asyncio, os, sys
    from pathlib import Path
    from broker.audit import Audit

    async def client(audit, number):
        while True:
            seq = await audit.append("exec.intent", {"client": number, "pad": "x" * 37 * number})
            os.write(1, b"%d\\n" % seq)
            audit.append_lazy("exec.outcome", {"state": "done"}, ref=seq)

    async def main():
        audit = Audit.open(Path(sys.argv[1]), segment_bytes=60_000)
        await asyncio.gather(*[client(audit, number) for number in range(5)])

    asyncio.run(main())
"""


def test_killing_the_writer_loses_no_acknowledged_record_and_is_no_alarm(tmp_path: Path) -> None:
    directory, chance = tmp_path / "audit", random.Random(7)  # noqa: S311 - when to kill
    acknowledged: set[int] = set()
    for _ in range(20):
        with run_python(WRITE_UNTIL_KILLED, directory) as process:
            assert process.stdout is not None
            wanted = chance.randrange(1, 400)
            lines = [process.stdout.readline() for _ in range(wanted)]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines()
        acknowledged |= {int(line) for line in lines if line.strip()}
        verdict = chain.verify(directory)
        assert verdict.ok, verdict
        assert verdict.last_seq >= max(acknowledged)
    Audit.open(directory).close()
    assert chain.verify(directory).detail == "the chain is whole"
    records = list(chain.records(directory))
    intents = {int(str(r["seq"])) for r in records if r["kind"] == "exec.intent"}
    outcomes = [int(str(r["ref"])) for r in records if r["kind"] == "exec.outcome"]
    assert acknowledged <= intents
    assert sorted(outcomes) == sorted(intents)  # each exactly one, known or unknown
    assert kinds(directory).count("broker.recovered") == 20


def test_verify_beside_the_writer_raises_no_alarm(tmp_path: Path) -> None:
    with run_python(WRITE_UNTIL_KILLED, tmp_path / "audit") as process:
        assert process.stdout is not None
        seen = []
        for _ in range(60):
            process.stdout.readline()
            seen.append(chain.verify(tmp_path / "audit"))
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    assert [verdict for verdict in seen if not verdict.ok] == []
    assert seen[-1].last_seq > seen[0].last_seq


@pytest.fixture(scope="module")
def power_cut() -> Iterator[tuple[Path, list[Link], list[int]]]:
    """A log as it is while it is open, with its links and where each record ends."""
    with tempfile.TemporaryDirectory() as base:
        audit = Audit.open(Path(base) / "audit")
        for number in range(30):
            audit.append_blocking("exec.intent", {"pad": "x" * 97 * number})
        copy = shutil.copytree(Path(base) / "audit", Path(base) / "copy")
        audit.close()
        links = [Link(int(str(r["seq"])), str(r["hash"])) for r in chain.records(copy)]
        lines = (copy / LOG_NAME).read_bytes().split(b"\n")[:30]
        ends = [sum(len(line) + 1 for line in lines[: at + 1]) for at in range(30)]
        yield copy, links, ends


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_power_cut_is_no_alarm(
    power_cut: tuple[Path, list[Link], list[int]], data: st.DataObject
) -> None:
    """Of what was written after the last known flush, any sector may be missing; so may the head's
    last writes.  What was flushed before is there.
    """
    pristine, links, ends = power_cut
    flushed = data.draw(st.integers(0, 29))
    known = data.draw(st.integers(0, flushed))
    with tempfile.TemporaryDirectory() as base:
        copy = shutil.copytree(pristine, Path(base) / "audit")
        log = bytearray((copy / LOG_NAME).read_bytes())
        lost = data.draw(st.sets(st.integers(ends[flushed] // 512, ends[-1] // 512)))
        for sector in lost:
            start = max(sector * 512, ends[flushed])
            log[start : (sector + 1) * 512] = bytes((sector + 1) * 512 - start)
        (copy / LOG_NAME).write_bytes(log)
        (copy / HEAD_NAME).write_bytes(Head(links[known], closed=False).line())
        verdict = chain.verify(copy)
        assert verdict.ok, verdict
        assert verdict.last_seq >= flushed + 1
        Audit.open(copy).close()
        assert chain.verify(copy).detail == "the chain is whole"
        (report,) = named(copy, "broker.recovered")
        beyond = bytes(log[ends[verdict.last_seq - 1] :]).rstrip(b"\0")
        if beyond:
            assert (copy / report["torn_file"]).read_bytes() == beyond
        else:
            assert "torn_file" not in report


# --- a disk that fails ----------------------------------------------------------------------------

FILL_THE_DISK = """
    import asyncio, os, resource, sys
    from pathlib import Path
    from broker import startup
    from broker.audit import Audit
    from broker.errors import AuditUnavailableError

    directory = Path(sys.argv[1])
    audit = Audit.open(directory)
    if sys.argv[2] == "EFBIG":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))

    async def fill():
        done = 0
        try:
            while True:
                done = await audit.append("exec.intent", {"pad": "x" * 20_000})
        except AuditUnavailableError as error:
            return done, error.__cause__

    done, cause = asyncio.run(fill())
    refusals = 0
    for append in (audit.append_lazy, audit.append_blocking):
        try:
            append("exec.intent", {})
        except AuditUnavailableError as error:
            refusals += error.__cause__ is cause
    print(done, cause.errno, refusals, audit.failure is cause)
    if sys.argv[2] == "EFBIG":
        try:
            audit.reopen()
        except startup.AuditUnavailableError as error:
            print("still", error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        audit.reopen()
        print(audit.failure, audit.append_blocking("test.event", {}))
    audit.close()
"""


def test_after_a_failed_write_every_append_fails_until_the_log_is_reopened(tmp_path: Path) -> None:
    told = output_of(FILL_THE_DISK, tmp_path / "audit", "EFBIG").splitlines()
    done, errno_, refusals, same = told[0].split()
    assert (int(errno_), int(refusals), same) == (27, 2, b"True")
    assert told[1].startswith(b"still cannot write audit log")
    failure, seq = told[2].split()
    assert failure == b"None"
    verdict = chain.verify(tmp_path / "audit")
    assert verdict.ok
    assert verdict.last_seq >= int(seq) > int(done) > 10
    audit = Audit.open(tmp_path / "audit")
    assert audit.append_blocking("test.event", {}) > int(done)
    audit.close()
    assert chain.verify(tmp_path / "audit").ok


def test_a_full_disk_is_told_as_such_and_is_no_alarm(tmp_path: Path) -> None:
    """On a file system of its own, in a mount namespace of its own."""
    check = """
        import sys
        from pathlib import Path
        from broker import chain, startup
        from broker.audit import Audit
        directory = Path(sys.argv[1])
        verdict = chain.verify(directory)
        try:
            Audit.open(directory).close()
            print("reopened")
        except startup.AuditUnavailableError as error:
            print(verdict.ok, verdict.last_seq, "No space left" in str(error), bool(error.fix))
    """
    shell = (
        'mount -t tmpfs -o size=1600k none "$1" && "$2" -c "$3" "$1/audit" ENOSPC'
        ' && head -c 2M /dev/zero >"$1/ballast" 2>/dev/null; "$2" -c "$4" "$1/audit"'
    )
    scripts = [textwrap.dedent(script) for script in (FILL_THE_DISK, check)]
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c", shell, "sh"]
    result = subprocess.run(
        [*unshare, str(tmp_path), sys.executable, *scripts],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=True,
    )
    filled, checked = result.stdout.split(b"\n")[:2]
    done, errno_, refusals, same = filled.split()
    assert (int(errno_), int(refusals), same) == (28, 2, b"True")
    ok, last, told, fix = checked.split()
    assert (ok, told, fix) == (b"True", b"True", b"True")
    assert int(last) >= int(done) > 10

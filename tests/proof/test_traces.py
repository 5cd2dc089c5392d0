# SPDX-License-Identifier: Apache-2.0
"""The self-test leaves nothing behind, neither files nor processes, also when it cannot run."""

import errno
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.filter.core import compile_c
from tests.proof.prover import CORE, Proof, Prover


def assert_clean(proof: Proof) -> None:
    assert proof.descriptors_after == proof.descriptors_before
    assert proof.children == errno.ECHILD


def working_directories() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended, or somebody else's
            found.append(str((process / "cwd").readlink()))
    return found


def test_nothing_is_left(prover: Prover) -> None:
    proof = prover.prove()
    assert proof.result == 0
    assert_clean(proof)
    assert list(prover.directory.iterdir()) == []
    assert not [place for place in working_directories() if place.startswith(str(prover.directory))]


def test_nothing_is_left_when_the_proof_fails(prover: Prover) -> None:
    proof = prover.prove(weaken_fs=prover.handled_fs() & ~1)
    assert len(proof.failed()) > 10
    assert_clean(proof)
    assert list(prover.directory.iterdir()) == []


def missing(prover: Prover) -> Proof:
    return prover.prove(prover.directory / "missing")


def not_a_directory(prover: Prover) -> Proof:
    return prover.prove(prover.program)


def too_small(prover: Prover) -> Proof:
    return prover.prove(capacity=10)


def too_long(prover: Prover) -> Proof:
    return prover.prove(Path("/" + "x" * 300))


def below_the_floor(prover: Prover) -> Proof:
    return prover.prove(max_abi=2)


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        (missing, errno.ENOENT),
        (not_a_directory, errno.ENOTDIR),
        (too_long, errno.ENAMETOOLONG),
        (too_small, errno.ENOSPC),
        (below_the_floor, errno.ERANGE),
    ],
)
def test_an_error_says_what_and_leaves_nothing(
    prover: Prover, attempt: Callable[[Prover], Proof], error: int
) -> None:
    proof = attempt(prover)
    assert proof.result == -error
    assert proof.rows == {}
    assert_clean(proof)
    assert list(prover.directory.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_an_error(user: Prover) -> None:
    proof = user.prove(Path("/"))
    assert proof.result == -errno.EACCES
    assert_clean(proof)


def test_a_full_descriptor_table_is_an_error_and_leaves_nothing(prover: Prover) -> None:
    for limit in range(4, 9):
        proof = prover.prove(prefix=("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"))
        assert proof.result <= 0
        assert_clean(proof)
        assert list(prover.directory.iterdir()) == []


def test_a_long_directory_name_is_no_trouble(prover: Prover) -> None:
    """Unix socket names end at 107 bytes; the proof does not depend on where it runs."""
    base = prover.directory
    deep = base / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    if prover.uid is not None:
        os.chown(deep, prover.uid, prover.uid)
    proof = prover.prove(deep)
    assert (proof.result, proof.failed()) == (0, set())
    assert list(deep.iterdir()) == []
    deep.rmdir()
    deep.parent.rmdir()


IN_PYTHON = """
import ctypes, os, signal, sys, threading
library, directory = ctypes.CDLL(sys.argv[1]), sys.argv[2].encode()
class Row(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("claim", ctypes.c_char_p)] + [
        (field, ctypes.c_int32) for field in ("expected", "confined", "control", "ok", "skipped")]
delivered = []
signal.signal(signal.SIGCHLD, lambda *_: delivered.append("SIGCHLD"))
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(8)]
for thread in threads: thread.start()
failures = []
def prove():
    rows, count = (Row * 512)(), ctypes.c_size_t()
    result = library.sandbox_selftest(directory, 0, None, rows, 512, ctypes.byref(count))
    failures.extend([result] if result else [r.name for r in rows[:count.value] if not r.ok])
before = sorted(os.listdir("/proc/self/fd"))
provers = [threading.Thread(target=prove) for _ in range(3)]
for thread in provers: thread.start()
for thread in provers: thread.join()
after = sorted(os.listdir("/proc/self/fd"))
stop.set()
with open("/proc/self/status") as status:
    state = dict(line.split(":", 1) for line in status)
print(failures, delivered, before == after, state["NoNewPrivs"].strip(), state["Seccomp"].strip())
"""


@pytest.fixture(scope="module")
def shared_object(open_place: Path) -> Path:
    flags = ("gcc", "-shared", "-fPIC", "-pthread")
    return compile_c(flags, open_place / "proof.so", *CORE)


def test_it_runs_in_a_python_process_with_threads(user: Prover, shared_object: Path) -> None:
    """Three at a time, from a shared library; no signal arrives and the process stays as it was."""
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", IN_PYTHON, str(shared_object), str(user.directory)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        user=user.uid,
        group=user.uid,
    )
    assert done.stdout == "[] [] True 0 0\n"
    assert list(user.directory.iterdir()) == []

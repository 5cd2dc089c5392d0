# SPDX-License-Identifier: Apache-2.0
"""What status() says of this kernel, and of kernels that cannot confine."""

from __future__ import annotations

import ctypes
import errno
import struct

import pytest

import sandbox
from sandbox import Ruleset, SandboxError, SandboxUnavailable, State, Status
from sandbox.landlock import _status
from tests.support.process import in_process

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
LANDLOCK_CREATE_RULESET = 444
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000


def without_landlock(number: int) -> None:
    """Makes the kernel answer landlock_create_ruleset(2) with this errno, for good."""
    program = [
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, LANDLOCK_CREATE_RULESET),
        (RETURN, 0, 0, RET_ERRNO | number),
        (RETURN, 0, 0, RET_ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) == 0


def test_this_kernel_is_ready() -> None:
    status = sandbox.status()
    assert (status.state, status.ready, status.hint) == (State.READY, True, None)
    assert sandbox.FLOOR <= status.abi <= status.kernel_abi
    status.require()


ABSENT = [
    (errno.ENOSYS, State.NOT_BUILT, "CONFIG_SECURITY_LANDLOCK=y"),
    (errno.EOPNOTSUPP, State.NOT_ENABLED, "boot with lsm=landlock,"),
]


@pytest.mark.parametrize(("number", "state", "hint"), ABSENT)
def test_a_kernel_without_landlock_is_told_apart(number: int, state: State, hint: str) -> None:
    def ask() -> Status:
        without_landlock(number)
        return sandbox.status()

    status = in_process(ask)
    assert (status.state, status.ready, status.abi) == (state, False, 0)
    assert status.hint is not None
    assert hint in status.hint


@pytest.mark.parametrize(("number", "state", "hint"), ABSENT)
def test_nothing_runs_without_landlock(number: int, state: State, hint: str) -> None:
    def attempt() -> None:
        without_landlock(number)
        sandbox.run(["true"], roots=sandbox.baseline())

    with pytest.raises(SandboxUnavailable, match=hint) as caught:
        in_process(attempt)
    assert (caught.value.stage, caught.value.errno) == ("kernel", number)


def test_an_answer_that_no_landlock_gives_is_an_error() -> None:
    def ask() -> Status:
        without_landlock(errno.EIO)
        return sandbox.status()

    with pytest.raises(SandboxError, match=r"kernel: .*EIO"):
        in_process(ask)


@pytest.mark.parametrize("abi", [1, 2])
def test_a_kernel_below_the_floor_is_refused_with_its_number(abi: int) -> None:
    class OldRuleset(Ruleset):
        _max_abi = abi

    status = _status(abi)
    assert (status.state, status.abi, status.ready) == (State.BELOW_FLOOR, abi, False)
    with pytest.raises(
        SandboxUnavailable, match=r"Linux 6\.2 or newer .* this kernel is ABI"
    ) as caught:
        OldRuleset(sandbox.baseline())
    assert caught.value.errno == errno.ERANGE


def test_the_floor_itself_is_enough() -> None:
    assert _status(sandbox.FLOOR).state is State.READY
    assert _status(sandbox.FLOOR).abi == sandbox.FLOOR


@pytest.mark.parametrize(
    ("abi", "handled_fs"),
    [
        (1, (1 << 13) - 1),
        (2, (1 << 14) - 1),
        (3, (1 << 15) - 1),
        (4, (1 << 15) - 1),
        (5, (1 << 16) - 1),
    ],
)
def test_each_abi_handles_every_right_it_has(abi: int, handled_fs: int) -> None:
    assert _status(abi).handled_fs == handled_fs

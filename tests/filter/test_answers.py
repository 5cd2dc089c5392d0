# SPDX-License-Identifier: Apache-2.0
"""The filter answers every number and every interesting argument as the policy says."""

from collections.abc import Iterable

import pytest

from tests.filter import bpf, policy
from tests.filter.bpf import Call
from tests.filter.core import Core
from tests.filter.policy import ALL_FLAGS, NAMESPACED, NET_NONE

every_shape = pytest.mark.parametrize("flags", ALL_FLAGS)


def differences(program: bpf.Program, calls: Iterable[Call], flags: int) -> list[str]:
    found = []
    for call in calls:
        answer = bpf.describe(bpf.run(program, call))
        wanted = policy.expected(call, flags)
        if answer != wanted:
            found.append(f"{call}: {answer}, not {wanted}")
    return found[:20]


@every_shape
def test_every_number_of_every_numbering(core: Core, flags: int) -> None:
    assert differences(core.program(flags), policy.number_calls(), flags) == []


@every_shape
def test_arguments_with_clean_and_dirty_high_words(core: Core, flags: int) -> None:
    assert differences(core.program(flags), policy.argument_calls(), flags) == []
    assert differences(core.program(flags), policy.argument_samples(), flags) == []


def test_flags_of_the_plan_change_nothing(core: Core) -> None:
    assert core.program(4 | 8 | 16) == core.program(0)


# A few answers spelled out, so that the policy itself has something to disagree with.
TOUCHSTONES = [
    (Call(0), 0, "ALLOW"),
    (Call(41, (1, 1, 0)), 0, "EPERM"),
    (Call(41, (0x1_0000_0001, 0x80002, 0)), 0, "EPERM"),
    (Call(41, (0xFFFFFFFF_00000001, 1, 0)), NET_NONE, "EPERM"),
    (Call(41, (2, 0x80801, 6)), 0, "ALLOW"),
    (Call(41, (2, 0x80801, 6)), NET_NONE, "EPERM"),
    (Call(41, (10, 2, 0)), NAMESPACED, "ALLOW"),
    (Call(41, (2, 1, 262)), 0, "EPROTONOSUPPORT"),
    (Call(41, (2, 5, 0)), 0, "EPERM"),
    (Call(41, (2, 10, 0x300)), 0, "EPROTONOSUPPORT"),
    (Call(41, (2, 10, 0)), 0, "EPERM"),
    (Call(41, (16, 3, 0)), NET_NONE, "ALLOW"),
    (Call(41, (16, 3, 4)), 0, "EPROTONOSUPPORT"),
    (Call(41, (17, 3, 0)), 0, "EAFNOSUPPORT"),
    (Call(41, (38, 5, 0)), 0, "EAFNOSUPPORT"),
    (Call(53, (1, 1, 0)), NET_NONE, "ALLOW"),
    (Call(53, (1, 0x80005, 0)), 0, "ALLOW"),
    (Call(53, (1, 2, 0)), 0, "EPROTONOSUPPORT"),
    (Call(53, (1, 3, 0)), 0, "EPROTONOSUPPORT"),
    (Call(53, (30, 1, 0)), 0, "EAFNOSUPPORT"),
    (Call(0x40000029, (1, 1, 0)), 0, "EPERM"),
    (Call(359, (1, 1, 0), bpf.I386), 0, "KILL_PROCESS"),
    (Call(-1), 0, "ALLOW"),
    (Call(425), 0, "ENOSYS"),
    (Call(435), NAMESPACED, "ENOSYS"),
    (Call(471), 0, "ENOSYS"),
    (Call(56, (0x3D0F00,)), 0, "ALLOW"),
    (Call(56, (0x10000011,)), 0, "EPERM"),
    (Call(56, (0x1_0000_0011,)), 0, "ALLOW"),
    (Call(272, (0x400,)), 0, "ALLOW"),
    (Call(272, (0x00100000,)), 0, "EPERM"),
    (Call(272, (0x20_0000_0000,)), 0, "EPERM"),
    (Call(16, (0, 0x5412)), 0, "EPERM"),
    (Call(16, (0, 0x1_0000_5412)), 0, "EPERM"),
    (Call(16, (0, 0x40049409)), 0, "ALLOW"),
    (Call(72, (0, 1024)), NAMESPACED, "EPERM"),
    (Call(135, (0x40000,)), 0, "ALLOW"),
    (Call(135, (0x400000,)), 0, "EPERM"),
    (Call(302, (0, 4, 0x7F00_0000_0000)), 0, "0"),
    (Call(302, (0, 4, 0)), 0, "ALLOW"),
    (Call(302, (0, 7, 0x7F00_0000_1000)), 0, "ALLOW"),
    (Call(302, (99, 7, 0)), 0, "EPERM"),
    (Call(302, (99, 7, 0)), NAMESPACED, "ALLOW"),
    (Call(302, (99, 4, 1)), NAMESPACED, "0"),
    (Call(302, (0x1_0000_0000, 7, 0)), 0, "ALLOW"),
    (Call(160, (4, 1)), NAMESPACED, "0"),
    (Call(141, (0, 0, 5)), 0, "ALLOW"),
    (Call(141, (2, 0, 5)), 0, "EPERM"),
    (Call(251, (3, 0, 5)), 0, "EPERM"),
    (Call(144, (77, 0, 0)), 0, "EPERM"),
    (Call(29, (0, 0, 0)), 0, "EPERM"),
    (Call(29, (0, 0, 0)), NAMESPACED, "ALLOW"),
]


@pytest.mark.parametrize(("call", "flags", "answer"), TOUCHSTONES)
def test_touchstone(core: Core, call: Call, flags: int, answer: str) -> None:
    assert bpf.describe(bpf.run(core.program(flags), call)) == answer
    assert policy.expected(call, flags) == answer

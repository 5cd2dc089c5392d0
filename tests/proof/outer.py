# SPDX-License-Identifier: Apache-2.0
"""Filters of other people around what is tested: a container's, or one with a hole."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Callable
from typing import Final

LD_WORD, AND, JUMP_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
NUMBER: Final = 0
WHOLE: Final = 0xFFFFFFFF

Condition = tuple[int, int, int]  # offset in struct seccomp_data, mask, value
Refusal = tuple[int, tuple[Condition, ...]]  # number of the call, and all of what must hold


def low(argument: int) -> int:
    return 16 + 8 * argument


def high(argument: int) -> int:
    return low(argument) + 4


def equals(argument: int, value: int, mask: int = WHOLE) -> tuple[Condition, ...]:
    return ((low(argument), mask, value),)


def equals_64(argument: int, value: int) -> tuple[Condition, ...]:
    return ((low(argument), WHOLE, value), (high(argument), WHOLE, 0))


def program(refusals: list[Refusal], error: int) -> bytes:
    """Classic BPF that answers `error` when all conditions of one refusal hold."""
    code: list[tuple[int, int, int, int]] = []
    for number, conditions in refusals:
        tests = ((NUMBER, WHOLE, number), *conditions)
        for index, (offset, mask, value) in enumerate(tests):
            left = 3 * (len(tests) - index - 1) + 1
            code += [(LD_WORD, 0, 0, offset), (AND, 0, 0, mask), (JUMP_EQUAL, 0, left, value)]
        code.append((RETURN, 0, 0, 0x00050000 | error))
    code.append((RETURN, 0, 0, 0x7FFF0000))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def attach(refusals: list[Refusal], error: int = errno.EPERM) -> Callable[[], None]:
    """For preexec_fn: confines the child by this filter."""
    raw = program(refusals, error)
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(raw)

    def install() -> None:
        header = struct.pack("HxxxxxxP", len(raw) // 8, ctypes.addressof(instructions))
        set_no_new_privs, set_seccomp, filter_mode = 38, 22, 2
        libc.prctl(set_no_new_privs, 1, 0, 0, 0)
        if libc.prctl(set_seccomp, filter_mode, header, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")

    return install

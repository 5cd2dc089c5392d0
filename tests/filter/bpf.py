# SPDX-License-Identifier: Apache-2.0
"""Classic BPF as seccomp(2) runs it: load, check, run, and the kernel's search for constant allows.

Written from the man page and from kernel/seccomp.c and net/core/filter.c of Linux 6.12; it knows
nothing about our table.
"""

import errno
import struct
from dataclasses import dataclass
from typing import Final

NATIVE: Final = 0xC000003E  # AUDIT_ARCH_X86_64
I386: Final = 0x40000003

ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
ERRNO: Final = 0x00050000

LD_ABS, RET, JA, AND = 0x20, 0x06, 0x05, 0x54
JEQ, JGT, JGE, JSET = 0x15, 0x25, 0x35, 0x45
CONDITIONAL: Final = frozenset({JEQ, JGT, JGE, JSET})
DATA_SIZE: Final = 64  # struct seccomp_data
NR_OFFSET, ARCH_OFFSET = 0, 4
ONES: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Instruction:
    code: int
    jt: int
    jf: int
    k: int


Program = tuple[Instruction, ...]


def load(raw: bytes) -> Program:
    """The instructions of an array of struct sock_filter."""
    return tuple(Instruction(*fields) for fields in struct.iter_unpack("=HBBI", raw))


@dataclass(frozen=True, slots=True)
class Call:
    """One system call as the filter sees it; `args` are the six registers, 64 bits each."""

    nr: int
    args: tuple[int, ...] = ()
    arch: int = NATIVE

    def words(self) -> tuple[int, ...]:
        """struct seccomp_data as 32-bit words, little-endian."""
        padded = [value & (1 << 64) - 1 for value in self.args] + [0] * (6 - len(self.args))
        halves = [half for value in padded for half in (value & ONES, value >> 32)]
        return (self.nr & ONES, self.arch, 0, 0, *halves)  # the instruction pointer is 0


def jumps(accumulator: int, code: int, k: int) -> bool:
    if code == JEQ:
        return accumulator == k
    if code == JGT:
        return accumulator > k
    if code == JGE:
        return accumulator >= k
    return bool(accumulator & k)


def run(program: Program, call: Call) -> int:
    """The filter's answer, a SECCOMP_RET_* value."""
    words = call.words()
    accumulator = pc = 0
    while True:
        at = program[pc]
        pc += 1
        if at.code in CONDITIONAL:
            pc += at.jt if jumps(accumulator, at.code, at.k) else at.jf
        elif at.code == LD_ABS:
            accumulator = words[at.k // 4]
        elif at.code == RET:
            return at.k
        elif at.code == JA:
            pc += at.k
        elif at.code == AND:
            accumulator &= at.k
        else:
            raise ValueError(f"instruction {pc - 1}: unknown code {at.code:#x}")


def is_constant_allow(program: Program, nr: int, arch: int = NATIVE) -> bool:
    """Whether seccomp_is_const_allow() puts the number into the bitmap that skips the filter."""
    accumulator = pc = 0
    while True:
        at = program[pc]
        pc += 1
        if at.code in CONDITIONAL:
            pc += at.jt if jumps(accumulator, at.code, at.k) else at.jf
        elif at.code == LD_ABS and at.k in (NR_OFFSET, ARCH_OFFSET):
            accumulator = nr if at.k == NR_OFFSET else arch
        elif at.code == RET:
            return at.k == ALLOW
        elif at.code == JA:
            pc += at.k
        elif at.code == AND:
            accumulator &= at.k
        else:
            return False


def faults(program: Program) -> list[str]:
    """Why the kernel would refuse the program, and what it would accept but nobody should write."""
    found = [] if program else ["empty"]
    reached = {0}
    for pc, at in enumerate(program):
        targets: tuple[int, ...] = ()
        if at.code in CONDITIONAL:
            targets = (pc + 1 + at.jt, pc + 1 + at.jf)
        elif at.code == JA:
            targets = (pc + 1 + at.k,)
        elif at.code in (LD_ABS, AND):
            targets = (pc + 1,)
        elif at.code != RET:
            found.append(f"{pc}: code {at.code:#x} is not one that the kernel can emulate")
        if at.code == LD_ABS and (at.k % 4 or at.k >= DATA_SIZE):
            found.append(f"{pc}: load outside struct seccomp_data")
        if any(target >= len(program) for target in targets):
            found.append(f"{pc}: jump past the end")
        if pc not in reached:
            found.append(f"{pc}: cannot be reached")
        reached.update(targets)
    if program and program[-1].code != RET:
        found.append("does not end in a return")
    return found


def describe(answer: int) -> str:
    """`EPERM`, `ALLOW`, `KILL_PROCESS`, `0`: short enough for a table and an assertion."""
    if answer == ALLOW:
        return "ALLOW"
    if answer == KILL_PROCESS:
        return "KILL_PROCESS"
    if answer & 0xFFFF0000 == ERRNO:
        number = answer & 0xFFFF
        return errno.errorcode[number] if number else "0"
    return f"{answer:#x}"

# SPDX-License-Identifier: Apache-2.0
"""The program is one that the kernel takes, keeps short, and can decide in advance."""

import errno
import subprocess
from pathlib import Path

import pytest

from tests.filter import bpf, policy
from tests.filter.core import FILTER_MAX, HERE, MUSL, SOURCE, Core, compile_c, edited_copy
from tests.filter.policy import ALL_FLAGS, NEWEST_JUDGED

every_shape = pytest.mark.parametrize("flags", ALL_FLAGS)
SHARED = ("gcc", "-shared", "-fPIC")


@every_shape
def test_the_kernel_would_accept_it(core: Core, flags: int) -> None:
    assert bpf.faults(core.program(flags)) == []


@every_shape
def test_it_is_valid_without_any_one_row(core: Core, flags: int) -> None:
    for row, name in enumerate(core.row_names()):
        assert bpf.faults(core.program(flags, row)) == [], name


@every_shape
def test_always_allowed_numbers_skip_the_filter(core: Core, flags: int) -> None:
    program = core.program(flags)
    for nr in range(NEWEST_JUDGED + 1):
        always = policy.expected(bpf.Call(nr), flags) == "ALLOW"
        always = always and not policy.depends_on_arguments(nr, flags)
        assert bpf.is_constant_allow(program, nr) == always, nr
        assert not bpf.is_constant_allow(program, nr, bpf.I386), nr


@every_shape
def test_it_is_short(core: Core, flags: int) -> None:
    """Attaching costs 0.13 us an instruction: growth beyond this must be a decision."""
    assert len(core.program(flags)) <= 160


def test_paths_are_short(core: Core) -> None:
    """Mean number of instructions the kernel emulates for a number, and the longest such path."""
    program = core.program()
    lengths = [len(path(program, nr)) for nr in range(NEWEST_JUDGED)]
    assert max(lengths) <= 14
    assert sum(lengths) / len(lengths) <= 10


def path(program: bpf.Program, nr: int) -> list[int]:
    """The instructions that the kernel's emulation of the number goes through."""
    visited = []
    accumulator = pc = 0
    while True:
        at = program[pc]
        visited.append(pc)
        pc += 1
        if at.code in bpf.CONDITIONAL:
            pc += at.jt if bpf.jumps(accumulator, at.code, at.k) else at.jf
        elif at.code == bpf.LD_ABS and at.k in (bpf.NR_OFFSET, bpf.ARCH_OFFSET):
            accumulator = nr if at.k == bpf.NR_OFFSET else bpf.NATIVE
        else:
            return visited


@pytest.mark.parametrize("row", [-2, -1000, 1000])
def test_a_row_that_does_not_exist_is_refused(core: Core, row: int) -> None:
    assert core.result(0, row) == (-errno.EINVAL, b"")


def test_a_program_that_does_not_fit_is_refused(tmp_path: Path, core: Core) -> None:
    length = len(core.program())
    outcomes = {}
    for room in (length - 1, length):
        directory = tmp_path / str(room)
        directory.mkdir()
        limit = f"#define SANDBOX_FILTER_MAX {FILTER_MAX}"
        source = edited_copy(
            directory, {"sandbox.h": (limit, f"#define SANDBOX_FILTER_MAX {room}")}
        )
        small = Core(compile_c(SHARED, directory / "small.so", source))
        outcomes[room] = small.result()
    assert outcomes[length - 1] == (-errno.E2BIG, b"")
    assert outcomes[length] == core.result()


@pytest.mark.parametrize("reach", [2, 3, 8, 20, 60])
def test_jumps_that_are_too_far_take_a_detour(tmp_path: Path, core: Core, reach: int) -> None:
    """With a shorter longest jump the program grows, but answers the same."""
    edit = ("#define LONGEST_JUMP 255U", f"#define LONGEST_JUMP {reach}U")
    source = edited_copy(tmp_path, {"seccomp.c": edit})
    program = Core(compile_c(SHARED, tmp_path / "short.so", source)).program()
    assert len(program) > len(core.program())
    assert max(max(at.jt, at.jf) for at in program) <= reach
    assert bpf.faults(program) == []
    for call in (*policy.number_calls(), *policy.argument_samples()):
        assert bpf.describe(bpf.run(program, call)) == policy.expected(call), call


def test_musl_and_glibc_give_the_same_program(tmp_path: Path, core: Core) -> None:
    dump = compile_c(MUSL, tmp_path / "dump", HERE / "dump.c", SOURCE / "seccomp.c")
    for flags in ALL_FLAGS:
        raw = subprocess.run([dump, str(flags)], stdout=subprocess.PIPE, check=True).stdout
        assert (0, raw) == core.result(flags)

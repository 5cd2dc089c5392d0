# SPDX-License-Identifier: Apache-2.0
"""csrc/seccomp.c compiled alone, and called."""

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.filter import bpf

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE.parents[1] / "csrc"
FILTER_MAX: Final = 512  # SANDBOX_FILTER_MAX
STRICT: Final = (
    *("-std=gnu17", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wshadow"),
    *("-Wstrict-prototypes", "-Wmissing-prototypes", "-Wconversion", "-Wvla"),
)
MUSL: Final = (
    *("musl-gcc", "-static", "-idirafter", "/usr/include"),
    *("-idirafter", "/usr/include/x86_64-linux-gnu"),
)


def compile_c(compiler: Sequence[str], output: Path, *sources: Path) -> Path:
    command = [*compiler, *STRICT, f"-I{SOURCE}", "-o", str(output), *map(str, sources)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return output


def edited_copy(directory: Path, edits: dict[str, tuple[str, str]]) -> Path:
    """The filter's sources in `directory`, with one piece of text replaced in each file named."""
    for name in ("seccomp.c", "sandbox.h", "kernel.h"):
        shutil.copy(SOURCE / name, directory)
    for name, (old, new) in edits.items():
        text = (directory / name).read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        (directory / name).write_text(text.replace(old, new))
    return directory / "seccomp.c"


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", _Instruction * FILTER_MAX))


class Core:
    """The two exported functions of a shared object built from seccomp.c."""

    def __init__(self, shared_object: Path) -> None:
        library = ctypes.CDLL(str(shared_object))
        self._filter = library.sandbox_filter
        self._filter.argtypes = (ctypes.c_uint32, ctypes.c_int, ctypes.POINTER(_Filter))
        self._row_name = library.sandbox_filter_row_name
        self._row_name.argtypes = (ctypes.c_size_t,)
        self._row_name.restype = ctypes.c_char_p

    def result(self, flags: int = 0, omit_row: int = -1) -> tuple[int, bytes]:
        """What sandbox_filter returned, and the program it wrote (b"" where it wrote none)."""
        raw = _Filter()
        error = int(self._filter(flags, omit_row, ctypes.byref(raw)))
        return error, bytes(raw.instructions)[: raw.length * ctypes.sizeof(_Instruction)]

    def program(self, flags: int = 0, omit_row: int = -1) -> bpf.Program:
        error, raw = self.result(flags, omit_row)
        assert error == 0, error
        return bpf.load(raw)

    def row_names(self) -> list[str]:
        names = (self._row_name(row) for row in itertools.count())
        return [name.decode() for name in itertools.takewhile(lambda name: name, names)]

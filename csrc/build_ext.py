# SPDX-License-Identifier: Apache-2.0
"""The setuptools command that builds the C core, once for Python and once as a program.

1. sandbox.cdef.h and the core's sources become the extension module `sandbox._native`.
2. All of csrc becomes the static executable `sandbox/confine`.

Both come out the same bytes for the same sources and compiler.  Nothing is tested here: `make
build` runs the self-test of what was built.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cffi import FFI
from cffi.recompiler import make_c_source
from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CSRC = Path("csrc")

# No debug information and no absolute names: the output must not depend on the directory.
COMMON_FLAGS = (
    "-std=gnu17",
    "-O2",
    "-g0",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    "-fstack-protector-strong",
    "-D_GNU_SOURCE",
    "-iquotecsrc",
)
MODULE_FLAGS = (
    *COMMON_FLAGS,
    # cffi's generated code, not ours: it leaves parameters unused and compares signs
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    "-Wno-missing-field-initializers",
)
MODULE_LINK_FLAGS = ("-s", "-Wl,--build-id=none", "-Wl,-z,relro", "-Wl,-z,now")
CONFINE_FLAGS = (
    *COMMON_FLAGS,
    "-static",
    "-s",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
)
# musl brings no kernel headers; searched last, so its own libc headers win.
KERNEL_HEADERS = ("-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu")


def emit_module(target: Path) -> None:
    """Writes the C of `sandbox._native` to `target` unless it is there already, unchanged."""
    ffi = FFI()
    ffi.cdef((CSRC / "sandbox.cdef.h").read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    includes = "".join(f'#include "{name}.h"\n' for name in ("sandbox", "roots", "stdfd"))
    make_c_source(ffi, "sandbox._native", includes, str(target))


def static_compiler() -> tuple[str, ...]:
    """The compiler for a static executable: musl's by choice, for its size and its quick start."""
    if shutil.which("musl-gcc"):
        return ("musl-gcc", *KERNEL_HEADERS)
    print(
        "note: no musl-gcc (apt-get install musl-tools): confine is built with gcc -static, which"
    )
    print("note: works the same but starts about 0.4 ms slower")
    return ("gcc",)


def is_newer(target: Path, sources: list[Path]) -> bool:
    """Whether `target` exists and no source changed after it was built."""
    if not target.exists():
        return False
    built_at = target.stat().st_mtime_ns
    return all(source.stat().st_mtime_ns < built_at for source in sources)


class BuildExt(build_ext):
    """build_ext for exactly one extension and its companion executable."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for ext in self.extensions:
            ext.depends = [str(path) for path in [*sorted(CSRC.glob("*.h")), Path(__file__)]]

    def get_source_files(self) -> list[str]:
        """What the sdist carries: all of csrc, or a wheel could not be built from it."""
        return sorted(str(path) for path in CSRC.glob("*.*") if path.is_file())

    def build_extension(self, ext: Extension) -> None:
        missing = [source for source in ext.sources if not Path(source).exists()]
        if missing:
            raise CompileError(f"cannot build the C core: missing {', '.join(missing)}")
        self.build_module(ext)
        self.build_confine(ext)

    def build_module(self, ext: Extension) -> None:
        generated = Path(self.build_temp) / "_native.c"
        emit_module(generated)
        ext.sources = [*ext.sources, str(generated)]
        ext.extra_compile_args = [*MODULE_FLAGS]
        ext.extra_link_args = [*MODULE_LINK_FLAGS]
        super().build_extension(ext)

    def build_confine(self, ext: Extension) -> None:
        sources = sorted(CSRC.glob("*.c"))
        target = self.confine_path
        if not self.force and is_newer(target, [*sources, *map(Path, ext.depends)]):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        # Linked beside and renamed over: a running confine keeps its own file (no ETXTBSY).
        fresh = target.with_name(f".confine.{os.getpid()}")
        command = [*static_compiler(), *CONFINE_FLAGS, "-o", str(fresh), *map(str, sources)]
        try:
            self.spawn(command)
            fresh.rename(target)
        finally:
            fresh.unlink(missing_ok=True)

    @property
    def confine_path(self) -> Path:
        """Where the executable goes first; copied into the source tree when building in place."""
        return Path(self.build_lib) / "sandbox" / "confine"

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        target = Path("sandbox/confine")
        if target.exists() and target.read_bytes() == self.confine_path.read_bytes():
            return
        fresh = target.with_name(f".confine.{os.getpid()}")
        shutil.copy2(self.confine_path, fresh)
        fresh.rename(target)

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), str(self.confine_path)]

    def get_output_mapping(self) -> dict[str, str]:
        mapping = super().get_output_mapping()
        if self.inplace:
            mapping[str(self.confine_path)] = "sandbox/confine"
        return mapping

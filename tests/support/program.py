# SPDX-License-Identifier: Apache-2.0
"""Static C programs that tests run inside: such a program needs no root but its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def build(source: Path, directory: Path) -> Path:
    """Compiles one file; returns the program, which has the name of its source."""
    program = directory / source.stem
    compiler = next(name for name in ("musl-gcc", "gcc") if shutil.which(name))
    flags = ["-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static"]
    headers = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]
    subprocess.run([compiler, *flags, *headers, "-o", str(program), str(source)], check=True)
    return program


@contextmanager
def built(source: Path) -> Iterator[Path]:
    """The program, in a directory that everybody may enter and that goes away afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"{source.stem}-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        yield build(source, directory)
    finally:
        shutil.rmtree(directory)

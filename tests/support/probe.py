# SPDX-License-Identifier: Apache-2.0
"""The program probe.c: many operations tried in one process, each answered by its errno."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("probe.c")


def build(directory: Path) -> Path:
    """Compiles the probe as a static program: it needs no root but its own."""
    program = directory / "probe"
    compilers = ["musl-gcc", "gcc"]
    compiler = next(name for name in compilers if shutil.which(name))
    flags = ["-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static"]
    headers = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]
    subprocess.run(
        [compiler, *flags, *headers, "-o", str(program), str(SOURCE)], check=True, text=True
    )
    return program


def parse(output: bytes) -> dict[str, str]:
    """Operation to "ok", the name of its errno, or "SIG…" where the signal ended it."""
    answers: dict[str, str] = {}
    for line in output.decode().splitlines():
        name, _, number = line.partition(" ")
        answers[name] = _symbol(int(number))
    return answers


def _symbol(number: int) -> str:
    if number == 0:
        return "ok"
    return errno.errorcode[number] if number > 0 else signal.Signals(-number).name

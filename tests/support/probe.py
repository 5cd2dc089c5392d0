# SPDX-License-Identifier: Apache-2.0
"""The program probe.c: many operations tried in one process, each answered by its errno."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

from tests.support import program

SOURCE = Path(__file__).with_name("probe.c")


def build(directory: Path) -> Path:
    return program.build(SOURCE, directory)


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

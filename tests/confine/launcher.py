# SPDX-License-Identifier: Apache-2.0
"""Running confine(1) as its callers do: words in, a status and one line out."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sandbox

USAGE: Final = 90
KERNEL: Final = 91
SETUP: Final = 92
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127

TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one line that confine says when it refuses."""
        assert self.err.startswith("confine: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("confine: ").rstrip("\n")


def program() -> str:
    return str(sandbox.helper_path())


def confine(*words: object, **options: Any) -> Result:
    """Runs confine with these words to its end; `options` are those of subprocess.run."""
    done = subprocess.run(
        [program(), *map(_word, words)],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        **{"stdin": subprocess.DEVNULL, **options},
    )
    return Result(
        done.returncode,
        done.stdout.decode(errors="surrogateescape"),
        done.stderr.decode(errors="surrogateescape"),
    )


def _word(word: object) -> str | bytes:
    return word if isinstance(word, bytes) else str(word)


def shell(script: str, *options: object, **more: Any) -> Result:
    """A shell command under the baseline and these options."""
    return confine("--baseline", *options, "--", "/bin/sh", "-c", script, **more)


def processes_of(program: Path) -> list[int]:
    """The processes that execute this file."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "exe") == str(program):
                found.append(int(entry.name))
    return found

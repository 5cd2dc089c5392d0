# SPDX-License-Identifier: Apache-2.0
"""What the kernel answers to each operation under each access: the table is the test."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import sandbox
from sandbox import Access, Network, Root, Ruleset
from tests.support import probe
from tests.support.kernel import require_abi, require_root
from tests.support.process import ORDINARY_UID, as_ordinary_user

READ, WRITE, EXEC, DEVICE = Access.READ, Access.WRITE, Access.EXEC, Access.DEVICE
NOTHING: Final = Access(0)

#: Operation of probe.c to the access that it needs; None: Landlock has no right for it.
NEEDS: Final[dict[str, Access | None]] = {
    "read": READ,
    "reopen": READ,
    "list": READ,
    "write": WRITE,
    "append": WRITE,
    "read_write": READ | WRITE,
    "truncate": WRITE,
    "open_truncate": WRITE,
    "create": WRITE,
    "unnamed": WRITE,
    "mkdir": WRITE,
    "rmdir": WRITE,
    "unlink": WRITE,
    "rename": WRITE,
    "rename_across": WRITE,
    "rename_directory": WRITE,
    "exchange": WRITE,
    "link": WRITE,
    "link_across": WRITE,
    "symlink": WRITE,
    "mkfifo": WRITE,
    "mksock": WRITE,
    "execute": EXEC,
    # Stated limits: metadata outside every root can be seen, and changed by its owner.
    "stat": None,
    "chmod": None,
}
#: Of those, what can be done to a single file.
ON_FILES: Final = {
    "read": "file",
    "reopen": "file",
    "write": "file",
    "append": "file",
    "read_write": "file",
    "truncate": "short",
    "open_truncate": "short",
    "execute": "program",
}
ACCESSES: Final = (
    NOTHING,
    READ,
    WRITE,
    EXEC,
    READ | WRITE,
    READ | EXEC,
    WRITE | EXEC,
    READ | WRITE | EXEC,
)


class Abi3Ruleset(Ruleset):
    """As on Linux 6.2, the floor."""

    _max_abi = 3


class Abi6Ruleset(Ruleset):
    """As on Linux 6.12."""

    _max_abi = 6


RULESETS: Final = (Ruleset, Abi3Ruleset, Abi6Ruleset)


@pytest.fixture
def tree(tmp_path: Path, probe_program: Path) -> Iterator[Path]:
    """The objects that probe.c tries its operations on."""
    old_umask = os.umask(0)
    for directory in ("", "sub", "empty", "tree", "tree/inner"):
        (tmp_path / "tree" / directory).mkdir(mode=0o777)
    tree = tmp_path / "tree"
    for name in ("file", "short", "victim", "from", "mover", "one", "two", "linked"):
        (tree / name).write_text("content")
    shutil.copy(probe_program, tree / "program")
    (tree / "program").chmod(0o755)
    yield tree
    os.umask(old_umask)


def unconfined(program: Path, tree: Path, uid: int | None = None) -> dict[str, str]:
    """The control: the same operations without a sandbox."""
    result = subprocess.run(
        [program, "files", tree], check=True, capture_output=True, user=uid, group=uid
    )
    return probe.parse(result.stdout)


def confined(ruleset: Ruleset, program: Path, *arguments: str | Path) -> dict[str, str]:
    done = sandbox.run([program, *arguments], roots=ruleset)
    assert (done.exit.code, done.stderr) == (0, b"")
    return probe.parse(done.stdout)


def expected(granted: Access) -> dict[str, str]:
    if granted & EXEC:
        granted |= READ  # a program must be mapped
    return {
        operation: "ok" if needed is None or needed in granted else "EACCES"
        for operation, needed in NEEDS.items()
    }


def only(answers: dict[str, str], operations: object) -> dict[str, str]:
    return {name: answer for name, answer in answers.items() if name in NEEDS}


def test_every_operation_succeeds_without_the_sandbox(tree: Path, probe_program: Path) -> None:
    answers = unconfined(probe_program, tree)
    assert only(answers, NEEDS) == dict.fromkeys(NEEDS, "ok") | {
        "chmod": answers["chmod"],
    }


@pytest.mark.parametrize("kind", RULESETS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("access", ACCESSES, ids=str)
def test_a_directory_grants_its_access_and_nothing_else(
    kind: type[Ruleset], access: Access, tree: Path, probe_program: Path
) -> None:
    roots = [sandbox.execute(probe_program)]
    if access:
        roots.append(Root(tree, access))
    with kind(roots) as ruleset:
        answers = confined(ruleset, probe_program, "files", tree)
    assert only(answers, NEEDS) == expected(access)

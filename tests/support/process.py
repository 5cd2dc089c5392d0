# SPDX-License-Identifier: Apache-2.0
"""Running a function in a process of its own, for what cannot be undone in this one."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

T = TypeVar("T")

#: An account that owns nothing on the machine.
ORDINARY_UID = 61234


def in_process(function: Callable[[], T]) -> T:
    """What `function` returns in a forked child; its exception is raised here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _answer(function, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(pid, 0)
    if not answer:
        raise AssertionError(f"the child ended without an answer, wait status {status}")
    kind, value = pickle.loads(answer)
    if kind == "raised":
        raise value
    result: T = value
    return result


def as_ordinary_user(function: Callable[[], T]) -> T:
    """What `function` returns in a child that gave up root, or in any child if we are not root."""

    def demoted() -> T:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
            os.setresuid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
        return function()

    return in_process(demoted)


@contextlib.contextmanager
def ordinary_directory() -> Iterator[Path]:
    """A private directory of the account that as_ordinary_user() has, with a short path."""
    place = Path(tempfile.mkdtemp(prefix="hb-", dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(place, ORDINARY_UID, ORDINARY_UID)
    try:
        yield place
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", "--", place], check=True)
        shutil.rmtree(place)


def _answer(function: Callable[[], object], writer: int) -> NoReturn:
    try:
        answer = ("returned", function())
    except BaseException as error:
        error.add_note(traceback.format_exc())
        answer = ("raised", error)
    with os.fdopen(writer, "wb") as answers:
        pickle.dump(answer, answers)
    os._exit(0)

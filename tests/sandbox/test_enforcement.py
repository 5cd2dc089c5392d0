# SPDX-License-Identifier: Apache-2.0
"""What the kernel answers to each operation under each access: the table is the test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final

import pytest

import sandbox
from sandbox import Access, Network, Root, Ruleset
from tests.support import probe
from tests.support.kernel import require_abi, require_root
from tests.support.process import ORDINARY_UID, as_ordinary_user, in_process

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


RULESETS: Final = (Ruleset, Abi6Ruleset, Abi3Ruleset)


@pytest.fixture
def tree(tmp_path: Path, probe_program: Path) -> Path:
    """The objects that probe.c tries its operations on."""
    tree = tmp_path / "tree"
    for directory in (".", "sub", "empty", "tree", "tree/inner"):
        (tree / directory).mkdir()
    for name in ("file", "short", "victim", "from", "mover", "one", "two", "linked"):
        (tree / name).write_text("content")
    shutil.copy(probe_program, tree / "program")
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    return tree


@pytest.fixture(params=["ourselves", "ordinary user"])
def run_as(request: pytest.FixtureRequest, tree: Path) -> Callable[..., dict[str, str]]:
    """Runs a function as the owner of the tree: us (root, in CI), or an ordinary account."""
    if request.param == "ourselves":
        return in_process
    require_root()
    for path in (tree, *tree.rglob("*")):
        os.chown(path, ORDINARY_UID, ORDINARY_UID)
    return as_ordinary_user


def unconfined(program: Path, *arguments: str | Path) -> dict[str, str]:
    """The control: the same operations without a sandbox."""
    return probe.parse(subprocess.run([program, *arguments], capture_output=True).stdout)


def confined(ruleset: Ruleset, program: Path, *arguments: str | Path) -> dict[str, str]:
    done = sandbox.run([program, *arguments], roots=ruleset)
    assert (done.exit.code, done.stderr) == (0, b"")
    return probe.parse(done.stdout)


def judged(answers: dict[str, str]) -> dict[str, str]:
    return {name: answer for name, answer in answers.items() if name in NEEDS}


def expected(granted: Access, operations: Container[str] = NEEDS) -> dict[str, str]:
    """`operations` are those that the root is in the way of; the others find no root."""
    if granted & EXEC:
        granted |= READ  # a program must be mapped
    return {
        name: "ok" if needed is None or (name in operations and needed in granted) else "EACCES"
        for name, needed in NEEDS.items()
    }


def test_without_the_sandbox_every_operation_succeeds(
    run_as: Callable[..., dict[str, str]], tree: Path, probe_program: Path
) -> None:
    answers = run_as(lambda: unconfined(probe_program, "files", tree))
    assert judged(answers) == dict.fromkeys(NEEDS, "ok")


@pytest.mark.parametrize("kind", RULESETS)
@pytest.mark.parametrize("access", [NOTHING, *ACCESSES], ids=str)
def test_a_directory_grants_its_access_beneath_it_and_nothing_else(
    run_as: Callable[..., dict[str, str]],
    kind: type[Ruleset],
    access: Access,
    tree: Path,
    probe_program: Path,
) -> None:
    roots = [sandbox.execute(probe_program)] + ([Root(tree, access)] if access else [])

    def try_all() -> dict[str, str]:
        with kind(roots) as ruleset:
            return confined(ruleset, probe_program, "files", tree)

    assert judged(run_as(try_all)) == expected(access)


@pytest.mark.parametrize("kind", RULESETS)
@pytest.mark.parametrize("access", ACCESSES, ids=str)
def test_a_file_grants_its_access_to_itself_only(
    kind: type[Ruleset], access: Access, tree: Path, probe_program: Path
) -> None:
    files = [Root(tree / name, access) for name in ("file", "short", "program")]
    with kind([sandbox.execute(probe_program), *files]) as ruleset:
        answers = confined(ruleset, probe_program, "files", tree)
    assert judged(answers) == expected(access, ON_FILES)


@pytest.mark.parametrize("kind", RULESETS)
def test_device_nodes_are_never_made(kind: type[Ruleset], tree: Path, probe_program: Path) -> None:
    require_root()
    with kind([sandbox.execute(probe_program), sandbox.write(tree)]) as ruleset:
        answers = confined(ruleset, probe_program, "files", tree)
    control = unconfined(probe_program, "files", tree)
    assert (answers["mkchar"], answers["mkblock"]) == ("EACCES", "EACCES")
    assert (control["mkchar"], control["mkblock"]) == ("ok", "ok")


#: (source, destination) to what rename and link between them answer.
MOVES: Final = [
    (READ | WRITE, READ | WRITE, "ok", "ok"),
    (READ | WRITE | EXEC, READ | WRITE, "ok", "ok"),
    (READ | WRITE, NOTHING, "EACCES", "EACCES"),
    (NOTHING, READ | WRITE, "EACCES", "EXDEV"),
    (READ, READ | WRITE, "EACCES", "EXDEV"),
    (READ | WRITE, READ, "EACCES", "EACCES"),
    (READ | WRITE, READ | WRITE | EXEC, "EXDEV", "EXDEV"),  # would become executable
    (WRITE, READ | WRITE, "EXDEV", "EXDEV"),  # would become readable
]


@pytest.mark.parametrize("kind", RULESETS)
@pytest.mark.parametrize(("source", "destination", "rename", "link"), MOVES)
def test_no_file_gains_access_by_moving_between_roots(
    kind: type[Ruleset],
    source: Access,
    destination: Access,
    rename: str,
    link: str,
    tmp_path: Path,
    probe_program: Path,
) -> None:
    places = []
    for name, access in (("a", source), ("b", destination)):
        (tmp_path / name).mkdir()
        places += [Root(tmp_path / name, access)] if access else []
    for name in ("mover", "linked"):
        (tmp_path / "a" / name).touch()
    arguments = ("move", tmp_path / "a", tmp_path / "b")
    with kind([sandbox.execute(probe_program), *places]) as ruleset:
        answers = confined(ruleset, probe_program, *arguments)
    assert answers == {"rename": rename, "link": link}
    for name in ("moved", "link"):
        (tmp_path / "b" / name).unlink(missing_ok=True)
    (tmp_path / "a" / "mover").touch()
    assert unconfined(probe_program, *arguments) == {"rename": "ok", "link": "ok"}


@pytest.mark.parametrize(
    ("kind", "access", "answer"),
    [
        (Ruleset, READ, "EACCES"),
        (Ruleset, READ | DEVICE, "ok"),
        (Abi6Ruleset, READ, "EACCES"),
        (Abi6Ruleset, READ | DEVICE, "ok"),
        (Abi3Ruleset, READ, "ok"),  # no such right before ABI 5
        (Abi3Ruleset, READ | DEVICE, "ok"),
    ],
)
def test_ioctl_on_a_device_needs_its_own_access(
    kind: type[Ruleset], access: Access, answer: str, tree: Path, probe_program: Path
) -> None:
    require_abi(5)
    with kind([sandbox.execute(probe_program), Root("/dev/urandom", access)]) as ruleset:
        answers = confined(ruleset, probe_program, "files", tree)
    assert answers["device_ioctl"] == answer
    assert unconfined(probe_program, "files", tree)["device_ioctl"] == "ok"


@pytest.mark.parametrize(
    ("kind", "answer"), [(Ruleset, "EPERM"), (Abi6Ruleset, "EPERM"), (Abi3Ruleset, "ok")]
)
def test_processes_outside_cannot_be_signalled_from_abi_6_on(
    kind: type[Ruleset], answer: str, tree: Path, probe_program: Path
) -> None:
    require_abi(6)
    with kind([sandbox.execute(probe_program)]) as ruleset:
        answers = confined(ruleset, probe_program, "files", tree)
    assert answers["signal_outside"] == answer
    assert unconfined(probe_program, "files", tree)["signal_outside"] == "ok"


#: System call of probe.c to (confined, unconfined); the filter answers before the kernel does.
CALLS: Final = {
    "unix_stream": ("EPERM", "ok"),
    "unix_dgram": ("EPERM", "ok"),
    "unix_seqpacket": ("EPERM", "ok"),
    "unix_raw": ("EPERM", "ok"),
    "unix_dirty": ("EPERM", "ok"),
    "unix_negative": ("EPERM", "ok"),
    "pair_stream": ("ok", "ok"),
    "pair_dgram": ("EPROTONOSUPPORT", "ok"),
    "pair_dgram_dirty": ("EPROTONOSUPPORT", "ok"),
    "x32_socket": ("EPERM", "ENOSYS"),
    "x32_getpid": ("EPERM", "ENOSYS"),
    "int80_socket": ("SIGSYS", "ok"),
    "int80_socketcall": ("SIGSYS", "ok"),
    "int80_getpid": ("SIGSYS", "ok"),
    "io_uring_setup": ("ENOSYS", "EFAULT"),
    "clone3": ("ENOSYS", "EINVAL"),
    "keyctl": ("EPERM", "ok"),
}
INET: Final = {"inet_stream": ("ok", "ok"), "inet6_dgram": ("ok", "ok")}
NO_INET: Final = {"inet_stream": ("EPERM", "ok"), "inet6_dgram": ("EPERM", "ok")}


@pytest.mark.parametrize(
    ("network", "inet"), [(Network.OPEN, INET), (Network.NONE, NO_INET)], ids=str
)
def test_the_filter_answers_each_call_as_the_table_says(
    network: Network, inet: dict[str, tuple[str, str]], probe_program: Path
) -> None:
    with Ruleset([sandbox.execute(probe_program)], network=network) as ruleset:
        answers = confined(ruleset, probe_program, "calls")
    control = unconfined(probe_program, "calls")
    assert {name: (answers[name], control[name]) for name in answers} == CALLS | inet


def test_network_none_of_the_plan_is_enough(probe_program: Path) -> None:
    with Ruleset([sandbox.execute(probe_program)]) as ruleset:
        done = sandbox.run([probe_program, "calls"], roots=ruleset, network=Network.NONE)
    assert probe.parse(done.stdout)["inet_stream"] == "EPERM"

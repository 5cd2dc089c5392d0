# SPDX-License-Identifier: Apache-2.0
"""Scratch directories are private, used again only when untouched, and always removed whole."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.runs.scratch import Scratch, remove_tree, sweep
from tests.support.kernel import require_root
from tests.support.process import as_ordinary_user, ordinary_directory


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(os.fsencode(tmp_path))


def test_a_scratch_directory_is_private_to_its_owner(scratch: Scratch) -> None:
    status = os.stat(scratch.path)
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == os.getuid()


def test_an_untouched_directory_serves_the_next_run(scratch: Scratch) -> None:
    os.listdir(scratch.path)
    assert scratch.untouched()


def write_file(path: bytes) -> None:
    Path(os.fsdecode(path), "left").write_text("x")


def write_and_remove(path: bytes) -> None:
    write_file(path)
    Path(os.fsdecode(path), "left").unlink()


def open_to_others(path: bytes) -> None:
    os.chmod(path, 0o755)


def open_and_shut(path: bytes) -> None:
    os.chmod(path, 0o755)
    os.chmod(path, 0o700)


def leave_a_note(path: bytes) -> None:
    os.setxattr(path, "user.note", b"for the next run")


def replace(path: bytes) -> None:
    os.rename(path, path + b"-old")
    os.mkdir(path, 0o700)


def replace_by_link(path: bytes) -> None:
    os.rmdir(path)
    os.symlink(b"/tmp", path)


@pytest.mark.parametrize(
    "touch",
    [
        write_file,
        write_and_remove,
        open_to_others,
        open_and_shut,
        leave_a_note,
        replace,
        replace_by_link,
        os.rmdir,
    ],
)
def test_a_touched_directory_is_replaced(scratch: Scratch, touch: Callable[[bytes], None]) -> None:
    path = scratch.path
    touch(path)
    assert not scratch.untouched()
    assert scratch.replace() == path
    remove_tree(path)
    assert scratch.path != path
    assert not os.path.lexists(path)
    assert os.listdir(scratch.path) == []
    assert scratch.untouched()


@pytest.mark.parametrize("shut", ["state/tmp", "state", "state/tmp state"])
def test_a_base_that_a_run_has_shut_is_opened_again(shut: str) -> None:
    with ordinary_directory() as place:

        def replaced() -> tuple[int, int]:
            base = place / "state" / "tmp"
            base.mkdir(parents=True)
            scratch = Scratch(os.fsencode(base))
            for name in shut.split():
                (place / name).chmod(0)
            scratch.replace()
            return base.stat().st_mode & 0o777, os.stat(scratch.path).st_mode & 0o777

        assert as_ordinary_user(replaced)[1] == 0o700


def test_a_base_of_another_account_is_not_touched(tmp_path: Path) -> None:
    require_root()
    base = tmp_path / "tmp"
    base.mkdir()
    base.chmod(0o555)
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:2]:
        above.chmod(0o755)
    with pytest.raises(PermissionError):
        as_ordinary_user(lambda: Scratch(os.fsencode(base)) and None)
    assert stat.S_IMODE(base.stat().st_mode) == 0o555


def test_removing_a_link_leaves_what_it_names(scratch: Scratch, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    os.symlink(kept, scratch.path + b"/link")
    scratch.remove()
    assert (kept / "file").exists()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[bytes]:
    """A directory for a tree that pytest's own clean-up could not remove."""
    top = tmp_path / "tree"
    top.mkdir()
    yield os.fsencode(top)
    subprocess.run(["rm", "-rf", "--", top], check=True)


def test_locked_and_very_deep_trees_are_removed(tree: bytes) -> None:
    top = tree
    directory = os.open(top, os.O_RDONLY)
    for _ in range(1500):  # deeper than Python recurses, longer than PATH_MAX
        os.mkdir(b"d" * 8, 0o700, dir_fd=directory)
        below = os.open(b"d" * 8, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    os.mkdir(top + b"/locked")
    Path(os.fsdecode(top), "locked", "file").write_text("x")
    os.chmod(top + b"/locked", 0)
    remove_tree(top)
    assert not os.path.lexists(top)


def test_a_sweep_removes_what_an_earlier_broker_left(tmp_path: Path) -> None:
    for _ in range(2):
        left = Scratch(os.fsencode(tmp_path))
        write_file(left.path)
    assert sweep(os.fsencode(tmp_path)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_leaves_what_is_not_the_broker_s(tmp_path: Path) -> None:
    kept = ["thesis", "run-", "run-0123456", "run-0123456g", "run-01234567.bak"]
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / "run-76543210").write_text("a file")
    (tmp_path / "run-0000aaaa").symlink_to("/tmp")
    assert sweep(os.fsencode(tmp_path)) == 0
    assert len(list(tmp_path.iterdir())) == len(kept) + 2

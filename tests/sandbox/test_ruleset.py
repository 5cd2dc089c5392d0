# SPDX-License-Identifier: Apache-2.0
"""Roots: how they are opened, merged, and watched."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandbox
from sandbox import Access, Root, Ruleset, SandboxError
from sandbox.ruleset import _Granted
from tests.support.process import ORDINARY_UID, as_ordinary_user


def can_read(ruleset: Ruleset, path: Path | bytes) -> bool:
    """Whether a child can read the file; the baseline must be granted."""
    return sandbox.run(["cat", path], roots=ruleset).exit.code == 0


def with_baseline(*roots: Root) -> Ruleset:
    return Ruleset([*sandbox.baseline(), *roots])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("a\0b", Access.READ), ValueError, r"NUL in path of a root b'a\\x00b'"),
        ((b"a\0b", Access.READ), ValueError, "NUL in path of a root"),
        (("", Access.READ), ValueError, "empty path of a root"),
        (("/a", Access(0)), ValueError, "root '/a' must grant READ, WRITE or EXEC"),
        (("/a", Access.DEVICE), ValueError, "root '/a' must grant READ, WRITE or EXEC"),
        (("/a", 16), ValueError, "16"),
        ((7, Access.READ), TypeError, "expected str, bytes or os.PathLike"),
    ],
)
def test_a_malformed_root_is_refused(
    arguments: tuple[Any, Access], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Root(*arguments)


def test_helpers_say_what_they_grant() -> None:
    assert sandbox.read("/a") == Root("/a", Access.READ)
    assert sandbox.write("/a") == Root("/a", Access.READ | Access.WRITE)
    assert sandbox.execute("/a") == Root("/a", Access.READ | Access.EXEC)
    assert sandbox.read("/a", optional=True) == Root("/a", Access.READ, optional=True)


@pytest.mark.parametrize(
    ("path", "error", "advice"),
    [
        ("/no/such", "ENOENT", "create it, leave it out, or make it optional"),
        ("/etc/passwd/x", "ENOTDIR", "a component of the path is a file"),
        ("/proc/self/fd/0", "ELOOP", "a magic link"),
    ],
)
def test_a_root_that_does_not_open_is_named(path: str, error: str, advice: str) -> None:
    with pytest.raises(SandboxError, match=f"^root '{path}'.*{advice}") as caught:
        with_baseline(sandbox.read(path))
    assert (caught.value.stage, caught.value.errno_name) == ("root", error)
    assert caught.value.filename == path


def test_an_optional_root_is_skipped_only_when_missing() -> None:
    missing = [sandbox.read(path, optional=True) for path in ("/etc/passwd/x", "/no/such")]
    with Ruleset([sandbox.read("/usr"), *missing]) as ruleset:
        assert ruleset.skipped == tuple(missing)
    with pytest.raises(SandboxError, match="ELOOP"):
        Ruleset([sandbox.read("/proc/self/fd/0", optional=True)])


def test_an_optional_root_behind_a_planted_link_or_a_closed_door_grants_nothing(
    tmp_path: Path,
) -> None:
    """Whoever could do that to a root must not be able to stop everything by it."""
    for name in ("real", "closed/below"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "link").symlink_to("real")

    def skipped() -> bool:
        (tmp_path / "closed").chmod(0)
        names = ("link", "closed/below")
        roots = [Root(tmp_path / name, Access.READ, optional=True, follow=False) for name in names]
        with with_baseline(*roots) as ruleset:
            assert not can_read(ruleset, tmp_path / "real" / "file")
            return set(roots) <= set(ruleset.skipped)

    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(tmp_path / "closed", ORDINARY_UID, ORDINARY_UID)
    try:
        assert as_ordinary_user(skipped)
    finally:
        (tmp_path / "closed").chmod(0o755)


def test_a_link_is_followed_unless_the_root_says_no(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to("real")
    with with_baseline(sandbox.read(tmp_path / "link")) as ruleset:
        assert can_read(ruleset, tmp_path / "real" / "file")
    for path in (tmp_path / "link", tmp_path / "link" / "file"):
        with pytest.raises(SandboxError, match="ELOOP"):
            Ruleset([Root(path, Access.READ, follow=False)])
    Ruleset([Root((tmp_path / "real").resolve(), Access.READ, follow=False)]).close()


def test_a_rule_binds_what_was_there_not_the_path(tmp_path: Path) -> None:
    root, moved = tmp_path / "root", tmp_path / "moved"
    for directory, text in ((root, "old"), (tmp_path / "other", "new")):
        directory.mkdir()
        (directory / "file").write_text(text)
    with with_baseline(sandbox.read(root)) as ruleset:
        assert ruleset.current()
        root.rename(moved)
        (tmp_path / "other").rename(root)
        assert not ruleset.current()
        assert not can_read(ruleset, root / "file")
        assert can_read(ruleset, moved / "file")


def test_current_notices_every_kind_of_change(tmp_path: Path) -> None:
    root, link = tmp_path / "root", tmp_path / "link"
    root.mkdir()
    link.symlink_to("root")
    missing = tmp_path / "missing"
    roots = [sandbox.read(root), sandbox.read(link), sandbox.read(missing, optional=True)]
    with Ruleset(roots) as ruleset:
        assert ruleset.current()
        (root / "inside").touch()
        root.chmod(0o700)
        assert ruleset.current()
        missing.touch()
        assert not ruleset.current()
        missing.unlink()
        assert ruleset.current()
        link.unlink()
        assert not ruleset.current()
        link.symlink_to("/")
        assert not ruleset.current()
        link.unlink()
        link.symlink_to(root)
        assert ruleset.current()
        root.rename(tmp_path / "elsewhere")
        root.mkdir()
        assert not ruleset.current()


def test_a_removed_root_is_never_mistaken_for_its_successor(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Ruleset([sandbox.read(root)]) as ruleset:
        for _ in range(50):  # a filesystem would hand out the inode number again
            root.rmdir()
            root.mkdir()
            assert not ruleset.current()


def test_relative_roots_count_from_the_directory_of_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with with_baseline(sandbox.read("file")) as ruleset:
        monkeypatch.chdir("/")
        assert ruleset.current()
        assert can_read(ruleset, tmp_path / "file")


def test_more_roots_than_descriptors(tmp_path: Path) -> None:
    names = [tmp_path / str(number) for number in range(700)]
    for name in names:
        name.touch()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 200, limits[1]))
    try:
        with with_baseline(*map(sandbox.read, names)) as ruleset:
            for name in (names[0], names[350], names[-1]):
                assert can_read(ruleset, name)
            assert not can_read(ruleset, Path(__file__))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_no_roots_deny_everything(probe_program: Path) -> None:
    with Ruleset([]) as ruleset, pytest.raises(SandboxError, match="exec") as caught:
        sandbox.run([probe_program, "nothing"], roots=ruleset)
    assert caught.value.errno_name == "EACCES"


def test_a_failed_ruleset_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(SandboxError):
            Ruleset([sandbox.read("/usr"), sandbox.read("/no/such"), sandbox.read("/var")])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_ruleset_opens_one_descriptor_and_closes_it() -> None:
    before = len(os.listdir("/proc/self/fd"))
    ruleset = Ruleset(sandbox.baseline())
    assert len(os.listdir("/proc/self/fd")) == before + 1
    ruleset.close()
    ruleset.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="the ruleset is closed"):
        _ = ruleset.fd


# ---- merging ----

DIRECTORIES = ["", "a", "a/b", "a/b/c", "a/bc", "d"]


@given(
    st.lists(st.tuples(st.sampled_from(DIRECTORIES), st.integers(1, 7)), max_size=8).map(
        lambda roots: sorted(roots, key=lambda root: root[0])
    )
)
def test_leaving_out_covered_rules_changes_no_access(
    tmp_path_factory: pytest.TempPathFactory, roots: list[tuple[str, int]]
) -> None:
    top = tmp_path_factory.getbasetemp() / "merging"
    for name in DIRECTORIES:
        (top / name).mkdir(parents=True, exist_ok=True)
    granted = _Granted()
    kept = []
    for name, bits in roots:
        fd = os.open(top / name, os.O_PATH)
        kept.append((name, granted.missing(bits, fd)))
        os.close(fd)
    for place in DIRECTORIES:
        assert reaching(place, kept) == reaching(place, roots)


def reaching(place: str, roots: list[tuple[str, int]]) -> int:
    """What Landlock adds up for `place`; EXEC implies READ."""
    bits = 0
    for name, access in roots:
        if name == "" or place == name or place.startswith(name + "/"):
            bits |= access | (Access.READ.value if access & Access.EXEC.value else 0)
    return bits


def test_a_covered_root_needs_no_rule_and_a_wider_one_does(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    granted = _Granted()
    for path, bits, missing in [
        (tmp_path, Access.READ, Access.READ),
        (tmp_path / "in", Access.READ, Access(0)),
        (tmp_path / "in", Access.WRITE, Access.WRITE),
        (tmp_path / "in", Access.READ | Access.WRITE, Access(0)),
    ]:
        fd = os.open(path, os.O_PATH)
        assert granted.missing(bits.value, fd) == missing.value
        os.close(fd)

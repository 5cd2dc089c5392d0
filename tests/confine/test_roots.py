# SPDX-License-Identifier: Apache-2.0
"""Which paths become roots, and what they grant."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tests.confine.launcher import SETUP, Result, confine, shell
from tests.support import probe
from tests.support.kernel import require_root
from tests.support.process import ORDINARY_UID, as_ordinary_user

SECRET = "outside\n"


@pytest.fixture
def outside(place: Path) -> Path:
    """A directory that no test grants."""
    directory = place / "outside"
    directory.mkdir()
    (directory / "secret").write_text(SECRET)
    return directory


def cat(path: Path, *options: object, cwd: Path | None = None) -> Result:
    return confine("--baseline", *options, "--", "/bin/cat", path, cwd=cwd)


# ---- what a root grants ----


def test_a_file_outside_every_root_is_denied_and_inside_one_is_read(outside: Path) -> None:
    denied = cat(outside / "secret")
    assert denied.status == 1
    assert "Permission denied" in denied.err
    assert cat(outside / "secret", "--ro", outside).out == SECRET


WRITES = [
    "echo x > new",
    "echo x >> secret",
    "rm secret",
    "mkdir d",
    "mv secret other",
    "ln secret l",
]


@pytest.mark.parametrize("script", WRITES)
def test_writing_needs_rw(script: str, outside: Path) -> None:
    denied = shell(f"cd {outside} && {script}", "--ro", outside)
    assert denied.status != 0
    assert "Permission denied" in denied.err
    assert (outside / "secret").read_text() == SECRET
    assert shell(f"cd {outside} && {script}", "--rw", outside).status == 0


def test_executing_needs_exec(outside: Path, probe_program: Path) -> None:
    program = outside / "program"
    program.write_bytes(probe_program.read_bytes())
    program.chmod(0o755)
    for option in ("--ro", "--rw"):
        assert confine(option, outside, "--", program, "nothing").status == 126
    assert confine("--exec", outside, "--", program, "nothing").status == 0


def test_rights_on_one_path_add_up(outside: Path) -> None:
    script = f"cd {outside} && printf '#!/bin/sh\\necho built\\n' > tool && chmod +x tool && ./tool"
    assert shell(script, "--rw", outside, "--exec", outside).out == "built\n"
    assert shell(script, "--rw", outside).status == 126


def test_a_root_that_is_a_file_has_no_rights_of_a_directory(outside: Path) -> None:
    other = outside / "other"
    other.write_text("other")
    script = f"echo x > {outside}/secret && cat {outside}/secret"
    assert shell(script, "--rw", outside / "secret").out == "x\n"
    assert shell(f"cat {other}", "--rw", outside / "secret").status == 1
    assert shell(f"rm {outside}/secret", "--rw", outside / "secret").status == 1
    assert (outside / "secret").read_text() == "x\n"


@pytest.mark.parametrize("net", ["open", "none"])
def test_files_and_directories_move_across_directories_of_one_root(net: str, place: Path) -> None:
    (place / "sub").mkdir()
    (place / "tree").mkdir()
    (place / "tree" / "leaf").write_text("leaf")
    script = f"cd {place} && mv tree/leaf sub/leaf && mv tree sub/tree && cat sub/leaf"
    assert shell(script, "--net", net, "--rw", place).out == "leaf"


def test_a_nested_root_widens_and_never_narrows(outside: Path) -> None:
    inner = outside / "inner"
    inner.mkdir()
    script = f"echo x > {outside}/new; echo x > {inner}/new"
    assert shell(script, "--ro", outside, "--rw", inner).status == 0
    assert not (outside / "new").exists()
    assert (inner / "new").exists()


def test_ioctl_on_a_device_needs_dev(probe_program: Path) -> None:
    def answer(*options: str) -> str:
        words = ["--exec", probe_program, "--baseline", *options, "--", probe_program]
        return probe.parse(confine(*words, "files", "/").out.encode())["device_ioctl"]

    assert answer() == "EACCES"
    assert answer("--dev", "/dev/urandom") == "ok"


def test_no_device_node_is_made_in_a_writable_root(place: Path) -> None:
    require_root()
    script = f"mknod {place}/disk b 8 0; mknod {place}/kmsg c 1 11; mkfifo {place}/fifo"
    assert shell(script, "--rw", place).status == 0
    assert [path.name for path in place.iterdir()] == ["fifo"]
    os.mknod(place / "control", 0o600 | 0o020000, os.makedev(1, 3))


# ---- links ----


def plant(place: Path, outside: Path, kind: str) -> tuple[Path, Path]:
    """What an earlier command could have left, and the way to the secret through it."""
    job = place / "job"
    job.mkdir()
    if kind == "root":
        (job / "sub").symlink_to(outside)
        return job / "sub", job / "sub" / "secret"
    if kind == "component":
        (job / "sub").symlink_to(place)
        return job / "sub" / "outside", job / "sub" / "outside" / "secret"
    if kind == "relative":
        (job / "sub").symlink_to("../outside")
        return job / "sub", job / "sub" / "secret"
    if kind == "file":
        (job / "sub").symlink_to(outside / "secret")
        return job / "sub", job / "sub"
    (job / "one").symlink_to("/usr/../" + str(outside).lstrip("/"))
    return job / "one", job / "one" / "secret"


KINDS = ["root", "component", "relative", "file", "through the system"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["--ro", "--rw-opt"])
def test_a_planted_link_is_refused_and_named(
    option: str, kind: str, place: Path, outside: Path
) -> None:
    root, secret = plant(place, outside, kind)
    refused = cat(secret, option, root)
    assert refused.status == SETUP
    assert "is a symbolic link" in refused.message
    assert "ELOOP" in refused.message
    real = os.path.realpath(root)
    assert f"name '{real}'" in refused.message
    assert cat(secret, option, real).out == SECRET


def test_a_dangling_planted_link_is_refused(place: Path) -> None:
    (place / "link").symlink_to(place / "nowhere")
    refused = cat(place / "x", "--ro-opt", place / "link")
    assert refused.status == SETUP
    assert "name a path without it" in refused.message


def test_a_link_to_itself_is_refused(place: Path) -> None:
    (place / "loop").symlink_to("loop")
    assert cat(place / "x", "--ro", place / "loop").status == SETUP


@pytest.mark.parametrize("path", ["/proc/self/root", "/proc/self/cwd", "/proc/self/fd/0"])
def test_a_magic_link_of_proc_is_refused(path: str, outside: Path) -> None:
    refused = cat(outside / "secret", "--ro", path, cwd=outside)
    assert refused.status == SETUP


def test_links_of_the_system_itself_are_followed() -> None:
    """As many of these as are links here; no system has none."""
    candidates = ("/bin", "/lib", "/etc/localtime", "/etc/os-release", "/var/run")
    links = [link for link in candidates if os.path.islink(link)]
    assert links
    for link in links:
        assert confine("--baseline", "--ro", link, "--", "/bin/true").status == 0, link


def test_a_link_into_the_system_that_a_user_made_is_refused(place: Path) -> None:
    (place / "link").symlink_to("/usr")
    assert confine("--baseline", "--ro", place / "link", "--", "/bin/true").status == SETUP


def test_a_link_in_a_directory_that_others_write_is_refused() -> None:
    """Also one that root owns, where root could have meant it."""
    require_root()
    link = Path("/var/tmp") / f"link-{os.getpid()}"
    link.symlink_to("/usr")
    try:
        assert confine("--baseline", "--ro", link, "--", "/bin/true").status == SETUP
    finally:
        link.unlink()


def test_a_link_that_another_user_owns_is_refused_even_in_a_trusted_place() -> None:
    require_root()
    link = Path("/etc") / f"confine-test-{os.getpid()}"
    link.symlink_to("/usr/share")
    try:
        assert confine("--baseline", "--ro", link, "--", "/bin/true").status == 0
        os.lchown(link, ORDINARY_UID, ORDINARY_UID)
        assert confine("--baseline", "--ro", link, "--", "/bin/true").status == SETUP
    finally:
        link.unlink()


# ---- missing, unusual, many ----


@pytest.mark.parametrize("option", ["--ro", "--rw", "--exec", "--dev"])
def test_a_missing_path_is_fatal_and_the_fix_named(option: str, place: Path) -> None:
    refused = confine("--baseline", option, place / "nope", "--", "/bin/echo", "ran")
    assert (refused.status, refused.out) == (SETUP, "")
    assert refused.message.startswith(f"root: {option} '{place}/nope': No such file")
    assert "(ENOENT)" in refused.message
    assert "--ro-opt" in refused.message


@pytest.mark.parametrize("option", ["--ro-opt", "--rw-opt", "--exec-opt"])
def test_an_optional_missing_path_is_skipped_and_the_others_hold(
    option: str, outside: Path
) -> None:
    for missing in (outside / "nope", outside / "secret" / "below a file"):
        result = cat(outside / "secret", option, missing, "--ro", outside)
        assert result.out == SECRET
        assert cat(outside / "secret", option, missing).status == 1


def test_an_optional_path_that_exists_grants_as_the_plain_option(outside: Path) -> None:
    assert cat(outside / "secret", "--ro-opt", outside).out == SECRET
    assert shell(f"echo x > {outside}/new", "--rw-opt", outside).status == 0


def test_roots_of_which_none_is_there_are_no_roots(place: Path) -> None:
    refused = confine("--exec-opt", place / "a", "--ro-opt", place / "b", "--", "/bin/true")
    assert refused.status == SETUP
    assert "no usable root" in refused.message


def test_a_root_that_its_user_cannot_reach_is_refused_or_skipped(place: Path) -> None:
    require_root()
    (place / "private" / "deep").mkdir(parents=True)
    (place / "private").chmod(0o700)
    words = (place / "private" / "deep", "--baseline", "--", "/bin/true")
    refused = as_ordinary_user(lambda: confine("--ro", *words))
    assert refused.status == SETUP
    assert "(EACCES)" in refused.message
    assert as_ordinary_user(lambda: confine("--ro-opt", *words)).status == 0
    assert confine("--ro", *words).status == 0


def test_roots_of_every_type_neither_hang_nor_grant_more(place: Path, outside: Path) -> None:
    os.mkfifo(place / "fifo")
    words = ("--baseline", "--rw", place / "fifo", "--dev", "/dev/null", "--ro", "/")
    assert confine(*words, "--", "/bin/cat", outside / "secret").out == SECRET
    assert confine(*words[:3], "--", "/bin/cat", outside / "secret").status == 1


def test_a_name_that_is_not_utf8_is_a_name_like_any_other(place: Path) -> None:
    path = os.fsencode(place) + b"/\xff\xfe name"
    Path(os.fsdecode(path)).write_text("text")
    assert confine("--baseline", "--ro", path, "--", "/bin/cat", path).out == "text"
    assert confine("--baseline", "--", "/bin/cat", path).status == 1


def test_a_path_that_is_too_long_is_refused() -> None:
    refused = confine("--baseline", "--ro", "/" + "a/" * 2100, "--", "/bin/true")
    assert refused.status == SETUP
    assert "(ENAMETOOLONG)" in refused.message
    refused = confine("--baseline", "--ro", "/" + "a" * 256, "--", "/bin/true")
    assert "(ENAMETOOLONG)" in refused.message


def test_more_roots_than_descriptors_are_allowed(place: Path) -> None:
    """The limit is raised for a moment; the command has the caller's."""
    words: list[object] = []
    for number in range(1000):
        path = place / f"r{number}"
        path.mkdir()
        words += ["--ro", path]

    def few_descriptors() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))

    result = shell(f"ls {place}/r999 && ulimit -n", *words, preexec_fn=few_descriptors)
    assert (result.status, result.out) == (0, "128\n")

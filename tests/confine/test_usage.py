# SPDX-License-Identifier: Apache-2.0
"""The command line: what is understood, and how a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.confine.launcher import USAGE, confine, shell

MISTAKES = {
    "nothing": ([], "no command; write it after '--'"),
    "no command": (["--ro", "/usr"], "no command"),
    "empty command": (["--ro", "/usr", "--"], "no command"),
    "command without dashes": (["--ro", "/usr", "/bin/true"], "'/bin/true' is no option"),
    "missing value": (["--ro"], "--ro needs a value: PATH"),
    "missing value of env": (["--env"], "--env needs a value: NAME[=VALUE]"),
    "value for a flag": (["--baseline=yes", "--", "true"], "--baseline takes no value"),
    "unknown": (["--rw-op", "/x", "--", "true"], "'--rw-op'; the nearest is '--rw-opt'"),
    "unknown with a value": (["--exce=/x", "--", "true"], "'--exce'; the nearest is '--exec'"),
    "abbreviated": (["--base", "--", "true"], "'--base'; the nearest is '--baseline'"),
    "single dash": (["-ro", "/x", "--", "true"], "'-ro'; the nearest is '--ro'"),
    "relative root": (["--ro", ".", "--", "true"], "--ro: '.' is relative"),
    "relative name": (["--rw=etc", "--", "true"], "--rw: 'etc' is relative"),
    "empty root": (["--ro", "", "--", "true"], "--ro: the path is empty"),
    "empty root joined": (["--exec=", "--", "true"], "--exec: the path is empty"),
    "parent": (["--ro", "/usr/../etc", "--", "true"], "--ro: '/usr/../etc' has a '..'"),
    "parent at the end": (["--ro-opt", "/usr/..", "--", "true"], "has a '..'"),
    "relative cwd": (["--cwd", "tmp", "--", "true"], "--cwd: 'tmp' is relative"),
    "two cwds": (["--cwd", "/", "--cwd", "/usr", "--", "true"], "--cwd is given twice"),
    "two nets": (["--net", "none", "--net=open", "--", "true"], "--net is given twice"),
    "unknown net": (["--net", "loopback", "--", "true"], "'loopback' is neither"),
    "empty variable": (["--env", "", "--", "true"], "--env: '' names no variable"),
    "nameless variable": (["--env", "=x", "--", "true"], "--env: '=x' names no variable"),
    "json alone": (["--json", "--", "true"], "--json goes with --selftest"),
    "selftest with a root": (["--selftest", "--ro", "/usr"], "--selftest takes no other"),
    "selftest with a command": (["--selftest", "--", "true"], "--selftest takes no other"),
    "two actions": (["--print", "--selftest"], "only one of"),
    "runner without a descriptor": (["--runner"], "--runner: needs the number"),
    "runner with words": (["--runner", "3x"], "--runner: needs the number"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_nothing_runs(name: str, place: Path) -> None:
    words, message = MISTAKES[name]
    result = confine(*words, cwd=place)
    assert result.status == USAGE
    assert message in result.message
    assert result.out == ""
    assert list(place.iterdir()) == []


def test_two_dots_in_a_name_are_no_parent(place: Path) -> None:
    (place / "a..b").mkdir()
    (place / "..c").write_text("text")
    result = shell(f"cat {place}/..c", "--ro", place / "a..b", "--ro", place / "..c")
    assert (result.status, result.out) == (0, "text")


@pytest.mark.parametrize("spelling", [["--ro", "{}"], ["--ro={}"]])
def test_a_value_is_the_next_word_or_follows_an_equals_sign(
    spelling: list[str], place: Path
) -> None:
    (place / "file").write_text("text")
    words = [word.format(place) for word in spelling]
    assert shell(f"cat {place}/file", *words).out == "text"
    assert shell(f"cat {place}/file").status != 0


def test_what_follows_the_dashes_is_the_command_whatever_it_looks_like(place: Path) -> None:
    (place / "file").write_text("text")
    result = confine("--baseline", "--", "--ro", place, "--", "/bin/cat", place / "file")
    assert result.status == 127
    assert "'--ro' not found" in result.message
    arguments = confine("--baseline", "--", "/bin/echo", "--", "--ro", "/", "-n")
    assert arguments.out == "-- --ro / -n\n"


def test_help_names_every_option_and_version_the_range_of_abis() -> None:
    text = confine("--help")
    assert text.status == 0
    for option in ("--ro", "--rw-opt", "--baseline", "--supervise", "--net open|none", "--print"):
        assert f"  {option}" in text.out
    version = confine("--version")
    assert (version.status, version.err) == (0, "")
    assert version.out.startswith("confine 0.")
    assert "Landlock ABI 3 to " in version.out


def test_a_name_cannot_speak_to_the_terminal() -> None:
    result = confine("--ro", b"/no\x1b[31m\xff\xc2\x9b\n", "--", "true")
    assert result.message.startswith("root: --ro '/no\\x1b[31m\\xff\\xc2\\x9b\\x0a': ")
    kept = confine("--ro", "/nö", "--", "true")
    assert "'/nö'" in kept.message

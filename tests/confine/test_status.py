# SPDX-License-Identifier: Apache-2.0
"""How confine ends: as the command, or with a code of its own and the reason."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.confine.launcher import NOT_EXECUTABLE, NOT_FOUND, SETUP, confine, shell

IN_PLACE: tuple[str, ...] = ()
SUPERVISED = ("--supervise",)


@pytest.mark.parametrize("options", [IN_PLACE, SUPERVISED])
@pytest.mark.parametrize("status", [0, 1, 42, 90, 92, 127, 255])
def test_the_status_is_that_of_the_command(status: int, options: tuple[str, ...]) -> None:
    result = shell(f"exit {status}", *options)
    assert (result.status, result.err) == (status, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_ends_as_128_and_its_number(number: signal.Signals, tree: Path) -> None:
    words = ("--exec", tree, "--", tree, "dies", int(number))
    assert confine(*words).status == -number  # confine has become the command
    assert confine("--supervise", *words).status == 128 + number


# ---- what cannot be executed ----


def script_without_permission(place: Path) -> list[str]:
    (place / "script").write_text("#!/bin/sh\n")
    return ["--exec", str(place), "--", str(place / "script")]


def script_outside_every_exec_root(place: Path) -> list[str]:
    (place / "script").write_text("#!/bin/sh\n")
    (place / "script").chmod(0o755)
    return ["--ro", str(place), "--", str(place / "script")]


def script_without_hash_bang(place: Path) -> list[str]:
    (place / "script").write_text("echo ran\n")
    (place / "script").chmod(0o755)
    return ["--exec", str(place), "--", str(place / "script")]


def interpreter_is_missing(place: Path) -> list[str]:
    (place / "script").write_text(f"#!{place}/nope\n")
    (place / "script").chmod(0o755)
    return ["--exec", str(place), "--", str(place / "script")]


def interpreter_is_missing_found_by_path(place: Path) -> list[str]:
    words = interpreter_is_missing(place)
    return [*words[:2], "--env", f"PATH={place}", "--", "script"]


def denied_wherever_path_leads(place: Path) -> list[str]:
    script_outside_every_exec_root(place)
    return ["--env", f"PATH={place}:{place}/nope", "--", "script"]


def a_directory(place: Path) -> list[str]:
    return ["--exec", str(place), "--", str(place)]


def an_argument_that_is_too_long(place: Path) -> list[str]:
    return ["--env", "X=" + "x" * (131072 - 3), "--", "/bin/echo", "fits"]


def not_there(place: Path) -> list[str]:
    return ["--exec", str(place), "--", str(place / "nope")]


def not_in_path(place: Path) -> list[str]:
    return ["--env", f"PATH={place}", "--", "nope"]


def below_a_file(place: Path) -> list[str]:
    (place / "file").write_text("")
    return ["--exec", str(place), "--", str(place / "file" / "nope")]


def no_name(place: Path) -> list[str]:
    return ["--", ""]


FAILURES: list[tuple[Callable[[Path], list[str]], int, str]] = [
    (script_without_permission, NOT_EXECUTABLE, "Permission denied (EACCES); chmod +x"),
    (script_outside_every_exec_root, NOT_EXECUTABLE, "lies in no exec root (EACCES)"),
    (script_without_hash_bang, NOT_EXECUTABLE, "(ENOEXEC); it is no program"),
    (interpreter_is_missing, NOT_EXECUTABLE, "(after its #!) does not exist (ENOENT)"),
    (interpreter_is_missing_found_by_path, NOT_EXECUTABLE, "(after its #!) does not exist"),
    (denied_wherever_path_leads, NOT_EXECUTABLE, "lies in no exec root (EACCES)"),
    (a_directory, NOT_EXECUTABLE, "is a directory"),
    (not_there, NOT_FOUND, "not found (ENOENT)"),
    (below_a_file, NOT_FOUND, "not found (ENOTDIR)"),
    (not_in_path, NOT_FOUND, "'nope' not found in PATH '"),
    (no_name, NOT_FOUND, "the command is empty"),
]


@pytest.mark.parametrize("options", [IN_PLACE, SUPERVISED])
@pytest.mark.parametrize(("case", "status", "message"), FAILURES)
def test_a_command_that_cannot_be_executed_says_why(
    case: Callable[[Path], list[str]],
    status: int,
    message: str,
    options: tuple[str, ...],
    place: Path,
) -> None:
    result = confine("--baseline", *options, *case(place))
    assert result.status == status
    assert result.message.startswith("exec: ")
    assert message in result.message


def test_an_interpreter_outside_the_exec_roots_is_told_from_the_script(place: Path) -> None:
    """With Linux 6.14; before, the message leaves it open which of the two."""
    script = place / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    result = confine("--exec", place, "--", script)
    assert result.status == NOT_EXECUTABLE
    assert f"'{script}'" in result.message
    assert "interpreter" in result.message
    assert confine("--exec", place, "--exec", "/usr", "--", script).status == 0


def test_the_search_passes_over_what_it_may_not_execute(place: Path) -> None:
    """A wrapper earlier in PATH that lies in no exec root does not hide the program behind it."""
    (place / "echo").write_text("#!/bin/sh\n")
    (place / "echo").chmod(0o755)
    result = confine("--baseline", "--env", f"PATH={place}:/bin", "--", "echo", "found")
    assert (result.status, result.out) == (0, "found\n")


def test_the_search_uses_the_path_of_the_command(place: Path) -> None:
    (place / "tool").write_text("#!/bin/sh\necho tool\n")
    (place / "tool").chmod(0o755)
    words = ("--baseline", "--exec", place)
    assert confine(*words, "--env", f"PATH={place}", "--", "tool").out == "tool\n"
    assert confine(*words, "--", "tool", env={"PATH": str(place)}).out == "tool\n"
    assert (
        confine(*words, "--env", "PATH=/bin", "--", "tool", env={"PATH": str(place)}).status == 127
    )
    assert confine(*words, "--clear-env", "--", "echo", "x", env={"PATH": str(place)}).out == "x\n"


def test_an_empty_element_of_path_is_the_working_directory(place: Path) -> None:
    (place / "tool").write_text("#!/bin/sh\necho tool\n")
    (place / "tool").chmod(0o755)
    words = ("--baseline", "--exec", place, "--cwd", place, "--env", "PATH=/bin:", "--", "tool")
    assert confine(*words).out == "tool\n"


@pytest.mark.parametrize("cwd", ["nope", "file"])
def test_a_working_directory_that_is_none_is_refused(cwd: str, place: Path) -> None:
    (place / "file").write_text("")
    refused = confine("--baseline", "--cwd", place / cwd, "--", "/bin/echo", "ran")
    assert (refused.status, refused.out) == (SETUP, "")
    assert refused.message.startswith(f"cwd: '{place}/{cwd}'")


def test_the_working_directory_is_the_callers_or_the_chosen_one(place: Path) -> None:
    assert shell("pwd", cwd=place).out == f"{place}\n"
    assert shell("pwd", "--cwd", place, cwd="/").out == f"{place}\n"

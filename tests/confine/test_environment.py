# SPDX-License-Identifier: Apache-2.0
"""The environment of the command, and that it is nobody else's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.confine.launcher import confine, program
from tests.support.kernel import require_program

CALLER = {"A": "1", "B": "two words", "EMPTY": "", "PATH": "/bin:/usr/bin"}


def environment(*options: str) -> dict[str, str]:
    words = ("--baseline", *options, "--", "/usr/bin/env", "-0")
    pairs = confine(*words, env=CALLER).out.split("\0")[:-1]
    return dict(pair.split("=", 1) for pair in pairs)


CASES = {
    "inherited": ([], CALLER),
    "cleared": (["--clear-env"], {}),
    "passed": (["--env", "B"], {"B": "two words"}),
    "set": (["--env", "C=3"], {"C": "3"}),
    "set empty": (["--env", "C="], {"C": ""}),
    "passed empty": (["--env", "EMPTY"], {"EMPTY": ""}),
    "overridden": (["--env", "A=other"], {"A": "other"}),
    "with an equals sign": (["--env", "C=x=y"], {"C": "x=y"}),
    "absent": (["--env", "NOPE"], {}),
    "several": (["--env", "A", "--env=C=3", "--env", "NOPE"], {"A": "1", "C": "3"}),
    "twice": (["--env", "A=2", "--env", "B", "--env", "A=3"], {"A": "3", "B": "two words"}),
    "cleared and set": (["--clear-env", "--env", "A"], {"A": "1"}),
    "prefix of a name": (["--env", "EMPT"], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_command_gets(name: str) -> None:
    options, expected = CASES[name]
    assert environment(*options) == expected


def test_a_loader_variable_of_the_caller_acts_on_the_command_alone(place: Path) -> None:
    """The launcher is static; in the command the library is as confined as the command."""
    compiler = require_program("gcc")
    source = (
        '#include <fcntl.h>\n__attribute__((constructor)) static void run(void) { open("%s", '
        "O_CREAT | O_WRONLY, 0600); }\n"
    )
    (place / "preload.c").write_text(source % (place / "made"))
    library = place / "preload.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, place / "preload.c"], check=True)
    caller = {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(place), "PATH": "/bin"}
    result = confine("--baseline", "--ro", library, "--", "/bin/true", env=caller)
    assert (result.status, (place / "made").exists()) == (0, False)
    subprocess.run(["/bin/true"], env=caller, check=True)
    assert (place / "made").exists()


def test_nothing_is_interpreted_when_confine_starts() -> None:
    """A static executable: the kernel loads nothing else with it."""
    readelf = require_program("readelf")
    text = subprocess.run(
        [readelf, "-lW", program()], check=True, capture_output=True, text=True
    ).stdout
    assert "LOAD" in text
    assert "INTERP" not in text
    assert "DYNAMIC" not in text

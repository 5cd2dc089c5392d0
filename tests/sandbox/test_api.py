# SPDX-License-Identifier: Apache-2.0
"""The public face: names, documentation, types, and the example it promises."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import sandbox

PUBLIC = [getattr(sandbox, name) for name in sandbox.__all__]
OBJECTS = [thing for thing in PUBLIC if inspect.isclass(thing) or inspect.isfunction(thing)]
PROJECT = Path(__file__).parents[2]


def test_the_names_are_sorted_and_exist() -> None:
    assert sorted(set(sandbox.__all__), key=str.swapcase) == sorted(
        sandbox.__all__, key=str.swapcase
    )
    assert all(thing is not None for thing in PUBLIC)


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: thing.__name__)
def test_each_name_is_documented(thing: object) -> None:
    assert inspect.getdoc(thing)


@pytest.mark.parametrize(
    "thing", [thing for thing in OBJECTS if dataclasses.is_dataclass(thing)], ids=str
)
def test_values_are_frozen(thing: type) -> None:
    assert thing.__dataclass_params__.frozen
    assert "__slots__" in vars(thing)


@pytest.mark.parametrize(
    ("thing", "values"),
    [
        (sandbox.Access, {"READ": 1, "WRITE": 2, "EXEC": 4, "DEVICE": 8}),
        (sandbox.Network, {"OPEN": "open", "NONE": "none"}),
        (
            sandbox.State,
            {
                "NOT_BUILT": "not built",
                "NOT_ENABLED": "not enabled",
                "BELOW_FLOOR": "below the floor",
                "READY": "ready",
            },
        ),
    ],
)
def test_enumerations_do_not_change(thing: type[enum.Enum], values: dict[str, object]) -> None:
    assert {member.name: member.value for member in thing} == values


def test_the_five_lines_of_the_docstring_confine_a_command(tmp_path: Path) -> None:
    text = inspect.getdoc(sandbox) or ""
    example = textwrap.dedent(text.partition("\n\n")[2].partition("\n\n")[0])
    assert len(example.splitlines()) <= 5
    (tmp_path / "Makefile").write_text("all:\n\t@echo made >made; cat made; ls /root\n")
    program = example.replace("/srv/build", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "2 made\n\n", done.stderr
    assert (tmp_path / "made").read_text() == "made\n"


def test_it_is_typed_and_the_types_hold() -> None:
    assert (PROJECT / "sandbox" / "py.typed").exists()
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "sandbox", "tests/typing/api.py"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def test_it_works_without_the_broker() -> None:
    program = "import sys, sandbox; print([m for m in sys.modules if m.startswith('broker')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_the_helper_is_where_it_says() -> None:
    version = subprocess.run([sandbox.helper_path(), "--version"], capture_output=True)
    assert version.returncode == 0

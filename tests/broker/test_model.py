# SPDX-License-Identifier: Apache-2.0
"""The values: frozen, and the few things they derive."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from broker import model
from broker.model import Captured, Exit, Reason, RunReason

DATACLASSES = [
    cls for _, cls in inspect.getmembers(model, inspect.isclass) if dataclasses.is_dataclass(cls)
]


@pytest.mark.parametrize("cls", DATACLASSES, ids=lambda cls: cls.__name__)
def test_every_value_is_frozen_and_has_slots(cls: type):
    assert cls.__dataclass_params__.frozen
    assert "__slots__" in vars(cls)


@pytest.mark.parametrize("enum", [Reason, RunReason])
def test_reasons_are_lowercase_snake_and_named_alike(enum: type[Reason] | type[RunReason]):
    for reason in enum:
        assert reason.value == reason.name.lower()
        assert reason.value.replace("_", "").isalpha()


@pytest.mark.parametrize(
    ("exit_", "name", "shell_code"),
    [
        (Exit(0, None), None, 0),
        (Exit(137, None), None, 137),
        (Exit(None, 9), "KILL", 137),
        (Exit(None, 15), "TERM", 143),
        (Exit(None, 11, core=True), "SEGV", 139),
        (Exit(None, 42), "SIG42", 170),
        (Exit(None, None), None, 128),
    ],
)
def test_exit_and_signal_stay_apart(exit_: Exit, name: str | None, shell_code: int):
    assert exit_.signal_name == name
    assert exit_.shell_code == shell_code


@pytest.mark.parametrize(
    ("captured", "truncated"),
    [
        (Captured(), False),
        (Captured(b"ab", b"", 2), False),
        (Captured(b"ab", b"cd", 4), False),
        (Captured(b"ab", b"cd", 5), True),
        (Captured(b"", b"", 1), True),
    ],
)
def test_a_stream_is_truncated_when_bytes_are_missing(captured: Captured, truncated: bool):
    assert captured.truncated is truncated

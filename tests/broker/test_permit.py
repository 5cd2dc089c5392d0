# SPDX-License-Identifier: Apache-2.0
"""A permit comes from the gate or from nowhere."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from broker import permit
from broker.permit import Permit

BROKER = Path(permit.__file__).parent


def test_a_minted_permit_carries_its_operation_and_record():
    minted = permit._mint(("rm", "x"), "17")
    assert minted.op == ("rm", "x")
    assert minted.audit_id == "17"


def test_a_permit_does_not_show_its_operation():
    assert repr(permit._mint("secret", "17")) == "<Permit 17>"


@pytest.mark.parametrize("token", [None, object(), "token", permit.Permit])
def test_nobody_else_can_build_one(token: object):
    with pytest.raises(TypeError, match="made by the gate only"):
        Permit("op", "17", token=token)


def test_the_token_is_not_optional():
    with pytest.raises(TypeError):
        Permit("op", "17")  # type: ignore[call-arg]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_permit_is_not_copied_or_serialised(duplicate: object):
    with pytest.raises(TypeError, match="neither copied nor serialised"):
        duplicate(permit._mint("op", "17"))  # type: ignore[operator]


def test_a_permit_has_no_subclasses():
    with pytest.raises(TypeError, match="no subclasses"):
        type("Forged", (Permit,), {})


@pytest.mark.parametrize("name", ["op", "audit_id", "other"])
def test_a_permit_does_not_change(name: str):
    with pytest.raises(AttributeError):
        setattr(permit._mint("op", "17"), name, "else")


def test_only_the_gate_names_the_mint():
    users = {
        str(path.relative_to(BROKER))
        for path in BROKER.rglob("*.py")
        if "_mint" in path.read_text() or "permit._TOKEN" in path.read_text()
    }
    assert users - {"gate.py"} == {"permit.py"}

# SPDX-License-Identifier: Apache-2.0
"""Permit: "authorised" as a type.

Everything that acts takes a Permit; only the gate makes one, by `_mint`, after the decision and the
intent record.  A handler that forgets to ask has no Permit to pass and does not type-check.  A test
looks for any other module that names `_mint`.
"""

from __future__ import annotations

from typing import Generic, NoReturn, TypeVar

Op = TypeVar("Op")
Op_co = TypeVar("Op_co", covariant=True)

_TOKEN = object()


class Permit(Generic[Op_co]):
    """The gate's leave to do exactly `op`, recorded as `audit_id`.  Not built, copied or sent."""

    __slots__ = ("__audit_id", "__op")

    def __init__(self, op: Op_co, audit_id: str, *, token: object) -> None:
        if token is not _TOKEN:
            raise TypeError("a Permit is made by the gate only")
        self.__op = op
        self.__audit_id = audit_id

    @property
    def op(self) -> Op_co:
        """What is permitted."""
        return self.__op

    @property
    def audit_id(self) -> str:
        """The intent record that precedes the effect."""
        return self.__audit_id

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("Permit has no subclasses")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Permit is neither copied nor serialised")

    def __repr__(self) -> str:
        return f"<Permit {self.__audit_id}>"


def _mint(op: Op, audit_id: str) -> Permit[Op]:
    """For gate.py only, after `audit_id` is durable."""
    return Permit(op, audit_id, token=_TOKEN)

# SPDX-License-Identifier: Apache-2.0
"""Refusals to start: each can be told from every other by its status and by its word."""

from __future__ import annotations

import inspect

from broker import startup
from broker.startup import StartupError

REFUSALS = [
    one
    for _, one in inspect.getmembers(startup, inspect.isclass)
    if issubclass(one, StartupError) and one is not StartupError
]


def test_no_two_refusals_share_a_status_or_a_word() -> None:
    assert len({one.exit_status for one in REFUSALS}) == len(REFUSALS)
    assert len({one.code for one in REFUSALS}) == len(REFUSALS)


def test_no_status_is_one_of_a_shell_or_of_the_command_line() -> None:
    """0 to 2 are the command line's own; from 124 on timeout(1), env(1) and shells have theirs."""
    assert all(2 < one.exit_status < 124 for one in REFUSALS)


def test_each_says_what_and_the_fix() -> None:
    for one in REFUSALS:
        refusal = one("what was found", "what to do")
        assert (str(refusal), refusal.fix) == ("what was found", "what to do")
        assert one.__doc__

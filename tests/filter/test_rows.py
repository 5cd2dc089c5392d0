# SPDX-License-Identifier: Apache-2.0
"""Every row of the table matters, and only for the numbers it is about."""

from collections.abc import Callable, Mapping

import pytest

from tests.filter import bpf, policy
from tests.filter.core import Core
from tests.filter.policy import NAMESPACED, NET_NONE, REFUSED

CALLS = (*policy.number_calls(), *policy.argument_samples())

# What else a row is about: the numbers whose answers may change without it.
BY_ARGUMENT = {
    "socket_unix": {policy.SOCKET},
    "socket_inet": {policy.SOCKET},
    "socket_family": {policy.SOCKET},
    "socket_netlink": {policy.SOCKET},
    "socket_protocol": {policy.SOCKET},
    "socket_type": {policy.SOCKET},
    "socketpair_family": {policy.SOCKETPAIR},
    "socketpair_type": {policy.SOCKETPAIR},
    "clone": {policy.CLONE},
    "unshare": {policy.UNSHARE},
    "ioctl_terminal": {policy.IOCTL},
    "ioctl_attributes": {policy.IOCTL},
    "ioctl_keys": {policy.IOCTL},
    "ioctl_subvolume": {policy.IOCTL},
    "fcntl_lease": {policy.FCNTL},
    "personality": {policy.PERSONALITY},
    "ipc": set(policy.IPC),
    "prlimit_other": {policy.PRLIMIT64},
    "setpriority_other": {policy.SETPRIORITY},
    "setpriority_user": {policy.SETPRIORITY},
    "ioprio_other": {policy.IOPRIO_SET},
    "ioprio_user": {policy.IOPRIO_SET},
    "sched_other": {policy.SCHED_SETPARAM, policy.SCHED_SETSCHEDULER, policy.SCHED_SETATTR},
    "core_prlimit": {policy.PRLIMIT64},
    "core_setrlimit": {policy.SETRLIMIT},
}
BY_RANGE: Mapping[str, Callable[[bpf.Call], bool]] = {
    "architecture": lambda call: call.arch != bpf.NATIVE,
    "x32": lambda call: policy.X32 <= call.nr & bpf.ONES < bpf.ONES,
    "unassigned": lambda call: 337 <= call.nr <= 423,
    "unjudged": lambda call: policy.NEWEST_JUDGED < call.nr < policy.X32,
}
ROWS = [*BY_RANGE, *BY_ARGUMENT, *REFUSED]

# The shape in which a row shows; most show in every one.
SHAPE = {"socket_inet": NET_NONE}


def changed_without(core: Core, name: str, flags: int) -> list[bpf.Call]:
    with_row = core.program(flags)
    without = core.program(flags, core.row_names().index(name))
    return [call for call in CALLS if bpf.run(with_row, call) != bpf.run(without, call)]


def test_row_names_are_unique_and_all_known_here(core: Core) -> None:
    names = core.row_names()
    assert len(set(names)) == len(names)
    assert set(names) == set(ROWS)


@pytest.mark.parametrize("name", REFUSED)
def test_without_the_row_exactly_its_numbers_are_allowed(core: Core, name: str) -> None:
    changed = changed_without(core, name, 0)
    without = core.program(0, core.row_names().index(name))
    assert {call.nr for call in changed} == set(REFUSED[name][1])
    assert {bpf.describe(bpf.run(without, call)) for call in changed} == {"ALLOW"}


@pytest.mark.parametrize("name", BY_ARGUMENT)
def test_without_the_row_only_its_calls_are_answered_otherwise(core: Core, name: str) -> None:
    changed = changed_without(core, name, SHAPE.get(name, 0))
    assert {call.nr for call in changed} == BY_ARGUMENT[name]
    assert {call.arch for call in changed} == {bpf.NATIVE}


@pytest.mark.parametrize("name", BY_RANGE)
def test_without_the_row_all_its_range_is_answered_otherwise(core: Core, name: str) -> None:
    about = BY_RANGE[name]
    changed = changed_without(core, name, 0)
    assert changed
    assert all(about(call) for call in changed)
    if name != "architecture":  # there, a number may be refused for what it means natively
        native = [call for call in CALLS if call.arch == bpf.NATIVE and about(call)]
        assert changed == native


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("socket_inet", 0),
        ("socket_protocol", NET_NONE),
        ("socket_type", NET_NONE),
        ("ipc", NAMESPACED),
        ("prlimit_other", NAMESPACED),
        ("setpriority_other", NAMESPACED),
        ("setpriority_user", NAMESPACED),
        ("ioprio_other", NAMESPACED),
        ("ioprio_user", NAMESPACED),
        ("sched_other", NAMESPACED),
    ],
)
def test_rows_of_another_shape_are_left_out(core: Core, name: str, flags: int) -> None:
    assert changed_without(core, name, flags) == []

# SPDX-License-Identifier: Apache-2.0
"""The proof passes, as root and as an ordinary user, and each of its controls says something."""

import errno
import signal

import pytest

from tests.proof.outer import attach, equals
from tests.proof.prover import Prover
from tests.support.kernel import require_program

# Which rows an ABI is needed for: below it the kernel has no such right.
NEEDS_ABI = {
    "offline_connect": 4,
    "offline_bind": 4,
    "device_ioctl": 5,
    "scope_abstract_stream": 6,
    "scope_abstract_datagram": 6,
    "signal_outside": 6,
    "resolve_unix": 9,
}
NEEDS_ROOT = {"bounding_set", "securebits"}

# What the control of a denial may answer where it need not succeed: the call is made so that it has
# no effect, or the kernel has no such thing.
HARMLESS = {
    "session_keyring": {0},
    "x32_socket": {0, errno.ENOSYS},
    "x32_getpid": {0, errno.ENOSYS},
    "x32_execve": {errno.EFAULT, errno.ENOSYS},
    "io_uring_setup": {errno.EFAULT},
    "clone3_into_cgroup": {errno.EBADF},
    "terminal_input": {0, errno.EIO},
    "terminal_input_dirty": {0, errno.EIO},
    "make_char_inside": {0, errno.EPERM},
    "make_block_inside": {0, errno.EPERM},
    "device_ioctl": {errno.ENOTTY},
    "offline_connect": {errno.ECONNREFUSED},
}
STATES = {
    "own_session",
    "no_new_privs",
    "filter_mode",
    "capability_sets",
    "bounding_set",
    "securebits",
    "core_limit",
}


def is_root(prover: Prover) -> bool:
    return prover.directory.name == "root"


@pytest.mark.parametrize("max_abi", [0, 3, 4, 5, 6])
def test_every_claim_holds_and_only_what_this_kernel_lacks_is_skipped(
    prover: Prover, max_abi: int
) -> None:
    abi = min(max_abi or 99, prover.abi())
    proof = prover.prove(max_abi=max_abi)
    expected = {name for name, needed in NEEDS_ABI.items() if needed > abi}
    if not is_root(prover):
        expected |= NEEDS_ROOT
    assert proof.result == 0
    assert proof.failed() == set()
    assert proof.skipped() == expected
    for name in proof.skipped():
        assert proof.rows[name].claim.startswith("not applicable: ")


def test_every_denial_has_a_control_that_works_or_says_something_else(prover: Prover) -> None:
    for row in prover.prove().rows.values():
        if row.skipped or row.name in STATES:
            continue
        if row.name.startswith("filter_") and row.name != "filter_mode":
            assert (row.name, row.control) == (row.name, errno.EBADE)
        elif row.confined == row.control:
            assert row.expected in (0, errno.ENOSYS), f"{row.name} has no control"
        else:
            assert row.control in HARMLESS.get(row.name, {0}), row


def test_states_are_not_there_by_themselves(root: Prover) -> None:
    rows = root.prove().rows
    assert {name for name in STATES if rows[name].control == 0} == set()


def test_rows_named_by_the_design_exist_with_their_answer(prover: Prover) -> None:
    rows = prover.prove().rows
    expected = {
        "unix_stream": errno.EPERM,
        "unix_stream_abstract": errno.EPERM,
        "unix_datagram": errno.EPERM,
        "unix_seqpacket": errno.EPERM,
        "unix_raw": errno.EPERM,
        "unix_dirty_family": errno.EPERM,
        "unix_sign_garbage": errno.EPERM,
        "pair_datagram_connect": errno.EPROTONOSUPPORT,
        "pair_raw": errno.EPROTONOSUPPORT,
        "x32_socket": errno.EPERM,
        "int80_socket": -signal.SIGSYS,
        "int80_socketcall": -signal.SIGSYS,
        "io_uring_setup": errno.ENOSYS,
        "clone3_into_cgroup": errno.ENOSYS,
        "terminal_input": errno.EPERM,
        "read_outside": errno.EACCES,
        "write_outside": errno.EACCES,
        "execute_outside": errno.EACCES,
        "truncate_outside": errno.EACCES,
        "rename_outwards": errno.EACCES,
        "link_inwards": errno.EXDEV,
        "make_char_inside": errno.EACCES,
        "inet_stream": 0,
        "inet6_stream": 0,
        "pair_stream": 0,
        "fork": 0,
        "thread": 0,
        "pipe": 0,
        "resolver": 0,
        "create": 0,
        "rename_across": 0,
    }
    assert {name: rows[name].confined for name in expected} == expected


def test_names_are_unique_and_claims_are_said(prover: Prover) -> None:
    lines = [line for line in prover.output(prover.directory, 0, -1, 0, 0, 512) if line[0] == "row"]
    names = [line[1] for line in lines]
    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").isalnum() and name.islower() for name in names)
    assert all(line[-1] for line in lines)


def test_programs_cannot_run_where_execution_is_mounted_off(root: Prover) -> None:
    """What no sandbox could grant or deny there is said to be so, not claimed."""
    require_program("unshare")
    script = f'mount -t tmpfs -o noexec,mode=0700 proof "{root.directory}" && exec "$@"'
    proof = root.prove(prefix=("unshare", "--mount", "sh", "-c", script, "sh"))
    assert proof.failed() == set()
    assert {"execute", "execute_outside", "execute_readonly"} <= proof.skipped()


def test_a_strange_umask_changes_nothing(prover: Prover) -> None:
    proof = prover.prove(prefix=("sh", "-c", 'umask 0777; exec "$@"', "sh"))
    assert (proof.result, proof.failed()) == (0, set())


def test_ignored_and_blocked_signals_change_nothing(prover: Prover) -> None:
    ignoring = ("sh", "-c", 'trap "" HUP INT TERM CHLD WINCH PIPE; exec "$@"', "sh")
    proof = prover.prove(prefix=ignoring)
    assert (proof.result, proof.failed()) == (0, set())


def test_it_holds_without_capabilities_and_under_no_new_privs(root: Prover) -> None:
    require_program("setpriv")
    bare = ("setpriv", "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all")
    proof = root.prove(prefix=bare)
    assert (proof.result, proof.failed()) == (0, set())


# Calls that the filter of a container refuses, and the rows that then say nothing.
CONTAINER = {
    101: {"trace_outside", "trace_me"},  # ptrace
    248: {"session_keyring"},  # add_key
    250: {"session_keyring"},  # keyctl
    272: {"new_user_namespace"},  # unshare
    310: {"read_outside_memory"},  # process_vm_readv
    165: set(),  # mount: sealed, so the container's answer comes second
    425: set(),  # io_uring_setup: another errno than ours
}


def test_inside_a_container_only_what_that_refuses_too_is_skipped(prover: Prover) -> None:
    proof = prover.prove(before=attach([(number, ()) for number in CONTAINER]))
    assert (proof.result, proof.failed()) == (0, set())
    for names in CONTAINER.values():
        assert names <= proof.skipped()
    assert len(proof.skipped()) < 10


def test_a_container_without_clone3_is_no_trouble(prover: Prover) -> None:
    clone3 = 435
    proof = prover.prove(before=attach([(clone3, ())], error=errno.ENOSYS))
    assert (proof.result, proof.failed()) == (0, set())
    assert "clone3_into_cgroup" in proof.skipped()
    assert "filter_clone3" not in proof.skipped()


def test_where_nothing_can_be_reached_anyway_nothing_is_proved(prover: Prover) -> None:
    """Under a filter that refuses Unix sockets the host cannot listen: an error, not a proof."""
    proof = prover.prove(before=attach([(41, equals(0, 1))]))
    assert proof.result == -errno.EPERM
    assert proof.rows == {}
    assert list(prover.directory.iterdir()) == []

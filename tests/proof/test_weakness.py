# SPDX-License-Identifier: Apache-2.0
"""Whatever is taken away from the sandbox, the proof fails."""

import os

from tests.proof.prover import KEEP_CAPABILITIES, KEEP_KEYRING, KEEP_SCOPES_OFF, Prover
from tests.support.kernel import require, require_abi

# Rows of the filter that no row of the proof needs.
UNCOVERED: set[str] = set()

# Bit of the Landlock right, and what shows that it is gone.
RIGHTS = {
    0: {"execute_readonly"},
    1: {"write_outside", "write_readonly"},
    2: {"read_outside"},
    3: {"list_outside"},
    4: {"rmdir_outside"},
    5: {"unlink_outside", "rename_inwards"},
    6: {"make_char_inside"},
    7: {"make_directory_outside"},
    8: {"make_file_outside", "rename_outwards", "link_outwards"},
    9: {"make_socket_outside"},
    10: {"make_fifo_outside"},
    11: {"make_block_inside"},
    12: {"make_symlink_outside"},
    13: {"rename_across", "link_across"},
    14: {"truncate_outside", "truncate_readonly"},
    15: {"device_ioctl"},
    16: {"resolve_unix"},
}


def test_each_row_of_the_filter_is_missed_when_it_is_left_out(prover: Prover) -> None:
    names = prover.filter_rows()
    unnoticed = set()
    for index, name in enumerate(names):
        proof = prover.prove(omit_row=index)
        assert proof.result == 0
        if not proof.failed():
            unnoticed.add(name)
    assert len(names) > 40
    assert unnoticed == UNCOVERED


def test_each_landlock_right_is_missed_when_it_is_not_handled(prover: Prover) -> None:
    handled = prover.handled_fs()
    bits = [bit for bit in range(64) if handled >> bit & 1]
    found = {bit: prover.prove(weaken_fs=1 << bit).failed() for bit in bits}
    assert found == {bit: RIGHTS[bit] for bit in bits}


def test_a_right_unhandled_on_the_oldest_kernel_is_missed_too(prover: Prover) -> None:
    truncate = 1 << 14
    assert prover.handled_fs(3) & truncate
    assert prover.prove(max_abi=3, weaken_fs=truncate).failed() == RIGHTS[14]


def test_kept_capabilities_are_missed(root: Prover) -> None:
    failed = root.prove(keep=KEEP_CAPABILITIES).failed()
    assert failed == {"capability_sets", "bounding_set", "securebits"}


def test_scopes_left_off_are_missed(prover: Prover) -> None:
    require_abi(6)
    failed = prover.prove(keep=KEEP_SCOPES_OFF).failed()
    assert failed == {"scope_abstract_stream", "scope_abstract_datagram", "signal_outside"}


def test_the_caller_s_session_keyring_is_missed_when_kept(prover: Prover) -> None:
    require(os.access("/proc/keys", os.R_OK), "/proc/keys")
    assert prover.prove(keep=KEEP_KEYRING).failed() == {"session_keyring"}


def test_a_row_that_does_not_exist_cannot_be_left_out(prover: Prover) -> None:
    proof = prover.prove(omit_row=10_000)
    assert proof.result < 0
    assert proof.rows == {}

# SPDX-License-Identifier: Apache-2.0
"""Our program and one that libseccomp made from the same policy answer alike where both can."""

import subprocess

import pytest

from tests.filter import bpf, policy
from tests.filter.bpf import Call
from tests.filter.core import HERE, Core
from tests.filter.policy import ALL_FLAGS, NEWEST_JUDGED, SOCKET, SOCKETPAIR

DISTRIBUTION_PYTHON = "/usr/bin/python3"  # Debian's python3-seccomp is built for this one


def reference(flags: int) -> bpf.Program:
    command = [DISTRIBUTION_PYTHON, str(HERE / "reference.py"), str(flags)]
    made = subprocess.run(command, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()
    return bpf.load(made.stdout)


def in_common_domain(call: Call) -> bool:
    """What reference.py enumerates: see FAMILIES and PROTOCOLS there."""
    if call.arch == bpf.NATIVE and not 0 <= call.nr <= NEWEST_JUDGED:
        return call.nr & bpf.ONES == bpf.ONES
    if call.nr in (SOCKET, SOCKETPAIR) and call.args:
        family = call.args[0] & bpf.ONES
        protocol = call.args[2] & bpf.ONES if call.nr == SOCKET else 0
        return family < 48 and protocol < 64
    return True


@pytest.mark.parametrize("flags", ALL_FLAGS)
def test_the_programs_agree(core: Core, flags: int) -> None:
    ours, theirs = core.program(flags), reference(flags)
    compared = 0
    for call in (*policy.number_calls(), *policy.argument_samples(), *policy.argument_calls()):
        if not in_common_domain(call):
            continue
        compared += 1
        assert bpf.run(ours, call) == bpf.run(theirs, call), call
    assert compared > 10_000

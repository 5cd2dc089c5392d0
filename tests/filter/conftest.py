# SPDX-License-Identifier: Apache-2.0
"""The filter compiled once for all tests of this directory."""

import pytest

from tests.filter.core import SOURCE, Core, compile_c


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    output = tmp_path_factory.mktemp("filter") / "seccomp.so"
    return Core(compile_c(("gcc", "-shared", "-fPIC"), output, SOURCE / "seccomp.c"))

# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the pool's own tests, for attacks on it."""

from tests.runs.conftest import permit as permit
from tests.runs.conftest import work as work

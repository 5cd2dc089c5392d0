# SPDX-License-Identifier: Apache-2.0
"""Brokers for end-to-end tests: one shared by a module, or as many as a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from broker.client import Client
from tests.support.daemon import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A started broker whose ceiling lets runs write `daemon.work`."""
    with Daemon() as made:
        yield made.start()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as made:
        yield made


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., Daemon]]:
    """Makes brokers, not yet started, and cleans up after them."""
    with ExitStack() as made:
        yield lambda **options: made.enter_context(Daemon(**options))

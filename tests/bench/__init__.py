# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python -m tests.bench` (the targets) and `python -m tests.bench.peers` (others)."""

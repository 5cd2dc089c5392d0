# SPDX-License-Identifier: Apache-2.0
"""`python -m broker`."""

from broker.cli import main

main()

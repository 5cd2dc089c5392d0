# SPDX-License-Identifier: Apache-2.0
"""Effects: what a Permit to run a command turns into.  Nothing here decides."""

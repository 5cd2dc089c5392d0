# SPDX-License-Identifier: Apache-2.0
"""The broker: authenticates, decides, confines, runs and records.  This module owns its version."""

__version__ = "0.1.0"
__all__ = ["__version__"]

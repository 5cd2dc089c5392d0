# SPDX-License-Identifier: Apache-2.0
"""Commands confined by the kernel: Landlock, a seccomp filter, no capabilities, nothing inherited.

    import sandbox
    roots = (*sandbox.baseline(), sandbox.write("/srv/build"))
    done = sandbox.run(["make", "-j2"], roots=roots, cwd="/srv/build", timeout_s=600)
    print(done.exit.status, done.stdout.decode(errors="replace"))

Beneath the roots a command does what they grant; elsewhere it opens, creates, renames, links and
executes nothing.  It reaches no Unix socket.  It can still see which files exist outside its roots
and their metadata, change metadata of files that its user owns (chmod, utime), and use the
network unless `network=Network.NONE`.

Linux 6.2 or newer with Landlock enabled; `status()` tells, `selftest()` proves.
"""

from sandbox._core import ProofRow, stage_name
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.landlock import FLOOR, Access, Network, State, Status, status
from sandbox.ruleset import Root, Ruleset, baseline, execute, read, write
from sandbox.run import MAX_OUTPUT_BYTES, Completed, run
from sandbox.selftest import Proof, helper_path, selftest
from sandbox.spawn import DEVNULL, MINIMAL_ENV, Child, Exit, Limits, SpawnPlan, spawn, start_spawner

__all__ = [
    "DEVNULL",
    "FLOOR",
    "MAX_OUTPUT_BYTES",
    "MINIMAL_ENV",
    "Access",
    "Child",
    "Completed",
    "Exit",
    "Limits",
    "Network",
    "Proof",
    "ProofRow",
    "Root",
    "Ruleset",
    "SandboxError",
    "SandboxUnavailable",
    "SpawnPlan",
    "State",
    "Status",
    "baseline",
    "execute",
    "helper_path",
    "read",
    "run",
    "selftest",
    "spawn",
    "stage_name",
    "start_spawner",
    "status",
    "write",
]

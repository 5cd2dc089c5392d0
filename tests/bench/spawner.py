# SPDX-License-Identifier: Apache-2.0
"""A worker that spawns confined children in process, through the public Python face.

    python -m tests.bench.spawner VIEW-FILE [--ballast-mb N] [--descriptors N] [--once] -- CMD ARGS

With --once it runs the command once and ends with its exit status, else it is a worker (turns.h),
which also answers the line `rss` with this process's resident memory in KiB.
VIEW-FILE is JSON: {"execute": [...], "read": [...], "write": [...]}.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import os
import sys
import time
from pathlib import Path

import sandbox


def roots_of(view_file: Path) -> list[sandbox.Root]:
    view = json.loads(view_file.read_text())
    return [
        *(sandbox.execute(path) for path in view["execute"]),
        *(sandbox.read(path) for path in view["read"]),
        *(sandbox.write(path) for path in view["write"]),
    ]


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def hold_descriptors(count: int) -> None:
    first = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    for _ in range(count - 1):
        fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 0)


def one(plan: sandbox.SpawnPlan) -> int:
    """Spawns, waits, and returns how long both took, in ns."""
    started_ns = time.perf_counter_ns()
    with sandbox.spawn(plan) as child:
        end = child.wait()
    took_ns = time.perf_counter_ns() - started_ns
    if end.code != 0:
        raise SystemExit(f"spawner: {plan.argv[0]!r}: {end}")
    return took_ns


def serve(plan: sandbox.SpawnPlan) -> None:
    for line in sys.stdin:
        answer = [resident_kib()] if line == "rss\n" else [one(plan) for _ in range(int(line))]
        print(*answer, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("view", type=Path)
    parser.add_argument("--ballast-mb", type=int, default=0)
    parser.add_argument("--descriptors", type=int, default=0)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    ballast = b"x" * (options.ballast_mb * 1_000_000)
    with sandbox.Ruleset(roots_of(options.view)) as ruleset:
        plan = sandbox.SpawnPlan(argv=tuple(options.command), ruleset=ruleset, env=dict(os.environ))
        if options.once:
            with sandbox.spawn(plan) as child:
                raise SystemExit(child.wait().status)
        sandbox.start_spawner()
        one(plan)  # a process reserves its low descriptor numbers at the first spawn
        hold_descriptors(options.descriptors)
        gc.collect()
        serve(plan)
    del ballast


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Measures every target, prints the table, writes JSON and docs/performance.md.

    python -m tests.bench [--only REGEX] [--quick] [--no-document]

Ends with 0 when every row holds, else 1.  Takes about five minutes; keep the machine quiet.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

from tests.bench import report
from tests.bench.rows import ROWS, Measured, Row
from tests.bench.scene import Scene
from tests.bench.workers import BenchError

QUICK = 0.15
REASON_LENGTH = 200


def measure(row: Row, factor: float) -> Measured | str:
    """The result, or the reason why there is none.  Each row has a scene of its own."""
    try:
        with Scene() as scene:
            return row.measure(scene, factor)
    except (BenchError, OSError, subprocess.CalledProcessError, ImportError) as error:
        return " ".join(str(error).split())[:REASON_LENGTH]


def say(row: Row, result: Measured | str, took_s: float) -> None:
    what, bound, value, p10, noise, verdict = report.cells(row, result)
    print(f"{verdict:8s} {row.key:16s} {value:>9s} ({bound}), p10 {p10}, noise {noise}, {what}")
    print(f"         {report.detail(row, result)} [{took_s:.0f} s]", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose key matches this expression")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a seventh of the runs")
    parser.add_argument("--no-document", action="store_true", help="leave docs/ as it is")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    results: dict[Row, Measured | str] = {}
    for row in ROWS:
        if re.search(options.only, row.key):
            started_at = time.monotonic()
            results[row] = measure(row, QUICK if options.quick else 1.0)
            say(row, results[row], time.monotonic() - started_at)
    when = report.conditions(load_before)
    section = report.targets_section(results, when)
    print(f"\n{section}\n")
    print(f"written: {report.write_json('results.json', report.as_json(results, when))}")
    if not (options.only or options.quick or options.no_document):
        report.write_section("targets", section)
        print(f"written: {report.DOCUMENT}")
    return (
        0 if all(report.verdict(row, result) == "holds" for row, result in results.items()) else 1
    )


if __name__ == "__main__":
    sys.exit(main())

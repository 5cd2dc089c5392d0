# SPDX-License-Identifier: Apache-2.0
"""Where figures go: a table on the terminal, JSON under build/bench, docs/performance.md.

The document's prose is written by hand; only what stands between two markers is replaced, so that
the targets and the comparison with others can be taken in different runs.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.rows import RATIO, Measured, Row
from tests.bench.workers import BUILD, PROJECT

DOCUMENT = PROJECT / "docs" / "performance.md"


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine and the moment, so that a reader can weigh the figures."""

    taken_at: str
    processor: str
    processors: int
    memory_gib: int
    kernel: str
    landlock_abi: int
    python: str
    system: str
    uid: int
    commit: str
    load_before: float
    load_after: float

    def sentence(self) -> str:
        return (
            f"Taken {self.taken_at} at commit {self.commit} as uid {self.uid} on {self.processor}, "
            f"{self.processors} processors, {self.memory_gib} GiB, {self.system}, Linux "
            f"{self.kernel} (Landlock ABI {self.landlock_abi}), Python {self.python}; "
            f"load average {self.load_before:.2f} before, {self.load_after:.2f} after."
        )


def first_match(pattern: str, path: str, default: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return default
    return found[1] if found else default


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def conditions(load_before: float) -> Conditions:
    import sandbox

    memory_kib = int(first_match(r"^MemTotal:\s+([0-9]+)", "/proc/meminfo", "0"))
    return Conditions(
        taken_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        processor=first_match(r"^model name\s+:\s+(.+)$", "/proc/cpuinfo", "unknown"),
        processors=os.cpu_count() or 0,
        memory_gib=round(memory_kib / 1024**2),
        kernel=os.uname().release,
        landlock_abi=sandbox.status().kernel_abi or 0,
        python=platform.python_version(),
        system=first_match(r'^PRETTY_NAME="(.+)"$', "/etc/os-release", "unknown"),
        uid=os.getuid(),
        commit=commit(),
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )


def figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = 1 if unit == "MiB" else 2 if value < 10 else 1
    return f"{value:.{digits}f}" + (f" {unit}" if unit else "")


def verdict(row: Row, result: Measured | str) -> str:
    if isinstance(result, str):
        return "not measured"
    return "holds" if row.holds(result.value) else "missed"


def cells(row: Row, result: Measured | str) -> list[str]:
    bound = ("≤ " if row.at_most else "≥ ") + figure(row.target, row.unit)
    what = row.what + (f", against {row.against}" if row.against else "")
    if isinstance(result, str):
        return [what, bound, "-", "-", "-", f"not measured: {result}"]
    noise = figure(result.noise, RATIO)
    return [
        what,
        bound,
        figure(result.value, row.unit),
        figure(result.p10, row.unit),
        noise,
        verdict(row, result),
    ]


def detail(row: Row, result: Measured | str) -> str:
    """What stands behind a figure: the medians, and the note."""
    if isinstance(result, str):
        return ""
    parts = [f"{name} {value:.0f}" for name, value in result.medians.items()]
    return "; ".join([*parts, *([result.note] if result.note else [])])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned so that it reads in a terminal as well."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]

    def line(values: Sequence[str]) -> str:
        padded = (value.ljust(width) for value, width in zip(values, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def targets_section(results: Mapping[Row, Measured | str], when: Conditions) -> str:
    header = ["what", "target", "measured", "p10", "noise", "verdict"]
    lines = [cells(row, result) for row, result in results.items()]
    behind = [
        f"- {row.key}: {text}" for row, result in results.items() if (text := detail(row, result))
    ]
    parts = [when.sentence(), table(header, lines), "Behind the figures:", "\n".join(behind)]
    return "\n\n".join(parts)


def as_json(results: Mapping[Row, Measured | str], when: Conditions) -> str:
    rows = [
        {
            "key": row.key,
            "what": row.what,
            "against": row.against,
            "target": row.target,
            "at_most": row.at_most,
            "unit": row.unit,
            "verdict": verdict(row, result),
            "result": result if isinstance(result, str) else asdict(result),
        }
        for row, result in results.items()
    ]
    return json.dumps({"conditions": asdict(when), "rows": rows}, indent=1)


def write_json(name: str, text: str) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / name
    file.write_text(text + "\n")
    return file


def write_section(name: str, text: str, document: Path = DOCUMENT) -> None:
    """Replaces what stands between the markers `<!-- name: begin -->` and `end` of the document."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found_begin, rest = document.read_text().partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"'{document}' has no markers for '{name}'")
    document.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")

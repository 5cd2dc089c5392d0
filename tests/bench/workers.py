# SPDX-License-Identifier: Apache-2.0
"""Workers and samples: who is timed, in which order, and what is made of the figures.

A worker is a process that does the thing measured on request and times itself (turns.h says how).
All workers of a comparison live at the same time and take turns in a rotating order, so that
whatever disturbs the machine disturbs all of them alike.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
BUILD = PROJECT / "build" / "bench"
CONFINE = PROJECT / "sandbox" / "confine"
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}
"""What every worker and every command gets; small and the same for all."""

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wmissing-prototypes", "-Wvla")


class BenchError(Exception):
    """Something could not be measured; says what and why."""


def build_program(name: str) -> Path:
    """Compiles `name`.c (or .S: static, without libc) beside this file into build/bench."""
    BUILD.mkdir(parents=True, exist_ok=True)
    target = BUILD / name
    assembly = HERE / f"{name}.S"
    if assembly.exists():
        command = ["gcc", "-static", "-nostdlib", str(assembly)]
    else:
        command = ["gcc", "-std=gnu17", "-O2", "-pthread", *WARNINGS, str(HERE / f"{name}.c")]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


def tool(name: str) -> str:
    """Absolute path of an installed program; BenchError when it is missing."""
    found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
    if found is None:
        raise BenchError(f"{name} is not installed")
    return found


class Worker:
    """One contestant's process.  Context manager: leaving it ends the process."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cpu: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.argv = list(argv)
        self._process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env={**ENVIRONMENT, **(env or {})},
            text=True,
        )
        if cpu is not None:
            os.sched_setaffinity(self._process.pid, {cpu})

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str) -> list[int]:
        """Sends one line, returns the numbers of the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says it better
        answer = self._process.stdout.readline()
        if not answer:
            raise BenchError(f"worker ended with {self._process.wait()}: {' '.join(self.argv[:6])}")
        return [int(word) for word in answer.split()]

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a comparison goes on: turns of each worker, repetitions in a turn, how many of the
    first of these are thrown away (they pay for the caches that the others' turns have cooled)."""

    turns: int
    repetitions: int = 1
    discarded: int = 0

    def scaled(self, factor: float) -> Effort:
        return Effort(max(3, round(self.turns * factor)), self.repetitions, self.discarded)


@dataclass(frozen=True, slots=True)
class Sample:
    """Durations of one contestant, in µs."""

    median_us: float
    p10_us: float
    p90_us: float
    count: int


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def sample(durations_ns: Sequence[int]) -> Sample:
    micro = [value / 1000 for value in durations_ns]
    return Sample(
        median_us=statistics.median(micro),
        p10_us=percentile(micro, 0.1),
        p90_us=percentile(micro, 0.9),
        count=len(micro),
    )


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of this turn: everyone comes first, last and in between equally often."""
    start = turn % len(names)
    order = [*names[start:], *names[:start]]
    return order if (turn // len(names)) % 2 == 0 else order[::-1]


def take_turns(workers: Mapping[str, Worker], effort: Effort) -> dict[str, Sample]:
    """Measures all workers against each other; the first turn warms up and is not counted."""
    durations: dict[str, list[int]] = {name: [] for name in workers}
    for turn in range(-1, effort.turns):
        for name in rotated(list(workers), turn):
            answer = workers[name].ask(str(effort.repetitions + effort.discarded))
            if turn >= 0:
                durations[name] += answer[effort.discarded :]
    return {name: sample(values) for name, values in durations.items()}


def compare(
    argvs: Mapping[str, Sequence[str]], effort: Effort, **options: int
) -> dict[str, Sample]:
    """Starts a worker for each argv and lets them take turns; options as of Worker."""
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(argv, cpu=options.get("cpu")))
            for name, argv in argvs.items()
        }
        return take_turns(workers, effort)

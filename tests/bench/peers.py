# SPDX-License-Identifier: Apache-2.0
"""The same command through other sandboxes, in turns with ours; then what each leaves open.

    python -m tests.bench.peers [--install] [--only REGEX] [--quick] [--no-document]

Peers that are absent are left out and named; --install fetches them (apt as root; PyPI and npm into
build/peers).  Three views: everything readable and one directory writable, 30 roots, 300 roots.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import report
from tests.bench.contestants import (
    BROKER,
    CONTESTANTS,
    FLOOR,
    OURS,
    TRUE,
    UNCONFINED,
    Absent,
    Case,
    Setup,
    broker_over,
    install,
)
from tests.bench.daemon import Daemon
from tests.bench.rows import LAST_CPU, python_env
from tests.bench.scene import DEVICES, Scene, View
from tests.bench.workers import (
    BUILD,
    CONFINE,
    PROJECT,
    BenchError,
    Effort,
    Sample,
    Worker,
    take_turns,
)

FAST = Effort(turns=120, repetitions=3, discarded=1)
SLOW = Effort(turns=12)
SLOW_ABOVE_US = 15_000


# Does it confine at all? -------------------------------------------------------------------------


def defects(scene: Scene, case: Case) -> list[str]:
    """What a sandbox must do and this one did not, in a word each; empty is good."""
    found = []
    shell = ["/usr/bin/sh", "-c"]
    inside, outside = scene.work / "inside", scene.outside / "outside"
    if case.run([*shell, "exit 7"]) != 7:
        found.append("loses the exit code")
    case.run([*shell, f"echo x > {inside}"])
    if not inside.exists():
        found.append("cannot write inside")
    case.run([*shell, f"echo x > {outside}"])
    if outside.exists():
        found.append("WRITES OUTSIDE")
    for file in (inside, outside):
        file.unlink(missing_ok=True)
    return found


def probe_program(scene: Scene) -> str:
    """tests/kernels/probe.c, static, in a directory that every view grants."""
    target = Path(scene.tiny).parent / "probe"
    source = PROJECT / "tests" / "kernels" / "probe.c"
    subprocess.run(["gcc", "-O2", "-static", str(source), "-o", str(target)], check=True)
    return str(target)


@contextmanager
def victim(scene: Scene) -> Iterator[dict[str, list[str]]]:
    """A stand-in for the host, and the probes that try to reach it, by what they reach."""
    stream, datagram, file = (scene.outside / name for name in ("stream", "datagram", "file"))
    file.write_text("outside\n")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
        subprocess.Popen(["/usr/bin/sleep", "3600"]) as process,
    ):
        listener.bind(str(stream))
        listener.listen(64)
        log.bind(str(datagram))
        probe = probe_program(scene)
        try:
            yield {
                "Unix socket": [probe, "unix", str(stream)],
                "datagram pair": [probe, "datagram", str(datagram)],
                "int 0x80": [probe, "int80", str(stream)],
                "io_uring": [probe, "io_uring"],
                "truncate": [probe, "truncate", str(file)],
                "chmod": [probe, "chmod", str(file)],
                "signal": [probe, "signal", str(process.pid)],
            }
        finally:
            process.send_signal(signal.SIGKILL)


def left_open(case: Case, probes: Mapping[str, Sequence[str]]) -> list[str]:
    """Per probe: `open` when it reached what lies outside."""
    return ["open" if case.run(probe) == 0 else "-" for probe in probes.values()]


# Measuring ---------------------------------------------------------------------------------------


def view_of(scene: Scene, name: str) -> View:
    if name == "a":
        return View(("/",), (), (*DEVICES, str(scene.work)))
    return scene.view({"b": 30, "c": 300}[name])


def ceiling_of(scene: Scene, name: str) -> View:
    """The same for the broker, which refuses a ceiling that holds its own files: in view `a` it can
    read what the probes aim at instead of everything."""
    if name != "a":
        return view_of(scene, name)
    small = scene.view(len(DEVICES) + 4)
    return View(small.execute, (*small.read, str(scene.outside)), small.write)


@dataclass(slots=True)
class Standing:
    """What is known about one contestant."""

    samples: dict[str, Sample]
    notes: list[str]
    open_doors: list[str]


def cases_of(
    scene: Scene,
    name: str,
    setups: Mapping[str, Setup],
    only: str,
    standings: dict[str, Standing],
) -> dict[str, Case]:
    """Everyone that is there, set up for this view, with what it lacks noted."""
    found: dict[str, Case] = {}
    for contestant, setup in setups.items():
        if contestant not in (FLOOR, *OURS, BROKER) and not re.search(only, contestant):
            continue
        standing = standings.setdefault(contestant, Standing({}, [], []))
        try:
            case = setup(scene, view_of(scene, name), name)
            if case.run([TRUE]) != 0:
                raise Absent(f"does not run {TRUE} with this view")
            wrong = [] if contestant in UNCONFINED else defects(scene, case)
        except (Absent, BenchError, OSError, subprocess.SubprocessError) as error:
            standing.notes.append(f"{name}: {str(error)[:120]}")
            continue
        standing.notes += [f"{name}: {text}" for text in wrong]
        found[contestant] = case
    return found


def first_look_us(worker: Worker) -> float:
    return worker.ask("2")[-1] / 1000


def measure(cases: Mapping[str, Case], factor: float) -> dict[str, Sample]:
    """The quick ones take many turns together; the slow ones few, with the floor among them."""
    samples: dict[str, Sample] = {}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(case.worker, cpu=LAST_CPU, env=python_env()))
            for name, case in cases.items()
        }
        looks = {name: first_look_us(worker) for name, worker in workers.items()}
        slow = {name for name, took_us in looks.items() if took_us > SLOW_ABOVE_US}
        quick = {name: worker for name, worker in workers.items() if name not in slow}
        samples |= take_turns({name: workers[name] for name in slow}, SLOW.scaled(factor))
        samples |= take_turns(quick, FAST.scaled(factor))
    return samples


def take_view(name: str, only: str, factor: float, standings: dict[str, Standing]) -> list[str]:
    """Measures one view; in view `a` also what is left open.  Returns the probes' names."""
    with Scene() as scene, ExitStack() as stack:
        setups = dict(CONTESTANTS)
        try:
            daemon = stack.enter_context(Daemon(scene, "peers", ceiling_of(scene, name)))
            setups[BROKER] = broker_over(daemon)
        except BenchError as error:
            standings[BROKER] = Standing({}, [f"{name}: {error}"], [])
        cases = cases_of(scene, name, setups, only, standings)
        for contestant, sample in measure(cases, factor).items():
            standings[contestant].samples[name] = sample
        if name != "a":
            return []
        with victim(scene) as probes:
            for contestant, case in cases.items():
                standings[contestant].open_doors = left_open(case, probes)
            return list(probes)


# Reporting ---------------------------------------------------------------------------------------


def cost_table(standings: Mapping[str, Standing]) -> str:
    header = ["what", "a: / and one directory", "b: 30 roots", "c: 300 roots", "a over floor"]
    floor = standings[FLOOR].samples
    lines = []
    for name, standing in sorted(standings.items(), key=functools.partial(by_cost)):
        cells = [milliseconds(standing.samples.get(view)) for view in "abc"]
        a, base = standing.samples.get("a"), floor.get("a")
        over = f"+{(a.median_us - base.median_us) / 1000:.2f}" if a and base else "-"
        if any(cell != "-" for cell in cells):
            lines.append([name, *cells, over])
    return report.table(header, lines)


def by_cost(entry: tuple[str, Standing]) -> float:
    sample = entry[1].samples.get("a") or entry[1].samples.get("b")
    return sample.median_us if sample else float("inf")


def milliseconds(sample: Sample | None) -> str:
    return f"{sample.median_us / 1000:.2f} ({sample.p10_us / 1000:.2f})" if sample else "-"


def doors_table(standings: Mapping[str, Standing], probes: Sequence[str]) -> str:
    lines = [[name, *entry.open_doors] for name, entry in standings.items() if entry.open_doors]
    return report.table(["what", *probes], lines)


def grouped(standing: Standing) -> list[str]:
    """The notes, each said once with the views it holds for."""
    views: dict[str, list[str]] = {}
    for note in standing.notes:
        view, _, text = note.partition(": ")
        views.setdefault(text, []).append(view)
    return [f"{text} ({', '.join(where)})" for text, where in views.items()]


def section(
    standings: Mapping[str, Standing], probes: Sequence[str], when: report.Conditions
) -> str:
    notes = [f"- {name}: {text}" for name, entry in standings.items() for text in grouped(entry)]
    parts = [
        when.sentence(),
        "Median (p10) in ms of one run of `/usr/bin/true`:",
        cost_table(standings),
        "What a command can still reach in view a (`open`: the probe reached it):",
        doors_table(standings, probes),
        *(["Left out or lacking:", "\n".join(notes)] if notes else []),
    ]
    return "\n\n".join(parts)


def as_json(
    standings: Mapping[str, Standing], probes: Sequence[str], when: report.Conditions
) -> str:
    body = {name: asdict(standing) for name, standing in standings.items()}
    return json.dumps({"conditions": asdict(when), "probes": probes, "peers": body}, indent=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="fetch the peers first")
    parser.add_argument("--only", default="", help="peers whose name matches this expression")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a seventh of the runs")
    parser.add_argument("--no-document", action="store_true", help="leave docs/ as it is")
    options = parser.parse_args()
    if options.install:
        install()
    if not CONFINE.exists():
        print(f"'{CONFINE}' is missing: run make build first", file=sys.stderr)
        return 2
    load_before = os.getloadavg()[0]
    BUILD.mkdir(parents=True, exist_ok=True)
    standings: dict[str, Standing] = {}
    probes: list[str] = []
    for view in "abc":
        print(f"# view {view}", flush=True)
        factor = 0.15 if options.quick else 1.0
        probes = take_view(view, options.only, factor, standings) or probes
    when = report.conditions(load_before)
    text = section(standings, probes, when)
    print(f"\n{text}\n")
    print(f"written: {report.write_json('peers.json', as_json(standings, probes, when))}")
    if not (options.only or options.quick or options.no_document):
        report.write_section("peers", text)
        print(f"written: {report.DOCUMENT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

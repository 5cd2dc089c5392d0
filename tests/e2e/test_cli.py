# SPDX-License-Identifier: Apache-2.0
"""The `host-broker` command, as operators and callers type it, against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import PROJECT, Daemon


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon.start()


CLI = [sys.executable, "-P", "-m", "broker", "--user"]


def cli(daemon: Daemon, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """`host-broker --user WORDS`; `input` is its stdin, `cwd` where it is run."""
    return subprocess.run(
        [*CLI, *words],
        env=daemon.environ | options.pop("env", {}),
        cwd=options.pop("cwd", daemon.work),
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        **options,
    )


# --- exec -----------------------------------------------------------------------------------------


def test_output_and_status_are_the_command_s(running: Daemon) -> None:
    done = cli(running, "exec", "--script", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_it_starts_in_the_current_directory(running: Daemon) -> None:
    below = running.work / "below"
    below.mkdir(exist_ok=True)
    assert cli(running, "exec", "--", "pwd", cwd=below).stdout == f"{below}\n".encode()


def test_a_directory_outside_says_what_to_do(running: Daemon) -> None:
    done = cli(running, "exec", "--", "pwd", cwd="/")
    assert done.returncode == 125
    assert b"cwd is outside the roots of this run" in done.stderr
    assert b"--scratch" in done.stderr
    assert cli(running, "exec", "--scratch", "--", "pwd", cwd="/").returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--timeout", "0.3", "--", "sleep", "60"], 124, b"timed out"),
        (["--", "no-such-program"], 127, b"not in the run's PATH"),
        (["--", "/etc/passwd"], 126, b"EACCES"),
        (["--script", "kill -9 $$"], 137, b""),
        (["--script", "sleep 300 & exit 3"], 3, b"1 background process"),
        (["--env", "LD_PRELOAD=/x", "--", "true"], 125, b"LD_PRELOAD"),
        (["--env", "NOT_SET_HERE", "--", "true"], 125, b"no such variable"),
        (["--timeout", "999999", "--", "true"], 125, b"timeout_ms"),
        (["--script", "a", "b"], 125, b"exactly one argument"),
        ([], 2, b"COMMAND"),
        (["--no-such-option", "--", "true"], 2, b"--no-such-option"),
    ],
    ids=str,
)
def test_each_end_has_its_status(
    running: Daemon, words: list[str], status: int, said: bytes
) -> None:
    done = cli(running, "exec", *words)
    assert done.returncode == status, done.stderr
    assert said in done.stderr


def test_variables_and_input_are_passed_when_asked(running: Daemon) -> None:
    done = cli(
        running, "exec", "--env", "A=1", "--env", "B", "-i", "--script", 'echo "$A$B$C"; cat',
        env={"B": "2", "C": "3"}, input=b"typed",
    )  # fmt: skip
    assert done.stdout == b"12\ntyped"
    assert cli(running, "exec", "--", "cat", input=b"typed").stdout == b""


def test_roots_narrow_the_run(running: Daemon) -> None:
    (running.work / "ro").mkdir(exist_ok=True)
    script = "echo x > ro/f || echo refused; ls ro && echo listed"
    done = cli(running, "exec", "--ro", str(running.work), "--script", script)
    assert done.stdout == b"refused\nlisted\n"
    assert cli(running, "exec", "--script", script).stdout == b"f\nlisted\n"


def test_cut_output_is_told(running: Daemon) -> None:
    done = cli(running, "exec", "--max-output", "5", "--script", "printf 123456789")
    assert (done.returncode, done.stdout) == (123, b"12389")
    assert b"4 of 9 bytes were dropped after the first 3" in done.stderr
    failed = cli(running, "exec", "--max-output", "5", "--script", "printf 123456789; exit 7")
    assert (failed.returncode, failed.stdout) == (7, b"12389")
    whole = cli(running, "exec", "--max-output", "9", "--script", "printf 123456789")
    assert (whole.returncode, whole.stdout, whole.stderr) == (0, b"123456789", b"")


def test_output_that_cannot_be_written_is_not_success(running: Daemon) -> None:
    with open("/dev/full", "wb") as full:
        done = cli(running, "exec", "--", "echo", "lost", stdout=full)
    assert done.returncode == 123
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_variable_that_looks_like_a_secret_is_said_to_be_left_out(running: Daemon) -> None:
    script = 'echo "${API_TOKEN-unset} $PLAIN"'
    done = cli(
        running, "exec", "--env", "API_TOKEN=x", "--env", "PLAIN=y", "--script", script,
    )  # fmt: skip
    assert done.stdout == b"unset y\n"
    assert b"left out: API_TOKEN" in done.stderr


def test_options_end_where_the_command_begins(running: Daemon) -> None:
    assert cli(running, "exec", "echo", "--json", "-i").stdout == b"--json -i\n"


def test_an_interrupt_ends_the_run(running: Daemon) -> None:
    fifo = running.work / "held"
    os.mkfifo(fifo)
    words = ["exec", "--script", f"exec 3>{fifo}; exec sleep 300"]
    process = subprocess.Popen(
        [*CLI, *words], env=running.environ, cwd=running.work, stderr=subprocess.PIPE
    )
    with process, open(fifo, "rb") as held:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert held.read() == b""  # the end of it: nobody has it any more
    assert process.returncode == 130
    assert b"interrupted, the run was ended" in errors


def test_the_whole_result_and_the_plan_are_json(running: Daemon) -> None:
    result = json.loads(cli(running, "exec", "--json", "--", "true").stdout)
    assert result["confinement"]["mode"] == "sandboxed"
    plan = cli(running, "exec", "--plan", "--", "touch", "planned")
    assert json.loads(plan.stdout)["decision"] == "allow"
    assert not (running.work / "planned").exists()
    denied = cli(running, "exec", "--plan", "--cwd", "/root", "--", "true")
    assert (denied.returncode, json.loads(denied.stdout)["decision"]) == (125, "deny")


def test_a_client_elsewhere_needs_no_settings(running: Daemon) -> None:
    """As in a container: a socket and a secret by the environment."""
    done = cli(
        running, "exec", "--scratch", "--", "echo", "here",
        env={
            "XDG_CONFIG_HOME": "/nonexistent",
            "HOST_BROKER_SOCKET": running.settings.socket,
            "HOST_BROKER_SECRET_FILE": str(running.settings.client_header_file),
        },
    )  # fmt: skip
    assert done.stdout == b"here\n"


def test_without_a_broker_nothing_runs() -> None:
    with Daemon() as stopped:
        done = cli(stopped, "exec", "--", "touch", "ran")
        assert done.returncode == 125
        assert b"no broker answers" in done.stderr
        assert not (stopped.work / "ran").exists()


def test_unconfined_runs_say_so() -> None:
    ceiling = 'write = ["{work}"]\nconfinement = "unconfined"\ntrusted_single_operator = true\n'
    with Daemon(ceiling=ceiling) as daemon:
        daemon.start()
        done = cli(daemon, "exec", "--", "cat", str(daemon.settings.secret_file))
        assert done.returncode == 0
        assert b"UNCONFINED" in done.stderr
        assert b"UNCONFINED" in cli(daemon, "status").stdout


# --- status, doctor, audit ------------------------------------------------------------------------


def test_status_of_a_running_broker(running: Daemon) -> None:
    done = cli(running, "status")
    assert done.returncode == 0
    assert done.stdout.startswith(b"ready")
    report = json.loads(cli(running, "status", "--json").stdout)
    assert report["ceiling"]["roots"] == [[str(running.work), "read write"]]


@pytest.mark.parametrize(
    ("ceiling", "why"),
    [("", "lists no"), ("write = [1]", "write"), ('wirte = ["/srv"]', "'write'")],
)
def test_status_says_why_a_ceiling_denies(ceiling: str, why: str) -> None:
    with Daemon(ceiling=ceiling) as daemon:
        done = cli(daemon, "status")
        assert done.returncode == 1
        text = done.stdout.decode()
        assert "denies everything" in text
        assert why in text


def test_doctor_holds_on_a_running_broker(running: Daemon) -> None:
    done = cli(running, "doctor")
    assert done.returncode == 0, done.stdout.decode()
    assert "✗" not in done.stdout.decode()


def test_doctor_names_each_floor_that_does_not_hold() -> None:
    with Daemon(ceiling="") as daemon:
        daemon.settings.kill_switch.touch()
        daemon.settings.secret_file.chmod(0o644)
        done = cli(daemon, "doctor", "--json")
        assert done.returncode == 1
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        failed = {name for name, check in checks.items() if not check["ok"]}
        assert failed == {"secret", "ceiling", "kill_switch", "broker"}
        assert all(checks[name]["fix"] for name in failed)


def test_audit_verify_finds_an_edit(tmp_path: Path) -> None:
    with Daemon() as daemon:
        daemon.start()
        cli(daemon, "exec", "--", "true")
        daemon.stop()
        intact = cli(daemon, "audit", "verify")
        assert (intact.returncode, intact.stdout[:6]) == (0, b"intact")
        log = daemon.settings.audit_dir / "audit.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"exec.intent"', b'"exec.denied"'))
        broken = cli(daemon, "audit", "verify", str(daemon.settings.audit_dir))
        assert broken.returncode == 1
        assert broken.stdout.startswith(b"BROKEN")
    gone = cli(daemon, "audit", "verify", str(tmp_path / "none"), cwd=tmp_path)
    assert gone.returncode == 125
    assert b"there is no log" in gone.stderr


# --- init, quickstart -----------------------------------------------------------------------------


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: sockets go below it."""
    with tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as directory:
        yield Path(directory)


def environment(base: Path) -> dict[str, str]:
    home = {f"XDG_{name}_HOME": str(base / name.lower()) for name in ("CONFIG", "STATE", "DATA")}
    return {
        "PATH": os.environ["PATH"], "HOME": str(base), "XDG_RUNTIME_DIR": str(base / "run"),
        "PYTHONPATH": str(PROJECT), **home,
    }  # fmt: skip


def bare(base: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "broker", "--user", *words], env=environment(base), cwd=base,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_init_makes_what_is_missing_and_changes_nothing(home: Path) -> None:
    made = bare(home, "init")
    assert made.returncode == 0, made.stderr
    config = home / "config" / "host-broker"
    secret = (config / "secret").read_text()
    (config / "ceiling.toml").write_text("# mine\n")
    kept = bare(home, "init")
    assert b"kept" in kept.stdout
    assert (config / "secret").read_text() == secret
    assert (config / "ceiling.toml").read_text() == "# mine\n"
    assert (config / "secret").stat().st_mode & 0o777 == 0o600


def test_a_fresh_ceiling_denies_everything(home: Path) -> None:
    bare(home, "init")
    done = bare(home, "status")
    assert done.returncode == 1
    assert b"denies everything" in done.stdout


def test_the_unit_names_this_installation(home: Path) -> None:
    unit = bare(home, "init", "--print-unit").stdout.decode()
    assert f"ExecStart={Path(sys.executable).parent}/host-broker" in unit
    assert not (home / "config").exists()


def test_quickstart_goes_from_nothing_to_a_confined_command(home: Path) -> None:
    done = bare(home, "quickstart")
    text = done.stdout.decode()
    assert done.returncode == 0, text + done.stderr.decode()
    assert "hello from" in text
    assert "Permission denied" in text
    assert "intact" in text
    assert not (home / "run" / "host-broker" / "broker.sock").exists()
    again = bare(home, "quickstart")
    assert again.returncode == 0
    assert "existing secret" in again.stdout.decode()


def test_help_waits_for_no_event_loop() -> None:
    program = (
        "import sys; sys.argv = ['host-broker', '--help']\n"
        "try:\n    from broker.cli import main; main()\nexcept SystemExit: pass\n"
        "print(sorted({'asyncio', 'uvloop', 'pyroute2', 'sandbox', 'tomllib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PROJECT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"

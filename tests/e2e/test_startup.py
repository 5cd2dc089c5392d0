# SPDX-License-Identifier: Apache-2.0
"""Starting: what is refused, with which status and words, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import PROJECT, Daemon

Make = Callable[..., Daemon]
SETTINGS = 'cgroup = "none"\n'


def listening_tcp_ports() -> set[int]:
    lines = [*Path("/proc/net/tcp").read_text().splitlines()[1:],
             *Path("/proc/net/tcp6").read_text().splitlines()[1:]]  # fmt: skip
    rows = [line.split() for line in lines]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


ROUTABLE = ["0.0.0.0:47811", "[::]:47811", "192.0.2.1:47811", "localhost:47811", "[::2]:47811"]


@pytest.mark.parametrize("address", ROUTABLE)
def test_a_routable_address_is_refused_before_listening(make_daemon: Make, address: str) -> None:
    daemon = make_daemon()
    daemon.write_settings(f'{SETTINGS}tcp = "{address}"\n')
    before = daemon.names()
    status, said = daemon.refused()
    assert status == 78
    assert repr(address) in said
    assert "127.0.0.1:PORT" in said
    assert daemon.names() == before
    assert 47811 not in listening_tcp_ports()


def test_a_socket_path_of_108_bytes_names_both_numbers(make_daemon: Make) -> None:
    daemon = make_daemon()
    path = daemon.base / ("x" * (108 - len(str(daemon.base)) - 1))
    daemon.write_settings(f'{SETTINGS}socket = "{path}"\n')
    before = daemon.names()
    status, said = daemon.refused()
    assert status == 80
    assert "108 bytes" in said
    assert "107" in said
    assert daemon.names() == before


def test_a_socket_path_of_107_bytes_serves(make_daemon: Make) -> None:
    daemon = make_daemon()
    directory = daemon.base / "d"
    path = directory / ("x" * (107 - len(str(directory)) - 1))
    (daemon.base / "t").mkdir(mode=0o700)
    daemon.write_settings(f'{SETTINGS}socket = "{path}"\nscratch_dir = "{daemon.base}/t"\n')
    daemon.start()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))


def test_a_second_instance_is_refused_and_the_first_goes_on(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    before = daemon.names()
    with daemon.client() as client:
        assert client.exec(["true"]).exit_code == 0
        status, said = daemon.refused()
        assert status == 75
        assert "another broker" in said
        assert daemon.names() == before
        assert client.exec(["true"]).exit_code == 0
    with daemon.client() as client:
        assert client.exec(["true"]).exit_code == 0
    assert daemon.stop() == 0


@pytest.mark.parametrize("kind", ["file", "directory", "fifo", "symlink"])
def test_what_is_not_a_socket_at_the_path_is_left_alone(make_daemon: Make, kind: str) -> None:
    daemon = make_daemon()
    path = Path(daemon.settings.socket)
    {"file": path.touch, "directory": path.mkdir, "fifo": lambda: os.mkfifo(path),
     "symlink": lambda: path.symlink_to(daemon.base / "elsewhere")}[kind]()  # fmt: skip
    before, names = path.lstat(), daemon.names()
    status, said = daemon.refused()
    assert status == 73
    assert "not a socket" in said
    assert path.lstat().st_ino == before.st_ino
    assert daemon.names() - names <= {"run/host-broker/broker.lock"}


SECRETS: list[tuple[str, Callable[[Path], object], str]] = [
    ("readable by others", lambda path: path.chmod(0o644), "read"),
    ("readable by a group", lambda path: path.chmod(0o640), "read"),
    ("writable by others", lambda path: path.chmod(0o622), "write"),
    ("missing", lambda path: path.unlink(), "does not exist"),
    ("empty", lambda path: path.write_text(""), "empty"),
    ("short", lambda path: path.write_text("hunter2\n"), "32 bytes"),
    ("a symlink", lambda path: path.rename(path.with_name("s")) and path.symlink_to("s"), "link"),
    ("a directory", lambda path: path.unlink() or path.mkdir(), "regular file"),
]


@pytest.mark.parametrize(("change", "word"), [row[1:] for row in SECRETS],
                         ids=[row[0] for row in SECRETS])  # fmt: skip
def test_a_secret_that_cannot_be_trusted_refuses_to_start(
    make_daemon: Make, change: Callable[[Path], object], word: str
) -> None:
    daemon = make_daemon()
    secret = daemon.authorization.split()[1]
    if os.geteuid() == 0:
        os.chown(daemon.settings.secret_file, -1, 12345)  # root's own group may read it
    change(daemon.settings.secret_file)
    before = daemon.names()
    status, said = daemon.refused()
    assert status == 77
    assert word in said
    assert secret not in said
    assert "hunter2" not in said
    assert daemon.names() == before


def test_settings_that_are_wrong_refuse_to_start(make_daemon: Make) -> None:
    daemon = make_daemon()
    daemon.write_settings("sokcet = '/run/x'\n")
    status, said = daemon.refused()
    assert status == 79
    assert "'socket'" in said


def test_modes_that_a_run_changed_do_not_keep_it_from_starting(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    settings = daemon.settings
    directories = (settings.runtime_dir, settings.state_dir, settings.scratch_dir)
    changed = [*directories, settings.runtime_dir / "broker.lock"]
    with daemon.client() as client:
        for mode in ("0777", "0"):
            for path in reversed(changed):
                assert client.exec(["chmod", mode, str(path)]).exit_code == 0
            assert daemon.stop() == 0
            daemon.start()
            assert client.exec(["true"]).exit_code == 0
            assert not any(path.stat().st_mode & 0o022 for path in directories)


def test_a_socket_directory_below_one_that_others_can_write_refuses_to_start(
    make_daemon: Make,
) -> None:
    daemon = make_daemon()
    daemon.settings.runtime_dir.parent.chmod(0o777)
    status, said = daemon.refused()
    assert status == 81
    assert "0777" in said


def test_a_changed_audit_log_refuses_to_start(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    assert daemon.stop() == 0
    log = daemon.settings.audit_dir / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b"broker.started", b"broker.stArted"))
    status, said = daemon.refused()
    assert status == 74
    assert "was changed" in said


CEILINGS = [
    ("malformed", "write = [", "ceiling_malformed", False),
    ("an unknown key", 'wirte = ["{work}"]\n', "ceiling_malformed", False),
    ("empty", "", "ceiling_empty", True),
    ("roots that do not exist", 'read = ["/no/such"]\n', "ceiling_empty", True),
    ("reaching our own files", 'write = ["{work}/.."]\n', "ceiling_malformed", False),
]


@pytest.mark.parametrize(("text", "reason", "loaded"), [row[1:] for row in CEILINGS],
                         ids=[row[0] for row in CEILINGS])  # fmt: skip
def test_a_bad_ceiling_is_served_and_denies_everything(
    make_daemon: Make, text: str, reason: str, loaded: bool
) -> None:
    daemon = make_daemon(ceiling=text).start()
    body = f'{{"argv":["touch","{daemon.work}/x"]}}'
    status, _, document = daemon.curl("http://b/v1/exec", "-d", body)
    assert (status, document["code"]) == (403, "ceiling_denied")
    assert document["details"]["reason"] == reason
    assert str(daemon.base) not in json.dumps(document).replace(f"{daemon.work}/x", "")
    status, _, ready = daemon.curl("http://b/readyz")
    assert (status, ready["checks"]["ceiling_loaded"]) == (200 if loaded else 503, loaded)
    assert not (daemon.work / "x").exists()
    assert "the ceiling allows nothing" in daemon.log.read_text()


FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing", lambda path: path.unlink(), "ceiling_missing"),
    ("writable by others", lambda path: path.chmod(0o666), "ceiling_writable_by_others"),
    (
        "a symlink",
        lambda path: path.rename(path.with_name("c")) and path.symlink_to("c"),
        "ceiling_symlink",
    ),
]
if os.geteuid() == 0:  # nobody else can give a file away
    FILES.append(("somebody else's", lambda path: os.chown(path, 12345, -1), "ceiling_wrong_owner"))


@pytest.mark.parametrize(("change", "reason"), [row[1:] for row in FILES],
                         ids=[row[0] for row in FILES])  # fmt: skip
def test_a_ceiling_that_others_could_have_written_denies_everything(
    make_daemon: Make, change: Callable[[Path], object], reason: str
) -> None:
    daemon = make_daemon()
    change(daemon.settings.ceiling_file)
    daemon.start()
    status, _, document = daemon.curl("http://b/v1/exec", "-d", '{"argv":["true"]}')
    assert (status, document["details"]["reason"]) == (403, reason)


# ---- the helper ----


def python_path(package: Path) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(package), inherited]).rstrip(os.pathsep)}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the program, whose helper a test can replace."""
    for name in ("broker", "sandbox"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc"))
    return tmp_path


def says(row_ok: str, ok: str) -> str:
    """A shell command that prints a proof with one row."""
    row = f'{{"name":"unix_stream","ok":{row_ok},"skipped":false}}'
    return f'echo \'{{"rows":[{row}],"ok":{ok},"abi":7,"errata":0}}\''


BELOW = "echo 'confine: Landlock ABI 2, 3 is needed' >&2; exit 91"
HELPERS = [
    ("missing", None, 72, "missing"),
    ("not executable", "-", 72, "not executable"),
    ("no program", "\0\0\0\0", 72, "cannot run"),
    ("a row that failed", f"{says('false', 'false')}; exit 92", 70, "unix_stream"),
    ("a row that failed, and says ok", says("false", "true"), 70, "unix_stream"),
    ("rows that hold, and says not ok", says("true", "false"), 70, "exit status 0"),
    ("no row at all", 'echo \'{"rows":[],"ok":true,"abi":7,"errata":0}\'', 70, "exit status 0"),
    ("no proof", "exit 0", 70, "no proof"),
    ("another program", "cat /etc/os-release", 70, "no proof"),
    ("dies", "kill -9 $$", 70, "no proof"),
    ("kernel below the floor", BELOW, 69, "ABI 2"),
]


@pytest.mark.parametrize(("helper", "status", "word"), [row[1:] for row in HELPERS],
                         ids=[row[0] for row in HELPERS])  # fmt: skip
def test_an_unproved_helper_is_not_served_with(
    make_daemon: Make, package: Path, helper: str | None, status: int, word: str
) -> None:
    program = package / "sandbox" / "confine"
    program.unlink()
    if helper is not None:
        program.write_text(helper if helper < " " else f"#!/bin/sh\n{helper}\n")
        program.chmod(0o644 if helper == "-" else 0o755)
    daemon = make_daemon(environ=python_path(package))
    before = daemon.names()
    got, said = daemon.refused()
    assert got == status, said
    assert word in said
    assert daemon.names() - before <= {"run/host-broker/broker.lock"}


def test_a_helper_that_lies_about_itself_does_not_pass_the_reach_check(
    make_daemon: Make, package: Path
) -> None:
    """It says that it enforces, and cannot run anything."""
    program = package / "sandbox" / "confine"
    real = program.rename(program.with_name("real"))
    program.write_text(
        f"#!/bin/sh\n[ $1 = --selftest ] && {{ {says('true', 'true')}; exit; }}\n"
        f'[ $1 = --runner ] && exit 1\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    daemon = make_daemon(environ=python_path(package))
    status, said = daemon.refused()
    assert status in (82, 72), said
    assert not Path(daemon.settings.socket).exists()


def until_ready_is(daemon: Daemon, status: int) -> None:
    deadline = time.monotonic() + 60
    while daemon.curl("http://b/readyz")[0] != status:
        assert time.monotonic() < deadline, f"readyz does not say {status}"


def test_a_helper_replaced_while_serving_is_used_once_proved(
    make_daemon: Make, package: Path
) -> None:
    daemon = make_daemon(environ=python_path(package)).start()
    with daemon.client() as client:
        assert client.exec(["true"]).exit_code == 0
    other = package / "sandbox" / "other"
    shutil.copy(package / "sandbox" / "confine", other)
    other.rename(package / "sandbox" / "confine")
    until_ready_is(daemon, 503)  # it looks once a second
    status, _, document = daemon.curl("http://b/v1/exec", "-d", '{"argv":["true"]}')
    assert (status, document["code"]) == (503, "not_ready")
    assert document["details"] == {"checks": ["helper_selftest"]}
    os.kill(daemon.pid, signal.SIGHUP)
    until_ready_is(daemon, 200)
    with daemon.client() as client:
        assert client.exec(["true"]).exit_code == 0


# ---- the socket's life ----


@pytest.mark.parametrize("umask", [0, 0o077, 0o177])
def test_the_socket_is_0660_exactly(make_daemon: Make, umask: int) -> None:
    daemon = make_daemon()
    daemon.umask = umask
    daemon.start()
    found = os.lstat(daemon.settings.socket)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o660


def test_it_starts_again_after_being_killed_and_a_client_reconnects(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    with daemon.client() as client:
        assert client.exec(["true"]).exit_code == 0
        daemon.stop(signal.SIGKILL)
        assert Path(daemon.settings.socket).exists()
        daemon.start()
        assert client.exec(["true"]).exit_code == 0
        assert daemon.stop() == 0
        assert not Path(daemon.settings.socket).exists()
        daemon.start()
        assert client.exec(["true"]).exit_code == 0


def test_a_socket_that_is_not_ours_any_more_is_left_at_stop(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    path = Path(daemon.settings.socket)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert daemon.stop() == 0
        assert path.exists()


def test_a_stop_leaves_nothing_but_what_lasts(make_daemon: Make) -> None:
    daemon = make_daemon()
    before = daemon.names()
    daemon.start()
    with daemon.client() as client:
        client.exec(script="mkdir -p $TMPDIR/a/b; chmod 0 $TMPDIR/a; echo x > left")
    assert daemon.stop() == 0
    made = daemon.names() - before
    assert {name for name in made if not name.startswith("state/host-broker/audit/")} == {
        "run/host-broker/broker.lock"
    }


def test_the_daemon_is_not_readable_by_its_own_user(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    private = Path(f"/proc/{daemon.pid}/environ")
    assert private.stat().st_uid == 0  # not dumpable: root's, whoever runs it (proc(5))
    assert Path("/proc/self/environ").stat().st_uid == os.geteuid()
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            private.read_bytes()
    limits = Path(f"/proc/{daemon.pid}/limits").read_text()
    core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["1", "1"]
    secret = daemon.authorization.split()[1].encode()
    assert secret not in Path(f"/proc/{daemon.pid}/cmdline").read_bytes()

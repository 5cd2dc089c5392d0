# SPDX-License-Identifier: Apache-2.0
"""The unit, the account and the directories, as systemd reads them and, as root, as it runs them.

The last test boots a systemd of its own, in namespaces in which everything of this machine is
read-only, and starts the broker by the unit: the hardening must leave the proof complete and runs
working.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandbox
from broker import startup
from tests.support.kernel import require, require_cgroup, require_program, require_root

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "systemd" / "host-broker.service"
SYSUSERS = ROOT / "systemd" / "host-broker.sysusers.conf"
TMPFILES = ROOT / "systemd" / "host-broker.tmpfiles.conf"
MOST_EXPOSED = 47  # tenths of `systemd-analyze security`, as systemd 252 counts


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [require_program("systemd-analyze"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def with_existing_program(tmp_path: Path, text: str) -> Path:
    """The unit as it would be installed here: verify(1) looks for the executable."""
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/usr/bin/host-broker", "/bin/true"))
    return copy


# --- as it is read --------------------------------------------------------------------------------


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    fine = analyze("verify", "--man=no", with_existing_program(tmp_path, UNIT.read_text()))
    assert (fine.returncode, fine.stderr) == (0, "")
    broken = UNIT.read_text().replace("KillMode=mixed", "KillMode=mixd")
    told = analyze("verify", "--man=no", with_existing_program(tmp_path, broken))
    assert "mixd" in told.stderr  # the control


def test_the_unit_is_no_more_exposed_than_when_this_was_written() -> None:
    assert (
        analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", UNIT).returncode == 0
    )
    lower = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED - 10}", UNIT)
    assert lower.returncode != 0  # the control


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("KillMode", "mixed"),
        ("TimeoutStopSec", "45"),
        ("Restart", "on-failure"),
        ("RestartSec", "2"),
        ("User", "host-broker"),
        ("Group", "host-broker"),
        ("UMask", "0077"),
        ("RuntimeDirectoryMode", "0750"),
        ("RuntimeDirectoryPreserve", "yes"),
        ("StateDirectoryMode", "0700"),
        ("ConfigurationDirectoryMode", "0750"),
        ("Delegate", "yes"),
        ("OOMPolicy", "continue"),
        ("LimitCORE", "1"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("AmbientCapabilities", ""),
        ("SupplementaryGroups", None),
        ("DynamicUser", None),
        ("PermissionsStartOnly", None),
    ],
)
def test_the_unit_says(key: str, value: str | None) -> None:
    assert unit().get(key) == value


@pytest.mark.parametrize(
    "key",
    [
        "MemoryDenyWriteExecute",
        "PrivateTmp",
        "ProtectControlGroups",
        "ProtectHome",
        "ReadOnlyPaths",
        "RestrictNamespaces",
        "RestrictSUIDSGID",
        "SystemCallArchitectures",
        "SystemCallFilter",
    ],
)
def test_what_would_break_runs_or_hide_the_proof_is_left_out_and_told_why(key: str) -> None:
    assert unit().get(key) is None
    assert f"{key}=" in UNIT.read_text().partition("[Unit]")[0]


def test_it_is_restarted_unless_only_the_operator_can_mend_it() -> None:
    final = {int(status) for status in unit()["RestartPreventExitStatus"].split()}
    passing = {
        startup.HelperUnprovedError,  # a machine too busy for it
        startup.AuditUnavailableError,  # a full disk
        startup.AlreadyRunningError,  # until the other one stops
        startup.ReachUnknownError,
    }
    errors = [
        value
        for value in vars(startup).values()
        if isinstance(value, type) and issubclass(value, startup.StartupError)
    ]
    known = {error.exit_status for error in errors if error is not startup.StartupError}
    assert final == known - {error.exit_status for error in passing}


# --- the account and the directories --------------------------------------------------------------


def test_the_account_is_in_no_group_but_its_own(tmp_path: Path) -> None:
    require_root()
    (tmp_path / "etc").mkdir()
    subprocess.run(
        [require_program("systemd-sysusers"), f"--root={tmp_path}", SYSUSERS],
        check=True,
        capture_output=True,
    )
    (line,) = (tmp_path / "etc/passwd").read_text().splitlines()
    name, _, uid, gid, _, home, shell = line.split(":")
    assert (name, home) == ("host-broker", "/var/lib/host-broker")
    assert shell.endswith("/nologin")
    assert int(uid) > 0
    assert (tmp_path / "etc/group").read_text().splitlines() == [f"host-broker:x:{gid}:"]


def test_the_directories_have_exact_modes_and_the_configuration_is_roots(tmp_path: Path) -> None:
    require_root()
    (tmp_path / "etc").mkdir()
    for tool, file in (("systemd-sysusers", SYSUSERS), ("systemd-tmpfiles", TMPFILES)):
        extra = ["--create"] if tool.endswith("tmpfiles") else []
        command = [require_program(tool), f"--root={tmp_path}", *extra, str(file)]
        subprocess.run(command, check=True, capture_output=True)
    uid, gid = map(int, (tmp_path / "etc/passwd").read_text().split(":")[2:4])
    made = {}
    for place in ("etc/host-broker", "run/host-broker", "var/lib/host-broker"):
        for path in (tmp_path / place, *(tmp_path / place).iterdir()):
            found = path.stat()
            mode = oct(stat.S_IMODE(found.st_mode))
            made[str(path.relative_to(tmp_path))] = (mode, found.st_uid, found.st_gid)
    assert made == {
        "etc/host-broker": ("0o750", 0, gid),
        "run/host-broker": ("0o750", uid, gid),
        "var/lib/host-broker": ("0o700", uid, gid),
        "var/lib/host-broker/audit": ("0o700", uid, gid),
        "var/lib/host-broker/tmp": ("0o700", uid, gid),
    }


# --- as it runs -----------------------------------------------------------------------------------

PYTHON = f"/mnt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
PATHS = "PYTHONPATH=/mnt/code:/mnt/site LD_LIBRARY_PATH=/mnt/python/lib"
BROKER = f"{PYTHON} -m broker --system"

# Everything of the machine is read-only before systemd starts; what it writes is in memory.
BOOT = """
    set -eu
    mount --make-rprivate /
    mount -t tmpfs -o mode=0755 none /mnt
    cp "$1/confine" "$1/before" "$1/after" "$1/stopped" /mnt/
    chmod 755 /mnt/*
    mkdir /mnt/units /mnt/etc /mnt/etc-work /mnt/python /mnt/site /mnt/code /mnt/work
    touch /mnt/report /mnt/log
    mount --bind "$1/report" /mnt/report
    mount --bind "$1/log" /mnt/log
    for pair in "$2:python" "$3:site" "$4:code"; do
        mount --bind "${pair%:*}" "/mnt/${pair##*:}"
        mount -o remount,bind,ro "/mnt/${pair##*:}"
    done
    for target in sysinit basic shutdown; do
        cp "/lib/systemd/system/$target.target" /mnt/units/
    done
    cp -r "$1/host-broker.service" "$1/host-broker.service.d" /mnt/units/
    mount -t overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/etc-work none /etc
    mount -t tmpfs -o mode=0755 none /run
    mount -t tmpfs -o mode=0755 none /var/lib
    mount --bind /mnt/units /usr/lib/systemd/system
    mount -t tmpfs none /usr/lib/systemd/system-generators
    rm -rf /etc/systemd/system
    mkdir /etc/systemd/system
    umount -R /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    mount -o remount,bind,ro /
    systemd-sysusers "$4/systemd/host-broker.sysusers.conf"
    systemd-tmpfiles --create "$4/systemd/host-broker.tmpfiles.conf"
    systemd-id128 new >/etc/machine-id
    cd /
    mount -t tmpfs -o mode=1777 none /tmp
    {paths} {broker} init >>/mnt/log 2>&1
    echo 'write = ["/mnt/work"]' >/etc/host-broker/ceiling.toml
    chown host-broker /mnt/work
    exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
        /lib/systemd/systemd --system --unit=host-broker.service \\
        --log-target=null --show-status=no
"""

BEFORE = """
    #!/bin/sh
    exec >/mnt/report
    /mnt/confine --selftest --json | tr -d '\\n'
    echo
    id -un
    id -Gn
    grep -E '^(NoNewPrivs|CapBnd):' /proc/self/status | tr -d '[:space:]'
    echo
"""

# Runs once the broker has said that it is ready.
AFTER = """
    #!/bin/sh
    exec >/mnt/report
    stat -c '%a %U %G %n' /run/host-broker /run/host-broker/broker.sock /etc/host-broker/secret
    {broker} exec --cwd /mnt/work -- /bin/sh -c \\
        'echo ran >here && cat here && ! cat /etc/host-broker/secret && ! ls /var/lib/host-broker'
    {broker} status --json | tr -d '\\n'
    echo
    echo end
"""

STOPPED = """
    #!/bin/sh
    echo "stopped: $SERVICE_RESULT $EXIT_STATUS" >/mnt/report
"""

DROP_IN = f"""
    [Service]
    Environment={PATHS}
    ExecStart=
    ExecStart={BROKER} serve
    ExecStartPre=/mnt/before
    ExecStartPost=/mnt/after
    ExecStopPost=/mnt/stopped
    Restart=no
    StandardOutput=append:/mnt/log
    StandardError=append:/mnt/log
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A control group for the machine in the machine; all in it dies at the end."""
    require_root()
    group = require_cgroup() / f"host-broker-test-{os.getpid()}"
    group.mkdir()
    yield group
    (group / "cgroup.kill").write_text("1")
    with open(group / "cgroup.events") as events:
        waiting = select.poll()
        waiting.register(events, select.POLLPRI)
        while "populated 0" not in (events.seek(0), events.read())[1]:
            waiting.poll(10_000)
    for directory, _, _ in os.walk(group, topdown=False):
        os.rmdir(directory)


def boot(base: Path, cgroup: Path) -> tuple[list[str], str]:
    """Boots, starts the unit, and returns what was reported until it was up, and the log."""
    texts = {"boot": BOOT, "before": BEFORE, "after": AFTER, "stopped": STOPPED}
    for name, text in texts.items():
        (base / name).write_text(
            textwrap.dedent(text).lstrip().replace("{paths}", PATHS).replace("{broker}", BROKER)
        )
    drop_ins = base / "host-broker.service.d"
    drop_ins.mkdir()
    (drop_ins / "test.conf").write_text(textwrap.dedent(DROP_IN))
    shutil.copy(UNIT, base)
    shutil.copy(sandbox.helper_path(), base / "confine")
    (base / "log").touch()
    os.mkfifo(base / "report", 0o622)
    for name in ("log", "report"):
        (base / name).chmod(0o622)
    namespaces = "--mount --pid --cgroup --uts --ipc --net --fork --kill-child --mount-proc"
    enter = f'echo $$ >"{cgroup}/cgroup.procs" && exec unshare {namespaces} sh "$1/boot" "$@"'
    places = [base, sys.base_prefix, sysconfig.get_path("purelib"), ROOT]
    report = os.open(base / "report", os.O_RDWR)  # its writers come and go
    with open(report, "rb", buffering=0) as file, open(base / "log", "a") as log:
        command = ["timeout", "120", "sh", "-c", enter, "sh", *map(str, places)]
        machine = subprocess.Popen(command, stdout=log, stderr=log)
        ended = os.pidfd_open(machine.pid)
        said = b""
        while not re.search(rb"^(end|stopped: .*)\n\Z", said, re.MULTILINE):
            if report not in select.select([report, ended], [], [])[0]:
                break
            said += file.read(1 << 16)
        os.close(ended)
        machine.kill()
        machine.wait()
    return said.decode().splitlines(), (base / "log").read_text()


def test_the_unit_starts_the_broker_with_its_proof_complete_and_runs_work(
    tmp_path: Path, cgroup: Path
) -> None:
    require(Path("/lib/systemd/systemd").exists(), "systemd")
    require_program("unshare")
    said, log = boot(tmp_path, cgroup)
    assert said[-1:] == ["end"], (said[1:], log)
    proof, user, groups, status, *stats, ran, report, _ = said
    assert (user, groups) == ("host-broker", "host-broker")
    assert status == "CapBnd:0000000000000000NoNewPrivs:1"
    rows = json.loads(proof)["rows"]
    assert json.loads(proof)["ok"] is True
    hidden = [row for row in rows if "without the sandbox as well" in row["claim"]]
    assert hidden == []
    assert len(rows) - len([row for row in rows if row["skipped"]]) > 50
    assert stats == [
        "750 host-broker host-broker /run/host-broker",
        "660 host-broker host-broker /run/host-broker/broker.sock",
        "640 root host-broker /etc/host-broker/secret",
    ]
    assert ran == "ran", log
    assert json.loads(report)["ready"] is True, log

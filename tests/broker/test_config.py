# SPDX-License-Identifier: Apache-2.0
"""Settings, ceiling and secrets on the disk: who may have written them, and what is in force."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import auth, ceiling, config, startup
from broker.ceiling import MAX_CEILING_BYTES, clamp
from broker.config import FileRefusedError, Problem, Settings
from broker.model import Access, Confinement, Reason, Root
from tests.support.kernel import require, require_root

STRANGER = 12345


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, since socket paths are; private, since its parents are looked at."""
    directory = Path(tempfile.mkdtemp(prefix="hb"))
    yield directory
    shutil.rmtree(directory)


def environment(home: Path) -> dict[str, str]:
    return {
        "XDG_CONFIG_HOME": f"{home}/c",
        "XDG_RUNTIME_DIR": f"{home}/r",
        "XDG_STATE_HOME": f"{home}/s",
    }


def load(home: Path, text: str | None = None) -> Settings:
    directory = home / "c" / "host-broker"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if text is not None:
        write(directory / "broker.toml", text)
    return config.load_settings(environ=environment(home), mode="user")


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


@pytest.fixture
def settings(home: Path) -> Settings:
    settings = load(home)
    config.init_directories(settings)
    return settings


# --- a file that decides --------------------------------------------------------------------------

Change = Callable[[Path], object]


def read(path: Path, **options: object) -> bytes:
    return config.read_owned_file(path, "file", max_bytes=100, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 100, b"\0\xff"])
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o444, 0o755])
def test_a_file_that_only_its_owner_can_write_is_read(
    home: Path, content: bytes, mode: int
) -> None:
    assert read(write(home / "file", content, mode)) == content


def test_a_relative_path_and_a_linked_directory_are_followed_to_where_they_lead(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "real").mkdir(mode=0o700)
    write(home / "real" / "file", "x")
    (home / "link").symlink_to("real")
    assert read(home / "link" / "file") == b"x"
    monkeypatch.chdir(home)
    assert read(Path("real/file")) == b"x"


def as_link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to("target")


def as_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def as_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


@pytest.mark.parametrize(
    ("change", "problem", "told"),
    [
        (lambda path: path.unlink(), Problem.MISSING, "does not exist"),
        (lambda path: shutil.rmtree(path.parent), Problem.MISSING, "does not exist"),
        (as_link, Problem.SYMLINK, "symbolic link"),
        (as_loop, Problem.SYMLINK, "symbolic link"),
        (as_fifo, Problem.NOT_REGULAR, "not a regular file"),
        (as_socket, Problem.UNREADABLE, "No such device or address"),
        (as_directory, Problem.NOT_REGULAR, "not a regular file"),
        (lambda path: path.chmod(0o620), Problem.WRITABLE_BY_OTHERS, "mode 0620"),
        (lambda path: path.chmod(0o602), Problem.WRITABLE_BY_OTHERS, "mode 0602"),
        (lambda path: path.parent.chmod(0o770), Problem.WRITABLE_BY_OTHERS, "mode 0770"),
        (lambda path: path.parent.chmod(0o707), Problem.WRITABLE_BY_OTHERS, "mode 0707"),
        (lambda path: path.parent.parent.chmod(0o777), Problem.WRITABLE_BY_OTHERS, "mode 0777"),
        (lambda path: path.write_bytes(b"x" * 101), Problem.TOO_LARGE, "larger than 100"),
    ],
)
def test_any_other_file_is_refused_with_what_is_wrong_and_the_fix(
    home: Path, change: Change, problem: Problem, told: str
) -> None:
    (home / "up").mkdir(mode=0o700)
    (home / "up" / "in").mkdir(mode=0o700)
    path = write(home / "up" / "in" / "file", "x")
    assert read(path) == b"x"
    change(path)
    with pytest.raises(FileRefusedError, match=told) as refused:
        read(path)
    assert refused.value.problem is problem
    assert refused.value.fix
    assert f"cannot use file '{path}'" in str(refused.value)


def test_a_group_may_write_further_up_and_anybody_where_names_stick(home: Path) -> None:
    (home / "up").mkdir()
    (home / "up" / "in").mkdir(mode=0o700)
    path = write(home / "up" / "in" / "file", "x")
    for mode in (0o770, 0o1777):
        (home / "up").chmod(mode)
        assert read(path) == b"x"
    (home / "up" / "in").chmod(0o1777)
    assert read(path) == b"x"


@pytest.mark.parametrize("which", ["file", "directory", "directory above"])
def test_what_belongs_to_another_user_is_refused(home: Path, which: str) -> None:
    require_root()
    (home / "up").mkdir(mode=0o755)
    (home / "up" / "in").mkdir(mode=0o755)
    path = write(home / "up" / "in" / "file", "x", 0o644)
    assert read(path) == b"x"
    steps = ["file", "directory", "directory above"].index(which)
    os.chown([path, *path.parents][steps], STRANGER, STRANGER)
    with pytest.raises(FileRefusedError, match=f"uid {STRANGER}") as refused:
        read(path)
    assert refused.value.problem is Problem.WRONG_OWNER


@pytest.mark.parametrize(
    ("mode", "group", "readers", "fine"),
    [
        (0o600, None, None, True),
        (0o400, None, None, True),
        (0o640, 0, None, True),  # what an ACL on a systemd credential looks like
        (0o640, STRANGER, STRANGER, True),
        (0o440, STRANGER, STRANGER, True),
        (0o640, STRANGER, None, False),
        (0o640, STRANGER, STRANGER + 1, False),
        (0o604, 0, STRANGER, False),
        (0o644, STRANGER, STRANGER, False),
        (0o650, STRANGER, STRANGER, False),
        (0o601, None, None, False),
    ],
)
def test_a_secret_is_read_by_its_owner_and_the_named_group_only(
    home: Path, mode: int, group: int | None, readers: int | None, fine: bool
) -> None:
    path = write(home / "file", "x", mode)
    if group is not None:
        require_root()
        os.chown(path, -1, group)
    if fine:
        assert read(path, secret=True, readers=readers) == b"x"
        return
    assert read(path) == b"x"  # the control: as no secret it would do
    with pytest.raises(FileRefusedError, match="others can read it") as refused:
        read(path, secret=True, readers=readers)
    assert refused.value.problem is Problem.READABLE_BY_OTHERS


def test_no_descriptor_is_left_by_a_refusal(home: Path) -> None:
    path = write(home / "file", "x", 0o666)
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        with pytest.raises(FileRefusedError):
            read(path)
    home.chmod(0o777)
    with pytest.raises(FileRefusedError):
        read(path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


# --- broker.toml ----------------------------------------------------------------------------------


def test_a_users_broker_is_where_xdg_says(home: Path) -> None:
    settings = load(home)
    assert settings == Settings(
        mode="user",
        config_dir=home / "c/host-broker",
        state_dir=home / "s/host-broker",
        scratch_dir=home / "s/host-broker/tmp",
        socket=f"{home}/r/host-broker/broker.sock",
    )
    assert settings.audit_dir == home / "s/host-broker/audit"
    assert settings.runtime_dir == home / "r/host-broker"
    assert (settings.drain_ms, settings.max_connections, settings.cgroup) == (30_000, 256, "auto")
    for path, name in [
        (settings.ceiling_file, "ceiling.toml"),
        (settings.settings_file, "broker.toml"),
        (settings.secret_file, "secret"),
        (settings.next_secret_file, "secret.next"),
        (settings.client_header_file, "client.header"),
        (settings.kill_switch, "disabled"),
    ]:
        assert path == settings.config_dir / name


def test_without_xdg_it_is_below_the_home_directory_and_tmp() -> None:
    environ = {"XDG_CONFIG_HOME": "relative", "XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": "./x"}
    places = config._user_places(environ)
    assert places.config_dir == Path.home() / ".config/host-broker"
    assert places.state_dir == Path.home() / ".local/state/host-broker"
    assert places.runtime_dir == Path(f"/tmp/host-broker-{os.geteuid()}")


def test_the_systems_broker_is_where_the_unit_puts_it(home: Path) -> None:
    settings = config.load_settings(environ={}, mode="system", config_dir=home)
    assert settings.mode == "system"
    assert settings.config_dir == home
    assert str(settings.state_dir) == "/var/lib/host-broker"
    assert str(settings.scratch_dir) == "/var/lib/host-broker/tmp"
    assert settings.socket == "/run/host-broker/broker.sock"


def test_every_setting_can_be_written(home: Path) -> None:
    settings = load(
        home,
        f"""
        socket = "{home}/x/b.sock"
        socket_group = "root"
        tcp = "[::1]:8766"
        state_dir = "{home}/st"
        scratch_dir = "{home}/sc"
        drain_ms = 0
        max_connections = 4096
        cgroup = "none"
        """,
    )
    assert settings == Settings(
        mode="user",
        config_dir=home / "c/host-broker",
        state_dir=home / "st",
        scratch_dir=home / "sc",
        socket=f"{home}/x/b.sock",
        socket_group=0,
        tcp="[::1]:8766",
        drain_ms=0,
        max_connections=4096,
        cgroup="none",
    )


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('sockt = "/run/x"', "'sockt' is not a setting", "did you mean 'socket'?"),
        ("frobnicate = 1", "'frobnicate' is not a setting", "known: socket"),
        ("[audit]\nsegment = 1", "'audit' is not a setting", "known"),
        ("socket = 7", "'socket' is '7'", "text in quotes"),
        ('socket = ""', "'socket' is ''", "text in quotes"),
        ('socket = "/run/x\\u0000y"', "'socket' is", "text in quotes"),
        ('socket = "broker.sock"', "'socket' is 'broker.sock'", "absolute path"),
        ('state_dir = "~/x"', "'state_dir' is '~/x'", "absolute path"),
        ('state_dir = "/srv/../etc"', "'state_dir' is", "without '..'"),
        ('socket_group = "no such group"', "which no group is called", "groupadd"),
        ("drain_ms = -1", "'drain_ms' is '-1'", "from 0 to 600000"),
        ("drain_ms = 600001", "'drain_ms' is '600001'", "from 0 to 600000"),
        ("drain_ms = true", "'drain_ms' is 'True'", "whole number"),
        ("drain_ms = 1.5", "'drain_ms' is '1.5'", "whole number"),
        ('drain_ms = "1"', "'drain_ms' is '1'", "whole number"),
        ("max_connections = 0", "'max_connections' is '0'", "from 1 to 4096"),
        ("max_connections = 4097", "'max_connections' is '4097'", "from 1 to 4096"),
        ('cgroup = "always"', "'cgroup' is 'always'", '"auto" or "none"'),
        ("cgroup = true", "'cgroup' is 'True'", '"auto" or "none"'),
        ("socket = ", "not TOML", "correct it"),
        ("[" * 5000, "not TOML", "correct it"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_the_fix(
    home: Path, text: str, what: str, fix: str
) -> None:
    with pytest.raises(startup.SettingsRefusedError) as refused:
        load(home, text)
    assert what in str(refused.value)
    assert f"{home}/c/host-broker/broker.toml" in str(refused.value)
    assert fix in refused.value.fix


def test_settings_that_others_can_write_or_that_are_not_utf8_are_refused(home: Path) -> None:
    path = load(home, "").settings_file
    path.chmod(0o666)
    with pytest.raises(startup.SettingsRefusedError, match="others can write it"):
        config.load_settings(environ=environment(home), mode="user")
    write(path, b"socket = '\xff'")
    with pytest.raises(startup.SettingsRefusedError, match="not TOML"):
        config.load_settings(environ=environment(home), mode="user")
    write(path, b"#" * (config.MAX_SETTINGS_BYTES + 1))
    with pytest.raises(startup.SettingsRefusedError, match="larger than 65536"):
        config.load_settings(environ=environment(home), mode="user")


def test_a_socket_path_fits_sun_path_or_is_refused_with_both_numbers(home: Path) -> None:
    room = 107 - len(f"{home}/")
    assert len(load(home, f'socket = "{home}/{"x" * room}"').socket) == 107
    with pytest.raises(startup.SocketPathTooLongError, match=r"is 108 bytes; unix\(7\) allows 107"):
        load(home, f'socket = "{home}/{"x" * (room + 1)}"')
    with pytest.raises(startup.SocketPathTooLongError, match="is 108 bytes"):
        load(home, f'socket = "{home}/{"é" * (room // 2)}{"x" * (room % 2 + 1)}"')
    # The number is the kernel's: bind(2) takes 107 and no more.
    for length, fine in ((107, True), (108, False)):
        with socket.socket(socket.AF_UNIX) as sock:
            name = str(home / ("x" * (length - len(f"{home}/"))))
            if fine:
                sock.bind(name)
            else:
                with pytest.raises(OSError, match="AF_UNIX path too long"):
                    sock.bind(name)


def test_scratch_goes_where_a_socket_name_still_fits(home: Path) -> None:
    fits = home / ("x" * (config.SCRATCH_MAX_BYTES - len(f"{home}/")))
    assert load(home, f'scratch_dir = "{fits}"').scratch_dir == fits
    with pytest.raises(startup.SettingsRefusedError, match="is 45 bytes, more than 44"):
        load(home, f'scratch_dir = "{fits}x"')
    deep = "x" * 30
    assert load(home, f'state_dir = "{home}/{deep}"').scratch_dir == home / "r/host-broker/tmp"
    with pytest.raises(startup.SettingsRefusedError, match=r"is \d+ bytes, more than 44"):
        load(home, f'state_dir = "{home}/{deep}"\nsocket = "{home}/{deep}/s"')
    run_dir, name = "/01234567", "/vscode-ipc-01234567-89ab-cdef-0123-456789abcdef.sock"
    assert config.SCRATCH_MAX_BYTES + len(run_dir) + len(name) <= 107


@pytest.mark.parametrize("address", ["127.0.0.1:8765", "[::1]:8765", "127.0.0.1:0"])
def test_a_literal_loopback_address_is_taken(home: Path, address: str) -> None:
    assert load(home, f'tcp = "{address}"').tcp == address


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:1", "localhost:1", "10.1.2.3:1", "[fe80::1%lo]:1", "127.0.0.1"]
)
def test_any_other_address_is_refused_before_anything_listens(home: Path, address: str) -> None:
    with pytest.raises(startup.RoutableAddressError) as refused:
        load(home, f'tcp = "{address}"')
    assert refused.value.exit_status == 78
    assert address in str(refused.value)


# --- secrets --------------------------------------------------------------------------------------


def test_a_created_secret_opens_and_is_for_its_owner_only(settings: Settings) -> None:
    assert config.create_secret(settings)
    header = settings.client_header_file.read_bytes().removeprefix(b"Authorization: ").strip()
    assert config.load_secrets(settings).verify(header)
    for path in (settings.secret_file, settings.client_header_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = settings.secret_file.read_bytes()
    assert not config.create_secret(settings)
    assert settings.secret_file.read_bytes() == before
    assert sorted(path.name for path in settings.config_dir.iterdir()) == [
        "client.header",
        "secret",
    ]


def test_two_secrets_are_accepted_while_one_replaces_the_other(settings: Settings) -> None:
    old, new = auth.generate_secret(), auth.generate_secret()
    write(settings.secret_file, old)
    assert not config.load_secrets(settings).verify(f"Bearer {new}".encode())
    write(settings.next_secret_file, new)
    both = config.load_secrets(settings)
    assert both.verify(f"Bearer {old}".encode())
    assert both.verify(f"Bearer {new}".encode())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.unlink(), "it does not exist"),
        (as_link, "symbolic link"),
        (as_fifo, "not a regular file"),
        (lambda path: path.chmod(0o644), "others can read it (mode 0644)"),
        (lambda path: path.chmod(0o620), "others can write it (mode 0620)"),
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(b"hunter2-hunter2\n"), "it is not 32 bytes or more"),
        (lambda path: path.write_bytes(b"a" * 5000), "larger than 4096"),
    ],
)
def test_a_secret_that_is_none_or_not_kept_refuses_to_start(
    settings: Settings, change: Change, told: str
) -> None:
    config.create_secret(settings)
    shutil.copy(settings.secret_file, settings.next_secret_file)
    names = [settings.secret_file]
    if "exist" not in told:  # a missing secret.next is none
        names.append(settings.next_secret_file)
    for path in names:
        kept = path.read_bytes()
        change(path)
        with pytest.raises(startup.SecretRefusedError) as refused:
            config.load_secrets(settings)
        assert f"cannot use secret '{path}'" in str(refused.value)
        assert told in str(refused.value)
        assert refused.value.fix
        assert "hunter2" not in str(refused.value) + refused.value.fix
        path.unlink(missing_ok=True)
        write(path, kept)
        config.load_secrets(settings)


def test_root_provisions_for_the_account_of_the_service(home: Path) -> None:
    require_root()
    account = (STRANGER, STRANGER + 1)
    settings = load(home)
    made = config.init_directories(settings, account)
    assert len(made) == 4  # the configuration directory was there
    config.create_secret(settings, account)
    owners = {}
    for path in [*made, settings.secret_file, settings.client_header_file]:
        found = path.stat()
        owners[path.name] = (found.st_uid, found.st_gid, oct(stat.S_IMODE(found.st_mode)))
    assert owners["audit"] == owners["tmp"] == (*account, "0o700")
    assert (settings.runtime_dir.stat().st_uid, settings.runtime_dir.stat().st_gid) == account
    assert stat.S_IMODE(settings.runtime_dir.stat().st_mode) == 0o750
    assert owners["secret"] == owners["client.header"] == (0, STRANGER + 1, "0o640")


# --- the ceiling ----------------------------------------------------------------------------------


def test_roots_are_where_they_really_are_and_both_spellings_work(
    home: Path, settings: Settings
) -> None:
    (home / "real" / "sub").mkdir(parents=True)
    (home / "link").symlink_to("real")
    write(settings.ceiling_file, f'read = ["{home}/link/sub", "{home}/real"]', 0o644)
    ceiling = config.load_ceiling(settings)
    real = os.fsencode(home / "real")
    assert ceiling.roots == (Root(real, Access.READ),)
    assert ceiling.warnings == ()
    for spelling in ("link/sub/x", "real/sub/x"):
        asked = Root(os.fsencode(home / spelling), Access.READ)
        assert clamp([asked], ceiling) == (Root(real + b"/sub/x", Access.READ),)


def test_one_missing_root_of_two_hundred_is_reported_and_the_others_stay(
    home: Path, settings: Settings
) -> None:
    names = [home / "d" / str(number) for number in range(200)]
    for name in names:
        name.mkdir(parents=True)
    names[77].rmdir()
    listed = ", ".join(f'"{name}"' for name in names)
    write(settings.ceiling_file, f"read = [{listed}]")
    ceiling = config.load_ceiling(settings)
    assert ceiling.deny_code is None
    assert len(ceiling.roots) == 200
    assert len(ceiling.warnings) == 1
    assert str(names[77]) in ceiling.warnings[0]
    assert "does not exist" in ceiling.warnings[0]


def test_without_any_existing_root_everything_is_denied(home: Path, settings: Settings) -> None:
    write(settings.ceiling_file, f'read = ["{home}/nope"]\nexec = ["{home}/file/x"]')
    write(home / "file", "")
    ceiling = config.load_ceiling(settings)
    assert (ceiling.deny_code, ceiling.roots) == (Reason.CEILING_EMPTY, ())
    assert "no usable root: none of 2 exists" in str(ceiling.deny_reason)


@pytest.mark.parametrize(
    ("change", "reason", "told"),
    [
        (lambda path: path.unlink(), Reason.CEILING_MISSING, "does not exist"),
        (lambda path: path.write_bytes(b""), Reason.CEILING_EMPTY, "no read, write or exec"),
        (lambda path: path.write_bytes(b"read = ["), Reason.CEILING_MALFORMED, "not TOML"),
        (lambda path: path.write_bytes(b"\xff"), Reason.CEILING_MALFORMED, "not UTF-8"),
        (lambda path: path.write_bytes(b"raed = []"), Reason.CEILING_MALFORMED, "'read'"),
        (as_link, Reason.CEILING_SYMLINK, "symbolic link"),
        (as_fifo, Reason.CEILING_MALFORMED, "not a regular file"),
        (as_directory, Reason.CEILING_MALFORMED, "not a regular file"),
        (as_socket, Reason.CEILING_UNREADABLE, "No such device"),
        (lambda path: path.chmod(0o664), Reason.CEILING_WRITABLE_BY_OTHERS, "mode 0664"),
        (lambda path: path.parent.chmod(0o777), Reason.CEILING_WRITABLE_BY_OTHERS, "mode 0777"),
        (
            lambda path: os.truncate(path, MAX_CEILING_BYTES + 1),
            Reason.CEILING_MALFORMED,
            "larger than",
        ),
    ],
)
def test_a_ceiling_that_is_missing_wrong_or_not_kept_denies_everything_and_says_why(
    home: Path, settings: Settings, change: Change, reason: Reason, told: str
) -> None:
    write(settings.ceiling_file, f'write = ["{home}/w"]', 0o644)
    (home / "w").mkdir()
    assert config.load_ceiling(settings).deny_code is None
    change(settings.ceiling_file)
    ceiling = config.load_ceiling(settings)
    assert (ceiling.deny_code, ceiling.roots) == (reason, ())
    assert told in str(ceiling.deny_reason)


def test_a_ceiling_of_another_user_denies_everything(home: Path, settings: Settings) -> None:
    require_root()
    write(settings.ceiling_file, f'read = ["{home}/w"]', 0o644)
    (home / "w").mkdir()
    os.chown(settings.ceiling_file, STRANGER, -1)
    ceiling = config.load_ceiling(settings)
    assert ceiling.deny_code is Reason.CEILING_WRONG_OWNER
    assert f"uid {STRANGER}" in str(ceiling.deny_reason)


PACKAGE = Path(config.__file__).parents[1]


@pytest.mark.parametrize(
    ("key", "root", "reaches"),
    [
        ("read", "/", "settings and secret"),
        ("read", "{home}", "settings and secret"),
        ("read", "{home}/c", "settings and secret"),
        ("exec", "{home}/c/host-broker", "settings and secret"),
        ("read", "{home}/c/host-broker/secret", "settings and secret"),
        ("read", "{home}/alias", "settings and secret"),
        ("read", "{home}/s/host-broker/audit", "records"),
        ("write", "{home}/s", "records"),
        ("read", "{home}/s/host-broker/tmp", "records"),
        ("write", "{home}/r", "socket"),
        ("write", "{home}/r/host-broker", "socket"),
        ("write", f"{PACKAGE}/broker", "own code"),
        ("write", f"{PACKAGE}/sandbox", "own code"),
        ("write", os.path.dirname(os.__file__), "own code"),
    ],
)
def test_a_root_that_reaches_what_rules_the_runs_denies_everything(
    home: Path, settings: Settings, key: str, root: str, reaches: str
) -> None:
    config.create_secret(settings)
    (home / "alias").symlink_to("c")
    (home / "ok").mkdir()
    root = root.format(home=home)
    write(settings.ceiling_file, f'{key} = ["{home}/ok", "{root}"]')
    if "code" in reaches:
        require(Path(root).stat().st_uid == os.geteuid(), f"{root} as our own file")
    ceiling = config.load_ceiling(settings)
    assert (ceiling.deny_code, ceiling.roots) == (Reason.CEILING_MALFORMED, ())
    assert f"reaches the broker's {reaches}" in str(ceiling.deny_reason)
    write(settings.ceiling_file, f'{key} = ["{home}/ok"]')
    assert config.load_ceiling(settings).deny_code is None


@pytest.mark.parametrize(
    ("key", "root"),
    [
        ("read", "{home}/r"),
        ("exec", "{home}/r"),
        ("write", "{home}/cc"),
        ("read", f"{PACKAGE}"),
        ("exec", f"{PACKAGE}/broker"),
        ("read", os.path.dirname(os.__file__)),
    ],
)
def test_a_root_beside_them_or_read_only_over_code_is_fine(
    home: Path, settings: Settings, key: str, root: str
) -> None:
    (home / "cc").mkdir()
    write(settings.ceiling_file, f'{key} = ["{root.format(home=home)}"]')
    ceiling = config.load_ceiling(settings)
    assert ceiling.deny_code is None, ceiling.deny_reason
    assert len(ceiling.roots) == 1


def test_an_unconfined_ceiling_may_reach_everything_and_says_so(settings: Settings) -> None:
    write(
        settings.ceiling_file,
        'write = ["/"]\nconfinement = "unconfined"\ntrusted_single_operator = true',
    )
    ceiling = config.load_ceiling(settings)
    assert ceiling.deny_code is None
    assert ceiling.confinement is Confinement.UNCONFINED


# --- directories ----------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_directories_are_made_with_exact_modes_whatever_the_umask(home: Path, umask: int) -> None:
    settings = config.load_settings(environ=environment(home), mode="user")
    for parent in ("c", "r", "s"):
        (home / parent).mkdir()
    before = os.umask(umask)
    try:
        made = config.init_directories(settings)
    finally:
        os.umask(before)
    modes = {str(path.relative_to(home)): stat.S_IMODE(path.stat().st_mode) for path in made}
    assert modes == {
        "c/host-broker": 0o700,
        "r/host-broker": 0o750,
        "s/host-broker": 0o700,
        "s/host-broker/audit": 0o700,
        "s/host-broker/tmp": 0o700,
    }
    assert config.init_directories(settings) == []


def test_a_directory_that_is_too_open_is_closed_and_a_narrower_one_stays(
    settings: Settings,
) -> None:
    settings.audit_dir.chmod(0o777)
    settings.runtime_dir.chmod(0o700)
    assert config.init_directories(settings) == []
    assert stat.S_IMODE(settings.audit_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(settings.runtime_dir.stat().st_mode) == 0o700


def test_what_stands_in_the_way_is_named(home: Path, settings: Settings) -> None:
    settings.scratch_dir.rmdir()
    settings.scratch_dir.symlink_to(home)
    with pytest.raises(startup.SettingsRefusedError, match=str(settings.scratch_dir)):
        config.init_directories(settings)
    settings.scratch_dir.unlink()
    write(settings.scratch_dir, "")
    with pytest.raises(startup.SettingsRefusedError, match=os.strerror(errno.ENOTDIR)):
        config.init_directories(settings)


def test_a_directory_of_another_user_is_not_used(settings: Settings) -> None:
    require_root()
    os.chown(settings.state_dir, STRANGER, -1)
    with pytest.raises(startup.SettingsRefusedError, match=f"belongs to uid {STRANGER}"):
        config.init_directories(settings)


# --- the man pages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("host-broker.toml.5", list(config._KEYS)),
        ("host-broker-ceiling.5", [*ceiling._KEYS[:-1], *ceiling._LIMIT_RANGES]),
    ],
)
def test_the_man_page_names_every_key_and_no_other(page: str, keys: list[str]) -> None:
    text = (PACKAGE / "docs" / "man" / page).read_text()
    items = re.findall(r"^\.It Cm (.+)$", text, re.MULTILINE)
    named = [name for item in items for name in re.split(r" , | No = ", item) if name in item]
    assert sorted(name for name in named if re.fullmatch("[a-z_]+", name)) == sorted(keys)

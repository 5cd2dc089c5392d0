# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: their mode at every moment, what may stand at the path, only loopback."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import listen
from broker.startup import (
    AlreadyRunningError,
    RoutableAddressError,
    SocketDirectoryError,
    SocketOccupiedError,
    SocketPathTooLongError,
)
from tests.support.kernel import require_root
from tests.support.process import as_ordinary_user, ordinary_directory


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    place = tmp_path / "run"
    place.mkdir(mode=0o750)
    directory_fd, name = listen.open_socket_directory(str(place / "broker.sock"))
    assert name == "broker.sock"
    yield place, directory_fd
    os.close(directory_fd)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
def test_the_socket_is_0660_whatever_the_umask(directory: tuple[Path, int], umask: int) -> None:
    place, directory_fd = directory
    before = os.umask(umask)
    try:
        listener = listen.listen_unix(directory_fd, "broker.sock", os.getegid())
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    with listener.sock:
        assert stat.S_IMODE((place / "broker.sock").lstat().st_mode) == 0o660
        assert os.listdir(place) == ["broker.sock"]


def test_no_name_in_the_directory_is_ever_wider_than_0660(directory: tuple[Path, int]) -> None:
    place, directory_fd = directory
    seen: set[tuple[str, int]] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for entry in os.scandir(place):
                try:
                    seen.add((entry.name, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)))
                except FileNotFoundError:
                    continue

    watcher = threading.Thread(target=watch)
    before = os.umask(0)
    watcher.start()
    try:
        for _ in range(200):
            listen.listen_unix(directory_fd, "broker.sock", None).sock.close()
    finally:
        done.set()
        watcher.join()
        os.umask(before)
    assert seen
    assert {mode for name, mode in seen if name == "broker.sock"} == {0o660}
    assert {mode for _, mode in seen} <= {0o600, 0o660}


def test_a_stale_socket_is_replaced_and_a_live_one_hands_over(directory: tuple[Path, int]) -> None:
    place, directory_fd = directory
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(place / "broker.sock"))
    assert not answers(place / "broker.sock")
    with listen.listen_unix(directory_fd, "broker.sock", None).sock:
        assert answers(place / "broker.sock")


@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "fifo"])
def test_what_is_not_a_socket_is_refused_and_left_alone(
    directory: tuple[Path, int], kind: str
) -> None:
    place, directory_fd = directory
    path = place / "broker.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to(place / "elsewhere")
    else:
        os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(SocketOccupiedError) as refused:
        listen.listen_unix(directory_fd, "broker.sock", None)
    assert refused.value.exit_status == 73
    assert path.lstat() == before
    assert os.listdir(place) == ["broker.sock"]


def test_only_our_own_inode_is_unlinked(directory: tuple[Path, int]) -> None:
    place, directory_fd = directory
    first = listen.listen_unix(directory_fd, "broker.sock", None)
    second = listen.listen_unix(directory_fd, "broker.sock", None)
    with first.sock, second.sock:
        assert not first.unlink()
        assert answers(place / "broker.sock")
        assert second.unlink()
        assert not second.unlink()
        assert os.listdir(place) == []


def test_the_socket_leaves_a_directory_that_a_run_has_shut() -> None:
    with ordinary_directory() as place:

        def left() -> tuple[bool, list[str], int]:
            directory_fd = os.open(place, os.O_RDONLY)
            with (listener := listen.listen_unix(directory_fd, "broker.sock", None)).sock:
                place.chmod(0)
                removed = listener.unlink()
                return removed, os.listdir(place), stat.S_IMODE(place.stat().st_mode)

        assert as_ordinary_user(left) == (True, [], 0o750)


def test_107_bytes_serve_and_108_are_refused_with_both_numbers(tmp_path: Path) -> None:
    place = tmp_path / "d"
    fits = place / ("x" * (107 - len(str(place)) - 1))
    assert len(str(fits)) == 107
    directory_fd, name = listen.open_socket_directory(str(fits))
    with listen.listen_unix(directory_fd, name, None).sock:
        assert answers(fits)
    os.close(directory_fd)
    with pytest.raises(SocketPathTooLongError, match=r"is 108 bytes; unix\(7\) allows 107") as long:
        listen.open_socket_directory(f"{fits}x")
    assert long.value.exit_status == 80


def test_a_long_path_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SocketPathTooLongError):
        listen.open_socket_directory(str(tmp_path / "new" / ("x" * 108)))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        (0o700, 0o700),
        (0o750, 0o750),
        (0o755, 0o755),
        (0o2755, 0o2755),
        (0o775, 0o750),
        (0o777, 0o750),
        (0o1777, 0o750),
        (0o500, 0o750),
        (0, 0o750),
    ],
)
def test_a_directory_of_ours_gets_its_mode_back(mode: int, after: int) -> None:
    """A run can change it (chmod(2)), and must not keep the next broker from starting."""
    with ordinary_directory() as place:

        def opened() -> int:
            run = place / "host-broker"
            run.mkdir()
            run.chmod(mode)
            directory_fd, _ = listen.open_socket_directory(str(run / "s"))
            os.close(listen.lock(directory_fd, "there"))
            os.close(directory_fd)
            return stat.S_IMODE(run.stat().st_mode)

        assert as_ordinary_user(opened) == after


def refusal(path: Path) -> str:
    with pytest.raises(SocketDirectoryError) as refused:
        listen.open_socket_directory(str(path))
    assert refused.value.exit_status == 81
    assert refused.value.fix
    return str(refused.value)


def test_a_directory_of_another_or_of_the_system_is_refused_and_left_alone(tmp_path: Path) -> None:
    require_root()
    for name, owner, mode in (
        ("host-broker", 12345, 0o750), ("srv", 0, 0o777), ("tmp", 0, 0o1777),
    ):  # fmt: skip
        place = tmp_path / name
        place.mkdir()
        place.chmod(mode)
        os.chown(place, owner, -1)
        assert repr(str(place)) in refusal(place / "s")
        assert stat.S_IMODE(place.stat().st_mode) == mode


def test_a_directory_of_root_that_others_can_write_is_refused() -> None:
    assert "mode 1777" in as_ordinary_user(lambda: refusal(Path("/tmp/s")))


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o750)
    (tmp_path / "run").symlink_to("real")
    assert "Not a directory" in refusal(tmp_path / "run" / "s")
    assert os.listdir(tmp_path / "real") == []


@pytest.mark.parametrize(("mode", "fine"), [(0o775, True), (0o1777, True), (0o777, False)])
def test_nobody_else_may_replace_a_directory_above(tmp_path: Path, mode: int, fine: bool) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    (tmp_path / "link").symlink_to("above")
    for path in (above / "run" / "s", tmp_path / "link" / "run" / "s", above / "b" / "run" / "s"):
        if path.parts[-3] == "b":
            (above / "b").mkdir()
        if fine:
            os.close(listen.open_socket_directory(str(path))[0])
        else:
            assert f"'{above}' has owner" in refusal(path)
            assert not path.parent.exists()


def test_a_directory_above_of_another_account_is_refused(tmp_path: Path) -> None:
    require_root()
    above = tmp_path / "above"
    above.mkdir()
    os.chown(above, 12345, -1)
    assert "has owner 12345" in refusal(above / "run" / "s")


def test_a_missing_parent_is_an_error_that_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(SocketDirectoryError, match="no/such"):
        listen.open_socket_directory(str(tmp_path / "no" / "such" / "s"))


def test_the_lock_keeps_a_second_instance_out_until_the_first_dies(
    directory: tuple[Path, int],
) -> None:
    place, directory_fd = directory
    program = (
        "import os, signal, sys; from broker import listen; "
        "fd, name = listen.open_socket_directory(sys.argv[1]); listen.lock(fd, 'there'); "
        "print('locked', flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", program, str(place / "broker.sock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(AlreadyRunningError) as second:
            listen.lock(directory_fd, str(place))
        assert second.value.exit_status == 75
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.close(listen.lock(directory_fd, str(place)))


def test_a_lock_that_a_run_has_shut_is_opened_again() -> None:
    with ordinary_directory() as place:

        def locked() -> int:
            path = place / "broker.lock"
            path.touch()
            path.chmod(0)
            directory_fd = os.open(place, os.O_RDONLY)
            os.close(listen.lock(directory_fd, str(place)))
            return stat.S_IMODE(path.stat().st_mode)

        assert as_ordinary_user(locked) == 0o600


@pytest.mark.parametrize("what", ["a directory", "a symlink", "root's"])
def test_a_lock_that_is_not_ours_is_refused_and_left_alone(what: str) -> None:
    with ordinary_directory() as place:
        path = place / "broker.lock"
        if what == "a directory":
            path.mkdir(mode=0)
        elif what == "a symlink":
            path.symlink_to("elsewhere")
        else:
            require_root()
            path.touch(0o600)
        before = path.lstat()

        def refused() -> str:
            directory_fd = os.open(place, os.O_RDONLY)
            with pytest.raises(SocketDirectoryError, match=r"cannot open broker\.lock") as error:
                listen.lock(directory_fd, str(place))
            return error.value.fix

        assert as_ordinary_user(refused)
        assert path.lstat() == before
        assert os.listdir(place) == ["broker.lock"]


REFUSED = [
    "0.0.0.0:0",
    "[::]:0",
    "192.0.2.7:80",
    "127.0.0.2:80",
    "127.1:80",
    "2130706433:80",
    "[::ffff:127.0.0.1]:80",
    "[fe80::1]:80",
    "localhost:80",
    "broker.example:80",
    "::1:80",
    "[127.0.0.1]:80",
    "127.0.0.1",
    "127.0.0.1:",
    "127.0.0.1:http",
    "127.0.0.1:65536",
    "127.0.0.1:-1",
    " 127.0.0.1:80",
    "",
    "*:80",
]


@pytest.mark.parametrize("address", REFUSED)
def test_only_a_literal_loopback_address_is_taken(address: str) -> None:
    with pytest.raises(RoutableAddressError) as refused:
        listen.listen_tcp(address)
    assert refused.value.exit_status == 78
    assert repr(address) in str(refused.value)
    assert "127.0.0.1:PORT" in refused.value.fix


def test_a_refused_address_of_this_host_is_told_with_its_interface() -> None:
    with pytest.raises(RoutableAddressError, match=r"127\.0\.0\.1 on lo"):
        listen.parse_loopback("0.0.0.0:80")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_loopback_listens_where_it_says(host: str) -> None:
    with listen.listen_tcp(f"{host}:0") as sock:
        assert sock.getsockname()[0] == host.strip("[]")
        with pytest.raises(AlreadyRunningError, match="in use"):
            listen.listen_tcp(f"{host}:{sock.getsockname()[1]}")

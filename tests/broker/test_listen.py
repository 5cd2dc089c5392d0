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
    ("mode", "fine"), [(0o700, True), (0o755, True), (0o770, False), (0o1777, False)]
)
def test_a_directory_others_can_write_is_refused(tmp_path: Path, mode: int, fine: bool) -> None:
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(mode)
    if fine:
        os.close(listen.open_socket_directory(str(place / "s"))[0])
        return
    with pytest.raises(SocketDirectoryError, match=f"mode {mode:04o}") as refused:
        listen.open_socket_directory(str(place / "s"))
    assert refused.value.exit_status == 81


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

# SPDX-License-Identifier: Apache-2.0
"""`confine --reach` finds whichever way is left to a socket, and none when confined."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Final

import pytest

import sandbox
from tests.proof.outer import Refusal, attach, equals, equals_64

EXIT_USAGE: Final = 90
SOCKET, CONNECT, SENDTO, SENDMSG, SOCKETPAIR = 41, 42, 44, 46, 53
UNIX, STREAM, DATAGRAM = 1, 1, 2

# Class, how `--reach` finds it bare.
PLANTED = {
    "stream": "REACHED stream",
    "datagram": "REACHED datagram",
    "seqpacket": "REACHED seqpacket",
    "abstract-stream": "REACHED stream",
    "abstract-datagram": "REACHED datagram",
    "deep": "REACHED stream",
    "missing": "REFUSED ENOENT",
    "missing-abstract": "REFUSED ECONNREFUSED",
    "not-a-socket": "REFUSED ECONNREFUSED",
    "below-a-file": "REFUSED ENOTDIR",
    "too-long": "REFUSED ENAMETOOLONG",
}


def listener(kind: int, name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(name)
    if kind != socket.SOCK_DGRAM:
        made.listen()
    return made


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[str]:
    """The lines for `--reach`: sockets of every kind, and names that lead nowhere."""
    abstract = f"reach-{tmp_path}"
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    (tmp_path / "file").touch()
    with ExitStack() as stack:
        with chdir(tmp_path):
            stack.enter_context(listener(socket.SOCK_STREAM, "stream"))
            stack.enter_context(listener(socket.SOCK_DGRAM, "datagram"))
            stack.enter_context(listener(socket.SOCK_SEQPACKET, "seqpacket"))
            stack.enter_context(listener(socket.SOCK_STREAM, f"\0{abstract}-s"))
            stack.enter_context(listener(socket.SOCK_DGRAM, f"\0{abstract}-d"))
        with chdir(deep):
            stack.enter_context(listener(socket.SOCK_STREAM, "socket"))
        names = {
            "stream": tmp_path / "stream",
            "datagram": tmp_path / "datagram",
            "seqpacket": tmp_path / "seqpacket",
            "abstract-stream": f"{abstract}-s",
            "abstract-datagram": f"{abstract}-d",
            "deep": deep / "socket",
            "missing": tmp_path / "missing",
            "missing-abstract": f"{abstract}-missing",
            "not-a-socket": tmp_path / "file",
            "below-a-file": tmp_path / "file" / "socket",
            "too-long": tmp_path / ("n" * 200),
        }
        yield "".join(line(name, str(where)) for name, where in names.items())


def line(name: str, where: str) -> str:
    kind = "path" if where.startswith("/") else "abstract"
    return f"{name} {kind} {where.encode().hex()}\n"


def reach(
    text: str, *around: str, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*around, str(sandbox.helper_path()), "--reach"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=before,
    )


def answers(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert (done.returncode, done.stderr) == (0, "")
    return dict(found.split(" ", 1) for found in done.stdout.splitlines())


def test_bare_it_reaches_all_that_is_there(endpoints: str) -> None:
    assert answers(reach(endpoints)) == PLANTED


def test_confined_it_reaches_nothing(endpoints: str) -> None:
    helper = Path(sandbox.helper_path())
    around = (str(helper), "--baseline", "--exec", str(helper), "--")
    found = answers(reach(endpoints, *around))
    assert set(found) == set(PLANTED)
    assert {name: found[name] for name in PLANTED if PLANTED[name].startswith("REACHED")} == {
        name: "REFUSED EPERM" for name in PLANTED if PLANTED[name].startswith("REACHED")
    }
    assert not [name for name, answer in found.items() if answer.startswith("REACHED")]


def test_a_granted_directory_makes_no_socket_in_it_reachable(
    endpoints: str, tmp_path: Path
) -> None:
    helper = Path(sandbox.helper_path())
    around = (str(helper), "--baseline", "--exec", str(helper), "--rw", str(tmp_path), "--")
    assert "REACHED" not in reach(endpoints, *around).stdout


def test_addresses_are_never_printed(endpoints: str, tmp_path: Path) -> None:
    printed = reach(endpoints).stdout
    assert str(tmp_path) not in printed
    assert str(tmp_path).encode().hex() not in printed


NO_UNIX: Refusal = (SOCKET, equals(0, UNIX))
NO_UNIX_64 = (SOCKET, equals_64(0, UNIX))
NO_DATAGRAM_PAIR = (SOCKETPAIR, equals(1, DATAGRAM, 0xF))
NO_UNIX_PAIR_64 = (SOCKETPAIR, equals_64(0, UNIX))
NO_CONNECT: Refusal = (CONNECT, ())
NO_SENDTO: Refusal = (SENDTO, ())

# A filter with one hole, and the route that leads through it.
HOLES: dict[str, tuple[str, list[Refusal], str]] = {
    "64-bit family, stream": ("stream", [NO_UNIX_64], "stream-dirty"),
    "64-bit family, datagram": ("datagram", [NO_UNIX_64], "datagram-dirty"),
    "pairs": ("datagram", [NO_UNIX], "pair-connect"),
    "pairs, abstract": ("abstract-datagram", [NO_UNIX], "pair-connect"),
    "pairs that may only send": ("datagram", [NO_UNIX, NO_CONNECT], "pair-sendto"),
    "pairs that may only sendmsg": ("datagram", [NO_UNIX, NO_CONNECT, NO_SENDTO], "pair-sendmsg"),
    "raw pairs": ("datagram", [NO_UNIX, NO_DATAGRAM_PAIR], "pair-raw"),
    "64-bit pairs": ("datagram", [NO_UNIX, NO_UNIX_PAIR_64], "pair-dirty"),
    "sending without connecting": ("datagram", [NO_CONNECT], "datagram-sendto"),
    "raw sockets": (
        "datagram",
        [(SOCKET, equals(1, STREAM, 0xF)), (SOCKET, equals(1, DATAGRAM, 0xF))],
        "raw",
    ),
}


@pytest.mark.parametrize(("name", "refusals", "route"), HOLES.values(), ids=HOLES)
def test_each_hole_of_a_filter_is_found(
    endpoints: str, name: str, refusals: list[Refusal], route: str
) -> None:
    found = answers(reach(endpoints, before=attach(refusals)))
    assert found[name] == f"REACHED {route}"


def test_pairs_that_keep_their_partner_reach_nothing(endpoints: str) -> None:
    """Stream and seqpacket pairs cannot be aimed anew, so only datagram pairs must be refused."""
    raw_pair = (SOCKETPAIR, equals(1, 3, 0xF))
    refusals = [NO_UNIX, NO_DATAGRAM_PAIR, raw_pair]
    found = answers(reach(endpoints, before=attach(refusals)))
    assert not [name for name, answer in found.items() if answer.startswith("REACHED")]


@pytest.mark.parametrize(
    "text",
    [
        "a\n",
        "a path\n",
        "a path \n",
        " path 61\n",
        "a path 6\n",
        "a path 6G\n",
        "a path 6A\n",
        "a path 610061\n",
        "a file 61\n",
        "A path 61\n",
        "a/b path 61\n",
        "a" * 64 + " path 61\n",
        "a path 61 61\n",
        "a path 61",
        "\n",
        "a path " + "61" * 4097 + "\n",
        "a path " + "61" * 10_000 + "\n",
        "a path 61\0\n",
    ],
)
def test_a_malformed_line_is_an_error_that_names_it(text: str) -> None:
    done = reach("good abstract 00\n" + text)
    assert done.returncode == EXIT_USAGE
    assert done.stdout == "good REFUSED ECONNREFUSED\n"
    assert "line 2 is not" in done.stderr
    assert "61" not in done.stderr


@pytest.mark.parametrize("text", ["", "a" * 63 + " path " + "61" * 4096 + "\n", "a abstract 00\n"])
def test_limits_are_inclusive_and_nothing_is_an_answer_too(text: str) -> None:
    assert len(answers(reach(text))) == text.count("\n")


def test_it_takes_no_arguments() -> None:
    done = subprocess.run(
        [str(sandbox.helper_path()), "--reach", "now"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert "--reach takes no arguments" in done.stderr

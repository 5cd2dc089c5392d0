# SPDX-License-Identifier: Apache-2.0
"""The bytes between broker and runner agree with csrc/runner.h."""

import re
from pathlib import Path

import pytest

from broker.model import Captured
from broker.runs import wire

HEADER = (Path(__file__).parents[2] / "csrc" / "runner.h").read_text()
SIZES = {"uint32_t": 4, "int32_t": 4, "int64_t": 8, "uint64_t": 8}


def struct_bytes(name: str) -> int:
    """The size of a C structure whose members need no padding (checked: each is aligned)."""
    body = re.search(rf"struct {name} {{(.*?)\n}};", HEADER, re.S)
    assert body
    offset = 0
    for kind, names in re.findall(r"^\s*(u?int\d+_t) ([^;]+);", body[1], re.M):
        for member in names.split(","):
            array = re.search(r"\[(\d+)\]", member)
            assert offset % SIZES[kind] == 0, f"{member} is not aligned"
            offset += SIZES[kind] * (int(array[1]) if array else 1)
    return offset


def request(**changes: object) -> wire.Request:
    fields: dict[str, object] = {
        "path": b"/bin/true", "argv": (b"true",), "env": [b"A=1"], "limits": [(4, 1, 1)],
        "stdin": b"in", "flags": 0, "umask": 0o22, "head_bytes": 10, "tail_bytes": 20,
        "timeout_ms": 5, "grace_ms": 6, "kill_on_limit": False, "has_cgroup": False,
    }  # fmt: skip
    return wire.Request(**(fields | changes))  # type: ignore[arg-type]


def test_structures_have_the_sizes_of_the_header() -> None:
    assert wire.REQUEST.size == struct_bytes("runner_request")
    assert wire.REPLY.size == struct_bytes("runner_reply")


def test_constants_are_those_of_the_header() -> None:
    for name, value in (("RUNNER_MAGIC", wire.MAGIC),):
        assert int(re.search(rf"{name} (0x[0-9a-f]+)U", HEADER)[1], 16) == value  # type: ignore[index]
    for reason in wire.WireReason:
        assert re.search(rf"RUNNER_{reason.name} = {reason.value},", HEADER), reason


def test_a_request_holds_limits_strings_and_input_in_this_order() -> None:
    data = request().encode()
    assert wire.REQUEST.unpack_from(data)[1] == len(data) - wire.REQUEST.size
    assert data[wire.REQUEST.size :] == wire.LIMIT.pack(4, 1, 1) + b"/bin/true\0true\0A=1\0in"


def test_a_reply_is_cut_into_its_four_parts() -> None:
    header = wire.REPLY.pack(
        wire.MAGIC, 1, 0, 0, 0, 42, 3, 1, 0, 0, 1, 0, -1, 7, 8, 9, 10, 100, 200, 2, 3, 4, 5
    )
    assert wire.reply_bytes(header) == 14
    reply = wire.decode_reply(header + b"ooOOOO" + b"eeeEEEEE")
    assert reply.stdout == Captured(b"oo", b"OOOO", 100)
    assert reply.stderr == Captured(b"eee", b"EEEEE", 200)
    assert (reply.pid, reply.orphans_killed, reply.drained) == (42, 3, True)


def test_another_magic_is_not_a_reply() -> None:
    with pytest.raises(wire.ReplyError):
        wire.decode_reply(bytes(wire.REPLY.size))

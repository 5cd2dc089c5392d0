# SPDX-License-Identifier: Apache-2.0
"""What the broker and a runner say to each other (csrc/runner.h), as bytes.  No I/O."""

from __future__ import annotations

import enum
import itertools
import struct
from typing import NamedTuple

from broker.model import Captured

MAGIC = 0x31524248
REQUEST = struct.Struct("=14I")
LIMIT = struct.Struct("=3Q")
REPLY = struct.Struct("=2I4i6Iq4Q2Q2I2I")

NET_NONE = 1
UNCONFINED = 4

CANCEL = b"C"


class WireReason(enum.IntEnum):
    EXITED = 1
    SIGNALED = 2
    TIMEOUT = 3
    OUTPUT_LIMIT = 4
    CANCELLED = 5
    SPAWN_FAILED = 6


class Request(NamedTuple):  # made for every run, like Reply: a tuple costs a third
    """One command.  Descriptors travel beside it: cwd, ruleset unless UNCONFINED, cgroup."""

    path: bytes
    argv: tuple[bytes, ...]
    env: list[bytes]
    limits: list[tuple[int, int, int]]
    stdin: bytes
    flags: int
    umask: int
    head_bytes: int
    tail_bytes: int
    timeout_ms: int
    grace_ms: int
    kill_on_limit: bool
    has_cgroup: bool

    def encode(self) -> bytes:
        limits = b"".join([LIMIT.pack(*limit) for limit in self.limits])
        strings = b"\0".join([self.path, *self.argv, *self.env, b""])
        size = len(limits) + len(strings) + len(self.stdin)
        header = REQUEST.pack(
            MAGIC, size, self.flags, self.umask,
            len(self.limits), len(self.argv), len(self.env), len(self.stdin),
            self.head_bytes, self.tail_bytes, self.timeout_ms, self.grace_ms,
            self.kill_on_limit, self.has_cgroup,
        )  # fmt: skip
        return b"".join((header, limits, strings, self.stdin))


class Reply(NamedTuple):
    reason: WireReason
    wait_status: int
    stage: int
    error: int
    pid: int
    orphans_killed: int
    drained: bool
    survivors: bool
    left_cgroup: bool
    exit_known: bool
    failed_index: int
    duration_ns: int
    user_us: int
    system_us: int
    max_rss_kib: int
    stdout: Captured
    stderr: Captured


_REASONS = frozenset(WireReason)


class ReplyError(Exception):
    """The runner answered something that is not a reply; it is not used again."""


def reply_bytes(header: bytes | bytearray) -> int:
    """How many bytes follow a reply's header."""
    return sum(REPLY.unpack_from(header)[-4:])


def decode_reply(data: bytes) -> Reply:
    fields = REPLY.unpack_from(data)
    if fields[0] != MAGIC or fields[1] not in _REASONS:
        raise ReplyError(f"magic {fields[0]:#x}, reason {fields[1]}")
    (_magic, reason, wait_status, stage, error, pid, orphans, drained, survivors, left, known,
     _reserved, index,
     duration_ns, user_us, system_us, max_rss_kib, out_total, err_total,
     out_head, err_head, out_tail, err_tail) = fields  # fmt: skip
    ends = [REPLY.size]
    for length in (out_head, out_tail, err_head, err_tail):
        ends.append(ends[-1] + length)
    head_out, tail_out, head_err, tail_err = (
        data[start:end] for start, end in itertools.pairwise(ends)
    )
    return Reply(
        reason=WireReason(reason), wait_status=wait_status, stage=stage, error=error, pid=pid,
        orphans_killed=orphans, drained=bool(drained), survivors=bool(survivors),
        left_cgroup=bool(left), exit_known=bool(known), failed_index=index,
        duration_ns=duration_ns, user_us=user_us, system_us=system_us, max_rss_kib=max_rss_kib,
        stdout=Captured(head_out, tail_out, out_total),
        stderr=Captured(head_err, tail_err, err_total),
    )  # fmt: skip

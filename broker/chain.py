# SPDX-License-Identifier: Apache-2.0
"""The audit log's format: one record, its hash, and the reading that checks the chain.

Owns the bytes of a record and of `audit.head`, and verify().  Leaves writing to audit.py.

A record is one line of ASCII JSON.  Its envelope comes first and in this order, the fields of its
kind follow sorted by name, and the hash is last:

    {"seq":7,"at":"…Z","instance":"…","kind":"exec.outcome","ref":6,"prev":"…",…,"hash":"…"}

`hash` is SHA-256 over the line as it would be without its `hash` member, `prev` is the hash of the
record before, so anyone can recheck a line with sed and sha256sum.  `seq` counts from 1 without a
gap, across files.  `ref` is the record this one is about.  Bytes (paths, arguments) are a string
where they are UTF-8 without control characters but tab and newline, else {"b64": "…"}: lossless.

`audit.head` names the last record known to be on the disk.  It is written after that record, so it
may lag behind the log after a crash and is never ahead of it: a log that ends before its head was
cut.  Space is reserved ahead of the log as written NUL bytes, so a log that was not closed ends in
NULs; since no record holds a NUL, an unfinished record shows as one that has NULs or no newline,
and a whole line that does not verify was changed by somebody.

Limit: the chain has no key.  Who may write the directory can write another chain and another head;
that is seen only against a head kept elsewhere (`kept` of verify()).
"""

from __future__ import annotations

import base64
import contextlib
import enum
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

Field: TypeAlias = "str | bytes | int | float | bool | Sequence[Field] | Mapping[str, Field] | None"
Fields: TypeAlias = Mapping[str, Field]

INTENT, OUTCOME = ".intent", ".outcome"
"""How the kinds end that announce an effect, and that tell what became of it (by `ref`)."""
SEGMENT = "audit.segment"
"""The first record of a further file: `open` lists the intents without an outcome so far."""

LOG_NAME = "audit.jsonl"
HEAD_NAME = "audit.head"
MAX_RECORD_BYTES = 60 * 1024
MAX_ARGV_BYTES = 4096
GENESIS_HASH = "0" * 64

READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # never waits on a FIFO

_SEGMENT = re.compile(r"audit-[0-9]{20}\.jsonl")
_KIND = re.compile(r"[a-z_]{1,24}(?:\.[a-z_]{1,24}){1,3}")
_ENVELOPE = re.compile(
    rb'\{"seq":([1-9][0-9]{0,18}),"at":"[0-9T:.-]{29}Z","instance":"[0-9a-f]{16}"'
    rb',"kind":"([a-z_.]{1,99})"(?:,"ref":([1-9][0-9]{0,18}))?,"prev":"([0-9a-f]{64})",'
)
_HASH_KEY = b'"hash":"'
_TAIL_BYTES = len(_HASH_KEY) + 64 + len(b'"}\n')
_MAX_FIELDS_BYTES = MAX_RECORD_BYTES - 1024  # what the envelope and the hash leave
_RESERVED = frozenset(("seq", "at", "instance", "kind", "ref", "prev", "hash"))
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f]")
_HEAD = re.compile(rb"([0-9]{20}) ([0-9a-f]{64}) (live|done)\n")
_VERIFY_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain: the number of a record and its hash."""

    seq: int
    hash: str


GENESIS = Link(0, GENESIS_HASH)


# --- one record -----------------------------------------------------------------------------------


def text(raw: bytes) -> str | dict[str, str]:
    """Bytes as a record holds them; see the module's first lines."""
    try:
        decoded = raw.decode("utf-8")
    except UnicodeDecodeError:
        decoded = "\0"
    if _CONTROL.search(decoded):
        return {"b64": base64.b64encode(raw).decode("ascii")}
    return decoded


def _default(value: object) -> object:
    if isinstance(value, bytes):
        return text(value)
    raise TypeError(f"an audit record cannot hold a {type(value).__name__}")


_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=_default
).encode


def encode(
    after: Link, *, at: str, instance: str, kind: str, fields: Fields, ref: int | None = None
) -> tuple[bytes, Link]:
    """Returns the line of the record that follows `after`, and its link.

    More than MAX_RECORD_BYTES are never written: the largest fields are replaced by {"cut": …},
    their size and digest, since a request must not escape its record by being long.  Raises
    ValueError for a malformed kind or a field named like a member of the envelope, TypeError for a
    value that JSON has no form for.
    """
    if not _KIND.fullmatch(kind) or not _RESERVED.isdisjoint(fields):
        raise ValueError(f"not a record: kind {kind!r} with fields {sorted(fields)}")
    about = "" if ref is None else f',"ref":{ref}'
    rest = _encode(fields)[1:-1]
    if len(rest) > _MAX_FIELDS_BYTES:
        rest = _encode(_shortened(fields))[1:-1]
    seq = after.seq + 1
    start = (
        f'{{"seq":{seq},"at":"{at}","instance":"{instance}","kind":"{kind}"{about}'
        f',"prev":"{after.hash}"{"," if rest else ""}{rest}'
    ).encode("ascii")
    digest = hashlib.sha256(start + b"}").hexdigest()
    line = b'%b,"hash":"%b"}\n' % (start, digest.encode("ascii"))
    return line, Link(seq, digest)


def _shortened(fields: Fields) -> Fields:
    sizes = {name: len(_encode(value)) + len(name) for name, value in fields.items()}
    kept, total = dict(fields), sum(sizes.values())
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if total <= _MAX_FIELDS_BYTES // 2:
            break
        whole = _encode(fields[name]).encode("ascii")
        kept[name] = {"cut": {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}}
        total -= sizes[name]
    return kept


def describe_argv(argv: Sequence[bytes], limit_bytes: int = MAX_ARGV_BYTES) -> dict[str, Field]:
    """The fields that tell a command: all of it, or its first bytes and a digest of the whole.

    The digest is SHA-256 over the arguments, each with its NUL, as execve(2) lays them out.
    """
    whole = b"".join([argument + b"\0" for argument in argv])
    if len(whole) <= limit_bytes:
        return {"argv": list(argv)}
    kept = whole[:limit_bytes].removesuffix(b"\0").split(b"\0")
    cut: Fields = {
        "count": len(argv),
        "bytes": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
    }
    return {"argv": kept, "argv_cut": cut}


@dataclass(frozen=True, slots=True)
class Entry:
    """What the envelope of a verified record says."""

    link: Link
    kind: str
    ref: int | None


def read_line(line: bytes) -> tuple[Entry, str] | None:
    """Returns the entry of a line and the `prev` it claims; None if it is not a whole record."""
    envelope = _ENVELOPE.match(line)
    tail = line[-_TAIL_BYTES:]
    if envelope is None or not tail.startswith(_HASH_KEY) or not tail.endswith(b'"}\n'):
        return None
    seq, kind, ref, prev = envelope.groups()
    digest = hashlib.sha256(line[: -_TAIL_BYTES - 1])
    digest.update(b"}")
    claimed = tail[len(_HASH_KEY) : -3].decode("latin-1")
    if digest.hexdigest() != claimed or line[-_TAIL_BYTES - 1] != 0x2C:
        return None
    entry = Entry(Link(int(seq), claimed), kind.decode(), None if ref is None else int(ref))
    return entry, prev.decode()


# --- audit.head -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """The last record known to be on the disk.  `closed`: the writer ended the log there."""

    link: Link
    closed: bool

    def line(self) -> bytes:
        """Always of one length, so that it is replaced in place by one write within one sector."""
        state = "done" if self.closed else "live"
        return f"{self.link.seq:020d} {self.link.hash} {state}\n".encode("ascii")


def parse_head(raw: bytes) -> Head | None:
    """None if it is not exactly one head line."""
    found = _HEAD.fullmatch(raw)
    if found is None:
        return None
    return Head(Link(int(found[1]), found[2].decode()), found[3] == b"done")


def read_head(directory_fd: int) -> Head | None:
    """Reads `audit.head`, also while it is being written; None if it is malformed.

    Raises FileNotFoundError if there is none.
    """
    fd = os.open(HEAD_NAME, READING, dir_fd=directory_fd)
    try:
        before = os.pread(fd, 4096, 0)
        while (now := os.pread(fd, 4096, 0)) != before:
            before = now
        return parse_head(now)
    finally:
        os.close(fd)


# --- the chain ------------------------------------------------------------------------------------


class Rest(enum.Enum):
    """What stands after the last record that verifies."""

    NOTHING = "nothing"
    RESERVED = "reserved"  # NULs only
    UNFINISHED = "unfinished"  # a record that was being written
    CHANGED = "changed"  # a whole line that is not the next record


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a file's records follow each other: `last`, which ends at byte `end`, then `rest`."""

    last: Link
    count: int
    end: int
    rest: Rest
    detail: str = ""


def _ignore(_entry: Entry, _line: bytes) -> None:
    return


def walk(
    file: BinaryIO,
    after: Link,
    anchors: Mapping[int, str],
    visit: Callable[[Entry, bytes], None] = _ignore,
) -> Walk:
    """Reads records from the file's start while each follows the one before, beginning at `after`.

    `anchors` are hashes known from elsewhere, by seq.  `visit` sees every verified record.
    """
    last, count, end, why = after, 0, 0, ""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        why = _objection(read := read_line(line), last, anchors)
        if why or read is None:
            break
        last, count, end = read[0].link, count + 1, end + len(line)
        visit(read[0], line)
    if not line:
        return Walk(last, count, end, Rest.NOTHING)
    whole = b"\0" not in line and (line.endswith(b"\n") or len(line) > MAX_RECORD_BYTES)
    if whole:
        return Walk(last, count, end, Rest.CHANGED, why)
    reserved = not line.strip(b"\0") and _only_nul(file)
    return Walk(last, count, end, Rest.RESERVED if reserved else Rest.UNFINISHED, why)


def _objection(read: tuple[Entry, str] | None, last: Link, anchors: Mapping[int, str]) -> str:
    if read is None:
        return "does not match its own hash"
    link, prev = read[0].link, read[1]
    if link.seq != last.seq + 1:
        return f"is missing: record {link.seq} stands in its place"
    if prev != last.hash:
        return "does not follow the record before it"
    if anchors.get(link.seq, link.hash) != link.hash:
        return "is not the record that the head names"
    return ""


def _only_nul(file: BinaryIO) -> bool:
    return not any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(1 << 16), b""))


def segment_name(first_seq: int) -> str:
    """The name of a finished file, after its first record: they sort in the order of the chain."""
    return f"audit-{first_seq:020d}.jsonl"


def segments(directory_fd: int) -> list[str]:
    """The names of the finished files, oldest first."""
    return sorted(name for name in os.listdir(directory_fd) if _SEGMENT.fullmatch(name))


# --- verify ---------------------------------------------------------------------------------------


def has_log(directory: Path) -> bool:
    """Whether there is anything of a log: none was begun yet, or all of it was removed."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(name in (LOG_NAME, HEAD_NAME) or _SEGMENT.fullmatch(name) for name in names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ok`, or the first record that is changed or missing (`at_seq`) and what is wrong with it.

    `head` is the last record read; kept elsewhere it shows a later rewrite of the whole log.
    """

    ok: bool
    records: int
    head: Link
    detail: str
    at_seq: int | None = None

    @property
    def last_seq(self) -> int:
        return self.head.seq


def verify(directory: Path, *, kept: Link | None = None) -> Verdict:
    """Checks every record of the log against the chain, the head, and `kept` if given.

    Reads only, and may run beside the writer.  Raises OSError if the directory or a file of it
    cannot be read.
    """
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_VERIFY_ATTEMPTS):
            head = _read_head_if_any(directory_fd)
            verdict = _verify(directory_fd, head, kept)
            # A log that was closed or opened meanwhile does not match the head read before.
            if verdict.ok or _read_head_if_any(directory_fd) == head:
                break
        return verdict
    finally:
        os.close(directory_fd)


def _read_head_if_any(directory_fd: int) -> Head | str:
    try:
        return read_head(directory_fd) or f"{HEAD_NAME} is malformed"
    except FileNotFoundError:
        return f"{HEAD_NAME} is missing"


def _verify(directory_fd: int, head: Head | str, kept: Link | None) -> Verdict:
    """The head was read before: what is read from here on is at least as new."""
    if isinstance(head, str):
        return Verdict(False, 0, GENESIS, head)
    if kept is not None and kept.seq == head.link.seq and kept != head.link:
        return Verdict(False, 0, GENESIS, f"record {kept.seq} is not the kept one", kept.seq)
    anchors = {link.seq: link.hash for link in (head.link, kept) if link is not None}
    if anchors.get(0, GENESIS_HASH) != GENESIS_HASH:
        return Verdict(False, 0, GENESIS, f"{HEAD_NAME} is malformed")
    count, found = 0, Walk(GENESIS, 0, 0, Rest.NOTHING)
    for file in _files(directory_fd):
        if found.rest is not Rest.NOTHING:
            break  # what a finished file ends with is a record
        found = walk(file, found.last, anchors)
        count += found.count
    else:
        return _judge(found, count, head, kept)
    return _broken(found.last, count, found.detail)


def _files(directory_fd: int) -> Iterator[BinaryIO]:
    """Opens one file after the other, oldest first, as they were at one moment.

    The newest is opened before the others are listed: if it is finished meanwhile, it is among
    them under its new name, and perhaps others behind it, which are left out.
    """
    with ExitStack() as stack:
        newest: BinaryIO | None = None
        with contextlib.suppress(FileNotFoundError):  # between two files
            newest = stack.enter_context(_open(directory_fd, LOG_NAME))
        for name in segments(directory_fd):
            with _open(directory_fd, name) as file:
                if newest and os.path.samestat(os.fstat(file.fileno()), os.fstat(newest.fileno())):
                    break
                yield file
        if newest:
            yield newest


def _open(directory_fd: int, name: str) -> BinaryIO:
    return open(os.open(name, READING, dir_fd=directory_fd), "rb", buffering=1 << 18)


def _judge(found: Walk, count: int, head: Head, kept: Link | None) -> Verdict:
    known = max(head.link.seq, kept.seq if kept else 0)
    if found.rest is Rest.CHANGED:
        return _broken(found.last, count, found.detail)
    if found.last.seq < known:
        return _broken(found.last, count, f"is missing: the head names record {known}")
    if head.closed and (found.last != head.link or found.rest is not Rest.NOTHING):
        return _broken(head.link, count, "was added after the log was closed")
    if found.rest is Rest.UNFINISHED:
        detail = f"record {found.last.seq + 1} is unfinished: a crash, or it is being written"
        return Verdict(True, count, found.last, detail)
    return Verdict(True, count, found.last, "the chain is whole")


def _broken(last: Link, count: int, why: str) -> Verdict:
    return Verdict(False, count, last, f"record {last.seq + 1} {why}", last.seq + 1)


def records(directory: Path) -> Iterator[dict[str, object]]:
    """Yields the records, oldest first, as far as lines are whole.  Does not verify them."""
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for file in _files(directory_fd):
            for line in file:
                if not line.endswith(b"\n") or b"\0" in line:
                    return
                yield json.loads(line)
    finally:
        os.close(directory_fd)

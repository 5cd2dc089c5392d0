# SPDX-License-Identifier: Apache-2.0
"""The audit log's files: their end while it is written, and their state when they are opened.

Owns the audit directory (0700), its files (0600), their lock, and recovery after a crash.  Used by
audit.py, by one thread at a time; the format is chain.py's.

Space is written ahead of the log as NULs in steps of RESERVE_BYTES: a record then overwrites blocks
the file has, no size changes, and the flush needs no journal commit (measured on ext4: 0.7 times
the time of an append).  That is why records are placed with pwrite(2) at a known offset rather than
with O_APPEND; that there is one writer is what the lock is for.

A log that does not verify is never continued, so that the break stays visible.  A record that was
being written when the machine or the broker ended is no break: it is moved to `audit.torn-…`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from broker import startup
from broker.chain import (
    GENESIS,
    HEAD_NAME,
    INTENT,
    LOG_NAME,
    MAX_RECORD_BYTES,
    OUTCOME,
    READING,
    SEGMENT,
    Entry,
    Field,
    Head,
    Link,
    Rest,
    Walk,
    read_head,
    read_line,
    segment_name,
    segments,
    walk,
)
from broker.directories import open_own

RESERVE_BYTES = 1 << 20
LAZY_S = 0.05
"""How long what was written may wait for a flush that nobody asks for."""
HEAD_S = 1.0
"""How long `audit.head` may: after a power cut it may name a record that is this much older."""

_ZEROS = bytes(1 << 16)


class LogFile:
    """The file being written: its end, the space reserved behind it, and the head beside it."""

    def __init__(self, directory_fd: int, log_fd: int, head_fd: int, end: int, last: Link) -> None:
        self._directory_fd, self._log_fd, self._head_fd = directory_fd, log_fd, head_fd
        self.end = end
        self.sound = True
        self._reserved = end
        self._last = last
        self._first_seq = 1
        self._unsynced_since: float | None = None
        self._head_since: float | None = None

    def start(self, first_seq: int) -> None:
        """Marks the log as live, cuts the file to its records, and reserves space.  Blocks.

        In this order: a closed log ends at its last record, or it was added to.
        """
        self._first_seq = first_seq
        self.mark(closed=False)
        os.ftruncate(self._log_fd, self.end)
        self._reserve(self.end)

    def write(self, data: bytes, last: Link) -> None:
        """Puts whole records, of which `last` is the last, behind the others."""
        if self.end + len(data) > self._reserved:
            self._reserve(self.end + len(data))
        while data:  # a short write is followed by the errno that says why
            written = os.pwrite(self._log_fd, data, self.end)
            self.end += written
            data = data[written:]
        self._last = last
        if self._unsynced_since is None:
            self._unsynced_since = time.monotonic()

    def sync(self) -> None:
        """Everything written is on the disk, and named by the head, when this returns.

        The head itself may reach the disk later, but survives the end of this process.
        """
        os.fdatasync(self._log_fd)
        self._unsynced_since = None
        self._write_head(closed=False)
        self._head_since = self._head_since or time.monotonic()

    def due_in_s(self) -> float | None:
        """Until when something must be flushed though nobody asks; None if nothing is waiting."""
        due = [
            since + allowed
            for since, allowed in ((self._unsynced_since, LAZY_S), (self._head_since, HEAD_S))
            if since is not None
        ]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def settle(self) -> None:
        """What nobody waits for: late flushes, and space for what comes."""
        now = time.monotonic()
        if self._unsynced_since is not None and now >= self._unsynced_since + LAZY_S:
            self.sync()
        if self._head_since is not None and now >= self._head_since + HEAD_S:
            os.fdatasync(self._head_fd)
            self._head_since = None
        if self._reserved - self.end < RESERVE_BYTES // 8:
            self._reserve(self.end + RESERVE_BYTES // 8)

    def rotate(self, first_seq: int) -> None:
        """Finishes the file and begins the next, whose first record will be `first_seq`.

        The head is on the disk before the rename, so it never names a record of an older file.
        """
        self.mark(closed=False)
        os.ftruncate(self._log_fd, self.end)
        os.fsync(self._log_fd)
        where = {"src_dir_fd": self._directory_fd, "dst_dir_fd": self._directory_fd}
        os.rename(LOG_NAME, segment_name(self._first_seq), **where)
        finished, self._log_fd = self._log_fd, _open_file(self._directory_fd, LOG_NAME, os.O_EXCL)
        os.close(finished)
        os.fsync(self._directory_fd)
        self._first_seq, self.end, self._reserved = first_seq, 0, 0
        self._reserve(0)

    def mark(self, *, closed: bool) -> None:
        """Makes all records durable, then the head that names the last of them."""
        os.fdatasync(self._log_fd)
        self._unsynced_since = None
        self._write_head(closed=closed)
        os.fdatasync(self._head_fd)
        self._head_since = None

    def finish(self) -> None:
        """The end of a log that is closed in order: no reserved space, and the head says so."""
        os.ftruncate(self._log_fd, self.end)
        self.mark(closed=True)

    def close(self) -> None:
        fds = self._log_fd, self._head_fd, self._directory_fd
        self._log_fd = self._head_fd = self._directory_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def _write_head(self, *, closed: bool) -> None:
        os.pwrite(self._head_fd, Head(self._last, closed).line(), 0)

    def _reserve(self, needed: int) -> None:
        """Writes NULs up to a multiple of RESERVE_BYTES beyond `needed`.

        Written rather than fallocate(2)d: an unwritten extent needs a journal commit when a block
        of it is first written.  A disk too full for it fails here, before it fails a record.
        """
        target = (needed // RESERVE_BYTES + 1) * RESERVE_BYTES
        while self._reserved < target:
            step = min(len(_ZEROS), target - self._reserved)
            self._reserved += os.pwrite(self._log_fd, _ZEROS[:step], self._reserved)
        os.fdatasync(self._log_fd)


def _open_file(directory_fd: int, name: str, flags: int = 0) -> int:
    """Opens a file of ours for writing, created 0600 if missing; refuses what is not ours."""
    flags |= os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(name, flags, 0o600, dir_fd=directory_fd)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(fd)
        raise OSError(f"{name!r} is not a regular file of uid {os.geteuid()} with one name")
    return fd


def _restore_modes(directory_fd: int) -> None:
    """Makes our files 0600 again.

    A run under our account cannot open them, but it can change their modes where it has no mount
    namespace of its own: Landlock does not restrict chmod(2).  Refusing would let it keep the next
    broker from starting.
    """
    for name in os.listdir(directory_fd):
        found = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if ours and stat.S_IMODE(found.st_mode) != 0o600:
            os.chmod(name, 0o600, dir_fd=directory_fd)


def _open_directory(directory: Path) -> int:
    """Opens the audit directory, 0700 and ours, and locks it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    path_fd = open_own(directory, 0o700)
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path_fd)
    finally:
        os.close(path_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise startup.AuditUnavailableError(
            f"another process writes audit log {str(directory)!r}",
            "stop the other broker; one log has one writer",
        ) from error
    return fd


# --- opening and recovery -------------------------------------------------------------------------


@dataclass(slots=True)
class Opened:
    """What opening found.  `report` are the fields of `broker.recovered` unless `clean`."""

    last: Link = GENESIS
    first_seq: int = 1
    clean: bool = True
    open_intents: dict[int, str] = field(default_factory=dict)
    report: dict[str, Field] = field(default_factory=dict)

    def visit(self, entry: Entry, line: bytes) -> None:
        """Keeps the book of open intents while a file is walked."""
        if entry.kind == SEGMENT:
            self.open_intents = dict(json.loads(line)["open"])
        elif entry.kind.endswith(INTENT):
            self.open_intents[entry.link.seq] = entry.kind
        elif entry.kind.endswith(OUTCOME) and entry.ref is not None:
            self.open_intents.pop(entry.ref, None)


def open_log(directory: Path) -> tuple[LogFile, Opened]:
    """Locks the directory, checks its newest file, and makes it ready to be written.

    Raises OSError, or startup.AuditUnavailableError where another process has the lock or the log
    does not verify; nothing was changed then.
    """
    directory_fd = _open_directory(directory)
    fds = [directory_fd]
    try:
        _restore_modes(directory_fd)
        head = _head_or_new(directory_fd, directory)
        base = _last_finished(directory_fd, directory)
        if head.link.seq > base.seq and LOG_NAME not in os.listdir(directory_fd):
            raise _damaged(directory, f"{LOG_NAME} is missing")
        fds.append(log_fd := _open_file(directory_fd, LOG_NAME))
        fds.append(head_fd := _open_file(directory_fd, HEAD_NAME))
        opened = Opened(base, base.seq + 1)
        end = _examine(directory_fd, log_fd, head, opened, directory)
        log = LogFile(directory_fd, log_fd, head_fd, end, opened.last)
        log.start(opened.first_seq)
        os.fsync(directory_fd)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return log, opened


def _head_or_new(directory_fd: int, directory: Path) -> Head:
    """Returns the head, or that of an empty log if there is no file of one."""
    try:
        head = read_head(directory_fd)
    except FileNotFoundError:
        if LOG_NAME in os.listdir(directory_fd) or segments(directory_fd):
            raise _damaged(directory, f"{HEAD_NAME} is missing") from None
        return _new_head(directory_fd)
    if head is None:
        raise _damaged(directory, f"{HEAD_NAME} is malformed")
    return head


def _new_head(directory_fd: int) -> Head:
    """The head is durable before the log exists: a log without a head was tampered with."""
    head = Head(GENESIS, closed=True)
    fd = _open_file(directory_fd, HEAD_NAME + ".new")
    try:
        os.pwrite(fd, head.line(), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    where = {"src_dir_fd": directory_fd, "dst_dir_fd": directory_fd}
    os.rename(HEAD_NAME + ".new", HEAD_NAME, **where)
    os.fsync(directory_fd)
    return head


def _last_finished(directory_fd: int, directory: Path) -> Link:
    """The last record of the newest finished file; GENESIS if there is none."""
    names = segments(directory_fd)
    if not names:
        return GENESIS
    fd = os.open(names[-1], READING, dir_fd=directory_fd)
    with open(fd, "rb") as file:
        file.seek(max(0, os.fstat(fd).st_size - MAX_RECORD_BYTES))
        read = read_line(file.read().rstrip(b"\n").rpartition(b"\n")[2] + b"\n")
    if read is None:
        raise _damaged(directory, f"the last record of {names[-1]} does not match its own hash")
    return read[0].link


def _examine(directory_fd: int, log_fd: int, head: Head, opened: Opened, directory: Path) -> int:
    """Walks the newest file, fills `opened`, saves an unfinished record; returns the end."""
    base = opened.last
    with open(log_fd, "rb", buffering=1 << 18, closefd=False) as file:
        found = walk(file, base, {head.link.seq: head.link.hash}, opened.visit)
        _refuse_tampered(found, head, base, directory)
        file.seek(found.end)
        unfinished = file.read().rstrip(b"\0") if found.rest is Rest.UNFINISHED else b""
    if found.count == 0:
        _visit_last_finished(directory_fd, opened)
    opened.last = found.last
    opened.clean = head.closed and not opened.open_intents
    if not opened.clean:
        opened.report = {"head_seq": head.link.seq, "unknown": list(opened.open_intents)}
    if unfinished:
        opened.report |= _save_unfinished(directory_fd, unfinished)
    return found.end


def _visit_last_finished(directory_fd: int, opened: Opened) -> None:
    """The broker ended between two files: the open intents are in the one before."""
    for name in segments(directory_fd)[-1:]:
        fd = os.open(name, READING, dir_fd=directory_fd)
        with open(fd, "rb") as file:
            for line in file:
                if (read := read_line(line)) is not None:
                    opened.visit(read[0], line)


def _refuse_tampered(found: Walk, head: Head, base: Link, directory: Path) -> None:
    at = found.last.seq + 1
    if found.rest is Rest.CHANGED:
        raise _damaged(directory, f"record {at} {found.detail}")
    if found.last.seq < head.link.seq:
        raise _damaged(directory, f"record {at} is missing: the head names {head.link.seq}")
    if head.link.seq <= base.seq and head.link != base:
        raise _damaged(directory, f"the head names record {head.link.seq} of a finished file")
    if head.closed and (found.last != head.link or found.rest is not Rest.NOTHING):
        raise _damaged(directory, f"record {head.link.seq + 1} was added to the closed log")


def _save_unfinished(directory_fd: int, data: bytes) -> dict[str, Field]:
    """Moves a torn record into a file of its own, durable before the log is cut."""
    name = f"audit.torn-{time.time_ns()}"
    fd = _open_file(directory_fd, name, os.O_EXCL)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    os.fsync(directory_fd)
    digest = hashlib.sha256(data).hexdigest()
    return {"torn_file": name, "torn_bytes": len(data), "torn_sha256": digest}


def _damaged(directory: Path, why: str) -> startup.AuditUnavailableError:
    return startup.AuditUnavailableError(
        f"audit log {str(directory)!r} was changed: {why}",
        "keep the directory as evidence under another name, find out who wrote to it, then start",
    )

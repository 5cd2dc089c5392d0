# SPDX-License-Identifier: Apache-2.0
"""The audit log's one writer: durable appends in groups.

Owns the numbering of records and the thread that writes them.  Leaves the format to chain.py, the
files to logfile.py, and what is worth a record to the gate, the service and the daemon.

Theory of operation.  A caller's thread numbers and chains the record and puts it into a queue; a
writer thread takes everything queued, writes it with one pwrite(2), makes it durable with one
fdatasync(2), and then tells all who wait, with one wake-up of their event loop.  So eight clients
pay for one flush, and none waits for the disk because of another.

Where nobody else waits for anything, handing a record to a thread and being woken again costs twice
the flush itself.  append_alone() therefore writes and flushes on the caller's thread, and an idle
log takes append_lazy() there too; both fall back to the writer as soon as it has something to do.

After a failed write or flush nothing is known about the disk, so every append fails from then on
(fsync(2): a second fsync may succeed although the data is lost).  reopen() goes on after that, with
all that a start looks at: what is really in the file.

An intent (`….intent`) without its outcome (`….outcome` with `ref`) at the next start gets an
outcome with `state` "unknown": what it did cannot be told, and it is never run again.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Iterable
from concurrent import futures
from pathlib import Path
from typing import NamedTuple, TypeAlias

from broker import startup
from broker.chain import INTENT, OUTCOME, SEGMENT, Fields, Link, encode
from broker.errors import AuditUnavailableError
from broker.logfile import LAZY_S, LogFile, Opened, open_log

SEGMENT_BYTES = 16 << 20
"""A file is finished at this size.  It bounds what a start must read: about 0.1 s."""

_Waiter: TypeAlias = "asyncio.Future[int] | futures.Future[int]"


class Audit:
    """The open log.  append() before an effect, append_lazy() after it, close() at the end."""

    def __init__(self, directory: Path, log: LogFile, opened: Opened, segment_bytes: int) -> None:
        self.instance = secrets.token_hex(8)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._chain = threading.Lock()  # numbering; taken before _file where both are
        self._file = threading.Lock()  # whoever writes self._log
        self._flush_wanted = False
        self._clock = _Clock()
        self._closing = False
        self._begin(log, opened)

    def _begin(self, log: LogFile, opened: Opened) -> None:
        self._log = log
        self._segment_used = log.end
        self._last = opened.last
        self._open_intents = dict(opened.open_intents)
        self._queued = 0  # records not yet written; under _chain
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._writing: list[_Item] = []
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> Audit:
        """Locks the log, recovers it if it was not closed, and is ready to append.

        Creates the directory (not its parents) and an empty log if there is none.  Blocks on the
        disk.  Raises startup.AuditUnavailableError if another process writes the log, if it is not
        ours, cannot be written, or was changed or cut: a log that does not verify is never
        continued, so that the break stays visible.
        """
        log, opened = _open(directory)
        audit = cls(directory, log, opened, segment_bytes)
        try:
            audit._record_recovery(opened)
        except BaseException:
            audit.close()
            raise
        return audit

    def reopen(self) -> None:
        """Goes on after a failure, if the log can be opened and written now.  Blocks on the disk.

        Only while no effect is under way: what has no outcome yet gets one that says unknown.
        Raises startup.AuditUnavailableError, and appends fail as before.
        """
        with self._chain:
            if self._failure is None or self._closing:
                return
            self._queue.put(None)
        self._thread.join()
        self._log.close()
        log, opened = _open(self._directory)
        with self._chain:
            self._begin(log, opened)
        self._record_recovery(opened)

    @property
    def failure(self) -> Exception | None:
        """Why appends fail; None while they work."""
        return self._failure

    def append(self, kind: str, fields: Fields, *, ref: int | None = None) -> asyncio.Future[int]:
        """Queues a record; the future gives its seq once it is on the disk.

        For the thread of a running event loop.  Raises AuditUnavailableError, here or from the
        future, if the record is not known to be durable: what it announces must not happen.
        Raises ValueError or TypeError for what is not a record (see chain.encode).
        """
        future = asyncio.get_running_loop().create_future()
        self._enqueue(kind, fields, ref, future)
        return future

    def append_alone(self, kind: str, fields: Fields, *, ref: int | None = None) -> int | None:
        """Returns the seq of a record that is on the disk now, or None: use append().

        Blocks for one flush, so it is for a caller behind whom nobody waits.  Raises like append().
        """
        with self._chain:
            link = self._write_here(kind, fields, ref)
            if link is None:
                return None
            try:
                self._log.sync()
            except OSError as error:
                raise self._broken(error) from error
            finally:
                self._file.release()
        self._want_flush()
        return link.seq

    def append_blocking(self, kind: str, fields: Fields, *, ref: int | None = None) -> int:
        """The same for a thread without a loop; returns when the record is on the disk."""
        future: futures.Future[int] = futures.Future()
        self._enqueue(kind, fields, ref, future)
        return future.result()

    def append_lazy(self, kind: str, fields: Fields, *, ref: int | None = None) -> int:
        """Queues a record and returns its seq at once: for outcomes, which no answer waits for.

        It is in the file as soon as the writer comes to it, so it survives the broker being
        killed, and on the disk with the next append() or after LAZY_S.  The price: a power cut
        within that time loses it, although the client has its answer.  Recovery then records the
        outcome as unknown.  Raises like append(); if the write fails later, `failure` says so and
        the next append() fails.
        """
        with self._chain:
            link = self._write_here(kind, fields, ref) if _has_loop() else None
            if link is not None:
                self._file.release()
        if link is None:
            return self._enqueue(kind, fields, ref, None)
        self._want_flush()
        return link.seq

    def close(self) -> None:
        """Writes what is queued, marks the log as closed, and releases the lock."""
        with self._chain:
            if self._closing:
                return
            self._closing = True
            failed = self._failure is not None
            self._failure = self._failure or ValueError("the audit log is closed")
            self._queue.put(None)
        self._thread.join()
        try:
            if not failed and self._log.sound:
                self._log.finish()
        finally:
            self._log.close()

    # Callers' side: under the lock, so that the queue holds records in the order of the chain.

    def _enqueue(self, kind: str, fields: Fields, ref: int | None, waiter: _Waiter | None) -> int:
        with self._chain:
            self._refuse_broken()
            at = self._clock.now()
            line, link = encode(
                self._last, at=at, instance=self.instance, kind=kind, fields=fields, ref=ref
            )
            if self._segment_used + len(line) > self._segment_bytes:
                self._start_segment(at)
                line, link = encode(
                    self._last, at=at, instance=self.instance, kind=kind, fields=fields, ref=ref
                )
            self._put(_Item(line, link, waiter))
            self._keep_book(kind, ref, link)
            return link.seq

    def _write_here(self, kind: str, fields: Fields, ref: int | None) -> Link | None:
        """Writes a record on this thread and leaves _file locked; None if the writer is needed."""
        self._refuse_broken()
        if self._queued or not self._file.acquire(blocking=False):
            return None
        link: Link | None = None
        try:
            line, after = encode(
                self._last,
                at=self._clock.now(),
                instance=self.instance,
                kind=kind,
                fields=fields,
                ref=ref,
            )
            if self._segment_used + len(line) <= self._segment_bytes:
                self._log.write(line, after)
                self._last, link = after, after
                self._segment_used += len(line)
                self._keep_book(kind, ref, after)
        except OSError as error:
            raise self._broken(error) from error
        finally:
            if link is None:
                self._file.release()
        return link

    def _refuse_broken(self) -> None:
        if self._failure is not None:
            raise AuditUnavailableError from self._failure

    def _broken(self, error: OSError) -> AuditUnavailableError:
        self._failure = error
        self._log.sound = False
        return _unavailable(error)

    def _keep_book(self, kind: str, ref: int | None, link: Link) -> None:
        if kind.endswith(INTENT):
            self._open_intents[link.seq] = kind
        elif ref is not None and kind.endswith(OUTCOME):
            self._open_intents.pop(ref, None)

    def _want_flush(self) -> None:
        """Has the writer look for what is due after LAZY_S; one timer at a time."""
        if not self._flush_wanted:
            self._flush_wanted = True
            asyncio.get_running_loop().call_later(LAZY_S, self._wake_writer)

    def _wake_writer(self) -> None:
        self._flush_wanted = False
        self._queue.put(_WAKE)

    def _start_segment(self, at: str) -> None:
        """A file begins by naming the intents still open, so that recovery reads one file only."""
        fields: Fields = {"open": [[seq, kind] for seq, kind in self._open_intents.items()]}
        line, link = encode(self._last, at=at, instance=self.instance, kind=SEGMENT, fields=fields)
        self._segment_used = 0
        self._put(_Item(line, link, None, starts_segment=True))

    def _put(self, item: _Item) -> None:
        self._last = item.link
        self._segment_used += len(item.line)
        self._queued += 1
        self._queue.put(item)

    def _record_recovery(self, opened: Opened) -> None:
        if opened.clean:
            return
        try:
            self.append_blocking("broker.recovered", opened.report)
            for seq, kind in opened.open_intents.items():
                outcome = kind.removesuffix(INTENT) + OUTCOME
                why = "the broker ended before the outcome was recorded"
                self.append_blocking(outcome, {"state": "unknown", "detail": why}, ref=seq)
        except AuditUnavailableError as error:
            raise startup.AuditUnavailableError(
                f"cannot write audit log {str(self._directory)!r}: {error.__cause__}",
                "make space on its disk",
            ) from error

    # Writer's side: the only user of self._log until close().

    def _write_all(self) -> None:
        """Ends after None; an early end for whatever reason leaves nobody waiting."""
        running = True
        try:
            while running:
                items = self._take()
                running = None not in items
                self._writing = [item for item in items if item is not None and item is not _WAKE]
                with self._file:
                    self._commit()
                with self._chain:
                    self._queued -= len(self._writing)
                self._writing = []
        except OSError as error:
            self._give_up(error)
        finally:
            if self._writing:
                self._give_up(RuntimeError("the audit writer ended"))

    def _give_up(self, error: Exception) -> None:
        with self._chain:  # nothing is queued after this
            self._failure = error
            self._log.sound = False
            while not self._queue.empty():
                if (item := self._queue.get_nowait()) is not None:
                    self._writing.append(item)
        _tell(self._writing, error)
        self._writing = []

    def _take(self) -> list[_Item | None]:
        """Waits for the next item and returns it with all behind it; nothing if a flush is due."""
        try:
            items = [self._queue.get(timeout=self._log.due_in_s())]
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
        except queue.Empty:
            return []
        return items

    def _commit(self) -> None:
        batch, start = self._writing, 0
        for index, item in enumerate(batch):
            if item.starts_segment:
                self._write(batch[start:index])
                self._log.rotate(item.link.seq)
                start = index
        self._write(batch[start:])
        if any(item.waiter is not None for item in batch):
            self._log.sync()
            _tell(batch, None)
        self._log.settle()

    def _write(self, items: list[_Item]) -> None:
        if items:
            self._log.write(b"".join([item.line for item in items]), items[-1].link)


def _open(directory: Path) -> tuple[LogFile, Opened]:
    try:
        return open_log(directory)
    except OSError as error:
        raise startup.AuditUnavailableError(
            f"cannot open audit log {str(directory)!r}: {error}",
            "make the directory writable for the broker's account only, with space left",
        ) from error


class _Item(NamedTuple):  # made for every record: a tuple costs a third of a dataclass
    line: bytes
    link: Link
    waiter: _Waiter | None
    starts_segment: bool = False


_WAKE = _Item(b"", Link(0, ""), None)
"""Not a record: the writer looks whether a flush is due."""


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _tell(batch: Iterable[_Item], failure: Exception | None) -> None:
    """Resolves all waiters of a batch: one wake-up for each event loop, in practice one."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], int]]] = {}
    for item in batch:
        if isinstance(item.waiter, asyncio.Future):
            waiting.setdefault(item.waiter.get_loop(), []).append((item.waiter, item.link.seq))
        elif item.waiter is None or item.waiter.done():
            continue
        elif failure is None:
            item.waiter.set_result(item.link.seq)
        else:
            item.waiter.set_exception(_unavailable(failure))
    for loop, waiters in waiting.items():
        try:
            loop.call_soon_threadsafe(_settle, waiters, failure)
        except RuntimeError:
            continue  # the loop is closed: nobody waits any more, and the records are written


def _settle(waiters: list[tuple[asyncio.Future[int], int]], failure: Exception | None) -> None:
    for future, seq in waiters:
        if future.done():
            continue  # cancelled: its client went away
        if failure is None:
            future.set_result(seq)
        else:
            future.set_exception(_unavailable(failure))


def _unavailable(cause: Exception) -> AuditUnavailableError:
    error = AuditUnavailableError()
    error.__cause__ = cause
    return error


class _Clock:
    """RFC 3339 UTC with nanoseconds; the part down to the second is formatted once a second."""

    def __init__(self) -> None:
        self._second, self._text = -1, ""

    def now(self) -> str:
        second, ns = divmod(time.time_ns(), 1_000_000_000)
        if second != self._second:
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._text}.{ns:09d}Z"

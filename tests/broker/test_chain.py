# SPDX-License-Identifier: Apache-2.0
"""The audit log's format, and that verify() sees every change at the record where it begins."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import chain
from broker.audit import Audit
from broker.chain import GENESIS, HEAD_NAME, LOG_NAME, Link, Verdict

AT = "2026-01-02T03:04:05.123456789Z"
RECORDS = 12


def line_after(link: Link, **fields: chain.Field) -> tuple[bytes, Link]:
    return chain.encode(link, at=AT, instance="0123456789abcdef", kind="test.event", fields=fields)


def write_log(directory: Path, segment_bytes: int = 1 << 20) -> None:
    audit = Audit.open(directory, segment_bytes=segment_bytes)
    for number in range(RECORDS):
        audit.append_lazy("test.event", {"number": number, "path": b"/srv/\xff"})
    audit.close()


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as base:
        write_log(Path(base) / "audit")
        yield Path(base) / "audit"


@pytest.fixture(scope="module")
def pristine_segments() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as base:
        write_log(Path(base) / "audit", segment_bytes=1000)
        yield Path(base) / "audit"


def verdict_after(pristine: Path, change: Callable[[Path], object]) -> Verdict:
    with tempfile.TemporaryDirectory() as base:
        copy = shutil.copytree(pristine, Path(base) / "audit")
        change(copy)
        return chain.verify(copy)


def edit_lines(change: Callable[[list[bytes]], object]) -> Callable[[Path], object]:
    def edit(directory: Path) -> None:
        log = directory / LOG_NAME
        lines = log.read_bytes().splitlines(keepends=True)
        change(lines)
        log.write_bytes(b"".join(lines))

    return edit


# --- one record -----------------------------------------------------------------------------------


def test_a_record_is_one_line_whose_hash_anyone_can_recheck() -> None:
    line, link = line_after(Link(6, "a" * 64), b=1, a="ü\n", path=b"/srv/x")
    record = json.loads(line)
    assert list(record) == ["seq", "at", "instance", "kind", "prev", "a", "b", "path", "hash"]
    assert record["seq"] == link.seq == 7
    assert record["prev"] == "a" * 64
    assert record["a"] == "ü\n"
    assert line.isascii()
    assert line.count(b"\n") == 1
    stripped = subprocess.run(
        ["sed", 's/,"hash":"[0-9a-f]*"}$/}/'], input=line, capture_output=True, check=True
    ).stdout
    assert hashlib.sha256(stripped.rstrip(b"\n")).hexdigest() == record["hash"] == link.hash


@pytest.mark.parametrize(
    ("raw", "held"),
    [
        (b"/srv/a b", "/srv/a b"),
        ("/srv/ü".encode(), "/srv/ü"),
        (b"two\nlines\tand tab", "two\nlines\tand tab"),
        (b"/srv/\xff", {"b64": "L3Nydi//"}),
        (b"\x1b[31m", {"b64": "G1szMW0="}),
        (b"\0", {"b64": "AA=="}),
        (b"", ""),
    ],
)
def test_bytes_are_held_without_loss(raw: bytes, held: object) -> None:
    assert chain.text(raw) == held
    assert json.loads(line_after(GENESIS, deep=[{"x": raw}])[0])["deep"] == [{"x": held}]


@pytest.mark.parametrize("name", ["seq", "at", "instance", "kind", "ref", "prev", "hash"])
def test_a_field_cannot_pose_as_the_envelope(name: str) -> None:
    with pytest.raises(ValueError, match="not a record"):
        line_after(GENESIS, **{name: 1})
    nested, link = line_after(GENESIS, nested={name: '","hash":"' + "0" * 64 + '"}'})
    read = chain.read_line(nested)
    assert read is not None
    assert read[0].link == link


@pytest.mark.parametrize("kind", ["", "exec", "Exec.intent", 'a.b","seq":"', "a..b", "a.b\n"])
def test_a_malformed_kind_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="not a record"):
        chain.encode(GENESIS, at=AT, instance="0" * 16, kind=kind, fields={})


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j])
def test_a_value_without_a_form_is_refused(value: chain.Field) -> None:
    with pytest.raises(TypeError, match="cannot hold"):
        line_after(GENESIS, value=value)


def test_a_record_at_the_limit_is_whole_and_one_past_it_is_cut_with_its_digest() -> None:
    room = chain.MAX_RECORD_BYTES - 1024 - len('"a":1,"big":""')
    whole, _ = line_after(GENESIS, big="x" * room, a=1)
    assert json.loads(whole)["big"] == "x" * room
    cut, link = line_after(GENESIS, big="x" * (room + 1), a=1)
    record = json.loads(cut)
    digest = hashlib.sha256(b'"' + b"x" * (room + 1) + b'"').hexdigest()
    assert record["big"] == {"cut": {"bytes": room + 3, "sha256": digest}}
    assert record["a"] == 1
    read = chain.read_line(cut)
    assert read is not None
    assert read[0].link == link


@given(st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=90_000), max_size=6))
@settings(max_examples=40, deadline=None)
def test_no_record_is_longer_than_the_limit(fields: dict[str, bytes]) -> None:
    line, _ = line_after(GENESIS, **fields)
    assert len(line) <= chain.MAX_RECORD_BYTES
    assert chain.read_line(line) is not None


def test_argv_is_whole_up_to_the_limit_and_past_it_is_cut_with_a_digest_of_the_whole() -> None:
    fits = [b"x" * 10, b"", b"y" * (chain.MAX_ARGV_BYTES - 10 - 3)]
    assert chain.describe_argv(fits) == {"argv": fits}
    longer = [*fits[:2], fits[2] + b"y", b"z"]
    described = chain.describe_argv(longer)
    assert described["argv"] == longer[:3]
    laid_out = b"".join(argument + b"\0" for argument in longer)
    assert described["argv_cut"] == {
        "count": 4,
        "bytes": len(laid_out),
        "sha256": hashlib.sha256(laid_out).hexdigest(),
    }


@given(
    st.integers(0, 10**19 - 1),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.booleans(),
)
def test_a_head_is_read_as_written_and_always_as_long(seq: int, digest: str, closed: bool) -> None:
    head = chain.Head(Link(seq, digest), closed)
    assert chain.parse_head(head.line()) == head
    assert len(head.line()) == len(chain.Head(GENESIS, False).line()) < 512


# --- verify sees every change ---------------------------------------------------------------------


def test_an_untouched_log_is_whole(pristine: Path) -> None:
    verdict = chain.verify(pristine)
    assert verdict == Verdict(True, RECORDS, verdict.head, "the chain is whole")
    assert verdict.last_seq == RECORDS
    assert [record["seq"] for record in chain.records(pristine)] == [*range(1, RECORDS + 1)]


def test_the_chain_goes_on_across_files(pristine_segments: Path) -> None:
    verdict = chain.verify(pristine_segments)
    assert verdict.ok
    kinds = [record["kind"] for record in chain.records(pristine_segments)]
    assert kinds.count("test.event") == RECORDS
    assert kinds.count(chain.SEGMENT) == len(list(pristine_segments.glob("audit-*.jsonl"))) > 2
    assert verdict.records == len(kinds)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_flip_of_any_bit_is_seen_at_its_record(pristine: Path, data: st.DataObject) -> None:
    whole = (pristine / LOG_NAME).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    verdict = verdict_after(pristine, lambda copy: (copy / LOG_NAME).write_bytes(flipped))
    assert not verdict.ok
    assert verdict.at_seq == whole.count(b"\n", 0, at) + 1


@given(st.integers(0, 90), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_flip_of_any_bit_of_the_head_is_seen(pristine: Path, at: int, bit: int) -> None:
    head = bytearray((pristine / HEAD_NAME).read_bytes())
    head[at % len(head)] ^= 1 << bit
    assert not verdict_after(pristine, lambda copy: (copy / HEAD_NAME).write_bytes(head)).ok


@given(st.integers(0, RECORDS - 1))
@settings(max_examples=RECORDS * 3, deadline=None)
def test_a_deletion_is_seen_at_its_record(pristine: Path, at: int) -> None:
    verdict = verdict_after(pristine, edit_lines(lambda lines: lines.pop(at)))
    assert (verdict.ok, verdict.at_seq) == (False, at + 1)


@given(st.lists(st.integers(0, RECORDS - 1), min_size=2, max_size=2, unique=True))
@settings(max_examples=60, deadline=None)
def test_a_swap_is_seen_at_the_first_of_the_two(pristine: Path, pair: list[int]) -> None:
    def swap(lines: list[bytes]) -> None:
        lines[pair[0]], lines[pair[1]] = lines[pair[1]], lines[pair[0]]

    verdict = verdict_after(pristine, edit_lines(swap))
    assert (verdict.ok, verdict.at_seq) == (False, min(pair) + 1)


@given(st.integers(0, RECORDS), st.integers(0, RECORDS - 1))
@settings(max_examples=60, deadline=None)
def test_a_repeated_record_is_seen_where_it_stands(pristine: Path, to: int, of: int) -> None:
    verdict = verdict_after(pristine, edit_lines(lambda lines: lines.insert(to, lines[of])))
    # A copy right before the original is the original; the line after it is then one too many.
    assert (verdict.ok, verdict.at_seq) == (False, to + 1 if of != to else to + 2)


@given(st.integers(0, RECORDS))
@settings(max_examples=RECORDS * 3, deadline=None)
def test_a_forged_record_with_a_right_hash_is_seen_at_the_next(pristine: Path, to: int) -> None:
    def forge(lines: list[bytes]) -> None:
        before = chain.read_line(lines[to - 1]) if to else None
        link = before[0].link if before else GENESIS
        lines.insert(to, line_after(link, forged=True)[0])

    verdict = verdict_after(pristine, edit_lines(forge))
    # The last record is named by the head, so a forged one in its place is seen itself.
    assert (verdict.ok, verdict.at_seq) == (False, to + 2 if to < RECORDS - 1 else to + 1)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_truncation_at_any_byte_is_seen(pristine: Path, data: st.DataObject) -> None:
    whole = (pristine / LOG_NAME).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    verdict = verdict_after(pristine, lambda copy: (copy / LOG_NAME).write_bytes(whole[:at]))
    assert (verdict.ok, verdict.at_seq) == (False, whole.count(b"\n", 0, at) + 1)


@given(st.binary(min_size=1, max_size=200))
@settings(max_examples=60, deadline=None)
def test_anything_behind_the_end_of_a_closed_log_is_seen(pristine: Path, more: bytes) -> None:
    def add(copy: Path) -> None:
        with open(copy / LOG_NAME, "ab") as log:
            log.write(more)

    verdict = verdict_after(pristine, add)
    assert (verdict.ok, verdict.at_seq) == (False, RECORDS + 1)


@pytest.mark.parametrize(
    ("change", "at_seq"),
    [
        (lambda copy: (copy / LOG_NAME).unlink(), 1),
        (lambda copy: (copy / LOG_NAME).write_bytes(b""), 1),
        (lambda copy: (copy / LOG_NAME).write_bytes(bytes(4096)), 1),
        (lambda copy: (copy / LOG_NAME).write_bytes(b"x" * (chain.MAX_RECORD_BYTES + 9)), 1),
        (lambda copy: (copy / HEAD_NAME).unlink(), None),
        (lambda copy: (copy / HEAD_NAME).write_bytes(b""), None),
        (lambda copy: (copy / HEAD_NAME).write_bytes(b"12 live\n"), None),
    ],
)
def test_a_removed_or_emptied_file_is_seen(
    pristine: Path, change: Callable[[Path], object], at_seq: int | None
) -> None:
    verdict = verdict_after(pristine, change)
    assert (verdict.ok, verdict.at_seq) == (False, at_seq)
    assert verdict.detail


def test_a_removed_cut_or_renamed_segment_is_seen(pristine_segments: Path) -> None:
    names = sorted(path.name for path in pristine_segments.glob("audit-*.jsonl"))
    starts = [int(name[6:26]) for name in names]
    for name, start in zip(names, starts, strict=True):

        def remove(copy: Path, n: str = name) -> None:
            (copy / n).unlink()

        removed = verdict_after(pristine_segments, remove)
        assert (removed.ok, removed.at_seq) == (False, start)

        def cut(copy: Path, n: str = name) -> None:
            whole = (copy / n).read_bytes()
            (copy / n).write_bytes(whole[:-1])

        verdict = verdict_after(pristine_segments, cut)
        assert not verdict.ok
        assert verdict.at_seq is not None
        assert verdict.at_seq >= start

    def swap(copy: Path) -> None:
        (copy / names[0]).rename(copy / "spare")
        (copy / names[1]).rename(copy / names[0])
        (copy / "spare").rename(copy / names[1])

    assert verdict_after(pristine_segments, swap).at_seq == 1


def test_a_rewrite_of_log_and_head_is_seen_against_a_head_kept_elsewhere(tmp_path: Path) -> None:
    write_log(tmp_path / "audit")
    kept = chain.verify(tmp_path / "audit").head
    assert chain.verify(tmp_path / "audit", kept=kept).ok
    shutil.rmtree(tmp_path / "audit")
    write_log(tmp_path / "audit")
    assert chain.verify(tmp_path / "audit").ok  # the limit that the format's docstring states
    verdict = chain.verify(tmp_path / "audit", kept=kept)
    assert (verdict.ok, verdict.at_seq) == (False, RECORDS)
    longer = chain.verify(tmp_path / "audit", kept=Link(RECORDS + 5, "0" * 64))
    assert (longer.ok, longer.at_seq) == (False, RECORDS + 1)


def test_a_directory_without_a_log_is_not_whole(tmp_path: Path) -> None:
    assert chain.verify(tmp_path).detail == "audit.head is missing"
    with pytest.raises(FileNotFoundError):
        chain.verify(tmp_path / "nothing")


def test_the_log_is_not_followed_through_a_symbolic_link(pristine: Path) -> None:
    def link(copy: Path) -> None:
        (copy / LOG_NAME).rename(copy / "elsewhere")
        (copy / LOG_NAME).symlink_to("elsewhere")

    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        verdict_after(pristine, link)

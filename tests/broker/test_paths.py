# SPDX-License-Identifier: Apache-2.0
"""Lexical rules for paths, against pathlib as an independent reading."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import BadPathError
from broker.paths import MAX_PATH_BYTES, ancestors, contains, parse_client_path, segments

SEGMENTS = st.sampled_from([b"a", b"ab", b"a-b", b"a.b", b"...", b".a", b"\xff", b" ", b"\n", b"*"])
PATHS = st.lists(SEGMENTS, max_size=5).map(lambda parts: b"/" + b"/".join(parts))


@pytest.mark.parametrize(
    ("given_path", "clean"),
    [
        (b"/", b"/"),
        (b"/srv", b"/srv"),
        (b"/srv/", b"/srv"),
        (b"/srv/a b/\xe9\n", b"/srv/a b/\xe9\n"),
        (b"/.../..a/.b/c..", b"/.../..a/.b/c.."),
        (b"/~/x", b"/~/x"),
        (b"/" + b"a" * (MAX_PATH_BYTES - 1), b"/" + b"a" * (MAX_PATH_BYTES - 1)),
    ],
)
def test_a_clean_path_is_taken(given_path: bytes, clean: bytes):
    assert parse_client_path(given_path) == clean


@pytest.mark.parametrize(
    ("given_path", "why"),
    [
        (b"", "is empty"),
        (b"srv", "is not absolute"),
        (b"./srv", "is not absolute"),
        (b"~/x", "starts with '~', which only a shell expands; spell it out"),
        (b"~root", "starts with '~', which only a shell expands; spell it out"),
        (b"/srv/..", "has a '..' component"),
        (b"/../srv", "has a '..' component"),
        (b"/srv/../", "has a '..' component"),
        (b"/srv/.", "has a '.' component"),
        (b"/./srv", "has a '.' component"),
        (b"/srv/./", "has a '.' component"),
        (b"//", "has an empty component ('//')"),
        (b"//srv", "has an empty component ('//')"),
        (b"/srv//x", "has an empty component ('//')"),
        (b"/srv//", "has an empty component ('//')"),
        (b"/srv\0", "holds a NUL"),
        (b"\0", "holds a NUL"),
        (b"/" + b"a" * MAX_PATH_BYTES, f"is longer than {MAX_PATH_BYTES} bytes"),
        (b"/" + b"a" * (MAX_PATH_BYTES - 1) + b"/", f"is longer than {MAX_PATH_BYTES} bytes"),
    ],
)
def test_any_other_is_refused_with_the_reason(given_path: bytes, why: str):
    with pytest.raises(BadPathError) as caught:
        parse_client_path(given_path)
    assert caught.value.why == why
    assert caught.value.path == given_path


@given(st.lists(st.sampled_from([b"/", b".", b"..", b"a", b"\0", b"~"]), max_size=9).map(b"".join))
@example(b"/a/../b")
def test_parsing_agrees_with_a_reading_by_components(raw: bytes):
    body = raw[1:-1] if len(raw) > 1 and raw.endswith(b"/") else raw[1:]
    parts = body.split(b"/") if body else []
    clean = (
        raw.startswith(b"/")
        and b"\0" not in raw
        and not any(part in (b"", b".", b"..") for part in parts)
        and raw != b"//"
    )
    if clean:
        assert parse_client_path(raw) == b"/" + b"/".join(parts)
        assert parse_client_path(parse_client_path(raw)) == parse_client_path(raw)
    else:
        with pytest.raises(BadPathError):
            parse_client_path(raw)


@given(PATHS, PATHS)
@example(b"/a", b"/a-b")
@example(b"/a", b"/ab")
@example(b"/a", b"/a/b")
def test_containment_goes_by_segment(root: bytes, path: bytes):
    expected = PurePosixPath(path.decode("latin-1")).is_relative_to(root.decode("latin-1"))
    assert contains(root, path) is expected


@given(PATHS)
def test_ancestors_are_all_that_contain_the_path(path: bytes):
    listed = list(ancestors(path))
    reading = PurePosixPath(path.decode("latin-1"))
    assert listed == [str(p).encode("latin-1") for p in (reading, *reading.parents)]
    assert all(contains(ancestor, path) for ancestor in listed)
    assert len(listed) == len(segments(path)) + 1


@pytest.mark.parametrize(
    ("path", "parts"), [(b"/", ()), (b"/a", (b"a",)), (b"/a/\xff", (b"a", b"\xff"))]
)
def test_segments(path: bytes, parts: tuple[bytes, ...]):
    assert segments(path) == parts

# SPDX-License-Identifier: Apache-2.0
"""Paths as bytes: what a caller may send, and containment by segment.

Lexical only.  That a path also *is* where it says is for those who open it: roots are opened with
RESOLVE_NO_SYMLINKS, and the kernel enforces the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NewType

from broker.errors import BadPathError

CleanPath = NewType("CleanPath", bytes)
"""Absolute, no `.`, `..`, `//`, NUL, no slash at the end (but for `/` itself)."""

MAX_PATH_BYTES = 4095
"""PATH_MAX is 4096 and counts the NUL (path_resolution(7))."""

# One pass, no backtracking: a segment is neither empty nor a run of one or two dots.
_CLEAN = re.compile(rb"(?:/(?!\.{1,2}(?:/|\Z))[^/\0]+)+")


def parse_client_path(raw: bytes) -> CleanPath:
    """Returns the path, without one trailing slash.  Raises BadPathError with the first reason.

    `..` is refused rather than resolved: what it names depends on symbolic links.
    """
    if len(raw) <= MAX_PATH_BYTES:
        if _CLEAN.fullmatch(raw) or raw == b"/":
            return CleanPath(raw)
        if _CLEAN.fullmatch(raw[:-1]) and raw.endswith(b"/"):
            return CleanPath(raw[:-1])
    raise BadPathError(_objection(raw), raw)


def _objection(raw: bytes) -> str:
    if not raw:
        return "is empty"
    if len(raw) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if b"\0" in raw:
        return "holds a NUL"
    if raw.startswith(b"~"):
        return "starts with '~', which only a shell expands; spell it out"
    if not raw.startswith(b"/"):
        return "is not absolute"
    parts = raw.split(b"/")
    if b".." in parts:
        return "has a '..' component"
    if b"." in parts:
        return "has a '.' component"
    return "has an empty component ('//')"


def segments(path: bytes) -> tuple[bytes, ...]:
    """`/` has none."""
    return tuple(part for part in path.split(b"/") if part)


def contains(root: bytes, path: bytes) -> bool:
    """Whether `path` is `root` or lies below it, by segment: /srv/x does not contain /srv/x-y."""
    if root == b"/":
        return True
    return path == root or path.startswith(root + b"/")


def ancestors(path: bytes) -> Iterator[bytes]:
    """The path itself, its parent, …, `/`.  As many as it has segments, plus one."""
    while path != b"/":
        yield path
        path = path[: path.rindex(b"/")] or b"/"
    yield b"/"

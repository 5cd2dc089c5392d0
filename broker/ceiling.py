# SPDX-License-Identifier: Apache-2.0
"""The operator's ceiling: bytes of ceiling.toml → Ceiling, and what of a request lies under it.

Owns the file's grammar, the intersection, and the limits.  Leaves to config.py reading the file,
checking who owns it, and asking the disk where a path really is (`canonicalised` takes the answer).

    effective = requested ∩ ceiling, by path segment

The intersection never widens: a requested directory that contains an entry narrows to the entry.
"Not configured" never means "unlimited": a Ceiling without roots denies everything and says why.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce

from broker.errors import BadPathError, LimitExceededError, shown, shown_bytes
from broker.model import (
    ALL_ACCESS,
    NO_ACCESS,
    Access,
    Confinement,
    ExecRequest,
    Limits,
    Network,
    Reason,
    Root,
)
from broker.paths import ancestors, contains, parse_client_path

MAX_CEILING_BYTES = 4 * 1024 * 1024
MAX_CEILING_ROOTS = 16_384

DEFAULT_TIMEOUT_MS = 120_000
DEFAULT_GRACE_MS = 2_000
MAX_GRACE_MS = 10_000
DEFAULT_KEEP_BYTES = 512 * 1024
"""Of each of head and tail, of each of stdout and stderr."""

_MAX_SYMLINKS = 40  # as path_resolution(7): bounds the walk through aliases
_NEWLINE = b"\n"
_PATTERN_CHARACTERS = re.compile(rb"[*?\[]")


class CeilingError(Exception):
    """The file cannot be understood as a whole, so it denies everything.

    Says what, where, why, and the fix, to the operator (status, log): it may name paths.
    """

    def __init__(self, what: str, where: str, why: str, fix: str) -> None:
        super().__init__(f"{what} ({where}): {why}; {fix}")
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix


@dataclass(frozen=True, slots=True)
class CeilingLimits:
    """`[limits]`: the most a run may ask for.  None: not limited by us."""

    max_timeout_ms: int = 600_000
    max_output_bytes: int = 4 * 1024 * 1024  # head + tail, of each of stdout and stderr
    max_memory_bytes: int | None = None
    max_processes: int | None = None
    max_open_files: int | None = None
    max_cpu_s: int | None = None
    max_file_size_bytes: int | None = None
    max_runs: int = 16


_LIMIT_RANGES: dict[str, tuple[int, int]] = {
    "max_timeout_ms": (1, 86_400_000),
    "max_output_bytes": (1, 64 * 1024 * 1024),
    "max_memory_bytes": (1024 * 1024, 2**53),
    "max_processes": (1, 4_194_304),
    "max_open_files": (16, 1_048_576),
    "max_cpu_s": (1, 2**31),
    "max_file_size_bytes": (1, 2**53),
    "max_runs": (1, 1024),
}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the operator allows.  Normalised when made: `roots` are merged and sorted.

    `aliases` are pairs (path as written, path as it really is), so that a caller may use either.
    `warnings` are sentences for the operator.  When `deny_code` is set nothing is allowed, and
    `deny_reason` says why in a sentence for the operator.
    """

    roots: tuple[Root, ...] = ()
    confinement: Confinement = Confinement.SANDBOXED
    trusted_single_operator: bool = False
    network: Network = Network.NONE
    environment: str = "minimal"
    baseline: bool = True
    limits: CeilingLimits = CeilingLimits()
    aliases: tuple[tuple[bytes, bytes], ...] = ()
    warnings: tuple[str, ...] = ()
    deny_code: Reason | None = None
    deny_reason: str | None = None
    _roots_at: _PathIndex = field(init=False, repr=False, compare=False)
    _aliases_at: _PathIndex = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept = () if self.deny_code else merged(self.roots)
        aliases = dict(self.aliases)
        spelled = sorted(aliases, key=_sort_key)
        put = object.__setattr__  # frozen: this is the one moment of making
        put(self, "roots", kept)
        put(self, "aliases", tuple((path, aliases[path]) for path in spelled))
        put(self, "_roots_at", _PathIndex([root.path for root in kept]))
        put(self, "_aliases_at", _PathIndex(spelled))
        if not kept and self.deny_code is None:
            put(self, "deny_code", Reason.CEILING_EMPTY)
            put(self, "deny_reason", "the ceiling lists no read, write or exec path")

    def rights(self, path: bytes) -> Access:
        """What is allowed at a canonical path.  Costs as many look-ups as the path has segments."""
        for ancestor in ancestors(path):
            found = self._roots_at.position(ancestor)
            if found is not None:
                return self.roots[found].access  # merged: holds its parents' rights too
        return NO_ACCESS

    def allows(self, path: bytes, access: Access) -> bool:
        """Whether all of `access` is allowed at the path, in either spelling."""
        return access in self.rights(canonical(path, self))

    def below(self, path: bytes) -> Sequence[Root]:
        """The roots strictly below a canonical path."""
        first, end = self._roots_at.below(path)
        return self.roots[first:end]


class _PathIndex:
    """Distinct paths in `_sort_key` order: exact look-up, and the range below a path."""

    __slots__ = ("_keys", "_positions")

    def __init__(self, ordered: Sequence[bytes]) -> None:
        self._keys = [_sort_key(path) for path in ordered]
        self._positions = {path: at for at, path in enumerate(ordered)}

    def position(self, path: bytes) -> int | None:
        return self._positions.get(path)

    def below(self, path: bytes) -> tuple[int, int]:
        key = _sort_key(path)
        return bisect_left(self._keys, key + b"\0"), bisect_left(self._keys, key + b"\1")


def _sort_key(path: bytes) -> bytes:
    """Puts a directory right before all that is below it.

    Plain byte order would not: it has `/a-b` between `/a` and `/a/c`.
    """
    return b"" if path == b"/" else path.replace(b"/", b"\0")


def deny_all(code: Reason, why: str) -> Ceiling:
    """The ceiling in force while the file is missing, malformed or not to be trusted."""
    return Ceiling(deny_code=code, deny_reason=why)


# --- intersection ---------------------------------------------------------------------------------


def merged(roots: Iterable[Root]) -> tuple[Root, ...]:
    """The one shortest tuple that covers the same, sorted parents first.

    Rights add up along a path, as they do in the kernel: each root kept holds its parents' rights
    too, and one that adds nothing to its parent is dropped.  Roots without rights are dropped.
    """
    own: dict[bytes, int] = {}
    for root in roots:
        own[root.path] = own.get(root.path, 0) | _BITS[root.access]
    kept: list[Root] = []
    parents: list[tuple[bytes, int]] = [(b"", 0)]  # each below the one before it
    for path in sorted(own, key=_sort_key):
        while not (path + b"/").startswith(parents[-1][0]):
            parents.pop()
        inherited = parents[-1][1]
        rights = own[path] | inherited
        if rights != inherited:
            kept.append(Root(path, _ACCESS[rights]))
            parents.append((path.rstrip(b"/") + b"/", rights))
    return tuple(kept)


# Flags are slow to combine; a ceiling may have ten thousand.
_ACCESS = tuple(Access(bits) for bits in range(ALL_ACCESS.value + 1))
_BITS = {access: bits for bits, access in enumerate(_ACCESS)}


def covers(roots: Iterable[Root], path: bytes, access: Access) -> bool:
    """Whether the roots together allow all of `access` at the path.  Linear in the roots.

    For a whole ceiling use `Ceiling.allows`, which is not.
    """
    have = (root.access for root in roots if contains(root.path, path))
    return access in reduce(Access.__or__, have, NO_ACCESS)


def canonical(path: bytes, ceiling: Ceiling) -> bytes:
    """The path with a root as written replaced by the root as it really is."""
    for _ in range(_MAX_SYMLINKS):
        found = _alias_over(path, ceiling)
        if found is None:
            break
        spelled, real = found
        rest = path[len(spelled) :]
        path = (real.rstrip(b"/") + rest) or b"/"
    return path


def _alias_over(path: bytes, ceiling: Ceiling) -> tuple[bytes, bytes] | None:
    if not ceiling.aliases:
        return None
    for ancestor in ancestors(path):
        found = ceiling._aliases_at.position(ancestor)
        if found is not None:
            return ceiling.aliases[found]
    return None


def clamp(requested: Iterable[Root] | None, ceiling: Ceiling) -> tuple[Root, ...]:
    """requested ∩ ceiling, in canonical paths.  None asks for everything there is.

    Returns `ceiling.roots` itself for None, so that a cache may go by identity.
    """
    if requested is None:
        return ceiling.roots
    places = (
        Root(path, root.access)
        for root in merged(requested)
        for path in _places(root.path, ceiling)
    )
    # Merged, a path lies below at most two others: no root of the ceiling is looked at often.
    return merged(part for place in merged(places) for part in _clamp_one(place, ceiling))


def _clamp_one(place: Root, ceiling: Ceiling) -> Iterable[Root]:
    yield Root(place.path, place.access & ceiling.rights(place.path))
    for entry in ceiling.below(place.path):
        yield Root(entry.path, place.access & entry.access)


def _places(path: bytes, ceiling: Ceiling) -> Iterable[bytes]:
    """Where a requested directory really is, and where links below it that are roots lead."""
    real = canonical(path, ceiling)
    yield real
    for below in {path, real}:
        first, end = ceiling._aliases_at.below(below)
        for _, target in ceiling.aliases[first:end]:
            yield canonical(target, ceiling)


def overlapping(ceiling: Ceiling, path: bytes) -> tuple[Root, ...]:
    """The roots that contain the path or lie below it, for refusing those that reach our files."""
    over = (ceiling._roots_at.position(ancestor) for ancestor in ancestors(path))
    containing = tuple(ceiling.roots[at] for at in over if at is not None)
    return containing + tuple(ceiling.below(path))


def canonicalised(
    ceiling: Ceiling, real_paths: Mapping[bytes, bytes], missing: Iterable[bytes] = ()
) -> Ceiling:
    """The ceiling with each root where it really is; both spellings go on working.

    `real_paths` maps roots to their realpath (roots not in it stay).  `missing` are roots that do
    not exist: they stay as written, and the operator is warned.
    """
    moved = {
        root.path: real_paths[root.path]
        for root in ceiling.roots
        if real_paths.get(root.path, root.path) != root.path
    }
    notes = tuple(
        f"root {shown_bytes(path)} does not exist, ignoring it until it does"
        for path in sorted(missing)
    )
    if not moved and not notes:
        return ceiling
    return replace(
        ceiling,
        roots=tuple(Root(moved.get(root.path, root.path), root.access) for root in ceiling.roots),
        aliases=ceiling.aliases + tuple(moved.items()),
        warnings=ceiling.warnings + notes,
    )


# --- limits ---------------------------------------------------------------------------------------


def effective_limits(request: ExecRequest, ceiling: Ceiling) -> Limits:
    """What the run may use.  Raises LimitExceededError for what was asked above the ceiling.

    Nothing asked for is clamped silently; only defaults shrink to fit.
    """
    top = ceiling.limits
    head, tail = _kept_bytes(request, top.max_output_bytes)
    return Limits(
        timeout_ms=_at_most(
            "timeout_ms", request.timeout_ms, DEFAULT_TIMEOUT_MS, top.max_timeout_ms
        ),
        grace_ms=_at_most("grace_ms", request.grace_ms, DEFAULT_GRACE_MS, MAX_GRACE_MS),
        head_bytes=head,
        tail_bytes=tail,
        memory_bytes=top.max_memory_bytes,
        processes=top.max_processes,
        open_files=top.max_open_files,
        cpu_s=top.max_cpu_s,
        file_size_bytes=top.max_file_size_bytes,
    )


def _at_most(name: str, asked: int | None, default: int, limit: int) -> int:
    if asked is None:
        return min(default, limit)
    if asked > limit:
        raise LimitExceededError(name, limit, asked, "ms")
    return asked


def _kept_bytes(request: ExecRequest, limit: int) -> tuple[int, int]:
    asked = (request.head_bytes or 0) + (request.tail_bytes or 0)
    if asked > limit:
        raise LimitExceededError("output", limit, asked, "bytes of head and tail")
    head, tail = request.head_bytes, request.tail_bytes
    if head is None and tail is None:
        head = min(DEFAULT_KEEP_BYTES, limit // 2)
    if head is None:
        head = min(DEFAULT_KEEP_BYTES, limit - asked)
    if tail is None:
        tail = min(DEFAULT_KEEP_BYTES, limit - head)
    return head, tail


# --- the file -------------------------------------------------------------------------------------

_ROOT_KEYS: dict[str, Access] = {
    "read": Access.READ,
    "write": Access.READ | Access.WRITE,
    "exec": Access.EXEC,
}
_KEYS = (
    *_ROOT_KEYS,
    "network",
    "confinement",
    "trusted_single_operator",
    "baseline",
    "environment",
    "limits",
)


def parse_ceiling(data: bytes) -> Ceiling:
    """Returns the ceiling (one without roots denies everything).  Raises CeilingError.

    All or nothing: one bad entry refuses the whole file, since an entry left out could be the one
    that was meant to bound the rest.
    """
    return _Reader(data).ceiling()


class _Reader:
    """One file being read: keeps the text for naming lines in errors."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_CEILING_BYTES:
            raise CeilingError(
                "the file",
                f"{len(data)} bytes",
                f"is larger than {MAX_CEILING_BYTES} bytes",
                "grant directories instead of single files",
            )
        self._text = _decoded(data)
        self._table = _parsed(self._text)

    def ceiling(self) -> Ceiling:
        self._refuse_unknown(self._table, _KEYS, "")
        roots, warnings = self._roots()
        trusted = self._flag("trusted_single_operator", False)
        confinement = Confinement(
            self._choice("confinement", [mode.value for mode in Confinement], "sandboxed")
        )
        if confinement is Confinement.UNCONFINED and not trusted:
            confinement = Confinement.SANDBOXED
            warnings.append(
                "confinement = 'unconfined' counts only beside trusted_single_operator = true, "
                "staying sandboxed"
            )
        return Ceiling(
            roots=tuple(roots),
            confinement=confinement,
            trusted_single_operator=trusted,
            network=Network(self._choice("network", [net.value for net in Network], "none")),
            environment=self._choice("environment", ["minimal", "developer"], "minimal"),
            baseline=self._flag("baseline", True),
            limits=self._limits(),
            warnings=tuple(warnings),
        )

    def _roots(self) -> tuple[list[Root], list[str]]:
        roots: list[Root] = []
        warnings: list[str] = []
        for key, access in _ROOT_KEYS.items():
            for at, entry in enumerate(self._list(key)):
                path = self._path(key, at, entry)
                roots.append(Root(path, access))
                if path == b"/" or _PATTERN_CHARACTERS.search(path):
                    warnings.append(_root_warning(key, path))
        if len(roots) > MAX_CEILING_ROOTS:
            raise CeilingError(
                "read, write and exec",
                f"{len(roots)} entries",
                f"are more than {MAX_CEILING_ROOTS}",
                "grant directories instead of single files",
            )
        return roots, warnings

    def _list(self, key: str) -> list[object]:
        value = self._table.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list of paths", f'write {key} = ["/srv/project"]')
        return value

    def _path(self, key: str, at: int, entry: object) -> bytes:
        if not isinstance(entry, str):
            raise self._wrong(f"{key}[{at}]", entry, "a path in quotes", "quote it")
        try:
            return parse_client_path(entry.encode())
        except BadPathError as bad:
            raise CeilingError(
                f"{key}[{at}] {shown(entry)}",
                self._where_entry(key, entry),
                bad.why,
                "write the absolute path without '.', '..' or '//'",
            ) from bad

    def _flag(self, key: str, default: bool) -> bool:
        value = self._table.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false", "write it without quotes")
        return value

    def _choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self._table.get(key, default)
        listed = " or ".join(f'"{choice}"' for choice in choices)
        if not isinstance(value, str):
            raise self._wrong(key, value, listed, "write one of them")
        if value not in choices:
            raise CeilingError(
                key, self._where(key), f"is {shown(value)}, not {listed}", "write one of them"
            )
        return value

    def _limits(self) -> CeilingLimits:
        table = self._table.get("limits", {})
        if not isinstance(table, dict):
            raise self._wrong("limits", table, "a table", "write a line [limits], then its keys")
        self._refuse_unknown(table, [limit.name for limit in fields(CeilingLimits)], "limits.")
        return CeilingLimits(**{key: self._number(key, value) for key, value in table.items()})

    def _number(self, key: str, value: object) -> int:
        least, most = _LIMIT_RANGES[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number", "write digits only")
        if not least <= value <= most:
            raise CeilingError(
                f"limits.{key}",
                self._where(key),
                f"is {value}, not between {least} and {most}",
                "there is no value that means unlimited; leave the key out for the default",
            )
        return value

    def _refuse_unknown(
        self, table: Mapping[str, object], known: Sequence[str], under: str
    ) -> None:
        for key in table:
            if key in known:
                continue
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            raise CeilingError(
                f"unknown key {shown(under + key)}",
                self._where(key),
                "the ceiling has no such key, and ignoring it could allow too much",
                f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}",
            )

    def _wrong(self, key: str, value: object, wanted: str, fix: str) -> CeilingError:
        found = _TOML_NAMES.get(type(value), "a date or time")
        name = key.partition("[")[0]
        return CeilingError(key, self._where(name), f"is {found}, not {wanted}", fix)

    def _where(self, key: str) -> str:
        """The line a key is set on; the key alone where it is spelled in an unusual way."""
        line = re.search(
            rf"^[ \t]*(?:\[+[ \t]*)?[\"']?{re.escape(key)}[\"']?[ \t]*[]=.]",
            self._text,
            re.MULTILINE,
        )
        return f"line {_line_at(self._text, line.start())}" if line else f"key {shown(key)}"

    def _where_entry(self, key: str, entry: str) -> str:
        start = re.search(rf"^[ \t]*{key}[ \t]*=", self._text, re.MULTILINE)
        found = -1 if start is None else self._text.find(entry, start.end())
        return f"line {_line_at(self._text, found)}" if found >= 0 else self._where(key)


_TOML_NAMES: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a fraction",
    list: "a list",
    dict: "a table",
}


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as bad:
        raise CeilingError(
            "the file",
            f"line {1 + data.count(_NEWLINE, 0, bad.start)}",
            f"is not UTF-8 at byte {bad.start}",
            "save it as UTF-8; for a name that is not, grant the directory it is in",
        ) from bad


def _parsed(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as bad:
        why, _, at = str(bad).partition(" (at ")
        raise CeilingError(
            "the file", at.rstrip(")") or "some line", f"is not TOML: {why}", "correct it"
        ) from bad
    except RecursionError as bad:
        raise CeilingError("the file", "some line", "is nested too deeply", "correct it") from bad


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _root_warning(key: str, path: bytes) -> str:
    if path == b"/":
        return f"{key} lists '/': the ceiling allows the whole machine"
    return f"{key} lists {shown_bytes(path)}: '*', '?' and '[' are no patterns but characters"

# SPDX-License-Identifier: Apache-2.0
"""The ceiling: its file, and the intersection, against pathlib as an independent oracle.

The oracle knows nothing of sorting, merging or indexes: a root covers what `is_relative_to` it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import ceiling as module
from broker.ceiling import (
    DEFAULT_GRACE_MS,
    DEFAULT_KEEP_BYTES,
    DEFAULT_TIMEOUT_MS,
    MAX_CEILING_BYTES,
    MAX_CEILING_ROOTS,
    MAX_GRACE_MS,
    Ceiling,
    CeilingError,
    CeilingLimits,
    canonical,
    canonicalised,
    clamp,
    covers,
    deny_all,
    effective_limits,
    merged,
    overlapping,
    parse_ceiling,
)
from broker.errors import LimitExceededError
from broker.model import (
    ALL_ACCESS,
    NO_ACCESS,
    Access,
    Confinement,
    ExecRequest,
    Network,
    Reason,
    Root,
)

R, W, X = Access.READ, Access.WRITE, Access.EXEC
EXAMPLE = Path(__file__).parents[2] / "ceiling.example.toml"

# Few, alike names: overlaps and near misses (`/a`, `/a-`, `/ab`) are what matters.
SEGMENTS = st.sampled_from([b"a", b"a-", b"ab", b"b", b"\xff"])
PATHS = st.lists(SEGMENTS, max_size=4).map(lambda parts: b"/" + b"/".join(parts))
ACCESS = st.integers(0, ALL_ACCESS.value).map(Access)
ROOTS = st.lists(st.builds(Root, PATHS, ACCESS), max_size=6)
ONE_RIGHT = st.sampled_from([R, W, X])


def oracle(roots: Sequence[Root], path: bytes, right: Access) -> bool:
    place = PurePosixPath(path.decode("latin-1"))
    return any(
        right in root.access and place.is_relative_to(root.path.decode("latin-1")) for root in roots
    )


def both_happened(seen: Counter[bool]) -> None:
    """A property that only ever saw one answer has shown nothing."""
    assert min(seen[True], seen[False]) >= 20, seen


# --- intersection ---------------------------------------------------------------------------------


CLAMPS: dict[str, tuple[list[Root], list[Root], list[Root]]] = {
    "a directory inside an entry stays itself": (
        [Root(b"/srv/p/x", R)],
        [Root(b"/srv/p", R)],
        [Root(b"/srv/p/x", R)],
    ),
    "the entry itself": ([Root(b"/srv/p", R)], [Root(b"/srv/p", R)], [Root(b"/srv/p", R)]),
    "a parent narrows to the entry": (
        [Root(b"/srv", R)],
        [Root(b"/srv/p", R)],
        [Root(b"/srv/p", R)],
    ),
    "the root narrows to every entry": (
        [Root(b"/", R | W)],
        [Root(b"/srv/p", R), Root(b"/data", R | W)],
        [Root(b"/data", R | W), Root(b"/srv/p", R)],
    ),
    "a name that only begins alike": ([Root(b"/srv/p-secret", R)], [Root(b"/srv/p", R)], []),
    "a sibling": ([Root(b"/srv/q", R)], [Root(b"/srv/p", R)], []),
    "rights are cut to the entry's": (
        [Root(b"/srv/p", R | W | X)],
        [Root(b"/srv/p", R)],
        [Root(b"/srv/p", R)],
    ),
    "no right in common": ([Root(b"/srv/p", W)], [Root(b"/srv/p", R)], []),
    "entries over one another add up": (
        [Root(b"/srv/p/x/y", R | W | X)],
        [Root(b"/srv", R), Root(b"/srv/p", R | W), Root(b"/srv/p/x", X)],
        [Root(b"/srv/p/x/y", R | W | X)],
    ),
    "an entry below adds its own": (
        [Root(b"/srv", R | X)],
        [Root(b"/srv", R), Root(b"/srv/bin", X)],
        [Root(b"/srv", R), Root(b"/srv/bin", R | X)],
    ),
    "the whole machine, when the operator says so": (
        [Root(b"/etc", R)],
        [Root(b"/", R)],
        [Root(b"/etc", R)],
    ),
    "bytes that are not UTF-8": (
        [Root(b"/srv/\xe9/x", R)],
        [Root(b"/srv/\xe9", R)],
        [Root(b"/srv/\xe9/x", R)],
    ),
    "nothing asked for": ([], [Root(b"/srv", R)], []),
    "nothing allowed": ([Root(b"/srv", R)], [], []),
}


@pytest.mark.parametrize("name", CLAMPS)
def test_clamp(name: str):
    requested, allowed, effective = CLAMPS[name]
    assert clamp(requested, Ceiling(tuple(allowed))) == tuple(effective)


def test_asking_for_nothing_particular_gives_the_ceilings_own_tuple():
    ceiling = Ceiling((Root(b"/srv", R),))
    assert clamp(None, ceiling) is ceiling.roots


def test_clamp_is_exact():
    """covers(clamp(R, C), p) ⇔ covers(R, p) ∧ covers(C, p), for each right by itself."""
    seen: Counter[bool] = Counter()

    @settings(deadline=None, max_examples=1500)
    @given(ROOTS, ROOTS, PATHS, ONE_RIGHT)
    def check(requested: list[Root], allowed: list[Root], path: bytes, right: Access) -> None:
        expected = oracle(requested, path, right) and oracle(allowed, path, right)
        effective = clamp(requested, Ceiling(tuple(allowed)))
        assert oracle(effective, path, right) is expected
        assert covers(effective, path, right) is expected
        seen[expected] += 1

    check()
    both_happened(seen)


@settings(deadline=None, max_examples=500)
@given(ROOTS, ROOTS, ROOTS)
def test_clamp_is_idempotent_and_grows_only_with_what_it_is_given(
    requested: list[Root], allowed: list[Root], more: list[Root]
):
    ceiling, wider = Ceiling(tuple(allowed)), Ceiling(tuple(allowed + more))
    effective = clamp(requested, ceiling)
    assert clamp(effective, ceiling) == effective
    assert clamp(effective, Ceiling(effective)) == effective
    for larger in (clamp(requested + more, ceiling), clamp(requested, wider)):
        assert all(covers(larger, root.path, root.access) for root in effective)
    assert clamp(requested, Ceiling()) == ()


@settings(deadline=None, max_examples=500)
@given(ROOTS, PATHS, ACCESS)
def test_default_deny(requested: list[Root], path: bytes, access: Access):
    """No ceiling, no root, whatever is asked for."""
    for denied in (Ceiling(), deny_all(Reason.CEILING_MALFORMED, "cannot read it")):
        assert clamp(requested, denied) == ()
        assert clamp(None, denied) == ()
        assert denied.rights(path) == NO_ACCESS
        assert not denied.allows(path, access | R)
        assert denied.deny_code is not None
        assert denied.deny_reason


def test_rights_agree_with_the_oracle():
    seen: Counter[bool] = Counter()

    @settings(deadline=None, max_examples=800)
    @given(ROOTS, PATHS, ONE_RIGHT)
    def check(allowed: list[Root], path: bytes, right: Access) -> None:
        ceiling = Ceiling(tuple(allowed))
        expected = oracle(allowed, path, right)
        assert (right in ceiling.rights(path)) is expected
        assert ceiling.allows(path, right) is expected
        assert covers(allowed, path, right) is expected
        seen[expected] += 1

    check()
    both_happened(seen)


@settings(deadline=None, max_examples=500)
@given(ROOTS, ROOTS, PATHS)
def test_merged_is_the_one_shortest_form(roots: list[Root], more: list[Root], path: bytes):
    short = merged(roots)
    assert all(oracle(short, path, right) == oracle(roots, path, right) for right in (R, W, X))
    assert merged(short) == short
    assert merged(reversed(roots)) == short
    assert len(short) <= len({root.path for root in roots})
    for root in short:  # each adds something to what lies above it
        above = [other for other in short if other != root]
        assert not covers(above, root.path, root.access)
    same = all(
        oracle(roots, at, right) == oracle(more, at, right)
        for at in {root.path for root in roots + more}
        for right in (R, W, X)
    )
    assert (merged(more) == short) is same


def test_parts_of_the_name_of_a_directory_are_no_part_of_it():
    """`-` sorts before `/`: a walk in byte order would close /a at /a-b and miss /a/c."""
    roots = (Root(b"/a", R | W), Root(b"/a-b", R), Root(b"/a/c", R), Root(b"/a.b", R))
    assert {root.path for root in merged(roots)} == {b"/a", b"/a-b", b"/a.b"}
    assert [root.path for root in Ceiling(roots).below(b"/")] == [b"/a", b"/a-b", b"/a.b"]


@settings(deadline=None, max_examples=300)
@given(ROOTS, PATHS)
def test_overlapping_are_the_roots_that_contain_a_path_or_lie_below_it(
    roots: list[Root], path: bytes
):
    ceiling = Ceiling(tuple(roots))
    place = PurePosixPath(path.decode("latin-1"))
    expected = {
        root
        for root in ceiling.roots
        if place.is_relative_to(root.path.decode("latin-1"))
        or PurePosixPath(root.path.decode("latin-1")).is_relative_to(place)
    }
    listed = overlapping(ceiling, path)
    assert set(listed) == expected
    assert len(listed) == len(expected)


def calls(action: Callable[[], object]) -> int:
    """Function calls made, C functions included: work, without a clock."""
    count = 0

    def count_call(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_a_request_costs_the_same_under_ten_roots_as_under_ten_thousand():
    small, large = (
        Ceiling(tuple(Root(b"/srv/%d/p" % number, R | W) for number in range(count)))
        for count in (10, 10_000)
    )
    request = (Root(b"/srv/7/p/x", R), Root(b"/srv/9", R | W), Root(b"/elsewhere", R))
    assert len(large.roots) == 10_000
    assert clamp(request, large) == clamp(request, small) != ()
    assert calls(lambda: clamp(request, large)) == calls(lambda: clamp(request, small))
    assert calls(lambda: large.allows(b"/srv/7/p/x/y", R)) < 50


# --- two spellings --------------------------------------------------------------------------------

LINKED = canonicalised(
    Ceiling((Root(b"/srv/p", R | W), Root(b"/srv/q", R), Root(b"/bin", X))),
    {b"/srv/p": b"/data/p", b"/bin": b"/usr/bin", b"/srv/q": b"/srv/q"},
)


@pytest.mark.parametrize(
    ("requested", "effective"),
    [
        ((b"/srv/p/x", R), [(b"/data/p/x", R)]),
        ((b"/data/p/x", R), [(b"/data/p/x", R)]),
        ((b"/srv/p", R), [(b"/data/p", R)]),
        ((b"/srv", R), [(b"/data/p", R), (b"/srv/q", R)]),
        ((b"/data", R), [(b"/data/p", R)]),
        ((b"/", R | W | X), [(b"/data/p", R | W), (b"/srv/q", R), (b"/usr/bin", X)]),
        ((b"/bin/sh", X), [(b"/usr/bin/sh", X)]),
        ((b"/srv/p-x", R), []),
        ((b"/srv/q", R), [(b"/srv/q", R)]),
        ((b"/elsewhere", R), []),
    ],
)
def test_a_root_that_is_a_link_answers_to_both_names(
    requested: tuple[bytes, Access], effective: list[tuple[bytes, Access]]
):
    assert clamp([Root(*requested)], LINKED) == tuple(Root(*root) for root in effective)


def test_both_names_are_allowed_the_same():
    assert LINKED.allows(b"/srv/p/x", R | W)
    assert LINKED.allows(b"/data/p/x", R | W)
    assert not LINKED.allows(b"/srv/q/x", W)
    assert LINKED.aliases == ((b"/bin", b"/usr/bin"), (b"/srv/p", b"/data/p"))


@pytest.mark.parametrize(
    ("aliases", "path", "real"),
    [
        ([], b"/a/b", b"/a/b"),
        ([(b"/a", b"/x")], b"/a", b"/x"),
        ([(b"/a", b"/x")], b"/a/b", b"/x/b"),
        ([(b"/a", b"/x")], b"/ab", b"/ab"),
        ([(b"/a", b"/")], b"/a", b"/"),
        ([(b"/a", b"/")], b"/a/b", b"/b"),
        ([(b"/a", b"/x"), (b"/a/b", b"/y")], b"/a/b/c", b"/y/c"),
        ([(b"/a", b"/x"), (b"/x/b", b"/y")], b"/a/b/c", b"/y/c"),
    ],
)
def test_canonical(aliases: list[tuple[bytes, bytes]], path: bytes, real: bytes):
    ceiling = Ceiling((Root(b"/r", R),), aliases=tuple(aliases))
    assert canonical(path, ceiling) == real


def test_links_that_turn_in_a_circle_end():
    """Each was true when it was looked at; the disk changed between the two looks."""
    circle = Ceiling((Root(b"/a/s", R),), aliases=((b"/a", b"/b"), (b"/b", b"/a")))
    assert canonical(b"/a/s", circle) in (b"/a/s", b"/b/s")
    longer = Ceiling((Root(b"/a/s", R),), aliases=((b"/a", b"/a/a"),))
    assert clamp([Root(b"/a/s", R)], longer) == ()


def test_no_spelling_reaches_outside_the_roots():
    seen: Counter[bool] = Counter()
    pairs = st.dictionaries(PATHS.filter(lambda p: p != b"/"), PATHS, max_size=3)

    @settings(deadline=None, max_examples=600)
    @given(ROOTS, pairs, ROOTS)
    def check(allowed: list[Root], real: dict[bytes, bytes], requested: list[Root]) -> None:
        ceiling = canonicalised(Ceiling(tuple(allowed)), real)
        effective = clamp(requested, ceiling)
        assert all(covers(ceiling.roots, root.path, root.access) for root in effective)
        assert all(
            oracle(effective, path, right) <= oracle(ceiling.roots, path, right)
            for path in {root.path for root in effective}
            for right in (R, W, X)
        )
        seen[bool(effective)] += 1

    check()
    both_happened(seen)


def test_a_missing_root_stays_and_is_told():
    ceiling = canonicalised(Ceiling((Root(b"/a", R), Root(b"/b", R))), {b"/a": b"/x"}, [b"/b"])
    assert ceiling.roots == (Root(b"/b", R), Root(b"/x", R))
    assert ceiling.warnings == ("root '/b' does not exist, ignoring it until it does",)


def test_two_roots_that_are_one_directory_become_one():
    ceiling = canonicalised(Ceiling((Root(b"/a", R), Root(b"/b", W))), {b"/a": b"/x", b"/b": b"/x"})
    assert ceiling.roots == (Root(b"/x", R | W),)


def test_a_denying_ceiling_stays_denying():
    denied = deny_all(Reason.CEILING_SYMLINK, "is a symbolic link")
    assert canonicalised(denied, {b"/a": b"/b"}).deny_reason == "is a symbolic link"
    assert replace(denied, roots=(Root(b"/", ALL_ACCESS),)).roots == ()


# --- limits ---------------------------------------------------------------------------------------


def limited(**limits: int) -> Ceiling:
    return Ceiling((Root(b"/srv", R),), limits=CeilingLimits(**limits))


def test_defaults_are_used_where_nothing_is_asked_for():
    limits = effective_limits(ExecRequest(), limited())
    assert (limits.timeout_ms, limits.grace_ms) == (DEFAULT_TIMEOUT_MS, DEFAULT_GRACE_MS)
    assert (limits.head_bytes, limits.tail_bytes) == (DEFAULT_KEEP_BYTES, DEFAULT_KEEP_BYTES)
    assert limits.memory_bytes is None
    assert limits.processes is None


def test_defaults_shrink_to_the_ceiling():
    limits = effective_limits(ExecRequest(), limited(max_timeout_ms=50, max_output_bytes=101))
    assert (limits.timeout_ms, limits.head_bytes, limits.tail_bytes) == (50, 50, 51)


def test_the_operators_limits_are_passed_on():
    limits = effective_limits(
        ExecRequest(),
        limited(
            max_memory_bytes=2**30,
            max_processes=7,
            max_open_files=64,
            max_cpu_s=5,
            max_file_size_bytes=9,
        ),
    )
    assert (limits.memory_bytes, limits.processes, limits.open_files) == (2**30, 7, 64)
    assert (limits.cpu_s, limits.file_size_bytes) == (5, 9)


@pytest.mark.parametrize(
    ("asked", "field", "limit"),
    [
        ({"timeout_ms": 50}, "timeout_ms", 50),
        ({"grace_ms": MAX_GRACE_MS}, "grace_ms", MAX_GRACE_MS),
        ({"head_bytes": 100}, "output", 100),
        ({"tail_bytes": 100}, "output", 100),
        ({"tail_bytes": 40, "head_bytes": 60}, "output", 100),
    ],
    ids=["timeout_ms", "grace_ms", "head", "tail", "head and tail"],
)
def test_what_is_asked_above_a_limit_is_refused_never_clamped(
    asked: dict[str, int], field: str, limit: int
):
    ceiling = limited(max_timeout_ms=50, max_output_bytes=100)
    kept = effective_limits(ExecRequest(**asked), ceiling)
    assert {name: getattr(kept, name) for name in asked} == asked
    last = list(asked)[-1]
    with pytest.raises(LimitExceededError) as caught:
        effective_limits(ExecRequest(**{**asked, last: asked[last] + 1}), ceiling)
    assert caught.value.details["field"] == field
    assert caught.value.details["limit"] == limit
    assert caught.value.details["given"] == limit + 1


@pytest.mark.parametrize(
    ("head", "tail", "kept"),
    [
        (None, None, (50, 50)),
        (10, None, (10, 90)),
        (None, 10, (90, 10)),
        (0, None, (0, 100)),
        (None, 0, (100, 0)),
        (0, 0, (0, 0)),
        (100, None, (100, 0)),
        (30, 30, (30, 30)),
    ],
)
def test_output_asked_for_is_kept_as_asked(
    head: int | None, tail: int | None, kept: tuple[int, int]
):
    limits = effective_limits(
        ExecRequest(head_bytes=head, tail_bytes=tail), limited(max_output_bytes=100)
    )
    assert (limits.head_bytes, limits.tail_bytes) == kept


# --- the file -------------------------------------------------------------------------------------


def test_a_full_file():
    ceiling = parse_ceiling(
        b"""
        read = ["/srv/docs/", "/srv/p"]
        write = ["/srv/p"]
        exec = ["/opt/tools"]
        network = "open"
        confinement = "unconfined"
        trusted_single_operator = true
        baseline = false
        environment = "developer"
        [limits]
        max_timeout_ms = 1000
        max_output_bytes = 2000
        max_memory_bytes = 300_000_000
        max_processes = 4
        max_open_files = 50
        max_cpu_s = 6
        max_file_size_bytes = 7
        max_runs = 8
        """
    )
    assert ceiling.roots == (Root(b"/opt/tools", X), Root(b"/srv/docs", R), Root(b"/srv/p", R | W))
    assert ceiling.network is Network.OPEN
    assert ceiling.confinement is Confinement.UNCONFINED
    assert ceiling.trusted_single_operator
    assert not ceiling.baseline
    assert ceiling.environment == "developer"
    assert ceiling.limits == CeilingLimits(1000, 2000, 300_000_000, 4, 50, 6, 7, 8)
    assert ceiling.warnings == ()
    assert ceiling.deny_code is None
    assert ceiling.deny_reason is None


def test_the_example_denies_everything_and_explains_every_key():
    text = EXAMPLE.read_text()
    ceiling = parse_ceiling(text.encode())
    assert ceiling == replace(Ceiling(), limits=ceiling.limits)
    assert ceiling.deny_code is Reason.CEILING_EMPTY
    assert ceiling.limits == CeilingLimits()
    for key in module._KEYS:
        assert f"\n{key} = " in text or f"[{key}]" in text
    for limit in fields(CeilingLimits):
        assert f"# {limit.name} = " in text


def test_the_limits_in_the_example_load_when_uncommented():
    text = EXAMPLE.read_text().replace("# max_", "max_").replace("read = []", 'read = ["/srv"]')
    ceiling = parse_ceiling(text.encode())
    shown = CeilingLimits()
    assert ceiling.limits.max_timeout_ms == shown.max_timeout_ms
    assert ceiling.limits.max_output_bytes == shown.max_output_bytes
    assert ceiling.limits.max_runs == shown.max_runs
    assert ceiling.limits.max_open_files == 4096


@pytest.mark.parametrize(
    "text",
    ["", "# only a comment", "read = []", "baseline = true", 'network = "open"',
     'confinement = "unconfined"\ntrusted_single_operator = true'],
)  # fmt: skip
def test_a_ceiling_without_roots_denies_everything(text: str):
    ceiling = parse_ceiling(text.encode())
    assert ceiling.roots == ()
    assert ceiling.deny_code is Reason.CEILING_EMPTY
    assert ceiling.deny_reason == "the ceiling lists no read, write or exec path"


@pytest.mark.parametrize("trusted", ["", "trusted_single_operator = false"])
def test_unconfined_alone_stays_sandboxed_and_is_told(trusted: str):
    ceiling = parse_ceiling(f'read = ["/srv"]\nconfinement = "unconfined"\n{trusted}'.encode())
    assert ceiling.confinement is Confinement.SANDBOXED
    assert ceiling.warnings == (
        "confinement = 'unconfined' counts only beside trusted_single_operator = true, "
        "staying sandboxed",
    )


def test_trust_alone_changes_nothing():
    ceiling = parse_ceiling(b'read = ["/srv"]\ntrusted_single_operator = true')
    assert ceiling.confinement is Confinement.SANDBOXED
    assert ceiling.warnings == ()


@pytest.mark.parametrize(
    ("entry", "warning"),
    [
        ("/", "write lists '/': the ceiling allows the whole machine"),
        ("/srv/*", "write lists '/srv/*': '*', '?' and '[' are no patterns but characters"),
    ],
)
def test_an_entry_that_may_be_a_mistake_is_told(entry: str, warning: str):
    ceiling = parse_ceiling(f'write = ["{entry}"]'.encode())
    assert ceiling.roots == (Root(entry.encode(), R | W),)
    assert ceiling.warnings == (warning,)


MALFORMED: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (
        b'read = []\nwrite = ["/\xe9"]',
        "the file (line 2): is not UTF-8 at byte 21; "
        "save it as UTF-8; for a name that is not, grant the directory it is in",
    ),
    "nested without end": (
        b"read = " + b"[" * 100_000,
        "the file (some line): is nested too deeply; correct it",
    ),
    "an unknown key": (
        b"\n\nwirte = []",
        "unknown key 'wirte' (line 3): the ceiling has no such key, and ignoring it could allow "
        "too much; did you mean 'write'?",
    ),
    "another spelling of a key": (
        b"trustedSingleOperator = true",
        "unknown key 'trustedSingleOperator' (line 1): the ceiling has no such key, and ignoring "
        "it could allow too much; did you mean 'trusted_single_operator'?",
    ),
    "a key like no other": (
        b"[zzz]\nx = 1",
        "unknown key 'zzz' (line 1): the ceiling has no such key, and ignoring it could allow too "
        "much; known keys: read, write, exec, network, confinement, trusted_single_operator, "
        "baseline, environment, limits",
    ),
    "an unknown limit": (
        b"[limits]\nmax_timeout = 5",
        "unknown key 'limits.max_timeout' (line 2): the ceiling has no such key, and ignoring it "
        "could allow too much; did you mean 'max_timeout_ms'?",
    ),
    "a key with an odd spelling": (
        b'"\\u0078" = 1',
        "unknown key 'x' (key 'x'): the ceiling has no such key, and ignoring it could allow too "
        "much; known keys: read, write, exec, network, confinement, trusted_single_operator, "
        "baseline, environment, limits",
    ),
    "one path instead of a list": (
        b'read = "/srv"',
        'read (line 1): is text, not a list of paths; write read = ["/srv/project"]',
    ),
    "a number in the list": (
        b"read = [1]",
        "read[0] (line 1): is a number, not a path in quotes; quote it",
    ),
    "a date in the list": (
        b"read = [1979-05-27]",
        "read[0] (line 1): is a date or time, not a path in quotes; quote it",
    ),
    "a relative path": (
        b'read = [\n "/a",\n "srv/p",\n]',
        "read[1] 'srv/p' (line 3): is not absolute; "
        "write the absolute path without '.', '..' or '//'",
    ),
    "a path through the parent": (
        b'write = ["/srv/../etc"]',
        "write[0] '/srv/../etc' (line 1): has a '..' component; "
        "write the absolute path without '.', '..' or '//'",
    ),
    "a path with an escape in it": (
        b'exec = ["/srv\\u0000"]',
        r"exec[0] '/srv\x00' (line 1): holds a NUL; "
        "write the absolute path without '.', '..' or '//'",
    ),
    "an empty path": (
        b'exec = [""]',
        "exec[0] '' (line 1): is empty; write the absolute path without '.', '..' or '//'",
    ),
    "a home directory": (
        b'read = ["~/p"]',
        "read[0] '~/p' (line 1): starts with '~', which only a shell expands; spell it out; "
        "write the absolute path without '.', '..' or '//'",
    ),
    "a flag in quotes": (
        b'read = []\nbaseline = "false"',
        "baseline (line 2): is text, not true or false; write it without quotes",
    ),
    "an unknown choice": (
        b'network = "off"',
        'network (line 1): is \'off\', not "none" or "open"; write one of them',
    ),
    "a base that only unconfined runs have": (
        b'environment = "login"',
        'environment (line 1): is \'login\', not "minimal" or "developer"; write one of them',
    ),
    "a choice that is no text": (
        b"confinement = true",
        'confinement (line 1): is true or false, not "sandboxed" or "unconfined"; '
        "write one of them",
    ),
    "limits that are no table": (
        b"limits = 5",
        "limits (line 1): is a number, not a table; write a line [limits], then its keys",
    ),
    "limits as tables": (
        b"[[limits]]",
        "limits (line 1): is a list, not a table; write a line [limits], then its keys",
    ),
    "a fraction": (
        b"limits.max_runs = 1.5",
        "max_runs (key 'max_runs'): is a fraction, not a whole number; write digits only",
    ),
    "a flag for a number": (
        b"[limits]\nmax_runs = true",
        "max_runs (line 2): is true or false, not a whole number; write digits only",
    ),
    "a table for a number": (
        b"[limits]\nmax_runs = {}",
        "max_runs (line 2): is a table, not a whole number; write digits only",
    ),
    "no limit by zero": (
        b"[limits]\nmax_timeout_ms = 0",
        "limits.max_timeout_ms (line 2): is 0, not between 1 and 86400000; "
        "there is no value that means unlimited; leave the key out for the default",
    ),
    "too large a file": (
        b"#" * (MAX_CEILING_BYTES + 1),
        "the file (4194305 bytes): is larger than 4194304 bytes; "
        "grant directories instead of single files",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_says_what_where_why_and_the_fix(name: str):
    data, message = MALFORMED[name]
    with pytest.raises(CeilingError) as caught:
        parse_ceiling(data)
    error = caught.value
    assert str(error) == message
    assert message == f"{error.what} ({error.where}): {error.why}; {error.fix}"


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"read = [\n", "end of document"),
        (b'read = ["/a"]\nwrite = x\n', "line 2, column 9"),
        (b"read = []\nread = []\n", "line 2, column 10"),
        (b"\xef\xbb\xbfread = []", "line 1, column 1"),
    ],
    ids=["an open list", "a bare word", "a key twice", "a byte order mark"],
)
def test_what_is_not_toml_is_refused_with_the_place(data: bytes, where: str):
    with pytest.raises(CeilingError) as caught:
        parse_ceiling(data)
    assert caught.value.where == where
    assert caught.value.why.startswith("is not TOML: ")


@pytest.mark.parametrize("key", sorted(module._LIMIT_RANGES))
def test_each_limit_has_a_least_and_a_most(key: str):
    least, most = module._LIMIT_RANGES[key]
    for value in (least, most):
        ceiling = parse_ceiling(f'read = ["/srv"]\n[limits]\n{key} = {value}'.encode())
        assert getattr(ceiling.limits, key) == value
    for value in (least - 1, most + 1, -1):
        with pytest.raises(CeilingError, match="not between"):
            parse_ceiling(f"[limits]\n{key} = {value}".encode())


def test_every_limit_has_a_range_and_its_default_lies_in_it():
    assert set(module._LIMIT_RANGES) == {limit.name for limit in fields(CeilingLimits)}
    for name, (least, most) in module._LIMIT_RANGES.items():
        default = getattr(CeilingLimits(), name)
        assert default is None or least <= default <= most


def listing(count: int) -> bytes:
    return b"read = [" + b",".join(b'"/srv/%d"' % number for number in range(count)) + b"]"


def test_as_many_roots_as_allowed_and_one_more():
    assert len(parse_ceiling(listing(MAX_CEILING_ROOTS)).roots) == MAX_CEILING_ROOTS
    with pytest.raises(CeilingError, match="are more than 16384"):
        parse_ceiling(listing(MAX_CEILING_ROOTS + 1))


def test_the_largest_file_is_read():
    data = b'read = ["/srv"]\n#'
    assert parse_ceiling(data + b"x" * (MAX_CEILING_BYTES - len(data))).roots


VALID = EXAMPLE.read_bytes().replace(b"read = []", b'read = ["/srv/p"]', 1)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_ceiling_or_a_ceiling_error(data: bytes):
    with suppress(CeilingError):
        ceiling = parse_ceiling(data)
        assert ceiling.roots == ()
        assert ceiling.deny_code is Reason.CEILING_EMPTY


def test_a_damaged_file_denies_or_grants_no_more_than_it_says():
    """One byte changed, dropped or doubled anywhere: never a wider root than the one written."""
    seen: Counter[bool] = Counter()

    @settings(deadline=None, max_examples=600)
    @given(st.integers(0, len(VALID) - 1), st.sampled_from(["drop", "double", "flip"]), st.data())
    def check(at: int, how: str, data: st.DataObject) -> None:
        byte = VALID[at : at + 1]
        if how == "flip":
            byte = bytes([data.draw(st.integers(0, 255))])
        damaged = VALID[:at] + (b"" if how == "drop" else byte) + VALID[at + (how != "double") :]
        try:
            ceiling = parse_ceiling(damaged)
        except CeilingError:
            seen[False] += 1
            return
        seen[True] += 1
        assert len(ceiling.roots) <= 1
        assert ceiling.confinement is Confinement.SANDBOXED
        for root in ceiling.roots:
            assert root.access == R
            assert root.path.count(b"/") >= 1

    check()
    both_happened(seen)

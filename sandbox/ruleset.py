# SPDX-License-Identifier: Apache-2.0
"""Roots, and rulesets made of them.

A root is a path and what it grants beneath it.  A ruleset is the kernel's form of many roots: each
path is opened once, O_PATH, and its rule binds the inode found there, so that nothing renamed,
replaced or linked later changes what was granted.  What a path names is the caller's decision at
that moment; `Ruleset.current()` tells when it would be another one now.
"""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from types import TracebackType
from typing import TypeAlias

from sandbox import _core
from sandbox.errors import SandboxError
from sandbox.landlock import Access, Network, _status

STABLE_RECHECK_S = 1.0

Pathname: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True, slots=True)
class Root:
    """A file, or a directory with everything beneath it, and what is granted there.

    An `optional` root that cannot be reached (ENOENT, ENOTDIR, ELOOP, EACCES) grants nothing: it is
    skipped and listed in `Ruleset.skipped`; any other is an error.  With `follow=False` a symbolic
    link anywhere in the path is ELOOP: for paths that are canonical already and lie where an
    earlier command could have put a link.  `stable` says that no
    confined command can change what the path names; `Ruleset.current()` looks at it more rarely.
    Raises ValueError for a NUL or an empty path, and for DEVICE without READ or WRITE.
    """

    path: Pathname
    access: Access
    optional: bool = False
    follow: bool = True
    stable: bool = False
    name: bytes = field(init=False, repr=False, compare=False)
    """The path as the kernel takes it."""
    bits: int = field(init=False, repr=False, compare=False)
    """The access as the C core takes it."""

    def __post_init__(self) -> None:
        name = os.fsencode(self.path)
        if b"\0" in name:
            raise ValueError(f"NUL in path of a root {name!r}")
        if not name:
            raise ValueError("empty path of a root")
        bits = Access(self.access).value
        if not bits & ~_core.DEVICE:
            raise ValueError(f"root {self.path!r} must grant READ, WRITE or EXEC")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "bits", bits)


def read(path: Pathname, *, optional: bool = False) -> Root:
    """A root whose files can be read and listed."""
    return Root(path, Access.READ, optional)


def write(path: Pathname, *, optional: bool = False) -> Root:
    """A root that can be read and changed."""
    return Root(path, Access.READ | Access.WRITE, optional)


def execute(path: Pathname, *, optional: bool = False) -> Root:
    """A root whose programs can be read and executed."""
    return Root(path, Access.READ | Access.EXEC, optional)


@functools.cache
def baseline() -> tuple[Root, ...]:
    """What ordinary programs need besides the roots they work in; all optional.

    System programs and libraries, harmless device nodes, single files of /etc, /proc.
    """
    return tuple(
        Root(path, Access(bits), optional=True, stable=True) for path, bits in _core.baseline_rows()
    )


class Ruleset:
    """The kernel's ruleset for some roots.  Owns one descriptor; close it or use `with`.

    `skipped` lists the optional roots that could not be reached, `abi` says which Landlock ABI
    enforces the rest.  A root covered by another that grants the same or more gets no rule of its
    own: each rule costs every spawn 0.2 µs.  No roots at all deny everything, but roots that are
    all missing are an error, as somebody meant to grant something.

    Raises SandboxUnavailable when this kernel cannot confine, SandboxError with the path otherwise:
    stage "root" when one cannot be opened, "rule" when Landlock cannot bind it.
    """

    __slots__ = ("_fd", "_looked", "_table", "abi", "network", "skipped")

    _max_abi = 0  # tests behave as on an older kernel
    _weaken_fs = 0  # tests leave rights unhandled

    def __init__(self, roots: Iterable[Root], *, network: Network = Network.OPEN) -> None:
        self._fd = -1
        # In order of their names a root comes after whatever covers it.
        ordered = sorted(roots, key=attrgetter("name"))
        paths = [_absolute(root.name) for root in ordered]
        status = _status(self._max_abi)
        status.require()
        self.abi = status.abi
        self.network = network
        self._table = _core.RootTable(
            [(path, root.follow, root.stable) for path, root in zip(paths, ordered, strict=True)]
        )
        self._looked = time.monotonic()
        flags = _core.NET_NONE if network is Network.NONE else 0
        self._fd = _core.create_ruleset(flags, self._max_abi, self._weaken_fs)
        handled_fs = status.handled_fs & ~self._weaken_fs
        try:
            self.skipped = self._add(ordered, paths, handled_fs)
        except BaseException:
            self.close()
            raise

    def _add(self, roots: list[Root], paths: list[bytes], handled_fs: int) -> tuple[Root, ...]:
        skipped: list[Root] = []
        granted = _Granted()
        for batch in self._table.batches():
            for number, opened in enumerate(batch, batch.start):
                root = roots[number]
                if opened.fd >= 0:
                    opened.access = granted.missing(root.bits, opened.fd)
                elif opened.is_missing and root.optional:
                    skipped.append(root)
                else:
                    raise SandboxError("root", -opened.fd, path=paths[number])
            batch.add_to(self._fd, handled_fs, paths)
        if roots and len(skipped) == len(roots):
            raise SandboxError("root", errno.ENOENT, path=paths[0], hint="no usable root is left")
        return tuple(skipped)

    @property
    def fd(self) -> int:
        """The ruleset descriptor, owned by this object.  Raises ValueError once closed."""
        if self._fd < 0:
            raise ValueError("the ruleset is closed")
        return self._fd

    def current(self) -> bool:
        """Whether every path still names the inode that was opened (and no missing one appeared).

        One stat(2) a root, about 1 µs each, in one call without the GIL.  Stable roots only once in
        STABLE_RECHECK_S: a rule on what such a path named before denies, it never allows more.
        """
        now = time.monotonic()
        every = now - self._looked >= STABLE_RECHECK_S
        if every:
            self._looked = now
        return self._table.stale(every=every) is None

    def close(self) -> None:
        """Releases the ruleset; commands already running keep their confinement."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Ruleset:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Granted:
    """Directories granted so far by their canonical names, to tell which root needs no rule."""

    def __init__(self) -> None:
        self._access: dict[bytes, int] = {}

    def missing(self, bits: int, fd: int) -> int:
        """The bits a rule for this opened root must carry: 0 when what lies above grants all."""
        if bits & _core.EXEC:
            bits |= _core.READ
        name = _name_of(fd)
        if name is None:
            return bits
        above = self._above(name)
        if bits & ~above == 0:
            return 0
        self._access[name] = bits | self._access.get(name, 0)
        return bits

    def _above(self, name: bytes) -> int:
        """What this name and every directory above it grant together, as Landlock adds it up."""
        bits = self._access.get(b"/", 0)
        while name:
            bits |= self._access.get(name, 0)
            name = name[: name.rfind(b"/")]
        return bits


def _name_of(fd: int) -> bytes | None:
    """The one name the kernel has for what is open, links resolved; None without a usable /proc.

    Only rules are saved by it, no right depends on it.
    """
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd)
    except OSError:
        return None


def _absolute(path: bytes) -> bytes:
    """`path` from the working directory of now; `..` is left to the kernel, which knows links."""
    return path if path.startswith(b"/") else os.path.join(os.getcwdb(), path)

# SPDX-License-Identifier: Apache-2.0
"""The C module as _core.py sees it; csrc/sandbox.h says what everything means."""

from collections.abc import Iterable, Iterator
from typing import Literal, overload

class Text: ...
class TextArray: ...

class Bytes:
    def __add__(self, offset: int) -> Bytes: ...

class Program: ...

class Numbers:
    def __getitem__(self, index: int) -> int: ...
    def __setitem__(self, index: int, value: int) -> None: ...

class Failure:
    stage: int
    error: int
    index: int

class Status:
    abi: int
    kernel_abi: int
    errata: int
    handled_fs: int
    handled_net: int
    scoped: int

class Limit:
    resource: int
    soft: int
    hard: int

class Limits:
    def __getitem__(self, index: int) -> Limit: ...

class PlanValue: ...

class Plan:
    def __getitem__(self, index: int) -> PlanValue: ...
    path: Bytes
    argv: TextArray
    envp: TextArray
    cwd_fd: int
    stdio: Numbers
    terminal_fd: int
    cgroup_fd: int
    ruleset_fd: int
    flags: int
    umask: int
    filter: Program
    limits: Limits
    n_limits: int

class Child:
    pid: int
    pidfd: int

class Root:
    path: Bytes
    follow: bool
    stable: bool
    fd: int
    access: int
    is_directory: int
    is_missing: int

class Roots:
    @overload
    def __getitem__(self, index: int) -> Root: ...
    @overload
    def __getitem__(self, index: slice) -> Roots: ...
    def __iter__(self) -> Iterator[Root]: ...
    def __len__(self) -> int: ...

class BaselineRow:
    path: Text | _Null
    access: int

class Weakness:
    omit_row: int
    weaken_fs: int
    keep: int

class ProofRow:
    name: Text
    claim: Text
    expected: int
    confined: int
    control: int
    ok: int
    skipped: int

class ProofRows:
    def __getitem__(self, index: int) -> ProofRow: ...

class _Null: ...

class _FFI:
    NULL: _Null
    @overload
    def new(self, kind: Literal["struct sandbox_failure *"]) -> Failure: ...
    @overload
    def new(self, kind: Literal["struct sandbox_status *"]) -> Status: ...
    @overload
    def new(
        self, kind: Literal["struct sandbox_plan *"], value: PlanValue | None = None
    ) -> Plan: ...
    @overload
    def new(self, kind: Literal["struct sandbox_child *"]) -> Child: ...
    @overload
    def new(self, kind: Literal["struct sandbox_filter *"]) -> Program: ...
    @overload
    def new(self, kind: Literal["struct sandbox_weakness *"]) -> Weakness: ...
    @overload
    def new(self, kind: Literal["struct sandbox_limit[]"], length: int) -> Limits: ...
    @overload
    def new(self, kind: Literal["struct sandbox_root[]"], length: int) -> Roots: ...
    @overload
    def new(self, kind: Literal["struct sandbox_proof_row[]"], length: int) -> ProofRows: ...
    @overload
    def new(self, kind: Literal["char *[]"], items: Iterable[Bytes | _Null]) -> TextArray: ...
    @overload
    def new(self, kind: Literal["int *", "size_t *"]) -> Numbers: ...
    def from_buffer(self, kind: Literal["char[]"], data: bytes) -> Bytes: ...
    def string(self, text: Text | _Null) -> bytes: ...

class _Lib:
    SANDBOX_ABI_FLOOR: int
    SANDBOX_READ: int
    SANDBOX_WRITE: int
    SANDBOX_EXEC: int
    SANDBOX_DEVICE: int
    SANDBOX_NET_NONE: int
    SANDBOX_PDEATHSIG: int
    SANDBOX_STAGE_KERNEL: int
    SANDBOX_STAGE_LIMITS: int
    SANDBOX_STAGE_EXEC: int
    def sandbox_status(self, max_abi: int, status: Status, /) -> int: ...
    def sandbox_ruleset(
        self,
        rules: _Null,
        n_rules: int,
        flags: int,
        max_abi: int,
        weaken_fs: int,
        fd: Numbers,
        failure: Failure,
        /,
    ) -> int: ...
    def sandbox_filter(self, flags: int, omit_row: int, program: Program, /) -> int: ...
    def sandbox_spawn(self, plan: Plan, child: Child, failure: Failure, /) -> int: ...
    def sandbox_spawner(self, flags: int, program: Program, failure: Failure, /) -> int: ...
    def sandbox_selftest(
        self,
        directory: bytes,
        max_abi: int,
        weakness: Weakness,
        rows: ProofRows,
        capacity: int,
        n_rows: Numbers,
        /,
    ) -> int: ...
    def sandbox_stage_name(self, stage: int, /) -> Text: ...
    def sandbox_baseline(self, row: int, /) -> BaselineRow: ...
    def sandbox_open_roots(self, roots: Roots, n_roots: int, /) -> None: ...
    def sandbox_add_roots(
        self, ruleset_fd: int, roots: Roots, n_roots: int, handled_fs: int, failure: Failure, /
    ) -> int: ...
    def sandbox_close_roots(self, roots: Roots, n_roots: int, /) -> None: ...
    def sandbox_stale_root(self, roots: Roots, n_roots: int, all: bool, /) -> int: ...

ffi: _FFI
lib: _Lib

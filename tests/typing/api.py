# SPDX-License-Identifier: Apache-2.0
"""Only type-checked: what a caller of `sandbox` may rely on, and what the checker must refuse.

A line with an ignore must be an error, or mypy reports the ignore as unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import assert_type

import sandbox


def paths(text: str, data: bytes, path: Path) -> None:
    for place in (text, data, path):
        assert_type(sandbox.read(place), sandbox.Root)
        sandbox.write(place, optional=True)
        sandbox.execute(place)
    sandbox.read(3)  # type: ignore[arg-type]
    sandbox.read(text, True)  # type: ignore[call-arg]


def roots() -> None:
    root = sandbox.Root("/a", sandbox.Access.READ | sandbox.Access.WRITE)
    root.optional = True  # type: ignore[misc]
    sandbox.Root("/a", "read")  # type: ignore[arg-type]
    with sandbox.Ruleset([*sandbox.baseline(), root]) as ruleset:
        assert_type(ruleset.fd, int)
        assert_type(ruleset.skipped, tuple[sandbox.Root, ...])
        assert_type(ruleset.current(), bool)


def plans(ruleset: sandbox.Ruleset, env: Mapping[str, str]) -> None:
    plan = sandbox.SpawnPlan(["a", b"b", Path("c")], ruleset=ruleset, env=env)
    plan.umask = 0  # type: ignore[misc]
    sandbox.SpawnPlan(["a"])  # type: ignore[call-arg]
    sandbox.SpawnPlan(["a"], ruleset)  # type: ignore[call-arg]
    sandbox.SpawnPlan(["a"], ruleset=None)  # type: ignore[arg-type]
    sandbox.SpawnPlan(["a"], ruleset=ruleset, env={b"a": b"b"})
    with sandbox.spawn(plan) as child:
        assert_type(child.wait(), sandbox.Exit)
        assert_type(child.wait(timeout_s=1.5).code, int | None)


def running(ruleset: sandbox.Ruleset) -> None:
    done = sandbox.run(["true"], roots=ruleset, timeout_s=1, input=b"")
    assert_type(done, sandbox.Completed)
    assert_type(done.stdout, bytes)
    sandbox.run(["true"])  # type: ignore[call-arg]
    sandbox.run(["true"], roots=ruleset, input="text")  # type: ignore[arg-type]
    sandbox.run("true", roots=ruleset)


def proof() -> None:
    assert_type(sandbox.status().state, sandbox.State)
    assert_type(sandbox.selftest().ok, bool)
    assert_type(sandbox.helper_path(), Path)


def failing(error: sandbox.SandboxError) -> None:
    assert_type(error.stage, str)
    assert_type(error.path, bytes | None)
    assert_type(error.hint, str | None)

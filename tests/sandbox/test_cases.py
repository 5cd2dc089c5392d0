# SPDX-License-Identifier: Apache-2.0
"""What users of other sandboxes reported broken, tried here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

import sandbox
from sandbox import Network, Root, Ruleset, SandboxError
from tests.support.kernel import require_program

#: The interpreter that runs us, wherever it was installed.
PYTHON: Final = Path(sys.executable).resolve()
PYTHON_ROOTS: Final = [
    sandbox.execute(directory, optional=True)
    for directory in {sys.base_prefix, sys.base_exec_prefix, str(PYTHON.parent)}
]


def shell(script: str, cwd: Path, *roots: Root, network: Network = Network.OPEN) -> tuple[int, str]:
    """(exit code, both outputs) of a script run in `cwd`, with the baseline and these roots."""
    done = sandbox.run(
        ["sh", "-euc", f"exec 2>&1; {script}"],
        roots=[*sandbox.baseline(), *roots],
        cwd=cwd,
        network=network,
    )
    assert done.exit.code is not None
    return done.exit.code, done.stdout.decode()


@pytest.mark.parametrize("network", Network)
def test_files_and_directories_move_across_directories(tmp_path: Path, network: Network) -> None:
    # Two stacked rulesets, one for files and one for the network, would answer EXDEV.
    script = "mkdir sub dir; touch a dir/b; mv a sub/a; mv dir sub/dir; ln sub/a linked; ls sub"
    assert shell(script, tmp_path, sandbox.write(tmp_path), network=network) == (0, "a\ndir\n")


def test_moving_to_another_root_falls_back_to_copying(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "file").write_text("text")
    script = "mv one/file two/file && cat two/file; ! test -e one/file"
    roots = (sandbox.write(one), Root(two, sandbox.Access.READ | sandbox.Access.WRITE))
    assert shell(script, tmp_path, *roots) == (0, "text")


def test_a_build_may_use_its_whole_directory(tmp_path: Path) -> None:
    make = require_program("make")
    require_program("gcc")
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    (tmp_path / "Makefile").write_text(
        ".ONESHELL:\n"
        "out/main: main.c\n"
        "\tmkdir -p tmp.d/deps && gcc -o tmp.d/main $<\n"
        "\techo log >tmp.d/deps/log && : >tmp.d/deps/log && mkfifo tmp.d/fifo && rm tmp.d/fifo\n"
        "\tln -s main tmp.d/link && mv tmp.d out && rmdir --ignore-fail-on-non-empty out/deps\n"
    )
    roots = (sandbox.write(tmp_path), sandbox.execute(tmp_path))
    code, output = shell(f"TMPDIR=$PWD {make} && out/main && rm -r out", tmp_path, *roots)
    assert code == 0, output


def test_single_files_can_be_granted(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.touch()
    (tmp_path / "other").touch()
    roots = (sandbox.read("/etc/hosts"), sandbox.write(log), sandbox.write("/dev/null"))
    script = "cat /etc/hosts >/dev/null; echo line >out.log; cat out.log"
    assert shell(script, tmp_path, *roots) == (0, "line\n")
    for denied in ("cat other", "rm out.log", "mv out.log x", "touch new", ": >/etc/hosts"):
        code, output = shell(denied, tmp_path, *roots)
        assert (code != 0, "Permission denied" in output) == (True, True), (denied, output)


def test_one_missing_root_among_many_is_skipped_and_listed_once(tmp_path: Path) -> None:
    names = [tmp_path / str(number) for number in range(199)]
    for name in names:
        name.mkdir()
        (name / "file").write_text("text")
    roots = [sandbox.read(name, optional=True) for name in (*names, tmp_path / "missing")]
    with Ruleset([*sandbox.baseline(), *roots]) as ruleset:
        missing = [root for root in ruleset.skipped if str(tmp_path) in str(root.path)]
        assert missing == [roots[-1]]
        done = sandbox.run(["cat", *(name / "file" for name in names)], roots=ruleset)
        assert done.stdout == b"text" * 199
        assert sandbox.run(["ls", tmp_path], roots=ruleset).exit.code == 2


@pytest.mark.parametrize("optional", [False, True])
def test_roots_that_are_all_missing_never_mean_unconfined(optional: bool) -> None:
    with pytest.raises(SandboxError, match=r"root '/no/such'.*ENOENT"):
        sandbox.run(["true"], roots=[sandbox.read("/no/such", optional=optional)])


def test_a_root_that_is_a_link_works_by_both_its_names(tmp_path: Path) -> None:
    (tmp_path / "data" / "p").mkdir(parents=True)
    (tmp_path / "data" / "p" / "file").write_text("text")
    (tmp_path / "srv").symlink_to("data")
    script = "cat srv/p/file data/p/file; ! ls data"
    code, output = shell(script, tmp_path, sandbox.read(tmp_path / "srv" / "p"))
    assert (code, output.startswith("texttext")) == (0, True), output


# ---- multiprocessing ----

POOL: Final = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
context = multiprocessing.get_context("fork")
with context.Semaphore(), ProcessPoolExecutor(2, mp_context=context) as pool:
    print(sum(pool.map(abs, range(10))))
"""
MANAGER: Final = """
import multiprocessing
try:
    multiprocessing.get_context("fork").Manager()
except (OSError, EOFError) as error:
    print(type(error).__name__)
"""


def python(program: str, *roots: Root) -> sandbox.Completed:
    return sandbox.run(
        [PYTHON, "-I", "-S", "-c", program],
        roots=[*sandbox.baseline(), *PYTHON_ROOTS, *roots],
        timeout_s=60,
    )


def test_python_process_pools_work_once_shared_memory_is_granted() -> None:
    assert python(POOL, sandbox.write("/dev/shm")).stdout == b"45\n"
    without = python(POOL)
    assert (without.exit.code, b"PermissionError" in without.stderr) == (1, True)


def test_python_managers_are_refused_by_name() -> None:
    done = python(MANAGER, sandbox.write("/dev/shm"), sandbox.write("/tmp"))
    assert (done.stdout, b"PermissionError: [Errno 1]" in done.stderr) == (b"EOFError\n", True)


def test_there_is_no_other_table_of_system_calls() -> None:
    rows = {row.name: row for row in sandbox.selftest().rows}
    others = [row for name, row in rows.items() if "x32" in name or "int80" in name]
    assert len(others) >= 2
    assert all(row.ok for row in others)

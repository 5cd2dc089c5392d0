# SPDX-License-Identifier: Apache-2.0
"""The import layers of .importlinter hold, and the checker would notice if not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
LINT = Path(sys.executable).with_name("lint-imports")


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINT, "--no-cache"], cwd=directory, capture_output=True, text=True)


def test_imports_point_down() -> None:
    done = lint(PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_that_points_up_is_noticed(tmp_path: Path) -> None:
    for package in ("sandbox", "broker"):
        shutil.copytree(PROJECT / package, tmp_path / package)
    shutil.copy(PROJECT / ".importlinter", tmp_path)
    with (tmp_path / "sandbox" / "errors.py").open("a") as errors:
        errors.write("import sandbox.spawn\n")
    with (tmp_path / "broker" / "model.py").open("a") as model:
        model.write("import time\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "sandbox.errors -> sandbox.spawn" in done.stdout
    assert "broker.model -> time" in done.stdout


def test_only_one_module_knows_the_c_module() -> None:
    sources = [*(PROJECT / "sandbox").glob("*.py"), *(PROJECT / "broker").rglob("*.py")]
    knowing = {path.name for path in sources if "_native import" in path.read_text()}
    assert knowing == {"_core.py"}

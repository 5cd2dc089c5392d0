# SPDX-License-Identifier: Apache-2.0
"""What is worked on: a directory of roots, a source tree under git, the programs of this folder.

Also how one view (a set of roots) is said to confine(1), to bubblewrap and to the Python face, so
that every contestant of a comparison sees the same files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType

from tests.bench.workers import BUILD, CONFINE, ENVIRONMENT, build_program, tool

TREE_DIRECTORIES = 60
TREE_FILES_EACH = 50
TREE_FILE_BYTES = 8000
FOREST_DIRECTORIES = 5000
FOREST_FILES_EACH = 10
TRUE = "/bin/true"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class View:
    """Paths and what may be done there; every entry is one Landlock rule or one bind mount."""

    execute: tuple[str, ...]
    read: tuple[str, ...]
    write: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.execute) + len(self.read) + len(self.write)

    def confine(self) -> list[str]:
        """The launcher's words up to and with `--`."""
        options = (("--exec", self.execute), ("--ro", self.read), ("--rw", self.write))
        flags = [word for option, paths in options for path in paths for word in (option, path)]
        return [str(CONFINE), *flags, "--"]

    def bwrap(self) -> list[str]:
        """The same files for bubblewrap; the links that Debian has in / are made, not mounted."""
        words = [tool("bwrap"), "--dev", "/dev", "--proc", "/proc"]
        for name in ("bin", "lib", "lib64", "sbin"):
            words += ["--symlink", f"usr/{name}", f"/{name}"]
        for path in (*self.execute, *self.read):
            words += ["--ro-bind", path, path]
        for path in self.write:
            if not path.startswith("/dev/"):
                words += ["--bind", path, path]
        return [*words, "--"]


class Scene:
    """Owns a scratch directory below build/bench (a real disk, where the log of a broker would be)
    and removes it."""

    def __init__(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self.directory = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(dir=BUILD, prefix="s"))
        )
        self.work = self.directory / "work"
        self.work.mkdir()
        self.outside = self.directory / "outside"
        self.outside.mkdir()

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @cached_property
    def spawnloop(self) -> str:
        return str(build_program("spawnloop"))

    @cached_property
    def caller(self) -> str:
        return str(build_program("caller"))

    @cached_property
    def echoserver(self) -> str:
        return str(build_program("echoserver"))

    @cached_property
    def tiny(self) -> str:
        """The smallest program, in a directory that a view can grant."""
        directory = self.directory / "bin"
        directory.mkdir()
        return str(shutil.copy2(build_program("tiny"), directory / "tiny"))

    def view(self, size: int) -> View:
        """`size` roots: what a dynamic program needs, the work directory, and more directories,
        of which half may be written."""
        execute = ("/usr", str(Path(self.tiny).parent))
        read = ("/etc/ld.so.cache",)
        fixed = View(execute, read, (*DEVICES, str(self.work)))
        extra = [self._root(number) for number in range(size - len(fixed))]
        half = len(extra) // 2
        return View(execute, (*read, *extra[:half]), (*fixed.write, *extra[half:]))

    def _root(self, number: int) -> str:
        directory = self.directory / "roots" / f"r{number:05d}"
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    @cached_property
    def tree(self) -> Path:
        """A source tree of 3000 files of 8 KB under git, all committed, in the work directory."""
        tree = self.work / "tree"
        for number in range(TREE_DIRECTORIES):
            directory = tree / f"d{number:02d}"
            directory.mkdir(parents=True)
            for name in range(TREE_FILES_EACH):
                line = f"int f{number}_{name}(int x) {{ return x + {name}; }}\n"
                file = directory / f"f{name:02d}.c"
                file.write_text(line * (TREE_FILE_BYTES // len(line)))
                os.utime(file, (0, 0))  # as new as its index, git would read it again each time
        git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "tree"]):
            subprocess.run([*git, *words], cwd=tree, env=ENVIRONMENT, check=True)
        return tree

    @cached_property
    def forest(self) -> Path:
        """A large tree to walk: 5000 directories of ten empty files, as dense as /usr."""
        forest = self.work / "forest"
        for number in range(FOREST_DIRECTORIES):
            directory = forest / f"{number % 20:02d}" / f"{number // 20:03d}"
            directory.mkdir(parents=True)
            for name in range(FOREST_FILES_EACH):
                (directory / f"f{name}").touch()
        return forest

    @cached_property
    def source(self) -> Path:
        """A C file of ordinary size with the headers of an ordinary program."""
        names = ("errno", "fcntl", "math", "pthread", "signal", "stdio", "stdlib", "string", "time")
        file = self.work / "source.c"
        body = "".join(f'int f{n}(int x) {{ return printf("%d", x * {n}); }}\n' for n in range(60))
        file.write_text("".join(f"#include <{name}.h>\n" for name in names) + body)
        return file

    def workload(self, name: str) -> Sequence[str]:
        """The command lines whose steady cost is measured."""
        if name == "git":
            return [tool("git"), "-C", str(self.tree), "status", "--short"]
        if name == "gcc":
            return [tool("gcc"), "-O1", "-c", str(self.source), "-o", str(self.work / "out.o")]
        if name == "tar":  # into a file: for /dev/null it would not read what it packs
            return [tool("tar"), "-C", str(self.tree), "-cf", str(self.work / "out.tar"), "."]
        if name == "python":
            return [tool("python3"), "-I", "-c", "pass"]
        return [tool("find"), str(self.forest)]

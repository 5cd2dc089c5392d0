# SPDX-License-Identifier: Apache-2.0
"""Boots other Linux kernels in qemu and proves the static `confine` on each of them.

Owns: finding and caching the Debian kernels, the initramfs (static programs only), the boots and
the reading of their TAP.  What each kernel must answer stands in plans.h.  Standard library only.

    tests/kernels/run [PLAN]...     plans: enforce refuse disabled; none named means all
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
CONFINE = PROJECT / "sandbox" / "confine"
BUILD = PROJECT / "build" / "kernels"
BOOT_TIMEOUT_S = 300
"""One boot under TCG takes 3 to 10 s on an idle core; the rest is room for a busy machine."""

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wmissing-prototypes", "-Wvla")
KERNEL_HEADERS = ("-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu")
BZIMAGE_MAGIC = b"HdrS"
BZIMAGE_MAGIC_AT = 0x202  # Documentation/arch/x86/boot.rst


class KernelsError(Exception):
    """A guest could not be prepared; says what was attempted and how to mend it."""


@dataclass(frozen=True, slots=True)
class Guest:
    """One boot: the package that brings the kernel, its command line, the table of plans.h."""

    plan: str
    package: str
    """Regular expression for the whole package name; the newest match is taken."""
    parameters: str
    tells: str


GUESTS = (
    Guest(
        "enforce",
        r"linux-image-6\.12\.[0-9]+\+deb1[23]-amd64",
        "syscall.x32=y",
        "ABI 6, x32 alive: everything is enforced",
    ),
    Guest(
        "refuse",
        r"linux-image-6\.1\.0-[0-9]+-cloud-amd64",
        "",
        "ABI 2, below the floor: everything is refused",
    ),
    Guest(
        "disabled",
        r"linux-image-6\.12\.[0-9]+\+deb1[23]-amd64",
        "syscall.x32=y lsm=lockdown,yama",
        "Landlock built but not enabled: everything is refused",
    ),
)


# Kernels -----------------------------------------------------------------------------------------


def cache_directory() -> Path:
    """Where kernels stay between runs: $XDG_CACHE_HOME, else /var/cache for root, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = "/var/cache" if os.geteuid() == 0 else os.path.expanduser("~/.cache")
    return Path(base) / "host-broker-kernels"


def version_key(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", text))


def apt(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelsError(f"{' '.join(arguments)}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def offered(pattern: str) -> list[str]:
    found = apt("apt-cache", "search", "--names-only", f"^{pattern}$").splitlines()
    return sorted((line.split(" ", 1)[0] for line in found), key=version_key)


def newest_package(pattern: str) -> str | None:
    """Name of the newest package offered by apt; package lists are fetched once when empty."""
    if shutil.which("apt-cache") is None:
        return None
    names = offered(pattern)
    if not names and os.geteuid() == 0:
        apt("apt-get", "update", "-qq")
        names = offered(pattern)
    return names[-1] if names else None


@dataclass(frozen=True, slots=True)
class Offer:
    """What apt says about the file of one package."""

    version: str
    size_bytes: int
    sha256: str


def offer_of(package: str) -> Offer:
    record = apt("apt-cache", "show", "--no-all-versions", package)
    fields = dict(re.findall(r"^(Version|Size|SHA256): (\S+)$", record, re.MULTILINE))
    try:
        return Offer(fields["Version"], int(fields["Size"]), fields["SHA256"])
    except KeyError as missing:
        raise KernelsError(f"apt-cache show {package}: no field {missing}") from missing


def download(package: str, offer: Offer, into: Path) -> Path:
    """Fetches the package file into `into` and checks it against what apt offered."""
    print(f"# downloading {package} ({offer.size_bytes / 1e6:.0f} MB)", flush=True)
    apt("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package, cwd=into)
    (file,) = into.glob("*.deb")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if file.stat().st_size != offer.size_bytes or digest != offer.sha256:
        raise KernelsError(f"{file.name}: size or sha256 differs from what apt-cache show says")
    return file


def kernel_member(package_file: Path) -> bytes:
    """The bytes of ./boot/vmlinuz-*; reading stops there, modules are never unpacked."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpack:
        assert unpack.stdout is not None
        try:
            with tarfile.open(fileobj=unpack.stdout, mode="r|") as tree:
                for member in tree:
                    if re.fullmatch(r"(\./)?boot/vmlinuz-\S+", member.name):
                        content = tree.extractfile(member)
                        return content.read() if content else b""
        finally:
            unpack.kill()
    raise KernelsError(f"{package_file.name}: no boot/vmlinuz inside")


def is_bzimage(image: bytes) -> bool:
    return image[BZIMAGE_MAGIC_AT : BZIMAGE_MAGIC_AT + 4] == BZIMAGE_MAGIC


def store(image: bytes, target: Path) -> None:
    """The name appears only when the whole, checked image is on disk."""
    if not is_bzimage(image):
        raise KernelsError(f"{target.name}: not a bzImage")
    partial = target.with_suffix(".partial")
    partial.write_bytes(image)
    partial.rename(target)


def cached_kernel(cache: Path, pattern: str) -> Path:
    """The newest kernel of an earlier run, for a machine that cannot reach its archive now."""
    kept = [file for file in cache.glob("*.vmlinuz") if re.match(rf"{pattern}_", file.name)]
    if not kept:
        raise KernelsError(
            f"no package matches '{pattern}' and none is cached in '{cache}'; "
            "run apt-get update, with the security archive of Debian 12 among its sources"
        )
    return max(kept, key=lambda file: version_key(file.name))


def kernel_for(guest: Guest, cache: Path) -> Path:
    """The guest's bzImage, downloaded on first use and checked each time."""
    package = newest_package(guest.package)
    if package is None:
        target = cached_kernel(cache, guest.package)
    else:
        offer = offer_of(package)
        target = cache / f"{package}_{offer.version}.vmlinuz"
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                store(kernel_member(download(package, offer, Path(scratch))), target)
    if not is_bzimage(target.read_bytes()):
        raise KernelsError(f"{target}: damaged; remove it and run again")
    return target


# Initramfs ---------------------------------------------------------------------------------------


def build_program(name: str) -> Path:
    """A static program from `name`.c beside this file."""
    compiler = shutil.which("musl-gcc")
    options = KERNEL_HEADERS if compiler else ()
    target = BUILD / name
    command = [compiler or "gcc", "-std=gnu17", "-O2", "-static", *WARNINGS, *options]
    subprocess.run([*command, str(HERE / f"{name}.c"), "-o", str(target)], check=True)
    return target


def cpio_entry(number: int, name: str, mode: int, data: bytes, device: tuple[int, int]) -> bytes:
    """One entry of the `newc` format, see buffer-format.rst in the kernel's documentation."""
    path = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return pad(header) + pad(data)


def pad(block: bytes) -> bytes:
    return block + b"\0" * (-len(block) % 4)


def initramfs(programs: dict[str, Path]) -> bytes:
    """An archive of one directory tree: /init, /bin and the mount points' parents."""
    entries: list[tuple[str, int, bytes, tuple[int, int]]] = [
        (name, 0o040755, b"", (0, 0)) for name in ("bin", "dev", "proc", "sys", "tmp", "run")
    ]
    entries.append(("dev/console", 0o020600, b"", (5, 1)))
    entries += [(name, 0o100755, file.read_bytes(), (0, 0)) for name, file in programs.items()]
    archive = io.BytesIO()
    for number, (name, mode, data, device) in enumerate(entries, start=1):
        archive.write(cpio_entry(number, name, mode, data, device))
    archive.write(cpio_entry(0, "TRAILER!!!", 0, b"", (0, 0)))
    return archive.getvalue()


def make_initramfs(confine: Path) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    if not confine.is_file():
        raise KernelsError(f"'{confine}' is missing: run make build first")
    programs = {"init": build_program("init"), "bin/probe": build_program("probe")}
    target = BUILD / "initramfs.cpio"
    target.write_bytes(initramfs({**programs, "bin/confine": confine}))
    return target


# Boots -------------------------------------------------------------------------------------------


def qemu_command(kernel: Path, archive: Path, guest: Guest) -> list[str]:
    console = "console=ttyS0 quiet loglevel=2 panic=-1 reboot=t"
    return [
        "qemu-system-x86_64",
        *("-machine", "pc", "-accel", "tcg", "-cpu", "max", "-m", "512", "-smp", "1"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"),
        *("-kernel", str(kernel), "-initrd", str(archive)),
        *("-append", f"{console} {guest.parameters} plan={guest.plan}"),
    ]


def console_lines(command: list[str], timeout_s: float) -> Iterator[str]:
    """Lines of the guest's console as they come; qemu is killed when the time is over."""
    with subprocess.Popen(
        ["timeout", "--kill-after=5", str(timeout_s), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as machine:
        assert machine.stdout is not None
        for line in machine.stdout:
            yield line.rstrip("\r\n")
    if machine.returncode != 0:
        yield f"Bail out! qemu ended with {machine.returncode} (124: not done in {timeout_s} s)"


@dataclass(slots=True)
class Tap:
    """What a guest has said so far.  Anything it owes and did not say is a failure."""

    planned: int | None = None
    passed: int = 0
    failures: int = 0
    bailed_out: str = ""

    def read(self, line: str) -> None:
        if plan := re.fullmatch(r"1\.\.([0-9]+)", line):
            self.planned = int(plan[1])
        elif result := re.match(r"(not )?ok ([0-9]+) - ", line):
            in_order = int(result[2]) == self.passed + self.failures + 1
            good = not result[1] and in_order
            self.passed += good
            self.failures += not good
        elif line.startswith("Bail out!"):
            self.bailed_out = line

    @property
    def complaint(self) -> str:
        """Empty when every planned line came and held."""
        if self.bailed_out:
            return self.bailed_out
        if not self.planned:
            return "the guest announced no plan"
        if self.failures:
            return f"{self.failures} of {self.planned} failed"
        missing = self.planned - self.passed
        return f"{missing} of {self.planned} lines are missing" if missing else ""


def boot(guest: Guest, kernel: Path, archive: Path, *, verbose: bool) -> Tap:
    """Runs one guest to its end, echoing what concerns a reader."""
    tap = Tap()
    hidden: list[str] = []
    print(f"# {guest.plan}: {kernel.stem}: {guest.tells}", flush=True)
    for line in console_lines(qemu_command(kernel, archive, guest), BOOT_TIMEOUT_S):
        tap.read(line)
        if verbose or re.match(r"(not )?ok |1\.\.|#|Bail out!", line):
            print(f"  {line}", flush=True)
        else:
            hidden.append(line)
    if tap.complaint:
        print("".join(f"  (console) {line}\n" for line in hidden[-40:]), end="")
    return tap


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("plans", nargs="*", metavar="PLAN", help="enforce, refuse, disabled")
    parser.add_argument("--confine", type=Path, default=CONFINE, help="the executable to prove")
    parser.add_argument("--verbose", action="store_true", help="show the whole console")
    chosen = parser.parse_args()
    if unknown := set(chosen.plans) - {guest.plan for guest in GUESTS}:
        parser.error(f"no such plan: {', '.join(sorted(unknown))}")
    return chosen


def prove(guests: list[Guest], confine: Path, *, verbose: bool) -> bool:
    """Boots every guest; true when none has a complaint."""
    archive = make_initramfs(confine)
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    summary: list[str] = []
    total = Tap()
    for guest in guests:
        started_at = time.monotonic()
        tap = boot(guest, kernel_for(guest, cache), archive, verbose=verbose)
        took_s = time.monotonic() - started_at
        verdict = tap.complaint or f"{tap.passed} held"
        summary.append(f"# {guest.plan}: {verdict} ({took_s:.1f} s)")
        total.passed += tap.passed
        total.failures += max(tap.failures, 1 if tap.complaint else 0)
    print("\n".join(summary))
    print(f"{total.passed} passed, {total.failures} failed", flush=True)
    return total.failures == 0


def main() -> int:
    chosen = arguments()
    guests = [guest for guest in GUESTS if not chosen.plans or guest.plan in chosen.plans]
    try:
        return 0 if prove(guests, chosen.confine, verbose=chosen.verbose) else 1
    except (KernelsError, subprocess.CalledProcessError, OSError) as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

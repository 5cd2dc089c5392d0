# SPDX-License-Identifier: Apache-2.0
"""`host-broker doctor`: every floor by itself, what is wrong with it, and what to do.

Unlike the daemon, which stops at the first floor that does not hold, this looks at all of them and
changes nothing.  The last two run a real command: confined by hand, and through the broker.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sandbox
from broker import chain, reach
from broker.client import Client, ClientError
from broker.config import Settings, load_ceiling, load_secrets
from broker.readiness import Selftest, helper_path, is_thrown
from broker.startup import StartupError

Finding = tuple[bool, str, str]


@dataclass(frozen=True, slots=True)
class Check:
    """One floor: whether it holds, what was seen, and the fix where it does not."""

    name: str
    ok: bool
    seen: str
    fix: str = ""


def examine(settings: Settings) -> Iterator[Check]:
    """The checks, in the order in which they depend on each other."""
    rows: tuple[tuple[str, Callable[[Settings], Finding]], ...] = (
        ("kernel", _kernel),
        ("helper", _helper),
        ("confinement", _confinement),
        ("endpoints", _reach),
        ("secret", _secret),
        ("ceiling", _ceiling),
        ("kill_switch", _kill_switch),
        ("audit", _audit),
        ("broker", _broker),
    )
    for name, check in rows:
        try:
            yield Check(name, *check(settings))
        except StartupError as refused:
            yield Check(name, False, str(refused), refused.fix)
        except OSError as error:
            yield Check(name, False, str(error), getattr(error, "hint", None) or "see above")


def _kernel(settings: Settings) -> Finding:
    del settings
    found = sandbox.status()
    seen = f"Landlock ABI {found.kernel_abi}, errata {found.errata:#x} ({os.uname().release})"
    if found.state is sandbox.State.READY:
        return True, seen, ""
    return (
        False,
        f"{found.state.value}: {seen}",
        f"Linux 6.2 or newer with Landlock (ABI {sandbox.FLOOR}) in the lsm= list",
    )


def _helper(settings: Settings) -> Finding:
    del settings
    with Selftest(helper_path()) as selftest:
        proof = selftest.finish()
    return True, f"{proof.rows} denials and survivors proved against their controls", ""


def _confinement(settings: Settings) -> Finding:
    """A real command cannot read a file from inside that it can from outside."""
    del settings
    with tempfile.NamedTemporaryFile("w", prefix="host-broker-doctor-") as file:
        file.write("outside")
        file.flush()
        control = subprocess.run(["/bin/cat", file.name], capture_output=True, check=False)
        done = sandbox.run(["/bin/cat", file.name], roots=sandbox.baseline(), timeout_s=10)
    if control.stdout != b"outside":
        return False, "the control, an unconfined cat, did not work", "is coreutils installed?"
    if done.stdout == b"" and b"Permission denied" in done.stderr:
        return True, "a confined command was refused a file that an unconfined one read", ""
    seen = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[:200]
    return False, f"a confined command was not refused: {seen!r}", "report this as a bug"


def _reach(settings: Settings) -> Finding:
    """The daemon's own check: can a confined command reach a control endpoint of this host?"""
    del settings
    helper = helper_path()

    async def run_confined(argv: tuple[bytes, ...], stdin: bytes) -> bytes:
        command = [helper, "--exec", helper, "--net", "open", "--", *map(os.fsdecode, argv)]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=30, check=True)
        return done.stdout

    with tempfile.TemporaryDirectory(prefix="hb-doctor-") as directory:
        check = reach.check(
            helper=helper,
            directory=directory,
            endpoints=reach.endpoints_here(os.environ, os.path.expanduser("~")),
            run_confined=run_confined,
        )
        refused = asyncio.run(check)
    return True, f"{refused} host control endpoints tried from inside, none reached", ""


def _secret(settings: Settings) -> Finding:
    load_secrets(settings)
    both = settings.next_secret_file.exists()
    return True, "two secrets accepted (rotation)" if both else "one secret accepted", ""


def _ceiling(settings: Settings) -> Finding:
    ceiling = load_ceiling(settings)
    if ceiling.deny_code is not None:
        fix = f"add paths to {str(settings.ceiling_file)!r}, then reload"
        return False, f"denies everything: {ceiling.deny_reason}", fix
    seen = (
        f"{len(ceiling.roots)} roots, {ceiling.confinement.value}, network {ceiling.network.value}"
    )
    return True, "; ".join((seen, *ceiling.warnings)), ""


def _kill_switch(settings: Settings) -> Finding:
    if is_thrown(settings.kill_switch):
        fix = f"rm {str(settings.kill_switch)!r}"
        return False, "thrown: every run is refused", fix
    return True, "not thrown", ""


def _audit(settings: Settings) -> Finding:
    if not chain.has_log(settings.audit_dir):
        return True, "no records yet", ""
    verdict = chain.verify(settings.audit_dir)
    if not verdict.ok:
        fix = 'keep a copy of the directory; see operating.md, "A broken log"'
        return False, f"broken: {verdict.detail}", fix
    return True, f"{verdict.records} records, chain intact", ""


def _broker(settings: Settings) -> Finding:
    """The running broker, asked for a real command."""
    secret = os.fspath(settings.secret_file)
    try:
        with Client(socket_path=settings.socket, secret_file=secret) as client:
            checks = client.ready()
            failing = [name for name, holds in checks["checks"].items() if not holds]
            if failing:
                return False, f"not ready: {', '.join(failing)}", "see the checks above"
            done = client.exec(["true"])
    except (ClientError, OSError) as error:
        return False, str(error), "start it: `host-broker serve`, or the systemd unit"
    if done.exit_code != 0:
        return (
            False,
            f"`true` ended with {done.document.get('spawn_error', done.reason)}",
            ("check `exec` and `baseline` in the ceiling"),
        )
    return True, f"answers on {settings.socket!r} and ran a confined command", ""

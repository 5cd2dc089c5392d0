# SPDX-License-Identifier: Apache-2.0
"""`python -m sandbox run|status|selftest`.

`run` ends as its command does (128 + n for signal n), or with a code of its own: 90 usage, 91 this
kernel cannot confine, 92 setting up failed, 126 not executable, 127 not found.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from typing import Final, NoReturn

import sandbox

USAGE: Final = 90
UNAVAILABLE: Final = 91
FAILED: Final = 92
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127

_EXEC_STATUS: Final = {errno.ENOENT: NOT_FOUND, errno.ENOTDIR: NOT_FOUND}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


class _AddRoot(argparse.Action):
    """Collects roots in the order given, whichever option names them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: object,
        option: str | None = None,
    ) -> None:
        namespace.roots = [*namespace.roots, _ROOT_OPTIONS[option or ""](str(value))]


_ROOT_OPTIONS: Final = {"--ro": sandbox.read, "--rw": sandbox.write, "--exec": sandbox.execute}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m sandbox", description="Confine commands.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="run a command confined")
    run.set_defaults(act=_run, roots=[])
    for option, grants in (("--ro", "read"), ("--rw", "read and change"), ("--exec", "execute")):
        run.add_argument(option, action=_AddRoot, metavar="PATH", help=f"a root to {grants}")
    run.add_argument("--no-baseline", action="store_true", help="grant no part of the system")
    run.add_argument("--cwd", metavar="DIR", help="working directory")
    run.add_argument("--net", choices=("open", "none"), default="open", help="IP sockets")
    run.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="set, or pass on, one"
    )
    run.add_argument("argv", nargs="+", metavar="ARG", help="the command, after --")
    status = commands.add_parser("status", help="say what this kernel enforces")
    status.set_defaults(act=_status)
    selftest = commands.add_parser("selftest", help="prove that confinement works here")
    selftest.set_defaults(act=_selftest)
    return parser


def _environment(wanted: list[str]) -> dict[str, str]:
    env = dict(sandbox.MINIMAL_ENV)
    for entry in wanted:
        name, given, value = entry.partition("=")
        if given:
            env[name] = value
        elif name in os.environ:
            env[name] = os.environ[name]
    return env


def _run(options: argparse.Namespace) -> int:
    roots = options.roots if options.no_baseline else [*sandbox.baseline(), *options.roots]
    network = sandbox.Network(options.net)
    with sandbox.Ruleset(roots, network=network) as ruleset:
        plan = sandbox.SpawnPlan(
            options.argv,
            ruleset=ruleset,
            cwd=options.cwd,
            env=_environment(options.env),
            stdin=0,
            stdout=1,
            stderr=2,
            network=network,
        )
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until there is whom to tell
        with sandbox.spawn(plan) as child:
            return _wait(child).status


def _wait(child: sandbox.Child) -> sandbox.Exit:
    while True:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            return child.wait()
        except KeyboardInterrupt:  # it has a session of its own, so the terminal does not tell it
            child.signal_group(signal.SIGINT)


def _status(_: argparse.Namespace) -> int:
    status = sandbox.status()
    if not status.ready:
        print(f"not ready: {status.hint}")
        return UNAVAILABLE
    print(
        f"ready: Landlock ABI {status.abi} (kernel {status.kernel_abi}), errata {status.errata:#x}"
    )
    return 0


def _selftest(_: argparse.Namespace) -> int:
    proof = sandbox.selftest()
    for row in proof.failures:
        print(
            f"FAILED {row.name}: {row.claim} (expected {row.expected}, "
            f"confined {row.confined}, unconfined {row.control})"
        )
    tested = sum(not row.skipped for row in proof.rows)
    print(f"{tested - len(proof.failures)} of {tested} claims hold, {len(proof.rows) - tested} n/a")
    return 0 if proof.ok else FAILED


def _status_of(error: sandbox.SandboxError) -> int:
    if isinstance(error, sandbox.SandboxUnavailable):
        return UNAVAILABLE
    if error.stage != "exec":
        return FAILED
    return _EXEC_STATUS.get(error.errno or 0, NOT_EXECUTABLE)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        status: int = options.act(options)
    except sandbox.SandboxError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return _status_of(error)
    except ValueError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return USAGE
    return status


if __name__ == "__main__":
    sys.exit(main())

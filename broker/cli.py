# SPDX-License-Identifier: Apache-2.0
"""`host-broker`: the operator's and the caller's command line.

Every command imports what it needs when it runs: `--help` must not wait for an event loop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from broker import __version__

if TYPE_CHECKING:
    from broker.client import Client, ExecResult
    from broker.config import Settings

EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_REFUSED = 125  # nothing ran: refused by the broker, or no broker
EXIT_CUT = 123  # the command said 0, but part of its output was dropped
EXIT_INTERRUPTED = 130
EXIT_UNHEALTHY = 1
EXIT_USAGE = 2

_ACCESS = (("ro", ["read"]), ("rw", ["read", "write"]), ("rx", ["exec"]))


class _Place:
    """Which broker is meant: the system's, the user's, or the one of a directory."""

    def __init__(self, mode: Literal["system", "user"] | None, config_dir: Path | None) -> None:
        self.mode = mode
        self.config_dir = config_dir

    def settings(self) -> Settings:
        from broker.config import load_settings
        from broker.startup import StartupError

        try:
            return load_settings(environ=os.environ, mode=self.mode, config_dir=self.config_dir)
        except StartupError as refused:
            _refuse(refused)

    def callers_settings(self) -> Settings:
        """For a caller who names no broker: his own, or else the system's if he may connect."""
        settings = self.settings()
        unnamed = self.mode is None and self.config_dir is None
        if unnamed and not settings.secret_file.exists() and os.access(SYSTEM_SOCKET, os.W_OK):
            return _Place("system", None).settings()
        return settings


SYSTEM_SOCKET = "/run/host-broker/broker.sock"


def _refuse(refused: Exception) -> NoReturn:
    """A StartupError, as one line and the fix; its own exit status."""
    click.echo(f"host-broker: {refused}", err=True)
    fix = getattr(refused, "fix", "")
    if fix:
        click.echo(f"host-broker: fix: {fix}", err=True)
    sys.exit(getattr(refused, "exit_status", EXIT_REFUSED))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--system", "mode", flag_value="system", help="The system's broker (root's default).")
@click.option("--user", "mode", flag_value="user", help="Your own broker (everybody else's).")
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Read broker.toml, ceiling.toml and secret from here.",
)
@click.version_option(__version__, prog_name="host-broker")
@click.pass_context
def main(
    context: click.Context, mode: Literal["system", "user"] | None, config_dir: Path | None
) -> None:
    """Run commands on this host under a kernel-enforced, operator-owned ceiling."""
    context.obj = _Place(mode, config_dir)


@main.command()
@click.option("--print-unit", is_flag=True, help="Print the systemd unit and where it goes.")
@click.pass_obj
def init(place: _Place, *, print_unit: bool) -> None:
    """Make directories, a secret, and a ceiling that denies everything.  Changes nothing else."""
    from broker.provision import provision, unit_text
    from broker.startup import StartupError

    if print_unit:
        click.echo(unit_text(), nl=False)
        return
    settings = place.settings()
    try:
        made = provision(settings)
    except StartupError as refused:
        _refuse(refused)
    for directory in made.directories:
        click.echo(f"made      {directory}")
    click.echo(f"{'made' if made.secret else 'kept':9} {settings.secret_file}")
    click.echo(f"{'made' if made.ceiling else 'kept':9} {settings.ceiling_file}")
    click.echo(f"\nnext: list what runs may touch in {settings.ceiling_file}, then:")
    if settings.mode == "system":
        click.echo("  host-broker init --print-unit > /etc/systemd/system/host-broker.service")
        click.echo("  systemctl daemon-reload && systemctl enable --now host-broker")
        click.echo(f"\n{unit_text()}", nl=False)
    else:
        click.echo("  host-broker serve")


@main.command()
@click.pass_obj
def serve(place: _Place) -> None:
    """Serve until SIGTERM.  Refuses to start unless every floor holds."""
    settings = place.settings()
    import logging

    from broker.server import serve as run
    from broker.startup import StartupError

    logging.basicConfig(format="host-broker: %(message)s", level=logging.INFO)
    try:
        run(settings)
    except StartupError as refused:
        _refuse(refused)


@main.command(name="exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True)
@click.option("--script", is_flag=True, help="COMMAND is one argument: bash text.")
@click.option("--cwd", metavar="DIR", help="Where it starts; default: the current directory.")
@click.option("--scratch", is_flag=True, help="Start in the run's private scratch directory.")
@click.option("--env", "env", multiple=True, metavar="NAME[=VALUE]", help="Pass a variable.")
@click.option("--ro", multiple=True, metavar="PATH", help="Narrow the roots: read.")
@click.option("--rw", multiple=True, metavar="PATH", help="Narrow the roots: read and write.")
@click.option("--rx", multiple=True, metavar="PATH", help="Narrow the roots: execute.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    metavar="SECONDS",
    help="End it after this long.",
)
@click.option(
    "--max-output",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Keep this much of each stream (default 1 MiB).",
)
@click.option("-i", "--stdin", "feed", is_flag=True, help="Give it our standard input.")
@click.option("--label", help="Words for the audit record.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option("--plan", "plan_only", is_flag=True, help="Say what would be decided; run nothing.")
@click.option("--socket", envvar="HOST_BROKER_SOCKET", help="The broker's socket.")
@click.option("--tcp", envvar="HOST_BROKER_TCP", metavar="ADDRESS:PORT", help="Loopback TCP.")
@click.option("--secret-file", envvar="HOST_BROKER_SECRET_FILE", help="The secret or its header.")
@click.pass_obj
def exec_(place: _Place, /, command: tuple[str, ...], **options: object) -> None:
    """Run COMMAND confined and end with its status.

    Its output arrives when it has ended.  123: it succeeded, but output was cut.  124: it ran out
    of time.  125: nothing ran.  126, 127: not executable, not found.
    """
    from broker.client import ClientError

    try:
        with _client(place, options) as client:
            request = _request(command, options)
            if options["plan_only"]:
                document = client.plan(**request)  # type: ignore[arg-type]
                click.echo(json.dumps(document, indent=2))
                sys.exit(0 if document["decision"] == "allow" else EXIT_REFUSED)
            done = client.exec(**request)  # type: ignore[arg-type]
    except KeyboardInterrupt:  # the connection is closed, and with it the run
        click.echo("host-broker: interrupted, the run was ended", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except (ClientError, OSError, ValueError) as error:
        _explain(error, options)
    if options["as_json"]:
        click.echo(json.dumps(done.document, indent=2))
    else:
        _print_result(done, _variables(options["env"]))
    sys.exit(_status(done))


def _client(place: _Place, options: dict[str, object]) -> Client:
    """The client for --tcp or --socket, or else for the broker of the settings."""
    from broker.client import Client

    tcp, path, secret = options["tcp"], options["socket"], options["secret_file"]
    if secret is None or (tcp is None and path is None):
        settings = place.callers_settings()
        secret = secret or os.fspath(settings.secret_file)
        path = path or settings.socket
    if isinstance(tcp, str):
        address, colon, port = tcp.rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"--tcp {tcp}: write ADDRESS:PORT, as in 127.0.0.1:8123")
        return Client(tcp=(address.strip("[]"), int(port)), secret_file=str(secret))
    return Client(socket_path=str(path), secret_file=str(secret))


def _request(command: tuple[str, ...], options: dict[str, object]) -> dict[str, object]:
    request: dict[str, object] = {"argv": [os.fsencode(word) for word in command]}
    if options["script"]:
        if len(command) != 1:
            raise ValueError("--script takes exactly one argument: the text")
        request = {"script": command[0]}
    if not options["scratch"]:
        request["cwd"] = os.fsencode(os.path.abspath(str(options["cwd"] or os.getcwd())))
    variables = _variables(options["env"])
    if variables:
        request["env"] = variables
    roots = [
        (os.fsencode(os.path.abspath(path)), access)
        for name, access in _ACCESS
        for path in _words(options[name])
    ]
    if roots:
        request["roots"] = roots
    if isinstance(options["timeout"], float):
        request["timeout_ms"] = max(1, round(options["timeout"] * 1000))
    if isinstance(options["max_output"], int):
        most = options["max_output"]
        request["output"] = {"head_bytes": most - most // 2, "tail_bytes": most // 2}
    if options["feed"]:
        request["stdin"] = sys.stdin.buffer.read()
    if options["label"]:
        request["label"] = options["label"]
    return request


def _words(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _variables(given: object) -> dict[str, str]:
    """NAME=VALUE as it stands; NAME alone takes ours."""
    variables = {}
    for word in _words(given):
        name, assigned, value = word.partition("=")
        if not assigned and name not in os.environ:
            raise ValueError(f"--env {name}: there is no such variable here")
        variables[name] = value if assigned else os.environ[name]
    return variables


def _status(done: ExecResult) -> int:
    if done.timed_out:
        return EXIT_TIMEOUT
    if done.truncated and done.shell_code == 0:
        return EXIT_CUT
    return done.shell_code


def _explain(error: Exception, options: dict[str, object]) -> NoReturn:
    """Why nothing ran, and for a refusal what the broker says about it."""
    from broker.client import RefusedError

    if not isinstance(error, RefusedError):
        click.echo(f"host-broker: {error}", err=True)
        sys.exit(EXIT_REFUSED)
    problem = error.problem
    click.echo(f"host-broker: {problem.get('title', 'refused')}: {error}", err=True)
    details = problem.get("details") or {}
    for name, value in details.items():
        words = ", ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"host-broker:   {name}: {words}", err=True)
    if problem.get("audit_id"):
        click.echo(f"host-broker:   record: {problem['audit_id']}", err=True)
    if details.get("field") == "cwd":
        given = os.path.abspath(str(options["cwd"] or os.getcwd()))
        click.echo(
            f"host-broker: fix: {given!r} must lie in the ceiling, and in --ro, --rw or --rx if "
            "any is given; name another with --cwd, or use --scratch",
            err=True,
        )
    sys.exit(EXIT_REFUSED)


def _print_result(done: ExecResult, passed: dict[str, str]) -> None:
    for stream, data in ((sys.stdout.buffer, done.stdout), (sys.stderr.buffer, done.stderr)):
        try:
            stream.write(data)
            stream.flush()
        except OSError as error:
            sys.stdout = None  # nothing is flushed again at exit
            click.echo(f"host-broker: cannot write the output: {error.strerror}", err=True)
            sys.exit(EXIT_CUT)
    document = done.document
    for name in document["environment"]["stripped"]:
        if name in passed:
            click.echo(f"host-broker: left out: {name} (looks like a secret)", err=True)
    for name in ("stdout", "stderr"):
        stream = document[name]
        if stream["truncated"]:
            lost = stream["total_bytes"] - stream["head_bytes"] - stream["tail_bytes"]
            click.echo(
                f"host-broker: {name}: {lost} of {stream['total_bytes']} bytes were dropped "
                f"after the first {stream['head_bytes']}",
                err=True,
            )
    if "spawn_error" in document:
        click.echo(f"host-broker: {document['spawn_error']}", err=True)
    if done.timed_out:
        click.echo(f"host-broker: timed out after {document['duration_ms']} ms", err=True)
    elif done.reason not in ("exited", "signaled", "spawn_failed"):
        click.echo(f"host-broker: ended: {done.reason}", err=True)
    if document["orphans_killed"]:
        click.echo(
            f"host-broker: {document['orphans_killed']} background process(es) ended with it",
            err=True,
        )
    if document["confinement"]["mode"] == "unconfined":
        click.echo("host-broker: this command ran UNCONFINED", err=True)


@main.command()
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def status(place: _Place, *, as_json: bool) -> None:
    """What the broker would allow, whether it answers, and why not."""
    from broker.report import collect, render

    report = collect(place.settings())
    click.echo(json.dumps(report, indent=2) if as_json else render(report))
    sys.exit(0 if report["ready"] else EXIT_UNHEALTHY)


@main.command()
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def doctor(place: _Place, *, as_json: bool) -> None:
    """Check every floor, say what is wrong and how to mend it."""
    from broker.doctor import examine

    checks = list(examine(place.settings()))
    if as_json:
        rows = [{"name": c.name, "ok": c.ok, "seen": c.seen, "fix": c.fix or None} for c in checks]
        click.echo(json.dumps({"ok": all(c.ok for c in checks), "checks": rows}, indent=2))
    else:
        for check in checks:
            click.echo(f"{'✓' if check.ok else '✗'} {check.name:12} {check.seen}")
            if check.fix:
                click.echo(f"  {'':12} fix: {check.fix}")
    sys.exit(0 if all(check.ok for check in checks) else EXIT_UNHEALTHY)


@main.group()
def audit() -> None:
    """Look at the record of what was asked, decided and done."""


@audit.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.pass_obj
def verify(place: _Place, directory: Path | None) -> None:
    """Find an edit, a deletion, a swap or a truncation.  Needs no broker."""
    from broker import chain

    where = directory or place.settings().audit_dir
    if not chain.has_log(where):
        why = "none was begun yet, or it was removed"
        click.echo(f"host-broker: there is no log in {str(where)!r}: {why}", err=True)
        sys.exit(EXIT_REFUSED)
    try:
        verdict = chain.verify(where)
    except OSError as error:
        click.echo(f"host-broker: cannot read {str(where)!r}: {error.strerror}", err=True)
        sys.exit(EXIT_REFUSED)
    if verdict.ok:
        click.echo(f"intact: {verdict.records} records, the last is {verdict.last_seq}")
        return
    click.echo(f"BROKEN: {verdict.detail}")
    sys.exit(EXIT_UNHEALTHY)


@main.command()
@click.pass_obj
def quickstart(place: _Place) -> None:
    """Provision your own broker, run one confined command through it, show the result."""
    from broker.client import ClientError
    from broker.quickstart import QuickstartError
    from broker.quickstart import quickstart as show
    from broker.startup import StartupError

    own = place if place.mode or place.config_dir else _Place("user", None)
    try:
        show(own.settings())
    except StartupError as refused:
        _refuse(refused)
    except (QuickstartError, ClientError) as error:
        click.echo(f"host-broker: {error}", err=True)
        sys.exit(EXIT_REFUSED)

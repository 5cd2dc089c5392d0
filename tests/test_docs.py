# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does: what can be compared is compared, what can run is run."""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from broker import ceiling, chain, cli, doctor, environ, errors, operations, startup, transport
from broker.model import Reason, RunReason
from tests.support.kernel import require_program
from tests.support.openapi import SPEC

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += sorted(DOCS.glob("*.md")) + sorted((DOCS / "adr").glob("*.md"))
FENCE = re.compile(r"^(?:<!-- ([a-z]+) -->\n)?```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
TEST = re.compile(r"`((?:[a-z0-9]+/)?test_[a-z0-9_]+\.py)::(test_[a-z0-9_]+)`")


def text(name: str) -> str:
    return (ROOT / name).read_text()


def code_of(page: str) -> list[str]:
    """Every line of a fence, and every span of code."""
    fences = [line for _, _, body in FENCE.findall(page) for line in body.splitlines()]
    return fences + re.findall(r"`([^`\n]+)`", FENCE.sub("", page))


def section(page: str, title: str) -> str:
    """What stands below a heading, up to the next of its level or above."""
    found = re.search(
        rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert found, title
    level = len(found[1])
    return re.split(rf"^#{{1,{level}}} ", found[2], maxsplit=1, flags=re.MULTILINE)[0]


def table(part: str, number: int = 0) -> list[list[str]]:
    """The rows of a table, without its head; spans of code lose their marks."""
    tables: list[list[list[str]]] = []
    before = -2
    for line_number, line in enumerate(part.splitlines()):
        found = ROW.fullmatch(line)
        if not found:
            continue
        if line_number != before + 1:
            tables.append([])
        before = line_number
        tables[-1].append([cell.strip() for cell in found[1].split(" | ")])
    return tables[number][2:]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def missing_tests(page: str) -> set[str]:
    named = TEST.findall(page)
    assert named
    return {
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / "tests" / file).exists() or name not in names_in(file)
    }


# --- every page -----------------------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_ours_that_are_named_exist(page: Path) -> None:
    ours = re.compile(r"(?:csrc|broker|sandbox|tests|docs|systemd)/[A-Za-z0-9_./*-]+")
    for code in code_of(page.read_text()):
        for name in ours.findall(code):
            ours_alone = re.search(r"(?<![\w./-])" + re.escape(name), code)
            if not ours_alone or name == "sandbox/confine" or "/test_" in name:
                continue
            pattern = name.rstrip(".").removesuffix("/")
            assert list(ROOT.glob(pattern)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    for code in code_of(page.read_text()):
        if found := re.match(r"make ((?:[a-z-]+ ?)+)", code.partition("#")[0]):
            assert set(found[1].split()) <= targets, code


INVOCATION = re.compile(
    r"(?:^|[(;|&] ?|-- )(?:[\w./]*/bin/)?host-broker((?: +[^\s;|&)`]+)*)"
)  # at the start of a command, not as an argument of one


def invocations(page: str) -> Iterator[list[str]]:
    for code in code_of(page):
        for found in INVOCATION.finditer(code.strip()):
            given = [word for word in found[1].split() if word not in ("…", ">")]
            if given:
                yield given


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_that_are_named_exist(page: Path) -> None:
    for given in invocations(page.read_text()):
        command: click.Command = cli.main
        for word in given:
            if word == "--":
                break
            if word.startswith("-"):
                known = {name for option in command.params for name in option.opts}
                assert word.partition("=")[0] in known | {"--help", "--version"}, given
            elif isinstance(command, click.Group):
                assert word in command.commands, given
                command = command.commands[word]


def test_numbers_of_guarantees_that_are_cited_exist() -> None:
    known = set(re.findall(r"^\*\*([GX]\d+)\*\*", text("docs/threat-model.md"), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"\b([GX]\d+)\b", page.read_text())) <= known, page


# --- README ---------------------------------------------------------------------------------------


@pytest.fixture
def base() -> Iterator[Path]:
    """A home with a short name, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def shell_environment(base: Path) -> dict[str, str]:
    """A home of its own, and `.venv/bin/host-broker` below it: always the user's own broker."""
    (base / "run").mkdir(mode=0o700)
    program = base / ".venv" / "bin" / "host-broker"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m broker --user "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"
    return {
        "HOME": str(base),
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(base / "run"),
    }


def started(environment: dict[str, str], base: Path) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(base / "notify"))
        notify.settimeout(60)
        process = subprocess.Popen(
            [base / ".venv/bin/host-broker", "serve"],
            env=environment | {"NOTIFY_SOCKET": str(base / "notify")},
        )
        assert b"READY=1" in notify.recv(4096)
    return process


def script_of(page: str) -> str:
    """The blocks marked `run`, in their order, as one script."""
    lines = ["set -euo pipefail"]
    for mark, language, body in FENCE.findall(page):
        if mark == "run" and language == "python":
            lines.append(f"(cd {ROOT} && {sys.executable} - <<'EOF'\n{body}EOF\n)")
        elif mark == "run":
            lines.append(body)
    return "\n".join(lines)


def test_the_examples_of_the_readme_run(base: Path, shell_environment: dict[str, str]) -> None:
    require_program("curl")
    environment = shell_environment
    subprocess.run([base / ".venv/bin/host-broker", "quickstart"], env=environment, check=True)
    with ExitStack() as stack:
        process = stack.enter_context(started(environment, base))
        stack.callback(process.send_signal, signal.SIGTERM)
        done = subprocess.run(
            ["bash", "-c", script_of(text("README.md"))],
            env=environment,
            cwd=base,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    for expected in (
        "note.txt",  # what quickstart left in the directory
        "as it should be",  # /etc/shadow is denied
        '"decision": "allow"',
        "intact: ",
        "Permission denied",
        f"0 {os.geteuid()}\n",
        '"status":"ok"',
        f'"text":"{os.geteuid()}\\n"',
    ):
        assert expected in done.stdout + done.stderr, (expected, done.stdout, done.stderr)


def test_the_container_gets_the_socket_directory_and_the_secret_only() -> None:
    (body,) = [body for mark, _, body in FENCE.findall(text("README.md")) if mark == "compose"]
    compose = yaml.safe_load(body)
    (service,) = compose["services"].values()
    (volume,) = service["volumes"]
    assert volume == {
        "type": "bind",
        "source": "/run/host-broker",
        "target": "/run/host-broker",
        "read_only": True,
        "bind": {"create_host_path": False},
    }
    (name,) = service["secrets"]
    assert compose["secrets"] == {name: {"file": "/etc/host-broker/client.header"}}
    assert service["environment"] == {
        "HOST_BROKER_SOCKET": "/run/host-broker/broker.sock",
        "HOST_BROKER_SECRET_FILE": f"/run/secrets/{name}",
    }
    options = {option.name: option for option in cli.main.commands["exec"].params}
    named = {options["socket"].envvar, options["secret_file"].envvar}
    assert named == set(service["environment"])


PROMISED = [
    # id, document, what it must say
    ("N044", "README.md", "Unix sockets: tmux, ssh-agent, Docker, D-Bus, X11, syslog"),
    ("N068", "docs/threat-model.md", "has no right for their metadata"),
    ("N093", "docs/operating.md", "WSL2"),
    ("O61", "SECURITY.md", "is handled as a vulnerability"),
    ("O30", "docs/threat-model.md", "an interpreter"),
]


@pytest.mark.parametrize(("identity", "name", "words_"), PROMISED)
def test_what_was_promised_to_be_written_is_written(identity: str, name: str, words_: str) -> None:
    assert words_ in text(name), identity


# --- threat model, requirements -------------------------------------------------------------------


def test_guarantees_are_numbered_and_name_tests_that_exist() -> None:
    page = text("docs/threat-model.md")
    for letter in "GX":
        numbers = re.findall(rf"^\*\*{letter}(\d+)\*\*", page, re.MULTILINE)
        assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    parts = re.split(r"^\*\*G\d+\*\*", page.partition("## Not guaranteed")[0], flags=re.MULTILINE)
    assert all(TEST.search(part) for part in parts[1:])
    assert missing_tests(page) == set()


IDENTITIES = [
    *(f"S{number:02}" for number in range(1, 99)),
    *(f"O{number:02}" for number in range(1, 62)),
    *(f"W{number:02}" for number in range(1, 51)),
    *(f"N{number:03}" for number in range(1, 163)),
]
STATES = ("done", "partial", "not yet", "outside")


def requirements() -> list[list[str]]:
    page = text("docs/requirements.md")
    rows = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(page)]
    return [row for row in rows if row[0] in IDENTITIES]


def test_every_requirement_is_there_once_with_a_state() -> None:
    rows = requirements()
    assert [row[0] for row in rows] == IDENTITIES
    assert all(len(row) == 4 and row[1] and row[2] in STATES for row in rows)


def test_what_is_done_names_a_test_and_what_is_not_does_not_claim_one() -> None:
    for identity, _, state, evidence in requirements():
        assert bool(TEST.search(evidence)) or state != "done", identity
        assert not evidence or state != "not yet", identity
        assert bool(re.fullmatch(r"M\d+", evidence)) == (state == "outside"), identity
        assert bool(evidence) or state != "partial", identity
    assert missing_tests(text("docs/requirements.md")) == set()


def test_the_numbers_of_requirements_are_right() -> None:
    rows = requirements()
    for name, *numbers in table(text("docs/requirements.md")):
        states = Counter(row[2] for row in rows if name == "all" or row[0][0] == name[0])
        assert [int(number) for number in numbers] == [
            *(states[state] for state in STATES),
            sum(states.values()),
        ], name


# --- protocol -------------------------------------------------------------------------------------


def protocol() -> str:
    return text("docs/protocol.md")


def wire_errors() -> list[type[errors.BrokerError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, errors.BrokerError)
        and value is not errors.BrokerError
    ]


def test_the_protocol_has_every_operation_and_no_other() -> None:
    rows = table(section(protocol(), "Routes"))
    told = [
        (words(row[0])[0], row[1], words(row[2])[0], next(iter(words(row[3])), None))
        for row in rows
    ]
    assert told == [(op.name, op.method, op.path, op.capability) for op in operations.OPERATIONS]


def test_the_protocol_has_every_error_and_no_other() -> None:
    rows = table(section(protocol(), "Errors"))
    told = {(int(row[0]), words(row[1])[0], row[2]) for row in rows}
    assert len(told) == len(rows)
    assert told == {(error.status, error.code, error.layer) for error in wire_errors()}


def test_the_protocol_has_every_reason_and_no_other() -> None:
    told = [words(row[0])[0] for row in table(section(protocol(), "Reasons"))]
    assert told == [reason.value for reason in Reason]
    runs = [words(row[0])[0] for row in table(section(protocol(), "Result of `/v1/exec`"), 1)]
    assert runs == [reason.value for reason in RunReason]


def test_the_protocol_has_every_field_and_no_other() -> None:
    schemas: dict[str, Any] = SPEC["components"]["schemas"]
    asked = [word for row in table(section(protocol(), "Request of `/v1/exec` and `/v1/plan`"))
             for word in words(row[0])]  # fmt: skip
    assert sorted(asked) == sorted(schemas["ExecRequest"]["properties"])
    result = section(protocol(), "Result of `/v1/exec`")
    told = [word for row in table(result) for word in words(row[0])]
    assert sorted(told) == sorted(schemas["ExecResult"]["properties"])
    plan = section(protocol(), "Result of `/v1/plan`")
    assert set(schemas["Plan"]["properties"]) <= set(words(plan))
    checks = [words(row[0])[0] for row in table(section(protocol(), "Checks of `/readyz`"))]
    assert checks == schemas["Readiness"]["properties"]["checks"]["required"]


def test_the_protocol_has_the_limits_of_the_parser() -> None:
    part = section(protocol(), "Request of `/v1/exec` and `/v1/plan`")
    numbers = {int(number) for number in re.findall(r"\b\d+\b", part)}
    assert numbers >= {
        operations.MAX_ARGV_ITEMS,
        operations.MAX_ARGUMENT_BYTES,
        operations.MAX_ARGV_BYTES,
        operations.MAX_SCRIPT_BYTES,
        operations.MAX_STDIN_BYTES,
        operations.MAX_REQUEST_ROOTS,
        operations.MAX_LABEL_CHARS,
        operations.MAX_BODY_BYTES,
        environ.MAX_NAMES,
        environ.MAX_NAME_BYTES,
        environ.MAX_STRING_BYTES,
        environ.MAX_ENV_BYTES,
        ceiling.DEFAULT_TIMEOUT_MS,
        ceiling.DEFAULT_GRACE_MS,
        ceiling.MAX_GRACE_MS,
        ceiling.DEFAULT_KEEP_BYTES,
    }
    limits = transport.HttpLimits()
    part = section(protocol(), "Limits of a connection")
    for number in (
        limits.connections,
        limits.header_bytes,
        limits.body_bytes,
        limits.keep_alive_s,
        limits.header_timeout_s,
        limits.body_timeout_s,
        ceiling.CeilingLimits().max_runs,
    ):
        assert re.search(rf"\b{round(number)}\b", part), number


# --- operating, man pages -------------------------------------------------------------------------


def refusals() -> list[type[startup.StartupError]]:
    return [
        value
        for value in vars(startup).values()
        if isinstance(value, type)
        and issubclass(value, startup.StartupError)
        and value is not startup.StartupError
    ]


def test_operating_has_every_exit_status_and_whether_the_unit_restarts() -> None:
    rows = table(section(text("docs/operating.md"), "What `serve` exits with"))
    unit = text("systemd/host-broker.service")
    kept = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert kept is not None
    final = {0, *map(int, kept[1].split())}
    assert {int(row[0]) for row in rows} == {0} | {error.exit_status for error in refusals()}
    assert {int(row[0]) for row in rows if row[2] == "no"} == final


def test_operating_has_every_line_of_doctor() -> None:
    rows = table(section(text("docs/operating.md"), "What `doctor` says"))
    source = ast.parse(Path(doctor.__file__).read_text())
    examine = next(node for node in source.body if getattr(node, "name", "") == "examine")
    pairs = [node for node in ast.walk(examine) if isinstance(node, ast.Tuple)]
    names = [pair.elts[0].value for pair in pairs if isinstance(pair.elts[0], ast.Constant)]
    assert [words(row[0])[0] for row in rows] == names


def test_operating_has_every_kind_of_record() -> None:
    part = section(text("docs/operating.md"), "The log")
    told = {word for word in words(part) if re.fullmatch(r"[a-z]+\.[a-z]+", word)}
    sources = "".join(path.read_text() for path in (ROOT / "broker").rglob("*.py"))
    written = set(re.findall(r'append[a-z_]*\(\s*"([a-z]+\.[a-z]+)"', sources))
    assert told - {chain.HEAD_NAME} == written | {chain.SEGMENT}


def test_what_messages_send_people_to_is_there() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "broker").rglob("*.py"))
    for title in re.findall(r'operating\.md, "([^"]+)"', sources):
        assert section(text("docs/operating.md"), title)


def roff_options(page: str) -> set[str]:
    """`Fl -name` is --name in mdoc(7)."""
    return {f"-{name}" for name in re.findall(r"\bFl (-?[a-z][a-z-]*)", page)}


def all_commands() -> Iterator[tuple[str, click.Command]]:
    yield "host-broker", cli.main
    for name, command in cli.main.commands.items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", one) for sub, one in command.commands.items())


def test_the_man_page_has_every_command_and_option() -> None:
    page = text("docs/man/host-broker.8")
    told = roff_options(page)
    known = {"--help", "-h", "--version"}
    for name, command in all_commands():
        if not isinstance(command, click.Group):
            assert re.search(rf"^\.Ss {name}\b", page, re.MULTILINE), name
        known |= {
            opt for one in command.params if isinstance(one, click.Option) for opt in one.opts
        }
    assert told - {"--selftest", "-"} == known


def test_the_man_page_has_every_exit_status() -> None:
    page = text("docs/man/host-broker.8").partition(".Sh EXIT STATUS")[2].partition(".Sh ")[0]
    told = {int(status) for status in re.findall(r"^\.It (\d+)$", page, re.MULTILINE)}
    ours = {value for name, value in vars(cli).items() if name.startswith("EXIT_")}
    assert told == {0, 126, 127, 255} | ours | {error.exit_status for error in refusals()}


def test_the_man_page_has_every_variable() -> None:
    page = text("docs/man/host-broker.8")
    known = {
        str(option.envvar)
        for _, command in all_commands()
        for option in command.params
        if option.envvar
    }
    assert known <= set(re.findall(r"\bHOST_BROKER_[A-Z_]+\b", page))


def test_the_page_of_the_ceiling_has_every_key_and_default() -> None:
    page = text("docs/man/host-broker-ceiling.5")
    example = tomllib.loads(text("ceiling.example.toml"))
    for key in (*example, *ceiling.CeilingLimits.__dataclass_fields__):
        assert re.search(rf"^\.It Cm .*\b{key}\b", page, re.MULTILINE) or key == "limits", key
    for name in ("max_timeout_ms", "max_output_bytes", "max_runs"):
        assert f"Default {getattr(ceiling.CeilingLimits(), name)}." in page, name


# --- architecture, decisions, changelog -----------------------------------------------------------


def test_the_map_of_the_code_has_every_file() -> None:
    named = set(re.findall(r"[\w/]+\.(?:py|c|h)\b", text("docs/architecture.md")))
    names = {Path(name).name for name in named}
    for pattern in ("broker/*.py", "broker/runs/*.py", "sandbox/*.py", "csrc/*.c"):
        for path in ROOT.glob(pattern):
            assert path.name in names | {"__init__.py", "__main__.py"}, path
    for name in named:
        assert [*ROOT.glob(f"**/{Path(name).name}")], name


def test_decisions_are_numbered_without_a_gap_and_say_their_state() -> None:
    files = sorted((DOCS / "adr").glob("*.md"))
    assert [file.name[:4] for file in files] == [f"{number:04}" for number in range(len(files))]
    for file in files[1:]:
        first, *rest = file.read_text().splitlines()
        assert first.startswith(f"# {file.name[:4]} ")
        assert re.match(r"\*\*Status\.\*\* (accepted|replaced by \d{4})$", rest[1]), file
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in rest, (file, part)


def test_the_changelog_has_this_version_and_security_first() -> None:
    page = text("CHANGELOG.md")
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    titles = re.findall(r"^#+ (.+)$", page.partition(f"## [{version}]")[2], re.MULTILINE)
    assert titles[0] == "Security"


def test_a_table_is_read_as_it_stands() -> None:
    page = textwrap.dedent(
        """\
        ## One

        | a | b |
        |---|---|
        | `x` | 1 |

        | c |
        |---|
        | y |

        ## Two
        """
    )
    assert table(section(page, "One")) == [["`x`", "1"]]
    assert table(section(page, "One"), 1) == [["y"]]

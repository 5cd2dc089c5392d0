# SPDX-License-Identifier: Apache-2.0
"""The environment of a run: what it starts from, what is taken out, what a caller may not say."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import environ
from broker.environ import (
    BASES,
    MAX_ENV_BYTES,
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_STRING_BYTES,
    SYSTEM_PATH,
    Environment,
    is_injection,
    is_secret_name,
    is_secret_value,
    parse_overrides,
    rebuild,
)
from broker.errors import EnvironmentRefusedError, InvalidFieldError, LimitExceededError

CANARY = b"canary-6f1c"
SCRATCH = b"/run/scratch/s1"


def words(text: str) -> list[str]:
    return text.split()


def rebuilt(
    base: str = "minimal",
    overrides: dict[bytes, bytes] | None = None,
    inherited: dict[bytes, bytes] | None = None,
    scratch: bytes | None = SCRATCH,
    home: bytes = b"/home/dev",
) -> Environment:
    return rebuild(  # noqa: S604 - a name, no subprocess
        base,
        home=home,
        user=b"dev",
        shell=b"/bin/bash",
        scratch=scratch,
        inherited=inherited or {},
        overrides=(overrides or {}).items(),
    )


# --- secrets --------------------------------------------------------------------------------------

SECRET_NAMES = words("""
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN GITHUB_TOKEN GH_TOKEN GITLAB_TOKEN
    CI_JOB_TOKEN NPM_TOKEN PYPI_TOKEN TOKEN MY_TOKEN_2 token github_token Github_Token
    DATABASE_URL database_url DATABASE_URI POSTGRES_URL MYSQL_URL MONGODB_URI REDIS_URL AMQP_URL
    AUTH_SECRET NEXTAUTH_SECRET JWT_SECRET CLIENT_SECRET SECRET_KEY_BASE SECRET APPSECRET
    PASSWORD PGPASSWORD DB_PASSWORD PASSWD MYSQL_PWD SUDO_PASS SSHPASS GPG_PASSPHRASE
    API_KEY OPENAI_API_KEY SERPAPI_API_KEY APIKEY STRIPE_KEY DEPLOY_KEY SIGNING_KEYS PRIVATE_KEY
    GOOGLE_APPLICATION_CREDENTIALS CREDENTIALS AWS_CREDENTIAL_FILE NPM_CONFIG__AUTH
    DOCKER_AUTH_CONFIG OPENAI_BASE_URL ANTHROPIC_MODEL GEMINI_REGION HUGGINGFACE_HUB_CACHE
    VAULT_ADDR HOST_BROKER_X
    SSH_AUTH_SOCK GPG_AGENT_INFO KRB5CCNAME PGPASSFILE NETRC SENTRY_DSN SLACK_WEBHOOK OAUTH_STATE
    SESSION_COOKIE GH_PAT AZURE_STORAGE_SAS AZURE_CONNECTION_STRING LOGIN_OTP MY_JWT BEARER_VALUE
""")

ORDINARY_NAMES = words("""
    HOME PATH LANG LC_ALL TERM USER LOGNAME SHELL PWD OLDPWD TMPDIR EDITOR DISPLAY CI DEBUG PORT
    NODE_ENV PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE AWS_REGION AWS_PROFILE KUBECONFIG GOPATH
    CARGO_HOME JAVA_HOME HTTP_PROXY no_proxy FOO_CONFIG_DIR KEYBOARD MONKEY XDG_RUNTIME_DIR
    GIT_AUTHOR_NAME GIT_TERMINAL_PROMPT DJANGO_SETTINGS_MODULE PASSENGER_COUNT COMPASS AUTHOR
""")


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_of_a_secret_is_taken_out_on_both_sides_and_listed(name: str):
    raw = name.encode()
    assert is_secret_name(raw)
    for base in BASES:
        found = rebuilt(base, inherited={raw: CANARY, b"PLAIN": b"1"})
        assert CANARY not in found.env.values()
        assert raw not in found.env
        if base == "login":
            assert found.stripped == (name,)
            assert found.env[b"PLAIN"] == b"1"
    if not is_injection(raw, CANARY):
        found = rebuilt(overrides={raw: CANARY, b"PLAIN": b"1"})
        assert found.stripped == (name,)
        assert found.env[b"PLAIN"] == b"1"
        assert raw not in found.env


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_an_ordinary_name_passes(name: str):
    assert not is_secret_name(name.encode())
    found = rebuilt("login", inherited={name.encode(): b"value"}, scratch=None)
    assert found.env[name.encode()] == b"value"
    assert found.stripped == ()


SECRET_VALUES = [
    b"postgres://user:hunter2@db/x",
    b"https://:p@host/",
    b"see https://u:p@h and more",
    b"-----BEGIN PRIVATE KEY-----\nMIIE",
    b"-----BEGIN PGP PRIVATE KEY BLOCK-----",
    b"https://0123456789abcdef0123456789abcdef01234567@git.example",
    b"-----BEGIN OPENSSH PRIVATE KEY-----",
    b"ghp_" + b"a" * 36,
    b"github_pat_" + b"a" * 60,
    b"glpat-" + b"a" * 20,
    b"sk-ant-" + b"a" * 40,
    b"sk_live_" + b"a" * 24,
    b"xoxb-1234567890-abc",
    b"AKIA" + b"A" * 16,
    b"AIza" + b"a" * 35,
    b"npm_" + b"a" * 36,
    b"pypi-" + b"a" * 50,
    b"hf_" + b"a" * 34,
    b"Bearer eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJ",
]

ORDINARY_VALUES = [
    b"",
    b"https://host:8080/path@v2",
    b"http://user@host/",
    b"git@github.com:o/r.git",
    b"ssh://git@host:22/r",
    b"C:/x",
    b"-----BEGIN CERTIFICATE-----",
    b"risk-management-and-other-things",
    b"task-0123456789012345678901234567",
    b"eyJhbGciOiJIUzI1.x",
    b"\xff\xfe",
]


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_a_value_that_shows_a_credential_is_taken_out_under_any_name(value: bytes):
    assert is_secret_value(value)
    for found in (
        rebuilt("login", inherited={b"PLAIN": value}),
        rebuilt(overrides={b"PLAIN": value}),
    ):
        assert found.stripped == ("PLAIN",)
        assert value not in found.env.values()


@pytest.mark.parametrize("value", ORDINARY_VALUES)
def test_an_ordinary_value_passes(value: bytes):
    assert not is_secret_value(value)
    assert rebuilt(overrides={b"PLAIN": value}).env[b"PLAIN"] == value


@pytest.mark.parametrize(
    "piece", [b"eyJ", b"-eyJ", b"://a:", b"-----BEGIN ", b"sk-", b"ghp_a", b"a"]
)
def test_looking_for_credentials_takes_no_more_than_linear_time(piece: bytes):
    def seconds(size: int) -> float:
        value = piece * (size // len(piece))
        started = time.process_time()
        for _ in range(3):
            is_secret_value(value)
        return time.process_time() - started

    assert seconds(MAX_STRING_BYTES) < 0.5 + 60 * seconds(MAX_STRING_BYTES // 10)


def test_a_secret_of_the_host_cannot_ride_on_the_callers_name():
    found = rebuilt("login", {b"GH_TOKEN": b"mine"}, {b"GH_TOKEN": CANARY})
    assert b"GH_TOKEN" not in found.env
    assert found.stripped == ("GH_TOKEN",)


def test_no_canary_gets_through():
    """The names of the result are the base's and the caller's; no secret's value is among them."""
    seen: Counter[bool] = Counter()
    names = st.sampled_from([*SECRET_NAMES, *ORDINARY_NAMES]).map(str.encode) | st.text(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12
    ).map(str.encode)

    @settings(deadline=None, max_examples=500)
    @given(st.sampled_from(BASES), st.sets(names, max_size=8), st.sets(names, max_size=8))
    def check(base: str, inherited: set[bytes], asked: set[bytes]) -> None:
        plain = {name for name in asked if not is_injection(name, CANARY)}
        found = rebuilt(
            base,
            {name: CANARY + name if is_secret_name(name) else b"theirs" for name in plain},
            {name: CANARY + name if is_secret_name(name) else b"ours" for name in inherited},
        )
        assert not any(CANARY in value for value in found.env.values())
        assert CANARY.decode() not in repr(found)
        fixed = set(rebuilt(base).env)
        allowed = {
            "login": inherited,
            "developer": inherited & {b"GOPATH", b"CARGO_HOME", b"JAVA_HOME"},
        }
        assert set(found.env) <= fixed | plain | allowed.get(base, set())
        secrets = {name for name in plain if is_secret_name(name)}
        if base == "login":
            secrets |= {name for name in inherited if is_secret_name(name)}
        assert {name.decode() for name in secrets} >= set(found.stripped)
        assert {name for name in secrets if not is_injection(name, b"")} <= {
            name.encode() for name in found.stripped
        }
        seen[bool(found.stripped)] += 1

    check()
    assert min(seen.values()) >= 20, seen


# --- injection ------------------------------------------------------------------------------------

INJECTION = words("""
    PATH IFS BASH_ENV ENV SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND CDPATH LD_PRELOAD LD_LIBRARY_PATH
    LD_AUDIT GLIBC_TUNABLES GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_PAGER GIT_EDITOR
    GIT_ASKPASS GIT_CONFIG GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_GLOBAL GIT_EXEC_PATH GIT_DIR
    GIT_WORK_TREE GIT_PROXY_COMMAND PAGER MANPAGER LESSOPEN LESSCLOSE EDITOR VISUAL BROWSER
    PYTHONSTARTUP PYTHONPATH PYTHONHOME NODE_OPTIONS NODE_PATH PERL5OPT PERL5LIB RUBYOPT RUBYLIB
    JAVA_TOOL_OPTIONS _JAVA_OPTIONS CLASSPATH RIPGREP_CONFIG_PATH NPM_CONFIG_REGISTRY
    npm_config_script_shell PIP_INDEX_URL CARGO_HOME CARGO_BUILD_RUSTC_WRAPPER RUSTC_WRAPPER
    BASH_FUNC_ls%% DYLD_INSERT_LIBRARIES ZDOTDIR GCONV_PATH MAKEFLAGS GOFLAGS SSH_ASKPASS
    NOTIFY_SOCKET LISTEN_FDS LISTEN_PID INVOCATION_ID JOURNAL_STREAM path ld_preload bash_env
    DBUS_SESSION_BUS_ADDRESS OPENSSL_CONF PYTEST_ADDOPTS PYTEST_PLUGINS ERL_AFLAGS AWKPATH LESS
    KUBECONFIG AWS_CONFIG_FILE ANSIBLE_CONFIG CMAKE_TOOLCHAIN_FILE CCACHE_PREFIX RUBYSHELL SVN_SSH
    BUNDLE_PATH R_LIBS R_LIBS_USER COVERAGE_PROCESS_START GOROOT GOTOOLCHAIN JAVA_HOME JAVA_OPTS
    DOTNET_ROOT DOTNET_ROOT_X64 HGEDITOR GH_PAGER AWS_PAGER FZF_DEFAULT_COMMAND JULIA_DEPOT_PATH
    QT_QPA_PLATFORM_PLUGIN_PATH GTK_PATH
""")


@pytest.mark.parametrize("name", INJECTION)
@pytest.mark.parametrize("base", BASES)
def test_a_name_that_chooses_what_runs_is_refused_by_name(name: str, base: str):
    with pytest.raises(EnvironmentRefusedError) as caught:
        rebuilt(base, overrides={name.encode(): CANARY, b"PLAIN": b"1"})
    assert caught.value.names == (name,)
    assert CANARY.decode() not in str(caught.value.problem())


def test_all_refused_names_are_told_at_once():
    with pytest.raises(EnvironmentRefusedError) as caught:
        rebuilt(overrides={b"PATH": b"/x", b"A": b"1", b"LD_PRELOAD": b"/y", b"ENV": b"/z"})
    assert caught.value.names == ("ENV", "LD_PRELOAD", "PATH")


@pytest.mark.parametrize(
    "name",
    ["LD", "PATHS", "MY_PATH", "ENVIRONMENT", "GIT_AUTHOR_NAME", "GIT_TERMINAL_PROMPT",
     "PYTHONUTF8", "NODE_ENV", "HOME", "TMPDIR", "LANG", "TERM", "BASH_FUNCTION",
     "CARGO", "PERL", "CC"],
)  # fmt: skip
def test_a_name_that_is_only_alike_passes(name: str):
    assert rebuilt(overrides={name.encode(): b"v"}).env[name.encode()] == b"v"


@pytest.mark.parametrize(
    ("name", "harmless", "harmful"),
    [
        (b"PAGER", [b"cat", b"", b"/bin/cat"], [b"sh", b"cat x", b"cat;id", b"/tmp/cat", b"cat\n"]),
        (b"GH_PAGER", [b"cat", b""], [b"sh"]),
        (b"LESS", [b"-FRX", b"R", b""], [b"+!id", b"-o/tmp/x", b"-R +!id"]),
        (b"GOTOOLCHAIN", [b"local"], [b"path", b"go1.99"]),
        (b"GIT_EDITOR", [b"true", b":", b""], [b"vi", b"true;id", b"/tmp/true"]),
        (b"BROWSER", [b"none"], [b"sh"]),
        (b"GIT_CONFIG_GLOBAL", [b"/dev/null"], [b"/tmp/x", b"/dev/null/../x", b""]),
        (b"GIT_CONFIG_NOSYSTEM", [b"1"], [b"x"]),
        (b"PYTHONWARNINGS", [b"ignore"], [b"error::foo.Bar", b"ignore:x"]),
        (b"PIP_NO_INPUT", [b"1"], [b"/x"]),
        (b"npm_config_cache", [b"/tmp/n"], []),
        (b"NPM_CONFIG_FUND", [b"false"], [b"x"]),
        (b"NODE_OPTIONS", [b"--max-old-space-size=1"], [b"-r /x", b"--max-old-space-size=1 -r /x"]),
        (b"JAVA_TOOL_OPTIONS", [b"-Xmx512m"], [b"-javaagent:/x", b"-Xmx512m -javaagent:/x"]),
        (b"MAKEFLAGS", [b"-j8", b"j2"], [b"-j8 --eval=x", b"-j"]),
        (b"GOFLAGS", [b"-mod=mod"], [b"-toolexec=/x"]),
        (b"CARGO_TARGET_DIR", [b"/tmp/t"], []),
        (b"CARGO_TERM_COLOR", [b"never"], [b"x"]),
        (b"CARGO_INCREMENTAL", [b"0"], [b"2"]),
        (b"CARGO_BUILD_JOBS", [b"4"], [b"x"]),
    ],
)  # fmt: skip
def test_values_that_choose_no_code_pass(name: bytes, harmless: list[bytes], harmful: list[bytes]):
    for value in harmless:
        assert rebuilt(overrides={name: value}).env[name] == value
    for value in harmful:
        with pytest.raises(EnvironmentRefusedError):
            rebuilt(overrides={name: value})


def test_every_exception_is_an_exception_to_a_rule():
    assert all(name.encode() in environ._REFUSED for name in environ._HARMLESS)


# --- bases ----------------------------------------------------------------------------------------


def test_minimal_is_fixed_and_inherits_nothing():
    found = rebuilt(inherited={b"A": b"1", b"PATH": b"/evil", b"CARGO_HOME": b"/c", b"LANG": b"de"})
    assert found == Environment(
        {
            b"PATH": SYSTEM_PATH,
            b"LANG": b"C.UTF-8",
            b"HOME": SCRATCH,
            b"USER": b"dev",
            b"LOGNAME": b"dev",
            b"SHELL": b"/bin/bash",
            b"TERM": b"dumb",
            b"TMPDIR": SCRATCH,
        },
        (),
        "minimal",
    )


def test_without_scratch_home_is_the_accounts_and_tmpdir_is_unset():
    found = rebuilt(scratch=None)
    assert found.env[b"HOME"] == b"/home/dev"
    assert b"TMPDIR" not in found.env


def test_developer_finds_toolchains_below_home_and_where_they_were_moved():
    found = rebuilt(
        "developer",
        inherited={
            b"CARGO_HOME": b"/opt/cargo/",
            b"RUSTUP_HOME": b"/opt/rustup",
            b"JAVA_HOME": b"/opt/java",
            b"GOPATH": b"relative",
            b"PYENV_ROOT": b"/a:/evil",
            b"PATH": b"/evil",
            b"OTHER": b"x",
        },
    )
    path = found.env[b"PATH"].split(b":")
    assert path[0] == b"/home/dev/.local/bin"
    assert {b"/opt/cargo/bin", b"/opt/java/bin", b"/home/dev/go/bin"} <= set(path)
    assert not {b"/evil", b"/home/dev/.cargo/bin", b"/a", b"/opt/rustup", b""} & set(path)
    assert found.env[b"PATH"].endswith(b":" + SYSTEM_PATH)
    assert found.env[b"HOME"] == b"/home/dev"
    assert found.env[b"TMPDIR"] == SCRATCH
    assert found.env[b"CARGO_HOME"] == b"/opt/cargo/"
    assert found.env[b"RUSTUP_HOME"] == b"/opt/rustup"
    assert not {b"OTHER", b"GOPATH"} & set(found.env)


def test_every_entry_of_path_is_absolute():
    for home in (b"/home/dev", b"/", b"/home/d:ev"):
        for base in BASES:
            entries = rebuilt(base, home=home).env[b"PATH"].split(b":")
            assert all(entry.startswith(b"/") for entry in entries)
            assert all(b"//" not in entry for entry in entries)


def test_login_is_the_operators_but_for_secrets_and_what_the_manager_told_the_broker():
    told = words(
        "NOTIFY_SOCKET LISTEN_FDS LISTEN_FDNAMES INVOCATION_ID JOURNAL_STREAM STATE_DIRECTORY "
        "CREDENTIALS_DIRECTORY MEMORY_PRESSURE_WATCH WATCHDOG_USEC BASH_FUNC_ls%%"
    )
    manager = {name.encode(): b"x" for name in told}
    found = rebuilt(
        "login",
        {b"LANG": b"fr_FR.UTF-8"},
        {
            b"PATH": b"/opt/x:/usr/bin",
            b"LD_LIBRARY_PATH": b"/opt/cuda",
            b"PAGER": b"less",
            b"LANG": b"de_DE.UTF-8",
            b"TMPDIR": b"/tmp",
            b"NPM_TOKEN": CANARY,
            b"": b"x",
            b"a b": b"x",
            **manager,
        },
    )
    assert found.env[b"PATH"] == b"/opt/x:/usr/bin"
    assert found.env[b"LD_LIBRARY_PATH"] == b"/opt/cuda"
    assert found.env[b"PAGER"] == b"less"
    assert found.env[b"LANG"] == b"fr_FR.UTF-8"
    assert found.env[b"HOME"] == b"/home/dev"
    assert found.env[b"TMPDIR"] == SCRATCH
    assert not {*manager, b"", b"a b"} & set(found.env)
    assert found.stripped == ("NPM_TOKEN",)


def test_login_keeps_the_operators_tmpdir_where_there_is_no_scratch():
    found = rebuilt("login", inherited={b"TMPDIR": b"/big/tmp"}, scratch=None)
    assert found.env[b"TMPDIR"] == b"/big/tmp"


def test_the_caller_may_say_home_and_tmpdir():
    found = rebuilt(overrides={b"HOME": b"/srv/p", b"TMPDIR": b"/srv/p/t"})
    assert (found.env[b"HOME"], found.env[b"TMPDIR"]) == (b"/srv/p", b"/srv/p/t")


def test_an_unknown_base_is_a_fault_of_ours():
    with pytest.raises(ValueError, match="no environment base 'full'"):
        rebuilt("full")


def test_values_are_not_in_the_repr():
    assert repr(rebuilt(overrides={b"A": CANARY})) == "<Environment minimal, 9 names>"


# --- form -----------------------------------------------------------------------------------------


def test_overrides_are_returned_in_order_of_their_names():
    assert parse_overrides([(b"B", b"2"), (b"A", b"\xff\n")]) == ((b"A", b"\xff\n"), (b"B", b"2"))
    assert parse_overrides([]) == ()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (b"", b"1", "env: '' is no name: printable ASCII without space and '='"),
        (b"A=B", b"1", "env: 'A=B' is no name: printable ASCII without space and '='"),
        (b"A\0", b"1", r"env: 'A\x00' is no name: printable ASCII without space and '='"),
        (b"A B", b"1", "env: 'A B' is no name: printable ASCII without space and '='"),
        (b"A\n", b"1", r"env: 'A\n' is no name: printable ASCII without space and '='"),
        ("É".encode(), b"1", "env: 'É' is no name: printable ASCII without space and '='"),
        (b"A\xff", b"1", r"env: 'A\\xff' is no name: printable ASCII without space and '='"),
        (b"A", CANARY + b"\0", "env: the value of 'A' holds a NUL"),
    ],
)
def test_a_malformed_pair_is_refused_without_its_value(name: bytes, value: bytes, message: str):
    with pytest.raises(InvalidFieldError) as caught:
        parse_overrides([(b"OK", b"1"), (name, value)])
    assert str(caught.value) == message


def test_a_name_given_twice_is_refused():
    with pytest.raises(InvalidFieldError, match="'A' is set twice"):
        parse_overrides([(b"A", b"1"), (b"A", b"1")])


@pytest.mark.parametrize("name", [b"A", b"a", b"_", b"1", b"A.B-C", b"x%%", b"ProgramFiles(x86)"])
def test_odd_names_that_the_kernel_takes_are_taken(name: bytes):
    assert parse_overrides([(name, b"")]) == ((name, b""),)


def many(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"N%d" % number, b"") for number in range(count)]


def filled(total: int) -> list[tuple[bytes, bytes]]:
    """Three pairs that take `total` bytes with their `=` and NULs."""
    each = total // 3 - 4
    return [
        (b"A1", b"x" * each),
        (b"A2", b"x" * each),
        (b"A3", b"x" * (total - 2 * (each + 4) - 4)),
    ]


@pytest.mark.parametrize(
    ("at_limit", "past_it", "limit"),
    [
        ([(b"A" * MAX_NAME_BYTES, b"")], [(b"A" * (MAX_NAME_BYTES + 1), b"")], MAX_NAME_BYTES),
        (
            [(b"A", b"x" * (MAX_STRING_BYTES - 2))],
            [(b"A", b"x" * (MAX_STRING_BYTES - 1))],
            MAX_STRING_BYTES,
        ),
        (many(MAX_NAMES), many(MAX_NAMES + 1), MAX_NAMES),
        (filled(MAX_ENV_BYTES), filled(MAX_ENV_BYTES + 1), MAX_ENV_BYTES),
    ],
    ids=["name", "string", "names", "all"],
)
def test_at_each_limit_and_one_past_it(
    at_limit: list[tuple[bytes, bytes]], past_it: list[tuple[bytes, bytes]], limit: int
):
    assert parse_overrides(at_limit) == tuple(sorted(at_limit))
    with pytest.raises(LimitExceededError) as caught:
        parse_overrides(past_it)
    assert (caught.value.details["limit"], caught.value.details["given"]) == (limit, limit + 1)

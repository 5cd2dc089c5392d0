# SPDX-License-Identifier: Apache-2.0
"""The environment of a run: rebuilt from a base by name, then the caller's overrides.

Three lists decide about a name, each with its own outcome:

* secret      stripped from the base and from the caller's side alike, and listed in the result,
              so that "not authenticated" can be explained.  By name, or by a value that is a known
              form of credential.  There is no way through this filter.
* injection   makes a loader, shell, interpreter or well-known tool run other code than the command
              shows, or speaks for the service manager.  Refused from the caller with an error
              (EnvironmentRefusedError, 403 `command_denied`): ignored, it would surprise.
* malformed   400 `invalid_field`.

PATH is refused as well: it decides which program a bare name is.  A caller names a program by its
absolute path, and the operator chooses `environment = "developer"` for toolchains.

Nothing of this confines: a command can set any variable for its own children.  The lists keep the
broker's and operator's secrets out, and keep what is judged and recorded the same as what runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.errors import EnvironmentRefusedError, InvalidFieldError, LimitExceededError, shown
from broker.model import Env

MAX_NAME_BYTES = 256
MAX_STRING_BYTES = 131_071
"""Of `name=value`, without its NUL: MAX_ARG_STRLEN is 32 pages (execve(2))."""
MAX_NAMES = 512
MAX_ENV_BYTES = 256 * 1024
"""Of all `name=value` strings with their NULs."""

SYSTEM_PATH: Final = b"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

_NAME = re.compile(rb"[!-<>-~]+")  # printable ASCII without space and `=`


@dataclass(frozen=True, slots=True)
class Environment:
    """What a run gets.  `stripped` are names only; neither side's values appear in a repr."""

    env: dict[bytes, bytes]
    stripped: tuple[str, ...]
    base: str

    def __repr__(self) -> str:
        return f"<Environment {self.base}, {len(self.env)} names>"


# --- secrets --------------------------------------------------------------------------------------

# Names that hold credentials, or lead to an agent that does, and match no pattern below.
_SECRET_NAMES = frozenset(
    {
        "AMQP_URL",
        "AWS_SECURITY_TOKEN",
        "BORG_PASSCOMMAND",
        "CELERY_BROKER_URL",
        "CLICKHOUSE_URL",
        "DB_URI",
        "DB_URL",
        "DOCKER_AUTH_CONFIG",
        "ELASTICSEARCH_URL",
        "GNOME_KEYRING_CONTROL",
        "GPG_AGENT_INFO",
        "JDBC_URL",
        "KRB5CCNAME",
        "MARIADB_URL",
        "MONGODB_URI",
        "MONGODB_URL",
        "MONGO_URI",
        "MONGO_URL",
        "MYSQL_URL",
        "NETRC",
        "PGPASSFILE",
        "PG_URL",
        "POSTGRESQL_URL",
        "POSTGRES_URL",
        "RABBITMQ_URL",
        "REDIS_URI",
        "REDIS_URL",
        "SSHPASS",
        "SSH_AUTH_SOCK",
    }
)

# Matched anywhere in the upper-cased name.
_SECRET_PARTS = (
    "SECRET",
    "TOKEN",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "ACCESSKEY",
    "PRIVATE_KEY",
    "PRIVATEKEY",
    "CREDENTIAL",
    "CONNECTION_STRING",
    "CONNECTIONSTRING",
    "DATABASE_UR",
    "BEARER",
    "OAUTH",
    "COOKIE",
    "WEBHOOK",
    "_JWT",
)
_SECRET_ENDINGS = (
    "_AUTH",
    "_CREDS",
    "_DSN",
    "_KEY",
    "_KEYS",
    "_OTP",
    "_PASS",
    "_PAT",
    "_PWD",
    "_SAS",
)

# Providers whose variables are keys, endpoints and accounts, hardly ever anything a tool needs.
_SECRET_PREFIXES = (
    "ANTHROPIC_",
    "AZURE_OPENAI_",
    "CLAUDE_",
    "COHERE_",
    "DEEPSEEK_",
    "ELEVENLABS_",
    "FIREWORKS_",
    "GEMINI_",
    "GROQ_",
    "HOST_BROKER_",
    "HUGGINGFACE_",
    "LANGCHAIN_",
    "LANGSMITH_",
    "MISTRAL_",
    "OPENAI_",
    "OPENROUTER_",
    "PERPLEXITY_",
    "REPLICATE_",
    "SENDGRID_",
    "STRIPE_",
    "TOGETHER_",
    "TWILIO_",
    "VAULT_",
    "VOYAGE_",
    "XAI_",
)

# Forms of credential that betray themselves under any name.
_SECRET_VALUE = re.compile(
    rb"://[^/?#\s:@]*:[^/?#\s@]+@"  # a URL with a password
    rb"|://[A-Za-z0-9_-]{30,}@"  # or with a token
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----"
    rb"|(?<![A-Za-z0-9])(?:"
    rb"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
    rb"|sk-[A-Za-z0-9_-]{20,}|[sr]k_live_[A-Za-z0-9]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    rb"|AKIA[A-Z0-9]{16}|ASIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|npm_[A-Za-z0-9]{36}"
    rb"|pypi-[A-Za-z0-9_-]{40,}|hf_[A-Za-z0-9]{30,}"
    rb")"
    # a JSON web token; what may precede it keeps this linear
    rb"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"
)


def is_secret_name(name: bytes) -> bool:
    """Whether a variable of this name is taken to hold a secret.  Case does not matter."""
    upper = _upper(name)
    return (
        upper in _SECRET_NAMES
        or upper.startswith(_SECRET_PREFIXES)
        or upper.endswith(_SECRET_ENDINGS)
        or any(part in upper for part in _SECRET_PARTS)
    )


def is_secret_value(value: bytes) -> bool:
    """Whether the value shows the form of a credential, whatever its name."""
    return _SECRET_VALUE.search(value) is not None


# --- injection ------------------------------------------------------------------------------------

# By the program that would obey.  A trailing `*` stands for any rest.
_INJECTION: dict[str, str] = {
    "dynamic loader and C library": """
        LD_* DYLD_* GLIBC_TUNABLES GCONV_PATH LOCPATH GETCONF_DIR
        OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES GTK_MODULES GIO_EXTRA_MODULES
        GDK_PIXBUF_MODULE_FILE GTK_PATH QT_PLUGIN_PATH QT_QPA_PLATFORM_PLUGIN_PATH
        GST_PLUGIN_PATH""",
    "which program a name is": "PATH CDPATH FPATH",
    "shells": """
        IFS ENV PS0 PS1 PS2 PS4 PROMPT_COMMAND BASH_ENV SHELLOPTS BASHOPTS BASH_FUNC_*
        BASH_XTRACEFD BASH_LOADABLES_PATH GLOBIGNORE EXECIGNORE ZDOTDIR INPUTRC""",
    "git": """
        GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_PAGER GIT_EDITOR GIT_SEQUENCE_EDITOR
        GIT_ASKPASS GIT_CONFIG* GIT_EXEC_PATH GIT_DIR GIT_WORK_TREE GIT_COMMON_DIR
        GIT_PROXY_COMMAND GIT_TEMPLATE_DIR GIT_ALLOW_PROTOCOL""",
    "programs that other programs start": """
        PAGER MANPAGER SYSTEMD_PAGER AWS_PAGER BAT_PAGER DELTA_PAGER GH_PAGER PSQL_PAGER
        LESS LESSOPEN LESSCLOSE LESSKEY* HGEDITOR SVN_EDITOR SVN_SSH FZF_DEFAULT_COMMAND
        EDITOR VISUAL FCEDIT SUDO_EDITOR SYSTEMD_EDITOR BROWSER SSH_ASKPASS*
        SUDO_ASKPASS RSYNC_RSH RSYNC_CONNECT_PROG CVS_RSH
        TAR_OPTIONS RIPGREP_CONFIG_PATH PSQLRC HGRCPATH VIMINIT EXINIT GVIMINIT EMACSLOADPATH
        KUBECONFIG AWS_CONFIG_FILE ANSIBLE_CONFIG AWKPATH AWKLIBPATH
        DBUS_SESSION_BUS_ADDRESS DBUS_SYSTEM_BUS_ADDRESS""",
    "Python": """
        PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONINSPECT PYTHONEXECUTABLE PYTHONPLATLIBDIR
        PYTHONUSERBASE PYTHONWARNINGS PYTHONBREAKPOINT PYTHONPYCACHEPREFIX PIP_*
        PYTEST_ADDOPTS PYTEST_PLUGINS COVERAGE_PROCESS_START MYPYPATH""",
    "Node.js": """
        NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE NPM_CONFIG_*
        YARN_PLUGINS YARN_RC_FILENAME YARN_YARN_PATH""",
    "Perl, Ruby, Lua, PHP, Tcl, Erlang": """
        PERL5OPT PERL5LIB PERLLIB PERL5DB RUBYOPT RUBYLIB GEM_PATH GEM_HOME BUNDLE_GEMFILE
        BUNDLE_PATH RUBYSHELL ERL_AFLAGS ERL_FLAGS ERL_ZFLAGS ERL_LIBS
        LUA_INIT* LUA_PATH* LUA_CPATH* PHPRC PHP_INI_SCAN_DIR TCLLIBPATH""",
    "Java and .NET": """
        JAVA_HOME JAVA_OPTS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS CLASSPATH
        MAVEN_OPTS GRADLE_OPTS DOTNET_ROOT* DOTNET_STARTUP_HOOKS DOTNET_ADDITIONAL_DEPS
        CORECLR_* COR_*""",
    "compilers and builders": """
        GCC_EXEC_PREFIX COMPILER_PATH MAKEFLAGS MFLAGS GNUMAKEFLAGS MAKEFILES CARGO_* RUSTC
        RUSTC_* RUSTDOC RUSTFLAGS GOFLAGS GOENV GOROOT GOTOOLCHAIN CMAKE_TOOLCHAIN_FILE
        CCACHE_PREFIX R_PROFILE* R_ENVIRON* R_LIBS* JULIA_LOAD_PATH JULIA_DEPOT_PATH
        GUILE_LOAD_PATH""",
    "service manager": """
        NOTIFY_SOCKET LISTEN_* INVOCATION_ID JOURNAL_STREAM MAINPID MANAGERPID SYSTEMD_EXEC_PID
        WATCHDOG_PID WATCHDOG_USEC FDSTORE""",
}

# Values that agents set to keep tools quiet or within bounds, and that choose no code.
_NUMBER = rb"[0-9]{1,6}"
_HARMLESS: dict[str, re.Pattern[bytes]] = {
    name: re.compile(value)
    for names, value in (
        (
            "PAGER GIT_PAGER MANPAGER SYSTEMD_PAGER AWS_PAGER BAT_PAGER DELTA_PAGER GH_PAGER",
            rb"(?:(?:/usr)?/bin/)?cat|",
        ),
        ("LESS", rb"-?[EFGMQRSXiefmqrsx]*"),
        ("GOTOOLCHAIN", rb"local"),
        ("EDITOR VISUAL GIT_EDITOR GIT_SEQUENCE_EDITOR", rb"true|false|:|"),
        ("BROWSER GIT_ASKPASS", rb"true|false|none|"),
        ("GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM", rb"/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", rb"[01]"),
        ("PYTHONWARNINGS", rb"default|error|always|module|once|ignore"),
        ("PIP_NO_INPUT PIP_NO_CACHE_DIR PIP_DISABLE_PIP_VERSION_CHECK PIP_QUIET", rb"[01]"),
        ("NPM_CONFIG_CACHE NPM_CONFIG_LOGLEVEL", rb".*"),
        ("NPM_CONFIG_YES NPM_CONFIG_FUND NPM_CONFIG_AUDIT NPM_CONFIG_PROGRESS", rb"true|false"),
        ("NODE_OPTIONS", rb"--max-old-space-size=" + _NUMBER),
        ("JAVA_TOOL_OPTIONS MAVEN_OPTS GRADLE_OPTS", rb"-Xm[sx]" + _NUMBER + rb"[kmgKMG]?"),
        ("MAKEFLAGS", rb"-?j" + _NUMBER),
        ("GOFLAGS", rb"-mod=(?:mod|vendor|readonly)"),
        ("CARGO_TARGET_DIR", rb".*"),
        ("CARGO_TERM_COLOR", rb"always|auto|never"),
        ("CARGO_NET_OFFLINE CARGO_INCREMENTAL", rb"true|false|[01]"),
        ("CARGO_BUILD_JOBS", _NUMBER),
    )
    for name in names.split()
}

# What a unit's own processes are told, and nothing else is.
_UNIT_NAMES = frozenset(
    {
        "CACHE_DIRECTORY",
        "CONFIGURATION_DIRECTORY",
        "CREDENTIALS_DIRECTORY",
        "LOGS_DIRECTORY",
        "MEMORY_PRESSURE_WATCH",
        "MEMORY_PRESSURE_WRITE",
        "RUNTIME_DIRECTORY",
        "STATE_DIRECTORY",
    }
)


class _Names:
    """Exact names and prefixes (`LD_*`), matched without regard to case."""

    def __init__(self, listed: Iterable[str]) -> None:
        names = frozenset(listed)
        self._exact = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))

    def __contains__(self, name: bytes) -> bool:
        upper = _upper(name)
        return upper in self._exact or upper.startswith(self._prefixes)


def _upper(name: bytes) -> str:
    return name.decode("latin-1").upper()


_REFUSED = _Names(name for names in _INJECTION.values() for name in names.split())
_NEVER_INHERITED = _Names((*_INJECTION["service manager"].split(), *_UNIT_NAMES, "BASH_FUNC_*"))


def is_injection(name: bytes, value: bytes) -> bool:
    """Whether a caller may not set this: it would choose what code runs."""
    harmless = _HARMLESS.get(_upper(name))
    if harmless is not None and harmless.fullmatch(value):
        return False
    return name in _REFUSED


# --- what the caller sent -------------------------------------------------------------------------


def parse_overrides(pairs: Iterable[tuple[bytes, bytes]]) -> Env:
    """Returns the pairs, sorted.  Raises InvalidFieldError or LimitExceededError.

    Checks form only; which names are allowed is `rebuild`'s to say.
    """
    checked: dict[bytes, bytes] = {}
    total = 0
    for name, value in pairs:
        _check_pair(name, value)
        if name in checked:
            raise InvalidFieldError("env", f"{_shown_name(name)} is set twice")
        checked[name] = value
        total += len(name) + len(value) + 2
    if len(checked) > MAX_NAMES:
        raise LimitExceededError("env", MAX_NAMES, len(checked), "names")
    if total > MAX_ENV_BYTES:
        raise LimitExceededError("env", MAX_ENV_BYTES, total, "bytes")
    return tuple(sorted(checked.items()))


def _check_pair(name: bytes, value: bytes) -> None:
    if len(name) > MAX_NAME_BYTES:
        raise LimitExceededError("env", MAX_NAME_BYTES, len(name), "bytes of a name")
    if not _NAME.fullmatch(name):
        raise InvalidFieldError(
            "env", f"{_shown_name(name)} is no name: printable ASCII without space and '='"
        )
    if b"\0" in value:
        raise InvalidFieldError("env", f"the value of {_shown_name(name)} holds a NUL")
    size = len(name) + 1 + len(value)
    if size > MAX_STRING_BYTES:
        raise LimitExceededError("env", MAX_STRING_BYTES, size, "bytes of name and value")


def _shown_name(name: bytes) -> str:
    return shown(name.decode("utf-8", "backslashreplace"))


# --- rebuilding -----------------------------------------------------------------------------------

# Where toolchains live: the variable that moves them, below HOME otherwise, and their programs.
_TOOLCHAINS: tuple[tuple[bytes, bytes, tuple[bytes, ...]], ...] = (
    (b"PYENV_ROOT", b".pyenv", (b"shims", b"bin")),
    (b"CARGO_HOME", b".cargo", (b"bin",)),
    (b"RUSTUP_HOME", b".rustup", ()),
    (b"GOPATH", b"go", (b"bin",)),
    (b"GOROOT", b".local/go", (b"bin",)),
    (b"NVM_DIR", b".nvm", ()),
    (b"VOLTA_HOME", b".volta", (b"bin",)),
    (b"PNPM_HOME", b".local/share/pnpm", (b"",)),
    (b"BUN_INSTALL", b".bun", (b"bin",)),
    (b"DENO_INSTALL", b".deno", (b"bin",)),
    (b"MISE_DATA_DIR", b".local/share/mise", (b"shims",)),
    (b"ASDF_DATA_DIR", b".asdf", (b"shims",)),
    (b"RBENV_ROOT", b".rbenv", (b"shims", b"bin")),
    (b"JAVA_HOME", b"", (b"bin",)),
)

BASES: Final = ("minimal", "developer", "login")


def rebuild(
    base: str,
    *,
    home: bytes,
    user: bytes,
    shell: bytes,
    scratch: bytes | None,
    inherited: Mapping[bytes, bytes],
    overrides: Iterable[tuple[bytes, bytes]] = (),
) -> Environment:
    """The complete environment of a run.  Raises EnvironmentRefusedError, naming every name.

    `minimal`    fixed names only; HOME is the scratch directory, so that tools can write there.
    `developer`  HOME is the account's, and PATH begins with the usual toolchains below it; where
                 `inherited` moves one (CARGO_HOME …) that is kept.  Nothing else of it is.
    `login`      all of `inherited` but secrets, exported functions and the service manager's
                 names: for unconfined runs, which are the operator's own.

    `home`, `user` and `shell` are the account's, from the password database.  TMPDIR points at
    `scratch` where there is one.  ValueError for a base not in BASES.
    """
    if base not in BASES:
        raise ValueError(f"no environment base {base!r}")
    pairs = tuple(overrides)
    refused = {
        name.decode("ascii", "replace") for name, value in pairs if is_injection(name, value)
    }
    if refused:
        raise EnvironmentRefusedError(refused)
    built = _minimal(home, user, shell, scratch)
    if base == "developer":
        built |= _developer(home, inherited)
    if base == "login":
        built |= {b"HOME": home} | _login(inherited, scratch)
    env, stripped = _without_secrets(built.items())
    theirs, stripped_theirs = _without_secrets(pairs)
    names = sorted(name.decode("ascii", "replace") for name in stripped | stripped_theirs)
    return Environment(env | theirs, tuple(names), base)


def _minimal(home: bytes, user: bytes, shell: bytes, scratch: bytes | None) -> dict[bytes, bytes]:
    env = {
        b"PATH": SYSTEM_PATH,
        b"LANG": b"C.UTF-8",
        b"HOME": scratch or home,
        b"USER": user,
        b"LOGNAME": user,
        b"SHELL": shell,
        b"TERM": b"dumb",
    }
    if scratch is not None:
        env[b"TMPDIR"] = scratch
    return env


def _developer(home: bytes, inherited: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    env = {b"HOME": home}
    path = [_joined(home, b".local/bin")]
    for name, usual, programs in _TOOLCHAINS:
        moved = inherited.get(name, b"")
        if moved.startswith(b"/"):
            env[name] = moved
        where = env.get(name) or (usual and _joined(home, usual))
        if where:
            path += [_joined(where, program) for program in programs]
    env[b"PATH"] = b":".join([*(entry for entry in path if b":" not in entry), SYSTEM_PATH])
    return env


def _joined(directory: bytes, name: bytes) -> bytes:
    return (directory.rstrip(b"/") + b"/" + name).rstrip(b"/")


def _login(inherited: Mapping[bytes, bytes], scratch: bytes | None) -> dict[bytes, bytes]:
    return {
        name: value
        for name, value in inherited.items()
        if _NAME.fullmatch(name)
        and name not in _NEVER_INHERITED
        and not (name == b"TMPDIR" and scratch is not None)
    }


def _without_secrets(
    pairs: Iterable[tuple[bytes, bytes]],
) -> tuple[dict[bytes, bytes], set[bytes]]:
    kept: dict[bytes, bytes] = {}
    stripped: set[bytes] = set()
    for name, value in pairs:
        if is_secret_name(name) or is_secret_value(value):
            stripped.add(name)
        else:
            kept[name] = value
    return kept, stripped

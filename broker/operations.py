# SPDX-License-Identifier: Apache-2.0
"""The one table of operations, and the strict parser of their bodies.

The table drives routing, discovery (`/v1/capabilities`) and the check of openapi.yaml.  A body is
parsed once, here, into a frozen value; past this module nobody re-checks and nobody passes dicts.
An unknown field is an error: a misspelt `timout_ms` must not be ignored.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import difflib
import enum
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import NoReturn, TypeVar

from broker.environ import parse_overrides
from broker.errors import (
    ArgvTooLargeError,
    BadJsonError,
    BadPathError,
    BodyTooLargeError,
    InvalidFieldError,
    LimitExceededError,
    MethodNotAllowedError,
    NoSuchRouteError,
    UnknownFieldError,
    UnsupportedMediaTypeError,
    shown,
)
from broker.model import NO_ACCESS, Access, Env, ExecRequest, OnLimit, Root
from broker.paths import parse_client_path

_T = TypeVar("_T")

MAX_BODY_BYTES = 1024 * 1024
MAX_ARGUMENT_BYTES = 131_071
"""One argument without its NUL: MAX_ARG_STRLEN is 32 pages (execve(2))."""
MAX_ARGV_BYTES = 512 * 1024
"""All arguments with their NULs.  With the environment's limit this stays under the kernel's."""
MAX_ARGV_ITEMS = 16_384
MAX_SCRIPT_BYTES = 64 * 1024
MAX_STDIN_BYTES = 512 * 1024
MAX_REQUEST_ROOTS = 1024
MAX_LABEL_CHARS = 128
MAX_INTEGER = 2**53
"""Above it a JSON reader may round."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row: what a route is, and what it needs.

    `capability` None means that whoever may connect may call it.  `parse` takes the body and its
    content type; None means that no body is read.  `handler` names a function of service.py.
    """

    name: str
    method: str
    path: str
    handler: str
    summary: str
    capability: str | None = None
    parse: Callable[[bytes, str | None], ExecRequest] | None = None

    @property
    def authenticated(self) -> bool:
        return self.capability is not None

    @property
    def max_body_bytes(self) -> int:
        return MAX_BODY_BYTES if self.parse else 0


def parse_exec_request(body: bytes, content_type: str | None = None) -> ExecRequest:
    """Returns the request.  Raises the BrokerError that names the first field that is wrong."""
    _check_media_type(content_type)
    given = _json_object(body)
    _refuse_unknown(given, _EXEC_FIELDS, "")
    argv, script = _optional(given, "argv", _argv), _optional(given, "script", _script)
    if (argv is None) == (script is None):
        raise InvalidFieldError("argv", "give exactly one of argv and script")
    head, tail, on_limit = _optional(given, "output", _output) or (None, None, OnLimit.DROP)
    return ExecRequest(
        argv=argv,
        script=script,
        cwd=_path_member(given, "cwd", ""),
        env=_optional(given, "env", _env) or (),
        roots=_optional(given, "roots", _roots),
        timeout_ms=_optional(given, "timeout_ms", _positive),
        grace_ms=_optional(given, "grace_ms", _positive),
        stdin=_optional(given, "stdin", _stdin) or b"",
        head_bytes=head,
        tail_bytes=tail,
        on_limit=on_limit,
        label=_optional(given, "label", _label),
    )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="health.show",
        method="GET",
        path="/healthz",
        handler="health",
        summary="The process lives; capabilities and counts, nothing else. No secret needed.",
    ),
    Operation(
        name="readiness.show",
        method="GET",
        path="/readyz",
        handler="readiness",
        summary="Whether a command would run: every floor with true or false. 200 or 503.",
        capability="status",
    ),
    Operation(
        name="capabilities.show",
        method="GET",
        path="/v1/capabilities",
        handler="capabilities",
        summary="Operations, optional features and effective limits.",
        capability="status",
    ),
    Operation(
        name="openapi.show",
        method="GET",
        path="/openapi.json",
        handler="openapi",
        summary="This interface as an OpenAPI 3.1 document.",
        capability="status",
    ),
    Operation(
        name="exec.plan",
        method="POST",
        path="/v1/plan",
        handler="plan",
        summary="Decides about a command as /v1/exec would, and runs nothing.",
        capability="exec",
        parse=parse_exec_request,
    ),
    Operation(
        name="exec.run",
        method="POST",
        path="/v1/exec",
        handler="run",
        summary="Runs one command to its end and returns what it wrote and how it ended.",
        capability="exec",
        parse=parse_exec_request,
    ),
)

_BY_PATH: dict[str, dict[str, Operation]] = {
    path: {row.method: row for row in OPERATIONS if row.path == path}
    for path in {row.path for row in OPERATIONS}
}


def route(method: str, path: str) -> Operation:
    """The row for a request.  Raises NoSuchRouteError or MethodNotAllowedError."""
    methods = _BY_PATH.get(path)
    if methods is None:
        other = path[:-1] if path.endswith("/") else path + "/"
        hint = f"; {shown(other)} is" if other in _BY_PATH else ""
        raise NoSuchRouteError(f"{shown(path)} is not a route{hint}")
    if method not in methods:
        raise MethodNotAllowedError(sorted(methods))
    return methods[method]


# --- one identity for one request -----------------------------------------------------------------


def op_sha256(request: ExecRequest) -> str:
    """The identity of what is asked for, in hexadecimal.  Equal exactly for equal requests.

    The same for a plan and for the run that follows it.
    """
    return hashlib.sha256(b"op/v1\0exec\0" + _canonical(request)).hexdigest()


def _canonical(value: object) -> bytes:
    """Each value with its type and its length: no two values have the same form."""
    if value is None:
        return b"n"
    if isinstance(value, bytes):
        return b"b%d:" % len(value) + value
    if isinstance(value, str):
        return b"s" + _canonical(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, int):
        return b"i%d:" % value
    if isinstance(value, enum.Enum):
        return b"e" + _canonical(value.value)
    if is_dataclass(value):
        value = tuple(getattr(value, name) for name in value.__dataclass_fields__)
    if isinstance(value, tuple):
        return b"t%d:" % len(value) + b"".join(map(_canonical, value))
    raise TypeError(f"no canonical form for {type(value).__name__}")


# --- JSON, strictly -------------------------------------------------------------------------------

_JSON_MEDIA_TYPES = ("", "application/json", "application/x-www-form-urlencoded")
"""The last is what `curl -d` says by default.  A web page cannot use it: Origin is refused."""


def _check_media_type(content_type: str | None) -> None:
    kind, *parameters = (part.strip().lower() for part in (content_type or "").split(";"))
    charsets = [part for part in parameters if part.startswith("charset=")]
    if kind not in _JSON_MEDIA_TYPES:
        raise UnsupportedMediaTypeError(f"{shown(kind)} is not application/json")
    if any(charset.partition("=")[2].strip('"') != "utf-8" for charset in charsets):
        raise UnsupportedMediaTypeError("JSON is UTF-8 here, no other charset")


def _json_object(body: bytes) -> dict[str, object]:
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLargeError(MAX_BODY_BYTES)
    if body.startswith(codecs.BOM_UTF8):
        raise BadJsonError("the body begins with a byte order mark; JSON has none")
    try:
        value = _decode(body.decode("utf-8"))
    except UnicodeDecodeError as bad:
        raise BadJsonError(
            f"the body is not UTF-8 at byte {bad.start}; send other bytes as base64"
        ) from bad
    except json.JSONDecodeError as bad:
        raise BadJsonError(f"{bad.msg} at byte {len(bad.doc[: bad.pos].encode())}") from bad
    except (ValueError, RecursionError) as bad:  # a number of 4,301 digits; 100,000 brackets
        raise BadJsonError("a number is too long, or the nesting too deep") from bad
    if not isinstance(value, dict):
        raise BadJsonError("the body is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise BadJsonError(f"field {shown(twice)} is given twice")
    return table


def _no_constant(name: str) -> NoReturn:
    raise BadJsonError(f"{name} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).decode


def _refuse_unknown(given: Mapping[str, object], known: Iterable[str], under: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.5)
            raise UnknownFieldError(under + name, under + near[0] if near else None)


def _optional(
    given: Mapping[str, object], name: str, parse: Callable[[object, str], _T]
) -> _T | None:
    """None for an absent field only: `null` is a wrong type like any other."""
    return parse(given[name], name) if name in given else None


def _object(value: object, at: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidFieldError(at, "is not an object")
    return value


def _array(value: object, at: str) -> list[object]:
    if not isinstance(value, list):
        raise InvalidFieldError(at, "is not an array")
    return value


def _text(value: object, at: str) -> bytes:
    if not isinstance(value, str):
        raise InvalidFieldError(at, "is not a string")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as bad:
        raise InvalidFieldError(
            at, "holds a lone surrogate; send bytes that are not UTF-8 as base64"
        ) from bad


def _base64(value: object, at: str) -> bytes:
    try:
        return base64.b64decode(_text(value, at), validate=True)
    except binascii.Error as bad:
        raise InvalidFieldError(at, "is not base64 (with padding, without line ends)") from bad


def _bytes(value: object, at: str) -> bytes:
    """Text, or `{"b64": …}` for bytes that need not be."""
    if isinstance(value, dict):
        _refuse_unknown(value, ("b64",), f"{at}.")
        return _base64(value.get("b64"), f"{at}.b64")
    return _text(value, at)


def _integer(value: object, at: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidFieldError(at, "is not a whole number")
    if value < least:
        raise InvalidFieldError(at, f"is less than {least}; leave it out for the default")
    if value > MAX_INTEGER:
        raise InvalidFieldError(at, f"is more than {MAX_INTEGER}")
    return value


def _positive(value: object, at: str) -> int:
    return _integer(value, at, 1)


# --- the fields of exec ---------------------------------------------------------------------------

# What a reader of the script would not see, or see otherwise than bash reads it.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but tab and newline
    "\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u2028\u2029]"  # bidi, zero width, breaks
)


def _argv(value: object, at: str) -> tuple[bytes, ...]:
    items = _array(value, at)
    if len(items) > MAX_ARGV_ITEMS:
        raise ArgvTooLargeError(at, MAX_ARGV_ITEMS, len(items), "arguments")
    argv = tuple(_argument(item, f"{at}[{number}]") for number, item in enumerate(items))
    if not argv or not argv[0]:
        raise InvalidFieldError(at, "names no program")
    total = sum(len(argument) + 1 for argument in argv)
    if total > MAX_ARGV_BYTES:
        raise ArgvTooLargeError(at, MAX_ARGV_BYTES, total)
    return argv


def _argument(value: object, at: str) -> bytes:
    argument = _bytes(value, at)
    if b"\0" in argument:
        raise InvalidFieldError(at, "holds a NUL, where execve(2) would cut it off")
    if len(argument) > MAX_ARGUMENT_BYTES:
        raise ArgvTooLargeError(at, MAX_ARGUMENT_BYTES, len(argument))
    return argument


def _script(value: object, at: str) -> bytes:
    script = _text(value, at)
    if len(script) > MAX_SCRIPT_BYTES:
        raise ArgvTooLargeError(at, MAX_SCRIPT_BYTES, len(script))
    if not script:
        raise InvalidFieldError(at, "is empty")
    hidden = _HIDDEN.search(script.decode())
    if hidden:
        advice = "; end lines with a line feed alone" if hidden.group() == "\r" else ""
        raise InvalidFieldError(
            at, f"holds U+{ord(hidden.group()):04X} at character {hidden.start()}{advice}"
        )
    return script


def _path(raw: bytes, at: str) -> bytes:
    try:
        return parse_client_path(raw)
    except BadPathError as bad:
        raise bad.at(at) from None


def _path_member(given: Mapping[str, object], name: str, under: str) -> bytes | None:
    """`name` or `name_b64`, at most one of them."""
    encoded = f"{name}_b64"
    if name in given and encoded in given:
        raise InvalidFieldError(under + name, f"give one of {name} and {encoded}")
    if name in given:
        return _path(_text(given[name], under + name), under + name)
    if encoded in given:
        return _path(_base64(given[encoded], under + encoded), under + encoded)
    return None


def _roots(value: object, at: str) -> tuple[Root, ...]:
    items = _array(value, at)
    if len(items) > MAX_REQUEST_ROOTS:
        raise LimitExceededError(at, MAX_REQUEST_ROOTS, len(items), "roots")
    return tuple(_root(item, f"{at}[{number}]") for number, item in enumerate(items))


def _root(value: object, at: str) -> Root:
    given = _object(value, at)
    _refuse_unknown(given, ("path", "path_b64", "access"), f"{at}.")
    path = _path_member(given, "path", f"{at}.")
    if path is None:
        raise InvalidFieldError(at, "has neither path nor path_b64")
    return Root(path, _access(given.get("access"), f"{at}.access"))


_ACCESS_WORDS: dict[object, Access] = {
    "read": Access.READ,
    "write": Access.READ | Access.WRITE,
    "exec": Access.EXEC,
}


def _access(value: object, at: str) -> Access:
    words = _array(value, at)
    access = NO_ACCESS
    for word in words:
        if not isinstance(word, str) or word not in _ACCESS_WORDS:
            raise InvalidFieldError(at, 'is not a list of "read", "write" and "exec"')
        access |= _ACCESS_WORDS[word]
    if not words:
        raise InvalidFieldError(at, "is empty")
    return access


def _env(value: object, at: str) -> Env:
    return parse_overrides(
        (_text(name, at), _bytes(content, f"{at}[{shown(name)}]"))
        for name, content in _object(value, at).items()
    )


def _stdin(value: object, at: str) -> bytes:
    if value == "none":
        return b""
    if not isinstance(value, dict):
        raise InvalidFieldError(at, 'is neither "none" nor {"b64": …}')
    content = _bytes(value, at)
    if len(content) > MAX_STDIN_BYTES:
        raise LimitExceededError(at, MAX_STDIN_BYTES, len(content), "bytes")
    return content


def _output(value: object, at: str) -> tuple[int | None, int | None, OnLimit]:
    given = _object(value, at)
    _refuse_unknown(given, ("head_bytes", "tail_bytes", "on_limit"), f"{at}.")
    head, tail = (
        _integer(given[name], f"{at}.{name}", 0) if name in given else None
        for name in ("head_bytes", "tail_bytes")
    )
    on_limit = given.get("on_limit", OnLimit.DROP.value)
    if on_limit not in ("drop", "kill"):
        raise InvalidFieldError(f"{at}.on_limit", 'is neither "drop" nor "kill"')
    return head, tail, OnLimit(on_limit)


def _label(value: object, at: str) -> str:
    label = _text(value, at).decode()
    if not label or not label.isprintable():
        raise InvalidFieldError(at, "is empty or not printable")
    if len(label) > MAX_LABEL_CHARS:
        raise LimitExceededError(at, MAX_LABEL_CHARS, len(label), "characters")
    return label


_EXEC_FIELDS = (
    "argv",
    "script",
    "cwd",
    "cwd_b64",
    "env",
    "roots",
    "timeout_ms",
    "grace_ms",
    "stdin",
    "output",
    "label",
)

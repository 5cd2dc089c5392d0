# SPDX-License-Identifier: Apache-2.0
"""Every error a client can see, one class for each wire code, and its form as a problem document.

Owns the codes, their HTTP status and their titles.  Leaves to others what happened: a message says
only what the caller sent, never a path of the ceiling, never a secret, never whether a path exists.
A caller switches on `code` and reads `details`; the text is for people.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeAlias

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

PROBLEM_TYPE = "application/problem+json"
MAX_ECHO_CHARS = 80
"""How much of what a caller sent is repeated in a message or in `details`."""


def shown(text: str) -> str:
    """Quotes text from a caller for a message: one line, printable, bounded."""
    cut = text if len(text) <= MAX_ECHO_CHARS else text[:MAX_ECHO_CHARS] + "…"
    return ascii(cut) if not cut.isprintable() else repr(cut)


def shown_bytes(raw: bytes) -> str:
    """The same for bytes, which need not be UTF-8."""
    return shown(raw.decode("utf-8", "backslashreplace"))


def path_member(path: bytes) -> dict[str, Json]:
    """A path as the protocol spells it: `path` where it is UTF-8, else `path_b64`."""
    try:
        return {"path": path.decode("utf-8")}
    except UnicodeDecodeError:
        return {"path_b64": base64.b64encode(path).decode("ascii")}


class BrokerError(Exception):
    """Base of all errors with a wire code.  Never raised itself.

    `detail` is one sentence for people; `details` is what a program would otherwise parse out of
    it; `retry_after_s`, where not None, becomes the Retry-After header.
    """

    code: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]
    layer: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        detail: str,
        *,
        details: Mapping[str, Json] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.details: dict[str, Json] = dict(details or {})
        self.retry_after_s = retry_after_s

    def problem(self, audit_id: str | None = None, op_sha256: str | None = None) -> dict[str, Json]:
        """The RFC 9457 document, with our members beside the standard ones."""
        document: dict[str, Json] = {
            "type": f"urn:host-broker:error:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "layer": self.layer,
            "retryable": self.retryable,
            "details": self.details,
        }
        if audit_id is not None:
            document["audit_id"] = audit_id
        if op_sha256 is not None:
            document["op_sha256"] = op_sha256
        return document


# --- 400: the request is not one ------------------------------------------------------------------


class BadRequestError(BrokerError):
    """The HTTP message itself is malformed or ambiguous: two lengths, a body where none belongs."""

    code, status, title, layer = "bad_request", 400, "Malformed HTTP request", "transport"


class BadJsonError(BrokerError):
    """The body is not one JSON object in UTF-8 without duplicate keys."""

    code, status, title, layer = "bad_json", 400, "Body is not a JSON object", "request"


class UnknownFieldError(BrokerError):
    """The body has a field this operation does not know.  A misspelt limit must not be ignored."""

    code, status, title, layer = "unknown_field", 400, "Unknown field", "request"

    def __init__(self, field: str, nearest: str | None) -> None:
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        super().__init__(
            f"unknown field {shown(field)}{hint}",
            details={"field": field[:MAX_ECHO_CHARS], "nearest": nearest},
        )


class InvalidFieldError(BrokerError):
    """A known field has the wrong type or a value that can never be right."""

    code, status, title, layer = "invalid_field", 400, "Invalid field", "request"

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}", details={"field": field, "why": why})


class LimitExceededError(BrokerError):
    """A value is above what the operator or the protocol allows.  Never clamped silently."""

    code, status, title, layer = "limit_exceeded", 400, "Above the limit", "request"

    def __init__(self, field: str, limit: int, given: int, unit: str) -> None:
        super().__init__(
            f"{field}: at most {limit} {unit}, not {given}",
            details={"field": field, "limit": limit, "given": given, "unit": unit},
        )


class BadPathError(BrokerError):
    """A path is relative, not normalised, too long, or holds a NUL."""

    code, status, title, layer = "bad_path", 400, "Bad path", "request"

    def __init__(self, why: str, path: bytes, field: str = "path") -> None:
        super().__init__(
            f"{field}: {shown_bytes(path)} {why}",
            details={"field": field, "why": why, **path_member(path[: 4 * MAX_ECHO_CHARS])},
        )
        self.why = why
        self.path = path

    def at(self, field: str) -> BadPathError:
        """The same error naming the field the path came in."""
        return BadPathError(self.why, self.path, field)


# --- 401, 429: who is asking, and how often -------------------------------------------------------


class UnauthenticatedError(BrokerError):
    """No secret, or not the right one.  Always the same answer, whatever was asked for."""

    code, status, title, layer = "unauthenticated", 401, "Unauthenticated", "auth"

    def __init__(self) -> None:
        super().__init__("send the broker's secret as a bearer token")


class TooManyAttemptsError(BrokerError):
    """This peer failed to authenticate too often in the last minute."""

    code, status, title, layer = "too_many_attempts", 429, "Too many attempts", "auth"
    retryable = True

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("too many failed attempts, wait", retry_after_s=retry_after_s)


class TooManyRunsError(BrokerError):
    """As many runs as the operator allows are going on."""

    code, status, title, layer = "too_many_runs", 429, "Too many runs", "run"
    retryable = True

    def __init__(self, limit: int, retry_after_s: int = 1) -> None:
        super().__init__(
            f"{limit} runs are going on, which is the most allowed at once",
            details={"limit": limit},
            retry_after_s=retry_after_s,
        )


# --- 403: understood, and refused -----------------------------------------------------------------


class FeatureDisabledError(BrokerError):
    """The operator switched this off: the kill switch is set."""

    code, status, title, layer = "feature_disabled", 403, "Switched off by the operator", "policy"

    def __init__(self, reason: str) -> None:
        super().__init__("runs are switched off by the operator", details={"reason": reason})


class CeilingDeniedError(BrokerError):
    """What was asked for lies outside the operator's ceiling, whether or not it exists."""

    code, status, title, layer = "ceiling_denied", 403, "Outside the ceiling", "ceiling"

    def __init__(self, reason: str, detail: str, *, field: str | None = None) -> None:
        details: dict[str, Json] = {"reason": reason}
        if field is not None:
            details["field"] = field
        super().__init__(detail, details=details)


class EnvironmentRefusedError(BrokerError):
    """The caller's `env` names variables that make a loader, shell or interpreter run other code.

    The wire code is `command_denied`: such a variable changes which command runs.
    """

    code, status, title, layer = "command_denied", 403, "Command refused", "policy"

    def __init__(self, names: Iterable[str]) -> None:
        refused = sorted(names)
        self.names = tuple(refused)
        listed = ", ".join(refused[:8]) + (", …" if len(refused) > 8 else "")
        super().__init__(
            f"env: {listed} would choose what code runs; leave out or set inside the command",
            details={"reason": "environment_refused", "names": refused[:64]},
        )


class OriginForbiddenError(BrokerError):
    """The request comes from a web page (Origin), or names a foreign Host over TCP."""

    code, status, title, layer = "origin_forbidden", 403, "Origin forbidden", "transport"


# --- 404, 405, 408: no such thing, or not in time -------------------------------------------------


class NoSuchRouteError(BrokerError):
    """No operation has this path.  Only one form is routed: without a slash at the end."""

    code, status, title, layer = "no_such_route", 404, "No such route", "request"


class MethodNotAllowedError(BrokerError):
    """The path exists with another method; `allow` says which."""

    code, status, title, layer = "method_not_allowed", 405, "Method not allowed", "request"

    def __init__(self, allow: Sequence[str]) -> None:
        super().__init__(f"use {' or '.join(allow)} here", details={"allow": list(allow)})
        self.allow = tuple(allow)


class RequestTimeoutError(BrokerError):
    """The headers or the body did not arrive in time."""

    code, status, title, layer = "request_timeout", 408, "Request timed out", "transport"
    retryable = True


# --- 413, 415, 431: too large, or not what we read ------------------------------------------------


class BodyTooLargeError(BrokerError):
    """The body is larger than a request may be."""

    code, status, title, layer = "body_too_large", 413, "Body too large", "request"

    def __init__(self, limit: int) -> None:
        super().__init__(f"body: at most {limit} bytes", details={"limit": limit})


class ArgvTooLargeError(BrokerError):
    """One argument, or all of them together, are more than execve(2) is given here."""

    code, status, title, layer = "argv_too_large", 413, "Arguments too large", "request"

    def __init__(self, field: str, limit: int, given: int, unit: str = "bytes") -> None:
        super().__init__(
            f"{field}: at most {limit} {unit}, not {given}; use stdin or a file",
            details={"field": field, "limit": limit, "given": given, "unit": unit},
        )


class UnsupportedMediaTypeError(BrokerError):
    """The body is declared as something other than JSON."""

    code, status, title, layer = "unsupported_media_type", 415, "Unsupported media type", "request"


class HeadersTooLargeError(BrokerError):
    """The header section is larger than a request may have."""

    code, status, title, layer = "headers_too_large", 431, "Headers too large", "transport"

    def __init__(self, limit: int) -> None:
        super().__init__(f"headers: at most {limit} bytes", details={"limit": limit})


# --- 5xx: the broker cannot, or must not right now ------------------------------------------------


class InternalError(BrokerError):
    """A fault of the broker.  Nothing about it is told; the audit record has it."""

    code, status, title, layer = "internal", 500, "Internal error", "internal"

    def __init__(self) -> None:
        super().__init__("internal error; the operator finds it under the audit id")


class NotSupportedError(BrokerError):
    """The protocol has this, and this broker does not (yet).  Ignoring it would be a lie."""

    code, status, title, layer = "not_supported", 501, "Not supported", "request"


class NotReadyError(BrokerError):
    """A floor does not hold: the sandbox is unproved, or the ceiling or the secret is missing."""

    code, status, title, layer = "not_ready", 503, "Not ready", "readiness"

    def __init__(self, checks: Iterable[str]) -> None:
        failed = sorted(checks)
        super().__init__(
            f"not ready: {', '.join(failed)}; the operator runs `host-broker doctor`",
            details={"checks": failed},
        )


class DrainingError(BrokerError):
    """The broker is stopping and takes nothing new."""

    code, status, title, layer = "draining", 503, "Stopping", "readiness"
    retryable = True

    def __init__(self, retry_after_s: int = 5) -> None:
        super().__init__("the broker is stopping", retry_after_s=retry_after_s)


class AuditUnavailableError(BrokerError):
    """The intent could not be recorded, so nothing ran."""

    code, status, title, layer = "audit_unavailable", 503, "Audit unavailable", "audit"
    retryable = True

    def __init__(self, retry_after_s: int = 5) -> None:
        super().__init__(
            "the intent could not be recorded, so nothing ran", retry_after_s=retry_after_s
        )


class BusyError(BrokerError):
    """No connection, runner or descriptor is free.  Nothing ran."""

    code, status, title, layer = "busy", 503, "Busy", "run"
    retryable = True

    def __init__(self, what: str, retry_after_s: int = 1) -> None:
        super().__init__(f"no {what} is free, nothing ran", retry_after_s=retry_after_s)


class NoSpaceError(BrokerError):
    """The disk has no room for the scratch directory.  Nothing ran."""

    code, status, title, layer = "no_space", 507, "No space", "run"
    retryable = True

    def __init__(self, what: str) -> None:
        super().__init__(f"no space for {what}, nothing ran", details={"what": what})

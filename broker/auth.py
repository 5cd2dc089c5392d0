# SPDX-License-Identifier: Apache-2.0
"""The broker's secret: its form, its comparison, and the bound on guessing it.

Owns what a secret may look like and how a header is judged.  Leaves to config.py reading the files
and checking who owns them, and to app.py the answer, which is always the same.

A secret is kept as its SHA-256 digest only, so that no repr, error, log, core dump or audit record
can hold it.  Two are accepted while one replaces the other: `secret` and `secret.next`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NoReturn

SECRET_BYTES = 32
MAX_SECRET_CHARS = 512
MAX_FAILURES = 10
WINDOW_S = 60.0
MAX_PEERS = 4096

_HEX = re.compile(rb"(?:[0-9a-f]{2}){32,}|(?:[0-9A-F]{2}){32,}")
_BASE64URL = re.compile(rb"[A-Za-z0-9_-]{43,}")
_MIN_DISTINCT = 10  # 32 random bytes in hex show fewer than 10 of 16 digits once in 10**11 times
_AUTHORIZATION = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)[ \t]*")


class WeakSecretError(ValueError):
    """The content of a secret file is not a secret; the message never quotes any of it."""


def generate_secret() -> str:
    """A new secret: 32 bytes from the kernel, in base64url."""
    return secrets.token_urlsafe(SECRET_BYTES)


def client_header(secret: str) -> str:
    """The content of `client.header`, for `curl -H @FILE`: so the secret is in no argv."""
    return f"Authorization: Bearer {secret}\n"


def parse_secret(content: bytes) -> bytes:
    """Returns the SHA-256 digest of the secret in a file's content.

    The file holds one line: at least 32 bytes in hex or in base64url without padding.  Raises
    WeakSecretError for anything else, also for one that cannot come from a random generator.
    """
    secret = content.removesuffix(b"\n").removesuffix(b"\r")
    if not secret:
        raise WeakSecretError("is empty")
    if len(secret) > MAX_SECRET_CHARS:
        raise WeakSecretError(f"is longer than {MAX_SECRET_CHARS} characters")
    if len(secret.split()) != 1 or len(secret.split()[0]) != len(secret):
        raise WeakSecretError("is not one line without blanks")
    if not _HEX.fullmatch(secret) and not _BASE64URL.fullmatch(secret):
        raise WeakSecretError(
            f"is not {SECRET_BYTES} bytes or more in hex (64 digits) or base64url (43 characters)"
        )
    if len(set(secret)) < _MIN_DISTINCT:
        raise WeakSecretError("repeats too few characters to be random")
    return hashlib.sha256(secret).digest()


def parse_authorization(header: bytes | None) -> bytes | None:
    """Returns the bearer token of an Authorization header's value, None if it has none.

    RFC 6750 section 2.1; the scheme's name is not case-sensitive (RFC 9110 section 11.1).
    """
    found = _AUTHORIZATION.fullmatch(header or b"")
    return found[1] if found else None


class Secrets:
    """The accepted secrets, as digests.  Shows nothing, and is neither copied nor serialised."""

    __slots__ = ("__digests",)

    def __init__(self, current: bytes, following: bytes | None = None) -> None:
        """Takes the contents of `secret` and, during a rotation, `secret.next`."""
        digest = parse_secret(current)
        self.__digests = (digest, digest if following is None else parse_secret(following))

    def verify(self, header: bytes | None) -> bool:
        """Whether an Authorization header's value carries an accepted secret.

        Takes the same steps whatever the header is, and always compares with both digests.
        """
        given = hashlib.sha256(parse_authorization(header) or b"").digest()
        current = hmac.compare_digest(given, self.__digests[0])
        following = hmac.compare_digest(given, self.__digests[1])
        return current | following

    def __repr__(self) -> str:
        return "<Secrets>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Secrets are neither copied nor serialised")

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("Secrets are not compared but by verify()")

    __hash__ = None  # type: ignore[assignment]


class Failures:
    """How often each peer failed to authenticate in the last minute.  Holds no clock.

    A peer is what the transport knows of it: a user id on the Unix socket, one for all on loopback
    TCP, whose ports cost nothing.  Only failures are held up, so nobody can lock others out; the
    secret is 256 random bits, and guessing slower would not make it safer.
    """

    def __init__(self, limit: int = MAX_FAILURES, window_s: float = WINDOW_S) -> None:
        self._limit, self._window_s = limit, window_s
        self._times: OrderedDict[Hashable, deque[float]] = OrderedDict()

    def add(self, peer: Hashable, now_s: float) -> int | None:
        """Counts a failure at monotonic `now_s`.

        Returns None for the first `limit` within the window, else the whole seconds to wait; those
        are not counted, so that a peer that waits gets to try.  Past MAX_PEERS the peer that failed
        longest ago is forgotten.
        """
        times = self._times.setdefault(peer, deque(maxlen=self._limit))
        self._times.move_to_end(peer)
        if len(self._times) > MAX_PEERS:
            self._times.popitem(last=False)
        free_at_s = times[0] + self._window_s if len(times) == self._limit else now_s
        if now_s < free_at_s:
            return max(1, math.ceil(free_at_s - now_s))
        times.append(now_s)
        return None

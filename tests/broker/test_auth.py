# SPDX-License-Identifier: Apache-2.0
"""The secret: what is accepted as one, that the right one opens, and that nothing shows it."""

from __future__ import annotations

import base64
import copy
import hashlib
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import auth
from broker.auth import Failures, Secrets, WeakSecretError

OLD = "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZmdoaWo"
NEW = "5f4dcc3b5aa765d61d8327deb882cf99c0ffee0123456789abcdef0123456789"


def bearer(secret: str) -> bytes:
    return f"Bearer {secret}".encode()


# --- what is a secret -----------------------------------------------------------------------------


def test_a_generated_secret_is_accepted_and_never_the_same() -> None:
    made = {auth.generate_secret() for _ in range(50)}
    assert len(made) == 50
    for secret in made:
        assert len(base64.urlsafe_b64decode(secret + "=")) == auth.SECRET_BYTES
        assert auth.parse_secret(secret.encode()) == hashlib.sha256(secret.encode()).digest()


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("secret", [OLD, NEW, NEW.upper(), NEW * 8])
def test_a_secret_is_one_line_of_hex_or_base64url(secret: str, end: bytes) -> None:
    expected = hashlib.sha256(secret.encode()).digest()
    assert auth.parse_secret(secret.encode() + end) == expected


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (OLD[:-1].encode(), "is not 32 bytes or more"),
        (NEW[:42].encode(), "is not 32 bytes or more"),
        (NEW[:42].encode() + b"\n", "is not 32 bytes or more"),
        (b"a" * 43, "repeats too few characters"),
        (b"0123" * 20, "repeats too few characters"),
        (b"01234567" * 8, "repeats too few characters"),
        (OLD.encode() + b"=", "is not 32 bytes or more"),
        (OLD.encode() + b"+", "is not 32 bytes or more"),
        (OLD.encode() + b"\0", "is not 32 bytes or more"),
        (OLD.encode() + b"\xff", "is not 32 bytes or more"),
        (OLD.encode() + b"\n\n", "is not one line"),
        (b" " + OLD.encode(), "is not one line"),
        (OLD.encode() + b" \n", "is not one line"),
        (OLD.encode() + b"\n" + NEW.encode() + b"\n", "is not one line"),
        (b"Authorization: Bearer " + OLD.encode(), "is not one line"),
        (NEW.encode() * 8 + b"0", "is longer than 512"),
    ],
)
def test_anything_else_is_refused_without_showing_it(content: bytes, why: str) -> None:
    with pytest.raises(WeakSecretError, match=why) as refused:
        auth.parse_secret(content)
    assert OLD[:8] not in str(refused.value)
    with pytest.raises(WeakSecretError):
        Secrets(OLD.encode(), content)


# --- the header -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer abc", b"abc"),
        (b"BEARER   a-b._~+/c== ", b"a-b._~+/c=="),
        (None, None),
        (b"", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearerabc", None),
        (b" Bearer abc", None),
        (b"Bearer abc def", None),
        (b"Bearer abc, Bearer def", None),
        (b"Bearer a=b", None),
        (b"Basic abc", None),
        (b"Bearer\tabc", None),
        (b"Bearer ab\0c", None),
        (b"Bearer ab\nc", None),
        ("Bearer ü".encode(), None),
    ],
)
def test_a_bearer_token_is_read_as_rfc_6750_writes_it(
    header: bytes | None, token: bytes | None
) -> None:
    assert auth.parse_authorization(header) == token


def test_the_client_header_is_what_the_server_reads() -> None:
    name, _, value = auth.client_header(OLD).partition(": ")
    assert name == "Authorization"
    assert auth.parse_authorization(value.rstrip("\n").encode()) == OLD.encode()


# --- the comparison -------------------------------------------------------------------------------


def test_the_secret_opens_and_during_a_rotation_both_do() -> None:
    alone, both = Secrets(OLD.encode()), Secrets(OLD.encode() + b"\n", NEW.encode() + b"\n")
    assert alone.verify(bearer(OLD))
    assert not alone.verify(bearer(NEW))
    assert both.verify(bearer(OLD))
    assert both.verify(bearer(NEW))


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer ",
        bearer(OLD[:-1]),
        bearer(OLD + "A"),
        bearer(OLD.swapcase()),
        bearer(OLD) + b" " + OLD.encode(),
        OLD.encode(),
        b"Basic " + OLD.encode(),
        bearer(hashlib.sha256(OLD.encode()).hexdigest()),
        bearer("x" * 100_000),
    ],
)
def test_nothing_else_opens(header: bytes | None) -> None:
    assert not Secrets(OLD.encode(), NEW.encode()).verify(header)


@given(st.integers(0, len(OLD) - 1), st.characters(codec="ascii"))
def test_no_other_character_anywhere_opens(at: int, character: str) -> None:
    changed = OLD[:at] + character + OLD[at + 1 :]
    assert Secrets(OLD.encode()).verify(bearer(changed)) == (changed == OLD)


def test_nothing_shows_or_copies_secrets() -> None:
    held = Secrets(OLD.encode(), NEW.encode())
    digest = hashlib.sha256(OLD.encode())
    assert repr(held) == str(held) == f"{held}" == "<Secrets>"
    assert not hasattr(held, "__dict__")
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps, hash, lambda it: it == held):
        with pytest.raises(TypeError) as refused:
            attempt(held)
        told = "".join(traceback.format_exception(refused.value))
        assert OLD not in told
        assert digest.hexdigest() not in told
    reached = [getattr(held, name) for name in dir(held) if "digests" in name]
    assert OLD.encode() not in repr(reached).encode()


# --- guessing -------------------------------------------------------------------------------------


def test_ten_failures_a_minute_are_answered_and_the_next_has_to_wait() -> None:
    failures = Failures()
    assert [failures.add("unix:1000", float(at)) for at in range(10)] == [None] * 10
    assert failures.add("unix:1000", 10.0) == 50
    assert failures.add("unix:1000", 59.5) == 1
    assert failures.add("unix:1001", 10.0) is None
    assert failures.add("unix:1000", 60.0) is None  # the first has left the window
    assert failures.add("unix:1000", 60.5) == 1


def test_waiting_attempts_do_not_make_the_wait_longer() -> None:
    failures = Failures(limit=1)
    assert failures.add("a", 0.0) is None
    assert [failures.add("a", float(at)) for at in range(1, 60)] == [*range(59, 0, -1)]
    assert failures.add("a", 60.0) is None


def test_the_peers_that_are_remembered_are_bounded() -> None:
    failures = Failures(limit=1)
    for peer in range(auth.MAX_PEERS):
        assert failures.add(peer, 0.0) is None
    assert failures.add(0, 0.0) == 60
    assert failures.add("one more", 0.0) is None  # forgets peer 1, which failed longest ago
    assert failures.add(0, 0.0) == 60
    assert failures.add(1, 0.0) is None


@given(st.lists(st.floats(0, 600), max_size=60))
def test_no_window_holds_more_than_the_limit(times: list[float]) -> None:
    failures = Failures()
    answered = [at for at in sorted(times) if failures.add("peer", at) is None]
    for start in answered:
        assert sum(start <= at < start + auth.WINDOW_S for at in answered) <= auth.MAX_FAILURES

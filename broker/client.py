# SPDX-License-Identifier: Apache-2.0
"""A blocking client for the broker, over its Unix socket or loopback TCP.  Standard library only.

    client = Client(socket_path="/run/host-broker/broker.sock",
                    secret_file="/etc/host-broker/client.header")
    done = client.exec(["ls", "-la"], cwd="/srv/app", timeout_ms=5000)
    print(done.exit_code, done.stdout.decode())

Speaks HTTP by itself: the usual modules take longer to import than a run takes.  One connection,
kept between calls; not for several threads at once.  Leaving while a command runs ends the command.

The secret goes to a broker only: on a Unix socket that strangers could have put there, the other
side must be root or our own account.  A TCP port has no such proof.
"""

from __future__ import annotations

import binascii
import json
import os
import socket
import stat
import struct

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Any, Self, TypeAlias

Text: TypeAlias = "str | bytes"

CONNECT_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 60.0
MARGIN_S = 30.0
"""How much longer than a command may take we wait for its result."""
DEFAULT_WAIT_S = 900.0
MAX_HEAD_BYTES = 64 * 1024
MAX_REPLY_BYTES = 512 * 1024 * 1024
MAX_DIGITS = 12


class ClientError(Exception):
    """Base of what this module raises.  Never raised itself."""


class UnreachableError(ClientError):
    """No broker answers at the address.  Nothing ran."""


class StrangerError(ClientError):
    """Somebody else may listen in the place of the broker.  Nothing was sent, and nothing ran."""


class BrokenReplyError(ClientError):
    """The connection ended, or what came is not a reply: a command may have run."""


class RefusedError(ClientError):
    """The broker said no, and nothing ran.  `problem` is its RFC 9457 document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{problem.get('code', status)}: {problem.get('detail', 'refused')}")
        self.status = status
        self.problem = dict(problem)

    @property
    def code(self) -> str:
        """The stable word to switch on, such as `ceiling_denied`."""
        return str(self.problem.get("code", ""))

    @property
    def retryable(self) -> bool:
        return self.problem.get("retryable") is True

    @property
    def audit_id(self) -> str | None:
        return self.problem.get("audit_id")


class ExecResult:
    """What became of a command.  `document` is the whole reply; the rest is what is mostly wanted.

    `exit_code` is None after a signal and where nothing was executed; `shell_code` never is.
    Raises BrokenReplyError for what is not a result.
    """

    __slots__ = ("document", "stderr", "stdout")

    def __init__(self, document: dict[str, Any]) -> None:
        _require(document, _RESULT)
        self.document = document
        self.stdout = _stream(document["stdout"])
        self.stderr = _stream(document["stderr"])

    @property
    def reason(self) -> str:
        return str(self.document["reason"])

    @property
    def exit_code(self) -> int | None:
        code: int | None = self.document["exit"]["code"]
        return code

    @property
    def signal(self) -> str | None:
        """The name without SIG."""
        name: str | None = self.document["exit"]["signal"]
        return name

    @property
    def shell_code(self) -> int:
        return int(self.document["exit"]["shell_code"])

    @property
    def timed_out(self) -> bool:
        return self.document["timed_out"] is True

    @property
    def truncated(self) -> bool:
        """Whether anything is missing of either stream."""
        return bool(self.document["stdout"]["truncated"] or self.document["stderr"]["truncated"])

    @property
    def confinement(self) -> dict[str, Any]:
        return dict(self.document["confinement"])

    def __repr__(self) -> str:
        return f"<ExecResult {self.reason} {self.shell_code}>"


class Client:
    """A connection to one broker.  Context manager: leaving it closes the connection."""

    def __init__(
        self,
        *,
        secret_file: str,
        socket_path: str | None = None,
        tcp: tuple[str, int] | None = None,
    ) -> None:
        """Exactly one of `socket_path` and `tcp`.  Raises OSError for the secret file."""
        if (socket_path is None) == (tcp is None):
            raise ValueError("give exactly one of socket_path and tcp")
        self._socket_path = socket_path
        self._tcp = tcp
        self._authorization = _authorization(secret_file)
        self._sock: socket.socket | None = None
        self._unread = b""

    def __repr__(self) -> str:
        return f"<Client {self._socket_path or self._tcp}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._unread = b""

    # ---- operations ----

    def exec(
        self,
        argv: Sequence[Text] | None = None,
        *,
        script: str | None = None,
        **options: Any,
    ) -> ExecResult:
        """Runs one command, `argv` or bash `script`, to its end.

        Options are fields of the request: `cwd`, `env`, `roots`, `timeout_ms`, `grace_ms`, `stdin`
        (bytes), `output`, `label`.  Raises RefusedError, UnreachableError, StrangerError,
        BrokenReplyError.
        """
        request = exec_request(argv, script=script, **options)
        wait_s = (request.get("timeout_ms", DEFAULT_WAIT_S * 1000) + 10_000) / 1000 + MARGIN_S
        return ExecResult(self.call("POST", "/v1/exec", request, timeout_s=wait_s))

    def plan(
        self, argv: Sequence[Text] | None = None, *, script: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """What exec() with the same arguments would be answered; runs nothing."""
        document = self.call("POST", "/v1/plan", exec_request(argv, script=script, **options))
        _require(document, {"decision": str})
        return document

    def ready(self) -> dict[str, Any]:
        """`{"ready": bool, "checks": {…}}`; not being ready is an answer, not an error."""
        status, document = self._exchange("GET", "/readyz", None, REPLY_TIMEOUT_S)
        if "code" in document:
            raise _refused(status, document)
        _require(document, {"ready": bool, "checks": dict})
        return document

    def capabilities(self) -> dict[str, Any]:
        return self.call("GET", "/v1/capabilities")

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Any operation; returns the document of a 2xx reply."""
        status, document = self._exchange(method, path, body, timeout_s)
        if not 200 <= status < 300:
            raise _refused(status, document)
        return document

    # ---- HTTP ----

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> tuple[int, dict[str, Any]]:
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines.append(f"Authorization: {self._authorization}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        head = "\r\n".join([*lines, "\r\n"]).encode("latin-1")
        sock = self._connected()
        sock.settimeout(timeout_s)
        try:
            self._send(sock, head + payload)
            return self._receive(sock)
        except OSError as error:
            self.close()
            raise BrokenReplyError(f"no reply to {method} {path}: {error}") from error
        except BaseException:
            self.close()  # half a reply may be on its way: the connection is of no more use
            raise

    def _send(self, sock: socket.socket, data: bytes) -> None:
        try:
            sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # refused before all of it was read; the reply says why

    def _connected(self) -> socket.socket:
        if self._sock is not None and not self._unread and _is_idle(self._sock):
            return self._sock
        self.close()
        try:
            self._sock = self._connect()
        except OSError as error:
            where = self._socket_path or self._tcp
            raise UnreachableError(
                f"no broker answers at {where!r}: {error}{self._stale_mount()}"
            ) from error
        return self._sock

    def _stale_mount(self) -> str:
        """A directory without a name is one that was mounted here and removed at its source."""
        if self._socket_path is None:
            return ""
        try:
            gone = os.stat(os.path.dirname(self._socket_path) or ".").st_nlink == 0
        except OSError:
            return ""
        return "; its directory was removed on the host: re-create the container" if gone else ""

    def _connect(self) -> socket.socket:
        if self._tcp is not None:
            sock = socket.create_connection(self._tcp, CONNECT_TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A blocking connect(2) waits for a place in the queue, and this bounds it (unix(7)).
            wait = struct.pack("ll", int(CONNECT_TIMEOUT_S), 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
            sock.connect(self._socket_path or "")
            sock.settimeout(CONNECT_TIMEOUT_S)
            _refuse_stranger(sock, self._socket_path or "")
        except (OSError, StrangerError):
            sock.close()
            raise
        return sock

    def _receive(self, sock: socket.socket) -> tuple[int, dict[str, Any]]:
        head, rest = self._head(sock)
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        version, _, status = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not _is_number(status[:3]):
            raise BrokenReplyError(f"not an HTTP reply: {lines[0][:80]!r}")
        if not _is_number(headers.get("content-length", "")):
            raise BrokenReplyError("a reply without Content-Length")
        body, self._unread = _body(sock, rest, int(headers["content-length"]))
        if headers.get("connection", "").lower() == "close":
            self.close()
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BrokenReplyError(f"a reply that is not JSON (status {status[:3]})") from error
        if not isinstance(document, dict):
            raise BrokenReplyError("a reply that is not a JSON object")
        return int(status[:3]), document

    def _head(self, sock: socket.socket) -> tuple[bytes, bytes]:
        data = self._unread
        while b"\r\n\r\n" not in data:
            part = sock.recv(65536)
            if not part:
                raise BrokenReplyError("the connection ended before the reply")
            data += part
            if len(data) > MAX_HEAD_BYTES and b"\r\n\r\n" not in data[:MAX_HEAD_BYTES]:
                raise BrokenReplyError("the headers of the reply do not end")
        head, _, rest = data.partition(b"\r\n\r\n")
        return head, rest


def _refuse_stranger(sock: socket.socket, path: str) -> None:
    """Raises StrangerError if the other side may be whoever came first to the place.

    Root and our own account are trusted.  Anybody else only where no directory on the way to the
    socket lets everybody make names: such a place was chosen by who rules this host, or by who
    mounted it into this container.  The owner's uid is no help there, since inside it may have no
    name, or another number.
    """
    size = struct.calcsize("iII")
    _, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if uid in (0, os.geteuid()):
        return
    shared = _shared_directory(path)
    if shared is not None:
        raise StrangerError(
            f"uid {uid} listens at {path!r}, and anybody could have put that socket into "
            f"{shared!r}; nothing was sent; give the path of a socket below directories that not "
            "everybody can write (/run, XDG_RUNTIME_DIR)"
        )


def _shared_directory(path: str) -> str | None:
    """The first directory that everybody can write on the way to `path`, links followed."""
    at, rest = "/", [*reversed(os.path.join(os.getcwd(), path).split("/"))]
    while rest:
        name = rest.pop()
        if name == "..":
            at = os.path.dirname(at)
        elif name not in ("", "."):
            if os.stat(at).st_mode & stat.S_IWOTH:
                return at
            below = os.path.join(at, name)
            if os.path.islink(below):
                target = os.readlink(below)
                rest += reversed(target.split("/"))
                at = "/" if target.startswith("/") else at
            else:
                at = below
    return None


def _body(sock: socket.socket, rest: bytes, size: int) -> tuple[bytes, bytes]:
    if size > MAX_REPLY_BYTES:
        raise BrokenReplyError(f"a reply of {size} bytes")
    parts, have = [rest], len(rest)
    while have < size:
        part = sock.recv(min(1 << 20, size - have))
        if not part:
            raise BrokenReplyError(f"the connection ended after {have} of {size} bytes")
        parts.append(part)
        have += len(part)
    data = b"".join(parts)
    return data[:size], data[size:]


def _is_idle(sock: socket.socket) -> bool:
    """Whether a kept connection can be used: the broker closes quiet ones.

    Bytes that nobody asked for would be taken for the next reply.
    """
    sock.settimeout(0)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _refused(status: int, document: dict[str, Any]) -> RefusedError:
    """The refusal in a reply.  Raises BrokenReplyError if it is none."""
    _require(document, {"code": str})
    if not isinstance(document.get("details") or {}, dict):
        raise BrokenReplyError("a refusal whose 'details' are not an object")
    return RefusedError(status, document)


def _require(document: dict[str, Any], members: Mapping[str, Any], of: str = "reply") -> None:
    """Raises BrokenReplyError unless every member is there, and of its type."""
    for name, kind in members.items():
        value = document.get(name)
        if not isinstance(value, dict if isinstance(kind, dict) else kind):
            raise BrokenReplyError(f"a {of} without {name!r}, or with another kind of it")
        if isinstance(kind, dict):
            _require(value, kind, name)


_STREAM = {
    "encoding": str, "total_bytes": int, "truncated": bool, "head_bytes": int, "tail_bytes": int,
}  # fmt: skip
_RESULT = {
    "reason": str,
    "exit": {"code": (int, type(None)), "signal": (str, type(None)), "shell_code": int},
    "timed_out": bool,
    "stdout": _STREAM,
    "stderr": _STREAM,
    "confinement": {"mode": str},
    "environment": {"stripped": list},
    "duration_ms": int,
    "orphans_killed": int,
}
"""What is read of a result, here and by the command line."""


def _authorization(secret_file: str) -> str:
    """The header's value from a file that holds the secret, or the header for `curl -H @file`."""
    with open(secret_file, encoding="latin-1") as file:
        text = file.readline().strip()
    name, colon, value = text.partition(":")
    if colon and name.lower() == "authorization":
        return value.strip()
    return f"Bearer {text}"


def exec_request(
    argv: Sequence[Text] | None = None,
    *,
    script: str | None = None,
    cwd: Text | None = None,
    env: Mapping[str, Text] | None = None,
    stdin: bytes | None = None,
    roots: Sequence[tuple[Text, Sequence[str]]] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The body of /v1/exec.  Bytes that are not UTF-8 go as base64.  What is None is left out."""
    request: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    if argv is not None:
        request["argv"] = [_bytes_member(argument) for argument in argv]
    if script is not None:
        request["script"] = script
    if cwd is not None:
        request |= _path_member("cwd", cwd)
    if env is not None:
        request["env"] = {name: _bytes_member(value) for name, value in env.items()}
    if stdin is not None:
        request["stdin"] = {"b64": _base64(stdin)}
    if roots is not None:
        request["roots"] = [
            {**_path_member("path", path), "access": list(access)} for path, access in roots
        ]
    return request


def _bytes_member(value: Text) -> str | dict[str, str]:
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": _base64(raw)}


def _path_member(name: str, path: Text) -> dict[str, str]:
    member = _bytes_member(path)
    return {name: member} if isinstance(member, str) else {f"{name}_b64": member["b64"]}


def _base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode("ascii")


def _stream(stream: Mapping[str, Any]) -> bytes:
    try:
        if stream["encoding"] == "base64":
            return binascii.a2b_base64(stream["b64"])
        return str(stream["text"]).encode("utf-8")
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenReplyError(f"a stream that cannot be read: {error}") from error

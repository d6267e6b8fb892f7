"""A proxy between a client and a server that does to requests what networks do: loses them, or their answers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import NamedTuple, Self


class Seen(NamedTuple):
    """A request that came through."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Action = str | bytes
"""pass, lose_request, lose_answer, half_answer, shift (each answer comes one request too late), twice;
or the bytes of an answer that the proxy gives itself, to this request."""

Plan = Callable[[Seen], Action]


class CuttingProxy:
    """Listens on a port of this machine and passes requests on as its plan says."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.plan: Plan = lambda seen: "pass"
        self.spoil: Callable[[bytes, Seen], bytes] = lambda answer, seen: answer
        """What becomes of a server's answer."""
        self.seen: list[Seen] = []
        self.cuts = 0
        self.hold = Event()
        """While it is not set, answers wait here."""
        self.hold.set()
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut_all(self) -> None:
        """Break every connection."""
        with self._lock:
            open_now = list(self._open)
        for one in open_now:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        outgoing = late = None
        with self._lock:
            self._open.add(client)
        incoming = client.makefile("rb")
        try:
            while (head := _head(incoming)) is not None:
                body = incoming.read(_length(head))
                seen = self._note(head, body)
                action = self.plan(seen)
                if action == "lose_request":
                    self.cuts += 1
                    return
                if isinstance(action, bytes):
                    client.sendall(_bound(action, seen))
                    continue
                if server is None:
                    server = socket.create_connection(self.upstream)
                    with self._lock:
                        self._open.add(server)
                    outgoing = server.makefile("rb")
                server.sendall(b"".join(head) + body)
                answer = _answer(outgoing)
                answer = None if answer is None else self.spoil(answer, seen)
                self.hold.wait()
                if answer is None or action == "lose_answer":
                    self.cuts += 1
                    return
                if action == "half_answer":
                    self.cuts += 1
                    client.sendall(answer[: max(1, len(answer) - 5)])
                    return
                if action == "shift":
                    answer, late = late or answer, answer
                client.sendall(answer * 2 if action == "twice" else answer)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= {client, server}  # type: ignore[arg-type]
            for stream in (incoming, outgoing):
                if stream is not None:
                    stream.close()
            for one in (client, server):
                if one is not None:
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                    one.close()

    def _note(self, head: list[bytes], body: bytes) -> Seen:
        method, path, _ = head[0].decode().split(" ", 2)
        with self._lock:
            seen = Seen(len(self.seen), method, path, _headers(head), body)
            self.seen.append(seen)
            return seen


def _head(stream) -> list[bytes] | None:  # type: ignore[no-untyped-def]
    lines: list[bytes] = []
    while True:
        line = stream.readline()
        if not line:
            return None
        lines.append(line)
        if line == b"\r\n":
            return lines


def _headers(head: list[bytes]) -> dict[str, str]:
    pairs = (line.decode("latin-1").partition(":") for line in head[1:-1])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length(head: list[bytes]) -> int:
    return int(_headers(head).get("content-length", 0))


def _answer(stream) -> bytes | None:  # type: ignore[no-untyped-def]
    head = _head(stream)
    if head is None:
        return None
    body = stream.read(_length(head))
    return b"".join(head) + body


def _bound(answer: bytes, seen: Seen) -> bytes:
    """An answer that says which request it is to, as servers do."""
    name = f"\r\nholdfast-question: {seen.headers.get('holdfast-question', '')}\r\n\r\n"
    return answer.replace(b"\r\n\r\n", name.encode(), 1)


def response(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    """An answer of the proxy's own."""
    lines = [f"HTTP/1.1 {status} Made", f"content-length: {len(body)}", "holdfast-api: 1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

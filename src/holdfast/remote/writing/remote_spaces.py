"""Spaces of a server's log: changed with the client's groups, looked at by questions.

`RemoteSpaces` has the verbs of the journal's own access to spaces, as far as users' spaces need them. Keys travel as
they are: it is the server that hides them in the log's files (`PlainKeys` stands where a log hides them).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.journal.queue.group import Make
from holdfast.journal.queue.queue import Queue
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.spaces import checked_change
from holdfast.log.ports import Item
from holdfast.model.control_rows import ITEM_KEY_BYTES_MAX
from holdfast.remote.http.exchange import Exchange, Question

_PREFIX = "space/"
_LENGTH_BYTES = 2


class _Item(msgspec.Struct):
    key: str = ""
    body: str = ""
    key_encoding: str = ""
    body_encoding: str = ""


class _Items(msgspec.Struct):
    items: list[_Item] = []


class _Names(msgspec.Struct):
    spaces: list[str] = []


class PlainKeys:
    """How items of users are handed over: key and body as they are, framed as where they are hidden."""

    def item(self, space: str, key: bytes, body: bytes) -> Item:
        """An item to put."""
        if len(key) > ITEM_KEY_BYTES_MAX:
            raise Invalid(f"a key is up to {ITEM_KEY_BYTES_MAX} bytes", hint="shorten it")
        return key, 0, body

    def change(self) -> None:
        """Nothing has to go with it."""

    def stored_key(self, space: str, key: bytes) -> bytes:
        """Under which key the server is asked for it."""
        return key

    def opened(self, space: str, stored: bytes) -> tuple[bytes, bytes]:
        """Key and body of an item that was fetched."""
        length = int.from_bytes(stored[:_LENGTH_BYTES], "big")
        return stored[_LENGTH_BYTES : _LENGTH_BYTES + length], stored[_LENGTH_BYTES + length :]


class RemoteSpaces:
    """The spaces of one server's log."""

    def __init__(self, exchange: Exchange, queue: Queue, timeout: float) -> None:
        self._exchange = exchange
        self._queue = queue
        self._timeout = timeout

    def checked(
        self, name: str, puts: Sequence[Item], deletes: Sequence[bytes], *, drop: bool = False
    ) -> tuple[ChangeSpace, int]:
        """A change alone, checked, and its bytes."""
        return checked_change(name, puts, deletes, drop=drop)

    def change(
        self, name: str, puts: Sequence[Item] = (), deletes: Sequence[bytes] = (), *, drop: bool = False, timeout: float
    ) -> UnitTicket:
        """Have items put and deleted, as one unit."""
        change, size = checked_change(name, puts, deletes, drop=drop)
        return UnitTicket(self._queue.put_unit([change], 0, size, timeout), timeout)

    def gather(
        self,
        part: object,
        make: Make,
        *,
        append: tuple[Partition | None, int],
        size: int,
        scope: str | None = None,
        reissue: bool = False,
        join: UnitTicket | None = None,
        timeout: float,
    ) -> UnitTicket:
        """Hand over a part of a unit that is made when it is about to be sent; see `SpaceAccess.gather`."""
        before = None if join is None else join.unit
        unit = self._queue.put_part(part, make, *append, size, timeout, scope=scope, reissue=reissue, join=before)
        return join if join is not None and unit is before else UnitTicket(unit, timeout)

    def get(self, name: str, key: bytes) -> bytes | None:
        """One item, framed; None where there is none."""
        question = Question("GET", ("v1", "spaces", _bare(name), "item"), headers={"Holdfast-Key": quote(key, safe="")})
        question = question._replace(query=(("key", key.decode()),)) if _is_text(key) else question
        try:
            answer = self._exchange.ask(question, self._timeout)
        except NotFound:
            return None
        return _framed(answer.decoded(_Item))

    def load(self, name: str) -> list[tuple[bytes, int, bytes]]:
        """All items, framed."""
        answer = self._exchange.ask(Question("GET", ("v1", "spaces", _bare(name))), self._timeout)
        return [(b"", 0, _framed(item)) for item in answer.decoded(_Items).items]

    def names(self) -> list[str]:
        """The names of all spaces, as the journal knows them."""
        answer = self._exchange.ask(Question("GET", ("v1", "spaces")), self._timeout)
        return [_PREFIX + name for name in answer.decoded(_Names).spaces]


def _bare(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _framed(item: _Item) -> bytes:
    key, body = _decoded(item.key, item.key_encoding), _decoded(item.body, item.body_encoding)
    return len(key).to_bytes(_LENGTH_BYTES, "big") + key + body


def _decoded(text: str, encoding: str) -> bytes:
    try:
        return b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except ValueError:
        raise Corrupt("the server's answer is not base64") from None

"""A space of a log's user: small named state that is proved when it is read, and changes alone or with records.

A space is a set of items: a key each, and a body. What is put is durable when the call returns; in a transaction
(`tx.put`, `tx.delete`) together with everything else in it. Keys and bodies are hidden where the log has keys
(`hidden_keys`), the names of spaces are not. Spaces live in the log's own database: they are not shipped, so a log that
was restored or rebuilt has none. What must survive the machine belongs into a topic.

Users' spaces have a prefix of their own, and never meet those of channels, consumers and executions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from holdfast.arguments import seconds
from holdfast.caller import in_coroutine
from holdfast.errors import Invalid
from holdfast.journal.journal_port import JournalPort
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.log.ports import Item, ItemKeys
from holdfast.model.topic_name import check_name

_PREFIX = "space/"


class Space:
    """One space of an open log; get it with `log.space(name)`. It comes into being with its first item."""

    def __init__(self, name: str, journal: JournalPort, hidden: ItemKeys) -> None:
        self.name = check_name(name, "space")
        self._journal = journal
        self._hidden = hidden
        self._stored_name = _PREFIX + self.name
        self._wait_seconds = journal.settings.ack_timeout_ms / 1000

    def get(self, key: bytes | str) -> bytes | None:
        """The body of one item as it is committed, proved; None where there is none."""
        wanted = self._hidden.stored_key(self._stored_name, item_key(key))
        stored = self._journal.spaces.get(self._stored_name, wanted)
        return None if stored is None else self._hidden.opened(self.name, stored)[1]

    def items(self) -> list[tuple[bytes, bytes]]:
        """Keys and bodies of all items as they are committed, in the order of keys, proved as a whole.

        Raises Corrupt if one of them is not what was put, is missing, or should not be there.
        """
        stored = self._journal.spaces.load(self._stored_name)
        return sorted(self._hidden.opened(self.name, body) for _, _, body in stored)

    def put(self, key: bytes | str, body: bytes, *, timeout: float | None = None) -> None:
        """Put an item, or replace it; durable when this returns. Raises what `append` would."""
        self._wait("put", self._putting(key, body), timeout)

    async def put_async(self, key: bytes | str, body: bytes, *, timeout: float | None = None) -> None:
        """What `put` does, for coroutines."""
        await self._wait_async(self._putting(key, body), timeout)

    def delete(self, key: bytes | str, *, timeout: float | None = None) -> None:
        """Delete an item, durably; one that is not there is no error."""
        self._wait("delete", self._deleting(key), timeout)

    async def delete_async(self, key: bytes | str, *, timeout: float | None = None) -> None:
        """What `delete` does, for coroutines."""
        await self._wait_async(self._deleting(key), timeout)

    def drop(self, *, timeout: float | None = None) -> None:
        """Remove the space with all its items, durably; it may begin anew."""
        self._wait("drop", self._drop, timeout)

    async def drop_async(self, *, timeout: float | None = None) -> None:
        """What `drop` does, for coroutines."""
        await self._wait_async(self._drop, timeout)

    def __repr__(self) -> str:
        return f"Space({self.name!r})"

    # -- one change ---------------------------------------------------------------------------------------

    def _putting(self, key: bytes | str, body: bytes) -> Callable[[float], UnitTicket]:
        item = self._hidden.item(self._stored_name, item_key(key), item_body(body))
        return lambda left: self._put(item, left)

    def _put(self, item: Item, left: float) -> UnitTicket:
        salt = self._hidden.change()
        if salt is None:
            return self._journal.spaces.change(self._stored_name, [item], timeout=left)
        change, size = self._journal.spaces.checked(self._stored_name, [item], [])
        return self._journal.transact([salt[0], change], records=0, size=salt[1] + size, timeout=left)

    def _deleting(self, key: bytes | str) -> Callable[[float], UnitTicket]:
        wanted = self._hidden.stored_key(self._stored_name, item_key(key))
        return lambda left: self._journal.spaces.change(self._stored_name, (), [wanted], timeout=left)

    def _drop(self, left: float) -> UnitTicket:
        return self._journal.spaces.change(self._stored_name, drop=True, timeout=left)

    def _wait(self, verb: str, put: Callable[[float], UnitTicket], timeout: float | None) -> None:
        if in_coroutine():
            warnings.warn(
                f"{verb}() blocks the event loop; use: await space.{verb}_async(…)", RuntimeWarning, stacklevel=3
            )
        wait_seconds, clock = self._wait_seconds if timeout is None else seconds(timeout), self._journal.clock
        deadline = clock.monotonic() + wait_seconds
        put(wait_seconds).result(max(0.0, deadline - clock.monotonic()))

    async def _wait_async(self, put: Callable[[float], UnitTicket], timeout: float | None) -> None:
        wait_seconds = self._wait_seconds if timeout is None else seconds(timeout)
        await (await self._journal.when_room(put, wait_seconds))


def space_names(journal: JournalPort) -> list[str]:
    """The names of users' spaces, sorted."""
    return [name.removeprefix(_PREFIX) for name in journal.spaces.names() if name.startswith(_PREFIX)]


def stored_name(space: Space | str, journal: JournalPort) -> str:
    """The name under which the journal knows a space of this log."""
    if isinstance(space, str):
        return _PREFIX + check_name(space, "space")
    if not isinstance(space, Space):
        raise Invalid(f"a space is got with log.space(name), not {type(space).__name__}", hint="or give its name")
    if space._journal is not journal:
        raise Invalid(f"space {space.name!r} belongs to another log", hint="a transaction is of one log")
    return space._stored_name


def item_key(key: bytes | str) -> bytes:
    """An item's key."""
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise Invalid("a key contains lone surrogates, which cannot be stored", hint="give bytes") from None
    if not isinstance(key, bytes):
        raise Invalid(f"a key is bytes or text, not {type(key).__name__}", hint="encode it first")
    return key


def item_body(body: bytes) -> bytes:
    """An item's body."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise Invalid(f"a body is bytes, not {type(body).__name__}", hint="encode it first: text.encode()")
    return bytes(body)

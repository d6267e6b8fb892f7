"""Spaces: small named states that are kept in the journal and change in one commit with appended records.

A *space* is a set of items, each with a key, a number (the order in which its owner wants them back) and a body. Its
row says how many there are and what they add up to, is stamped, and is one of the rows that the log's own row vouches
for. So an item that was edited, swapped, lost, added, moved from another space or put back as it once was is found
when its space is loaded, and a space that is gone or was put back when the log is opened. Bodies are encrypted like
entries, bound to their place; names, keys and numbers are not hidden. Spaces live in this database and nowhere else:
they are not shipped, and a log that was rebuilt or restored has none.

An item weighs as much as a stamp over its header and body, made under the key epoch that encrypted it; a space's sum is
that of its items' weights modulo 2²⁵⁶. Without the key the weight of an item is unknown, so an attacker cannot choose
among older ones until the sum fits.

`Spaces` is what the writer knows of what is committed: all rows, and the weights of the items of spaces that it has
met, so that replacing an item needs no look at the old one. Changed only after a commit (`space_changes`).
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from holdfast.caller import once
from holdfast.crypto import digests
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.state_digest import MODULUS, SUM_BYTES
from holdfast.model.control_rows import ITEM_KEY_BYTES_MAX as KEY_BYTES_MAX
from holdfast.model.control_rows import SPACE_NAME_BYTES_MAX as NAME_BYTES_MAX
from holdfast.model.control_rows import ItemRow, SpaceRow

if TYPE_CHECKING:
    from holdfast.crypto.vault import Vault
    from holdfast.journal.backend import Backend, Rows

BODY_BYTES_MAX = 16 * 2**20
ITEMS_MAX = 100_000
ENCRYPTED_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024
"""An encrypted body, whatever the cipher adds to it; anything longer is refused, unread."""
_NUMBERS = range(-(2**63), 2**63)
_KNOWN_MAX = 1_000_000
"""How many weights are kept in memory; a space whose weights were dropped is proved again when it changes."""

Weights = dict[bytes, int]
"""The weight of each item of a space, by its key."""

Item = tuple[bytes, int, bytes]
"""Key, number and body."""

_CONTEXT = b"holdfast 1 item|"
_REMEDY = "put a copy of the log back, or drop the space: its keeper starts it over"


# -- what may be asked for --------------------------------------------------------------------------------


def stored_name(name: str) -> bytes:
    """A space's name as it is stored; bytes that are no text come as surrogates and go back to what they were."""
    try:
        encoded = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else b""
    except UnicodeEncodeError:
        encoded = b""
    if not 0 < len(encoded) <= NAME_BYTES_MAX:
        raise Invalid(f"a space's name is text of 1 to {NAME_BYTES_MAX} bytes", hint="shorten it")
    return encoded


def shown_name(name: bytes) -> str:
    """A stored name as text."""
    return name.decode("utf-8", "surrogateescape")


def checked_change(
    name: str, puts: Sequence[Item], deletes: Sequence[bytes], *, drop: bool = False
) -> tuple[ChangeSpace, int]:
    """A change that can be stored, and its bytes; raises Invalid before anything is written."""
    change = ChangeSpace(stored_name(name), tuple(puts), tuple(deletes), drop)
    size = sum(_put_size(*put) for put in change.puts) + sum(map(_key_size, change.deletes))
    if drop and (change.puts or change.deletes):
        raise Invalid("a space is dropped or changed, not both", hint="drop it first, in a call of its own")
    keys = {key for key, _, _ in change.puts}
    if len(keys) < len(change.puts) or not keys.isdisjoint(change.deletes):
        raise Invalid("a key appears twice in one change", hint="put it or delete it, once")
    if len(keys) > ITEMS_MAX:
        raise _too_many(change.name)
    return change, size


def _put_size(key: bytes, number: int, body: bytes) -> int:
    if type(number) is not int or number not in _NUMBERS:
        raise Invalid("an item's number is an integer of 64 bits", hint="it orders the items of a space")
    if not isinstance(body, bytes) or len(body) > BODY_BYTES_MAX:
        raise Invalid(f"an item's body is up to {BODY_BYTES_MAX} bytes", hint="put it into several items")
    return len(body) + _key_size(key)


def _key_size(key: bytes) -> int:
    if not isinstance(key, bytes) or len(key) > KEY_BYTES_MAX:
        raise Invalid(f"an item's key is up to {KEY_BYTES_MAX} bytes", hint="shorten it")
    return len(key)


def check_room(name: bytes, items: int) -> None:
    """Refuse more items than a space may have."""
    if items > ITEMS_MAX:
        raise _too_many(name)


def _too_many(name: bytes) -> Invalid:
    message = f"a space has up to {ITEMS_MAX} items space={shown_name(name)!r}"
    return Invalid(message, hint="delete some, or use several spaces")


# -- what is stored ---------------------------------------------------------------------------------------


def header(log_id: bytes, space_id: int, key: bytes, number: int, key_epoch: int) -> bytes:
    """The bytes that say where an item belongs; what its encrypted body is bound to."""
    return digests.canonical("space_items", log_id, space_id, key, number, key_epoch)


def weight_of(stamp_of: Callable[[bytes], bytes], head: bytes, body: bytes) -> int:
    """What an item adds to its space's sum; the body as it is stored."""
    return int.from_bytes(stamp_of(_CONTEXT + head + blake3(body).digest()), "little")


def sum_bytes(total: int) -> bytes:
    """A sum of weights as a space's row has it."""
    return (total % MODULUS).to_bytes(SUM_BYTES, "little")


def proved_row(rows: Rows, path: Path, vault: Vault, name: bytes) -> SpaceRow | None:
    """A space's row, proved; None if there is no such space."""
    with naming(name):
        row = rows.space(name)
        if row is not None and not vault.verify(row.key_epoch, row.message(), row.stamp):
            raise Corrupt("a space does not match its stamp", path=str(path), hint=_REMEDY)
        return row


def load(rows: Rows, path: Path, vault: Vault, name: bytes) -> tuple[SpaceRow, list[ItemRow]] | None:
    """A space's row, proved, and its items, as yet unproved; None if there is no such space."""
    row = proved_row(rows, path, vault, name)
    if row is None:
        return None
    with naming(name):
        # One more than there should be is enough to know that there are too many.
        return row, list(islice(rows.space_items(row.id, ENCRYPTED_BYTES_MAX), row.items + 1))


def load_one(rows: Rows, path: Path, vault: Vault, name: bytes, key: bytes) -> tuple[SpaceRow, ItemRow | None] | None:
    """A space's row, proved, and one of its items, as yet unproved."""
    row = proved_row(rows, path, vault, name)
    if row is None:
        return None
    with naming(name):
        return row, rows.space_item(row.id, key, ENCRYPTED_BYTES_MAX)


def not_as_committed(path: Path) -> Corrupt:
    """A space is gone, or older than what this process committed."""
    return Corrupt("a space is not as it was committed", path=str(path), hint=_REMEDY)


def item_weight(vault: Vault, item: ItemRow) -> int:
    """What a stored item weighs."""
    return weight_of(vault.stamp_under(item.key_epoch), header(vault.log_id, *item[:-1]), item.body)


def proved(vault: Vault, path: Path, row: SpaceRow, items: Iterable[ItemRow]) -> Weights:
    """The weights of a space's items, if they are those that its row vouches for."""
    weights: Weights = {}
    with naming(row.name):
        for item in islice(items, row.items + 1):
            if vault.keyed and not item.key_epoch:  # its weight could be forged
                raise Corrupt("an item of a space is not encrypted", path=str(path), hint=_REMEDY)
            weights[item.key] = item_weight(vault, item)
        if len(weights) != row.items or not digests.same(sum_bytes(sum(weights.values())), row.sum):
            raise Corrupt("the items of a space are not those that its row says", path=str(path), hint=_REMEDY)
    return weights


def opened(vault: Vault, path: Path, row: SpaceRow, items: Iterable[ItemRow]) -> list[Item]:
    """Proved items with their bodies opened, by number and key."""
    from holdfast.crypto.cipher import NotAuthentic

    found: list[Item] = []
    with naming(row.name):
        for item in items:
            head = header(vault.log_id, *item[:-1])
            try:
                found.append((item.key, item.number, vault.decrypt(item.key_epoch, item.body, head)))
            except NotAuthentic:
                raise Corrupt("an item of a space does not open", path=str(path), hint=_REMEDY) from None
    return sorted(found, key=lambda item: (item[1], item[0]))


def names(rows: Rows, path: Path, vault: Vault) -> list[str]:
    """The names of all spaces, each proved."""
    found = []
    for row in rows.spaces():
        if isinstance(row, Corrupt):
            raise row
        with naming(row.name):
            if not vault.verify(row.key_epoch, row.message(), row.stamp):
                raise Corrupt("a space does not match its stamp", path=str(path), hint=_REMEDY)
        found.append(shown_name(row.name))
    return sorted(found)


@contextmanager
def naming(name: bytes) -> Iterator[None]:
    """Add the space's name to whatever damage is met."""
    try:
        yield
    except Corrupt as damage:
        named = damage.again()
        named.message = f"{damage.message} space={shown_name(name)!r}"
        raise named from damage


# -- what the writer knows --------------------------------------------------------------------------------


class Spaces:
    """All committed spaces; changed by the writer alone, but for what loading has learned."""

    def __init__(self, vault: Vault, rows: Mapping[bytes, SpaceRow]) -> None:
        self._vault = vault
        self.rows = dict(rows)
        self.next_id = 1 + max((row.id for row in self.rows.values()), default=0)
        self._weights: dict[int, Weights] = {}
        """By the space's id, the one that was changed longest ago first."""
        self._known = 0
        self._learned: dict[int, tuple[SpaceRow, Weights]] = {}
        self._learned_items = 0
        self._lock = RLock()
        """Guards what was learned: any thread may load a space."""

    def learn(self, row: SpaceRow, weights: Weights) -> None:
        """A space was loaded and proved: if it has not changed since, the writer need not prove it again."""
        with once(self._lock):
            known = row.id in self._weights or row.id in self._learned
            if not known and self._learned_items + len(weights) <= _KNOWN_MAX:
                self._learned[row.id] = (row, weights)
                self._learned_items += len(weights)

    def learn_anew(self, row: SpaceRow, weights: Weights) -> None:
        """The same where another process writes: what was known before is of no use any more."""
        self._recall(row.id)
        self.learn(row, weights)

    def weight(self, row: SpaceRow, key: bytes) -> int | None:
        """What an item of a committed space weighs, 0 if it is not there; None where that is not known by heart."""
        weights = self._weights.get(row.id)
        if weights is None:
            learned = self._learned.get(row.id)
            if learned is None or learned[0] != row:
                return None
            weights = learned[1]
        return weights.get(key, 0)

    def weights(self, backend: Backend, row: SpaceRow) -> Weights:
        """The weights of a committed space's items; proved inside the open transaction if they are not known yet."""
        known = self._weights.get(row.id)
        if known is None:
            learned = self._recall(row.id)
            known = learned[1] if learned is not None and learned[0] == row else self._prove(backend, row)
            self._weights[row.id] = known
            self._known += len(known)
        return known

    def put(self, row: SpaceRow, weights: Weights, changed: Weights) -> None:
        """A space's row was committed, and with it items of these weights; 0 = it is gone."""
        self.rows[row.name] = row
        before = len(weights) if self._weights.pop(row.id, None) is not None else 0
        for key, weight in changed.items():
            if weight:
                weights[key] = weight
            else:
                weights.pop(key, None)
        self._weights[row.id] = weights
        self._known += len(weights) - before

    def remove(self, name: bytes) -> None:
        """A space was dropped, durably."""
        row = self.rows.pop(name)
        self._known -= len(self._weights.pop(row.id, ()))
        self._recall(row.id)

    def let_go(self) -> None:
        """Forget what was changed longest ago, if too much is known; called between changes."""
        while self._known > _KNOWN_MAX and len(self._weights) > 1:
            self._known -= len(self._weights.pop(next(iter(self._weights))))

    def _prove(self, backend: Backend, row: SpaceRow) -> Weights:
        # A statement that is left half-way would keep the write-ahead log from being folded in.
        with closing(backend.space_items(row.id, ENCRYPTED_BYTES_MAX)) as items:
            return proved(self._vault, backend.path, row, items)

    def _recall(self, space_id: int) -> tuple[SpaceRow, Weights] | None:
        with once(self._lock):
            learned = self._learned.pop(space_id, None)
            if learned is not None:
                self._learned_items -= len(learned[1])
        return learned

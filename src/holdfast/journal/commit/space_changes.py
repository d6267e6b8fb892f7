"""What a group is about to change in spaces, before it is durable.

Two steps for each change: `prepare` proves the space if the writer has not met it, and encrypts; it may raise, and has
changed nothing then. `apply` cannot fail. So a unit that only changes a space needs no savepoint. What is applied lies
in dictionaries, where a later change of the same item replaces an earlier one; at the group's end `store` hands it to
the database, one statement of each kind, and after the commit `accept` makes it what is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.crypto.vault import Vault
from holdfast.errors import Invalid
from holdfast.journal.backend import Backend
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.spaces import (
    ENCRYPTED_BYTES_MAX,
    ITEMS_MAX,
    Item,
    Spaces,
    Weights,
    check_room,
    header,
    sum_bytes,
    weight_of,
)
from holdfast.journal.state.state_digest import GONE, Vouched
from holdfast.model.control_rows import ItemRow, SpaceRow, stamped

Encrypted = list[tuple[ItemRow, int]]
"""Items that are ready to be stored, with their weights."""

Encrypt = Callable[[bytes, bytes], bytes | memoryview]
"""Encrypts a body, bound to a header."""


class _Pending:
    """One space in this group."""

    __slots__ = ("base", "changed", "id", "items", "puts", "row", "total")

    def __init__(self, space_id: int, row: SpaceRow | None, base: Weights) -> None:
        self.id = space_id
        self.row = row
        """As it is committed; None for a new one. Once the group is stored, as it will be."""
        self.base = base
        """The committed weights: never changed here."""
        self.changed: Weights = {}
        """The weights of items that this group changes; 0 = it is gone."""
        self.puts: dict[bytes, ItemRow] = {}
        self.items = 0 if row is None else row.items
        self.total = 0 if row is None else int.from_bytes(row.sum, "little")

    def copy(self) -> _Pending:
        twin = _Pending(self.id, self.row, self.base)
        twin.changed, twin.puts = dict(self.changed), dict(self.puts)
        twin.items, twin.total = self.items, self.total
        return twin

    def weight(self, key: bytes) -> int:
        """An item's weight now; 0 = it is not there."""
        changed = self.changed.get(key)
        return self.base.get(key, 0) if changed is None else changed

    def delete(self, key: bytes) -> None:
        before = self.weight(key)
        if before:
            self.items -= 1
            self.total -= before
            self.changed[key] = 0
            self.puts.pop(key, None)

    def put(self, row: ItemRow, weight: int) -> None:
        key = row.key
        before = self.weight(key)
        if not before:
            self.items += 1
        self.total += weight - before
        self.changed[key] = weight
        self.puts[key] = row


Saved = dict[bytes, tuple[_Pending | None, int | None]]
"""Spaces as they were: what was pending, and the id under which it was dropped."""


class SpaceChanges:
    """The spaces of one group."""

    def __init__(self, spaces: Spaces, backend: Backend, vault: Vault) -> None:
        self._spaces = spaces
        self._backend = backend
        self._vault = vault
        self._next_id = spaces.next_id
        self._pending: dict[bytes, _Pending] = {}
        self._dropped: dict[bytes, int] = {}
        """Ids of committed spaces that this group drops."""
        self.stamps: dict[Vouched, bytes] = {}
        """Of the rows that were stored."""
        self.added = 0
        """By how many the number of spaces changes."""

    def prepare(self, change: ChangeSpace, encrypt: Encrypt) -> Encrypted:
        """The items that a change puts, encrypted; raises if they cannot be, or the space is damaged or full."""
        if change.drop or not (change.puts or change.deletes):
            return []
        pending = self._pending.get(change.name) or self._begin(change.name)
        if pending.items + len(change.puts) > ITEMS_MAX:
            self._check_room(pending, change)
        return self._encrypted(pending.id, change.puts, encrypt)

    def apply(self, change: ChangeSpace, encrypted: Encrypted) -> None:
        """Do what was prepared."""
        if change.drop:
            self._drop(change.name)
            return
        pending = self._pending.get(change.name)
        if pending is not None:
            for key in change.deletes:
                pending.delete(key)
            for row, weight in encrypted:
                pending.put(row, weight)

    def saved(self, names: Iterable[bytes]) -> Saved:
        """What `restore` needs to take back what comes after in these spaces."""
        found: Saved = {}
        for name in names:
            pending = self._pending.get(name)
            found[name] = (None if pending is None else pending.copy(), self._dropped.get(name))
        return found

    def restore(self, saved: Saved) -> None:
        """Take back what was applied since `saved`."""
        for name, (pending, dropped) in saved.items():
            self._pending.pop(name, None)
            self._dropped.pop(name, None)
            if pending is not None:
                self._pending[name] = pending
            if dropped is not None:
                self._dropped[name] = dropped

    def store(self) -> None:
        """Hand everything to the database's open transaction."""
        if self._dropped:
            self._backend.drop_spaces(list(self._dropped.values()))
            self.stamps.update({("space", space_id): GONE for space_id in self._dropped.values()})
            self.added -= len(self._dropped)
        pending = {name: one for name, one in self._pending.items() if one.changed}
        if pending:
            self._store_items(pending.values())
            self._store_rows(pending)

    def accept(self) -> None:
        """What was stored is durable."""
        spaces = self._spaces
        for name in self._dropped:
            spaces.remove(name)
        for pending in self._pending.values():
            if pending.changed and pending.row is not None:
                spaces.put(pending.row, pending.base, pending.changed)
        spaces.next_id = self._next_id
        spaces.let_go()

    # -- one space ----------------------------------------------------------------------------------------

    def _begin(self, name: bytes) -> _Pending:
        row = None if name in self._dropped else self._spaces.rows.get(name)
        if row is None:
            pending = _Pending(self._next_id, None, {})
            self._next_id += 1
        else:
            pending = _Pending(row.id, row, self._spaces.weights(self._backend, row))
        self._pending[name] = pending
        return pending

    def _check_room(self, pending: _Pending, change: ChangeSpace) -> None:
        added = sum(not pending.weight(key) for key, _, _ in change.puts)
        removed = sum(bool(pending.weight(key)) for key in set(change.deletes))
        check_room(change.name, pending.items + added - removed)

    def _drop(self, name: bytes) -> None:
        self._pending.pop(name, None)
        row = self._spaces.rows.get(name)
        if row is not None:
            self._dropped[name] = row.id

    def _encrypted(self, space_id: int, puts: Iterable[Item], encrypt: Encrypt) -> Encrypted:
        log_id, epoch = self._vault.log_id, self._vault.epoch
        stamp_of = self._vault.stamp_under(epoch)
        found: Encrypted = []
        for key, number, body in puts:
            head = header(log_id, space_id, key, number, epoch)
            encrypted = bytes(encrypt(body, head))
            if len(encrypted) > ENCRYPTED_BYTES_MAX:
                raise Invalid("the cipher makes an item's body too long", hint="use one that adds less than 64 KiB")
            found.append((ItemRow(space_id, key, number, epoch, encrypted), weight_of(stamp_of, head, encrypted)))
        return found

    def _store_items(self, pending: Iterable[_Pending]) -> None:
        deletes: list[tuple[int, bytes]] = []
        puts: list[ItemRow] = []
        for one in pending:
            puts += one.puts.values()
            if len(one.puts) < len(one.changed):
                deletes += [(one.id, key) for key, weight in one.changed.items() if not weight and key in one.base]
        if deletes:
            self._backend.delete_items(deletes)
        if puts:
            self._backend.store_items(puts)

    def _store_rows(self, pending: dict[bytes, _Pending]) -> None:
        fresh: list[SpaceRow] = []
        known: list[SpaceRow] = []
        for name, one in pending.items():
            row = stamped(SpaceRow(one.id, name, one.items, sum_bytes(one.total), self._vault.epoch, b""), self._vault)
            (fresh if one.row is None else known).append(row)
            self.stamps["space", row.id] = row.stamp
            one.row = row
        if fresh:
            self._backend.insert_spaces(fresh)
        if known:
            self._backend.store_spaces(known)
        self.added += len(fresh)

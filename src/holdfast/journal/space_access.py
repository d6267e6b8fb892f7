"""Spaces as the journal's users see them: change them, in one commit with records, and load them back, proved.

What a space is, and how it is proved, stands in `state.spaces`; what a group does with it, in `commit.space_changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.backend import Backend, Rows
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.queue.group import Make, OpenUnit, Operation, Run
from holdfast.journal.queue.queue import Queue
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state import spaces
from holdfast.journal.state.journal_state import JournalState
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import SpaceRow
from holdfast.model.record_columns import Columns

Seen = TypeVar("Seen")
Looked = tuple[SpaceRow, Seen]
"""A space's row, and what was looked at of it."""

_LOOKS = 5
_SETTLE_S = 1.0


class SpaceAccess:
    """The spaces of one journal."""

    def __init__(
        self, backend: Backend, state: JournalState, queue: Queue, settings: JournalSettings, *, learns: bool
    ) -> None:
        self._backend = backend
        self._state = state
        self._queue = queue
        self._settings = settings
        self.put_part = queue.put_part
        """What `gather` does, without a ticket: straight to the queue, because a method in between costs its share."""
        self._learns = learns
        """Whether there is a writer that need not prove again what was loaded."""

    def change(
        self,
        name: str,
        puts: Sequence[spaces.Item] = (),
        deletes: Sequence[bytes] = (),
        *,
        drop: bool = False,
        append: tuple[Partition, Columns] | None = None,
        scope: str | None = None,
        reissue: bool = False,
        timeout: float,
    ) -> UnitTicket:
        """Put and delete items of a space, or drop it, in one commit with records that are appended.

        All of it becomes durable, or none; the ticket tells. Waits for room at most `timeout` seconds, and never on an
        event loop; then raises Full. `scope` and `reissue`: see `Unit`.
        """
        operations, size = self.operations(name, puts, deletes, drop=drop, append=append)
        records = len(append[1]) if append is not None else 0
        if size > self._settings.queue_bytes_max:
            raise Invalid(f"a change is too large bytes={size}", hint="see journal.queue_bytes_max; split it")
        unit = self._queue.put_unit(operations, records, size, timeout, scope=scope, reissue=reissue)
        return UnitTicket(unit, timeout)

    def operations(
        self,
        name: str,
        puts: Sequence[spaces.Item],
        deletes: Sequence[bytes],
        *,
        drop: bool = False,
        append: tuple[Partition, Columns] | None = None,
    ) -> tuple[list[Operation], int]:
        """The operations of a change, checked, and their bytes."""
        change, size = self.checked(name, puts, deletes, drop=drop)
        if append is None:
            return [change], size
        partition, columns = append
        return [change, Run.unplaced(partition, columns)], size + self._append_size(columns)

    def checked(
        self, name: str, puts: Sequence[spaces.Item], deletes: Sequence[bytes], *, drop: bool = False
    ) -> tuple[ChangeSpace, int]:
        """A change alone, checked, and its bytes; for those who put several into one unit."""
        return spaces.checked_change(name, puts, deletes, drop=drop)

    def gather(
        self,
        part: object,
        make: Make,
        *,
        append: tuple[Partition | None, int],
        size: int,
        scope: str | None = None,
        reissue: bool = False,
        join: UnitTicket | OpenUnit | None = None,
        alone: bool = False,
        acked: bool = True,
        others: Mapping[Partition, int] | None = None,
        timeout: float,
    ) -> UnitTicket:
        """Hand over a part of a unit that is made when the writer comes to it (`Unit`), with so many records.

        `join` is the ticket of the unit that was asked for just before in this scope. If the writer has not taken that
        one, this part goes with it, and that ticket is returned. Where several threads hand over parts of one scope,
        it is their `OpenUnit`, with which a part may also begin a unit `alone`. Waits for room like `change`. What is
        not `acked` waits for company, at most `journal.flush_interval_ms`. `others` says how many records it becomes in
        other partitions; runs that `make` returns get their receipts like any others.
        """
        before = join.unit if isinstance(join, UnitTicket) else join
        unit = self._queue.put_part(
            part,
            make,
            *append,
            size,
            timeout,
            scope=scope,
            reissue=reissue,
            join=before,
            alone=alone,
            acked=acked,
            others=others,
        )
        return join if isinstance(join, UnitTicket) and unit is before else UnitTicket(unit, timeout)

    def end_gathering(self, gathering: OpenUnit, reason: HoldfastError) -> UnitTicket | None:
        """Let a gathering take no more; the ticket of what it handed over last, if anything."""
        unit = self._queue.end_gathering(gathering, reason)
        return None if unit is None else UnitTicket(unit, self._settings.ack_timeout_ms / 1000)

    def _append_size(self, columns: Columns) -> int:
        """The bytes of records that become one entry; more than a batch may have could not be read back."""
        size = columns.size()
        if size > self._settings.batch_bytes_max or len(columns) > self._settings.batch_records_max:
            raise Invalid(
                f"too many records for one change records={len(columns)} bytes={size}",
                hint="see journal.batch_bytes_max and journal.batch_records_max",
            )
        return size

    def load(self, name: str) -> list[spaces.Item]:
        """Key, number and body of all items of a space as it is committed, by number and key; each is proved.

        A space that is not there has no items.
        """
        vault, path, stored = self._state.vault, self._backend.path, spaces.stored_name(name)
        found = self._committed(stored, lambda rows: spaces.load(rows, path, vault, stored))
        if found is None:
            return []
        row, items = found
        weights = spaces.proved(vault, path, row, items)
        if self._learns:
            self._state.spaces.learn(row, weights)
        else:
            self._state.spaces.learn_anew(row, weights)
        return spaces.opened(vault, path, row, items)

    def get(self, name: str, key: bytes) -> bytes | None:
        """The body of one item as it is committed, proved; None if it is not there.

        Where it is known what the items weigh this reads one row. Else the whole space is loaded: once by an owner, by
        others after each change of it.
        """
        vault, path, stored = self._state.vault, self._backend.path, spaces.stored_name(name)
        looked = self._committed(stored, lambda rows: spaces.load_one(rows, path, vault, stored, key))
        if looked is None:
            return None
        row, item = looked
        with spaces.naming(stored):
            weight = 0 if item is None else spaces.item_weight(vault, item)
        if self._state.spaces.weight(row, key) == weight:
            return None if item is None else spaces.opened(vault, path, row, [item])[0][2]
        # Not known; or it changed between the two looks; or it is damaged, which loading tells.
        return next((body for found, _, body in self.load(name) if found == key), None)

    def _committed(self, stored: bytes, look: Callable[[Rows], Looked[Seen] | None]) -> Looked[Seen] | None:
        """What a look at a space finds in the database; None if there is no such space.

        An owner knows by heart how each space is committed. So a space that was put back or removed behind its back is
        found, and one that never was needs no look, which would go through all of them.
        """
        found: Looked[Seen] | None = None
        known = self._state.spaces.rows
        for _ in range(_LOOKS):
            self._backend.check_open()
            before = known.get(stored)
            if self._learns and before is None:
                return None
            with self._backend.reading() as rows:
                found = look(rows)
            row = None if found is None else found[0]
            if not self._learns or row in (before, known.get(stored)) or not self._settle():
                return found
            if known.get(stored) is before:  # nobody has changed it, and all that was committed is known
                with spaces.naming(stored):
                    raise spaces.not_as_committed(self._backend.path)
        return found  # it changes all the time; what was found is proved

    def _settle(self) -> bool:
        """Wait until all that was handed over is known to be committed or not; False if that takes long."""
        group = self._queue.barrier()
        return group.wait(_SETTLE_S) and group.error is None

    def known(self, prefix: str) -> list[str]:
        """The names that begin so, of spaces that are committed, as far as this handle knows; nothing is read."""
        stored = spaces.stored_name(prefix)
        return [spaces.shown_name(name) for name in list(self._state.spaces.rows) if name.startswith(stored)]

    def names(self) -> list[str]:
        """The names of all spaces that are committed, sorted."""
        with self._backend.reading() as rows:
            return spaces.names(rows, self._backend.path, self._state.vault)

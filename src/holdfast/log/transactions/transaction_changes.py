"""What a transaction has gathered so far: records by partition, changes by space. Not durable, and bounded.

Records of one partition are one run, whose rows come in the order of the appends; a batch is a run of its own. Of an
item that is changed twice the last word counts, so that each space changes once and the unit needs no savepoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.errors import Invalid
from holdfast.journal.journal_port import Operation, Run
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns, EncodedRows, Row


class TransactionChanges:
    """The records and changes of one transaction; the caller holds its lock."""

    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings
        self.runs: list[Run] = []
        self._open: dict[Partition, Run] = {}
        """The runs that still take rows."""
        self._spaces: dict[bytes, list[ChangeSpace]] = {}
        self.records = 0
        self.size = 0
        self._items = 0
        self._records_size = 0

    def add_row(self, partition: Partition, row: Row, size: int) -> tuple[Run, int]:
        """Take one record; returns its place."""
        self._count(1, size)
        run = self._open.get(partition)
        if run is None:
            run = self._open[partition] = Run.unplaced(partition)
            self.runs.append(run)
        if row[2] is not None:
            run.extras = True
        if row[3] is not None:
            run.keyed = True
        run.rows.append(row)
        return run, len(run.rows) - 1

    def add_batch(self, parts: Iterable[tuple[Partition, Columns | EncodedRows]], size: int) -> list[Run]:
        """Take records that were encoded already; those that come later are behind them."""
        runs = [Run.unplaced(partition, columns) for partition, columns in parts]
        self._count(sum(map(len, runs)), size)
        for run in runs:
            self._open.pop(run.partition, None)
        self.runs += runs
        return runs

    def add_change(self, change: ChangeSpace, size: int) -> None:
        """Take a change of a space."""
        settings, items = self._settings, len(change.puts) + len(change.deletes)
        if self._items + items > settings.batch_records_max or self.size + size > settings.queue_bytes_max:
            raise Invalid(
                f"the transaction changes too much items={self._items + items} bytes={self.size + size}",
                hint="see journal.batch_records_max and journal.queue_bytes_max; split it",
            )
        self._items += items
        self.size += size
        self._spaces.setdefault(change.name, []).append(change)

    def add_operations(self, operations: Sequence[Operation], records: int, size: int) -> None:
        """Take what a consumer gave."""
        for operation in operations:
            if isinstance(operation, ChangeSpace):
                self.add_change(operation, 0)
            elif isinstance(operation, Run):
                self._open.pop(operation.partition, None)
                self.runs.append(operation)
            else:
                raise Invalid("a transaction appends and changes spaces, nothing else", hint="this is a defect")
        self._count(records, size)

    def operations(self) -> list[Operation]:
        """All of it, for one unit; called once, at the end."""
        changes: list[Operation] = []
        for several in self._spaces.values():
            changes += several if len(several) == 1 or any(one.drop for one in several) else [_joined(several)]
        self._spaces = {}  # a transaction that is kept for its receipts does not keep the bodies
        for run in self._open.values():
            if not run.keyed:
                run.columns = Columns.of(run.rows, extras=run.extras)
                run.rows = []
        return [*changes, *self.runs]

    def ends(self) -> list[tuple[Partition, int]]:
        """Behind which offsets the records are, once they are durable."""
        found: list[tuple[Partition, int]] = []
        for run in self.runs:
            if run.repeats:
                places = (run.place(index) for index in range(run.count))
                found += [(partition, offset + 1) for partition, offset, _ in places]
            elif run.count:
                found.append((run.partition, run.first + run.count))
        return found

    def _count(self, records: int, size: int) -> None:
        settings = self._settings
        if (
            self.records + records > settings.batch_records_max
            or self._records_size + size > settings.batch_bytes_max
            or self.size + size > settings.queue_bytes_max
        ):
            raise Invalid(
                f"the transaction is too large records={self.records + records} bytes={self._records_size + size}",
                hint="see journal.batch_records_max and journal.batch_bytes_max; split it",
            )
        self.records += records
        self.size += size
        self._records_size += size


def _joined(changes: Sequence[ChangeSpace]) -> ChangeSpace:
    """Changes of one space, one after the other, as one: of each item the last word counts."""
    items: dict[bytes, tuple[bytes, int, bytes] | None] = {}
    for change in changes:
        items.update(dict.fromkeys(change.deletes))
        items.update((put[0], put) for put in change.puts)
    puts = tuple(put for put in items.values() if put is not None)
    return ChangeSpace(changes[0].name, puts, tuple(key for key, put in items.items() if put is None))

"""Rows of the manifest as the journal has them, for those who prove and use them."""

from __future__ import annotations

from holdfast.crypto.vault import Vault
from holdfast.journal.backend import Backend
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import SegmentRow


class SegmentRows:
    """The rows of one journal's manifest."""

    def __init__(self, backend: Backend, vault: Vault) -> None:
        self._backend = backend
        self._vault = vault

    def segment(self, partition: Partition, number: int) -> SegmentRow | None:
        """One row of the manifest, not proved yet."""
        with self._backend.reading() as rows:
            return rows.segment(partition.id, number)

    def segment_holding(self, partition: Partition, offset: int) -> SegmentRow | None:
        """The row of the last segment that begins at or before an offset, not proved yet."""
        with self._backend.reading() as rows:
            return rows.segment_holding(partition.id, offset)

    def segments(self, partition: Partition, start: int, stop: int) -> list[SegmentRow]:
        """Rows start..stop by number, not proved yet; of a damaged one the damage is raised."""
        with self._backend.reading() as rows:
            return rows.segments(partition.id, start, stop)

    def segments_in_state(self, state: int) -> list[SegmentRow]:
        """All rows in a state other than live, not proved yet; of a damaged one the damage is raised."""
        with self._backend.reading() as rows:
            return rows.segments_in_state(state)

    def proves(self, row: SegmentRow) -> bool:
        """Whether a row has the stamp that it should have; raises Corrupt where its key epoch is gone."""
        return self._vault.verify(row.key_epoch, row.message(), row.stamp)

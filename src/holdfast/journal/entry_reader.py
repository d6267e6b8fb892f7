"""Reading entries back: page by page, each proved before it is opened.

A page is one short read transaction. For every entry, in this order: its length against the limit (before
the body is even fetched), its place (dense offsets, linked to the entry before), its digest, its encryption, its
frame. The first thing that is wrong raises `Corrupt` with the place; nothing after it is returned, and
nothing damaged is ever returned as good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt
from holdfast.journal.backend import Backend
from holdfast.journal.state.partition import Partition
from holdfast.model import frame
from holdfast.model.entry import CODECS, KINDS, RAW, TYPED, Entry, header_of, is_whole
from holdfast.model.record_columns import BadRecords, Columns

_PAGE_ENTRIES = 256
_PAGE_BYTES = 4 * 2**20
_LOOKS = 3


class EntryReader:
    """Reads the records of one partition."""

    def __init__(self, backend: Backend, vault: Vault, partition: Partition, entry_bytes_max: int) -> None:
        self._backend = backend
        self._vault = vault
        self._partition = partition
        self._entry_bytes_max = entry_bytes_max

    def entries(
        self, start: int, end: int, *, descending: bool = False, page_entries: int = _PAGE_ENTRIES
    ) -> Iterator[Entry]:
        """Whole entries that overlap start..end, each in its place; not opened yet.

        Raises Corrupt where entries are missing; when they were sealed meanwhile, the caller finds them in segments.
        """
        at, link = (end, None) if descending else (start, None)
        while at > start if descending else at < end:
            span = (start, at) if descending else (at, end)
            page = self._page(*span, page_entries, descending)
            for entry in page:
                last = entry.first + entry.count
                if descending:
                    if not (entry.first < at <= last) or (link is not None and link != entry.digest):
                        raise self._corrupt("entries are missing or out of place", at - 1)
                    at, link = entry.first, entry.link
                else:
                    self._check_place(entry, at, link)
                    at, link = last, entry.digest
                yield entry

    def body(self, entry: Entry) -> bytes:
        """The body of an entry, proved and opened."""
        place = self._partition.place
        if not is_whole(place, entry):
            raise self._corrupt("an entry's digest does not match", entry.first)
        if entry.kind not in KINDS or entry.codec not in CODECS or (entry.kind == TYPED) != bool(entry.schema):
            raise self._corrupt(f"an entry is of an unknown kind={entry.kind} codec={entry.codec}", entry.first)
        try:
            return self._vault.decrypt(entry.key_epoch, entry.body, header_of(place, entry))
        except NotAuthentic:
            raise self._corrupt("an entry is not authentic", entry.first) from None

    def malformed(self, entry: Entry, reason: object) -> Corrupt:
        """What an entry is whose body is not what its header says."""
        return self._corrupt(f"an entry's body is malformed: {reason}", entry.first)

    def open(self, entry: Entry) -> Columns:
        """The records of an entry, proved."""
        body = self.body(entry)
        if entry.kind != RAW:
            raise self._corrupt("an entry holds rows of a typed topic, not records", entry.first)
        try:
            columns = frame.decode(body)
        except BadRecords as error:
            raise self.malformed(entry, error) from None
        if len(columns) != entry.count:
            raise self._corrupt("an entry does not hold as many records as it says", entry.first)
        return columns

    def _page(self, start: int, end: int, page_entries: int, descending: bool) -> list[Entry]:
        """The next entries that overlap start..end, with no more bytes than a page may have.

        What was read before damage is met is returned first; the next page begins with the damage.
        """
        page: list[Entry] = []
        for _ in range(_LOOKS):  # a body may have been moved from a file into the database just then
            try:
                self._fill(page, start, end, page_entries, descending)
            except Corrupt:
                if not page:
                    raise
            if page:
                break
        if not page:
            raise self._corrupt("entries are missing", end - 1 if descending else start)
        return page

    def _fill(self, page: list[Entry], start: int, end: int, page_entries: int, descending: bool) -> None:
        size = 0
        with self._backend.reading() as rows:
            for entry in rows.entries(
                self._partition.id, (start, end), self._entry_bytes_max, page_entries, descending=descending
            ):
                if isinstance(entry, int):
                    raise self._corrupt("an entry is larger than the limits allow", entry, hint=_TOO_LARGE)
                page.append(entry)
                size += len(entry.body)
                if size >= _PAGE_BYTES:
                    return

    def _check_place(self, entry: Entry, at: int, link: bytes | None) -> None:
        if not (entry.first <= at < entry.first + entry.count) or (link is not None and entry.link != link):
            raise self._corrupt("entries are missing or out of place", at)

    def _corrupt(self, message: str, offset: int, hint: str | None = None) -> Corrupt:
        partition = self._partition
        return Corrupt(
            message,
            path=str(self._backend.path),
            topic=partition.topic,
            partition=partition.number,
            offset=offset,
            hint=hint,
        )


def entries_after(
    backend: Backend,
    partitions: Mapping[int, Partition],
    seq: int,
    groups_max: int,
    bytes_max: int,
    entry_bytes_max: int,
) -> tuple[list[Entry], bool]:
    """Entries of all partitions behind a sequence number, each proved, in whole commits up to these limits.

    The first commit comes in any case, however large it is; also tells whether there is more.
    """
    taken: list[Entry] = []
    groups: list[int] = []
    """Where each commit begins in `taken`."""
    size = 0
    with backend.reading() as rows:
        for entry in rows.entries_after(seq, entry_bytes_max):
            if isinstance(entry, int) or entry.partition_id not in partitions:
                raise Corrupt(
                    f"an entry cannot be taken seq={entry if isinstance(entry, int) else entry.seq}",
                    path=str(backend.path),
                    hint=_TOO_LARGE,
                )
            if not is_whole(partitions[entry.partition_id].place, entry):
                place = partitions[entry.partition_id]
                raise Corrupt(
                    "an entry's digest does not match",
                    path=str(backend.path),
                    topic=place.topic,
                    partition=place.number,
                    offset=entry.first,
                )
            if not taken or entry.group_number != taken[-1].group_number:
                if len(groups) == groups_max or (groups and size >= bytes_max):
                    return taken, True
                groups.append(len(taken))
            taken.append(entry)
            size += len(entry.body)
            if size > bytes_max and len(groups) > 1:  # this commit does not fit any more
                return taken[: groups[-1]], True
    return taken, False


_TOO_LARGE = "if journal.payload_bytes_max or batch_bytes_max was lowered, raise it again; else the entry is damaged"

"""Reading entries back: page by page, each proved before it is opened.

A page is one short read transaction. For every entry, in this order: its length against the limit (before
the body is even fetched), its place (dense offsets, linked to the entry before), its digest, its seal, its
frame. The first thing that is wrong raises `Corrupt` with the place; nothing after it is returned, and
nothing damaged is ever returned as good.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt
from holdfast.journal import frame, stored
from holdfast.journal.backend import Backend
from holdfast.journal.columns import BadFrame, Columns
from holdfast.journal.entry import CODECS, KINDS, Entry, header_of, is_whole
from holdfast.journal.partition import Partition
from holdfast.record import Record

_PAGE_ENTRIES = 256
_PAGE_BYTES = 4 * 2**20


class Reader:
    """Reads the records of one partition."""

    def __init__(self, backend: Backend, vault: Vault, partition: Partition, entry_bytes_max: int) -> None:
        self._backend = backend
        self._vault = vault
        self._partition = partition
        self._entry_bytes_max = entry_bytes_max

    def forward(self, start: int, end: int) -> Iterator[Record]:
        """Records from `start` up to, not including, `end`; both lie within what is durable."""
        at, link = start, None
        while at < end:
            for entry in self._page(at, end):
                self._check_place(entry, at, link)
                yield from self._records(entry, at - entry.first, min(entry.count, end - entry.first))
                at, link = entry.first + entry.count, entry.digest

    def backward(self, start: int, end: int) -> Iterator[Record]:
        """The same records, last one first."""
        at, link = end, None
        while at > start:
            for entry in self._page(start, at, descending=True):
                last = entry.first + entry.count
                if not (entry.first < at <= last) or (link is not None and link != entry.digest):
                    raise self._corrupt("entries are missing or out of place", at - 1)
                records = list(self._records(entry, max(0, start - entry.first), at - entry.first))
                yield from reversed(records)
                at, link = entry.first, entry.link

    def _records(self, entry: Entry, start: int, stop: int) -> Iterator[Record]:
        try:
            yield from self.open(entry).records(entry.first, self._partition.number, start, stop)
        except BadFrame as error:
            raise self._corrupt(f"an entry's body is malformed: {error}", entry.first) from None

    def open(self, entry: Entry) -> Columns:
        """The records of an entry, proved."""
        place = self._partition.place
        if not is_whole(place, entry):
            raise self._corrupt("an entry's digest does not match", entry.first)
        if entry.kind not in KINDS or entry.codec not in CODECS:
            raise self._corrupt(f"an entry is of an unknown kind={entry.kind} codec={entry.codec}", entry.first)
        try:
            columns = frame.decode(self._vault.open(entry.key_epoch, entry.body, header_of(place, entry)))
        except NotAuthentic:
            raise self._corrupt("an entry is not authentic", entry.first) from None
        except BadFrame as error:
            raise self._corrupt(f"an entry's body is malformed: {error}", entry.first) from None
        if len(columns) != entry.count:
            raise self._corrupt("an entry does not hold as many records as it says", entry.first)
        return columns

    def _page(self, start: int, end: int, *, descending: bool = False) -> list[Entry]:
        """The next entries that overlap start..end, with no more bytes than a page may have.

        What was read before damage is met is returned first; the next page begins with the damage.
        """
        page: list[Entry] = []
        try:
            self._fill(page, start, end, descending)
        except Corrupt:
            if not page:
                raise
        if not page:
            raise self._corrupt("entries are missing", end - 1 if descending else start)
        return page

    def _fill(self, page: list[Entry], start: int, end: int, descending: bool) -> None:
        size = 0
        with self._backend.reading() as connection:
            for entry in stored.entries(
                connection,
                self._backend.path,
                self._partition.id,
                (start, end),
                self._entry_bytes_max,
                _PAGE_ENTRIES,
                descending=descending,
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
            message, path=str(self._backend.path), topic=partition.topic, partition=partition.number, offset=offset,
            hint=hint,
        )  # fmt: skip


_TOO_LARGE = "if journal.payload_bytes_max or batch_bytes_max was lowered, raise it again; else the entry is damaged"

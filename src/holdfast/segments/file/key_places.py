"""Where the indexes of keys lie in a file: one in the file of a segment, and one for each part of a bundle.

A bundle has those of its parts one behind the other, as they were: each is still encrypted for its own segment, and the
digest that its own footer had of it still holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from holdfast.segments.file.encrypted_parts import EncryptedParts
from holdfast.segments.file.footer import Footer
from holdfast.segments.file.proven_file import ProvenFile
from holdfast.segments.keys import key_blob
from holdfast.segments.keys.key_index import BadIndex, KeyIndex


class IndexedRows(NamedTuple):
    """The rows of a segment, and the index of their keys if it has one."""

    first: int
    end: int
    keys: KeyIndex | None


class KeyCheck:
    """Whether all rows of a file would be found by its indexes, as they come by in any order."""

    def __init__(self, parts: Sequence[IndexedRows], column: str | None) -> None:
        self._parts, self._column = parts, column

    def check(self, batch: pa.RecordBatch) -> None:
        """Raises BadIndex for rows with a key that their index does not know; their offsets are known to be dense."""
        first = batch.column(0)[0].as_py()
        for part in self._parts if self._column is not None else ():
            start, end = max(first, part.first), min(first + batch.num_rows, part.end)
            if start < end and part.keys is not None:
                keys = batch.column(self._column).slice(start - first, end - start)
                if not part.keys.covers(keys, start - part.first):
                    raise BadIndex("has an index of keys that does not know all of them")


def blobs(footer: Footer, file: ProvenFile) -> Iterator[tuple[Footer, memoryview]]:
    """The parts of a file, or its only one, each with the proved bytes of its index; none for one that has none."""
    at = 0 if footer.keys is None else footer.keys.start
    for part in [part.footer for part in footer.parts] or [footer]:
        if part.keys is None:
            yield part, memoryview(b"")
            continue
        yield part, file.read_alone(at, part.keys.length, part.keys.digest)
        at += part.keys.length


def indexes(footer: Footer, file: ProvenFile, encrypted: EncryptedParts | None) -> Iterator[IndexedRows]:
    """The indexes of a file; raises Damaged or BadIndex."""
    for number, (part, blob) in enumerate(blobs(footer, file)):
        keys = None
        if part.keys is not None:
            keys = (
                key_blob.opened(blob, part.head, part.rows, None)
                if encrypted is None
                else encrypted.key_index(number, blob)
            )
        yield IndexedRows(part.head.first, part.end, keys)

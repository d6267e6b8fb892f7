"""The parts of an encrypted file, their keys, and the records in their blocks.

The file of one segment is one part; a bundle has several, each with the key, the number and the footer that it had in a
file of its own. A part's footer is believed once its mac matches under its own key, and a block decrypts only in the
place that it had: what an attacker without keys writes into a bundle, or leaves out of it, is found by a reader that
has them.

`is_vouched` says that a holder of the keys vouches for all bytes of the file: a manifest that is proved, or, for the
file of one segment, its mac, which covers the hashes of its blocks. The mac of a part covers those of a file that is
gone. So where nobody else vouches for a bundle, its parts are proved before a row group is passed over, and the times
beside a block, which are proved by decrypting it, are no reason to pass it over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import pyarrow as pa

from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.segment_key import SegmentKey, SegmentKeyFacts
from holdfast.errors import Corrupt, Invalid
from holdfast.model.content_digest import ContentDigest
from holdfast.segments.file import encrypted_blocks
from holdfast.segments.file import footer as footers
from holdfast.segments.file.encrypted_blocks import BLOCK_SCHEMA, BlockFacts
from holdfast.segments.file.footer import BundlePart, Footer
from holdfast.segments.file.proven_file import DamagedFile
from holdfast.segments.file.segment_columns import has_ends
from holdfast.segments.keys import key_blob
from holdfast.segments.keys.key_index import KeyIndex

FindKey = Callable[[SegmentKeyFacts], SegmentKey]
MakeCorrupt = Callable[[str, int], Corrupt]
"""The error of the file, for what is wrong and the offset concerned."""


class EncryptedParts:
    """The parts of one encrypted file. `schema` is that of the records; without `find_key` nothing is decrypted."""

    def __init__(
        self,
        footer: Footer,
        pairs: dict[str, str],
        schema: pa.Schema,
        find_key: FindKey | None,
        corrupt: MakeCorrupt,
        *,
        is_trusted: bool,
    ) -> None:
        self._footer, self._pairs, self._schema = footer, pairs, schema
        self._find_key, self._corrupt = find_key, corrupt
        self._footers = [part.footer for part in footer.parts] or [footer]
        self._firsts = [part.head.first for part in self._footers]
        self._keys: dict[int, SegmentKey] = {}
        self._is_trusted = is_trusted
        self.is_vouched = is_trusted or not footer.parts
        self.has_keys = find_key is not None
        _require_schema(self._footers, schema)

    @property
    def parts(self) -> tuple[BundlePart, ...]:
        """The parts as a bundle holds them; raises BadFooter for a file that cannot be one."""
        return self._footer.parts or (footers.part_of(self._footer, self._pairs),)

    def prove(self) -> None:
        """Every part's mac, unless the whole footer is proved; raises Corrupt, or Invalid for a key that is missing."""
        if not self._is_trusted:
            for index in range(len(self._footers)):
                self._key(index)

    def places(self, table: pa.RecordBatch, first: int, end: int) -> list[BlockFacts]:
        """The places of the blocks of a row group; Damaged unless they follow each other from `first` to `end`."""
        places = encrypted_blocks.places(table)
        ends = list(accumulate((place.rows for place in places), initial=first))
        if ends[:-1] != [place.first for place in places] or ends[-1] != end or min(p.rows for p in places) < 1:
            raise DamagedFile("has encrypted blocks whose offsets are not dense")
        return places

    def decrypted(self, place: BlockFacts, block: bytes) -> pa.RecordBatch:
        """The records of a block."""
        index = bisect_right(self._firsts, place.first) - 1
        part, key = self._footers[index], self._key(index)
        try:
            batch = encrypted_blocks.decrypt_block(part.head, key, place, block, self._schema)
        except NotAuthentic:
            raise self._corrupt("has an encrypted block that does not decrypt", place.first) from None
        if batch.num_rows != place.rows or not has_ends(batch.column(0), place.first):
            raise self._corrupt("has an encrypted block with other records than it says", place.first)
        return batch

    def key_index(self, index: int, blob: memoryview) -> KeyIndex:
        """The index of the keys of a part; raises BadIndex."""
        part = self._footers[index]
        return key_blob.opened(blob, part.head, part.rows, self._key(index))

    def contents(self) -> PartContents:
        """A check of the parts' contents."""
        return PartContents(self._footers)

    def _key(self, index: int) -> SegmentKey:
        """The key of a part, once it has proved the part's footer."""
        key = self._keys.get(index)
        if key is None:
            key = self._keys[index] = self._proved_key(index)
        return key

    def _proved_key(self, index: int) -> SegmentKey:
        footer = self._footers[index]
        assert footer.encrypted_with is not None, "only encrypted files have parts"
        if self._find_key is None:
            raise Invalid("this segment is encrypted", hint="give the keyring or cipher it was written with")
        key = self._find_key(footer.encrypted_with)
        pairs = self._footer.parts[index].pairs if self._footer.parts else self._pairs
        if not footers.is_stamped(pairs, key.mac):
            raise self._corrupt("has a footer that its key did not make", footer.head.first)
        return key


class PartContents:
    """Compares the content of parts with what their footers say, as all blocks of a file come by."""

    def __init__(self, parts: Sequence[Footer]) -> None:
        self._parts = list(reversed(parts))
        self._content = ContentDigest(BLOCK_SCHEMA)

    def update(self, table: pa.RecordBatch, places: Sequence[BlockFacts]) -> None:
        """The next blocks, in order; raises Damaged if they are not those of their part."""
        firsts = [place.first for place in places]
        at = 0
        while at < len(places):
            end = self._parts[-1].end
            upto = bisect_left(firsts, end, at)
            self._content.update(table.slice(at, upto - at))
            at = upto
            reached = firsts[at - 1] + places[at - 1].rows if at else end
            if reached > end:
                raise DamagedFile("has an encrypted block in two of its parts")
            if reached == end:
                self._finish()

    def _finish(self) -> None:
        if self._content.digest() != self._parts.pop().content:
            raise DamagedFile("has other content than its footer says")
        self._content = ContentDigest(BLOCK_SCHEMA)


def _require_schema(parts: Sequence[Footer], schema: pa.Schema) -> None:
    """Parts may have spelled the columns in other bytes (another version of Arrow did), but not other columns."""
    for spelled in {part.schema for part in parts}:
        if not pa.ipc.read_schema(pa.py_buffer(spelled)).equals(schema):
            raise DamagedFile("has a part with other columns")

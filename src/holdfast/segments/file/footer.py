"""What a segment file says of itself: the `holdfast.*` pairs in its Parquet footer (docs/formats/0004-segment.md).

Everything that the manifest knows, and the hashes of the file's blocks, so that a file can be checked alone and a
lost manifest can be made again from files. All values are text; bytes are lower-case hex. The pair `mac` covers all
others: keyed in an encrypted file, a plain digest otherwise.

A *bundle* holds the encrypted blocks of several neighbouring segments, as they were. Its footer carries the
footer of each, its *parts*, and says nothing of its own that does not follow from them. Its mac is a plain digest: who
has keys believes the macs of the parts.

A file with an index of its records' keys says where that lies: behind the last row group, under the
hashes of the blocks and under one of its own, so that it can be proved without reading a whole block.

Parsing trusts nothing: every pair must be there, be well-formed and agree with the others. Values only; no Arrow.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain as chained
from typing import NamedTuple

import msgspec

from holdfast.crypto import digests
from holdfast.crypto.segment_key import SegmentKeyFacts
from holdfast.model.segment import SegmentFacts, SegmentHead, chain_value
from holdfast.model.value_codec import CODECS
from holdfast.segments.file import stored_parts
from holdfast.segments.file.file_shape import GROUP_ROWS_MAX
from holdfast.segments.file.stored_parts import BadParts, StoredPart

VERSION = 1
PREFIX = "holdfast."
RAW, TYPED, ENCRYPTED_RAW, ENCRYPTED_TYPED = "raw", "typed", "sealed-raw", "sealed-typed"
_SHAPES = (RAW, TYPED, ENCRYPTED_RAW, ENCRYPTED_TYPED)
_MAC = PREFIX + "mac"
_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,18})\Z")
_INT64 = 2**63


class BadFooter(Exception):
    """The pairs of a footer are not those of a segment. The text says which; callers say where."""


class UnknownVersion(Exception):
    """Another version of holdfast wrote the footer."""


class RowGroupStatistics(msgspec.Struct, frozen=True):
    """What a reader needs to know about a row group to skip it."""

    rows: int
    """Records, not blocks of them."""
    time_min: int
    time_max: int


class KeyPlace(msgspec.Struct, frozen=True):
    """Where the index of the keys lies in the file, what proves it, and of which column it is."""

    start: int
    length: int
    digest: bytes
    """The first 16 bytes of BLAKE3 over its bytes. A bundle has none: each part has its own."""
    column: str

    def __str__(self) -> str:
        return f"{self.start},{self.length},{self.digest.hex()},{self.column}"

    @classmethod
    def parse(cls, text: str) -> KeyPlace:
        """The place that a text says; raises BadFooter."""
        start, length, digest, column = (*text.split(",", 3), "", "", "")[:4]
        try:
            found = bytes.fromhex(digest)
        except ValueError:
            raise _malformed("keys") from None
        place = cls(_integer(start, 0, "keys"), _integer(length, 0, "keys"), found, column)
        if str(place) != text or len(found) not in (0, digests.DIGEST_BYTES):
            raise _malformed("keys")
        return place


class Footer(msgspec.Struct, frozen=True):
    """The footer's pairs, typed, without the mac, which is made from them."""

    head: SegmentHead
    shape: str
    rows: int
    time_min: int
    time_max: int
    content: bytes
    groups: tuple[RowGroupStatistics, ...]
    blocks: bytes
    """Hashes of the file's blocks up to the footer, 16 bytes each."""
    schema: bytes
    """The Arrow schema of the records, serialized."""
    encrypted_with: SegmentKeyFacts | None
    """Of a bundle, that of its last part."""
    parts: tuple[BundlePart, ...] = ()
    """The segments of a bundle, in order; empty in the file of one segment."""
    rewrite: str = ""
    """The nonce of the rewrite that made the file; empty for one that was sealed. It makes the file's name its own."""
    keys: KeyPlace | None = None
    """Where the index of keys is, if there is one; of a bundle, where those of its parts are, one behind the other."""
    codec: str = ""
    """Of raw records, what their payloads are; empty for bytes. A rebuild has it from here."""

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.head.first + self.rows

    def facts(self, *, size: int, sha256: bytes, footer: bytes) -> SegmentFacts:
        """The facts of the segment, given those that a footer cannot know about its own file."""
        return SegmentFacts(
            rows=self.rows,
            size=size,
            time_min=self.time_min,
            time_max=self.time_max,
            sha256=sha256,
            content=self.content,
            footer=footer,
            key_id=self.encrypted_with.key_id if self.encrypted_with else "",
        )

    def pairs(self) -> dict[str, str]:
        """All pairs but the mac."""
        head = self.head
        values: dict[str, str | int | bytes] = {
            "format": VERSION,
            "shape": self.shape,
            "log": head.log_id,
            "topic": head.topic,
            "partition": head.partition,
            "number": head.number,
            "first": head.first,
            "epoch": head.epoch,
            "schema": head.schema,
            "previous": head.previous,
            "rows": self.rows,
            "time_min": self.time_min,
            "time_max": self.time_max,
            "content": self.content,
            "chain": chain_value(head, self.rows, self.content),
            "groups": " ".join(f"{group.rows},{group.time_min},{group.time_max}" for group in self.groups),
            "blocks": self.blocks,
            "arrow_schema": base64.b64encode(self.schema).decode("ascii"),
        }
        if self.parts:
            values["parts"] = stored_parts.encode([_stored(part, self.schema) for part in self.parts])
        elif self.encrypted_with is not None:
            values |= msgspec.structs.asdict(self.encrypted_with)
        if self.rewrite:
            values["rewrite"] = self.rewrite
        if self.keys is not None:
            values["keys"] = str(self.keys)
        if self.codec:
            values["codec"] = self.codec
        return {PREFIX + name: v.hex() if isinstance(v, bytes) else str(v) for name, v in values.items()}

    def stamped(self, stamp: Callable[[bytes], bytes]) -> dict[str, str]:
        """All pairs with the mac."""
        pairs = self.pairs()
        return {**pairs, _MAC: stamp(message(pairs)).hex()}


class BundlePart(NamedTuple):
    """One segment of a bundle: the footer that it had in a file of its own, and that footer's mac."""

    footer: Footer
    mac: bytes

    @property
    def pairs(self) -> dict[str, str]:
        """All pairs that its own file had."""
        return {**self.footer.pairs(), _MAC: self.mac.hex()}


def part_of(footer: Footer, pairs: Mapping[str, str]) -> BundlePart:
    """The file of one encrypted segment as a part; raises BadFooter if its pairs could not be recovered from that."""
    try:
        part = BundlePart(footer, bytes.fromhex(pairs.get(_MAC, "")))
    except ValueError:
        raise _malformed("mac") from None
    # A file that a rewrite encrypted anew holds several segments under one number, and so does not fit in between.
    if footer.parts or footer.rewrite or footer.encrypted_with is None or part.pairs != pairs:
        raise BadFooter("its footer cannot be a part of a bundle")
    return part


def bundled(
    parts: Sequence[BundlePart],
    groups: Iterable[RowGroupStatistics],
    blocks: bytes,
    rewrite: str = "",
    keys_at: int = 0,
) -> Footer:
    """The footer of a bundle of these parts, in order; `keys_at` is where their indexes of keys begin."""
    footers = [part.footer for part in parts]
    first, last = footers[0], footers[-1]
    lengths = [footer.keys.length for footer in footers if footer.keys is not None]
    return Footer(
        head=msgspec.structs.replace(first.head, epoch=last.head.epoch),
        shape=first.shape,
        rows=last.end - first.head.first,
        time_min=min(footer.time_min for footer in footers),
        time_max=max(footer.time_max for footer in footers),
        content=bundle_content(footer.content for footer in footers),
        groups=tuple(groups),
        blocks=blocks,
        schema=first.schema,
        encrypted_with=last.encrypted_with,
        parts=tuple(parts),
        rewrite=rewrite,
        keys=KeyPlace(keys_at, sum(lengths), b"", "") if lengths else None,
        codec=first.codec,
    )


def bundle_content(contents: Iterable[bytes]) -> bytes:
    """The content digest of a bundle, from those of its parts: the manifest knows it without the file."""
    return sha256(digests.canonical("bundle", 1, *contents)).digest()


def message(pairs: Mapping[str, str]) -> bytes:
    """What the mac covers: all other holdfast pairs, sorted by name."""
    ours = sorted((name, value) for name, value in pairs.items() if name.startswith(PREFIX) and name != _MAC)
    return digests.canonical("segment footer", *chained.from_iterable(ours))


def is_stamped(pairs: Mapping[str, str], stamp: Callable[[bytes], bytes]) -> bool:
    """Whether the mac among the pairs is the right one."""
    return digests.same(stamp(message(pairs)).hex().encode(), pairs.get(_MAC, "").encode())


def decode_pairs(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """The holdfast pairs among a Parquet file's, as text."""
    prefix = PREFIX.encode()
    try:
        return {
            name.decode("ascii"): value.decode("utf-8")
            for name, value in (metadata or {}).items()
            if name.startswith(prefix)
        }
    except UnicodeDecodeError:
        raise BadFooter("its footer is not text") from None


def parse(pairs: Mapping[str, str]) -> Footer:
    """Pairs to a footer; raises BadFooter, or UnknownVersion."""
    take = _Pairs(pairs)
    if take.integer("format", 1) != VERSION:
        raise UnknownVersion
    is_bundle, keys = PREFIX + "parts" in pairs, pairs.get(PREFIX + "keys")
    shape = take.text("shape")
    is_encrypted = shape in (ENCRYPTED_RAW, ENCRYPTED_TYPED)
    if pairs.get(PREFIX + "codec", CODECS[0]) not in CODECS:
        raise _malformed("codec")
    if shape not in _SHAPES or (is_bundle and (not is_encrypted or PREFIX + "key_id" in pairs)):
        raise BadFooter("its footer names an unknown shape")
    footer = Footer(
        head=SegmentHead(
            log_id=take.hex("log"),
            topic=take.text("topic"),
            partition=take.integer("partition", 0),
            number=take.integer("number", 0),
            first=take.integer("first", 0),
            epoch=take.integer("epoch", 0),
            schema=take.hex("schema", 16),
            previous=take.hex("previous", 32),
        ),
        shape=shape,
        rows=take.integer("rows", 1),
        time_min=take.integer("time_min"),
        time_max=take.integer("time_max"),
        content=take.hex("content", 32),
        groups=take.groups(),
        blocks=take.hex("blocks"),
        schema=take.base64("arrow_schema"),
        encrypted_with=_encrypted_with(take) if is_encrypted and not is_bundle else None,
        rewrite=pairs.get(PREFIX + "rewrite", ""),
        keys=None if keys is None else KeyPlace.parse(keys),
        codec=pairs.get(PREFIX + "codec", ""),
    )
    _require_agreement(footer, take.hex("chain", 32))
    return _bundle(footer, take.text("parts")) if is_bundle else footer


def _encrypted_with(take: _Pairs) -> SegmentKeyFacts:
    return SegmentKeyFacts(take.text("key_id"), take.text("scheme"), take.hex("salt"), take.hex("commitment"))


def _require_agreement(footer: Footer, chained_to: bytes) -> None:
    groups = footer.groups
    if max(group.rows for group in groups) > 2 * GROUP_ROWS_MAX:
        raise BadFooter("it has a row group that is too large")
    if sum(group.rows for group in groups) != footer.rows or footer.end >= _INT64:
        raise BadFooter("its row groups do not add up to its rows")
    if (min(g.time_min for g in groups), max(g.time_max for g in groups)) != (footer.time_min, footer.time_max):
        raise BadFooter("its row groups do not add up to its time range")
    if chain_value(footer.head, footer.rows, footer.content) != chained_to:
        raise BadFooter("its chain value does not match")


def _bundle(footer: Footer, text: str) -> Footer:
    """The footer with its parts; all that it says must follow from them."""
    try:
        parts = _parts(footer, stored_parts.decode(text))
    except BadParts:
        raise _malformed("parts") from None
    keys_at = 0 if footer.keys is None else footer.keys.start
    made = bundled(parts, footer.groups, footer.blocks, footer.rewrite, keys_at)
    if msgspec.structs.replace(footer, encrypted_with=made.encrypted_with, parts=made.parts) != made:
        raise BadFooter("its parts do not add up to what it says")
    if not _is_coarser(footer.groups, [group for part in parts for group in part.footer.groups]):
        raise BadFooter("its row groups do not add up to those of its parts")
    return made


def _parts(bundle: Footer, stored: Iterable[StoredPart]) -> list[BundlePart]:
    """The footers of the parts, each in the place where those before it leave off."""
    parts = []
    head = bundle.head
    for one in stored:
        groups = _groups(one)
        head = msgspec.structs.replace(head, epoch=one.epoch)
        footer = Footer(
            head=head,
            shape=bundle.shape,
            codec=bundle.codec,
            rows=sum(group.rows for group in groups),
            time_min=min(group.time_min for group in groups),
            time_max=max(group.time_max for group in groups),
            content=one.content,
            groups=groups,
            blocks=one.blocks,
            schema=one.schema or bundle.schema,
            encrypted_with=SegmentKeyFacts(one.key_id, one.scheme, one.salt, one.commitment),
            keys=KeyPlace.parse(one.keys) if one.keys else None,
        )
        if footer.end >= _INT64 or head.number >= _INT64:
            raise BadParts
        parts.append(BundlePart(footer, one.mac))
        chain = chain_value(head, footer.rows, footer.content)
        head = msgspec.structs.replace(head, number=head.number + 1, first=footer.end, previous=chain)
    return parts


def _groups(stored: StoredPart) -> tuple[RowGroupStatistics, ...]:
    groups = tuple(RowGroupStatistics(*group) for group in stored_parts.unpack_groups(stored.groups))
    if not all(0 < group.rows <= 2 * GROUP_ROWS_MAX and group.time_min <= group.time_max for group in groups):
        raise BadParts
    return groups


def _stored(part: BundlePart, schema: bytes) -> StoredPart:
    footer = part.footer
    with_key = footer.encrypted_with
    assert with_key is not None, "parts are encrypted"
    return StoredPart(
        epoch=footer.head.epoch,
        content=footer.content,
        groups=stored_parts.pack_groups([(group.rows, group.time_min, group.time_max) for group in footer.groups]),
        blocks=footer.blocks,
        key_id=with_key.key_id,
        scheme=with_key.scheme,
        salt=with_key.salt,
        commitment=with_key.commitment,
        schema=b"" if footer.schema == schema else footer.schema,
        mac=part.mac,
        keys="" if footer.keys is None else str(footer.keys),
    )


def _is_coarser(groups: Iterable[RowGroupStatistics], parts: Sequence[RowGroupStatistics]) -> bool:
    """Whether each of these row groups is some whole ones of the parts': then their macs vouch for its times."""
    at = 0
    for group in groups:
        start, rows = at, 0
        while rows < group.rows and at < len(parts):
            rows += parts[at].rows
            at += 1
        if rows != group.rows or joined_groups(parts[start:at]) != group:
            return False
    return at == len(parts)


def joined_groups(groups: Sequence[RowGroupStatistics]) -> RowGroupStatistics:
    """Some row groups as one."""
    return RowGroupStatistics(
        sum(group.rows for group in groups), min(g.time_min for g in groups), max(g.time_max for g in groups)
    )


class _Pairs:
    """Takes values out of pairs; refuses those that are not well-formed."""

    def __init__(self, pairs: Mapping[str, str]) -> None:
        self._pairs = pairs

    def text(self, name: str) -> str:
        try:
            return self._pairs[PREFIX + name]
        except KeyError:
            raise BadFooter(f"its footer lacks {PREFIX + name}") from None

    def integer(self, name: str, least: int = -_INT64) -> int:
        return _integer(self.text(name), least, name)

    def hex(self, name: str, length: int | None = None) -> bytes:
        text = self.text(name)
        try:
            value = bytes.fromhex(text)
        except ValueError:
            raise _malformed(name) from None
        if value.hex() != text or (length is not None and len(value) != length):
            raise _malformed(name)
        return value

    def base64(self, name: str) -> bytes:
        try:
            return base64.b64decode(self.text(name), validate=True)
        except (binascii.Error, ValueError):
            raise _malformed(name) from None

    def groups(self) -> tuple[RowGroupStatistics, ...]:
        groups = []
        for item in self.text("groups").split(" "):
            rows, _, times = item.partition(",")
            earliest, _, latest = times.partition(",")
            least = _integer(earliest, -_INT64, "groups")
            groups.append(RowGroupStatistics(_integer(rows, 1, "groups"), least, _integer(latest, least, "groups")))
        return tuple(groups)


def _integer(text: str, least: int, name: str) -> int:
    value = int(text) if _INTEGER.match(text) else _INT64
    if not least <= value < _INT64:
        raise _malformed(name)
    return value


def _malformed(name: str) -> BadFooter:
    return BadFooter(f"its footer is malformed at {PREFIX + name}")

"""The small JSON objects of a store: what each one says, as bytes and back (docs/formats/0006-store.md).

A document is a pure function of what is durable where it was written: equal facts give equal bytes, which is how a
writer recognises its own object. The last field, `check`, is a hash over all the others; what does not match it, is
not JSON, or does not have these fields is `Corrupt` with the object's key. What another version of holdfast wrote has
another format number or another type, and is refused, not ignored: the `format` of `log.json` is that of the whole
root. Signatures are removed before a document gets here.
"""

from __future__ import annotations

import re
from typing import Literal, TypeVar, get_args

import msgspec
from blake3 import blake3

from holdfast.errors import Corrupt, other_version
from holdfast.model.segment import NO_CONTENT, Segment, SegmentFacts, SegmentHead
from holdfast.store import layout

FORMAT = 1
_CONTEXT = "holdfast 1 store document"
_NO_CONTENT = NO_CONTENT.hex()
_CHECKED = re.compile(rb'"check":"([0-9a-f]{32})"\}\n\Z')
_DOCUMENT_BYTES_MAX = 64 * 2**20


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all documents have: a format number first, a check last."""

    format: int = FORMAT
    log: str
    """The log's id, 32 hex digits."""


class LogDocument(Document, frozen=True, kw_only=True, tag="root"):
    """`log.json`: whose root this is."""

    created_us: int
    check: str = ""


class EpochDocument(Document, frozen=True, kw_only=True, tag="epoch"):
    """One claim: from now on, no owner with a lower number may move a mark."""

    epoch: int
    purpose: Literal["open", "restore"]
    owner: str = ""
    """The directory that claims: the same in all its claims, and in nobody else's."""
    nonce: str
    """Random; equal bytes can only be ours."""
    claimed_us: int
    host: str
    pid: int
    check: str = ""


class SchemaVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a typed topic's schema."""

    fingerprint: str
    definition: str
    """An Arrow schema, serialized, in base 64."""


class RetentionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic's own retention; 0 = no limit."""

    bytes_max: int
    age_max_us: int
    records_max: int


class TopicDocument(Document, frozen=True, kw_only=True, tag="topic"):
    """A topic as it is from this version on."""

    topic: str
    version: int
    """Of this document: 1, 2, 3 …"""
    partitions: int
    first_offset: int
    """Where its partitions began."""
    schemas: tuple[SchemaVersion, ...] = ()
    """Oldest first; none for raw topics."""
    codec: str = ""
    """Of a raw topic, what its payloads are: `json`, `text` or `msgpack`; empty where they are bytes."""
    retention: RetentionLimits | None = None
    check: str = ""


class SinkTopicDocument(TopicDocument, frozen=True, kw_only=True, tag="sink_topic"):
    """A topic that Spark's sink writes: a log refuses to append to it. Partitions may become more with each version."""


class SegmentDocument(Document, frozen=True, kw_only=True, tag="segment", gc=False):
    """A manifest object: one settled segment."""

    topic: str
    partition: int
    slot: int
    """Its place among the partition's manifest objects."""
    number: int
    """The segment's own number; lower than the slot once the log was taken over."""
    first: int
    rows: int
    size: int
    time_min: int
    time_max: int
    sha256: str
    content: str
    footer: str
    previous: str
    chain: str
    schema: str
    """Fingerprint; zeros for raw records."""
    key_id: str
    epoch: int
    """The ownership of the log, not of the store, under which it was sealed."""
    sealed_us: int
    check: str = ""

    @classmethod
    def of(cls, segment: Segment, *, slot: int, chain: bytes, sealed_us: int) -> SegmentDocument:
        """The manifest object of a segment, in this slot."""
        head, facts = segment.head, segment.facts
        return cls(
            log=head.log_id.hex(),
            topic=head.topic,
            partition=head.partition,
            slot=slot,
            number=head.number,
            first=head.first,
            rows=facts.rows,
            size=facts.size,
            time_min=facts.time_min,
            time_max=facts.time_max,
            sha256=facts.sha256.hex(),
            content=facts.content.hex(),
            footer=facts.footer.hex(),
            previous=head.previous.hex(),
            chain=chain.hex(),
            schema=head.schema.hex(),
            key_id=facts.key_id,
            epoch=head.epoch,
            sealed_us=sealed_us,
        )

    @property
    def segment(self) -> Segment:
        """The segment: what its file must say about itself, and what the manifest says about that file."""
        unhex = bytes.fromhex
        head = SegmentHead(
            log_id=unhex(self.log),
            topic=self.topic,
            partition=self.partition,
            number=self.number,
            first=self.first,
            epoch=self.epoch,
            schema=unhex(self.schema),
            previous=unhex(self.previous),
        )
        facts = SegmentFacts(
            rows=self.rows,
            size=self.size,
            time_min=self.time_min,
            time_max=self.time_max,
            sha256=unhex(self.sha256),
            content=unhex(self.content),
            footer=unhex(self.footer),
            key_id=self.key_id,
        )
        return Segment(head=head, facts=facts)

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.first + self.rows

    @property
    def key(self) -> str:
        """Where its file is."""
        return layout.segment_key(self.topic, self.partition, self.number, bytes.fromhex(self.sha256))

    @property
    def is_filler(self) -> bool:
        """Whether a rebuild put it where a segment's file had expired or was lost: it has no file."""
        return self.size == 0 and self.content == _NO_CONTENT


class StartDocument(Document, frozen=True, kw_only=True, tag="start"):
    """A manifest object: here a new owner took over. Older writers find their slot taken."""

    topic: str
    partition: int
    slot: int
    epoch: int
    nonce: str
    number: int
    """How many segments there are: the next one has this number …"""
    first: int
    """… and begins at this offset, or holds what the adopted commit batches bring."""
    adopted_seq: int
    """The last sequence number that was adopted from commit batches of older epochs; 0 for none."""
    check: str = ""

    @property
    def end(self) -> int:
        """The offset that comes next: it holds no records."""
        return self.first


class FloorDocument(Document, frozen=True, kw_only=True, tag="floor"):
    """Everything up to this sequence number is settled; commit batches below may be gone."""

    epoch: int
    seq: int
    check: str = ""


class FrontierDocument(Document, frozen=True, kw_only=True, tag="frontier"):
    """So far the log was settled and shipped when this was written; the highest epoch and number counts."""

    epoch: int
    """The store's; 0 in a log's own directory."""
    number: int
    seq: int
    """Commits up to this one had been acknowledged as shipped."""
    settled: dict[str, dict[str, int]]
    """Topic → partition → everything below is in segments; only partitions that have segments."""
    keys: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """The first and the last commit whose idempotency keys are in objects of keys; left out where there are none."""
    check: str = ""

    @property
    def key_span(self) -> tuple[int, int] | None:
        """The same, None where there are none."""
        return None if isinstance(self.keys, msgspec.UnsetType) else self.keys


class AdoptedDocument(Document, frozen=True, kw_only=True, tag="adopted"):
    """A takeover adopted commit batches of older epochs up to this sequence number; the rest is garbage."""

    epoch: int
    seq: int
    check: str = ""


class ExpiredDocument(Document, frozen=True, kw_only=True, tag="expired"):
    """Segments of a partition below this number are retired; their files go later."""

    topic: str
    partition: int
    upto: int
    first: int
    """Where the partition begins now."""
    expired_us: int
    check: str = ""


class RewrittenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One file that took the place of a run of segments: a segment like any other, but longer."""

    upto: int
    """The number behind the last segment that it holds; its own number is that of the first."""
    segment: SegmentDocument
    """As its manifest object would say it, in the slot of the first; `sealed_us` is the latest of those it holds."""


class RewriteDocument(Document, frozen=True, kw_only=True, tag="rewrite"):
    """Files that took the place of segments, all at once. Offsets, numbers and manifest objects stay as they are."""

    topic: str
    partition: int
    number: int
    """Rewrites of a partition are numbered 0, 1, 2 … without a hole; a later one may replace files of an earlier."""
    nonce: str
    """That of the intent."""
    outputs: tuple[RewrittenFile, ...]
    """In order, none over another; empty where it only takes its number."""
    kept: tuple[RewrittenFile, ...] | None = None
    """Now and then: all files of earlier rewrites that stay in effect, so that a reader can begin here."""
    rewritten_us: int
    check: str = ""


class IntentDocument(Document, frozen=True, kw_only=True, tag="intent"):
    """These segments are about to be rewritten: files with these numbers that no manifest knows are on their way.

    It ends when the rewrite with its number exists, from any writer.
    """

    topic: str
    partition: int
    number: int
    nonce: str
    """Random, 16 hex digits."""
    runs: tuple[tuple[int, int], ...]
    """Numbers of the first segment of each run, and behind its last."""
    begun_us: int
    host: str
    pid: int
    check: str = ""


class PartitionEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """How far one partition of a sink's topic goes."""

    slots: int
    """Manifest objects that it has: the next one goes into this slot …"""
    number: int
    """… for the segment of this number …"""
    first: int
    """… which begins at this offset …"""
    chain: str
    """… behind this chain value."""


class SinkBatchDocument(Document, frozen=True, kw_only=True, tag="sink_batch"):
    """One batch of a sink: all its rows are part of the topic as soon as this object is there, and none before.

    It says all that follows from it: the manifest objects of its segments are written after it, by the first process
    that needs them, and a reader that does not find them yet takes them from here.
    """

    topic: str
    number: int
    """Batches of a topic are numbered 0, 1, 2 … without a hole."""
    writer: str
    """The id of a streaming query, or what the user calls the writer; empty for a write without a mark."""
    batch: int
    """The writer's own number of it; -1 for a write without a mark."""
    nonce: str
    """Random; equal bytes can only be ours."""
    segments: tuple[SegmentDocument, ...]
    """As their manifest objects say it, by partition and slot."""
    ends: dict[str, PartitionEnd]
    """By partition: how far each one goes after this batch, those without new rows included."""
    marks: dict[str, int]
    """By writer: the highest batch that is part of the topic. Kept forever: a batch that is written again is known."""
    committed_us: int
    check: str = ""


class LeaseDocument(Document, frozen=True, kw_only=True, tag="lease"):
    """What a reader still needs, and until when it says so."""

    reader: str
    until_us: int
    needs: dict[str, dict[str, int]]
    """Topic → partition → the lowest segment number that must stay."""
    check: str = ""


AnyDocument = (
    LogDocument
    | EpochDocument
    | TopicDocument
    | SegmentDocument
    | StartDocument
    | FloorDocument
    | AdoptedDocument
    | FrontierDocument
    | ExpiredDocument
    | RewriteDocument
    | IntentDocument
    | LeaseDocument
    | SinkTopicDocument
    | SinkBatchDocument
)

ManifestDocument = SegmentDocument | StartDocument

Kind = TypeVar("Kind", bound=Document)
Checked = TypeVar("Checked", bound=AnyDocument)

_decoder: msgspec.json.Decoder[AnyDocument] = msgspec.json.Decoder(AnyDocument)


def encode(document: AnyDocument) -> bytes:
    """A document as bytes, with its check."""
    return msgspec.json.encode(checked(document)) + b"\n"


def checked(document: Checked) -> Checked:
    """A document with its check, as readers get it."""
    return msgspec.structs.replace(document, check=_check(document))


def decode(data: bytes, key: str, kind: type[Kind]) -> Kind:
    """The document in an object, which must be whole and of this kind."""
    document = _decode(data, key)
    if not isinstance(document, kind):
        raise Corrupt("an object of the store is of another kind than its key says", path=key)
    return document


def decode_manifest(data: bytes, key: str) -> ManifestDocument:
    """A manifest object: a segment or the start of an ownership."""
    document = _decode(data, key)
    if not isinstance(document, SegmentDocument | StartDocument):
        raise Corrupt("an object of the store is of another kind than its key says", path=key)
    return document


def _decode(data: bytes, key: str) -> AnyDocument:
    try:
        if len(data) > _DOCUMENT_BYTES_MAX:
            raise ValueError
        document = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        _refuse_unknown(data, key)
        raise Corrupt("an object of the store is damaged", path=key) from None
    _refuse_unknown(data, key)
    if document.format != FORMAT or encode(document) != data:  # its check, and that it is written as we write it
        raise Corrupt("an object of the store is damaged", path=key)
    return document


def _check(document: AnyDocument) -> str:
    return _hash_of(msgspec.json.encode(msgspec.structs.replace(document, check="")))


def _hash_of(blank: bytes) -> str:
    return blake3(blank, derive_key_context=_CONTEXT).digest(length=16).hex()


class _Form(msgspec.Struct):
    format: int = FORMAT
    type: str = ""


_TYPES = {str(kind.__struct_config__.tag) for kind in get_args(AnyDocument)}


def _refuse_unknown(data: bytes, key: str) -> None:
    """What is whole and says that another version wrote it, is not damaged."""
    try:
        found = msgspec.json.decode(data, type=_Form)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    if found.format > FORMAT or (found.type not in _TYPES and _is_whole(data)):
        raise other_version("object", key=key, format=found.format, known=FORMAT)


def _is_whole(data: bytes) -> bool:
    blank, check = _CHECKED.sub(b'"check":""}', data), _CHECKED.search(data)
    return check is not None and _hash_of(blank) == check[1].decode()

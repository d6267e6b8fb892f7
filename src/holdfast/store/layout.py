"""Where things lie under a store's root: the only module that spells a key.

    log.json                                                which log this is
    epochs/<20 digits>.json                                 claims of ownership, dense, never removed
    frontiers/<epoch>/<20 digits>.json                      how far all partitions are settled; the newest one counts
    tail/<epoch>/<first seq>-<last seq>.arrow               one object per commit batch
    tail/<epoch>/<seq>.floor                                everything up to here is settled: batches below may be gone
    tail/<epoch>/<seq>.adopted                              a takeover adopted older batches up to here, and no more
    tail/<epoch>/<first seq>-<last seq>.keys                idempotency keys of these commits
    topics/<topic>/_topic/<20 digits>.json                  partitions, schema versions, retention
    topics/<topic>/_sink/<20 digits>.json                   one per batch, in a topic that Spark's sink writes
    topics/<topic>/_delta_log/<20 digits>.json              commits, while the topic is published as a Delta table
    topics/<topic>/_delta_log/<20 digits>.checkpoint.parquet, _last_checkpoint  all commits up to this one, in one
    topics/<topic>/<partition>/segments/<20 digits>-<16 hex digits of sha256>.parquet
    topics/<topic>/<partition>/_manifest/<20 digits>.json   one per segment, and one per takeover
    topics/<topic>/<partition>/_checkpoints/<20 digits>.parquet  all manifest objects up to this one, in one
    topics/<topic>/<partition>/_expired/<20 digits>.json    segments below this number are retired
    topics/<topic>/<partition>/_rewrites/<20 digits>.json   these files took the place of those segments
    topics/<topic>/<partition>/_intents/<20 digits>-<16 hex digits>.json  a rewrite that is about to be written
    leases/<reader>/<20 digits>.json                        what a reader still needs

Folders that hold no data begin with `_`: `topics/<topic>/` may also be the root of a table of another kind, whose
cleaning removes every other folder that it does not know.

A log's own `segments/` directory is such a root. Names are made here and taken apart here; what does not come
apart is not ours. All names in one folder have one shape, so that every store lists them in the same order.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TEMPORARY = ".tmp"
EXPIRED = ".expired"

_SEGMENT = re.compile(r"([0-9]{20})-([0-9a-f]{16})\.parquet\Z")
_IN_SEGMENTS = re.compile(r"topics/[^/]+/[0-9]+/segments/[^/]+\Z")
_TEMPORARY = re.compile(r"([0-9]{20})(?:-[0-9]+)?\.parquet\.tmp\Z")


class SegmentName(NamedTuple):
    """A segment file's name, taken apart."""

    number: int
    hash: str


def partition_folder(topic: str, partition: int) -> str:
    """The folder of one partition."""
    return f"topics/{topic}/{partition}"


def segments_folder(topic: str, partition: int) -> str:
    """The folder of one partition's segment files."""
    return f"{partition_folder(topic, partition)}/segments"


def segment_name(number: int, sha256: bytes) -> str:
    """The file name of a finished segment."""
    return f"{number:020d}-{sha256[:8].hex()}.parquet"


def temporary_name(number: int, epoch: int = 0) -> str:
    """The file name of a segment that is being written, in this ownership of the log.

    With the epoch in it, an owner that was shut down in the middle of a seal, and wakes up later, touches no file of
    the next one.
    """
    return f"{number:020d}-{epoch}.parquet{TEMPORARY}"


def segment_key(topic: str, partition: int, number: int, sha256: bytes) -> str:
    """The full key of a finished segment."""
    return f"{segments_folder(topic, partition)}/{segment_name(number, sha256)}"


def is_segment_key(key: str) -> bool:
    """Whether a key is in a folder of segment files."""
    return _IN_SEGMENTS.match(key) is not None


def parse_segment_name(name: str) -> SegmentName | None:
    """A finished segment's file name, or None."""
    found = _SEGMENT.match(name)
    return SegmentName(int(found[1]), found[2]) if found else None


def parse_temporary_name(name: str) -> int | None:
    """The number of a segment that is being written, or None."""
    found = _TEMPORARY.match(name)
    return int(found[1]) if found else None


# -- the log ----------------------------------------------------------------------------------------------

LOG = "log.json"
EPOCHS = "epochs/"
FRONTIERS = "frontiers/"
TAIL = "tail/"
TOPICS = "topics/"
LEASES = "leases/"

_NUMBERED = re.compile(r"([0-9]{20})\.(json|parquet|floor)\Z")
_BATCH = re.compile(r"tail/([0-9]{20})/([0-9]{20})-([0-9]{20})\.arrow\Z")
_FLOOR = re.compile(r"tail/([0-9]{20})/([0-9]{20})\.floor\Z")
_FRONTIER = re.compile(r"frontiers/([0-9]{20})/([0-9]{20})\.json\Z")
_ADOPTED = re.compile(r"tail/([0-9]{20})/([0-9]{20})\.adopted\Z")
_KEYS = re.compile(r"tail/([0-9]{20})/([0-9]{20})-([0-9]{20})\.keys\Z")
_DOCUMENT = re.compile(
    r"(?:topics/([^/]+)/(?:_topic|_sink|[0-9]+/(?:_manifest|_checkpoints|_expired|_rewrites|_intents))|epochs|frontiers/[0-9]{20}|leases/[^/]+)"
    r"/[0-9]{20}(?:-[0-9a-f]{16})?\.(?:json|parquet)\Z"
)
_COMMIT = re.compile(r"([0-9]{20})\.json\Z")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet\Z")
_TABLE_FILE = re.compile(r"topics/([^/]+)/_delta_log/")
_INTENT = re.compile(r"([0-9]{20})-([0-9a-f]{16})\.json\Z")
_PARTITION = re.compile(r"topics/([^/]+)/([0-9]+)/")


class BatchName(NamedTuple):
    """A commit batch's key, taken apart; it sorts by epoch, then by sequence."""

    epoch: int
    first_seq: int
    last_seq: int


def epoch_key(epoch: int) -> str:
    """The claim of one ownership of the store."""
    return f"{EPOCHS}{epoch:020d}.json"


def frontier_key(epoch: int, number: int) -> str:
    """Says how far all partitions are settled."""
    return f"{FRONTIERS}{epoch:020d}/{number:020d}.json"


def parse_frontier_key(key: str) -> tuple[int, int] | None:
    """Epoch and number of a frontier's key, or None; frontiers are ordered by these."""
    found = _FRONTIER.match(key)
    return (int(found[1]), int(found[2])) if found else None


def batch_key(epoch: int, first_seq: int, last_seq: int) -> str:
    """A commit batch."""
    return f"{TAIL}{epoch:020d}/{first_seq:020d}-{last_seq:020d}.arrow"


def parse_batch_key(key: str) -> BatchName | None:
    """A commit batch's key, or None."""
    found = _BATCH.match(key)
    return BatchName(int(found[1]), int(found[2]), int(found[3])) if found else None


def floor_key(epoch: int, seq: int) -> str:
    """Says that everything up to a sequence number is settled."""
    return f"{TAIL}{epoch:020d}/{seq:020d}.floor"


def parse_floor_key(key: str) -> tuple[int, int] | None:
    """Epoch and sequence number of a floor's key, or None."""
    found = _FLOOR.match(key)
    return (int(found[1]), int(found[2])) if found else None


def adopted_key(epoch: int, seq: int) -> str:
    """Says up to which sequence number a takeover adopted the batches of older epochs."""
    return f"{TAIL}{epoch:020d}/{seq:020d}.adopted"


def parse_adopted_key(key: str) -> tuple[int, int] | None:
    """Epoch and sequence number of an adoption's key, or None."""
    found = _ADOPTED.match(key)
    return (int(found[1]), int(found[2])) if found else None


def keys_key(epoch: int, first_seq: int, last_seq: int) -> str:
    """Idempotency keys of a stretch of commits."""
    return f"{TAIL}{epoch:020d}/{first_seq:020d}-{last_seq:020d}.keys"


def parse_keys_key(key: str) -> BatchName | None:
    """Epoch and sequence numbers of an object of idempotency keys, or None."""
    found = _KEYS.match(key)
    return BatchName(int(found[1]), int(found[2]), int(found[3])) if found else None


# -- topics and partitions --------------------------------------------------------------------------------


def topic_folder(topic: str) -> str:
    """Where the documents about one topic are."""
    return f"{TOPICS}{topic}/_topic/"


def topic_key(topic: str, version: int) -> str:
    """A document about one topic."""
    return f"{topic_folder(topic)}{version:020d}.json"


def sink_folder(topic: str) -> str:
    """Where the batches of a sink's topic are."""
    return f"{TOPICS}{topic}/_sink/"


def sink_key(topic: str, number: int) -> str:
    """One batch of a sink."""
    return f"{sink_folder(topic)}{number:020d}.json"


def table_folder(topic: str) -> str:
    """One topic's folder: the root of the table that it is published as."""
    return f"{TOPICS}{topic}/"


def delta_folder(topic: str) -> str:
    """Where the log of a topic's Delta table is."""
    return f"{table_folder(topic)}_delta_log/"


def delta_commit_key(folder: str, version: int) -> str:
    """One commit of a Delta table, whose log is in this folder."""
    return f"{folder}{version:020d}.json"


def delta_checkpoint_key(folder: str, version: int) -> str:
    """The state of a Delta table after a commit."""
    return f"{folder}{version:020d}.checkpoint.parquet"


def delta_hint_key(folder: str) -> str:
    """Says which checkpoint of a Delta table is the newest."""
    return f"{folder}_last_checkpoint"


def parse_delta_commit(key: str) -> int | None:
    """The version of a commit's key, or None."""
    found = _COMMIT.match(key.rpartition("/")[2])
    return int(found[1]) if found else None


def parse_delta_checkpoint(key: str) -> int | None:
    """The version of a checkpoint's key, or None."""
    found = _CHECKPOINT.match(key.rpartition("/")[2])
    return int(found[1]) if found else None


def manifest_folder(topic: str, partition: int) -> str:
    """Where one partition's manifest objects are."""
    return f"{partition_folder(topic, partition)}/_manifest/"


def manifest_key(topic: str, partition: int, slot: int) -> str:
    """A manifest object."""
    return f"{manifest_folder(topic, partition)}{slot:020d}.json"


def checkpoints_folder(topic: str, partition: int) -> str:
    """Where one partition's checkpoints are."""
    return f"{partition_folder(topic, partition)}/_checkpoints/"


def checkpoint_key(topic: str, partition: int, slot: int) -> str:
    """All manifest objects up to a slot, in one."""
    return f"{checkpoints_folder(topic, partition)}{slot:020d}.parquet"


def expired_folder(topic: str, partition: int) -> str:
    """Where one partition's expiries are."""
    return f"{partition_folder(topic, partition)}/_expired/"


def expired_key(topic: str, partition: int, upto: int) -> str:
    """Says that segments below a number are retired."""
    return f"{expired_folder(topic, partition)}{upto:020d}.json"


def rewrites_folder(topic: str, partition: int) -> str:
    """Where one partition's rewrites are."""
    return f"{partition_folder(topic, partition)}/_rewrites/"


def rewrite_key(topic: str, partition: int, number: int) -> str:
    """Says which files took the place of which segments."""
    return f"{rewrites_folder(topic, partition)}{number:020d}.json"


def intents_folder(topic: str, partition: int) -> str:
    """Where those who are about to rewrite say so."""
    return f"{partition_folder(topic, partition)}/_intents/"


def intent_key(topic: str, partition: int, number: int, nonce: str) -> str:
    """Says that a rewrite is about to be written; several may want the same number."""
    return f"{intents_folder(topic, partition)}{number:020d}-{nonce}.json"


def parse_intent_key(key: str) -> tuple[int, str] | None:
    """The number and the nonce of an intent's key, or None."""
    found = _INTENT.match(key.rpartition("/")[2])
    return (int(found[1]), found[2]) if found else None


def lease_key(reader: str, number: int) -> str:
    """What a reader still needs; its newest number counts."""
    return f"{LEASES}{reader}/{number:020d}.json"


def parse_lease_key(key: str) -> tuple[str, int] | None:
    """Reader and number of a lease's key, or None."""
    parts = key.split("/")
    number = parse_number(parts[-1])
    return (parts[1], number) if len(parts) == 3 and key.startswith(LEASES) and number is not None else None


def parse_number(name: str) -> int | None:
    """The number of a numbered object, from its key or its name; None when it has none."""
    found = _NUMBERED.match(name.rpartition("/")[2])
    return int(found[1]) if found else None


def parse_document(key: str) -> str | None:
    """Whose document a key is: a topic's name, or "" for the log's own; None when it is nobody's.

    Documents are all numbered objects but segments and commit batches; also while they are being written.
    """
    key = key.removesuffix(TEMPORARY)
    if key == LOG:
        return ""
    found = _DOCUMENT.match(key)
    return found[1] or "" if found else None


def parse_table_file(key: str) -> str | None:
    """The topic whose published table a key belongs to, or None; whatever its writers call their files."""
    found = _TABLE_FILE.match(key)
    return found[1] if found else None


def parse_partition(key: str) -> tuple[str, int] | None:
    """The topic and the partition that a key belongs to, or None."""
    found = _PARTITION.match(key)
    return (found[1], int(found[2])) if found else None

"""Operations: what a unit asks the journal to change beside records. Values; the writer carries them out.

An operation is filled in by the stage (`topic_registry`, `manifest_changes`, `space_changes`) with the rows it comes
to; `change` says what it does to the log's own counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.journal.state.partition import Partition
from holdfast.journal.state.state_digest import Vouched
from holdfast.model.control_rows import PolicyRow, SchemaRow, SegmentRow, ShipmentRow, ShippingRow, WatermarkRow

if TYPE_CHECKING:
    from holdfast.crypto.keyring import Keyring
    from holdfast.crypto.vault import KeyEpoch


class Change(NamedTuple):
    """What an operation does to the log's own counters, and to the stamps that the log's row vouches for."""

    topics: int = 0
    partitions: int = 0
    key_epochs: int = 0
    entries: int = 0
    segments: int = 0
    schemas: int = 0
    policies: int = 0
    stamps: Mapping[Vouched, bytes] = {}


NO_CHANGE = Change()


class CreateTopic:
    """Operation: declare a topic and its partitions, with its first schema or its codec."""

    __slots__ = ("change", "codec", "created", "definition", "fingerprint", "first", "name", "partitions", "schema")

    def __init__(
        self,
        name: str,
        partitions: int,
        first: int = 0,
        fingerprint: bytes = b"",
        definition: bytes = b"",
        codec: str = "",
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.first = first
        self.fingerprint = fingerprint
        self.definition = definition
        self.codec = codec
        self.created: list[Partition] = []
        self.schema: SchemaRow | None = None
        self.change = NO_CHANGE


class AddSchema:
    """Operation: start a new version of a typed topic's schema."""

    __slots__ = ("change", "definition", "fingerprint", "schema", "topic", "version")

    def __init__(self, topic: str, version: int, fingerprint: bytes, definition: bytes) -> None:
        self.topic = topic
        self.version = version
        self.fingerprint = fingerprint
        self.definition = definition
        self.schema: SchemaRow | None = None
        self.change = NO_CHANGE


class SetPolicy:
    """Operation: give a topic its own retention policy; 0 = no limit."""

    __slots__ = ("age_max_us", "bytes_max", "change", "policy", "records_max", "topic")

    def __init__(self, topic: str, bytes_max: int, age_max_us: int, records_max: int) -> None:
        self.topic = topic
        self.bytes_max = bytes_max
        self.age_max_us = age_max_us
        self.records_max = records_max
        self.policy: PolicyRow | None = None
        self.change = NO_CHANGE


class RotateKey:
    """Operation: encrypt under a new key epoch from the next group on."""

    __slots__ = ("change", "epoch", "keyring")

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self.epoch: KeyEpoch | None = None
        self.change = Change(key_epochs=1)


class Seal:
    """Operation: put a finished segment into the manifest and move its partition's watermark behind it."""

    __slots__ = ("change", "partition", "row", "size", "watermark")

    def __init__(self, partition: Partition, row: SegmentRow, size: int) -> None:
        self.partition = partition
        self.row = row
        self.size = size
        """Bytes of the entries that it takes over."""
        self.watermark: WatermarkRow | None = None
        self.change = NO_CHANGE


class Trim:
    """Operation: remove a slice of the entries that lie in segments already."""

    __slots__ = ("bodies", "change", "partition", "slice_max")

    def __init__(self, partition: Partition, slice_max: int) -> None:
        self.partition = partition
        self.slice_max = slice_max
        self.bodies: Sequence[tuple[int, int]] = ()
        """In which file of groups their bodies were (0: in none), and how large."""
        self.change = NO_CHANGE


class Expire:
    """Operation: retire a partition's oldest segments, up to this number; their files may go afterwards."""

    __slots__ = ("change", "expiring", "partition", "upto", "watermark")

    def __init__(self, partition: Partition, upto: int) -> None:
        self.partition = partition
        self.upto = upto
        self.expiring: list[SegmentRow] = []
        self.watermark: WatermarkRow | None = None
        self.change = NO_CHANGE


class MarkSegments:
    """Operation: move segments to a state, if they still are what they were (compare and set)."""

    __slots__ = ("change", "rows", "state")

    def __init__(self, rows: Sequence[SegmentRow], state: int) -> None:
        self.rows = rows
        self.state = state
        self.change = NO_CHANGE


class MarkShipped:
    """Operation: write down how far the log is on its store."""

    __slots__ = ("change", "shipments", "shipping")

    def __init__(self, shipping: ShippingRow, shipments: Sequence[ShipmentRow]) -> None:
        self.shipping = shipping
        self.shipments = shipments
        self.change = NO_CHANGE


class ChangeSpace:
    """Operation: put and delete items of a space, or (`drop`) remove it with all its items.

    A put of a key that is there replaces it; deleting one that is not there, or dropping a space that is not there, is
    no error. A space comes into being with its first item, and stays when its last one is deleted.
    """

    __slots__ = ("deletes", "drop", "name", "puts")

    def __init__(
        self,
        name: bytes,
        puts: Sequence[tuple[bytes, int, bytes]] = (),
        deletes: Sequence[bytes] = (),
        drop: bool = False,
    ) -> None:
        self.name = name
        self.puts = puts
        """Key, number and body of each."""
        self.deletes = deletes
        self.drop = drop

    def release(self) -> None:
        """Let go of the bodies."""
        self.puts = ()


class ForgetSessions:
    """Operation: let go of the sessions that left; the table of sessions knows which."""

    __slots__ = ("change",)

    def __init__(self) -> None:
        self.change = NO_CHANGE


Control = (
    CreateTopic | AddSchema | SetPolicy | RotateKey | Seal | Trim | Expire | MarkSegments | MarkShipped | ForgetSessions
)

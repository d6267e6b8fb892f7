"""What a log is put together from: small ports, each with an implementation for each distance.

The owner of a log has the parts themselves (`local_log`). A member of a shared log that does not own it has proxies
for some of them, which ask the owner (`owner/`). A client over HTTP has parts that ask the server (`remote/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from holdfast.caller import InThread
    from holdfast.channels.keeping.snapshot import ChannelData
    from holdfast.channels.keeping.storage import Migration
    from holdfast.channels.participant import Channels
    from holdfast.channels.wire.channel_keys import Keys
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.compaction.compactor import Progress
    from holdfast.crypto.keyring import Keyring
    from holdfast.errors import Corrupt, HoldfastError
    from holdfast.execution.execution_room import ExecutionRoom
    from holdfast.execution.work.executions import Executions
    from holdfast.journal.journal_port import JournalPort
    from holdfast.journal.state.operations import ChangeSpace
    from holdfast.journal.state.partition import Partition
    from holdfast.log.consumers.consumer_status import ConsumerStatus
    from holdfast.log.local_parts import LocalParts
    from holdfast.log.log_stats import Stats
    from holdfast.log.topics.key_filter import KeyFilter
    from holdfast.log.topics.reading import ResultColumns, Times
    from holdfast.log.topics.topic import Topic
    from holdfast.log.topics.typed_topic import TypedTopic
    from holdfast.log.upkeep.published_tables import TableStats
    from holdfast.log.upkeep.topic_retention import TopicRetention
    from holdfast.model.record import Marks, Record
    from holdfast.model.value_codec import ValueCodec
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.segments.retention.retention_report import RetentionReport
    from holdfast.segments.segment_stats import SegmentCounters, SegmentStats
    from holdfast.settings import Settings
    from holdfast.shipping.events import Subscription
    from holdfast.shipping.refill.store_loss import StoreRebuildReport
    from holdfast.shipping.shipping_stats import ShippingCounters, ShippingStats, Unshipped

Schema: TypeAlias = "pa.Schema | Literal['latest'] | None"
Names: TypeAlias = tuple[str, ...] | None
"""Names of topics; None: all of them."""
Item: TypeAlias = tuple[bytes, int, bytes]
"""Key, number and body of an item of a space, as the journal stores it."""


class TopicRequest(NamedTuple):
    """What is said of a topic that is asked for. What is left out is as it was made, or as a new one has it."""

    name: str
    schema: Schema = None
    partitions: int | None = None
    key: str | None = None
    first_offset: int = 0
    codec: ValueCodec | None = None


class LogParts(NamedTuple):
    """All of it."""

    settings: Settings
    identity: IdentityPort
    journal: JournalPort
    topics: TopicsPort
    item_keys: ItemKeys
    consumers: ConsumersPort
    channels: ChannelsPort
    executions: ExecutionsPort
    maintenance: Callable[[], MaintenancePort]
    store: Callable[[], StorePort]
    """Asked for when a verb needs them: a client that appends and reads loads no reports."""
    keys: KeysPort
    stats: Callable[[], Stats]
    lifetime: LifetimePort
    in_thread: InThread
    local: LocalParts | None = None
    """Of a log that is open in this process: what its hosts use."""


class IdentityPort(Protocol):
    """Which log it is, and what this handle is to it."""

    @property
    def path(self) -> Path:
        """The log's directory; Invalid where it is not here."""

    @property
    def url(self) -> str:
        """The server's address; Invalid where there is none."""

    @property
    def id(self) -> str:
        """The log's identity, forever."""

    @property
    def place(self) -> str:
        """Where it is, for people."""

    @property
    def read_only(self) -> bool:
        """Whether it can only be read."""

    @property
    def is_owner(self) -> bool:
        """Whether this process owns it at the moment."""

    @property
    def problems(self) -> tuple[Corrupt, ...]:
        """The damage that was found."""


class TopicsPort(Protocol):
    """The topics of one log."""

    def handle(self, topic: Topic | TypedTopic, log: object) -> Topic | TypedTopic:
        """A topic for a caller that may drop the log and keep this; the same one while it is in use."""

    def names(self) -> list[str]:
        """The names of all topics, sorted."""

    def known(self, name: str) -> Topic | TypedTopic:
        """A topic that is there, of either kind."""

    def raw(self, name: str) -> Topic:
        """The raw topic of this name, created with one partition if it is not there; Invalid where it is typed."""

    def topic(self, asked: TopicRequest) -> Topic | TypedTopic:
        """The topic of this name, created if it is not there; Invalid where it is not as it is asked for."""


class PartitionStream(Protocol):
    """One partition as one ordered stream: from files and the tail, or in pages of a server."""

    @property
    def partition(self) -> Partition:
        """Which one."""

    def records(
        self, start: int, end: int, times: Times, *, reverse: bool = False, key: KeyFilter | None = None
    ) -> Iterator[Record]:
        """Records start..end of a raw topic, of these times and with this key only."""

    def results(
        self,
        columns: ResultColumns,
        start: int,
        end: int,
        times: Times,
        *,
        reverse: bool = False,
        key: KeyFilter | None = None,
        to_the_end: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The same as batches of these columns."""


class TopicSource(Protocol):
    """Where what is stored of one topic is read, and how one hears that it went on."""

    @property
    def is_far(self) -> bool:
        """Whether looking costs a question over the network, which no event loop may wait for."""

    @property
    def failure(self) -> HoldfastError | None:
        """Why no news come any more; None as long as they may."""

    def stream(self, part: Partition) -> PartitionStream:
        """One partition as an ordered stream."""

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition is now."""

    def refresh(self) -> None:
        """Take up how far the topic is now."""

    def catch_up(self) -> None:
        """Take up what can be had without asking over the network."""

    def listen(self) -> float:
        """A reader will sleep on the topic's signal: see that it is rung, and say for how long to sleep at most."""

    def pauses(self) -> Iterator[float]:
        """How long to wait before each further try, where it is away; ends where trying again makes no sense."""


class ItemKeys(Protocol):
    """Under which keys items of users' spaces are stored."""

    def item(self, space: str, key: bytes, body: bytes) -> Item:
        """An item to put, in one unit with `change`."""

    def change(self) -> tuple[ChangeSpace, int] | None:
        """What must be in a unit that puts items, and its bytes; None where nothing must."""

    def stored_key(self, space: str, key: bytes) -> bytes:
        """Under which key an item is stored."""

    def opened(self, space: str, stored: bytes) -> tuple[bytes, bytes]:
        """Key and body of an item that was stored."""


class ConsumersPort(Protocol):
    """The consumers of one log."""

    def status(self, topic: str | None = None) -> list[ConsumerStatus]:
        """How far all consumers are, or those of one topic."""

    def forget_consumer(self, name: str, topic: str) -> None:
        """Let go of a consumer's position in a topic, durably."""


class ChannelsPort(Protocol):
    """The reliable channels that are kept in one log."""

    def open(
        self,
        participant_id: str,
        topic: str | None,
        retrieval_hint: Callable[[str, str], bytes | None] | None,
        recover: Literal["fail", "empty"],
        keys: Keys | None,
        migrations: Mapping[int, Migration] | None,
    ) -> Channels:
        """Those of one participant; what happens in them is appended to `topic`."""

    def kept(self) -> list[tuple[str, str]]:
        """Participant and id of every channel that is kept."""

    def load(self, participant_id: str, channel_id: str, migrations: Mapping[int, Migration] | None) -> ChannelData:
        """What is kept of a channel."""


class ExecutionsPort(Protocol):
    """The durable executions of one log."""

    def room_for(self, verb: str) -> ExecutionRoom:
        """All that running them needs, for this verb of the log; Invalid where none can run."""

    def facade(self) -> Executions:
        """What users see of executions."""


class KeysPort(Protocol):
    """The log's keys."""

    def rotate(self, keyring: Keyring) -> None:
        """Encrypt under this keyring's current key from now on."""


class LifetimePort(Protocol):
    """How the log ends."""

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed yet."""

    def enter(self) -> None:
        """A `with` block begins: wait a moment for the store's first answer, if nobody has."""

    def close(self, timeout: float | None = None) -> None:
        """End it; what was accepted is handed on first. A second call does nothing."""


class MaintenancePort(Protocol):
    """What keeps a log in order behind its appends."""

    def seal(self, topics: Names, timeout: float) -> None:
        """Seal what is durable now."""

    def retain(self, dry_run: bool) -> RetentionReport:
        """Apply retention, or say what would be removed."""

    def compact(self, topics: Names, target: int, progress: Progress | None, *, dry_run: bool) -> CompactionReport:
        """Join small segment files."""

    def set_retention(self, topic: str, wanted: TopicRetention) -> None:
        """Give a topic a policy of its own, durably."""

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare manifest and files."""

    def last_report(self) -> ReconcileReport | None:
        """The report of the last complete pass."""


class StorePort(Protocol):
    """The store of a log, if it has one."""

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled."""

    def subscribe(self) -> Subscription:
        """What happens to commits from now on."""

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable here and not known to be on the store."""

    def rebuild(self, *, accept_loss: bool, timeout: float) -> StoreRebuildReport:
        """Bring back what the store has lost."""

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare the manifest with the store."""


# -- of a log that is open here: its owner, and members that share it -----------------------------------------


class LocalMaintenancePort(MaintenancePort, Protocol):
    """The same where the log is open."""

    @property
    def counters(self) -> SegmentCounters | None:
        """What sealing counts; None where another process does."""

    def seal_soon(self, topics: Names) -> None:
        """Seal what is durable now, without waiting for it."""

    def stats(self) -> SegmentStats:
        """Sealing, retention and reconciliation at this moment."""

    def settle(self, timeout: float) -> None:
        """Make durable and seal what is there, as far as time allows; appends go on."""

    def close(self, timeout: float, *, seal: bool = True) -> None:
        """Refuse new records, make durable and seal what is there, as far as time allows, and end."""

    def forget(self) -> None:
        """In a forked child."""


class LocalStorePort(StorePort, Protocol):
    """The same where the log is open."""

    @property
    def counters(self) -> ShippingCounters | None:
        """What shipping counts; None where there is no store, or another process ships."""

    def wait_for_answer(self) -> None:
        """Wait a moment for the store's first answer, if nobody has."""

    def require_free(self, topic: str) -> None:
        """Raise Invalid where a sink writes the topic of this name."""

    def stats(self) -> ShippingStats | None:
        """Shipping at this moment."""

    def close(self, timeout: float | None = None) -> None:
        """Ship what is there, and stop."""

    def release(self) -> None:
        """Let go of what comparing with the store has opened."""

    def forget(self) -> None:
        """In a forked child."""


class TablesPort(Protocol):
    """The tables that a log's topics are published as."""

    def stats(self) -> TableStats:
        """Published tables at this moment."""

    def stop(self) -> None:
        """Bring them up to date once more, and end."""

    def forget(self) -> None:
        """In a forked child."""

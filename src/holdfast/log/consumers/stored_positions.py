"""Positions of consumers as they are stored: items of a space, and records of a topic. Bytes in, values out, and back.

An item says of one partition where a consumer goes on. A record says what a commit changed, and goes with it in one
unit; so the topic is shipped and sealed like any other, and positions come back from it (`position_store`). Each
change of a position has a time, which is later than that of the change before, whatever the clock says: of several
words about one partition the latest counts, in whatever order they are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.errors import Corrupt
from holdfast.model.record import Record
from holdfast.model.record_columns import Columns, Extra
from holdfast.model.topic_name import is_name

SPACE = "consumers"
TOPIC = "_consumers"
COMMITTED, KEPT, WAITING = b"committed", b"kept", b"waiting"
"""Kinds of records: what a commit changed; all that is known, said again; for whom a topic's retention waits."""

Place = tuple[str, str]
"""A consumer's name and a topic's."""

_POSITION, _WAIT = b"position", b"wait"
_INT64 = 2**63


class StoredPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a consumer goes on in one partition."""

    next: int
    """The offset behind the last record that is consumed."""
    at: int
    """When it was said, in microseconds; later than what was said before."""
    gone: bool = False
    """The consumer was forgotten: this is where it was."""
    after: int = 0
    """The time of the position that it follows; 0 where the owner said it itself, who lets nothing come between."""

    def is_sound(self) -> bool:
        """Whether these are numbers that a position can have."""
        return 0 <= self.next < _INT64 and 0 < self.at < _INT64 and 0 <= self.after < _INT64


class RetentionWait(msgspec.Struct, frozen=True):
    """For whom the retention of a topic waits, and how long at most."""

    consumers: tuple[str, ...]
    age_max_us: int
    bytes_max: int
    at: int

    def is_sound(self) -> bool:
        """Whether it is something that could have been asked for."""
        limits = (self.age_max_us, self.bytes_max, self.at)
        return all(map(is_name, self.consumers)) and all(0 <= limit < _INT64 for limit in limits)


class _Change(msgspec.Struct, frozen=True):
    """The payload of a record."""

    topic: str
    consumer: str = ""
    positions: dict[int, StoredPosition] = {}
    wait: RetentionWait | None = None


class ConsumerPositions(msgspec.Struct):
    """All that is kept of a log's consumers."""

    positions: dict[Place, dict[int, StoredPosition]] = {}
    waits: dict[str, RetentionWait] = {}

    def learn(self, place: Place, positions: Mapping[int, StoredPosition]) -> None:
        """Take up positions, unless a later word about a partition is known."""
        known = self.positions.setdefault(place, {})
        for number, kept in positions.items():
            if number not in known or known[number].at < kept.at:
                known[number] = kept

    def learn_wait(self, topic: str, wait: RetentionWait) -> None:
        """Take up for whom a topic's retention waits, unless a later word is known."""
        if topic not in self.waits or self.waits[topic].at < wait.at:
            self.waits[topic] = wait


def merge(positions: dict[int, StoredPosition], later: Mapping[int, StoredPosition]) -> None:
    """Make one commit of two: the later word counts, and it follows what the first one followed."""
    for number, kept in later.items():
        first = positions.get(number)
        positions[number] = kept if first is None else replace(kept, after=first.after)


Item = tuple[bytes, int, bytes]
_encode = msgspec.json.encode
_kept, _wait = msgspec.json.Decoder(StoredPosition), msgspec.json.Decoder(RetentionWait)
_change = msgspec.json.Decoder(_Change)


# -- items ------------------------------------------------------------------------------------------------


def position_items(place: Place, positions: Mapping[int, StoredPosition]) -> list[Item]:
    """Positions as items of the space."""
    return [(_position_key(place, number), 0, _encode(kept)) for number, kept in positions.items()]


def wait_item(topic: str, wait: RetentionWait) -> Item:
    """For whom a topic's retention waits, as an item."""
    return b"\0".join((_WAIT, topic.encode())), 1, _encode(wait)


def known_items(known: ConsumerPositions) -> list[Item]:
    """All of it as items."""
    found = [item for place, positions in known.positions.items() for item in position_items(place, positions)]
    return found + [wait_item(topic, wait) for topic, wait in known.waits.items()]


def read_items(items: Iterable[Item]) -> ConsumerPositions:
    """What items say; they are proved, so one that says nothing is damage."""
    known = ConsumerPositions({}, {})
    for key, _, body in items:
        try:
            _read_item(known, key.decode("ascii").split("\0"), body)
        except (ValueError, msgspec.MsgspecError):
            raise Corrupt("an item of the space of consumers cannot be understood", hint=_REMEDY) from None
    return known


def _read_item(known: ConsumerPositions, key: list[str], body: bytes) -> None:
    match key:
        case ["position", consumer, topic, partition]:
            kept = _kept.decode(body)
            if not kept.is_sound():
                raise ValueError
            known.learn((consumer, topic), {int(partition): kept})
        case ["wait", topic]:
            wait = _wait.decode(body)
            if not wait.is_sound():
                raise ValueError
            known.learn_wait(topic, wait)
        case _:  # a later version keeps something else here
            pass


def _position_key(place: Place, partition: int) -> bytes:
    return b"\0".join((_POSITION, place[0].encode(), place[1].encode(), b"%d" % partition))


_REMEDY = "it was written by another version; open the log with the newest holdfast"


# -- records ----------------------------------------------------------------------------------------------


def position_record(kind: bytes, place: Place, positions: Mapping[int, StoredPosition], now_us: int) -> Columns:
    """One record of positions."""
    change = _Change(place[1], place[0], dict(positions))
    return _records([(kind, "/".join(place), change)], now_us)


def wait_record(topic: str, wait: RetentionWait, now_us: int) -> Columns:
    """One record of a wait."""
    return _records([(WAITING, topic, _Change(topic, wait=wait))], now_us)


def known_records(known: ConsumerPositions, now_us: int) -> Columns:
    """All of it, said again."""
    changes = [(KEPT, "/".join(place), _Change(place[1], place[0], kept)) for place, kept in known.positions.items()]
    waits = [(KEPT, topic, _Change(topic, wait=wait)) for topic, wait in known.waits.items()]
    return _records(changes + waits, now_us)


def _records(changes: list[tuple[bytes, str, _Change]], now_us: int) -> Columns:
    extras: dict[int, Extra] = {index: (key.encode(), kind, None) for index, (kind, key, _) in enumerate(changes)}
    return Columns([_encode(payload) for _, _, payload in changes], [now_us] * len(changes), extras)


def read_record(known: ConsumerPositions, record: Record) -> None:
    """Take up what a record says. Anybody may append to the topic: what is no word about positions is passed over."""
    try:
        change = _change.decode(record.payload)
    except (msgspec.MsgspecError, ValueError):
        return
    if not is_name(change.topic):
        return
    if change.wait is not None and change.wait.is_sound():
        known.learn_wait(change.topic, change.wait)
    sound = {number: kept for number, kept in change.positions.items() if number >= 0 and kept.is_sound()}
    if sound and is_name(change.consumer):
        known.learn((change.consumer, change.topic), sound)

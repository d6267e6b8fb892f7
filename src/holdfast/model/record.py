"""What a user puts in and gets back: `Record`, `Receipt`, `Marks`. Values only; no behaviour but checks.

A record's `time` is microseconds since 1970-01-01 UTC, the unit that Arrow and Spark use. Headers map text
to bytes. A record that was not appended yet has offset -1 and, unless it was given one, the time NOW.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.quantity import parse_seconds

Durability = Literal["durable", "shipped"]
"""What an append waits for: survival of power loss, or of the loss of the machine."""

NOW = -(2**63)
"""The time of a record that gets its time when it is appended."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SINCE_S, _BEFORE_S = 631_152_000, 4_102_444_800
"""1990 and 2100: a number between them in some unit is taken for a time in that unit."""
_OTHER_UNITS = (
    ("seconds", _SINCE_S, _BEFORE_S, "multiply it by 1_000_000"),
    ("milliseconds", _SINCE_S * 10**3, _BEFORE_S * 10**3, "multiply it by 1_000"),
)


class Record(msgspec.Struct, frozen=True, eq=False):
    """One record of a topic. Records are equal if all but their topics is.

    >>> Record(b"hello", key=b"c-42").payload
    b'hello'
    """

    payload: bytes
    """Up to `journal.payload_bytes_max` bytes."""
    key: bytes | None = None
    """Records with one key are in one partition (crc32 of the key, modulo partitions), in order."""
    kind: str | None = None
    """A short text, 1 to 255 bytes."""
    headers: Mapping[str, bytes] | None = None
    """Names to bytes; an append takes text, too."""
    time: int = NOW
    """Microseconds since 1970 UTC."""
    offset: int = -1
    """Where it is in its partition; of a record that was read."""
    partition: int = 0
    """Of its topic."""
    topic: str = ""
    """Of a record that was read; appending goes by the topic that it is appended to."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        return self.payload, self.key, self.kind, self.headers, self.time, self.offset, self.partition

    @property
    def value(self) -> Any:
        """The payload; in a topic with a codec, what it stands for: JSON, text, or an object of the reader's type."""
        return self.payload

    @property
    def at(self) -> datetime:
        """`time` as an aware datetime in UTC."""
        try:
            return _EPOCH + timedelta(microseconds=self.time)
        except OverflowError:
            raise Invalid(f"no datetime has this time time={self.time}", hint="use record.time") from None


class Receipt(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Proof of a durable append: where the record is.

    `seq` is the number of the journal entry that holds it: log-wide, dense, in the order of commits;
    records that were packed into one entry share it. `repeated` says that this append wrote nothing, because its
    idempotency key was known: the record is an earlier one. Receipts of the same record are equal.
    """

    topic: str
    partition: int
    offset: int
    seq: int
    """The number of the journal entry that holds it; records that were packed into one entry share it."""
    repeated: bool = False
    """Its idempotency key was known: nothing was written, and this is the first receipt."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[str, int, int, int]:
        return self.topic, self.partition, self.offset, self.seq


class Marks(msgspec.Struct, frozen=True):
    """How far one partition got: everything below each offset is appended, durable, sealed, shipped, settled.

    Without a store `shipped` is None, because nothing left this machine; what is sealed is settled then.
    """

    appended: int
    """Durable, or in the queue."""
    durable: int
    """Committed and synced here."""
    sealed: int = 0
    """In segments."""
    shipped: int | None = None
    """On the store."""
    settled: int = 0
    """On the store in segments: what readers of a root see."""


class Watermark(msgspec.Struct, frozen=True):
    """How far one partition is sealed. It never goes back, not even when retention removes old segments."""

    index: int | None
    """The newest sealed segment; None before the first. Never the active one, which has no file."""
    offset: int
    """Everything below lies in segments."""


def moment_of(text: str, now_us: int) -> int:
    """A time as people write it, in microseconds since 1970: ISO 8601, in UTC where it names no zone, or how long ago.

    >>> moment_of("2026-01-01", 0) == moment_of("2026-01-01T01:00:00+01:00", 0), moment_of("10m", 600_000_001)
    (True, 1)
    """
    try:
        moment = datetime.fromisoformat(text if "-" in text else "")
    except ValueError:
        try:
            return now_us - round(parse_seconds(text) * 1e6)
        except (Invalid, OverflowError):
            raise Invalid(
                f"not a time: {text[:40]!r}",
                hint="give 2026-01-31T12:00:00Z, 2026-01-31 (UTC), or '10m' for that long ago",
            ) from None
    return microseconds(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def microseconds(moment: datetime | int) -> int:
    """A user's time as microseconds since 1970-01-01 UTC; a datetime without a zone is refused by callers.

    A number that is a day between 1990 and 2100 in seconds or milliseconds is Invalid. As microseconds it would be a
    moment of January or February 1970: use a datetime for that.
    """
    if isinstance(moment, datetime):
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if isinstance(moment, int):
        for unit, first, end, remedy in _OTHER_UNITS:
            if first <= moment < end:
                raise _in_another_unit(moment, unit, remedy)
    return moment


def stamped_at(moment: datetime | int) -> int:
    """The same for the time of a record, which is not in nanoseconds either: that would be beyond the year 21 000. (A
    bound may well be: it means that there is none.)
    """
    if isinstance(moment, int) and _SINCE_S * 10**9 <= moment < _BEFORE_S * 10**9:
        raise _in_another_unit(moment, "nanoseconds", "divide it by 1_000: time // 1_000")
    return microseconds(moment)


def _in_another_unit(moment: int, unit: str, remedy: str) -> Invalid:
    return Invalid(
        f"a time is microseconds since 1970, and this can only be {unit} time={moment}",
        hint=f"{remedy}, or give a datetime with a time zone",
    )

"""Delta's actions, as the protocol spells them, and a commit as bytes: one action per line.

A commit begins with `commitInfo`, in which the protocol leaves room for the writer. There stands what we need to know
to go on: `holdfast` is what a topic's table shows (`topic_actions`), or the run that wrote a pipeline's table. Pure;
docs/formats/0008-delta.md, docs/formats/0009-tables.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

ENGINE = "holdfast"
LOCAL_TIMES = "timestampNtz"
"""The feature that a table with times without a zone needs."""
STATS_COLUMNS = "delta.dataSkippingStatsColumns"
"""The setting that names columns by whose bounds files are skipped.

Without it `deltalake` (1.6) takes a bound that a file does not have for null, compares with that, and skips the file:
`DeltaTable(…).to_pyarrow_table(filters=…)` would lose rows. So it names columns that have bounds in every file.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)


class _Action(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A field that we do not know may change what the others mean."""


class Protocol(_Action, frozen=True, omit_defaults=True):
    """What a reader and a writer must know."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class Provider(_Action, frozen=True):
    """The format of the files."""

    provider: str = "parquet"
    options: dict[str, str] = {}


class Metadata(_Action, frozen=True):
    """What a table is."""

    id: str
    name: str
    description: str
    format: Provider
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    created_time: int


class Add(_Action, frozen=True):
    """A file belongs to the table from now on."""

    path: str
    partition_values: dict[str, str]
    size: int
    modification_time: int
    data_change: bool
    stats: str
    tags: dict[str, str]


class Remove(_Action, frozen=True):
    """A file belongs to the table no longer."""

    path: str
    deletion_timestamp: int
    data_change: bool
    extended_file_metadata: bool
    partition_values: dict[str, str]
    size: int
    tags: dict[str, str]


class Txn(_Action, frozen=True):
    """How far an application got."""

    app_id: str
    version: int
    last_updated: int


class CommitInfo(_Action, frozen=True):
    """Who committed, and what for."""

    timestamp: int
    operation: str
    operation_parameters: dict[str, str]
    engine_info: str
    is_blind_append: bool
    holdfast: Any
    """Our own part."""


def moment(time_us: int, zone: str = "Z") -> str | None:
    """A time as statistics have it; None outside the years 1 to 9999, which cannot be read everywhere."""
    if not _YEARS_US[0] <= time_us <= _YEARS_US[1]:
        return None
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + zone


def stats_columns(names: Iterable[str]) -> str:
    """The value of `STATS_COLUMNS`.

    >>> stats_columns(["id", "new `id`"])
    '`id`,`new ``id```'
    """
    return ",".join("`" + name.replace("`", "``") + "`" for name in names)


def table_id(random: bytes) -> str:
    """A new table's id, of sixteen bytes."""
    digits = random.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


# -- bytes --------------------------------------------------------------------------------------------------

_NAMES = {Protocol: "protocol", Metadata: "metaData", Txn: "txn", Remove: "remove", Add: "add"}
_encoder = msgspec.json.Encoder()


def encode(actions: Iterable[_Action]) -> bytes:
    """A commit."""
    return b"".join(b'{"%b":%b}\n' % (_name(one).encode(), _encoder.encode(one)) for one in actions)


def _name(action: _Action) -> str:
    return "commitInfo" if isinstance(action, CommitInfo) else _NAMES[type(action)]

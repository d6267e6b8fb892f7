"""`holdfast.read`: the settled part of a topic as an Arrow stream, without Spark and without the log that wrote it.

A check on a laptop and the answer of a cluster come from the same code: the same options, rows, order and proofs.
Columns have the names that they have in a topic. Polars, DuckDB, pandas and pyarrow take the result directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from os import environ
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.arguments import flag, path_of, text, texts
from holdfast.clock import SystemClock
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Invalid
from holdfast.model.arrow import dataframes
from holdfast.model.record import microseconds, moment_of
from holdfast.model.topic_name import check_name
from holdfast.model.typed_decoding import converted
from holdfast.reader.offsets import format_marks, parse_marks, parse_offsets
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import Encrypted, ReadOptions, SchemaMode, Verify, check_log_id, store_environment
from holdfast.reader.resolve import ResolvedRead, bounds_of, check_schemas, pieces, resolve
from holdfast.store.store_settings import StoreSettings

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from holdfast.reader.read_columns import RowShaper
    from holdfast.reader.read_plan import TimeBounds
    from holdfast.reader.tail_rows import TailPlan


def read(
    root: str,
    topic: str | Sequence[str] = (),
    *,
    topic_pattern: str = "",
    columns: Sequence[str] | None = None,
    starting_offsets: str | Mapping[str, Mapping[str, int]] = "earliest",
    ending_offsets: str | Mapping[str, Mapping[str, int]] = "latest",
    starting_timestamp: datetime | int | None = None,
    ending_timestamp: datetime | int | None = None,
    as_of: str | None = None,
    include_tail: bool = False,
    verify: Verify = "hash",
    schema_mode: SchemaMode = "latest",
    encrypted: Encrypted = "open",
    keyring: str | None = None,
    log_id: str | None = None,
    fail_on_data_loss: bool = True,
    store: Mapping[str, Any] | StoreSettings | None = None,
) -> SettledReading:
    """Read what is settled of one or several topics; see `SettledReading`.

    Rows of raw topics have the columns `topic`, `partition`, `offset`, `time`, `key`, `kind`, `headers`, `payload`;
    those of typed topics `_topic`, `_partition`, `_offset`, `_time` and their own.

    Times are datetimes with a zone, text such as "2026-01-31", or microseconds since 1970; `starting_timestamp` is
    included, `ending_timestamp` is not. Offsets are "earliest", "latest" or text such as '{"orders":{"0":1200}}'.
    `include_tail` adds what the store has above what is settled (only one that a log ships to has that).

    With a `keyring` nothing is believed that this log's keys did not sign; `log_id` also says which log must be there.
    """
    if isinstance(keyring, Keyring):
        raise Invalid(
            "a reader takes a reference to a keyring, not the keyring itself", hint="keyring='file:PATH' or 'env:NAME'"
        )
    options = ReadOptions(
        topics=(check_name(topic),)
        if isinstance(topic, str)
        else tuple(map(check_name, texts(topic, "topic", "orders"))),
        topic_pattern=text(topic_pattern, "topic_pattern", "orders-.*"),
        columns=None if columns is None else texts(columns, "columns", "offset"),
        starting_offsets=_word(starting_offsets, ("earliest", "latest")),
        ending_offsets=_word(ending_offsets, ("latest",)),
        since_us=_time(starting_timestamp, "starting_timestamp"),
        before_us=_time(ending_timestamp, "ending_timestamp"),
        as_of=None if as_of is None else parse_marks(text(as_of, "as_of", "what reading.marks says")),
        include_tail=flag(include_tail, "include_tail"),
        verify=verify,
        schema_mode=schema_mode,
        encrypted=encrypted,
        keyring="" if keyring is None else text(keyring, "keyring", "file:PATH"),
        log_id="" if log_id is None else check_log_id(log_id),
        fail_on_data_loss=flag(fail_on_data_loss, "fail_on_data_loss"),
        store=store if isinstance(store, StoreSettings) else store_settings({} if store is None else store),
    )
    return SettledReading(root_place(root), options)


def root_place(root: object) -> str:
    """Where a root is; relative directories are allowed, because nothing is created there."""
    is_url = isinstance(root, str) and ("://" in root or root.startswith("file:")) and "\0" not in root
    return str(root) if is_url else str(path_of(root, "a root"))


def store_settings(given: object) -> StoreSettings:
    """How a store is reached: what is given, and else what the environment says."""
    if not isinstance(given, Mapping):
        hint = "for instance store={'endpoint': 'https://…', 'region': 'eu-central-1'}"
        raise Invalid(f"store is a mapping of settings, not {type(given).__name__}", hint=hint)
    try:
        return converted({**store_environment(environ), **given}, StoreSettings)
    except msgspec.ValidationError as error:
        raise Invalid(f"store: {error}", hint="give settings of [store], such as endpoint and region") from None


def _word(offsets: object, words: tuple[str, ...]) -> Any:
    """One of these words, or offsets: as text, or as the dictionaries that the text stands for."""
    if isinstance(offsets, str):
        return offsets if offsets in words else parse_offsets(offsets)
    if isinstance(offsets, Mapping):
        try:
            return parse_offsets(msgspec.json.encode(offsets))
        except (TypeError, ValueError, msgspec.MsgspecError):
            pass
    raise Invalid(
        f"offsets are one of {', '.join(words)}, or by topic and partition",
        hint="""for instance {"orders": {"0": 1200}}; as a dictionary or as text""",
    )


def _time(moment: object, name: str) -> int | None:
    if isinstance(moment, str):
        moment = moment_of(moment, SystemClock().now_us())
    if isinstance(moment, datetime) and moment.tzinfo is None:
        raise Invalid(f"a time needs its zone: {name}", hint="datetime(…, tzinfo=UTC)")
    if moment is None or isinstance(moment, datetime):
        return None if moment is None else microseconds(moment)
    if isinstance(moment, bool) or not isinstance(moment, int) or not -(2**62) < moment < 2**62:
        raise Invalid(
            f"{name} is a datetime with a zone, or microseconds since 1970 as an int, not {type(moment).__name__}",
            hint="for instance datetime.fromisoformat('2026-01-31T12:00:00+00:00')",
        )
    return microseconds(moment)


class SettledReading:
    """Rows of the settled part of topics: an Arrow stream, read as it is asked for.

    What is read was settled when the reading was made: `marks` says how far, and `as_of=marks` reads the same again,
    or is NotFound where retention was faster.
    With `include_tail` there is also what the store had above the marks at that moment, after all other rows. This
    reading returns the same rows each time, but no other reading can repeat them: marks cover only what is settled.
    """

    def __init__(self, root: str, options: ReadOptions) -> None:
        self._options = options
        self._root = SettledRoot.open(root, options)
        self._resolved: ResolvedRead = resolve(self._root, options)
        from holdfast.reader.read_columns import schema_of

        self._schema: pa.Schema = schema_of(self._resolved.shape.columns)
        self._tail: TailPlan | None = None
        if options.include_tail:
            from holdfast.reader.tail_rows import plan_tail

            self._tail = plan_tail(self._root, self._resolved, options)

    @property
    def marks(self) -> str:
        """What is read of each partition, from where to where, and nothing else; text for `as_of`."""
        return format_marks(self._resolved.marks)

    @property
    def ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Where each partition begins and ends in this reading, its tail included, by topic and number."""
        found = {(span.topic, span.partition): (span.start, span.end) for span in self._resolved.spans}
        for span in () if self._tail is None else self._tail.spans:
            where = (span.topic, span.partition)
            found[where] = (min(found[where][0], span.start), max(found[where][1], span.end))
        return found

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, by topic, partition and offset; can be asked for again.

        Those of the tail, if it is included, come last: by offset in each partition, which take turns.
        """
        from holdfast.reader.piece_rows import TaskReader
        from holdfast.reader.read_columns import RowShaper
        from holdfast.reader.read_plan import Task

        resolved, options = self._resolved, self._options
        bounds = bounds_of(options)
        found = pieces(self._root, resolved.spans, options, bounds)
        check_schemas(found, resolved.shape, options, () if self._tail is None else self._tail.schemas)
        sources = [column.source for column in resolved.shape.columns]
        shaping = RowShaper(sources, self._schema, is_raw=not resolved.shape.schemas)
        settled = TaskReader(self._root.store, options, shaping, bounds).read(Task(tuple(found)))
        return chain(settled, self._tail_rows(self._tail, shaping, bounds)) if self._tail else settled

    def _tail_rows(self, plan: TailPlan, shaping: RowShaper, bounds: TimeBounds) -> Iterator[pa.RecordBatch]:
        from holdfast.reader.tail_rows import TailReader, TailTask

        task = TailTask(bytes.fromhex(self._root.log), not self._resolved.shape.schemas, plan.spans)
        return TailReader(self._root, self._options, shaping, bounds).read(task)

    def count(self) -> int:
        """How many rows there are; without bounds on time, manifests tell, and no file is opened."""
        return sum(batch.num_rows for batch in self._narrowed().batches())

    def _narrowed(self) -> SettledReading:
        other = object.__new__(SettledReading)
        other._options, other._root = self._options, self._root
        other._resolved = self._resolved._replace(shape=self._resolved.shape._replace(columns=()))
        other._tail = self._tail
        import pyarrow as pa

        other._schema = pa.schema([])
        return other

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(), self._schema)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars data frame."""
        return dataframes.polars_frame(self.to_arrow())

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas data frame."""
        return dataframes.pandas_frame(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream: Polars, DuckDB, pandas and pyarrow take a reading directly."""
        return dataframes.c_stream(self._schema, self.batches(), requested_schema)

    def __repr__(self) -> str:
        return f"SettledReading({self._root.store.url!r}, marks={self.marks})"

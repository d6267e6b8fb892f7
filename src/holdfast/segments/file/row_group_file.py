"""A segment's Parquet file while it is written, row group by row group, and hashed on the way.

It owns a temporary file. When `finish` returns, the file's content is durable; its name is not. A file that is not
finished is abandoned: it stays as it is, and removing it is the caller's business. What the rows mean is not its own.

Memory: a row group, and as much again while it is encoded. A helper thread hashes beside encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Invalid
from holdfast.model.segment import SegmentFacts
from holdfast.process_lifetime import Threads
from holdfast.segments.file.footer import Footer, RowGroupStatistics
from holdfast.segments.file.hashing_sink import HashingSink
from holdfast.segments.file.proven_file import FOOTER_BYTES_MAX

GROUPS_MAX = 50_000
"""Row groups of one file; readers refuse more."""


class RowGroupFile:
    """One new file; `settings` are Parquet's."""

    def __init__(self, path: Path, schema: pa.Schema, settings: dict[str, Any]) -> None:
        self.groups: list[RowGroupStatistics] = []
        """The row groups so far."""
        self._helper = Threads(1, "holdfast-segment")
        try:
            self._sink = HashingSink(path, self._helper)
        except BaseException:
            self._helper.shutdown()
            raise
        self._parquet: pq.ParquetWriter | None = pq.ParquetWriter(self._sink.stream, schema, **settings)

    @property
    def size(self) -> int:
        """Bytes of the file so far."""
        return self._sink.size

    def require_open(self) -> pq.ParquetWriter:
        """Invalid if the file is finished or abandoned."""
        if self._parquet is None:
            raise Invalid("this segment file is closed", hint="write a new one")
        return self._parquet

    def beside(self, work: Callable[[], None]) -> Future[None]:
        """Do something in the helper thread, while a row group is encoded."""
        return self._helper.submit(work)

    def write(self, table: pa.Table, about: RowGroupStatistics) -> None:
        """The next row group."""
        if len(self.groups) == GROUPS_MAX:
            raise Invalid(f"a segment has too many row groups max={GROUPS_MAX}", hint="make row groups larger")
        self.require_open().write_table(table, row_group_size=table.num_rows)
        self.groups.append(about)

    def write_behind(self, content: bytes) -> int:
        """Bytes behind the last row group, which no reader of Parquet looks at; returns where they begin."""
        self.require_open()
        start: int = self._sink.stream.tell()
        self._sink.stream.write(content)
        return start

    def finish(self, footer_of: Callable[[bytes], Footer], stamp: Callable[[bytes], bytes]) -> SegmentFacts:
        """Write the footer that is made of the hashes of all blocks, make the file durable and close it."""
        parquet = self.require_open()
        if not self.groups:
            raise Invalid("a segment has at least one record", hint="abandon it")
        footer = footer_of(self._sink.begin_footer())
        data_end = self._sink.size
        parquet.add_key_value_metadata(footer.stamped(stamp))
        parquet.close()
        self._sink.stream.flush()
        if self._sink.size - data_end > FOOTER_BYTES_MAX:  # better no file than one that readers refuse
            raise Invalid(f"a segment's footer is too large max={FOOTER_BYTES_MAX}", hint="make row groups larger")
        sha256, footer_hash = self._sink.finish()
        self._parquet = None
        self._helper.shutdown()
        return footer.facts(size=self._sink.size, sha256=sha256, footer=footer_hash)

    def abandon(self) -> None:
        """Close the file as it is. Does nothing after `finish`."""
        if self._parquet is None:
            return
        self._sink.abandon()
        self._parquet.is_open = False  # or it would write a footer when it is collected
        self._parquet = None
        self._helper.shutdown(cancel_futures=True)

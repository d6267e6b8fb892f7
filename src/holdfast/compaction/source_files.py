"""The files of a run, opened one after the other; of a store that is far away, a few are fetched ahead.

Small files come in one request each, so the time of a run of thousands is the time of their requests. What is fetched
ahead is bounded by count, and each by what is fetched of a file at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future

from holdfast.process_lifetime import Threads
from holdfast.reader.object_bytes import open_bytes
from holdfast.root.objects.documents import SegmentDocument
from holdfast.segments.file.proven_file import Bytes
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Store

_AHEAD = 8


class SourceFiles:
    """Opens plain files of one root; `trusted` says that a key has proved what is known of them."""

    def __init__(self, files: Store, row_group_bytes_max: int, *, trusted: bool) -> None:
        self._files, self._bytes_max, self._trusted = files, row_group_bytes_max, trusted

    def __call__(self, segments: Sequence[SegmentDocument]) -> Generator[SegmentReader, None, None]:
        """Readers of these files, in order; raises FileNotFoundError where one is gone."""
        if isinstance(self._files, DirectoryStore):
            for segment in segments:
                yield self._reader(segment, self._fetch(segment))
            return
        with Threads(_AHEAD, "holdfast-fetch") as threads:
            yield from self._ahead(threads, segments)

    def _ahead(self, threads: Threads, segments: Sequence[SegmentDocument]) -> Iterator[SegmentReader]:
        fetched: deque[Future[Bytes]] = deque()
        try:
            for at, segment in enumerate(segments):
                for coming in segments[at + len(fetched) : at + _AHEAD]:
                    fetched.append(threads.submit(self._fetch, coming))
                yield self._reader(segment, fetched.popleft().result())
        finally:
            for one in fetched:
                one.cancel()

    def _fetch(self, segment: SegmentDocument) -> Bytes:
        return open_bytes(self._files, segment.key, segment.size)

    def _reader(self, segment: SegmentDocument, source: Bytes) -> SegmentReader:
        of = segment.segment
        return SegmentReader(
            segment.key, of.head, of.facts, None, source=source, trusted=self._trusted,
            row_group_bytes_max=self._bytes_max,
        )  # fmt: skip
